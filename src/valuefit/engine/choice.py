"""Which solver is the fastest here: a cost model in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from valuefit.linalg.moments import SMALL
from valuefit.machine import COSTS
from valuefit.memory import memory_limit
from valuefit.problem.factor import plan
from valuefit.problem.preconditioner import first_count
from valuefit.problem.problem import Problem


@dataclass(frozen=True)
class Estimate:
    """What a solver should cost."""

    solver: str
    seconds: float
    bytes: float


def rank(problem: Problem, gap: float, memory: int | None = None) -> tuple[list[str], str]:
    """Solvers that fit into `memory` bytes, fastest first, and the reason in a sentence.

    A pure function of the shape of the problem and the gap asked for.
    """
    limit = memory_limit() if memory is None else memory
    estimates = _estimates(problem, gap)
    able = sorted((one for one in estimates if one.bytes <= limit), key=lambda one: one.seconds)
    if not able:
        able = [min(estimates, key=lambda one: one.bytes)]
    best = able[0]
    why = f"'auto' chose {best.solver}: it should take {_time(best.seconds)}"
    others = [f"{one.solver} {_time(one.seconds)}" for one in able[1:3]]
    if others:
        why += f", {' and '.join(others)}"
    big = [one.solver for one in estimates if one.bytes > limit]
    if big:
        why += f"; {' and '.join(big)} would not fit into memory"
    return [one.solver for one in able], why + "."


def _estimates(problem: Problem, gap: float) -> list[Estimate]:
    return (_sparse if problem.phi.sparse else _dense)(problem, max(1.0, -math.log10(max(gap, 1e-16))) / 6)


def _dense(problem: Problem, length: float) -> list[Estimate]:
    """Dense rows; length: of the way, 1 for a gap of 1e-6."""
    n, d, k = problem.n, problem.d, problem.k
    starts = n if problem.trace else min(n, int((problem.visits > 0).sum()))
    row_bytes = problem.phi.dtype.itemsize * d
    one_pass = COSTS["pass_byte"] * row_bytes * problem.phi.shape[0] + COSTS["pass_step"] * n
    if problem.trace or problem.psi is not problem.phi:
        one_pass *= 1.3  # rows are read twice
    square = problem.ridge == 0 and k == d
    flops = 2.0 * starts * k * d + (0.0 if square or problem.identity else 1.0 * starts * k**2)
    factor = COSTS["factor_flop"] * (2 / 3 * d**3 if square else k**3 / 3 + k**2 * d + k * d**2 + d**3 / 3)
    direct = COSTS["fixed"] + COSTS["gram_flop"] * flops + factor + 6 * one_pass
    size, cross = plan(problem)
    rows = size / k
    iterations = 2.0
    if size < starts:
        iterations = length * (6 + 72 / rows if cross else 26 + 28 / math.sqrt(rows))
        iterations *= max(1.0, math.log(1 / max(1 - float(problem.discount.max()), 1e-3)) / 3.5)  # 3 at 0.95
    sketch = 1.6 * one_pass + COSTS["gram_flop"] * min(size, starts) * (k**2 + (2 * k * d if cross else 0))
    factors = COSTS["factor_flop"] * k**3 / 3 + (factor if cross else 0.0)
    each = one_pass + COSTS["pass_byte"] * 8 * (k * k + (d * d if cross else 0))
    krylov = 2 * COSTS["fixed"] + sketch + factors + (2 + iterations) * each
    updates = n * (2 * row_bytes * COSTS["svrg_byte"] + COSTS["svrg_update"])
    metric = COSTS["gram_flop"] * first_count(problem) * 3 * k * d + COSTS["factor_flop"] * 4 * d**3
    svrg = 2 * COSTS["fixed"] + metric + length * 12 * (updates + one_pass)
    saga = 2 * COSTS["fixed"] + metric + length * 22 * 1.3 * updates
    tables = 16.0 * (k + d) ** 2
    if tables > memory_limit():  # then they go without
        tables = 8.0 * 16 * (k + d)
    return [
        Estimate("lstd", direct, 8.0 * (k * d + k * k + 2 * d * d)),
        Estimate("krylov", krylov, 8.0 * (3 * k * (k + d) + min(size, starts) * (k + d if cross else k))),
        Estimate("saga", saga, tables + 8.0 * 3 * n),
        Estimate("svrg", svrg, tables),
    ]


def _sparse(problem: Problem, length: float) -> list[Estimate]:
    """CSR rows: columns that depend on one another are the rule among them (every tiling sums to one).

    `lstd` then needs eigenvalues and an SVD, some 15 d^3 operations. `krylov` forms C, as a sparse matrix unless it
    fits in cache, and takes some 48 iterations to 1e-6: a pass each, and another for triangular solves or sweeps.
    """
    n, d, k = problem.n, problem.d, problem.k
    each = problem.phi.stored / problem.phi.shape[0]
    one_pass = COSTS["pass_nonzero"] * problem.phi.stored + COSTS["sparse_step"] * n
    entries = min(float(k) * k, n * each**2)
    near = 8 * k * d <= SMALL  # in cache
    forming = COSTS["sparse_square"] * n * each**2
    of_trace = COSTS["gram_flop"] * 2 * n * k * d if problem.trace else 0.0
    direct = forming * (0.2 if near else 1.0) + of_trace + COSTS["factor_flop"] * 15 * float(max(d, k)) ** 3
    iterative = forming * (0.06 if near else 0.3)
    iterative += 48 * length * (COSTS["iteration"] + (0.6 if near else 2.0) * one_pass)
    passes = 360 * length  # of single rows, which cost about three full passes
    return [
        Estimate("lstd", COSTS["fixed"] + direct, 8.0 * (k * d + k * k + 2 * d * d)),
        Estimate("krylov", 2 * COSTS["fixed"] + iterative, 8.0 * 60 * 3 * (k + d) + 24 * entries),
        Estimate("saga", 2 * COSTS["fixed"] + 3 * passes * one_pass, 8.0 * (3 * n + 4 * (k + d))),
        Estimate("svrg", 2 * COSTS["fixed"] + 3.5 * passes * one_pass, 8.0 * 4 * (k + d)),
    ]


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
