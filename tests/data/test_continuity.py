"""Which rows of a source are consecutive steps: by their numbers, their times and the next observations."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import valuefit as vf
from valuefit.data.continuity import Continuity, find_jumps

N = 400
EPISODE = np.arange(N) // 20


def table(kept=slice(None), **columns):
    rng = np.random.default_rng(0)
    start = {
        "episode": EPISODE,
        "obs_0": rng.normal(size=N),
        "reward": np.ones(N),
        "terminated": np.arange(N) % 20 == 19,
    }
    return pd.DataFrame({**start, **columns})[kept]


NUMBERS = {
    "counted": np.arange(N) % 20,
    "counted by four": 4 * np.arange(N),
    "floats": 0.1 * np.arange(N),
    "days": np.datetime64("2024-01-01", "us") + np.arange(N) * np.timedelta64(1, "D"),
}


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.7])
def test_steps_that_were_removed_are_counted(kind, share):
    kept = np.random.default_rng(1).random(N) >= share
    kept[19::20] = True  # the ends, so that no last step is left out
    log = vf.load(table(kept, step=NUMBERS[kind][:N]))
    rows = np.flatnonzero(kept)
    inside = EPISODE[rows][1:] == EPISODE[rows][:-1]
    expected = int((np.diff(rows)[inside] > 1).sum())
    assert log.continuity == Continuity(len(rows), int(inside.sum()), expected, 0, expected, 0)


def test_irregular_times_jump_far_above_their_median():
    rng = np.random.default_rng(2)
    increments = rng.exponential(1.0, N)
    increments[[50, 210]] = 40.0
    counts = vf.load(table(step=np.cumsum(increments))).continuity
    assert 2 <= counts.jumps <= 4  # of 380; an exponential one exceeds ten medians in 0.1%


def test_next_observations_that_are_not_those_of_the_next_row_are_counted():
    frame = table()
    after = frame["obs_0"].shift(-1).fillna(0.0)
    assert vf.load(frame.assign(next_obs_0=after)).continuity == Continuity(N, 380, 0, 0, 0, 0)
    rounded = after.astype(np.float32).astype(float)
    assert vf.load(frame.assign(next_obs_0=rounded)).continuity.detours == 0
    kept = np.arange(N) % 20 != 7
    log = vf.load(frame.assign(next_obs_0=after, step=np.arange(N))[kept])
    assert log.continuity == Continuity(380, 360, 20, 20, 20, 0)
    states = {"obs": np.arange(N) % 20, "next_obs": np.arange(1, N + 1) % 20}
    moved = table(**states).drop(columns="obs_0")
    assert vf.load(moved).continuity.detours == 0
    assert vf.load(moved[kept]).continuity.detours == 20


def test_gaps_do_not_make_next_observations_differ():
    rng = np.random.default_rng(3)
    frame = table().assign(obs_0=np.arange(N) + 1.0, obs_1=rng.normal(size=N))
    after = frame[["obs_0", "obs_1"]].shift(-1).fillna(0.0)
    full = frame.assign(next_obs_0=after["obs_0"], next_obs_1=after["obs_1"])
    gaps = full.assign(obs_1=full["obs_1"].where(rng.random(N) < 0.7))
    assert vf.load(gaps, missing="flag").continuity == Continuity(N, 380, 0, 0, 0, 0)
    kept = np.arange(N) % 20 != 7  # the entries that are known still show that rows are missing
    assert vf.load(gaps[kept], missing="flag").continuity == Continuity(380, 360, 0, 20, 20, 0)
    hollow = gaps.assign(next_obs_1=full["next_obs_1"].where(rng.random(N) < 0.5))
    assert vf.load(hollow, missing="flag").continuity == Continuity(N, 380, 0, 0, 0, 0)


def test_nothing_is_known_without_numbers_and_next_observations():
    assert vf.load(table()).continuity == Continuity(steps=N)


def test_last_steps_that_are_left_out_are_counted_in_parts_too(tmp_path):
    frame = table(terminated=False, truncated=np.arange(N) % 20 == 19, step=np.arange(N))
    frame.to_parquet(tmp_path / "log.parquet")
    log = vf.load(frame)
    assert (log.continuity.cut, len(log)) == (20, 380)
    counts = [
        shard.read().continuity for shard in vf.load(tmp_path / "log.parquet", memory="stream", limit=20_000).shards
    ]
    assert sum(counts, Continuity()) == log.continuity
    assert sum(counts, Continuity()).cut_variation == pytest.approx(log.continuity.cut_variation, rel=1e-9)
    shards = vf.load(log, memory="stream", limit=1000).shards
    assert sum((shard.read().continuity for shard in shards), Continuity()) == log.continuity


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 2**62))
def test_units_and_offsets_of_step_numbers_do_not_matter(increments, offset):
    steps = np.cumsum(increments)
    inside = np.ones(len(steps) - 1, bool)
    expected = find_jumps(steps, inside)
    np.testing.assert_array_equal(find_jumps(offset + 7 * steps, inside), expected)
    np.testing.assert_array_equal(find_jumps((offset + 7 * steps).astype(np.uint64), inside), expected)
    np.testing.assert_array_equal(find_jumps(0.5 * steps, inside), expected)
