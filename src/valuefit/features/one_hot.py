"""One-hot features: one column for each state, or for each value of each categorical column."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sparse

from valuefit.data.exact import exact_cast
from valuefit.features.scaling import is_list
from valuefit.features.transformer import FeatureTransformer
from valuefit.messages import shown, translated
from valuefit.typing import Array


class OneHot(FeatureTransformer):
    """CSR rows with a single 1 for each column of the observations: the table of a finite MDP.

    Takes state numbers, (n,) integers of any size, or (n, k) columns of categories coded as numbers. A constant is in
    the span, because the columns of a block sum to one. Prefer it if every state is visited often.

    categories: for each column its possible values, in ascending order; None takes them from the data.
    unknown: how to treat a value that was not in the data: "error" raises, because the data contain no estimate for
    that state; "zero" gives a block of zeros, so a value of 0.
    """

    def __init__(self, categories: Any = None, *, unknown: str = "error") -> None:
        self.categories = categories
        self.unknown = unknown

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the values of each column."""
        X = self._check_input(as_columns(X), fitting=True, dtype=None)
        if not isinstance(self.unknown, str) or self.unknown not in ("error", "zero"):
            raise ValueError(f'unknown is {shown(self.unknown)}; it must be "error" or "zero".')
        if self.categories is None:
            self.categories_ = [np.unique(whole(column)) for column in X.T]
        else:
            if not is_list(self.categories):
                raise ValueError(f"categories is {shown(self.categories)}; it must be a list for each column.")
            if len(self.categories) != X.shape[1]:
                raise ValueError(
                    f"categories has {len(self.categories)} lists, but there are {X.shape[1]} columns. "
                    "Give one list of values for each."
                )
            self.categories_ = [category_array(values) for values in self.categories]
            if any(len(values) == 0 or not (values[1:] > values[:-1]).all() for values in self.categories_):
                raise ValueError("categories must hold the distinct values of each column in ascending order.")
        return self

    def transform(self, X: Any) -> Any:
        """CSR rows, one column for each value of each column of X."""
        values = self._check_input(as_columns(X), dtype=None)
        columns, known = np.empty(values.shape, np.int64), np.empty(values.shape, bool)
        first = 0
        for k, categories in enumerate(self.categories_):
            wanted, same = exact_cast(values[:, k], categories.dtype)
            inside = np.minimum(np.searchsorted(categories, wanted), len(categories) - 1)
            known[:, k] = same & (categories[inside] == wanted)
            columns[:, k] = first + inside
            first += len(categories)
        if self.unknown == "error" and not known.all():
            row, k = np.argwhere(~known)[0]
            raise ValueError(
                f"Row {row} has {as_number(values[row, k])} in column {k}, which is not among the "
                f"{len(self.categories_[k])} values the features were fitted on. Remove it, or use "
                'unknown="zero" to give it the value 0.'
            )
        starts = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
        rows = sparse.csr_array((np.ones(int(starts[-1])), columns[known], starts), shape=(len(values), first))
        return self._output(rows, X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name per feature: the column of X and its value."""
        self._check_fitted()
        names = [f"x{k}_{as_number(value)}" for k, values in enumerate(self.categories_) for value in values]
        return np.array(names, dtype=object)

    def describe(self) -> str:
        """The fitted features in words."""
        sizes = [len(values) for values in self.categories_]
        of = f"{sizes[0]} states" if len(sizes) == 1 else f"{sum(sizes)} values in {len(sizes)} columns"
        return f"one-hot features of {of} (the constant is their sum)"


def whole(column: Array) -> Array:
    """Integers as they are, whole floats up to 2^53 as integers, other floats in float64."""
    if column.dtype.kind in "iu":
        return column
    integers, same = exact_cast(column, np.int64)
    return integers if same.all() else column.astype(np.float64)


def category_array(values: Any) -> Array:
    """A list of categories as integers or floats; raises ValueError for anything else."""
    with translated("categories must hold numbers", "Give one list of numbers for each column."):
        array = np.asarray(values)
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            raise ValueError(f"one of them has dtype {array.dtype} and shape {array.shape}")
        if array.dtype.kind == "f" and any(isinstance(value, int) and abs(value) > 2**53 for value in values):
            raise ValueError("the integers of one column do not fit one integer type")
    return whole(array)


def as_number(value: Any) -> str:
    """A category as text: every digit of an integer, six digits of a float."""
    return str(value) if isinstance(value, np.integer) else f"{value:g}"


def as_columns(X: Any) -> Any:
    """State numbers (n,) as one column (n, 1); anything else unchanged."""
    if isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype.kind in "iub":
        return X[:, None]
    return X
