"""Occupancy weights: their sum with the rewards is the estimate, and what their sums say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import even_policy, log_with_actions
from valuefit.inference import adjoints
from valuefit.inference.occupancy import OccupancySums
from valuefit.inference.policy_value import starts_of

ROUTES: dict[str, dict[str, Any]] = {
    "on-policy": {},
    "ratios": {"policy": even_policy},
    "state-action": {"policy": even_policy, "values": "state-action"},
}


def weights_of(e: vf.Evaluation) -> Any:
    """The weights of the policy value."""
    c = starts_of(e.log, e.problem, e.features, e.policy, e.values, e.starts).c
    adjoint = e.errors.equations.solver.adjoint(c)
    return e.errors.whole.influences.occupancy(adjoint) if isinstance(adjoint, adjoints.Adjoint) else None


def numbers(e: vf.Evaluation) -> list[float | None]:
    """The statistics of the two checks."""
    return [check.statistic for check in e.checks if check.name in ("negative occupancy", "effective steps")]


def squares(x: Any) -> Any:
    """Features that need no fit."""
    return np.column_stack([np.ones(len(x)), x, x**2])


@pytest.mark.parametrize("ridge", [0.0, 0.01])
@pytest.mark.parametrize("trace", [0.0, 0.7])
@pytest.mark.parametrize("route", ROUTES)
def test_the_estimate_is_the_weighted_sum_of_the_rewards(route: str, trace: float, ridge: float) -> None:
    log = log_with_actions()
    found = vf.evaluate(
        log, features="fourier:order=3", discount=0.9, trace=trace, ridge=ridge, tol=1e-12, **ROUTES[route]
    )
    weights = weights_of(found)
    assert weights @ log.reward == pytest.approx(found.policy_value.estimate, rel=1e-6)
    sums = OccupancySums.of(weights)
    assert numbers(found) == pytest.approx([sums.negative_share, sums.effective_steps], rel=1e-9)


def test_it_is_so_with_an_iterative_adjoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adjoints, "ALWAYS_DIRECT_FEATURES", 0)
    monkeypatch.setattr(adjoints, "MAX_DIRECT_PASSES", 0)
    log = log_with_actions()
    found = vf.evaluate(log, features="fourier:order=3", discount=0.9, solver="krylov", tol=1e-12)
    assert found.errors.equations.iterative
    assert weights_of(found) @ log.reward == pytest.approx(found.policy_value.estimate, rel=0.02)
    assert None not in numbers(found)


def test_a_table_has_the_discounted_visits_of_its_policy() -> None:
    """Two steps, the first of which is logged ten times and the second once: 1 + 0.5 visits, from 5.8 steps."""
    states = np.repeat([0, 1], [10, 1])
    after = np.repeat([1, -1], [10, 1])
    log = vf.Transitions.from_arrays(
        states, np.ones(11), terminated=after < 0, truncated=after > 0, episode=np.arange(11),
        next_observation=np.where(after < 0, 0, after),
    )  # fmt: skip
    found = vf.evaluate(log, features="one-hot", discount=0.5, starts=[0])
    assert weights_of(found) == pytest.approx(np.r_[np.full(10, 0.1), 0.5])
    assert numbers(found) == pytest.approx([0.0, 1.5**2 / (10 * 0.01 + 0.25)], abs=1e-12)


def test_the_negative_share_is_that_of_the_absolute_weights() -> None:
    sums = OccupancySums.of(np.array([3.0, -1.0, 2.0, -2.0]))
    assert sums.negative_share == pytest.approx(3 / 8)
    assert sums.effective_steps == pytest.approx(4 / 18)
    assert OccupancySums.of(np.zeros(3)) == (0.0, 0.0, 0.0)
    assert (OccupancySums.of(np.zeros(3)).negative_share, OccupancySums.of(np.zeros(3)).effective_steps) == (0.0, 0.0)


def test_a_value_that_is_not_determined_has_none() -> None:
    log = log_with_actions()
    found = vf.evaluate(log, features=lambda x: np.column_stack([x[:, :1], 0 * x[:, :1]]), discount=0.9,
                        starts=np.array([[0.0, 0.0]]))  # fmt: skip
    assert weights_of(found) is not None
    twice = vf.evaluate(vf.Transitions.from_arrays(np.arange(3), np.ones(3), terminated=np.ones(3)),
                        features=lambda s: np.eye(4)[np.asarray(s).ravel()], discount=0.9, starts=[3])  # fmt: skip
    assert weights_of(twice) is None
    assert [check.outcome for check in twice.checks if check.name == "negative occupancy"] == ["skip"]
