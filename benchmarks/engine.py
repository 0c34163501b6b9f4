"""Costs of one update and one pass. Every figure is a ratio within one run, after compilation.

`make bench` runs this and writes `benchmarks/engine.md` and `benchmarks/engine.json`.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse

import valuefit as vf
from valuefit.rows.kernels import compiled
from valuefit.threads import limit_threads

HERE = Path(__file__).parent


def median_seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """Median time of `work`, after one run that is not measured."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@compiled
def read_all(numbers):
    total = 0.0
    for i in range(numbers.shape[0]):
        total += numbers[i]
    return total


def dense_problem(n: int, d: int, dtype: Any = np.float64) -> vf.Problem:
    rng = np.random.default_rng(0)
    rows = rng.random((n + 1, d), dtype=dtype)
    return vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), rng.random(n), 0.95)


def sparse_problem(n: int, d: int, nonzeros: int = 10, ridge: float = 0.1) -> vf.Problem:
    rng = np.random.default_rng(0)
    indices = rng.integers(0, d, (n + 1, nonzeros))
    indptr = np.arange(0, (n + 1) * nonzeros + 1, nonzeros)
    rows = sparse.csr_array((np.ones(indices.size), indices.ravel(), indptr), shape=(n + 1, d))
    return vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), rng.random(n), 0.95, ridge=ridge)


Stochastic = vf.solvers.SVRG | vf.solvers.SAGA
ORDERS = ("blocks", "single rows", "mini-batches")


def in_order(name: str, order: str) -> Stochastic:
    """A solver that reads rows in this order; preconditioned mini-batches are the default."""
    cls = {"svrg": vf.solvers.SVRG, "saga": vf.solvers.SAGA}[name]
    if order == "mini-batches":
        return cls()
    return cls(step_theta=1e-5, step_w=1e-5, block=32 if order == "blocks" else 1)


def update_seconds(problem: vf.Problem, solver: Stochastic) -> float:
    """Seconds per row of an epoch, without SVRG's full gradient, which is measured separately."""
    solver = replace(solver, inner=problem.n)
    rng = np.random.default_rng(1)
    state, _ = solver.init(problem, np.zeros(problem.d), np.zeros(problem.k))
    epoch = median_seconds(lambda: solver.epoch(problem, state, rng))
    if solver.name == "svrg":
        epoch -= median_seconds(lambda: problem.B(state.theta, state.w))
    return epoch / problem.n


def epoch_seconds(problem: vf.Problem, solver: Stochastic) -> float:
    rng = np.random.default_rng(1)
    state, _ = solver.init(problem, np.zeros(problem.d), np.zeros(problem.k))
    return median_seconds(lambda: solver.epoch(problem, state, rng), repeats=3)


def skinny_seconds(problem: vf.Problem) -> float:
    """Seconds of Phi @ (d, 2) and Phi' @ (m, 2), the two products of a pass, with BLAS."""
    rows = problem.phi.matrix
    pair, weights = np.ones((rows.shape[1], 2)), np.ones((rows.shape[0], 2))
    return median_seconds(lambda: (rows @ pair, rows.T @ weights))


def two_threads(problem: vf.Problem) -> float:
    """Time of a full-batch product on one thread over that on two."""
    theta = np.ones(problem.d)
    times = []
    for count in (1, 2):
        with limit_threads(count):
            times.append(median_seconds(lambda: problem.B(theta, theta), repeats=9))
    return times[0] / times[1]


def dgemm_rate(size: int = 1500) -> float:
    """Operations per second of a square matrix product."""
    square = np.random.default_rng(0).random((size, size))
    return 2 * size**3 / median_seconds(lambda: square @ square)


