"""Well-conditioned polynomial features: products of Legendre polynomials."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from valuefit.features.scaling import (
    count_option,
    data_range,
    lowest_indices,
    range_text,
    refuse_many_products,
    row_blocks,
    to_unit,
)
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
        varying = np.flatnonzero(self.high_ > self.low_)
        total = product_count(degree, len(varying), count)
        refuse_many_products(len(X), min(count, total))
        chosen = lowest_indices(len(varying), count, each=degree, total=degree, power=1)
        self.degrees_ = np.zeros((len(chosen), X.shape[1]), np.int64)
        self.degrees_[:, varying] = chosen
        self.complete_ = total <= count
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

    def options(self) -> dict[str, Any]:
        """Arguments of the constructor that give the same features without the data."""
        return {
            "degree": int(self.degree), "max_features": int(self.max_features),
            "low": self.low_.tolist(), "high": self.high_.tolist(),
        }  # fmt: skip

    def describe(self) -> str:
        """The fitted features in words."""
        limited = "" if self.complete_ else ", the lowest degrees only"
        return (
            f"polynomials of degree {self.degree} ({len(self.degrees_)} features{limited}; the first is the constant) "
            f"over {range_text(self.low_, self.high_)}"
        )


def product_count(degree: int, dimensions: int, limit: int) -> int:
    """The number of products, (dimensions + degree over degree); above `limit` any number above it."""
    total = 1
    for k in range(1, min(degree, dimensions) + 1):
        total = total * (max(degree, dimensions) + k) // k
        if total > limit:
            break
    return total


def legendre(Z: Array, highest: int) -> Array:
    """sqrt(2k + 1) P_k(Z) for k = 0 ... highest, (highest + 1, *Z.shape), by the three-term recurrence."""
    P = np.ones((highest + 1, *Z.shape))
    if highest >= 1:
        P[1] = Z
    for k in range(1, highest):
        P[k + 1] = ((2 * k + 1) * Z * P[k] - k * P[k - 1]) / (k + 1)
    return P * np.sqrt(2 * np.arange(highest + 1) + 1)[:, None, None]
