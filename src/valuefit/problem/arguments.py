"""Checks of the arguments of a problem; errors name the argument and the step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sparse

from valuefit.data.validation import array_of, number, numbers, run_starts
from valuefit.memory import require_memory
from valuefit.messages import shown
from valuefit.rows.storage import MAX_MAGNITUDE, NO_COLUMN, NO_SUCH_COLUMN, NOT_AN_INDEX, Rows, require_range
from valuefit.typing import Array

MAX_RIDGE = 1e100  # a ridge other than 0 lies between the inverse of this and this
MAX_RATIO = 1e50  # the largest ratio, also as a product along a trace, must lie between the inverse of this and this


class StepArrays(NamedTuple):
    """Columns of the steps of a problem; next is -1 where an episode terminated, begins True at its first step."""

    now: Array
    next: Array
    reward: Array
    discount: Array
    ratio: Array
    begins: Array


def step_arrays(
    now: Any, next: Any, reward: Any, discount: Any, ratio: Any, episode: Any, *, rows: int, part: bool = False
) -> StepArrays:  # fmt: skip
    """The columns that a user gave, as arrays of one length, with indices of `rows` rows; part: of a longer log."""
    now = numbers("now", now, dtype=np.int64)
    n = len(now)
    next = numbers("next", next, length=n, dtype=np.int64)
    check_indices("now", now, 0, rows)
    check_indices("next", next, -1, rows)
    discount = np.where(next < 0, 0.0, discounts(discount, n))
    endless = n > 0 and not part and bool((discount == 1).all())
    refuse_infinite_sums(endless, "mark the terminated steps with next = -1")
    episode = np.zeros(n, np.int64) if episode is None else numbers("episode", episode, length=n, dtype=np.int64)
    return StepArrays(
        now,
        next,
        numbers("reward", reward, length=n),
        discount,
        np.ones(n) if ratio is None else numbers("ratio", ratio, length=n),
        run_starts(episode) if n else np.zeros(0, bool),
    )


def check_steps(steps: StepArrays) -> None:
    """Refuse an empty log, negative ratios, and rewards whose products leave the range of float64."""
    if len(steps.now) == 0:
        raise ValueError("The log is empty: give at least one step.")
    check_ratios(steps.ratio)
    require_range("Rewards", float(np.abs(steps.reward).max()))


def settings_of(trace: Any, ridge: Any, metric: Any) -> tuple[float, float, bool]:
    """The trace, the ridge, and whether the metric is the identity."""
    trace, ridge = fraction("trace", trace), ridge_of(ridge)
    if not isinstance(metric, str) or metric not in ("C", "identity"):
        raise ValueError(f'metric is {shown(metric)}; it must be "C" (MSPBE) or "identity" (NEU).')
    return trace, ridge, metric == "identity"


def is_device_array(values: Any) -> bool:
    """Whether this is a torch tensor or a CuPy array, without importing either."""
    return type(values).__module__.split(".")[0] in ("torch", "cupy")


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


def columns_without_data(phi: Rows, now: Array) -> Array:
    """Flags of the features that are zero in every row of `now`."""
    is_now_row = np.zeros(phi.shape[0], bool)
    is_now_row[now] = True
    return ~phi.used_columns(is_now_row)


def tile_rows(index: Any, columns: int) -> Any:
    """Tile-coded rows as a CSR matrix, from the columns (m, active) of the ones in each row; -1 stands for none."""
    index = np.asarray(index)
    if index.ndim != 2 or index.dtype.kind not in "iu":
        raise ValueError(NOT_AN_INDEX.format(kind=index.dtype, shape=index.shape))
    outside = (index < NO_COLUMN) | (index >= columns)
    if outside.any():
        row, place = np.argwhere(outside)[0].tolist()
        raise ValueError(NO_SUCH_COLUMN.format(column=index[row, place], row=row, columns=columns, last=columns - 1))
    row, place = np.nonzero(index != NO_COLUMN)
    return sparse.csr_array((np.ones(len(row)), (row, index[row, place])), shape=(len(index), columns))


def check_dual_shape(psi: tuple[int, int], phi: tuple[int, int]) -> None:
    """Refuse dual rows of another number than the rows of the features, or with fewer columns."""
    if psi[0] != phi[0]:
        raise ValueError(
            f"The dual features have {psi[0]} rows but the features have {phi[0]}. Both need one row per observation."
        )
    if psi[1] < phi[1]:
        raise ValueError(f"There are {psi[1]} dual features for {phi[1]} features; at least as many are needed.")


def dual_rows_of(psi: Rows, phi: Rows) -> Rows:
    """The dual rows, dense or sparse as the rows of the features are: the products of a problem take one kind."""
    check_dual_shape(psi.shape, phi.shape)
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
