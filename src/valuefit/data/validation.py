"""Checks that turn the columns of a log into arrays; errors name the column and the step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from valuefit.messages import RowError, shown
from valuefit.threads import one_blas_thread
from valuefit.typing import Array

MAX_EXACT_FLOAT = 2.0**53  # whole numbers beyond it are not all floats, so two of them may have become one
MAX_INT32 = 2**31 - 1  # of counts, and of indices in CSR rows and kernels
PROBABILITY_TOL = 1e-6  # probabilities are often rounded to float32
ROWS_PER_CHECK = 65_536  # rows compared at a time, which bounds the size of temporary arrays


def number(name: str, value: Any, requirement: str, accepts: Callable[[float], bool]) -> float:
    """A scalar argument as a float; booleans, text, arrays and what `accepts` rejects are refused.

    `requirement` ends the message: "ridge is -1; it must be a finite number, 0 or more."
    """
    value = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if type(value) is not bool and isinstance(value, Real):
        try:
            converted = float(value)
        except OverflowError:  # an integer beyond the range of float
            converted = math.nan
        if accepts(converted):
            return converted
    raise ValueError(f"{name} is {shown(value)}; {requirement}.")


def whole_number(name: str, value: Any, requirement: str = "", *, low: int) -> int:
    """A scalar argument as an int, at least `low`; 3.0 is accepted, 2**53 and above only as integers below 2**63."""
    requirement = requirement or f"it must be a whole number, {low} or more"
    number(name, value, requirement, lambda x: x >= low and x.is_integer() and x < 2.0**63)
    return int(value)


def byte_count(name: str, value: Any) -> int:
    """A number of bytes as an int: a whole number, or text such as "500MB" or "1.5GiB"."""
    requirement = 'it must be a number of bytes, 1 or more, or text such as "500MB" or "2GiB"'
    if isinstance(value, str) and (text := re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?) ?([kMGT]?)(i?)B?", value, re.I)):
        size, unit, binary = text.groups()
        value = int(float(size) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " "))
    return whole_number(name, value, requirement, low=1)


def boolean(name: str, value: Any) -> bool:
    """An argument that is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {shown(value)}; it must be True or False.")
    return bool(value)


def array_of(name: str, values: Any, *, needed: Array | None = None, place: str = "at step") -> Array:
    """`values` as a plain array; raises ValueError if one is missing: masked, None, pandas.NA or NaN among objects.

    needed: one flag for each row, False where a missing value does not matter and becomes zero (None: all matter).
    place: how the message calls a row.
    """
    array, missing = with_missing(name, values)
    if missing is None or not missing.any():
        return array
    rows = np.atleast_1d(missing.any(axis=tuple(range(1, missing.ndim))))
    wrong = rows if needed is None or len(needed) != len(rows) else rows & needed
    if (where := first_row(wrong)) is not None:
        preposition, kind = place.split()
        raise RowError(f"{name} is missing {preposition}", where, f"{among(wrong)}. Give every {kind} a value.", kind)
    return np.where(missing, 0, array).astype(array.dtype)


def with_missing(name: str, values: Any) -> tuple[Array, Array | None]:
    """`values` as a plain array, and where they are masked, None, pandas.NA or NaN among objects (None: nowhere)."""
    if isinstance(values, list | tuple) and any(isinstance(one, np.ma.MaskedArray) for one in values):
        constant = any(one is np.ma.masked for one in values)  # which np.ma.array would turn into NaN, with a warning
        values = [None if one is np.ma.masked else one for one in values] if constant else np.ma.array(values)
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise ValueError(
            f"{name} cannot be read as an array ({shown(str(error))}). Give numbers, with rows of equal length."
        ) from None
    if isinstance(values, np.ma.MaskedArray):
        return array, np.ma.getmaskarray(values)
    if not array.dtype.hasobject or array.dtype.names is not None:
        return array, None
    return array, np.fromiter((_is_missing(one) for one in array.flat), bool, array.size).reshape(array.shape)


def among(wrong: Array) -> str:
    """How many rows are wrong, if several are."""
    count = int(np.count_nonzero(wrong))
    return f", and in {count:,} of {len(wrong):,} in all" if count > 1 else ""


def first_row(flags: Array) -> int | None:
    """The number of the first row that is True; None where there is none."""
    return int(np.argmax(flags)) if flags.any() else None


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value, and neither have arrays
        return type(value).__name__ == "NAType"


