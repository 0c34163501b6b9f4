"""Tensor products of cubic B-splines, the features of Shi, Zhang, Lu and Song (2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.interpolate import BSpline
from scipy.special import ndtr

Array = np.ndarray
DEGREE = 3


@dataclass
class TensorSplines:
    """Products of cubic B-splines of the normal distribution function of each number of an observation.

    size: splines per number. Inner knots are at quantiles of the data. Has `fit` and `transform`, as scikit-learn asks.
    """

    size: int

    def fit(self, X: Any, y: Any = None) -> TensorSplines:
        inner = np.linspace(0, 1, self.size - DEGREE + 1)
        quantiles = np.quantile(ndtr(X), inner[1:-1], axis=0).T
        self.knots_ = [np.r_[np.zeros(DEGREE + 1), column, np.ones(DEGREE + 1)] for column in quantiles]
        return self

    def transform(self, X: Any) -> Array:
        rows = np.ones((len(X), 1))
        for column, knots in zip(ndtr(X).T, self.knots_, strict=True):
            splines = BSpline.design_matrix(column, knots, DEGREE).toarray()
            rows = (rows[:, :, None] * splines[:, None, :]).reshape(len(X), -1)
        return rows


def published_size(steps: int) -> int:
    """Splines per number for a log of this many steps, as published."""
    return max(4, int(steps ** (3 / 14)))
