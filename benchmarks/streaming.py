"""Evaluate logs in shards: seconds and memory by number of steps, next to a plain read of the same bytes.

Writes benchmarks/streaming.md. Each size runs in a process of its own, whose peak of anonymous memory is recorded:
    python -m benchmarks.streaming [--steps 1e6 1e7] [--width 8] [--folder FOLDER]
    python -m benchmarks.streaming --steps
    python -m benchmarks.streaming --solver krylov pdbg --steps 1e6 1e7
    python -m benchmarks.streaming --gigabytes 20 --width 64 --features identity
The second measures the single passes alone, the third these solvers; both print. The fourth evaluates a log of 20 GB,
and fails if that takes more than 2 GB of memory; it needs 20 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
from numpy.lib import format as npy

import valuefit as vf
from valuefit.atomic import write_bytes
from valuefit.data.readers.native import LOG_FORMAT, METADATA_FILE
from valuefit.evaluation.streamed import take_samples
from valuefit.linalg.moments import MIN_PRODUCT_ROWS, PRODUCT_BYTES
from valuefit.streaming.parts import Parts
from valuefit.threads import one_blas_thread, thread_count

PAGE = Path(__file__).with_name("streaming.md")
LENGTH = 200  # steps in an episode
COLUMN_BYTES = 43  # of a step in a saved folder, besides its observation
MAX_PEAK = 2e9  # bytes of memory
MAX_ITERATED_STEPS = 1e7  # of the logs that solvers other than the one of "auto" read in each of their passes
BLOCK = 1_000_000  # steps that are written at a time
LIMIT = 256 << 20  # bytes that a stream may hold
PASS_BYTES, PASS_WIDTHS = 9e8, (8, 64, 256)  # of the logs whose passes are measured
PASSES = ("samples", "moments", "errors")
SOLVERS = ["auto", "krylov", "pdbg"]
REPEATS = 5  # of which the fastest counts


def write_log(folder: Path, steps: int, width: int) -> None:
    """An autoregression of `width` float32 numbers in valuefit's own format, written in blocks."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    columns = {
        "observations": (np.float32, (steps, width)), "now": (np.int64, (steps,)), "next": (np.int64, (steps,)),
        "reward": (np.float64, (steps,)), "terminated": (bool, (steps,)), "truncated": (bool, (steps,)),
        "episode": (np.int64, (steps,)), "ratio": (np.float64, (steps,)), "begins": (bool, (steps,)),
    }  # fmt: skip
    files: dict[str, Any] = {}
    for name, (dtype, shape) in columns.items():
        files[name] = (folder / f"{name}.npy").open("wb")  # closed below
        header = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(files[name], header)
    for first in range(0, steps, BLOCK):
        t = np.arange(first, min(first + BLOCK, steps))
        episodes = len(t) // LENGTH
        x = np.empty((LENGTH, episodes, width), np.float32)
        x[0] = rng.standard_normal((episodes, width), np.float32)
        for step in range(1, LENGTH):
            x[step] = 0.9 * x[step - 1] + 0.3 * rng.standard_normal((episodes, width), np.float32)
        observations = x.transpose(1, 0, 2).reshape(-1, width)
        last = t % LENGTH == LENGTH - 1
        values = {
            "observations": observations, "now": t, "next": np.where(last, -1, t + 1),
            "reward": observations[:, 0].astype(np.float64), "terminated": last, "truncated": np.zeros(len(t), bool),
            "episode": t // LENGTH, "ratio": np.ones(len(t)), "begins": t % LENGTH == 0,
        }  # fmt: skip
        for name, value in values.items():
            files[name].write(np.ascontiguousarray(value, columns[name][0]).tobytes())
    for file in files.values():
        file.close()
    facts = {"format": LOG_FORMAT, "steps": steps, "notes": [], "names": [], "warnings": []}
    (folder / METADATA_FILE).write_text(json.dumps(facts))


