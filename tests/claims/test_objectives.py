"""Dual features and the metric decide which objective is minimised: the MSPBE, the NEU or the MSBE (section 7)."""

from __future__ import annotations

import numpy as np
import pytest

import valuefit as vf

STATES, FEATURES, DISCOUNT = 6, 3, 0.9


@pytest.fixture
def walk() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Feature rows of six states, and 200 random steps between them with rewards."""
    rng = np.random.default_rng(3)
    now, after = rng.integers(0, STATES, (2, 200))
    return rng.normal(size=(STATES, FEATURES)), now, after, rng.normal(size=200) + now


def td_errors(theta: np.ndarray, Phi: np.ndarray, now: np.ndarray, after: np.ndarray, reward: np.ndarray) -> np.ndarray:
    return reward + DISCOUNT * Phi[after] @ theta - Phi[now] @ theta


def test_the_mspbe_is_the_squared_length_of_the_projected_td_errors(walk) -> None:
    """1/2 |Pi (T V - V)|^2 over the log: regress the TD errors on the features, and average the squared predictions."""
    Phi, now, _, _ = walk
    problem = vf.Problem.from_rows(*walk, DISCOUNT)
    for seed in range(5):
        theta = np.random.default_rng(seed).normal(size=FEATURES)
        delta = td_errors(theta, *walk)
        predicted = Phi[now] @ np.linalg.lstsq(Phi[now], delta, rcond=None)[0]
        assert problem.objective(theta) == pytest.approx(0.5 * np.mean(predicted**2), rel=1e-10)


def test_the_identity_metric_gives_the_norm_of_the_expected_update(walk) -> None:
    """NEU: 1/2 |mean delta phi|^2."""
    Phi, now, _, _ = walk
    problem = vf.Problem.from_rows(*walk, DISCOUNT, metric="identity")
    for seed in range(5):
        theta = np.random.default_rng(seed).normal(size=FEATURES)
        update = td_errors(theta, *walk) @ Phi[now] / len(now)
        assert problem.objective(theta) == pytest.approx(0.5 * update @ update, rel=1e-10)


def test_one_hot_dual_features_give_the_mean_squared_bellman_error(walk) -> None:
    """MSBE: the squared mean TD error of each state, averaged over the states of the log."""
    _, now, _, _ = walk
    problem = vf.Problem.from_rows(*walk, DISCOUNT, dual_rows=np.eye(STATES))
    visits = np.bincount(now)
    for seed in range(5):
        theta = np.random.default_rng(seed).normal(size=FEATURES)
        bellman_error = np.bincount(now, td_errors(theta, *walk)) / visits
        expected = 0.5 * visits @ bellman_error**2 / len(now)
        assert problem.objective(theta) == pytest.approx(expected, rel=1e-10)
        projected = vf.Problem.from_rows(*walk, DISCOUNT).objective(theta)
        assert projected < expected  # the projection removes what the features cannot express