def numbers(name: str, values: Any, *, length: int | None = None, dtype: Any = np.float64) -> Array:
    """A one-dimensional array of finite numbers, copied and converted to `dtype` (None: as it is).

    A single number is repeated `length` times. `length` is the required number of entries (None: any).
    """
    array = array_of(name, values)
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {array.dtype}, which is not numeric. Convert it to numbers first.")
    if array.ndim == 0 and length is not None:
        array = np.full(length, array)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, one number per step; it has shape {array.shape}.")
    if length is not None and len(array) != length:
        raise ValueError(f"{name} has {len(array)} entries but the log has {length} steps. They must be equal.")
    if np.dtype(dtype).kind == "i":
        return _integers(name, array, np.dtype(dtype))
    with np.errstate(over="ignore"):  # long doubles can exceed float64
        converted = np.array(array, dtype=dtype)
    if converted.dtype.kind == "f" and (step := first_row(~np.isfinite(converted))) is not None:
        wrong = among(~np.isfinite(converted))
        raise RowError(f"{name} is {array[step]} at", step, f"{wrong}. Give every step a finite value.", "step")
    return converted


def _integers(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Whole numbers as integers, none of them changed."""
    limits = np.iinfo(dtype)
    if array.dtype.kind == "f":
        array = array.astype(np.float64) if array.dtype == np.float16 else array
        whole = np.isfinite(array) & (np.trunc(array) == array)
        fits = np.abs(array) <= MAX_EXACT_FLOAT
        requirement = "it must be a whole number, and up to 2^53 if it is a float"
    else:
        whole, fits = np.ones(len(array), bool), (array >= limits.min) & (array <= limits.max)
        requirement = f"whole numbers run from {limits.min} to {limits.max}"
    if (step := first_row(~(whole & fits))) is not None:
        raise RowError(f"{name} is {array[step]} at", step, f"; {requirement}.", "step")
    return np.array(array, dtype=dtype)


def flags(name: str, values: Any, length: int) -> Array:
    """One boolean per step, all False if `values` is None."""
    if values is None:
        return np.zeros(length, bool)
    array = numbers(name, values, length=length)
    if not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} must hold only 0 and 1 (or False and True).")
    return array.astype(bool)


def episode_starts(episode: Array) -> Array:
    """True at the first step of each run of steps with one episode number."""
    begins = np.ones(len(episode), bool)
    begins[1:] = episode[1:] != episode[:-1]
    return begins


def last_steps(begins: Array) -> Array:
    """True at the last step of each run of steps, given where runs begin."""
    return np.roll(begins, -1)  # the last step of all comes before the first, which begins a run


def step_numbers(begins: Array) -> Array:
    """The number of each step within its run, from 0, given where runs begin."""
    starts = np.flatnonzero(begins)
    return np.arange(len(begins)) - np.repeat(starts, np.diff(starts, append=len(begins)))


def run_starts(episode: Array) -> Array:
    """True at the first step of each episode; raises ValueError if the steps of an episode are not contiguous."""
    begins = episode_starts(episode)
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
    array = array_of(name, values, needed=needed, place="in row")
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} has dtype {array.dtype}, which is not numeric. Give numbers, or state indices as integers."
        )
    if array.ndim == 0:
        raise ValueError(f"{name} must have one row per step; it is a single number.")
    if array.dtype.kind == "f":
        for start in range(0, len(array), ROWS_PER_CHECK):
            block = array[start : start + ROWS_PER_CHECK]
            if all_finite(block):  # much faster than row by row
                continue
            finite = np.asarray(np.isfinite(block).all(axis=tuple(range(1, block.ndim))))
            if needed is not None:
                finite = finite | ~needed[start : start + ROWS_PER_CHECK]
            if (row := first_row(~finite)) is not None:
                raise RowError(f"{name} is NaN or infinite at", start + row, ". Give finite numbers.")
    return array


def all_finite(values: Array) -> bool:
    """Whether all of these numbers are finite: where their dot product with themselves is, which BLAS computes faster
    than NumPy compares, they are; it may overflow."""
    if values.flags.c_contiguous and values.dtype in (np.float32, np.float64):
        flat = values.reshape(-1)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"), one_blas_thread():
            if np.isfinite(flat @ flat):
                return True
    return bool(np.isfinite(values).all())


def are_state_numbers(observations: Array) -> bool:
    """Whether observations are integers (n,), which label the states of a finite state space."""
    return observations.ndim == 1 and observations.dtype.kind in "iu"


def one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise ValueError if an argument is not one of these texts."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} is {shown(value)}; it must be one of {', '.join(map(repr, allowed))}.")
