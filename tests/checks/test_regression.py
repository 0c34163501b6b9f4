"""What fine functions of the observation leave of an instrument."""

import numpy as np
import pytest

import valuefit as vf
from helpers.fits import fit_of
from valuefit.checks.instruments import MAX_COLUMNS, Instruments
from valuefit.checks.regression import less_functions_of_observation, subtract_regression, with_constant

EPISODES, LENGTH = 50, 20
STEPS = np.arange(EPISODES * LENGTH)
POLICY = np.tile([0.3, 0.7], (7, 1))


def log_of(observation):
    rng = np.random.default_rng(1)
    return vf.Transitions.from_arrays(
        observation, rng.normal(size=len(STEPS)), action=rng.integers(0, 2, len(STEPS)),
        behaviour_prob=np.full(len(STEPS), 0.5), terminated=STEPS % LENGTH == LENGTH - 1,
    )  # fmt: skip


def left_of(log, z, **settings):
    fit = fit_of(log, features=lambda x: np.ones((len(x), 1)), discount=0.9, **settings)
    instruments = Instruments(log, actions=fit.values == "state-action", seed=0)
    return less_functions_of_observation(fit, instruments, STEPS, z)


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_nothing_is_left_of_functions_of_numbered_states(values):
    """And of actions for state-action values; what is left has mean zero given them, by the weights of the steps."""
    rng = np.random.default_rng(0)
    log = log_of(rng.integers(0, 7, len(STEPS)))
    pair = 2 * log.observations[log.now] + (log.action if values == "state-action" else 0)
    z = np.column_stack([np.sin(pair), rng.normal(size=len(STEPS))])
    left = left_of(log, z, policy=POLICY, values=values)
    np.testing.assert_allclose(left[:, 0], 0, atol=1e-12)
    weight = np.ones(len(STEPS)) if values == "state-action" else POLICY[0][log.action] / 0.5
    np.testing.assert_allclose(np.bincount(pair, weight * left[:, 1]), 0, atol=1e-12)
    assert left[:, 1].std() > 0.9


def test_little_is_left_of_fine_functions_of_vectors_and_nearly_all_of_what_is_unrelated():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (len(STEPS), 2))
    z = np.column_stack([np.sin(8 * x[:, 0]) * x[:, 1], rng.normal(size=len(STEPS))])
    left = left_of(log_of(x), z)
    assert left[:, 0].std() < 0.1 * z[:, 0].std()
    assert left[:, 1].std() > 0.8 * z[:, 1].std()


def test_observations_with_many_numbers_have_no_fine_functions():
    x = np.random.default_rng(0).normal(size=(len(STEPS), MAX_COLUMNS + 1))
    assert left_of(log_of(x), x[:, :2]) is None


def test_a_regression_leaves_what_is_orthogonal_by_the_weights():
    rng = np.random.default_rng(0)
    weight, z = rng.uniform(size=3000), rng.normal(size=(3000, 7))
    z[:, :4] = with_constant(z[:, :3])
    before = z.copy()
    subtract_regression(z, 4, weight)
    np.testing.assert_array_equal(z[:, :4], before[:, :4])
    np.testing.assert_allclose((weight[:, None] * z[:, :4]).T @ z[:, 4:], 0, atol=1e-4)
