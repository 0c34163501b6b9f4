"""Casts between numeric types, alone and in logs: exact or refused."""

import contextlib
import itertools
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import valuefit as vf
from valuefit.data.exact import common_dtype, concatenate, exact, exact_cast

DTYPES = ["?", "i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8"]
SHORT = {"obs": [[1.0], [2.0], [3.0], [4.0]], "reward": [1.0, 2.0, 3.0, 4.0], "terminated": [0, 1, 0, 1]}
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
    with pytest.raises(ValueError, match=r"x is 258 at row 1, which uint8 does not represent exactly. Round"):
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


# ---- logs ----------------------------------------------------------------------------------------


def table(**changes):
    """A small valid table with some columns replaced, or removed where None."""
    return {name: value for name, value in {**SHORT, **changes}.items() if value is not None}


def refused(message, source):
    with pytest.raises(ValueError, match=message):
        vf.load(source)


def test_nullable_next_observations_are_exact(tmp_path):
    large = 2**60 + 1
    frame = pa.table({
        "obs": pa.array([large, large + 1, 5]),
        "next_obs": pa.array([large + 1, 5, None]),
        "reward": [1.0, 2.0, 3.0],
        "terminated": [False, False, True],
    })  # fmt: skip
    pq.write_table(frame, tmp_path / "log.parquet")
    for source in (frame, frame.to_pandas(types_mapper=pd.ArrowDtype), tmp_path / "log.parquet"):
        log = vf.load(source)
        np.testing.assert_array_equal(log.observations, [5, large, large + 1])
    rounded = {"obs": [large, large + 1], "next_obs": [float(large), np.nan], "reward": [0, 0], "terminated": [0, 1]}
    refused(r"next_obs is 1.15292150460684\d+e\+18 at row 0, which int64 does not represent exactly", rounded)


def test_small_integer_types_do_not_wrap():
    columns = {"obs": np.array([1, 2], np.uint8), "reward": [1.0, 2.0], "terminated": [0, 1]}
    for next_obs in ([258, None], [258.0, np.nan], np.array([258, 0], np.int16), np.ma.array([258, 0], mask=[0, 1])):
        log = vf.load({**columns, "next_obs": np.asanyarray(next_obs)} if None not in next_obs else pa.table(
            {**columns, "next_obs": pa.array(next_obs)}))  # fmt: skip
        assert 258 in log.observations
        assert len(log) == 2


def test_signed_and_unsigned_columns_are_not_rounded():
    unsigned = np.array([2**63 + 1, 2**63 + 3, 7, 8], np.uint64)
    log = vf.load(table(obs=unsigned, next_obs=np.array([7, 7, 8, 0]), terminated=[0, 0, 0, 1]))
    np.testing.assert_array_equal(log.observations[log.now], unsigned)
    refused(r"next_obs is -1 at row 1, which uint64 does not", table(obs=unsigned, next_obs=np.array([7, -1, 8, 0])))
    split = {**table(obs=None), "obs_0": unsigned, "obs_1": np.array([1, 2, 3, 4])}
    assert vf.load(split).observations.dtype == np.uint64
    refused(
        r"Column 'obs_0' of the dict is 9223372036854775809 at row 0, which float64 does not represent exactly",
        {**split, "obs_1": [0.5] * 4},
    )


@pytest.mark.parametrize("ids", [[1e300, 2e300], [2.0**53 + 2, 2.0**53 + 4], [0.5, 1.0]])
def test_episode_ids_that_are_not_exact_integers_are_refused(ids):
    refused(r"episode is .* at row 0, which int64 does not represent exactly", table(episode=np.repeat(ids, 2)))
    refused(r"episode is .* at row 0, which int64", table(episode=np.array([2**63, 2**63, 5, 5], np.uint64)))


