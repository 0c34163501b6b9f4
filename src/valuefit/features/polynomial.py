"""Well-conditioned polynomial features: products of Legendre polynomials."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from valuefit.features.scaling import count_option, data_range, product_indices, range_text, row_blocks, to_unit
from valuefit.features.transformer import FeatureTransformer
from valuefit.typing import Array


class Polynomial(FeatureTransformer):
    """Products of Legendre polynomials of observations scaled to [-1, 1], as dense rows.

    A feature is prod_k sqrt(2 c_k + 1) P_{c_k}(x_k) with sum of c at most `degree`: orthonormal if observations are
    uniform, with the span of all monomials up to that degree. c = 0, the constant, comes first; degree 1 gives
    scaled linear features and a constant. Prefer it in many dimensions, with degree 1 or 2. Observations outside
    the range are clipped to it; constant dimensions are ignored.

    degree: largest total degree. max_features: maximum number; low degrees come first, and powers of one variable
    before products. low, high: ranges, one number or one per dimension; None takes them from the data.
    """

    def __init__(self, degree: int = 2, max_features: int = 2000, *, low: Any = None, high: Any = None) -> None:
        self.degree = degree
        self.max_features = max_features
        self.low = low
        self.high = high

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the ranges and list the products."""
        X = self._check_input(X, fitting=True)
        degree = count_option("degree", self.degree, 0)
        count = count_option("max_features", self.max_features, 1)
        self.low_, self.high_ = data_range(X, self.low, self.high)
        self.degrees_, self.complete_ = product_indices(
            X, self.low_, self.high_, count,
            available=lambda dimensions: math.comb(dimensions + degree, degree), each=degree, total=degree, power=1,
        )  # fmt: skip
        return self

    def transform(self, X: Any) -> Any:
        """Rows (n, products), in float64."""
        observations = self._check_input(X)
        factors = [[(int(k), int(c[k])) for k in np.flatnonzero(c)] for c in self.degrees_]
        highest = int(self.degrees_.max(initial=0))
        n, dimensions = observations.shape
        out = np.empty((n, len(factors)))
        for block in row_blocks(n, len(factors) + dimensions * (highest + 1)):
            P = legendre(2 * to_unit(observations[block], self.low_, self.high_).T - 1, highest)
            columns = np.ones((len(factors), P.shape[2]))  # transposed: each product runs over contiguous memory
            for column, product in zip(columns, factors, strict=True):
                for k, c in product:
                    column *= P[c, k]
            out[block] = columns.T
        return self._output(out, X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name per column: the degree in each dimension."""
        self._check_fitted()
        return np.array(["legendre_" + "_".join(map(str, c)) for c in self.degrees_], dtype=object)

    def describe(self) -> str:
        """The fitted features in words."""
        limited = "" if self.complete_ else ", the lowest degrees only"
        return (
            f"polynomials of degree {self.degree} ({len(self.degrees_)} features{limited}; the first is the constant) "
            f"over {range_text(self.low_, self.high_)}"
        )


def legendre(Z: Array, highest: int) -> Array:
    """sqrt(2k + 1) P_k(Z) for k = 0 ... highest, (highest + 1, *Z.shape), by the three-term recurrence."""
    P = np.ones((highest + 1, *Z.shape))
    if highest >= 1:
        P[1] = Z
    for k in range(1, highest):
        P[k + 1] = ((2 * k + 1) * Z * P[k] - k * P[k - 1]) / (k + 1)
    return P * np.sqrt(2 * np.arange(highest + 1) + 1)[:, None, None]
