"""Casts between numeric types: exact or refused."""

import contextlib
import itertools

import numpy as np
import pytest

from valuefit.data.exact import common_dtype, concatenate, exact, exact_cast

DTYPES = ["?", "i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8"]
EDGES = [0, 1, -1, 2, 127, 128, 255, 256, 2**11 + 1, 2**24, 2**24 + 1, 2**53, 2**53 + 1, 2**60 + 1, 2**63 - 1, 2**63,
         2**64 - 1, -(2**63)]  # fmt: skip


def arrays_of(edge):
    """The number in every dtype that has it exactly."""
    for dtype in DTYPES:
        with np.errstate(over="ignore"), contextlib.suppress(OverflowError):
            array = np.array([float(edge)]).astype(dtype) if dtype[0] == "f" else np.array([edge], dtype)
            if np.isfinite(array[0]) and int(array[0]) == edge:
                yield array


@pytest.mark.parametrize("edge", EDGES)
def test_a_cast_is_exact_only_if_the_number_is_the_same(edge):
    for array, dtype in itertools.product(arrays_of(edge), DTYPES):
        converted, same = exact_cast(array, dtype)
        if same[0]:
            assert int(converted[0]) == edge
        elif abs(edge) <= 2**11:  # below that every type that has the number in range has it exactly
            low, high = (0, 1) if dtype == "?" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            assert not low <= edge <= high


def test_the_first_value_that_would_change_is_named():
    with pytest.raises(ValueError, match=r"x is 258 at row 1, which uint8 does not represent exactly. Write"):
        exact(np.array([2, 258]), np.uint8, "x")
    with pytest.raises(ValueError, match=r"x is 0.5 at row 2, which int64 does not represent exactly"):
        exact(np.array([1.0, 2.0, 0.5]), np.int64, "x")
    with pytest.raises(ValueError, match=r"x is 1e\+300 at row 0, which int64"):
        exact(np.array([1e300]), np.int64, "x")
    masked = exact(np.ma.array([1, 300], mask=[False, True]), np.uint8, "x")
    np.testing.assert_array_equal(masked.mask, [False, True])


def test_signed_and_unsigned_integers_have_a_common_integer_type():
    signed, small, large = np.array([-1, 3]), np.array([2**62 + 1], np.uint64), np.array([2**63 + 1], np.uint64)
    assert common_dtype([signed, small]) == np.int64
    np.testing.assert_array_equal(concatenate([signed, small], "x"), [-1, 3, 2**62 + 1])
    np.testing.assert_array_equal(concatenate([signed[1:], large], "x"), np.array([3, 2**63 + 1], np.uint64))
    with pytest.raises(ValueError, match=r"x is -1 at row 0, which uint64"):
        concatenate([signed, large], "x")
    with pytest.raises(ValueError, match=r"x is 9007199254740993 at row 0, which float64"):
        concatenate([np.array([2**53 + 1]), np.array([0.5])], "x")
    with pytest.raises(
        ValueError, match=r"x has entries of dtype int64 and shape \(\), and others of dtype int64 and sha"
    ):
        concatenate([signed, signed[:, None]], "x")
