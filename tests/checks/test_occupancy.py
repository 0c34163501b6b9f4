"""The checks of the occupancy weights: their limits, and that their advice leads to a right answer."""

from __future__ import annotations

import numpy as np
import pytest

import valuefit as vf
from coverage_study.control import CartPole
from coverage_study.tasks import balance, often, tasks
from coverage_study.truths import truth_of
from coverage_study.worlds import Policy, log_of
from valuefit.checks.occupancy import (
    FEW_EPISODES,
    MAX_NEGATIVE_SHARE,
    UNUSABLE_NEGATIVE_SHARE,
    occupancy_checks,
)
from valuefit.checks.support import MIN_EFFECTIVE_SHARE, MIN_EFFECTIVE_STEPS
from valuefit.inference.occupancy import OccupancySums


def outcomes(sums: OccupancySums | None, steps: int = 10_000) -> list[str]:
    return [check.outcome for check in occupancy_checks(sums, steps)]


def sums_of(negative_share: float, effective_steps: float) -> OccupancySums:
    total = 1 - 2 * negative_share
    return OccupancySums(total, 1.0, total**2 / effective_steps)


def test_the_outcome_follows_the_share_and_the_number() -> None:
    good = 10 * MIN_EFFECTIVE_STEPS
    for share, expected in (
        (0.0, "pass"), (MAX_NEGATIVE_SHARE - 0.01, "pass"), (MAX_NEGATIVE_SHARE + 0.01, "warn"),
        (UNUSABLE_NEGATIVE_SHARE - 0.01, "warn"), (UNUSABLE_NEGATIVE_SHARE + 0.01, "fail"),
    ):  # fmt: skip
        assert outcomes(sums_of(share, good)) == [expected, "pass"]
    for steps, expected in (
        (MIN_EFFECTIVE_STEPS + 1, "pass"), (MIN_EFFECTIVE_STEPS - 1, "warn"), (FEW_EPISODES - 1, "fail"),
    ):  # fmt: skip
        assert outcomes(sums_of(0.0, steps)) == ["pass", expected]
    assert outcomes(None) == ["skip", "skip"]


def test_a_small_log_that_is_used_as_a_whole_passes() -> None:
    few = FEW_EPISODES - 1
    assert outcomes(sums_of(0.0, few), int(few / MIN_EFFECTIVE_SHARE) - 1) == ["pass", "pass"]
    assert outcomes(sums_of(0.0, few), int(few / MIN_EFFECTIVE_SHARE) + 1) == ["pass", "fail"]


def test_a_table_with_few_steps_of_the_policy_is_not_used() -> None:
    """The path to the goal is in none of 40 random episodes: the answer is 0, with an interval from 0 to 0."""
    task = tasks()["firm-lake-greedy"]
    for episodes, outcome in ((40, "fail"), (1000, "pass")):
        log = task.log("state-action", episodes, np.random.default_rng(0))
        found = vf.evaluate(log, **task.settings("state-action", "auto"))
        check = next(check for check in found.checks if check.name == "effective steps")
        assert check.outcome == outcome, check
        assert (found.policy_value.estimate == pytest.approx(task.truth)) == (outcome == "pass")


def check_of(log: vf.Transitions, policy: Policy) -> tuple[tuple[float, float], str]:
    """The interval, and the outcome of the check of the negative share."""
    found = vf.evaluate(log, policy=policy, features="kernel:landmarks=100")
    assert found.policy_value.interval is not None
    return found.policy_value.interval, next(c.outcome for c in found.checks if c.name == "negative occupancy")


def test_its_advice_leads_to_a_right_answer() -> None:
    """The greedy policy in CartPole from a log with 50% random actions, with few features."""
    greedy, ordinary = often(balance, 2, 0.0), often(balance, 2, 0.3)
    rng = np.random.default_rng(0)
    far, near = (log_of(CartPole(), often(balance, 2, share), 40, 200, rng) for share in (0.5, 0.1))
    assert check_of(far, greedy)[1] in ("warn", "fail")
    closer_log, closer_policy = (near, greedy, "cartpole-greedy"), (far, ordinary, "cartpole")
    for log, policy, task in (closer_log, closer_policy):
        (low, high), outcome = check_of(log, policy)
        assert outcome == "pass"
        assert low - 1e-6 <= truth_of(task).value <= high + 1e-6
        assert high - low < 20


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_rewards_do_not_matter(scale: float) -> None:
    log = log_of(CartPole(), often(balance, 2, 0.5), 20, 100, np.random.default_rng(0))
    moved = vf.Transitions.from_arrays(
        log.observations[log.now], scale * log.reward + np.random.default_rng(1).normal(size=len(log)) + scale,
        terminated=log.terminated, truncated=log.truncated, episode=log.episode, action=log.action,
        next_observation=log.observations[np.where(log.next >= 0, log.next, 0)], behaviour_prob=log.behaviour_prob,
    )  # fmt: skip
    first, second = (
        [c.statistic for c in vf.evaluate(one, policy=often(balance, 2, 0.0), features="kernel:landmarks=30").checks
         if c.name in ("negative occupancy", "effective steps")]
        for one in (log, moved)
    )  # fmt: skip
    assert first == pytest.approx(second, rel=1e-6)
