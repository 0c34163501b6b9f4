"""Dask: the overhead of workers over this process, and the coefficients of `valuefit plan` with their check.

Writes benchmarks/cluster.md; the coefficients are `CLUSTER_COSTS` and `COSTS` of `valuefit.machine` and `STEP_FLOPS`:
    python -m benchmarks.cluster [--size 2e8] [--repeats 3] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster
from scipy.optimize import nnls

import valuefit as vf
from benchmarks.streaming import anonymous_memory, recorded, settings, write_log
from valuefit.atomic import write_bytes
from valuefit.data.shards import ShardedLog
from valuefit.data.transitions import Transitions
from valuefit.evaluation.plan import STEP_FLOPS, Cluster
from valuefit.evaluation.streamed import _moments, take_samples
from valuefit.features.registry import make
from valuefit.inference.inputs import MakePart
from valuefit.machine import CLUSTER_COSTS, COSTS, WORKER_BYTES
from valuefit.streaming.parts import Parts, part_sizes, sum_shards
from valuefit.streaming.sharded import ShardedProblem
from valuefit.threads import limit_threads

PAGE = Path(__file__).with_name("cluster.md")
WIDTH, STEP_BYTES = 8, 75  # numbers in an observation of the logs, and bytes of a step
FIT_STEPS, FIT_FEATURES = 200_000, (25, 100, 400)
LIMIT = 256 << 20  # bytes that a part may hold
WIDTHS = (64, 128, 256)  # in-process workers of the check
UNMONITORED = {  # settings of Dask for workers that do not monitor themselves
    "distributed.admin.system-monitor.interval": "1h", "distributed.admin.tick.interval": "1h",
    "distributed.worker.profile.enabled": False,
}  # fmt: skip


def features_of(count: int) -> str:
    return f"fourier:order=2,max_features={count}"


# ---- what a step costs: processor time of one thread ------------------------------------------------------------


def step_rows(folder: Path) -> tuple[list[list[float]], list[float]]:
    """Rows of the linear system for (step, problem, feature, flop, flop of errors), and the seconds they sum up to."""
    log = vf.load(folder, memory="stream", limit=LIMIT)
    seconds: list[float] = []
    rows: list[list[float]] = []
    with limit_threads(1):
        for d in FIT_FEATURES:
            spent = sums_of(log, d)
            rows += [[1, 0, 0, 0, 0], [1, 1, d, STEP_FLOPS["moments"] * d**2, 0], [1, 1, d, 0, d**2], [1, 1, d, 0, 0]]
            seconds += [spent["samples"], spent["moments"], spent["errors"], spent["products"]]
    return [[FIT_STEPS * x for x in row] for row in rows], seconds


def sums_of(log: ShardedLog, d: int) -> dict[str, float]:
    """Seconds of each kind of pass; the smallest of two."""
    found: dict[str, float] = {}
    for _ in range(2):
        started = time.process_time()
        samples = take_samples(log)
        spent = {"samples": time.process_time() - started}
        with recorded(spent, ["moments", "errors"], time.process_time):
            vf.evaluate(log, **settings(features_of(d)))
        maker = MakePart(make(features_of(d), samples.observations())[0], None, "state", 0.95, 0.0, 0.0)
        problem = ShardedProblem(Parts(log.shards, maker, 100_000), trace=0.0, discount=0.95, ridge=0.0)
        theta = np.ones(problem.d)
        with recorded(spent, ["products"], time.process_time):
            problem._batch(theta, theta, rewards=True)
        found = {name: min(value, found.get(name, np.inf)) for name, value in spent.items()}
    print(d, found, flush=True)
    return found


# ---- what a task costs: sums over shards without data -----------------------------------------------------------


@dataclass(frozen=True)
class Nothing:
    """A shard without steps."""

    def read(self) -> Any:
        return None


def sleep_and_return(log: Transitions, number: int, *, seconds: float, size: int) -> tuple[np.ndarray]:
    time.sleep(seconds)
    return (np.ones(size // 8),)


def pass_of(client: Client, shards: int, seconds: float = 0.0, size: int = 8) -> float:
    """Seconds of a pass; of empty tasks without those in which other programs kept the thread of scheduler and workers
    waiting, which are not lost where tasks sleep meanwhile."""
    gc.collect()
    gc.disable()
    try:
        started, waited = time.perf_counter(), waiting_seconds()
        sum_shards([Nothing()] * shards, partial(sleep_and_return, seconds=seconds, size=size), client)
        elapsed = time.perf_counter() - started
        return elapsed if seconds else elapsed - (waiting_seconds() - waited)
    finally:
        gc.enable()


def waiting_seconds() -> float:
    """How long threads of the name of Dask's event loop, of this process, were ready to run but had no core (Linux)."""
    threads = [one.native_id for one in threading.enumerate() if one.name.startswith("IO loop")]
    stats = [Path(f"/proc/self/task/{number}/schedstat").read_text().split() for number in threads]
    return sum(int(one[1]) for one in stats) / 1e9


