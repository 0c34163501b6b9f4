"""Checks of the array of observations that a built-in transformer is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sparse

from valuefit.typing import Array


def finite_matrix(X: Any, user: str) -> Array:
    """X as a float64 array (n, p) of finite numbers, n and p at least 1; the messages name the class `user`.

    Messages begin as those of scikit-learn, whose estimator checks search for them.
    """
    if sparse.issparse(X):
        raise TypeError(
            "Sparse data was passed for X, but dense data is required. Use '.toarray()' to convert to a dense numpy "
            "array."
        )
    array = np.asarray(X)
    if np.iscomplexobj(array):
        raise ValueError(f"Complex data not supported: X has dtype {array.dtype}. Give real numbers.")
    array = np.asarray(array, np.float64)
    if array.ndim < 2:
        raise ValueError(
            f"Expected 2D array, got {'1D' if array.ndim else 'scalar'} array instead: X has shape {array.shape}. "
            "Reshape your data either using array.reshape(-1, 1) if your data has a single feature or "
            "array.reshape(1, -1) if it contains a single sample."
        )
    if array.ndim > 2:
        raise ValueError(f"Found array with dim {array.ndim}, while dim <= 2 is required by {user}.")
    for unit, count in zip(("sample", "feature"), array.shape, strict=True):
        if count == 0:
            raise ValueError(
                f"Found array with 0 {unit}(s) (shape={array.shape}) while a minimum of 1 is required by {user}."
            )
    if not (np.isfinite(array.min()) and np.isfinite(array.max())):
        row, column = np.argwhere(~np.isfinite(array))[0]
        found = "NaN" if np.isnan(array[row, column]) else "infinity or a value too large for dtype('float64')"
        raise ValueError(
            f"Input X contains {found}, first in row {row}, column {column}. {user} needs finite numbers: remove such "
            "rows or fill them in."
        )
    return array
