"""Frames with unusual columns are read as numbers and text: those of pandas, and Arrow types that polars exports."""

import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import valuefit as vf

N = 12
COLUMNS = {"obs": np.arange(N) / 4, "reward": np.arange(N) % 3 * 1.0, "terminated": np.arange(N) % 4 == 3}
EXPECTED = vf.load(COLUMNS)


def assert_same(log):
    np.testing.assert_array_equal(log.observations, EXPECTED.observations)
    np.testing.assert_array_equal(log.reward, EXPECTED.reward)


@pytest.mark.parametrize(
    "changed",
    [
        {"reward": pd.arrays.SparseArray(COLUMNS["reward"])},
        {"obs": pd.arrays.SparseArray(COLUMNS["obs"], fill_value=0.5)},
        {"reward": COLUMNS["reward"].astype(np.longdouble)},
        {"reward": [Decimal(int(reward)) for reward in COLUMNS["reward"]]},
        {"obs": [Decimal(k) / 4 for k in range(N)]},
        {"note": np.full(N, 1j)},  # columns of no field are not converted
        {"note": [1, "a"] * (N // 2)},
        {0: 1.0},
    ],
)
def test_columns_of_pandas(changed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(vf.load(pd.DataFrame({**COLUMNS, **changed})))


def test_the_index_of_a_pandas_frame_may_be_a_column():
    frame = pd.DataFrame({**COLUMNS, "episode": np.arange(N) // 4}).set_index("episode")
    assert_same(vf.load(frame))
    np.testing.assert_array_equal(vf.load(frame).episode, np.arange(N) // 4)


@pytest.mark.parametrize("values", [pa.string(), pa.large_string(), pa.string_view()])
def test_categories_of_polars(values):
    numbers = pa.array(np.arange(N) // 4, pa.uint32())
    names = pa.DictionaryArray.from_arrays(numbers, pa.array(["a", "b", "c"]).cast(values))
    log = vf.load(pa.table({**COLUMNS, "episode": names}))
    assert log.episode_names.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(log.episode, np.arange(N) // 4)


def test_decimal_fractions_beyond_int64_are_the_nearest_floats():
    rewards = [Decimal(10) ** 25 * k + Decimal("0.5") for k in range(N)]
    log = vf.load(pa.table({**COLUMNS, "reward": pa.array(rewards, pa.decimal128(38, 1))}))
    np.testing.assert_allclose(log.reward, 1e25 * np.arange(N) + 0.5)


def test_text_that_is_no_unicode_is_refused_in_a_sentence():
    frame = pd.DataFrame({**COLUMNS, "note": pd.Series(["\ud800"] * N, dtype=object)})
    with pytest.raises(ValueError, match=r"The DataFrame cannot be read as a table: .* Drop or convert that column"):
        vf.load(frame, columns={"obs": "note"})
    assert_same(vf.load(frame.drop(columns="note")))
