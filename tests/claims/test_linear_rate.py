"""The paper's main claim: with ridge 0, PDBG, SVRG and SAGA converge linearly; plain stochastic approximation does not.

Linear: log(gap) against passes is a straight line down to 1e-10. Sublinear: each further digit takes several times the
passes of the previous one.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import naive
import valuefit as vf
from helpers.problems import problem_of, raw

KINDS = {
    "on-policy": {},
    "off-policy": {"ratio": True},
    "traces": {"trace": 0.7},
    "off-policy with traces": {"ratio": True, "trace": 0.7},
}
LINEAR = {"pdbg": 8000, "svrg": 3500, "saga": 1800}  # passes to 1e-10 on the hardest of `KINDS`
SUBLINEAR = ["gtd2", "tdc", "flstd-sa"]


@cache
def problem_and_answer(kind: str, seed: int = 1) -> tuple[vf.Problem, vf.Result]:
    problem = problem_of(naive.random_log(np.random.default_rng(seed), n=150, d=5, **KINDS[kind]))
    return problem, vf.solve(problem, "lstd")


@cache
def gaps(solver: str, kind: str, max_passes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Passes and true gap after every epoch; methods as in the paper: fixed steps, no preconditioner."""
    problem, answer = problem_and_answer(kind)
    method = raw(solver, problem) if solver in LINEAR else solver
    result = vf.solve(problem, method, tol=0, max_passes=max_passes, reference=answer, seed=seed)
    return result.history["passes"], result.history["gap"]


def straightness(passes: np.ndarray, gap: np.ndarray) -> tuple[float, float]:
    """Slope and R^2 of log gap against passes between gaps of 1e-2 and 1e-10."""
    first = int(np.flatnonzero(gap < 1e-2)[0])
    last = int(np.flatnonzero(gap < 1e-10)[0])
    x, y = passes[first : last + 1], np.log(gap[first : last + 1])
    line = np.polyfit(x, y, 1)
    return float(line[0]), float(1 - np.var(y - np.polyval(line, x)) / np.var(y))


def mean_gap(solver: str, kind: str, around: float) -> float:
    """The mean gap between 0.9 `around` and `around` passes, over three seeds."""
    found = []
    for seed in range(3):
        passes, gap = gaps(solver, kind, 4000, seed)
        found.append(gap[(passes >= 0.9 * around) & (passes <= around)].mean())
    return float(np.mean(found))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", LINEAR)
def test_gap_falls_along_a_straight_line_to_1e_10(solver: str, kind: str) -> None:
    passes, gap = gaps(solver, kind, LINEAR[solver])
    assert gap[0] == pytest.approx(1)
    assert gap.min() < 1e-10
    slope, straight = straightness(passes, gap)
    assert slope < 0
    assert straight >= 0.95


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", LINEAR)
def test_the_rate_is_the_same_for_early_and_late_digits(solver: str, kind: str) -> None:
    """The slopes over the first and the last four digits differ by at most a third."""
    passes, gap = gaps(solver, kind, LINEAR[solver])
    at = [passes[np.flatnonzero(gap < level)[0]] for level in (1e-2, 1e-6, 1e-10)]
    assert 0.75 < (at[2] - at[1]) / (at[1] - at[0]) < 1.33


@pytest.mark.parametrize("solver", SUBLINEAR)
def test_plain_stochastic_methods_slow_down(solver: str) -> None:
    early, middle, late = (mean_gap(solver, "on-policy", around) for around in (40, 400, 4000))
    assert late < middle / 3 < early / 3
    assert late > 1e-9
    slope_before, slope_after = np.log(early / middle) / 360, np.log(middle / late) / 3600
    assert slope_after < slope_before / 4


@pytest.mark.parametrize("solver", SUBLINEAR)
def test_variance_reduction_is_faster_at_high_accuracy(solver: str) -> None:
    """After the passes that SAGA needs for 1e-10, plain stochastic methods are above 1e-3."""
    passes, gap = gaps("saga", "on-policy", LINEAR["saga"])
    reached = passes[np.flatnonzero(gap < 1e-10)[0]]
    assert mean_gap(solver, "on-policy", reached) > 1e-3


def test_straightness_detects_a_sublinear_curve() -> None:
    """Shows that the first test can fail: the gap 1 / passes^3 is not a straight line."""
    passes = np.arange(1.0, 3000.0)
    assert straightness(passes, passes**-3.0)[1] < 0.95
    assert straightness(passes, np.exp(-0.01 * passes))[1] > 0.999
