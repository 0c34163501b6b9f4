"""Columns of a log as arrays, or a sentence that says what is wrong with them and where."""

from __future__ import annotations

from typing import Any

import numpy as np

from valuefit.typing import Array


def numbers(name: str, values: Any, *, length: int | None = None, dtype: Any = np.float64) -> Array:
    """A one-dimensional array of finite numbers, or a sentence that says why not."""
    array = np.asarray(values)
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {array.dtype}, which is not numeric. Convert it to numbers first.")
    if array.ndim == 0 and length is not None:
        array = np.full(length, array)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, one number a step; it has shape {array.shape}.")
    if length is not None and len(array) != length:
        raise ValueError(f"{name} has {len(array)} entries but the log has {length} steps. They must be equal.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        where = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(f"{name} is {array[where]} at step {where}. Remove that step or give it a finite value.")
    if np.dtype(dtype).kind == "i" and array.dtype.kind == "f" and (array % 1 != 0).any():
        where = int(np.flatnonzero(array % 1 != 0)[0])
        raise ValueError(f"{name} is {array[where]} at step {where}; it must be a whole number.")
    return np.array(array, dtype=dtype)


def flags(name: str, values: Any, length: int) -> Array:
    """One truth value a step."""
    if values is None:
        return np.zeros(length, bool)
    array = numbers(name, values, length=length)
    if not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} must hold only 0 and 1 (or False and True).")
    return array.astype(bool)


def run_starts(episode: Array) -> Array:
    """True where a step opens an episode; an id that comes back later is refused, for its steps belong together."""
    begins = np.ones(len(episode), bool)
    begins[1:] = episode[1:] != episode[:-1]
    opened = episode[begins]
    if len(np.unique(opened)) != len(opened):
        ids, counts = np.unique(opened, return_counts=True)
        raise ValueError(
            f"Episode {ids[counts > 1][0]} appears in separate stretches of the log. "
            "Sort the steps by episode, in the order they were taken."
        )
    return begins


def check_observations(name: str, values: Any, needed: Array | None = None) -> Array:
    """Observations as a numeric array, one row a step, finite in the steps that are needed (all if None)."""
    array = np.asarray(values)
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} has dtype {array.dtype}, which is not numeric. Give numbers, or state indices as integers."
        )
    if array.ndim == 0:
        raise ValueError(f"{name} must have one row a step; it is a single number.")
    if array.dtype.kind == "f":
        for start in range(0, len(array), 65536):
            block = np.isfinite(array[start : start + 65536])
            finite = block.all(axis=tuple(range(1, block.ndim)))
            if needed is not None:
                finite = finite | ~needed[start : start + 65536]
            if not finite.all():
                where = start + int(np.flatnonzero(~finite)[0])
                raise ValueError(f"{name} is NaN or infinite at row {where}. Remove that step or fill the gap.")
    return array


def are_state_numbers(observations: Array) -> bool:
    """Whether observations are single integers, which name states."""
    return observations.ndim == 1 and observations.dtype.kind in "iu"
