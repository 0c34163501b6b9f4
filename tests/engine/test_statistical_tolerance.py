"""The optimistic gap: at most the cap, zero without rewards, and seldom below the gap that the log supports."""

import numpy as np
import pytest

import valuefit as vf
from valuefit.engine.statistical_tolerance import LOOSEST_GAP, NEGLIGIBLE_ERROR, optimistic_gap


def chain(n=400, *, reward, discount=0.8, **settings):
    """Independent states in episodes of four steps, with a constant and two random features."""
    rng = np.random.default_rng(0)
    Phi = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    next = np.where(np.arange(n) % 4 == 3, -1, np.arange(1, n + 1))
    return vf.Problem.from_rows(
        Phi, np.arange(n), next, reward(rng, n), discount, episode=np.arange(n) // 4, **settings
    )


def test_rewards_of_zero_give_a_gap_of_zero():
    assert optimistic_gap(chain(reward=lambda rng, n: np.zeros(n))) == 0


def test_the_gap_of_a_short_log_is_capped():
    problem = vf.Problem.from_rows(np.eye(2), [0, 1], [-1, -1], [1.0, -1.0], 0.9)
    assert optimistic_gap(problem) == LOOSEST_GAP


@pytest.mark.parametrize("settings", [{}, {"trace": 0.7}])
def test_for_noise_it_is_that_of_the_noise_over_the_steps(settings):
    """Rewards are noise alone, so TD errors of theta = 0 have their variance, and F(0) - F* is at most half of it."""
    problem = chain(40_000, reward=lambda rng, n: rng.normal(size=n), **settings)
    along, squares = problem.reward_squares()
    supported = NEGLIGIBLE_ERROR**2 * squares / (problem.n * along)
    assert supported <= optimistic_gap(problem) <= 10 * supported
