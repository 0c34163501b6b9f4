from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import valuefit as vf
from helpers.streamed import in_shards, log_with_actions
from valuefit.data import shards
from valuefit.data.shards import ShardedLog, compact, episode_blocks, join_logs, open_shards
from valuefit.memory import TooLarge


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)


def same(one: vf.Transitions, other: vf.Transitions) -> None:
    for name in ("reward", "terminated", "truncated", "begins", "ratio", "action", "behaviour_prob"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.observations[one.now], other.observations[other.now])
    np.testing.assert_array_equal(one.next < 0, other.next < 0)
    goes_on = one.next >= 0
    np.testing.assert_array_equal(one.observations[one.next[goes_on]], other.observations[other.next[goes_on]])
    np.testing.assert_array_equal(np.unique(one.episode, return_inverse=True)[1], other.episode)


@pytest.mark.parametrize("kind", ["native", "parquet", "files"])
@pytest.mark.parametrize("steps", [1, 50, 200, 10_000])
def test_shards_are_the_log_cut_between_episodes(kind: str, steps: int, tmp_path: Path) -> None:
    log = log_with_actions(40)
    sharded = in_shards(log, tmp_path, kind, steps=steps)
    parts = [shard.read() for shard in sharded.shards]
    assert (sharded.steps, sharded.episodes) == (len(log), 40)
    same(log, join_logs(parts))
    longest = max(np.bincount(log.episode))
    assert all(len(part) <= max(steps, 10) + longest for part in parts)


def test_without_ids_the_ends_and_the_files_cut_episodes(tmp_path: Path) -> None:
    for number in range(3):
        columns = {"obs_0": np.arange(12.0), "reward": np.ones(12), "terminated": np.arange(12) % 4 == 3}
        pq.write_table(pa.table(columns), tmp_path / f"part-{number}.parquet")
    sharded = open_shards(str(tmp_path / "*.parquet"), columns=None, limit=1)
    assert (sharded.steps, sharded.episodes) == (36, 9)
    joined = join_logs([shard.read() for shard in sharded.shards])
    same(vf.load(str(tmp_path / "*.parquet")), joined)


def test_rows_within_a_row_group_are_read(tmp_path: Path) -> None:
    log = log_with_actions(40)
    vf.save(log, tmp_path / "log.parquet")
    table = pq.read_table(tmp_path / "log.parquet")
    pq.write_table(table, tmp_path / "groups.parquet", row_group_size=150)
    sharded = open_shards(tmp_path / "groups.parquet", columns=None, limit=8 * 64 * 100)
    same(log, join_logs([shard.read() for shard in sharded.shards]))


