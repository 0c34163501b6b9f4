"""Small problems of the kinds that steps fixed beforehand find hard, for the tests of adapted steps."""

from __future__ import annotations

import numpy as np
from test_certificate import slow_process

import valuefit as vf
from valuefit.datasets.random_mdp import random_mdp


def walk(rows: np.ndarray, reward: np.ndarray, discount: float = 0.9, **settings: object) -> vf.Problem:
    n = len(rows) - 1
    return vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), reward, discount, **settings)


def bumps(x: np.ndarray, width: float) -> np.ndarray:
    return np.exp(-((x[:, :1] - np.linspace(-1.5, 1.5, 12)) ** 2) / (2 * width**2))


def make(kind: str) -> vf.Problem:
    rng = np.random.default_rng(7)
    n, d = 600, 10
    x = slow_process(rng, n, d)
    reward = x[:-1, 0] + 0.5 * rng.normal(size=n)
    ones = np.ones((n + 1, 1))
    if kind == "random MDP":
        mdp = random_mdp(50, 4, 12, seed=3)
        return vf.Problem(mdp.log(1000, seed=1), mdp.rows, discount=0.95)
    if kind == "badly scaled columns":
        return walk(x * 10.0 ** np.linspace(-3, 3, d), reward)
    if kind == "nearly collinear bumps":
        return walk(np.hstack([bumps(x, 0.5), ones]), reward)
    if kind == "Student-t rows":
        return walk(rng.standard_t(2, size=(n + 1, d)), reward)
    if kind == "lognormal ratios":
        return walk(np.hstack([x, ones]), reward, ratio=rng.lognormal(-0.5, 1, n))
    if kind == "trace 0.8":
        return walk(np.hstack([x, ones]), reward, trace=0.8)
    if kind == "discount 0.99":
        return walk(np.hstack([x, ones]), reward, 0.99)
    if kind == "ridge":
        return walk(np.hstack([bumps(x, 0.5), ones]), reward, ridge=0.01)
    if kind == "identity metric":
        return walk(np.hstack([x, ones]), reward, metric="identity")
    if kind == "dual features":
        return walk(np.hstack([x, ones]), reward, dual_rows=np.hstack([x, ones, x[:, :3] ** 2]))
    return walk(np.hstack([x, ones]).astype(np.float32), reward)


KINDS = ["random MDP", "badly scaled columns", "nearly collinear bumps", "Student-t rows", "lognormal ratios",
         "trace 0.8", "discount 0.99", "ridge", "identity metric", "dual features", "float32"]  # fmt: skip
