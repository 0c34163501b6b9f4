"""Which solver is the fastest here: a cost model in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from valuefit.moments import SMALL
from valuefit.problem import Problem
from valuefit.rows import memory_limit

# Seconds on one core, rounded from a run of `python -m benchmarks.costs` on a machine that was not idle; only their
# ratios matter. Not fitted to whole solves yet.
COSTS = {
    "pass_number": 1.4e-9,  # one number of the rows in a full pass, read twice
    "pass_step": 2.3e-8,  # index work for one step
    "pass_nonzero": 1.2e-8,  # one stored number of sparse rows in a full pass
    "gemm_flop": 3.3e-11,
    "factor_flop": 4.0e-11,
    "sparse_square": 1.0e-7,  # one product of two nonzeros of a row, in the moments of sparse rows
    "iteration": 3e-4,  # of krylov, whatever the size
    "fixed": 1e-3,
}


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
    n, d, k = problem.n, problem.d, problem.k
    rows = problem.phi.shape[0]
    starts = n if problem.trace else min(n, int((problem.visits > 0).sum()))
    each = problem.phi.stored / rows
    sparse = problem.phi.sparse
    square = problem.ridge == 0 and k == d
    digits = max(1.0, -math.log10(max(gap, 1e-16)))
    if sparse:
        return _sparse_estimates(problem, digits)
    if sparse:
        one_pass = COSTS["pass_nonzero"] * problem.phi.stored + COSTS["pass_step"] * n
        moments = COSTS["sparse_square"] * n * each**2
    else:
        one_pass = COSTS["pass_number"] * problem.phi.stored + COSTS["pass_step"] * n
        moments = COSTS["gemm_flop"] * 2 * starts * k * d
    if not square and not problem.identity:
        moments *= 1.5
    factor = COSTS["factor_flop"] * (2 / 3 * d**3 if square else k**3 / 3 + k**2 * d + k * d**2 + d**3 / 3)
    direct = Estimate("lstd", COSTS["fixed"] + moments + factor, 8.0 * (k * d + k * k + 2 * d * d))
    if sparse:
        # a diagonal preconditioner: the iterations grow with the conditioning, which is not known beforehand
        set_up, iterations, room = one_pass, 15 * digits, 8.0 * 60 * 3 * (k + d)
    else:
        sketched = min(starts, max(2 * k, int(12 * n / d))) if d > 0 else starts
        set_up = 2 * one_pass + COSTS["gemm_flop"] * sketched * (k * k + 2 * k * d) + factor
        iterations, room = 4 + 1.5 * digits + (0 if square else 6), 8.0 * (3 * k * (k + d) + sketched * (k + d))
    krylov = Estimate("krylov", 2 * COSTS["fixed"] + set_up + iterations * one_pass, room)
    # variance-reduced steps: a pass of single rows costs about three full passes
    passes = 6 + 4 * digits if not sparse else 60 * digits
    saga = Estimate("saga", 2 * COSTS["fixed"] + 3 * passes * one_pass, 8.0 * (3 * n + 4 * (k + d)))
    svrg = Estimate("svrg", 2 * COSTS["fixed"] + 3.5 * passes * one_pass, 8.0 * 4 * (k + d))
    return [direct, krylov, saga, svrg]


def _sparse_estimates(problem: Problem, digits: float) -> list[Estimate]:
    """For sparse rows: columns that depend on one another are the rule among them (every tiling sums to one).

    `lstd` then needs eigenvalues and an SVD, some 15 d^3 operations. `krylov` forms C, as a sparse matrix unless it
    fits in cache, and takes some 8 iterations a digit: a pass each, and another for triangular solves or sweeps.
    """
    n, d, k = problem.n, problem.d, problem.k
    each = problem.phi.stored / problem.phi.shape[0]
    one_pass = COSTS["pass_nonzero"] * problem.phi.stored + COSTS["pass_step"] * n
    entries = min(float(k) * k, n * each**2)
    near = 8 * k * d <= SMALL  # in cache
    forming = COSTS["sparse_square"] * n * each**2
    of_trace = COSTS["gemm_flop"] * 2 * n * k * d if problem.trace else 0.0
    direct = forming * (0.2 if near else 1.0) + of_trace + COSTS["factor_flop"] * 15 * float(max(d, k)) ** 3
    iterative = forming * (0.06 if near else 0.3)
    iterative += 8 * digits * (COSTS["iteration"] + (0.6 if near else 2.0) * one_pass)
    passes = 60 * digits  # of single rows, which cost about three full passes
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
