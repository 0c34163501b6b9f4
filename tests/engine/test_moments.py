from __future__ import annotations

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import log_with_actions
from valuefit.data.joining import episode_blocks
from valuefit.features.registry import make


def test_parts_that_are_added_or_merged_give_the_solution_of_the_log() -> None:
    log = log_with_actions()
    fitted, _ = make("fourier:order=2", log)
    expected = vf.solve(vf.Problem(log, fitted, discount=0.9), "lstd").theta
    parts = list(episode_blocks(log, 200))
    one, other = (vf.Moments(fitted, discount=0.9) for _ in range(2))
    for place, part in enumerate(parts):
        (one if place % 2 else other).add(part)
    assert one.merge(other).solve().theta == pytest.approx(expected, rel=1e-7)
    assert repr(one) == f"Moments({len(log)} steps, {len(expected)} features)"
    assert vf.Moments(fitted, discount=0.9).merge(one).solve().theta == pytest.approx(expected, rel=1e-7)
    assert one.solve(ridge=0.5).theta == pytest.approx(
        vf.solve(vf.Problem(log, fitted, discount=0.9, ridge=0.5), "lstd").theta, rel=1e-7
    )


def test_moments_refuse_what_does_not_belong_together() -> None:
    log = log_with_actions(10)
    empty = vf.Moments("fourier:order=2", discount=0.9)
    assert repr(empty) == "Moments(no steps)"
    with pytest.raises(ValueError, match="There are no steps yet"):
        empty.solve()
    with pytest.raises(ValueError, match="add takes a Transitions, not dict"):
        empty.add({})
    with pytest.raises(ValueError, match="merge takes Moments, not int"):
        empty.merge(3)
    filled = vf.Moments("fourier:order=2", discount=0.9).add(log)
    with pytest.raises(ValueError, match="discounts and traces"):
        filled.merge(vf.Moments(discount=0.8).add(log))
    with pytest.raises(ValueError, match="different features"):
        filled.merge(vf.Moments("fourier:order=3", discount=0.9).add(log))
    assert filled.merge(empty) is filled


@pytest.mark.parametrize("through", ["add", "merge", "partial_fit"])
def test_logs_whose_gaps_were_filled_separately_are_refused(through: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 2))
    values[rng.random(200) < 0.2, 0] = np.nan
    ends = np.arange(200) % 10 == 9

    def load(rows: slice) -> vf.Transitions:
        return vf.load(
            {"obs": values[rows], "reward": np.ones(200)[rows], "terminated": ends[rows]}, missing="flag"
        )  # fmt: skip

    def theta(*logs: vf.Transitions) -> np.ndarray:
        if through == "partial_fit":
            evaluator = vf.PolicyEvaluator(features="identity", discount=0.9)
            for log in logs:
                evaluator.partial_fit(log)
            return evaluator.theta_
        moments = vf.Moments("identity", discount=0.9)
        for log in logs:
            more = vf.Moments("identity", discount=0.9).add(log)
            moments = moments.add(log) if through == "add" else moments.merge(more)
        return moments.solve().theta

    whole, first, second = load(slice(200)), slice(120), slice(120, 200)
    with pytest.raises(ValueError, match="not filled like those of the logs before it"):
        theta(load(first), load(second))
    assert theta(whole[first], whole[second]) == pytest.approx(theta(whole), rel=1e-7)  # as the message says


def test_discount_one_needs_an_end() -> None:
    rng = np.random.default_rng(0)
    endless = vf.Transitions.from_arrays(rng.normal(size=(20, 1)), np.ones(20), truncated=np.arange(20) == 19,
                                         next_observation=rng.normal(size=(20, 1)))  # fmt: skip
    moments = vf.Moments("fourier:order=2", discount=1.0).add(endless)
    with pytest.raises(ValueError, match="terminated"):
        moments.solve()


def test_partial_fit_gives_the_fit_of_all_parts() -> None:
    log = log_with_actions()
    fitted, _ = make("fourier:order=2", log)
    whole = vf.PolicyEvaluator(features=fitted, discount=0.9, solver="lstd").fit(log)
    found = vf.PolicyEvaluator(features=fitted, discount=0.9)
    for part in episode_blocks(log, 300):
        found.partial_fit(part)
    assert found.theta_ == pytest.approx(whole.theta_, rel=1e-7)
    assert found.predict(log[:5]) == pytest.approx(whole.predict(log[:5]), rel=1e-7)
    found.fit(log[:500])
    assert found.partial_fit(log).theta_ == pytest.approx(whole.theta_, rel=1e-7)  # fit begins again
    arrays = vf.PolicyEvaluator(features=fitted, discount=0.9)
    for part in episode_blocks(log, 300):
        goes_on = np.where(part.next < 0, part.now, part.next)
        arrays.partial_fit(
            part.observations[part.now], part.reward, next_X=part.observations[goes_on], terminated=part.terminated,
            episode=part.episode,
        )  # fmt: skip
    assert arrays.theta_ == pytest.approx(whole.theta_, rel=1e-7)
