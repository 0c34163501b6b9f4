"""Checks of the arguments of a problem; errors name the argument and the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sparse

from valuefit.data.validation import array_of, number, numbers
from valuefit.memory import require_memory
from valuefit.rows.storage import MAX_MAGNITUDE, Rows
from valuefit.typing import Array

MAX_RIDGE = 1e100  # a ridge other than 0 lies between the inverse of this and this
MAX_RATIO = 1e50  # the largest ratio, also as a product along a trace, must lie between the inverse of this and this


def fraction(name: str, value: Any) -> float:
    """A number between 0 and 1."""
    return number(name, value, "it must lie between 0 and 1", lambda x: 0 <= x <= 1)


def ridge_of(value: Any) -> float:
    """0, or a number whose square is within the range of float64."""
    requirement = f"it must be a finite number, 0 or more, and between {1 / MAX_RIDGE:.0e} and {MAX_RIDGE:.0e} unless 0"
    return number("ridge", value, requirement, lambda x: x == 0 or 1 / MAX_RIDGE <= x <= MAX_RIDGE)


def discounts(values: Any, n: int) -> Array:
    """The discount of each step, from one number or one per step."""
    if not isinstance(values, list | tuple) and (isinstance(values, str) or np.ndim(values) == 0):
        return np.full(n, fraction("discount", values))
    array = numbers("discount", values, length=n)
    outside = (array < 0) | (array > 1)
    if outside.any():
        step = int(np.flatnonzero(outside)[0])
        raise ValueError(f"discount is {array[step]} at step {step}; it must lie between 0 and 1.")
    return array


def refuse_infinite_sums(endless: bool, remedy: str) -> None:
    """Refuse discount 1 where no episode terminates."""
    if endless:
        raise ValueError(
            "discount is 1 but no episode of the log terminates, so values are infinite sums. "
            f"Use a discount below 1, or {remedy}."
        )


def rows_of(matrix: Any, name: str) -> Rows:
    """Feature rows that a user or a transformer gave."""
    return Rows(matrix if sparse.issparse(matrix) else array_of(name, matrix, place="in row"), name)


def dual_rows_of(psi: Rows, phi: Rows) -> Rows:
    """The dual rows, dense or sparse as the rows of the features are: the products of a problem take one kind."""
    if psi.shape[0] != phi.shape[0]:
        raise ValueError(
            f"The dual features have {psi.shape[0]} rows but the features have {phi.shape[0]}. "
            "Both need one row per observation."
        )
    if psi.shape[1] < phi.shape[1]:
        raise ValueError(
            f"There are {psi.shape[1]} dual features for {phi.shape[1]} features; at least as many are needed."
        )
    if psi.sparse == phi.sparse:
        return psi
    if phi.sparse:
        return Rows(sparse.csr_array(psi.matrix), "dual_rows")
    require_memory(psi.shape[0] * psi.shape[1], "The dual features as dense rows", "Give sparse features.")
    return Rows(psi.matrix.toarray(), "dual_rows")


def trace_rows(matrix: Any) -> Rows:
    """Rows of u, which may exceed the range of features by that of ratios."""
    return Rows(matrix, "trace rows", limit=MAX_RATIO * MAX_MAGNITUDE)


def check_indices(name: str, index: Array, lowest: int, rows: int) -> None:
    """Refuse row indices below `lowest` or beyond the last row."""
    outside = (index < lowest) | (index >= rows)
    if outside.any():
        where = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"{name}[{where}] is {index[where]}, but there are {rows} rows: indices run from {lowest} to {rows - 1}."
        )


def check_ratios(ratio: Array) -> None:
    """Refuse negative ratios."""
    if (ratio < 0).any():
        where = int(np.flatnonzero(ratio < 0)[0])
        raise ValueError(f"ratio is {ratio[where]} at step {where}. Importance ratios cannot be negative.")


def check_ratio_products(ratio: Array, factor: Array) -> None:
    """Refuse ratios whose products with features would leave the range of float64.

    factor: what bounds |u_t| / max |psi| at each step, the sum of products of ratios along the trace.
    """
    inside = factor <= MAX_RATIO  # False for NaN too
    if not inside.all():
        step = int(np.argmin(inside))
        what = f"The products of ratios along the trace exceed {MAX_RATIO:.0e}"
        if ratio[step] > MAX_RATIO:
            what = f"ratio is {ratio[step]:.2g}"
        raise ValueError(
            f"{what} at step {step}: products leave the range of float64. Check the probabilities, or lower the trace."
        )
    if 0 < factor.max() < 1 / MAX_RATIO:
        raise ValueError(
            f"The largest ratio is {ratio.max():.2g}, so products leave the range of float64. Check the probabilities."
        )
