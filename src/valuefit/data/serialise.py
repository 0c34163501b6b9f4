"""Dataclasses as plain data for JSON, with arrays by name, and back: annotations say what a file may hold.

Nothing in a file is trusted: each entry must have the type of its field, so a damaged file ends in a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from valuefit.data.archive import is_number
from valuefit.messages import shown
from valuefit.typing import Array

ARRAY = "array"  # the entry of a field whose array is stored under the name of the field
SCALARS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}


def as_plain(value: Any, arrays: dict[str, Array] | None = None, name: str = "") -> Any:
    """Return numbers, text, lists and dicts for JSON; None for numbers that are not finite.

    arrays: receives the arrays, named by the fields that lead to them, as in "log.reward"; None makes lists of them.
    """
    if isinstance(value, np.ndarray) and arrays is not None:
        arrays[name] = value
        return ARRAY
    entries = {one.name: getattr(value, one.name) for one in fields(value)} if is_dataclass(value) else value
    if isinstance(entries, dict):
        return {str(key): as_plain(entry, arrays, _inside(name, key)) for key, entry in entries.items()}
    if isinstance(value, list | tuple):
        return [as_plain(entry, arrays, _inside(name, place)) for place, entry in enumerate(value)]
    if isinstance(value, np.generic | np.ndarray):
        return as_plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def from_plain(kind: Any, value: Any, arrays: Mapping[str, Array] | None = None, name: str = "") -> Any:
    """Return the value of this type that `as_plain` made plain.

    kind: a dataclass, a named tuple, or an annotation of their fields. Raises ValueError where an entry is missing,
    unknown, or of another type; what else must hold is for the caller to check.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is np.ndarray:
        return _array(value, arrays or {}, name)
    if origin in (Union, UnionType):
        return _one_of(arguments, value, arrays, name)
    if origin is Literal:
        return _require(type(value) is str and value in arguments, value, name, _words(kind))
    if is_dataclass(kind):
        return _of_fields(kind, value, arrays, name)
    if origin is dict:
        _require(isinstance(value, dict), value, name, "a set of named entries")
        return {key: from_plain(arguments[1], entry, arrays, _inside(name, key)) for key, entry in value.items()}
    if isinstance(kind, type) and issubclass(kind, tuple):  # a named tuple
        return kind(*_listed(tuple(get_type_hints(kind).values()), value, arrays, name))
    if origin in (list, tuple):
        several = origin is list or arguments[1:] == (...,)
        _require(isinstance(value, list), value, name, "a list")
        return origin(_listed((arguments[0],) * len(value) if several else arguments, value, arrays, name))
    if kind is float:
        return float(_require(is_number(value), value, name, _words(kind)))
    return _require(type(value) is kind, value, name, _words(kind))


def _of_fields(kind: Any, value: Any, arrays: Mapping[str, Array] | None, name: str) -> Any:
    types = _field_types(kind)
    _require(isinstance(value, dict), value, name, f"the fields of {kind.__name__}")
    for key in [*types, *value]:
        if key not in value or key not in types:
            raise ValueError(f"{shown(_inside(name, key))} is {'unknown' if key in value else 'missing'}")
    return kind(**{key: from_plain(types[key], entry, arrays, _inside(name, key)) for key, entry in value.items()})


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def _listed(kinds: tuple[Any, ...], value: Any, arrays: Mapping[str, Array] | None, name: str) -> list[Any]:
    _require(isinstance(value, list) and len(value) == len(kinds), value, name, f"a list of {len(kinds)} entries")
    places = enumerate(zip(kinds, value, strict=True))
    return [from_plain(kind, entry, arrays, _inside(name, place)) for place, (kind, entry) in places]


def _one_of(kinds: tuple[Any, ...], value: Any, arrays: Mapping[str, Array] | None, name: str) -> Any:
    """The value as the first of these types that it has; None if that is one of them and the entry is null."""
    if value is None and NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not NoneType]
    if len(others) == 1:
        return from_plain(others[0], value, arrays, name)
    for kind in others:
        with suppress(ValueError):
            return from_plain(kind, value, arrays, name)
    return _require(False, value, name, " or ".join(map(_words, others)))


def _words(kind: Any) -> str:
    """What an entry of this scalar type is, or must be one of."""
    return SCALARS.get(kind) or " or ".join(map(repr, get_args(kind)))


def _array(value: Any, arrays: Mapping[str, Array], name: str) -> Array:
    _require(value == ARRAY, value, name, "an array")
    if name not in arrays:
        raise ValueError(f"the array {shown(name)} is missing")
    return arrays[name]


def _require(valid: bool, value: Any, name: str, what: str) -> Any:
    if not valid:
        raise ValueError(f"{name or 'it'} is {shown(value)}, not {what}")
    return value


def _inside(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)
