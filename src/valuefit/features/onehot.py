"""One column for each state, or for each value of each categorical column."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sparse

from valuefit.features.transformer import FeatureTransformer
from valuefit.typing import Array


class OneHot(FeatureTransformer):
    """CSR rows with a single 1 for each column of the observations: the table of a finite MDP.

    Takes states by number, (n,) integers, or (n, k) columns of categories coded as numbers. A constant is in the
    span, for the columns of a block sum to one. Prefer it where every state is visited often.

    categories: for each column the values it may take, in ascending order; from the data where None.
    unknown: what a value that was not in the data gives: "error" (a sentence, for nothing is known of that state)
    or "zero" (a block of zeros, so a value of 0).
    """

    def __init__(self, categories: Any = None, *, unknown: str = "error") -> None:
        self.categories = categories
        self.unknown = unknown

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the values of each column."""
        X = self._check_input(as_columns(X), fitting=True)
        if self.unknown not in ("error", "zero"):
            raise ValueError(f'unknown is {self.unknown!r}; it must be "error" or "zero".')
        if self.categories is None:
            self.categories_ = [np.unique(column) for column in X.T]
        else:
            if len(self.categories) != X.shape[1]:
                raise ValueError(
                    f"categories has {len(self.categories)} lists, but there are {X.shape[1]} columns. "
                    "Give one list of values for each."
                )
            self.categories_ = [np.asarray(values, np.float64) for values in self.categories]
            if any(len(values) == 0 or not (np.diff(values) > 0).all() for values in self.categories_):
                raise ValueError("categories must hold the distinct values of each column in ascending order.")
        return self

    def transform(self, X: Any) -> Any:
        """CSR rows, one column for each value of each column of X."""
        values = self._check_input(as_columns(X))
        places, known = np.empty(values.shape, np.int64), np.empty(values.shape, bool)
        first = 0
        for k, categories in enumerate(self.categories_):
            found = np.searchsorted(categories, values[:, k])
            inside = np.minimum(found, len(categories) - 1)
            known[:, k] = categories[inside] == values[:, k]
            places[:, k] = first + inside
            first += len(categories)
        if self.unknown == "error" and not known.all():
            row, k = np.argwhere(~known)[0]
            raise ValueError(
                f"Row {row} has {values[row, k]:g} in column {k}, which is not among the {len(self.categories_[k])} "
                'values the features were fitted on, so nothing is known of it. Leave it out, or use unknown="zero" '
                "to value it at 0."
            )
        starts = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
        rows = sparse.csr_array((np.ones(int(starts[-1])), places[known], starts), shape=(len(values), first))
        return self._output(rows, X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name a column: which column of X, and its value."""
        self._check_fitted()
        names = [f"x{k}_{value:g}" for k, values in enumerate(self.categories_) for value in values]
        return np.array(names, dtype=object)

    def options(self) -> dict[str, Any]:
        """The settings that make these features again without the data."""
        return {"categories": [values.tolist() for values in self.categories_], "unknown": self.unknown}

    def describe(self) -> str:
        """What was made, for a sentence."""
        sizes = [len(values) for values in self.categories_]
        of = f"{sizes[0]} states" if len(sizes) == 1 else f"{sum(sizes)} values in {len(sizes)} columns"
        return f"one-hot features of {of} (the constant is their sum)"


def as_columns(X: Any) -> Any:
    """States by number as one column; anything else as it is."""
    if isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype.kind in "iub":
        return X[:, None]
    return X
