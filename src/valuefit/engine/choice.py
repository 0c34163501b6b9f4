"""The choice of `solver="auto"`: the smallest of the costs that the solvers state; for shards, by the features."""

from __future__ import annotations

from valuefit.memory import memory_limit
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers import registry, supports
from valuefit.solvers.solver import Solver

MAX_MOMENT_FEATURES = 5000  # of a log in shards, up to which its moments are formed, in one pass


def for_shards(features: int) -> str:
    """The solver of a log in shards: above MAX_MOMENT_FEATURES krylov, which reads the shards repeatedly."""
    return "lstd" if features <= MAX_MOMENT_FEATURES else "krylov"


def rank(
    problem: SaddlePoint, gap: float, memory: int | None = None, *, moments_needed: bool = False
) -> tuple[list[str], str]:
    """Solvers that fit into `memory` bytes (by default `memory_limit()`), fastest first, and the reason in a sentence.

    It depends only on the shape of the problem, the requested gap, the memory and `moments_needed`: whether the moments
    will be formed for something else, and so cost a solver nothing. Where no solver fits, the one that needs the least
    memory is returned.
    """
    limit = memory_limit() if memory is None else memory
    stating = [kind for kind in registry().values() if kind.cost is not Solver.cost and supports(kind, problem)]
    costs = {kind.name: kind().cost(problem, gap) for kind in stating}
    estimates = {name: estimate for name, estimate in costs.items() if estimate is not None}
    if moments_needed:
        estimates = {name: one._replace(seconds=one.seconds - one.moments) for name, one in estimates.items()}
    feasible = [name for name, estimate in estimates.items() if estimate.bytes <= limit]
    if not feasible:
        feasible = [min(estimates, key=lambda name: estimates[name].bytes)]
    feasible.sort(key=lambda name: estimates[name].seconds)
    times = [f"{name} {_time(estimates[name].seconds)}" for name in feasible[1:3]]
    reason = f"'auto' chose {feasible[0]}: it should take {_time(estimates[feasible[0]].seconds)}"
    if times:
        reason += f", {' and '.join(times)}"
    too_large = [name for name, estimate in estimates.items() if estimate.bytes > limit]
    if too_large:
        reason += f"; {' and '.join(too_large)} would not fit into memory"
    if estimates[feasible[0]].moments and moments_needed:
        reason += f". The moments, {_time(estimates[feasible[0]].moments)}, are formed for standard errors anyway"
    return feasible, reason + "."


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