def exponent(sizes: list[int], times: list[float]) -> float:
    """Slope of log time against log size."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def measure() -> list[dict[str, Any]]:
    """Every figure with its target; `ok`: whether it is met."""
    figures: list[dict[str, Any]] = []

    def note(name: str, value: float, target: str, ok: bool) -> None:
        figures.append({"figure": name, "value": value, "target": target, "ok": bool(ok)})
        print(f"{name}: {value:.2f} ({target}) {'ok' if ok else 'MISSED'}", flush=True)

    both = [in_order(name, "single rows") for name in ("svrg", "saga")]
    for solver in both:
        sizes = [50_000, 100_000, 200_000, 400_000]
        slope = exponent(sizes, [epoch_seconds(dense_problem(n, 201), solver) for n in sizes])
        note(f"{solver.name}: exponent of epoch time in n (d = 201)", slope, "0.75 to 1.3", 0.75 <= slope <= 1.3)
    for solver in both:
        sizes = [100, 200, 400, 800]
        slope = exponent(sizes, [epoch_seconds(dense_problem(100_000, d), solver) for d in sizes])
        note(f"{solver.name}: exponent of epoch time in d (n = 100,000)", slope, "0.75 to 1.3", 0.75 <= slope <= 1.3)

    n, d = 200_000, 201
    for dtype in (np.float64, np.float32):
        problem = dense_problem(n, d, dtype)
        flat = problem.phi.matrix.ravel()
        floor = 2 * d * flat.itemsize / (flat.nbytes / median_seconds(lambda flat=flat: read_all(flat)))
        name = np.dtype(dtype).name
        for solver, order in product(("svrg", "saga"), ORDERS):
            ratio = update_seconds(problem, in_order(solver, order)) / floor
            wanted = {"blocks": 3.5, "single rows": 8.0}.get(order, np.inf) if dtype == np.float64 else np.inf
            note(
                f"{solver}: update over memory floor, {name}, {order}, (200,000, 201)",
                ratio, f"at most {wanted:g}" if wanted < np.inf else "for information", ratio <= wanted,
            )  # fmt: skip
        theta = np.ones(d)
        batch = median_seconds(lambda problem=problem, theta=theta: problem.B(theta, theta))
        ratio = batch / (2 * flat.nbytes / (2 * d * flat.itemsize) * floor)
        note(f"full-batch product over memory floor, {name}", ratio, "for information", True)
        if dtype == np.float64:
            ratio = skinny_seconds(problem) / batch
            note("two dgemm with two columns over the full-batch product", ratio, "for information", True)
            per_number = dgemm_rate() * batch / flat.size
            note("GEMM_FLOPS: dgemm operations per number in one pass", per_number, "16 to 64", 16 <= per_number <= 64)

    for label, problem in (("dense", dense_problem(n, d)), ("sparse", sparse_problem(1_000_000, 10_000))):
        faster = two_threads(problem)
        note(f"full-batch product, {label}: time on one thread over that on two", faster, "above 1.2", faster > 1.2)

    traced = vf.Problem.from_rows(np.ones((9, 3)), np.arange(8), np.arange(1, 9), np.ones(8), 0.9, trace=0.5)
    for label, problem in (("without traces", dense_problem(100, 5)), ("with traces", traced)):
        state, _ = vf.solvers.SAGA().init(problem, np.zeros(problem.d), np.zeros(problem.k))
        width = state.memory[0].entries.size / problem.n
        note(f"saga: table entries per step, {label}", width, "at most 3", width <= 3)

    for solver in both:
        narrow, wide = (update_seconds(sparse_problem(200_000, d), solver) for d in (1_000, 100_000))
        note(
            f"{solver.name}: sparse update at d = 100,000 over d = 1,000",
            wide / narrow,
            "at most 3",
            wide <= 3 * narrow,
        )
    return figures


def main() -> None:
    with limit_threads(1):
        figures = measure()
    lines = [
        "# Costs of one update and one pass",
        "",
        f"Written by `make bench` on {platform.machine()}, Python {platform.python_version()}, with one thread unless "
        "two are named. Medians; ratios within one run. The memory floor of an update is the time to read its two rows "
        "at the measured memory bandwidth.",
        "",
        "| figure | value | target | |",
        "|---|---|---|---|",
        *(
            f"| {row['figure']} | {row['value']:.2f} | {row['target']} | {'' if row['ok'] else 'missed'} |"
            for row in figures
        ),
        "",
    ]
    (HERE / "engine.md").write_text("\n".join(lines))
    (HERE / "engine.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(f"Written to {HERE / 'engine.md'}")


if __name__ == "__main__":
    main()
