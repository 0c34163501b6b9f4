"""Checks of the source: rows that are not consecutive steps, and last steps that are left out."""

import numpy as np
import pandas as pd
import pytest

import valuefit as vf

EPISODES, STEPS, DISCOUNT = 100, 30, 0.9


def walk(seed=0):
    """x follows an AR(1) process and is the reward; the episode ends after 30 steps, by a time limit."""
    rng = np.random.default_rng(seed)
    x = np.zeros((EPISODES, STEPS + 1))
    x[:, 0] = 2.0
    for t in range(STEPS):
        x[:, t + 1] = 0.9 * x[:, t] + 0.3 * rng.standard_normal(EPISODES)
    return pd.DataFrame({
        "episode": np.repeat(np.arange(EPISODES), STEPS), "step": np.tile(np.arange(STEPS), EPISODES),
        "obs_0": x[:, :-1].ravel(), "next_obs_0": x[:, 1:].ravel(), "reward": x[:, :-1].ravel(), "terminated": False,
        "truncated": np.tile(np.arange(STEPS) == STEPS - 1, EPISODES),
    })  # fmt: skip


TRUTH = 2.0 / (1 - DISCOUNT * 0.9)


def answer(frame):
    evaluation = vf.evaluate(frame, features="polynomial:degree=1", discount=DISCOUNT)
    low, high = evaluation.policy_value.interval
    return evaluation, {check.name: check for check in evaluation.checks}, low <= TRUTH <= high


@pytest.mark.parametrize(("share", "outcome"), [(0.01, "pass"), (0.3, "warn")])
def test_removed_rows_warn_from_two_per_cent_on(share, outcome):
    frame = walk().drop(columns="next_obs_0")
    kept = np.random.default_rng(1).random(len(frame)) >= share
    evaluation, checks, right = answer(frame[kept])
    check = checks["consecutive steps"]
    assert (check.outcome, right) == (outcome, outcome == "pass")
    assert check.statistic == evaluation.log.continuity.apart / evaluation.log.continuity.pairs
    assert "their step numbers or times are too far apart" in check.message
    evaluation, checks, right = answer(frame)  # as the message says: put them back
    assert right
    assert checks["consecutive steps"].message == "0 of 2,900 pairs of consecutive rows (0%) are not consecutive steps."


def test_ids_that_restart_in_another_file_are_named_and_unique_ones_are_right():
    """Steps are dates, so rows of the same id follow one another; every file is of another year."""
    files = [walk(seed).drop(columns=["next_obs_0", "truncated"]) for seed in range(4)]
    files = [frame.assign(step=frame["step"] + 1000 * year) for year, frame in enumerate(files)]
    _, checks, right = answer(pd.concat(files))
    assert (checks["consecutive steps"].outcome, right) == ("warn", False)
    assert "If ids of episodes restart (in another hospital or file), make them unique" in checks[
        "consecutive steps"
    ].message  # fmt: skip
    unique = [frame.assign(episode=frame["episode"] + EPISODES * year) for year, frame in enumerate(files)]
    _, checks, right = answer(pd.concat(unique))
    assert (checks["consecutive steps"].outcome, right) == ("pass", True)


def test_next_observations_that_are_not_the_following_ones_warn():
    frame = walk()
    kept = np.random.default_rng(1).random(len(frame)) >= 0.1
    assert answer(frame)[1]["consecutive steps"].outcome == "pass"
    check = answer(frame[kept].drop(columns="step"))[1]["consecutive steps"]
    assert check.outcome == "warn"
    assert "the next observation of the first is not the observation of the second" in check.message


def test_logs_of_which_nothing_is_known_have_no_check():
    checks = answer(walk().drop(columns=["step", "next_obs_0"]))[1]
    assert "consecutive steps" not in checks


def test_a_time_limit_that_leaves_out_rewards_like_the_others_is_harmless():
    check = answer(walk().drop(columns="next_obs_0"))[1]["last steps"]
    assert check.outcome == "pass"
    assert check.message.startswith("The last step of 100 episodes (3.3% of the steps, ")
    _, checks, right = answer(walk())
    assert right
    assert "last steps" not in checks
    assert not answer(walk().drop(columns="next_obs_0").assign(terminated=walk()["truncated"], truncated=False))[2]


@pytest.mark.parametrize("steps", [4, 6, 300])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_reward_that_is_paid_at_a_left_out_last_step_warns(steps, noise):
    rng = np.random.default_rng(0)
    last = np.tile(np.arange(steps) == steps - 1, 50)
    frame = pd.DataFrame({
        "episode": np.repeat(np.arange(50), steps), "obs": np.tile(np.arange(steps), 50),
        "reward": last * 10.0 + noise * rng.standard_normal(50 * steps), "terminated": False,
    })  # fmt: skip
    truth = 10 * 0.99 ** (steps - 1)

    def value_and_check(log):
        evaluation = vf.evaluate(log, features="one-hot", discount=0.99)
        found = {check.name: check for check in evaluation.checks}
        return evaluation.policy_value.estimate, found.get("last steps")

    estimate, check = value_and_check(frame)
    assert abs(estimate - truth) > 0.4
    assert check.outcome == "warn"
    assert check.statistic > 0.4
    assert "mark them as truncated. Only if the process itself ends there" in check.message
    estimate, check = value_and_check(frame.assign(terminated=last))  # as the message says: the process ends here
    assert estimate == pytest.approx(truth, abs=0.3)
    assert check is None
    estimate, check = value_and_check(frame.assign(next_obs=frame["obs"] + 1, truncated=last))
    assert check is None
    shifted = value_and_check(frame.assign(reward=1e6 + 1e3 * frame["reward"]))[1]
    assert shifted.outcome == "warn"


def test_counts_of_a_log_in_parts_are_those_of_the_whole(tmp_path):
    frame = walk().drop(columns="next_obs_0")
    frame = frame[np.random.default_rng(1).random(len(frame)) >= 0.3]
    frame.to_parquet(tmp_path / "log.parquet")
    whole = answer(frame)[1]
    parts = answer(vf.load(tmp_path / "log.parquet", memory="stream", limit=50_000))[1]
    assert parts["consecutive steps"] == whole["consecutive steps"]
    assert parts["last steps"].message == whole["last steps"].message
    assert parts["last steps"].statistic == pytest.approx(whole["last steps"].statistic, rel=1e-9)
