"""The observations themselves."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from valuefit.features.transformer import FeatureTransformer
from valuefit.typing import Array


class Identity(FeatureTransformer):
    """The observations, unchanged: for logs whose observations are feature rows.

    Nothing is scaled, clipped or added. If no combination of the columns is constant, the value at the origin is 0.
    `Polynomial(degree=1)` is the scaled version with a constant.
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Record the number of columns, and whether one column or the sum of all is constant."""
        X = self._check_input(X, fitting=True)
        with np.errstate(over="ignore"):  # `Problem` refuses features of this size
            total = X.sum(axis=1)
        constant = (X.min(axis=0) == X.max(axis=0)) & (X[0] != 0)
        self.constant_ = bool(constant.any() or (total[0] != 0 and np.allclose(total, total[0])))
        return self

    def transform(self, X: Any) -> Any:
        """X in float64; float32 is kept."""
        kept = isinstance(X, np.ndarray) and X.dtype == np.float32
        return self._output(self._check_input(X, dtype=np.float32 if kept else np.float64), X)

    def rows_of_checked(self, X: Array) -> Array:
        """X, which would take longer to check again than to use."""
        return np.asarray(X, np.float32 if X.dtype == np.float32 else np.float64)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name per column."""
        self._check_fitted()
        return np.array([f"x{column}" for column in range(self.n_features_in_)], dtype=object)

    def describe(self) -> str:
        """The fitted features in words."""
        constant = "with a constant in their span" if self.constant_ else "no constant is added"
        return f"the observations themselves, {self.n_features_in_} columns ({constant})"