def anonymous_memory() -> int:
    """Bytes of this process that no file backs."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def drop_from_cache(folder: Path) -> None:
    for file in folder.iterdir():
        with open(file, "rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_files(folder: Path) -> int:
    """Read all files of a folder; their bytes."""
    size = 0
    for file in sorted(folder.iterdir()):
        with open(file, "rb", buffering=0) as stream:
            while block := stream.read(16 << 20):
                size += len(block)
    return size


def measure(folder: Path, features: str, solver: str) -> dict[str, Any]:
    """Seconds of a plain read of all files, of `evaluate`, and the peak of memory while that runs.

    Both begin with files that are not in the page cache.
    """
    drop_from_cache(folder)
    started = time.perf_counter()
    size = read_files(folder)
    read = time.perf_counter() - started
    drop_from_cache(folder)
    log = vf.load(folder, memory="stream", limit=LIMIT)
    peak, done = [anonymous_memory()], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], anonymous_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    found = vf.evaluate(log, features=features, discount=0.95, solver=solver)
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    value, result = found.policy_value, found.result
    return {
        "steps": log.steps, "bytes": size, "read": read, "seconds": seconds, "peak": peak[0],
        "estimate": value.estimate, "standard_error": value.standard_error or 0.0,
        "solver": result.solver, "passes": result.passes, "status": result.status, "note": found.notes[0],
    }  # fmt: skip


# ---- single passes ------------------------------------------------------------------------------------------------


def settings(features: str) -> dict[str, Any]:
    """The arguments of `evaluate` with which a log is read once for the moments and once for the errors."""
    return {"features": features, "discount": 0.95, "solver": "lstd", "tol": 1e-8, "max_passes": 100}


@contextmanager
def recorded(
    spent: dict[str, Any], names: list[str], clock: Callable[[], Any], before: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """The time by `clock` of each call of `Parts.sum`, by these names in order; before: called first, untimed."""
    remaining, whole = iter(names), Parts.sum

    def timed(self: Parts, function: Any) -> Any:
        before()
        started = clock()
        try:
            return whole(self, function)
        finally:
            spent[next(remaining)] = clock() - started

    Parts.sum = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Parts.sum = whole  # type: ignore[method-assign]


def clocks() -> np.ndarray:
    """Seconds of the wall, and of the processors for this process."""
    return np.array([time.perf_counter(), time.process_time()])


def clocked(call: Callable[[], Any], before: Callable[[], None] = lambda: None) -> np.ndarray:
    before()
    started = clocks()
    call()
    return clocks() - started


def steps_of(size: float, width: int) -> int:
    """Steps of a saved log of `size` bytes, in whole episodes."""
    return int(size / (4 * width + COLUMN_BYTES)) // LENGTH * LENGTH


def products(steps: int, width: int) -> np.ndarray:
    """Seconds of the products u'v and u'u of blocks of as many rows in memory, on all threads."""
    X = np.random.default_rng(0).random((steps // thread_count() // 10, width))
    Y, block = X + 1, int(np.clip(PRODUCT_BYTES // (16 * width), MIN_PRODUCT_ROWS, None))

    def multiply(_: int) -> None:
        for _ in range(10):
            for start in range(0, len(X), block):
                u = X[start : start + block]
                u.T @ Y[start : start + block]
                u.T @ u

    with one_blas_thread(), ThreadPoolExecutor(thread_count()) as threads:
        return clocked(lambda: list(threads.map(multiply, range(thread_count()))))


def passes(source: Path, width: int, plain: Callable[[], Any], before: Callable[[], None]) -> dict[str, np.ndarray]:
    """By name, wall and processor seconds: a plain read, the three passes and the products, the smallest of REPEATS."""
    found: dict[str, np.ndarray] = {}
    log = vf.load(source, memory="stream", limit=LIMIT)
    for _ in range(REPEATS):
        spent = {"plain": clocked(plain, before), "samples": clocked(lambda: take_samples(log), before)}
        with recorded(spent, ["moments", "errors"], clocks, before):
            vf.evaluate(log, **settings("identity"))
        spent["products"] = products(log.steps, width)
        found = {name: np.minimum(value, found.get(name, np.inf)) for name, value in spent.items()}
    return found


def as_parquet(folder: Path, file: Path) -> list[str]:
    """Write the steps of a saved log as Parquet; the names of the columns."""
    arrays = {name: np.load(folder / f"{name}.npy") for name in ("observations", "reward", "terminated", "episode")}
    observations = arrays.pop("observations")
    columns = {**arrays, **{f"obs_{k}": np.ascontiguousarray(x) for k, x in enumerate(observations.T)}}
    parquet.write_table(pyarrow.table(columns), file, use_dictionary=["terminated", "episode"])
    return list(columns)


def read_batches(file: Path, columns: list[str]) -> None:
    for _ in parquet.ParquetFile(file).iter_batches(columns=columns):
        pass


def pass_table(place: Path) -> str:
    """What a pass costs next to a plain read of the same file and to the matrix products of as many rows in memory."""
    lines = [
        f"Single passes over logs of {PASS_BYTES / 1e9:.1f} GB with identity features on {thread_count()} threads, the "
        f"fastest of {REPEATS} interleaved runs. Files of valuefit's own format are read without the page cache, and "
        "the plain read is that of their bytes; that of Parquet is `iter_batches` of pyarrow, from the cache. Products "
        "are u'v and u'u of as many rows in memory, compared by processor time.",
        "",
        "| format | numbers | pass | microseconds a step | of processor time | rate of the plain read | rate of the "
        "products |",
        "|---|---|---|---|---|---|---|",
    ]
    for width in PASS_WIDTHS:
        folder, file = place / "log", place / "log.parquet"
        steps = steps_of(PASS_BYTES, width)
        write_log(folder, steps, width)
        columns = as_parquet(folder, file)
        for name, found in (
            ("native", passes(folder, width, partial(read_files, folder), partial(drop_from_cache, folder))),
            ("Parquet", passes(file, width, partial(read_batches, file, columns), lambda: None)),
        ):
            found = {key: 1e6 * value / steps for key, value in found.items()}
            lines.append(f"| {name} | {width} | plain read | {found['plain'][0]:.3f} | {found['plain'][1]:.3f} | | |")
            for one in PASSES:
                wall, cpu = found[one]
                share = f"{found['products'][1] / cpu:.0%}" if one == "moments" else ""
                lines.append(
                    f"| {name} | {width} | {one} | {wall:.3f} | {cpu:.3f} | {found['plain'][0] / wall:.0%} | {share} |"
                )
            print("\n".join(lines[-4:]), flush=True)
        shutil.rmtree(folder)
        file.unlink()
    return "\n".join(lines) + "\n"


def table(records: list[dict[str, Any]], width: int) -> str:
    lines = [
        "# Logs in shards",
        "",
        f"Logs of {width} float32 numbers a step in valuefit's own format, episodes of {LENGTH} steps, "
        f"`limit={LIMIT >> 20} MiB`; time and memory of `evaluate` with interval and checks. Made by "
        "`python -m benchmarks.streaming`. Passes are those that the solver counts, with its other work.",
        "",
        "| solver | steps | features | size | plain read | evaluate | microseconds a step | passes | peak memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    by_solver = {name: [one for one in records if one["solver"] == name] for name in [one["solver"] for one in records]}
    for name, some in by_solver.items():
        for one in some:
            lines.append(
                f"| {name} | {one['steps']:.0e} | {one['features']} | {one['bytes'] / 2**30:.2f} GiB | "
                f"{one['read']:.1f} s | {one['seconds']:.1f} s | {1e6 * one['seconds'] / one['steps']:.2f} | "
                f"{one['passes']:.0f} | {one['peak'] / 2**20:.0f} MiB |"
            )
    return "\n".join([*lines, "", *map(growth, by_solver.values()), ""])


def growth(records: list[dict[str, Any]]) -> str:
    """The line that fits the times of a solver best, relative to them; empty for fewer than three sizes."""
    if len(records) < 3:
        return ""
    steps, seconds = (np.array([one[name] for one in records]) for name in ("steps", "seconds"))
    slope, start = np.polyfit(steps, seconds, 1, w=1 / seconds)
    apart = np.abs((start + slope * steps) / seconds - 1).max()
    return (
        f"{records[0]['solver']}: the time is {start:.2f} s and {1e6 * slope:.3f} microseconds a step, from "
        f"{steps.min():.0e} to {steps.max():.0e} steps, within {apart:.0%}. Kernels were compiled before.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=float, nargs="*", default=[1e6, 3e6, 1e7, 3e7, 1e8])
    parser.add_argument("--gigabytes", type=float, nargs="*", help="Sizes of the logs, instead of numbers of steps.")
    parser.add_argument("--width", type=int, default=8, help="float32 numbers in an observation.")
    parser.add_argument("--features", nargs="*", default=["identity"])
    parser.add_argument("--solver", nargs="*", default=SOLVERS)
    parser.add_argument("--folder", help="Where the logs are written; a temporary one by default.")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Path(options.measure[0]), *options.measure[1:])))
        return
    records: list[dict[str, Any]] = []
    sizes = options.steps
    if options.gigabytes:
        sizes = [steps_of(1e9 * size, options.width) for size in options.gigabytes]
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        for steps in sizes:
            folder = Path(place) / f"{int(steps)}"
            write_log(folder, int(steps), options.width)
            for features, solver in product(options.features, options.solver):
                if solver != "auto" and steps > MAX_ITERATED_STEPS:
                    continue
                command = [sys.executable, "-m", "benchmarks.streaming", "--measure", str(folder), features, solver]
                for _ in range(2 if steps == sizes[0] else 1):  # the first one compiles
                    found = subprocess.run(command, capture_output=True, text=True, check=True)
                records.append({**json.loads(found.stdout), "features": features})
                print(records[-1], flush=True)
            shutil.rmtree(folder)
        page = options.solver == SOLVERS and not options.gigabytes
        single = pass_table(Path(place)) if page else ""
    peak = max((record["peak"] for record in records), default=0)
    if peak > MAX_PEAK:
        sys.exit(f"The peak of memory was {peak / 1e9:.1f} GB, more than {MAX_PEAK / 1e9:.0f}.")
    if records and page:
        write_bytes(PAGE, f"{table(records, options.width)}\n{single}".encode(), force=True)
    elif records:
        print(table(records, options.width))


if __name__ == "__main__":
    main()
