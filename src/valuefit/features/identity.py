"""The observations themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from valuefit.typing import Array


class Identity(TransformerMixin, BaseEstimator):
    """Observations as they are: for logs whose observations are feature rows already.

    Nothing is scaled, clipped or added: where no combination of the columns is constant, the value is 0 at the
    origin. `Polynomial(degree=1)` is the scaled version with a constant.
    """

    def fit(self, X: Any, y: Any = None) -> Identity:
        """Remember the number of columns, and whether a constant shows: a column, or the sum of all."""
        X = validate_data(self, X, dtype=np.float64)
        total = X.sum(axis=1)
        constant = (X.min(axis=0) == X.max(axis=0)) & (X[0] != 0)
        self.constant_ = bool(constant.any() or (total[0] != 0 and np.allclose(total, total[0])))
        return self

    def transform(self, X: Any) -> Array:
        """X in float64."""
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name a column."""
        check_is_fitted(self)
        return np.array([f"x{column}" for column in range(self.n_features_in_)], dtype=object)

    def options(self) -> dict[str, Any]:
        """No settings."""
        return {}

    def describe(self) -> str:
        """What was made, for a sentence."""
        constant = "with a constant in their span" if self.constant_ else "no constant is added"
        return f"the observations themselves, {self.n_features_in_} columns ({constant})"
