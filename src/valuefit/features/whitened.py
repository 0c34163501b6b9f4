"""Whitened features: the squared length of the weights, but for the constant's, is the variance of the value.

With the mean m and the covariance D L L' D of the rows phi over the steps of the log (D diagonal, L triangular), the
row of an observation is [s, (phi - m)' D^-1 L^-T], s a given number. A value with weights (t, theta) then has the mean
s t and the variance |theta|^2 over the log, so an ordinary ridge is a penalty on its variance, which does not depend on
the units, the number or the correlations of the features; and it leaves the constant alone if s is large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg as linalg

from valuefit.data.transitions import Transitions
from valuefit.features.registry import Fitted
from valuefit.linalg.moments import pieces
from valuefit.memory import fits
from valuefit.rows.storage import dense
from valuefit.typing import Array

MIN_DEVIATION = 1e-10  # over the root mean square of a column; below it the column is constant but for rounding
MIN_OWN_VARIANCE = 1e-8  # share of the variance of a column that the others do not explain; below it is left out
MAX_UNSEEN_LENGTH = 0.01  # of the part of a row that the log does not span, over the row; beyond, values are guesses


@dataclass(frozen=True, eq=False)
class Whitening:
    """observations -> whitened rows, (m, 1 + len(kept)).

    features: with `len(kept)` independent columns, `kept`. mean: of all columns. factor: D^-1 L^-T. constant: s.
    loadings: of all columns on the whitened ones, (len(kept), columns).
    """

    features: Fitted
    kept: Array
    mean: Array
    factor: Array
    loadings: Array
    constant: float

    def __call__(self, observations: Array) -> Array:
        rows = np.empty((len(observations), 1 + len(self.kept)))
        rows[:, 0] = self.constant
        rows[:, 1:] = (dense(self.features.transform(observations)[:, self.kept]) - self.mean[self.kept]) @ self.factor
        return rows

    def outside(self, observations: Array) -> Array:
        """Whether the features of each observation, (m,), are no combination of those that the log has visited.

        Columns that were left out then have another value than the kept ones imply.
        """
        rows = dense(self.features.transform(observations))
        implied = self.mean + self(observations)[:, 1:] @ self.loadings
        return np.asarray(np.linalg.norm(rows - implied, axis=1) > MAX_UNSEEN_LENGTH * np.linalg.norm(rows, axis=1))


def whiten(features: Fitted, log: Transitions, *, constant: float, kept: Sequence[int] | None = None) -> Fitted:
    """The features whitened over the steps of a log, with a constant in front; `spec` stays that of the features.

    constant: its entry in every row. kept: the independent columns that an earlier call chose, in its order; None
    chooses them by pivoted Cholesky factorisation. Rows are dense, so sparse features must be few.
    """
    count, width = len(log.observations), features.columns
    if not fits(2 * width * max(count, width)):
        raise ValueError(
            f"A penalty makes {width} features dense, which for {count} observations do not fit into memory. Use fewer "
            "features, or a ridge, which leaves them sparse."
        )
    visited, visits = np.unique(log.now, return_counts=True)
    mean, covariance = _mean_and_covariance(features.transform(log.observations[visited]), visits)
    deviation = np.sqrt(np.diag(covariance))
    varies = deviation > MIN_DEVIATION * np.sqrt(mean**2 + deviation**2)
    columns = np.flatnonzero(varies) if kept is None else np.asarray(kept, np.int64)
    correlation = covariance[np.ix_(columns, columns)] / np.outer(deviation[columns], deviation[columns])
    if kept is None and len(columns):
        _, order, rank, _ = linalg.lapack.dpstrf(correlation, tol=MIN_OWN_VARIANCE, lower=True)
        chosen = order[:rank] - 1
        columns, correlation = columns[chosen], correlation[np.ix_(chosen, chosen)]
    lower = linalg.cholesky(correlation, lower=True) if len(columns) else np.zeros((0, 0))
    factor = linalg.solve_triangular(lower, np.diag(1 / deviation[columns]), lower=True).T if len(columns) else lower
    factor = np.ascontiguousarray(factor)
    whitening = Whitening(features, columns, mean, factor, factor.T @ covariance[columns], constant)
    sentence = f"{features.sentence} Whitened for the penalty: {len(columns)} independent columns and a constant."
    return Fitted(whitening, features.shape, 1 + len(columns), sentence, features.spec)


def _mean_and_covariance(rows: Any, visits: Array) -> tuple[Array, Array]:
    """Mean (d,) and covariance (d, d) of rows that occur this often."""
    n, d = visits.sum(), rows.shape[1]
    mean = np.asarray(rows.T @ visits, dtype=np.float64).ravel() / n
    covariance = np.zeros((d, d))
    for index in pieces(np.arange(len(visits)), 2 * d):
        centred = (dense(rows[index]) - mean) * np.sqrt(visits[index])[:, None]
        covariance += centred.T @ centred
    return mean, covariance / n
