"""The reachable range: bounds from the rewards, and when the estimate, its interval or values at states are outside."""

import numpy as np
import pytest

import valuefit as vf
from helpers.cartpole import SETTINGS, cartpole_log, covers


def log_of(reward, *, episodes=30, length=20, terminated=True, seed=0):
    n = episodes * length
    last = np.arange(n) % length == length - 1
    x = np.random.default_rng(seed).normal(size=(n, 1))
    flags = {"terminated": last} if terminated else {"truncated": last, "next_observation": np.roll(x, -1, axis=0)}
    return vf.Transitions.from_arrays(x, np.broadcast_to(reward, n), episode=np.arange(n) // length, **flags)


def check_of(log, name="reachable range", **settings):
    found = vf.evaluate(log, **{"features": lambda x: np.column_stack([np.ones(len(x)), x]), **settings})
    return next(check for check in found.checks if check.name == name)


def test_the_range_includes_zero_only_if_episodes_terminate():
    assert "add up to 0 to 20" in check_of(log_of(2.0), discount=0.9).message
    assert "add up to 20 to 20" in check_of(log_of(2.0, terminated=False), discount=0.9).message
    assert "add up to -30 to 20" in check_of(log_of(np.r_[2.0, np.full(599, -3.0)]), discount=0.9).message


def test_a_constant_reward_without_end_is_inside_up_to_rounding():
    assert check_of(log_of(2.0, terminated=False), discount=0.99).outcome == "pass"


def test_discount_1_has_no_bound():
    assert check_of(log_of(1.0), discount=1.0).outcome == "skip"


def test_an_estimate_outside_fails_or_warns_by_its_standard_error():
    noise = 1 + np.random.default_rng(0).normal(size=600)
    far = check_of(log_of(1.0), discount=0.9, features=lambda x: 1 + x, starts=[[50.0]])
    assert far.outcome in ("fail", "warn")
    assert "is impossible" in far.message
    assert far.statistic > 0
    unsure = check_of(log_of(noise), discount=0.9, starts=[[300.0]])
    assert unsure.outcome == ("fail" if unsure.size > 1 else "warn")


def test_an_estimate_far_outside_fails_whatever_its_standard_error():
    """A line through observations near 0, extrapolated, and rewards between 0 and 1."""
    rng = np.random.default_rng(0)
    x = 0.01 * rng.normal(size=(600, 1))
    log = vf.Transitions.from_arrays(x, rng.random(600), terminated=np.ones(600), episode=np.arange(600))
    settings = {"discount": 0.9, "features": lambda x: np.column_stack([np.ones(len(x)), x])}
    near, far = (check_of(log, starts=[[start]], **settings) for start in (0.0, 10.0))
    assert near.outcome == "pass"
    assert (far.outcome, far.size < 1) == ("fail", True)


def test_an_interval_wider_than_the_range_fails_and_names_it():
    """Few episodes of a reward that is nearly always 0; as many more as the message asks for give a right answer."""
    rng = np.random.default_rng(1)
    for episodes, outcome in ((3, "fail"), (300, "pass")):
        reward = (rng.random(episodes) < 0.5).astype(float)
        log = vf.Transitions.from_arrays(np.ones((episodes, 1)), reward, terminated=np.ones(episodes),
                                         episode=np.arange(episodes))  # fmt: skip
        found = vf.evaluate(log, features="identity", discount=0.0)
        check = next(check for check in found.checks if check.name == "reachable range")
        assert check.outcome == outcome, check
        assert "rewards from 0 to 1 with discount 0 add up to 0 to 1" in check.message


def test_a_wide_interval_warns():
    reward = np.where(np.arange(600) % 20 == 19, 1.0, 0.0) * np.random.default_rng(0).integers(2, size=600)
    found = check_of(log_of(reward), discount=0.5, starts=[[-1.0], [1.0], [12.0], [-12.0]])
    assert found.outcome == "pass"
    found = check_of(log_of(reward), discount=0.5, features=lambda x: np.column_stack([np.ones(len(x)), x, x**5]),
                     starts=[[6.0], [-6.0], [4.0]])  # fmt: skip
    assert found.outcome in ("warn", "fail")


def test_values_at_logged_states_count_beyond_three_standard_errors():
    """Rewards of 0 and 1 that grow with |x|, so that a line in |x| is far below 0 around 0."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(2000, 1))
    reward = (rng.random(2000) < np.abs(x[:, 0]) ** 8).astype(float)
    log = vf.Transitions.from_arrays(x, reward, terminated=np.ones(2000), episode=np.arange(2000))
    name = "reachable values"
    found = check_of(log, name, discount=0.9, features=lambda x: np.column_stack([np.ones(len(x)), np.abs(x)]))
    assert found.outcome == "warn"
    assert "of the logged steps are impossible" in found.message
    assert found.statistic > 0.2
    exact = check_of(log, name, discount=0.9, features=lambda x: np.abs(x) ** 8)
    assert exact.outcome == "pass"


@pytest.mark.parametrize("solver", ["lstd", "svrg"])
def test_it_does_not_depend_on_the_solver(solver):
    assert check_of(log_of(1.0), discount=0.9, solver=solver).outcome == "pass"


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_richer_features_turn_an_impossible_value_into_a_right_one(values):
    settings = {**SETTINGS, "values": values}
    poor = vf.evaluate(cartpole_log(), features="polynomial:degree=2", **settings)
    check = next(check for check in poor.checks if check.name == "reachable range")
    assert (poor.verdict.level, check.outcome) == ("do not use", "fail")
    assert "Use features that can express the value" in check.message
    rich = vf.evaluate(cartpole_log(), features="kernel:landmarks=200", **settings)
    assert covers(rich)
    assert next(check for check in rich.checks if check.name == "reachable range").outcome == "pass"


def test_a_log_of_more_episodes_has_an_interval_without_impossible_values():
    few, more = (vf.evaluate(cartpole_log(count), features="kernel:landmarks=800", **SETTINGS) for count in (16, 60))
    checks = [next(check for check in found.checks if check.name == "reachable range") for found in (few, more)]
    assert "The interval from" in checks[0].message
    assert "Use a log of more episodes" in checks[0].message
    assert [check.outcome for check in checks] == ["warn", "pass"]
    assert covers(more)
