"""reward_range: what it refuses, where it cuts intervals, and that the uncut interval decides the checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import in_shards, log_with_actions
from valuefit.data import shards
from valuefit.inference.policy_value import PolicyValue

SETTINGS: dict[str, Any] = {"features": "identity", "discount": 0.0}


def rare_rewards(episodes: int = 40, ones: int = 3) -> vf.Transitions:
    """Episodes of one step with the same observation; a few of them have the reward 1."""
    return vf.Transitions.from_arrays(
        np.ones((episodes, 1)), (np.arange(episodes) < ones).astype(float), terminated=np.ones(episodes),
        episode=np.arange(episodes),
    )  # fmt: skip


def outcome(e: vf.Evaluation, name: str) -> str:
    return next(check.outcome for check in e.checks if check.name == name)


def test_the_interval_is_cut_at_what_declared_rewards_add_up_to() -> None:
    log = rare_rewards()
    free, cut = vf.evaluate(log, **SETTINGS).policy_value, vf.evaluate(log, reward_range=(0, np.float64(5)), **SETTINGS)
    assert free.interval is not None
    assert free.interval[0] < 0
    value = cut.policy_value
    assert value.interval == (0.0, free.interval[1])
    assert (value.estimate, value.standard_error, value.possible) == (free.estimate, free.standard_error, (0.0, 5.0))
    wide, free_wide = value.interval_at(0.999), free.interval_at(0.999)
    assert wide is not None
    assert free_wide is not None
    assert wide == (0.0, free_wide[1])
    assert value.interval_at(0.9, "lower") == (max(0.0, free.interval_at(0.9, "lower")[0]), 5.0)  # type: ignore[index]
    assert value.interval_at(0.9, "upper")[0] == 0.0  # type: ignore[index]
    assert any("The interval is cut at what is possible: declared rewards from 0 to 5" in note for note in cut.notes)
    assert "declared rewards from 0 to 5" in cut.summary().replace("\n", " ").replace("  ", " ")


def test_it_says_what_logged_rewards_cannot() -> None:
    """No success in twenty episodes: the logged rewards alone would make the value 0, and impossible above it."""
    log = rare_rewards(20, ones=0)
    found = vf.evaluate(log, reward_range=(0, 1), starts=[[1.0]], **SETTINGS)
    assert found.policy_value.possible == (0.0, 1.0)
    assert "rewards from 0 to 1" in next(check.message for check in found.checks if check.name == "reachable range")


def test_the_uncut_interval_decides_the_checks() -> None:
    found = vf.evaluate(rare_rewards(3, ones=1), reward_range=(0, 1), **SETTINGS)
    assert found.policy_value.interval == (0.0, 1.0)
    assert outcome(found, "reachable range") == "fail"
    assert "is wider than the range of what is possible, as rewards from 0 to 1" in found.verdict.reasons[0]
    wide = vf.evaluate(rare_rewards(3, ones=1), reward_range=(-10, 10), **SETTINGS)
    assert outcome(wide, "reachable range") == "pass"


def test_an_interval_without_a_possible_part_stays() -> None:
    value = PolicyValue(5.0, 0.5, (4.0, 6.0), 0.95, 10, effective_episodes=11.0).within(0.0, 1.0)
    assert value.interval == (4.0, 6.0)


def test_any_step_may_be_the_last_of_declared_rewards() -> None:
    """Also where no logged step terminates: the policy may lead where episodes end."""
    n = 100
    log = vf.Transitions.from_arrays(
        np.ones((n, 1)), np.ones(n), truncated=np.arange(n) % 10 == 9, episode=np.arange(n) // 10,
        next_observation=np.ones((n, 1)),
    )  # fmt: skip
    assert vf.evaluate(log, features="identity", discount=0.5, reward_range=[1, 1]).policy_value.possible == (0.0, 2.0)


@pytest.mark.parametrize("given", [3, (0, 1, 2), (1, 0), (0, np.nan), ("0", "1"), "01", (None, 1)])
def test_it_is_two_numbers_in_order(given: Any) -> None:
    with pytest.raises(ValueError, match="it must be the smallest and the largest possible reward, as in"):
        vf.evaluate(rare_rewards(), reward_range=given)


@pytest.mark.parametrize("streamed", [False, True])
def test_other_rewards_are_refused(streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)
    log = log_with_actions()
    low, high = float(log.reward.min()), float(log.reward.max())
    source = in_shards(log, tmp_path, "native") if streamed else log
    with pytest.raises(ValueError, match=r"reward_range is \(-?[\d.e-]+, .*but the log has rewards from"):
        vf.evaluate(source, discount=0.9, reward_range=(low + 1e-3, high))
    found = vf.evaluate(source, features="fourier:order=1", discount=0.9, reward_range=(low, high))
    assert found.policy_value.possible is not None
    assert found.policy_value.possible[1] == pytest.approx(max(high, 0.0) * 10)


def test_without_a_discount_there_is_no_bound() -> None:
    found = vf.evaluate(rare_rewards(), features="identity", discount=1.0, reward_range=(0, 1))
    assert found.policy_value.possible is None
    assert "With discount 1 sums of rewards have no bound, so `reward_range` does not bound the value." in found.notes


def test_a_saved_evaluation_keeps_it(tmp_path: Path) -> None:
    found = vf.evaluate(rare_rewards(), reward_range=(0, 5), **SETTINGS)
    again = vf.Evaluation.load(found.save(tmp_path / "one.npz"))
    assert again.policy_value == found.policy_value
    assert again.policy_value.interval_at(0.5) == found.policy_value.interval_at(0.5)
    assert json.loads(json.dumps(found.to_dict()))["policy_value"]["possible"] == [0.0, 5.0]


def test_the_range_of_a_log_in_shards_is_that_of_all_its_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks of the interval are made on the whole log, not on the sample, whose interval is longer."""
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)
    monkeypatch.setattr("valuefit.evaluation.streamed._sample_steps", lambda log, limit: 30)
    log, settings = log_with_actions(), {"features": lambda x: np.column_stack([np.ones(len(x)), x]), "discount": 0.9}
    found, expected = vf.evaluate(in_shards(log, tmp_path, "native"), **settings), vf.evaluate(log, **settings)
    assert found.sampled
    one, other = (next(c for c in e.checks if c.name == "reachable range") for e in (found, expected))
    assert (one.outcome, one.message) == (other.outcome, other.message)