def best(measure: Callable[[], float], repeats: int) -> float:
    return min(measure() for _ in range(repeats))


@contextmanager
def workers(count: int, *, processes: bool) -> Iterator[Client]:
    """A local cluster; processes=False: in this process, where all workers share one thread with the scheduler.

    What they would do in processes of their own is left out: with 256 of them, 60% of the time of that thread went into
    their monitoring of this process even if nothing ran, and three quarters of the time of a task into the garbage
    collection of their objects (`pass_of` turns it off).
    """
    with (
        dask.config.set({} if processes else UNMONITORED),
        LocalCluster(
            n_workers=count, threads_per_worker=1, processes=processes, dashboard_address=None, silence_logs=50,
            memory_limit=0,
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        client.wait_for_workers(count)
        if not processes:
            pass_of(client, 4 * count)  # starts the threads
        yield client


def scheduler_coefficients(repeats: int) -> tuple[float, float, float]:
    """Seconds of a task (128 in-process workers), seconds of a byte and bytes of a worker (two processes)."""
    with workers(128, processes=False) as client:
        many, few = (best(partial(pass_of, client, shards), repeats) for shards in (1024, 128))
        task = (many - few) / (896 * 8 / 7)
    size, shards = 8 << 20, 32
    with workers(2, processes=True) as client:
        pass_of(client, shards, size=size)
        slow, fast = (best(partial(pass_of, client, shards, size=one), repeats) for one in (size, 8))
        client.run(take_part)
        memory = statistics.median(client.run(anonymous_memory).values())
    levels, each = 2, shards // 2
    return task, max(0.0, slow - fast) / (size * (each + 8 * levels)), float(memory)


def take_part() -> None:
    """A small evaluation, after which a worker has all modules loaded."""
    x = np.random.default_rng(0).normal(size=(2000, 3))
    vf.evaluate(vf.Transitions.from_arrays(x, x[:, 0], terminated=np.arange(2000) % 50 == 49), features="fourier")


def fitted(folder: Path, repeats: int) -> tuple[dict[str, float], float]:
    """The coefficients, and operations of errors for each step and pair of features."""
    rows, seconds = step_rows(folder)
    scale = 1 / np.array(seconds)  # relative errors
    step, problem, feature, flop, errors = nnls(np.array(rows) * scale[:, None], np.ones(len(seconds)))[0]
    task, byte, memory = scheduler_coefficients(repeats)
    costs = {"task": task, "sum_byte": byte, "read_step": step, "problem_step": problem, "feature": feature}
    return {**costs, "gram_flop": flop, "bytes of a worker": memory}, errors / flop


def check(repeats: int) -> list[tuple[int, int, float, float, float]]:
    """Workers, shards, seconds of a task, and seconds of a pass: measured, and predicted by the model in use."""
    records = []
    for count in WIDTHS:
        with workers(count, processes=False) as client:
            for shards, seconds in ((4 * count, 0.0), (4 * count, 1.0), (4 * count, 4.0)):
                measured = best(partial(pass_of, client, shards, seconds), repeats)
                predicted = Cluster(count).pass_seconds(shards, seconds, sent=0, returned=8)
                records.append((count, shards, seconds, measured, predicted))
                print(records[-1], flush=True)
    return records


# ---- overhead: the same sums in this process and on two workers -------------------------------------------------


def cpu_seconds() -> float:
    own = os.times()
    return own.user + own.system


def timed(call: Callable[[], Any], client: Client | None) -> tuple[float, float]:
    """Wall seconds, and processor seconds of this process and of the workers."""

    def spent() -> float:
        return cpu_seconds() + (0.0 if client is None else sum(client.run(cpu_seconds).values()))

    before, started = spent(), time.perf_counter()
    call()
    return time.perf_counter() - started, spent() - before


def overhead(folder: Path, part: Path, d: int, repeats: int) -> dict[str, tuple[float, float, float, float]]:
    """By name: medians of wall and processor seconds, in this process on two threads and on two workers."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    logs = [vf.load(one, memory="stream", limit=LIMIT) for one in (folder, part)]
    maker = MakePart(make(features_of(d), take_samples(logs[1]).observations())[0], None, "state", 0.95, 0.0, 0.0)
    with workers(2, processes=True) as client:
        calls: list[list[tuple[str, Callable[[], Any]]]] = []
        for where in (None, client):
            rows, at_once = part_sizes(LIMIT, d)
            whole, tenth = (Parts(log.shards, maker, rows, where, at_once) for log in logs)
            moments = partial(whole.sum, partial(_moments, maker=maker))
            problem = ShardedProblem(tenth, trace=0.0, discount=0.95, ridge=0.0)
            x = np.ones(problem.d)
            calls.append([
                ("lstd: moments", moments), ("krylov: a product", partial(problem.At_dot, x)),
                ("pdbg: a pass", partial(problem.products, x, x)),
            ])  # fmt: skip
        for _ in range(repeats):
            for side, where in enumerate((None, client)):
                for name, call in calls[side]:
                    found.setdefault(name, ([], []))[side].append(timed(call, where))
                    print(name, side, found[name][side][-1], flush=True)
    return {
        name: tuple(float(np.median([one[kind] for one in side])) for side in sides for kind in (0, 1))  # type: ignore[misc]
        for name, sides in found.items()
    }


# ---- the page -------------------------------------------------------------------------------------------------------


def page(
    costs: dict[str, tuple[float, float, float, float]], size: float, d: int, coefficients: dict[str, float],
    error_flops: float, checked: list[tuple[int, int, float, float, float]], repeats: int,
) -> str:  # fmt: skip
    lines = [
        "# Workers of a Dask cluster", "",
        f"Made by `python -m benchmarks.cluster` on {os.cpu_count()} cores, with {d} Fourier features of 8 numbers. "
        f"Medians of {repeats} interleaved runs in one process on two threads and on two workers of one thread each. "
        f"The moments are those of a log of {size / 1e9:.2g} GB, the passes those of a tenth of it.", "",
        "| sum | process, s | two workers, s | ratio | processor seconds | on workers | ratio |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, (wall, cpu, there, there_cpu) in costs.items():
        lines.append(
            f"| {name} | {wall:.2f} | {there:.2f} | {there / wall:.2f} | {cpu:.2f} | {there_cpu:.2f} | "
            f"{there_cpu / cpu:.2f} |"
        )
    lines += ["", "Coefficients of `valuefit plan`, fitted to these measurements and used in `machine.py`:", "",
              "| coefficient | fitted now | used |", "|---|---|---|"]  # fmt: skip
    used = {**CLUSTER_COSTS, "gram_flop": COSTS["gram_flop"], "bytes of a worker": WORKER_BYTES}
    for name, value in coefficients.items():
        lines.append(f"| {name} | {value:.2g} | {used[name]:.2g} |")
    lines += [
        f"| operations of errors, for a step and a pair of features | {error_flops:.2g} | {STEP_FLOPS['errors']:.2g} |",
        "",
        "The model in use against Dask's own scheduler, with workers in its process and tasks that sleep. "
        "What workers would do in processes of their own is left out: their monitoring, and garbage collection, which "
        "searches the objects of all of them. Their other work is not, so this is an upper bound of the overhead. "
        "The time of a task was fitted to passes of 128 and 1024 empty tasks on 128 workers. For these the time in "
        "which other programs used the cores is left out.", "",
        "| workers | shards | seconds a task | measured pass, s | model, s | model/measured |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for count, shards, seconds, measured, predicted in checked:
        lines.append(
            f"| {count} | {shards} | {seconds:g} | {measured:.2f} | {predicted:.2f} | {predicted / measured:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=2e8, help="Bytes of the log of the overhead.")
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="Where the logs are written; a temporary one by default.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folders = [Path(place) / name for name in ("fit", "part", "whole")]
        steps = int(options.size / STEP_BYTES) // 1000 * 1000
        for folder, count in zip(folders, (FIT_STEPS, steps // 10000 * 1000, steps), strict=True):
            write_log(folder, count, WIDTH)
        coefficients, error_flops = fitted(folders[0], options.repeats)
        print(coefficients, error_flops, flush=True)
        checked = check(options.repeats)
        costs = overhead(folders[2], folders[1], options.features, options.repeats)
    text = page(costs, options.size, options.features, coefficients, error_flops, checked, options.repeats)
    write_bytes(PAGE, text.encode(), force=True)


if __name__ == "__main__":
    main()
