"""Measure the coefficients of the cost model of "auto" (`valuefit.machine.COSTS`) on 1, 2, 4, ... threads.

`python -m benchmarks.costs` prints them next to those in the code. Costs with a fixed part are
fitted over several sizes: seconds = each * amount + fixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg as linalg
import scipy.optimize as optimize

import valuefit as vf
from benchmarks.engine import dense_problem, median_seconds, sparse_problem, update_seconds
from benchmarks.tasks import fresh
from valuefit.machine import COSTS, seconds
from valuefit.threads import limit_threads, thread_count

Costs = dict[str, float]
WIDE = 4000  # sparse columns whose moments do not fit in cache


def line(amounts: list[float], seconds: list[float]) -> tuple[float, float]:
    """(each, fixed), both at least 0, of the least-squares line in relative errors."""
    y = np.maximum(seconds, 1e-12)  # a difference of two small times may be negative
    each, fixed = optimize.nnls(np.column_stack([amounts / y, 1 / y]), np.ones(len(y)))[0]
    return float(each), float(fixed)


def pass_costs(n: int, widths: list[int]) -> Costs:
    """Costs of A theta with dense and sparse rows."""
    dense: list[float] = []
    for d in widths:
        problem, x = dense_problem(n, d), np.ones(d)
        dense.append(median_seconds(lambda problem=problem, x=x: problem.A_dot(x)) / n)
    each, fixed = line([8.0 * d for d in widths], dense)
    counts = [4, 8, 16, 32]
    scattered: list[float] = []
    for nonzeros in counts:
        problem, x = sparse_problem(n, WIDE, nonzeros), np.ones(WIDE)
        scattered.append(median_seconds(lambda problem=problem, x=x: problem.A_dot(x)) / n)
    sparse_each, sparse_fixed = line([float(count) for count in counts], scattered)
    return {"pass_byte": each, "pass_step": fixed, "pass_nonzero": sparse_each, "sparse_step": sparse_fixed}


def matrix_costs(n: int, d: int, wide: int) -> Costs:
    """Costs of moments and factorisations."""
    square = np.random.default_rng(0).random((d, d)) + d * np.eye(d)
    problem, scattered = dense_problem(n, d), sparse_problem(n, wide, 8)

    def recompute_A(problem: vf.Problem) -> np.ndarray[Any, np.dtype[Any]]:
        problem.__dict__.pop("A", None)
        return problem.A

    return {
        "gram_flop": median_seconds(lambda: recompute_A(problem), 3) / (2 * n * d**2),
        "factor_flop": median_seconds(lambda: linalg.lapack.dgetrf(square), 3) / (2 / 3 * d**3),
        "sparse_square": median_seconds(lambda: recompute_A(scattered), 3) / (n * 8**2),
    }


def update_costs(n: int, widths: list[int]) -> Costs:
    """Costs of SVRG updates by mini-batches, its default."""
    seconds = [update_seconds(dense_problem(n, d), vf.solvers.SVRG()) for d in widths]
    each, fixed = line([16.0 * d for d in widths], seconds)
    return {"svrg_byte": each, "svrg_update": fixed}


def fixed_costs(n: int) -> Costs:
    """Costs of a solve and of an iteration of krylov on a tiny problem, and of a solve of so many steps."""
    narrow = dense_problem(n, 2)
    steps = median_seconds(lambda: vf.solve(fresh(narrow), "lstd"), 3)
    tiny = dense_problem(50, 5)
    solve = median_seconds(lambda: vf.solve(tiny, "lstd"))
    krylov = vf.solvers.Krylov()
    state, _ = krylov.init(tiny, np.zeros(5), np.zeros(5))
    rng = np.random.default_rng(0)
    return {
        "fixed": solve,
        "solve_step": max(steps - solve, 0.0) / n,
        "iteration": median_seconds(lambda: krylov.epoch(tiny, state, rng)),
    }


def measure(*, threads: int = 1, quick: bool = False) -> Costs:
    """Seconds per operation on this many threads; `quick` uses small sizes, to test the code."""
    n, widths, d, wide = (2000, [20, 40], 60, 300) if quick else (100_000, [50, 100, 200, 400], 1000, WIDE)
    with limit_threads(threads):
        found = pass_costs(n, widths) | matrix_costs(n // 5, d, wide) | update_costs(n, widths) | fixed_costs(n)
    return {name: found[name] for name in COSTS}


def main() -> None:
    counts = [1]
    while 2 * counts[-1] <= thread_count():
        counts.append(2 * counts[-1])
    found = {count: measure(threads=count) for count in counts}
    print(f"{'seconds':14}" + "".join(f"{count:>10} threads{'':11}" for count in counts))
    for name in COSTS:
        cells = [f"{found[count][name]:10.1e} ({found[count][name] / seconds(name, count):4.1f}x)" for count in counts]
        print(f"{name:14}" + "".join(f"{cell:>29}" for cell in cells))


if __name__ == "__main__":
    main()
