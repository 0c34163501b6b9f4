"""The example log equals its generator and the simulator."""

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import ROOT
from valuefit.datasets.example import EPISODES, FILE, example_log, make_example
from valuefit.datasets.mountain_car import REWARD, step


@pytest.fixture(scope="module")
def log():
    return example_log()


def test_the_log_equals_its_generator():
    with np.load(FILE, allow_pickle=False) as stored:
        made = make_example()
        assert set(stored.files) == set(made)
        for name, values in made.items():
            assert stored[name].dtype == values.dtype
            # the last digit of a cosine depends on the machine
            np.testing.assert_allclose(stored[name], values, rtol=0, atol=1e-6, err_msg=name)


def test_every_step_follows_the_simulator(log):
    state, reached = step(log.observations[log.now].astype(float), np.asarray(log.action))
    inside = ~log.terminated
    np.testing.assert_allclose(state[inside], log.observations[log.next[inside]], atol=2e-6)
    assert (log.reward == REWARD).all()
    assert (np.abs(state[log.terminated, 0] - 0.5) < 0.07).all()
    assert (reached == log.terminated).mean() > 0.9999


def test_the_file_is_small_and_every_episode_terminates(log):
    assert FILE.stat().st_size < 300_000
    assert FILE.is_relative_to(ROOT / "src" / "valuefit")
    assert len(log.episodes) == EPISODES == log.terminated.sum()
    assert not log.truncated.any()
    assert "Mountain Car" in log.notes[0]
    assert f"{len(log):,}" in example_log.__doc__


def test_the_estimated_value_is_near_the_mean_return(log):
    found = vf.evaluate(log).policy_value
    lengths = np.bincount(log.episode)
    returns = -(1 - 0.99**lengths) / (1 - 0.99)
    assert abs(found.estimate - returns.mean()) < 0.5 * found.standard_error
    assert found.interval[0] < returns.mean() < found.interval[1]