def test_step_columns_of_any_type():
    flags = {"episode": [0, 0, 1, 1], "reward": [1.0, 2.0, 3.0, 4.0]}
    log = vf.load(table(**flags, step=[True, False, False, True], terminated=[1, 0, 0, 1]))
    np.testing.assert_array_equal(log.reward, [2, 1, 3, 4])
    times = np.array(["2024-01-01", "NaT", "2024-01-01", "2024-01-02"], "M8[ns]")
    refused(r"step is missing or infinite at row 1 of the dict", table(**flags, step=times))
    refused(r"step is missing or infinite at row 1", pa.table({**table(**flags), "step": pa.array(times)}))
    refused(r"step is missing or infinite at row 3", table(**flags, step=[0.0, 1.0, 0.0, np.nan]))
    for wide in (
        np.array([-(2**63), 2**63 - 1] * 2),
        np.array([0, 2**64 - 1] * 2, np.uint64),
        np.array([-128, 127] * 2, "i1"),
    ):
        assert vf.load(table(**flags, step=wide)).notes == ()


def test_lists_of_flags_and_missing_elements_of_lists_load():
    ends = {"reward": [1.0, 2.0, 3.0], "terminated": [False, False, True]}
    obs = [[True, False], [False, False], [True, True]]
    log = vf.load(pa.table({"obs": pa.array(obs), "next_obs": pa.array([*obs[1:], [None, None]]), **ends}))
    np.testing.assert_array_equal(log.observations, obs)
    for kind in (pa.int64(), pa.uint8(), pa.float32(), pa.bool_()):
        for last in ([None, None], [1, None], None):
            after = pa.array([[0, 0], [1, 1], last], pa.list_(kind)) if kind != pa.bool_() else pa.array(
                [[False, False], [True, True], last and [last[0] and True, None]])  # fmt: skip
            now = after.slice(0, 2).to_pylist()
            log = vf.load(pa.table({"obs": pa.array([now[1], *now], after.type), "next_obs": after, **ends}))
            np.testing.assert_array_equal(log.observations[log.now], [now[1], *now])
            np.testing.assert_array_equal(log.next, [1, 2, -1])
    gap = pa.table({"obs": pa.array(obs), "next_obs": pa.array([obs[1], [True, None], obs[0]]), **ends,
                    "episode": [0, 0, 0]})  # fmt: skip
    refused(r"next_obs is missing at step 1", gap)


def test_decimals_without_fraction_are_integers():
    ids = [Decimal(2**60 + 1), Decimal(2**60 + 2)]
    log = vf.load(pa.table({"obs": pa.array(ids, pa.decimal128(38, 0)), "reward": [1.0, 2.0], "done": [0, 1]}))
    np.testing.assert_array_equal(log.observations, [2**60 + 1, 2**60 + 2])


@pytest.mark.parametrize("name", ["obs", "reward"])
def test_integers_as_decimals_are_not_rounded(name):
    columns = {"obs": [1.0, 2.0], "reward": [1.0, 2.0], "done": [0, 1]}
    large = [Decimal(2**70), Decimal(1)]
    log = vf.load(pa.table({**columns, name: pa.array(large, pa.decimal128(38, 0))}))
    np.testing.assert_array_equal(log.observations if name == "obs" else log.reward, [2.0**70, 1])
    large[1] += 2**70
    refused(
        rf"Column '{name}' of the Table cannot be read \(float64 would round its integers: number ids from 0, or "
        r"convert amounts to floats\)",
        pa.table({**columns, name: pa.array(large, pa.decimal128(38, 0))}),
    )
    for mended in ([0, 1], [float(value) for value in large]):
        assert len(vf.load(pa.table({**columns, name: mended}))) == 2


def test_integer_rewards_are_not_rounded():
    assert vf.load(table(reward=[2**53, 2, 3, 4])).reward[0] == 2**53
    refused(
        r"reward in the dict is 9007199254740993 at row 0, which float64 does not", table(reward=[2**53 + 1, 2, 3, 4])
    )


def test_missing_entries_of_masked_and_nullable_columns_are_missing():
    refused(r"reward is missing or infinite at row 1", table(reward=np.ma.array([1, 10**6, 1, 1], mask=[0, 1, 0, 0])))
    nullable = pd.Series([1, 2, None, 4], dtype="Int64")
    refused(r"reward is (missing or infinite at row|nan at step) 2", table(reward=nullable))  # by version of pandas
