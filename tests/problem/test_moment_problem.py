from __future__ import annotations

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import log_with_actions
from valuefit.data.joining import episode_blocks
from valuefit.features.registry import make
from valuefit.problem.moment_problem import MomentProblem, MomentSums


def sums_of(log: vf.Transitions, trace: float) -> MomentSums:
    fitted, _ = make("fourier:order=2", log)
    parts = [
        MomentSums.of(vf.Problem(part, fitted, discount=0.9, trace=trace, part=True))
        for part in episode_blocks(log, 90)
    ]
    assert len(parts) > 5
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("trace", [0.0, 0.8])
def test_sums_over_parts_are_the_moments_of_the_log(trace: float, ridge: float) -> None:
    log = log_with_actions()
    fitted, _ = make("fourier:order=2", log)
    whole = vf.Problem(log, fitted, discount=0.9, trace=trace, ridge=ridge)
    found = MomentProblem(sums_of(log, trace), trace=trace, discount=0.9, ridge=ridge)
    for one, other in zip(found.moments(), whole.moments(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-14)
    rng = np.random.default_rng(0)
    theta, w = rng.normal(size=whole.d), rng.normal(size=whole.d)
    for one, other in zip(found.B(theta, w), whole.B(theta, w), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.residual(theta), whole.residual(theta), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.reward_squares(), whole.reward_squares(), rtol=1e-10)
    assert found.objective(theta) == pytest.approx(whole.objective(theta), rel=1e-9)
    assert vf.solve(found, "lstd").theta == pytest.approx(vf.solve(whole, "lstd").theta, rel=1e-7)


def test_the_bound_of_the_gap_is_not_below_the_gap() -> None:
    problem = MomentProblem(sums_of(log_with_actions(), 0.0), trace=0.0, discount=0.9, ridge=0.0)
    result = vf.solve(problem, "lstd")
    assert result.status == "converged"
    assert result.gap is not None
    assert problem.objective(result.theta) / problem.objective(np.zeros(problem.d)) <= max(result.gap, 1e-20)


def test_a_feature_without_data_has_weight_zero() -> None:
    rng = np.random.default_rng(0)
    states = np.concatenate([rng.integers(0, 3, 99), [3]])  # state 3 is only ever reached
    log = vf.Transitions.from_arrays(
        states[:-1],
        rng.normal(size=99),
        next_observation=states[1:],
        terminated=np.zeros(99),
        episode=np.arange(99) // 9,
    )
    whole = vf.Problem(log, discount=0.9)
    one_hot, _ = make("one-hot", log)
    sums = [MomentSums.of(vf.Problem(log[a : a + 33], one_hot, discount=0.9, part=True)) for a in (0, 33, 66)]
    found = MomentProblem(sums[0] + sums[1] + sums[2], trace=0.0, discount=0.9, ridge=0.0)
    np.testing.assert_array_equal(found.dead, whole.dead)
    np.testing.assert_allclose(found.A, whole.A, atol=1e-14)
    assert vf.solve(found, "lstd").theta == pytest.approx(vf.solve(whole, "lstd").theta, abs=1e-10)


def test_what_needs_steps_is_refused() -> None:
    problem = MomentProblem(sums_of(log_with_actions(20), 0.0), trace=0.0, discount=0.9, ridge=0.0)
    with pytest.raises(ValueError, match="cannot be sketched"):
        vf.solve(problem, "krylov")
