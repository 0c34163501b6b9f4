"""Instruments: what they may depend on, and observations of every kind."""

import numpy as np
import pytest

import valuefit as vf
from valuefit.checks.instruments import COUNT, MAX_STEPS, Instruments, sampled_steps

RNG = np.random.default_rng(0)
N = 60
OBSERVATIONS = {
    "vectors": RNG.normal(size=(N, 3)),
    "numbers": RNG.normal(size=N),
    "states": RNG.integers(0, 7, N),
    "many states": np.arange(N) * 1000,
    "images": RNG.integers(0, 255, (N, 20, 20)).astype(np.uint8),
    "constant": np.ones((N, 2)),
    "huge": 1e200 * RNG.normal(size=(N, 2)),
    "flags": RNG.integers(0, 2, (N, 1)).astype(bool),
}
ACTIONS = {
    "none": None,
    "numbered": RNG.integers(0, 3, N),
    "continuous": RNG.normal(size=(N, 2)),
    "named": np.array(["left", "right"])[RNG.integers(0, 2, N)],
    "pairs": RNG.integers(0, 2, (N, 2)),
}


def log_of(observation, action=None):
    ends = np.arange(N) % 12 == 11
    return vf.Transitions.from_arrays(observation, RNG.normal(size=N), terminated=ends, action=action)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_they_are_bounded_functions_of_any_observation(kind, action):
    log = log_of(OBSERVATIONS[kind], ACTIONS[action])
    instruments = Instruments(log, actions=action != "none", seed=0)
    for found in (instruments.logged(np.arange(N)), instruments.history(np.arange(N))):
        assert found.shape == (N, COUNT)
        assert np.abs(found).max() <= 1
    assert (instruments.logged(np.arange(N)).std(axis=0) > 0.01).any() == (kind != "constant" or action != "none")


@pytest.mark.parametrize("kind", ["vectors", "states"])
def test_functions_of_the_state_do_not_depend_on_the_current_action(kind):
    first, second = (log_of(OBSERVATIONS[kind], action) for action in (np.zeros(N, int), np.arange(N) % 2))
    state = [Instruments(log, actions=False, seed=0).logged(np.arange(N)) for log in (first, second)]
    both = [Instruments(log, actions=True, seed=0).logged(np.arange(N)) for log in (first, second)]
    np.testing.assert_array_equal(*state)
    assert np.abs(both[0] - both[1]).max() > 0.1


def test_functions_of_the_past_do_not_depend_on_the_current_action_or_the_future():
    action = RNG.integers(0, 2, N)
    other = action.copy()
    other[30] = 1 - other[30]
    found, changed = (
        Instruments(log_of(OBSERVATIONS["states"], each), actions=False, seed=0).history(np.arange(N))
        for each in (action, other)
    )
    assert set(np.flatnonzero((found != changed).any(axis=1))) == {31}


@pytest.mark.parametrize("action", ["none", "numbered"])
@pytest.mark.parametrize("kind", ["vectors", "states"])
def test_functions_of_the_past_after_a_step_are_those_of_the_next_step(kind, action):
    log = log_of(OBSERVATIONS[kind], ACTIONS[action])
    instruments = Instruments(log, actions=False, seed=0)
    steps = np.flatnonzero(~log.begins[1:])
    np.testing.assert_array_equal(instruments.history_after(steps), instruments.history(steps + 1))


def test_the_first_step_of_an_episode_has_no_past():
    log = log_of(OBSERVATIONS["states"], RNG.integers(0, 2, N))
    steps = np.arange(N)
    expected = Instruments(log, actions=False, seed=0).history(steps)
    before = log.observations[log.now].copy()
    before[11] = (before[11] + 1) % 7  # the last step of the first episode
    found = Instruments(log_of(before, log.action), actions=False, seed=0).history(steps)
    np.testing.assert_array_equal(found[12:], expected[12:])


def test_in_float32_they_are_the_same_functions_also_late_in_an_episode():
    steps, shown = 300_000, np.arange(0, 300_000, 7)
    observation, action = RNG.normal(size=(steps, 3)), RNG.integers(0, 2, steps)
    log = vf.Transitions.from_arrays(observation, RNG.normal(size=steps), terminated=np.arange(steps) == steps - 1,
                                     action=action)  # fmt: skip
    single, double = (Instruments(log, actions=True, seed=0, dtype=dtype) for dtype in (np.float32, np.float64))
    np.testing.assert_allclose(single.logged(shown), double.logged(shown), rtol=0, atol=1e-5)
    np.testing.assert_allclose(single.history(shown), double.history(shown), rtol=0, atol=1e-5)


def test_large_logs_are_sampled():
    np.testing.assert_array_equal(sampled_steps(5, 0), np.arange(5))
    steps = sampled_steps(10 * MAX_STEPS, 0)
    assert len(np.unique(steps)) == MAX_STEPS
    assert (np.diff(steps) > 0).all()
    np.testing.assert_array_equal(steps, sampled_steps(10 * MAX_STEPS, 0))
