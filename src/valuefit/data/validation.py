"""Checks that turn the columns of a log into arrays; errors name the column and the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from valuefit.typing import Array

ROWS_PER_CHECK = 65_536  # rows compared at a time, which bounds the size of temporary arrays


def numbers(name: str, values: Any, *, length: int | None = None, dtype: Any = np.float64) -> Array:
    """A one-dimensional array of finite numbers, copied and converted to `dtype` (None: as it is).

    A single number is repeated `length` times. `length` is the required number of entries (None: any).
    """
    array = np.asarray(values)
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {array.dtype}, which is not numeric. Convert it to numbers first.")
    if array.ndim == 0 and length is not None:
        array = np.full(length, array)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, one number per step; it has shape {array.shape}.")
    if length is not None and len(array) != length:
        raise ValueError(f"{name} has {len(array)} entries but the log has {length} steps. They must be equal.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        step = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(f"{name} is {array[step]} at step {step}. Remove that step or give it a finite value.")
    if np.dtype(dtype).kind == "i" and array.dtype.kind == "f" and (array % 1 != 0).any():
        step = int(np.flatnonzero(array % 1 != 0)[0])
        raise ValueError(f"{name} is {array[step]} at step {step}; it must be a whole number.")
    return np.array(array, dtype=dtype)


def flags(name: str, values: Any, length: int) -> Array:
    """One boolean per step, all False if `values` is None."""
    if values is None:
        return np.zeros(length, bool)
    array = numbers(name, values, length=length)
    if not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} must hold only 0 and 1 (or False and True).")
    return array.astype(bool)


def run_starts(episode: Array) -> Array:
    """True at the first step of each episode; raises ValueError if the steps of an episode are not contiguous."""
    begins = np.ones(len(episode), bool)
    begins[1:] = episode[1:] != episode[:-1]
    ids = episode[begins]
    if len(np.unique(ids)) != len(ids):
        ids, counts = np.unique(ids, return_counts=True)
        raise ValueError(
            f"The steps of episode {ids[counts > 1][0]} are not contiguous in the log. "
            "Sort the steps by episode, in the order they were taken."
        )
    return begins


def check_observations(name: str, values: Any, needed: Array | None = None) -> Array:
    """Observations as a numeric array (n, ...), finite in the rows where `needed` is True (all rows if None)."""
    array = np.asarray(values)
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} has dtype {array.dtype}, which is not numeric. Give numbers, or state indices as integers."
        )
    if array.ndim == 0:
        raise ValueError(f"{name} must have one row per step; it is a single number.")
    if array.dtype.kind == "f":
        for start in range(0, len(array), ROWS_PER_CHECK):
            block = np.isfinite(array[start : start + ROWS_PER_CHECK])
            finite = block.all(axis=tuple(range(1, block.ndim)))
            if needed is not None:
                finite = finite | ~needed[start : start + ROWS_PER_CHECK]
            if not finite.all():
                row = start + int(np.flatnonzero(~finite)[0])
                raise ValueError(f"{name} is NaN or infinite at row {row}. Remove that step or fill the gap.")
    return array


def are_state_numbers(observations: Array) -> bool:
    """Whether observations are integers (n,), which label the states of a finite state space."""
    return observations.ndim == 1 and observations.dtype.kind in "iu"
