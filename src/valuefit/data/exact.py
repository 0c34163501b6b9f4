"""Conversions between numeric types that change no value, or refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from valuefit.messages import RowError
from valuefit.typing import Array


def exact_cast(values: Array, dtype: Any) -> tuple[Array, Array]:
    """The values in another numeric dtype, and flags of the same shape, True where the value is the same.

    Between integers and floats only whole numbers count that the float type represents together with their neighbours
    (float64: up to 2^53): a larger float may stand for several integers.
    """
    values, dtype = np.asarray(values), np.dtype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(dtype)
    if values.dtype.kind == "b" or values.dtype == dtype:
        same = np.ones(values.shape, bool)
    elif dtype.kind == "b":
        same = (values == 0) | (values == 1)
    elif values.dtype.kind == "f" and dtype.kind == "f":
        same = (converted == values) | np.isnan(values)
    else:
        (low, high), (least, most) = _whole_range(values.dtype), _whole_range(dtype)
        same = (values >= max(low, least)) & (values <= min(high, most))
        if values.dtype.kind == "f":
            same &= np.trunc(values) == values
    return converted, same


def _whole_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The range in which a type represents every whole number."""
    if dtype.kind == "f":
        largest = int(2 ** (np.finfo(dtype).nmant + 1))
        return -largest, largest
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def in_native_order(values: Array) -> Array:
    """Return the numbers in the byte order of this machine, which compiled code needs; copied only if it is another."""
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def exact(values: Array, dtype: Any, name: str) -> Array:
    """The values in another numeric dtype; raises ValueError, with `name`, at the first that would change.

    Masked entries may have any value and stay masked.
    """
    if values.dtype == dtype:
        return values
    mask = np.ma.getmask(values) if isinstance(values, np.ma.MaskedArray) else False
    converted, same = exact_cast(np.ma.getdata(values), dtype)
    if not (same | mask).all():
        place = tuple(np.argwhere(~(same | mask))[0])
        raise RowError(
            f"{name} is {values[place]} at", int(place[0]), f", which {np.dtype(dtype)} does not represent exactly. "
            "Round it if it is a quantity; write ids with one integer type or as text.",
        )  # fmt: skip
    return converted if mask is False else np.ma.array(converted, mask=mask)


def common_dtype(parts: Sequence[Array]) -> np.dtype[Any]:
    """The dtype to which NumPy promotes the parts, but an integer type for integers, also for int64 with uint64."""
    dtype = np.result_type(*(part.dtype for part in parts))
    if dtype.kind == "f" and all(part.dtype.kind in "biu" for part in parts):
        large = any(part.size and int(part.max()) > np.iinfo(np.int64).max for part in parts)
        return np.dtype(np.uint64 if large else np.int64)
    return dtype


def concatenate(parts: Sequence[Array], name: str) -> Array:
    """The parts of a column in their common dtype; raises ValueError if shapes differ or a value would change."""
    first = parts[0]
    for part in parts:
        if part.shape[1:] != first.shape[1:] or (part.dtype.kind in "biuf") != (first.dtype.kind in "biuf"):
            raise ValueError(
                f"{name} has entries of dtype {first.dtype} and shape {first.shape[1:]}, and others of dtype "
                f"{part.dtype} and shape {part.shape[1:]}. Write them alike."
            )
    dtype = common_dtype(parts)
    parts = [exact(part, dtype, name) if dtype.kind in "biuf" else part for part in parts]
    masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
    return np.ma.concatenate(parts) if masked else np.concatenate(parts)