@pytest.mark.parametrize("kind", ["native", "parquet"])
def test_load_opens_what_exceeds_memory_in_shards(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_with_actions(40)
    in_shards(log, tmp_path, kind)
    path = tmp_path / ("log" if kind == "native" else "log.parquet")
    assert isinstance(vf.load(path), vf.Transitions)
    with pytest.raises(TooLarge, match="more than the limit"):
        vf.load(path, limit=20_000)  # a limit that is given is kept
    monkeypatch.setattr("valuefit.data.load.memory_limit", lambda: 20_000)
    found = vf.load(path)
    assert isinstance(found, ShardedLog)
    assert found.steps == len(log)
    assert repr(found).startswith("ShardedLog(")
    assert vf.load(found) is found


def test_what_cannot_be_read_in_parts_is_refused(tmp_path: Path) -> None:
    log = log_with_actions(5)
    vf.save(log, tmp_path / "log.npz")
    with pytest.raises(TooLarge, match="needs"):
        vf.load(tmp_path / "log.npz", limit=100)
    with pytest.raises(ValueError, match=r"log.npz cannot be read in parts"):
        vf.load(tmp_path / "log.npz", memory="stream")
    with pytest.raises(ValueError, match="not this source"):
        vf.load({"observation": [1.0]}, memory="stream")
    with pytest.raises(ValueError, match=r"memory is 'disk'; it must be one of 'auto', 'stream'"):
        vf.load(tmp_path / "log.npz", memory="disk")


def test_interleaved_episodes_and_text_are_refused(tmp_path: Path) -> None:
    columns = {"obs_0": np.arange(4.0), "reward": np.ones(4), "terminated": np.ones(4), "episode": [1, 2, 1, 2]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="steps of episode 1 are not contiguous"):
        vf.load(tmp_path / "a.parquet", memory="stream")
    pq.write_table(pa.table({**columns, "obs_0": ["a", "b", "c", "d"]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="holds text"):
        vf.load(tmp_path / "b.parquet", memory="stream")


def test_a_truncated_file_and_one_that_disappears_are_named(tmp_path: Path) -> None:
    sharded = in_shards(log_with_actions(40), tmp_path, "parquet")
    path = tmp_path / "log.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"In rows [\d,]+ to [\d,]+ of .*log\.parquet"):
        sharded.shards[-1].read()
    path.unlink()
    with pytest.raises(ValueError, match=r"In rows [\d,]+ to [\d,]+ of .*log\.parquet"):
        sharded.shards[-1].read()


def test_a_file_that_shrank_is_not_read_as_if_it_were_whole(tmp_path: Path) -> None:
    log = log_with_actions(40)
    sharded = in_shards(log, tmp_path, "parquet")
    (tmp_path / "log.parquet").unlink()
    vf.save(log.select(log.episodes[:10]), tmp_path / "log.parquet")
    with pytest.raises(ValueError, match="fewer than when it was opened"):
        sharded.shards[-1].read()


def test_a_nan_is_named_with_the_rows_of_its_shard(tmp_path: Path) -> None:
    log = log_with_actions(40)
    vf.save(log, tmp_path / "log.parquet")
    table = pq.read_table(tmp_path / "log.parquet")
    values = table["obs_0"].to_numpy().copy()
    values[-3] = np.nan
    place = table.schema.get_field_index("obs_0")
    pq.write_table(table.set_column(place, "obs_0", pa.array(values)), tmp_path / "bad.parquet")
    sharded = open_shards(tmp_path / "bad.parquet", columns=None, limit=8 * 64 * 100)
    with pytest.raises(ValueError, match=rf"In rows [\d,]+ to {len(log) - 1:,} of .*bad\.parquet.*NaN"):
        sharded.shards[-1].read()


def test_blocks_are_whole_episodes() -> None:
    log = log_with_actions(20)
    for steps in (1, 60, 10_000):
        blocks = list(episode_blocks(log, steps))
        same(log, join_logs(blocks))
        episodes = [set(block.episode) for block in blocks]
        assert sum(map(len, episodes)) == len(set.union(*episodes))
    part = compact(log[100:150])
    assert len(part.observations) <= 100
    same(replace(log[100:150], episode=part.episode - part.episode[0]), join_logs([part]))


def test_a_next_observation_before_the_first_of_a_shard_is_not_an_end(tmp_path: Path) -> None:
    states = np.array([3, 2, 1, 3, 2, 1, 3, 2, 1, 3, 2, 1])
    after = np.array([2, 1, 0, 2, 1, 0, 2, 1, 0, 2, 1, 0])  # state 0 is reached, but no step starts there
    log = vf.Transitions.from_arrays(states, np.ones(12), next_observation=after, episode=np.arange(12) // 3)
    vf.save(log, tmp_path / "log")
    opened = open_shards(tmp_path / "log", columns=None, limit=1)
    joined = join_logs([shard.read() for shard in opened.shards])
    np.testing.assert_array_equal(joined.observations[joined.next], after)
    assert (joined.next >= 0).all()


@pytest.mark.parametrize(("name", "dtype"), [("terminated", np.uint16), ("reward", np.uint64), ("begins", np.int8)])
def test_columns_of_other_types_are_refused_in_shards_too(name: str, dtype: type, tmp_path: Path) -> None:
    vf.save(log_with_actions(5), tmp_path / "log")
    file = tmp_path / "log" / f"{name}.npy"
    np.save(file, np.load(file).astype(dtype))
    with pytest.raises(ValueError, match=rf"{name}.npy has shape .* and dtype {np.dtype(dtype)}"):
        vf.load(tmp_path / "log", memory="stream")
