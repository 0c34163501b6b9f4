"""The test of the value with a penalty against the value without one."""

import numpy as np
import pytest

import valuefit as vf
from helpers.fits import fit_of
from valuefit.evaluation.checks.hypothesis_tests import hypothesis_tests


def log_of(seed):
    """Slow episodes that start at 2, far from where they go."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 31))
    x[:, 0] = 2 + 0.1 * x[:, 0]
    for t in range(30):
        x[:, t + 1] = 0.9 * x[:, t] + 0.4 * x[:, t + 1]
    reward = x[:, :-1] + 0.5 * rng.normal(size=(40, 30))
    return vf.Transitions.from_arrays(
        x[:, :-1].reshape(-1, 1), reward.ravel(), episode=np.repeat(np.arange(40), 30),
        next_observation=x[:, 1:].reshape(-1, 1),
    )  # fmt: skip


def rejection(seed, penalty):
    """The test of a penalty; None where there is none."""
    fit = fit_of(log_of(seed), features="fourier:order=4", discount=0.99, penalty=penalty)
    return next((test for test in hypothesis_tests(fit) if test.name == "penalty"), None)


def test_a_strong_penalty_is_rejected_though_corrections_hardly_change_the_value():
    found = [rejection(seed, 10.0) for seed in range(5)]
    assert all(test.p_value < 0.01 for test in found)
    assert all("the penalty biases the value. Use a smaller penalty." in test.rejected for test in found)


def test_a_mild_penalty_is_not():
    assert all(rejection(seed, 1e-4).size < 0.1 for seed in range(5))


def test_the_difference_is_that_of_two_evaluations():
    log, settings = log_of(0), {"features": "fourier:order=4", "discount": 0.99, "interval": "cr1", "tol": 1e-12}
    expected = vf.compare(vf.evaluate(log, **settings), vf.evaluate(log, penalty=1.0, **settings))
    fit = fit_of(log, penalty=1.0, **settings)
    found = next(test for test in hypothesis_tests(fit) if test.name == "penalty")
    assert found.statistic == pytest.approx(expected.estimate / expected.standard_error, rel=1e-6)
    assert found.size == pytest.approx(abs(expected.estimate) / fit.value.standard_error, rel=1e-6)


def test_there_is_none_without_a_penalty():
    assert rejection(0, 0.0) is None
