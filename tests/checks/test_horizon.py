"""Checks of ends: time limits recorded as terminations, resets, and truncation before the horizon."""

import numpy as np
import pytest

import valuefit as vf


def checks_of(log, **settings):
    settings = {"features": lambda x: np.column_stack([np.ones(len(x)), x]), "discount": 0.9, **settings}
    return {check.name: check for check in vf.evaluate(log, **settings).checks}


def log_of(lengths, *, terminated, numbered=False, seed=0):
    rng = np.random.default_rng(seed)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    last = np.diff(episode, append=-1) != 0
    n = len(episode)
    x = rng.integers(4, size=n) if numbered else rng.normal(size=(n, 1))
    terminated = last & np.repeat(np.broadcast_to(terminated, len(lengths)), lengths)
    return vf.Transitions.from_arrays(
        x, rng.normal(size=n), episode=episode, terminated=terminated, truncated=last & ~terminated,
        next_observation=rng.permutation(x),
    )  # fmt: skip


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize(
    ("lengths", "outcome"),
    [
        (np.full(20, 15), "warn"),
        (np.r_[np.full(12, 15), np.arange(3, 11)], "warn"),
        (np.r_[np.full(8, 15), np.arange(3, 15)], "pass"),
        (np.r_[np.full(19, 15), 16], "pass"),  # one lasts longer
        (np.full(9, 15), "pass"),  # too few
        (np.full(60, 1), "pass"),  # bandits
    ],
)
def test_terminations_after_one_number_of_steps_look_like_a_time_limit(lengths, outcome, numbered):
    features = {"features": "one-hot"} if numbered else {}
    assert checks_of(log_of(lengths, terminated=True, numbered=numbered), **features)["time limit"].outcome == outcome


def test_states_that_always_terminate_are_no_time_limit():
    rng = np.random.default_rng(0)
    state = np.tile(np.arange(5), 30)
    log = vf.Transitions.from_arrays(state, rng.normal(size=150), terminated=state == 4)
    found = checks_of(log, features="one-hot")["time limit"]
    assert found.outcome == "pass"
    assert "in states that always do" in found.message


def test_truncated_episodes_are_no_time_limit():
    assert checks_of(log_of(np.full(20, 15), terminated=False))["time limit"].outcome == "pass"


def test_the_weight_beyond_truncated_episodes():
    log = log_of(np.full(30, 10), terminated=False)
    assert checks_of(log, discount=0.9)["horizon"].statistic == pytest.approx(0.9**10)
    assert checks_of(log, discount=0.9)["horizon"].outcome == "pass"
    found = checks_of(log, discount=0.99)["horizon"]
    assert (found.outcome, found.statistic) == ("warn", pytest.approx(0.99**10))
    half = log_of(np.full(30, 10), terminated=np.arange(30) % 2 == 0)
    keep = 0.99 * (1 - 15 / 300)
    assert checks_of(half, discount=0.99)["horizon"].statistic == pytest.approx(keep**10 / 2)


def cut(*, reset, numbered, seed=0):
    """A stream cut into episodes; with `reset` each begins at a start, recorded as the observation after the last."""
    rng = np.random.default_rng(seed)
    n, length = 1200, 20
    x = np.empty(n + 1)
    for t in range(n + 1):
        start = t % length == 0 and (reset or t == 0)
        x[t] = (0.0 if start else x[t - 1] + 0.4) if numbered else (5.0 if start else 0.8 * x[t - 1]) + rng.normal() / 4
    x = (x // 1).astype(int) % 40 if numbered else x[:, None]
    return vf.Transitions.from_arrays(
        x[:-1], rng.normal(size=n), truncated=np.arange(n) % length == length - 1, next_observation=x[1:]
    )


@pytest.mark.parametrize("numbered", [False, True])
def test_resets_are_told_from_a_stream_that_was_cut(numbered):
    features = {"features": "one-hot"} if numbered else {}
    assert checks_of(cut(reset=True, numbered=numbered), **features)["resets"].outcome == "warn"
    assert checks_of(cut(reset=False, numbered=numbered), **features)["resets"].outcome == "pass"


def test_a_stream_of_states_that_hardly_recur_is_not_taken_for_resets():
    state = np.random.default_rng(0).integers(0, 2000, 2001)
    log = vf.Transitions.from_arrays(
        state[:-1],
        np.zeros(2000),
        next_observation=state[1:],
        truncated=np.arange(2000) % 50 == 49,
        episode=np.arange(2000) // 50,
    )
    assert checks_of(log, discount=0.9)["resets"].outcome == "pass"


def test_episodes_of_one_step_have_no_change_to_compare_with():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    log = vf.Transitions.from_arrays(
        x,
        rng.normal(size=30),
        episode=np.arange(30),
        truncated=np.ones(30, bool),
        next_observation=np.roll(x, -1, axis=0),
    )
    assert checks_of(log)["resets"].outcome == "pass"


def test_other_observations_after_the_last_step_are_no_resets():
    found = checks_of(log_of(np.full(30, 10), terminated=False))["resets"]
    assert (found.outcome, found.statistic) == ("pass", 0.0)
    assert "resets" not in checks_of(log_of(np.full(30, 10), terminated=True))


def test_discount_1_off_policy_needs_termination_of_the_policy():
    log = log_of(np.arange(5, 45), terminated=True)
    assert checks_of(log, discount=1.0)["termination"].outcome == "pass"
    columns = {
        "terminated": log.terminated,
        "episode": log.episode,
        "ratio": np.where(np.arange(len(log)) % 2, 0.9, 1.1),
    }
    off = vf.Transitions.from_arrays(log.observations[log.now], log.reward, **columns)
    assert checks_of(off, discount=1.0)["termination"].outcome == "warn"
    assert (
        checks_of(log_of(np.arange(5, 45), terminated=np.arange(40) > 0), discount=1.0)["termination"].outcome == "warn"
    )
    assert "termination" not in checks_of(log)
