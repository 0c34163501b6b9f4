"""The tasks of one cell of the grid: each method is timed alone, and its true gap is computed afterwards.

Each cell runs in its own process (`python -m benchmarks.tasks CELL TASK ...`), so that its memory is released and a
task that hangs can be killed. Each result is a line of JSON on standard output.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import valuefit as vf
from benchmarks import engine, peers
from benchmarks.cells import CELLS, Cell
from benchmarks.reference import Reference, dense_reference, reference
from valuefit.threads import limit_threads

TOL = 1e-6
PASSES = 400.0
SUBLINEAR_PASSES = 100.0  # for sublinear methods, which do not reach TOL within PASSES
OWN = ("lstd", "gtd2", "tdc", "pdbg", "svrg", "saga", "krylov", "auto")
PEERS = ("textbook", "gmres", "sparse-lu", "td-svrg")
SUBLINEAR = ("gtd2", "tdc")
SLOW_METHODS = (*SUBLINEAR, "td-svrg")  # these have a quarter of the time limit
SLOW_ON_SPARSE = (*SLOW_METHODS, "pdbg", "svrg", "saga")  # and these on sparse rows, where they do not reach TOL
PAIRS = 9  # alternating runs of textbook LSTD and `auto`, whose median ratio is reported
PAIRED_SECONDS = 20.0  # after which no further pair is begun, but for the first that is measured
PAIRED_THREADS = tuple(count for count in (1, 2, 4, 8, 16) if count in (1, 2, 8) or count <= (os.cpu_count() or 1))
MEMORY = 14 << 30  # bytes of address space of a process, so that it fails with MemoryError instead of being killed
Record = dict[str, Any]


def own_solvers() -> list[str]:
    """The solvers of the library that the grid compares."""
    return [name for name in OWN if name in vf.solvers.names()]


def tasks_of(cell: Cell) -> list[str]:
    """The tasks of a cell, in order; `@2` means on two threads."""
    own = own_solvers()
    if cell.kind == "direct":
        return ["reference", "lstd", "krylov", "auto", "textbook", *(f"paired@{count}" for count in PAIRED_THREADS)]
    tasks = ["reference", *own, *PEERS]
    if not cell.sparse and cell.d >= 1000:
        tasks += [f"{'auto' if 'auto' in own else 'lstd'}@2", "textbook@2"]
    if cell.kind == "fourier":
        tasks.append("dgemm")
    if cell.held_out:
        tasks.append("statistical")
    return tasks


def fresh(problem: vf.Problem) -> vf.Problem:
    """The same problem without cached moments."""
    return vf.Problem.from_rows(
        problem.phi.matrix, problem.now, problem.next, problem.reward, problem.discount, problem.ratio,
        np.cumsum(problem.begins), trace=problem.trace, ridge=problem.ridge,
    )  # fmt: skip


def timed(prepare: Callable[[], Any], work: Callable[[Any], Any]) -> tuple[float, int, Any]:
    """Median seconds of `work`, the number of runs (five if short, one if long), and its last result."""
    times: list[float] = []
    while True:
        given = prepare()
        start = time.perf_counter()
        out = work(given)
        times.append(time.perf_counter() - start)
        if len(times) >= (5 if times[0] < 0.5 else 3 if times[0] < 2 else 1):
            return statistics.median(times), len(times), out


@dataclass
class Bench:
    """A cell under measurement."""

    cell: Cell
    seconds: float
    store: Path | None = None
    announce: Callable[[str], None] = lambda stage: None  # called where another stage of a task begins
    problem: vf.Problem = field(init=False)
    small: vf.Problem = field(init=False)
    _truth: Reference | None = None

    def __post_init__(self) -> None:
        self.problem = fresh(self.cell.make())
        # compiles the code for the same types; sparse problems must be wide, because narrow ones use dense moments
        wide = self.cell.sparse and self.cell.n >= 20_000
        self.small = fresh((replace(self.cell, n=20_000, d=2000) if wide else self.cell.shrunk()).make())

    @property
    def truth(self) -> Reference:
        if self._truth is None:
            with limit_threads(2 if self.problem.d >= 1000 else 1):
                self._truth = reference(self.problem, self.store)
        return self._truth

    def run(self, task: str) -> Record:
        """The result of one task as plain data."""
        name, _, threads = task.partition("@")
        with limit_threads(int(threads or 1)):
            if name in OWN:
                record = self.own(name)
            elif name in PEERS:
                record = self.peer(name)
            elif name == "reference":
                record = self.describe()
            elif name == "paired":
                record = self.paired()
            elif name == "dgemm":
                record = self.dgemm()
            else:
                record = self.statistical()
        return {**record, "threads": int(threads or 1)}

    def limit(self, name: str) -> float:
        """The time limit in seconds: longer for large cells, a quarter for methods that do not reach the gap."""
        large = self.problem.phi.stored / (1e6 if self.cell.sparse else 2.5e7)
        more = float(np.clip(large, 1, 8 if name in OWN else 2))
        slow = self.cell.unsolved or name in (SLOW_ON_SPARSE if self.cell.sparse else SLOW_METHODS)
        return self.seconds * more / (4 if slow else 1)

    def describe(self) -> Record:
        start = time.perf_counter()
        truth = self.truth
        problem = self.problem
        return {
            "n": problem.n, "d": problem.d, "distinct": problem.phi.shape[0], "dead": len(problem.dead),
            "stored": problem.phi.stored, "about": truth.about, "condition": truth.condition,
            "lambda_A": truth.lambda_A, "seconds": time.perf_counter() - start,
        }  # fmt: skip

    def own(self, name: str) -> Record:
        """One of our solvers with its defaults; iterates are stored during the run, their gaps computed afterwards."""
        spacing = 2.0 if self.cell.sparse else 1.1  # ratio of passes between stored iterates
        all_gaps = not self.cell.sparse or self.problem.n <= 100_000  # in larger cells one gap takes up to a minute
        path: list[tuple[float, Any]] = []

        def keep(progress: Any) -> bool:
            if all_gaps and (not path or progress.passes >= spacing * path[-1][0]):
                path.append((progress.passes, progress.theta))
            return False

        def work(problem: vf.Problem) -> vf.Result:
            path.clear()
            return vf.solve(
                problem, name, tol=TOL, max_passes=SUBLINEAR_PASSES if name in SUBLINEAR else PASSES,
                max_seconds=self.limit(name), callback=keep,
            )  # fmt: skip

        vf.solve(self.small, name, tol=1e-2, max_passes=10)  # compile
        try:
            seconds, repeats, result = timed(lambda: fresh(self.problem), work)
        except (ValueError, MemoryError) as error:
            return {"status": "refused", "message": str(error)}
        self.announce("gap")
        curve = [(passes, self.truth.gap(theta)) for passes, theta in path]
        gap = self.truth.gap(result.theta)
        return {
            "status": result.status, "message": result.message, "passes": result.passes, "seconds": seconds,
            "repeats": repeats, "gap": gap, "claimed": result.gap, "worst": max([gap, *(g for _, g in curve)]),
            "curve": [*curve, (result.passes, gap)],
        }  # fmt: skip

    def peer(self, name: str) -> Record:
        small = self.small
        if name == "textbook":
            peers.textbook(small, lambda work: (0.0, work()))  # compile
            found = peers.textbook(self.problem, lambda work: timed(lambda: None, lambda _: work())[::2])
        elif name == "sparse-lu":
            found = peers.sparse_lu(self.problem)
        elif name == "gmres":
            peers.gmres(small, reference(small), tol=TOL, seconds=0.1)
            found = peers.gmres(self.problem, self.truth, tol=TOL, seconds=self.limit(name))
        else:
            peers.td_svrg(small, reference(small), tol=TOL, seconds=0.1)
            found = peers.td_svrg(self.problem, self.truth, tol=TOL, seconds=self.limit(name))
        self.announce("gap")
        gap = None if found.theta is None else self.truth.gap(found.theta)
        status = found.status
        if status == "done":
            status = "converged" if gap is not None and gap <= TOL else "inexact"
        return {
            "status": status, "message": found.note, "passes": found.passes, "seconds": found.seconds, "gap": gap,
        }  # fmt: skip

    def paired(self) -> Record:
        """Alternating runs of textbook LSTD, on materialised rows, and of `auto`, which also constructs the problem."""
        own: list[float] = []
        textbook: list[float] = []

        def alternate(work: Callable[[], Any]) -> tuple[float, Any]:
            while len(own) < 2 or (len(own) <= PAIRS and sum(own + textbook) < PAIRED_SECONDS):  # the first warms up
                start = time.perf_counter()
                theta = work()
                middle = time.perf_counter()
                vf.solve(fresh(self.problem), "auto", tol=TOL)
                own.append(time.perf_counter() - middle)
                textbook.append(middle - start)
            return statistics.median(textbook[1:]), theta

        found = peers.textbook(self.problem, alternate)
        ratio = statistics.median(theirs / ours for ours, theirs in zip(own[1:], textbook[1:], strict=True))
        return {"status": found.status, "seconds": statistics.median(own[1:]), "book": found.seconds, "ratio": ratio}

    def dgemm(self) -> Record:
        """Operations per second of the matrix product of LSTD."""
        rows = self.problem.phi.matrix
        seconds, repeats, _ = timed(lambda: None, lambda _: rows[:-1].T @ rows[1:])
        return {"seconds": seconds, "repeats": repeats, "rate": 2 * (len(rows) - 1) * rows.shape[1] ** 2 / seconds}

    def statistical(self) -> Record:
        """Passes of tol="statistical" and tol=1e-6, and passes at which the error on a held-out log stops improving."""
        held_out = dense_reference(self.cell.make(seed=1)).mspbe
        if held_out is None:
            return {"status": "not run", "message": "the held-out problem is singular"}
        found: Record = {}
        for name in [solver for solver in ("svrg", "saga", "krylov", "auto") if solver in own_solvers()]:
            path: list[tuple[float, float]] = []

            def keep(progress: Any, path: list[tuple[float, float]] = path) -> bool:
                path.append((progress.passes, held_out(progress.theta)))
                return False

            limits: Record = {"max_passes": PASSES, "max_seconds": self.limit(name)}
            full = vf.solve(fresh(self.problem), name, tol=TOL, callback=keep, **limits)
            path.append((full.passes, held_out(full.theta)))
            early = vf.solve(fresh(self.problem), name, tol="statistical", **limits)
            lowest = min(error for _, error in path)
            late = [place for place, (_, error) in enumerate(path) if error > 1.01 * lowest]
            if late and late[-1] + 1 == len(path):  # the error rose again at the end: take the pass of its minimum
                late = [min(range(len(path)), key=lambda place: path[place][1]) - 1]
            found[name] = {
                "passes": early.passes, "status": early.status, "full": full.passes, "full_status": full.status,
                "best": path[late[-1] + 1 if late else 0][0], "error": held_out(early.theta), "lowest": lowest,
            }  # fmt: skip
        return {"status": "done", "solvers": found}


def engine_figures(n: int = 200_000, d: int = 201) -> Record:
    """Times of updates by solver and order of rows, over the memory floor, and of float64 over float32."""
    found: Record = {}
    pairs = list(product(("svrg", "saga"), engine.ORDERS))
    with limit_threads(1):
        for dtype in (np.float64, np.float32):
            problem = engine.dense_problem(n, d, dtype)
            flat = problem.phi.matrix.ravel()
            rate = flat.nbytes / engine.median_seconds(lambda flat=flat: engine.read_all(flat))
            floor = 2 * d * flat.itemsize / rate
            for name, order in pairs:
                update = engine.update_seconds(problem, engine.in_order(name, order))
                found[f"{name} {order} {np.dtype(dtype).name}"] = {"seconds": update, "over_floor": update / floor}
    for name, order in pairs:
        double, single = (found[f"{name} {order} {dtype}"]["seconds"] for dtype in ("float64", "float32"))
        found[f"{name} {order} speed-up"] = double / single
    return found


def plain(value: Any) -> Any:
    """Convert to data that JSON can represent: NaN and infinity become None."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def main() -> None:
    parser = argparse.ArgumentParser(description="Run tasks of one cell of the grid.")
    parser.add_argument("cell")
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--store", type=Path)
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out, sys.stdout = sys.stdout, sys.stderr  # standard output is for JSON lines only

    def send(**message: Any) -> None:
        print(json.dumps(plain(message)), file=out, flush=True)

    if given.cell == "engine":
        send(task="engine", record=engine_figures())
        return
    cell = CELLS[given.cell]
    shown = cell.shrunk() if given.quick else cell
    bench = Bench(shown, given.seconds, given.store, lambda stage: send(begins=stage))
    for task in given.tasks:
        send(begins=task)
        try:
            record = bench.run(task)
        except MemoryError as error:
            record = {"status": "out of memory", "message": str(error)}
        send(task=task, record=record)
    os._exit(0)  # skips freeing gigabytes of arrays, which takes long


if __name__ == "__main__":
    main()
