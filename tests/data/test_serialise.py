"""Dataclasses as plain data and back: equal where nothing was changed, and a sentence for each kind of damage."""

import json
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest

from valuefit.data.serialise import as_plain, from_plain
from valuefit.typing import Array


class Pair(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True)
class Inner:
    count: int
    rows: Array | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner
    kind: Literal["one", "two"]
    sure: bool | None
    range: Pair
    shape: tuple[int, int] | None
    entries: tuple[Inner, ...]
    names: list[str]
    tol: float | Literal["statistical"]
    counts: dict[str, int]
    settings: dict[str, Any]


VALUE = Outer(
    Inner(3, np.arange(3.0)), "two", None, Pair(0.0, 1), (2, 3), (Inner(1), Inner(2, np.eye(2))), ["a"], "statistical",
    {"x": 1}, {"step": [1, None]},
)  # fmt: skip


def stored():
    arrays: dict[str, Array] = {}
    return json.loads(json.dumps(as_plain(VALUE, arrays))), arrays


def test_what_was_made_plain_comes_back():
    facts, arrays = stored()
    assert sorted(arrays) == ["entries.1.rows", "inner.rows"]
    back = from_plain(Outer, facts, arrays)
    np.testing.assert_array_equal(back.inner.rows, VALUE.inner.rows)
    np.testing.assert_array_equal(back.entries[1].rows, np.eye(2))
    again, others = {}, {}
    assert as_plain(back, again) == as_plain(VALUE, others)
    assert (back.tol, back.range, type(back.range.high), back.shape) == ("statistical", Pair(0.0, 1.0), float, (2, 3))


def test_plain_data_of_numpy_and_of_numbers_that_are_not_finite():
    plain = as_plain({"a": np.float64("inf"), 3: (np.int64(2), np.arange(2), float("nan")), "b": VALUE.range})
    assert plain == {"a": None, "3": [2, [0, 1], None], "b": [0.0, 1]}
    assert from_plain(float | None, plain["a"]) is None


@pytest.mark.parametrize(
    ("name", "entry", "message"),
    [
        ("inner", 3, "inner is 3, not the fields of Inner"),
        ("inner", {"rows": None}, "'inner.count' is missing"),
        ("inner", {"count": 1, "rows": None, "more": 2}, "'inner.more' is unknown"),
        ("inner", {"count": True, "rows": None}, "inner.count is True, not a whole number"),
        ("inner", {"count": 1.0, "rows": None}, "inner.count is 1.0, not a whole number"),
        ("inner", {"count": 1, "rows": [1.0]}, r"inner.rows is \[1.0\], not an array"),
        ("kind", "three", "kind is 'three', not 'one' or 'two'"),
        ("kind", ["one"], r"kind is \['one'\], not 'one' or 'two'"),
        ("sure", 1, "sure is 1, not true or false"),
        ("range", [1.0], r"range is \[1.0\], not a list of 2 entries"),
        ("range", [1.0, None], "range.1 is None, not a finite number"),
        ("range", [1.0, 10**400], "range.1 is a whole number of about 3.. digits, not a finite number"),
        ("shape", "ab", "shape is 'ab', not a list"),
        ("shape", [1, 2, 3], "not a list of 2 entries"),
        ("entries", {"0": None}, "entries is .*, not a list"),
        ("entries", [{"count": 1, "rows": "array"}], "the array 'entries.0.rows' is missing"),
        ("names", ["a", 3], "names.1 is 3, not text"),
        ("tol", "small", "tol is 'small', not a finite number or 'statistical'"),
        ("counts", {"x": "1"}, "counts.x is '1', not a whole number"),
        ("counts", [1], r"counts is \[1\], not a set of named entries"),
    ],
)
def test_each_kind_of_damage_has_a_sentence(name, entry, message):
    facts, arrays = stored()
    with pytest.raises(ValueError, match=message):
        from_plain(Outer, {**facts, name: entry}, arrays)
