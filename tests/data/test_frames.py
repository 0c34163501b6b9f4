from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import valuefit as vf
from helpers.streamed import by_episode, frame_of, log_with_actions, with_text_actions
from valuefit.data.frames import FrameShard, default_client, is_frame
from valuefit.data.joining import join_logs
from valuefit.data.shards import ShardedLog


@pytest.fixture(autouse=True)
def no_client() -> Iterator[None]:
    """Tests of this file run in this process."""
    with dask.config.set(scheduler="synchronous"):
        yield


def table(episodes: int = 30) -> pd.DataFrame:
    return frame_of(log_with_actions(episodes))


def write(frame: pd.DataFrame, folder: Path, files: int) -> Path:
    """The rows as Parquet files of whole episodes in a folder."""
    folder.mkdir()
    for number in range(files):
        here = frame.episode * files // (frame.episode.max() + 1) == number
        frame[here].to_parquet(folder / f"part-{number}.parquet")
    return folder


def same_log(one: vf.Transitions, other: vf.Transitions) -> None:
    np.testing.assert_array_equal(one.observations[one.now], other.observations[other.now])
    np.testing.assert_array_equal(one.reward, other.reward)
    np.testing.assert_array_equal(one.terminated, other.terminated)


def whole(log: ShardedLog) -> list[vf.Transitions]:
    return [shard.read() for shard in log.shards]


@pytest.mark.parametrize("partitions", [1, 4, 60])
def test_partitions_that_hold_whole_episodes_are_shards(partitions: int) -> None:
    frame = table()
    log, expected = vf.load(by_episode(frame, partitions)), vf.load(frame)
    read = whole(log)
    assert (log.steps, log.episodes) == (len(expected), len(expected.episodes))
    assert sum(len(one.episodes) for one in read) == len(expected.episodes)
    position = 0
    for one, (step, episode) in zip(read, log.firsts, strict=True):
        assert step == position
        assert episode == len(np.unique(expected.episode[:step]))
        same_log(one, expected[position : position + len(one)])
        position += len(one)
    assert position == len(expected)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, in Dask
@pytest.mark.parametrize("index", [False, True], ids=["ids in a column", "ids in the index"])
def test_partitions_that_cut_episodes_are_refused_with_ways_that_work(index: bool, tmp_path: Path) -> None:
    frame = table()
    lazy = dd.from_pandas(frame, npartitions=4, sort=False)
    lazy = lazy.map_partitions(pd.DataFrame.set_index, "episode") if index else lazy
    reset = r"\.reset_index\(\)" * index
    remedy = (
        rf"Give frame{reset}\.set_index\('episode', sorted=True\) if its ids ascend, or write it to Parquet files and"
    )
    with pytest.raises(ValueError, match=rf"from partition 0 to partition 1 of the Dask .*\. {remedy} load .*stream"):
        vf.load(lazy)
    repartitioned = (lazy.reset_index() if index else lazy).set_index("episode", sorted=True)
    lazy.to_parquet(tmp_path / "log")
    for log in (vf.load(repartitioned), vf.load(tmp_path / "log", memory="stream", limit=1)):
        same_log(join_logs(whole(log)), vf.load(frame))


@pytest.mark.parametrize("dtype", ["string[pyarrow]", "object", "category"])
def test_text_actions_are_numbered_alike_in_all_partitions(dtype: str) -> None:
    frame = frame_of(with_text_actions(log_with_actions(30), {0: "wait", 1: "push"}, rare="hit"))
    lazy = by_episode(frame.astype({"action": dtype}), 5)
    assert {tuple(one.action_names) for one in whole(vf.load(lazy))} == {("hit", "push", "wait")}
    settings = {"policy": {"wait": 0.5, "push": 0.3, "hit": 0.2}, "features": "identity", "discount": 0.9}
    for values in ("state", "state-action"):
        expected, evaluation = (vf.evaluate(one, values=values, **settings) for one in (frame, lazy))
        assert evaluation.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-6)


@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_without_ids_a_partition_must_end_with_an_episode() -> None:
    frame = table(20)
    last = frame.episode.diff(-1).ne(0)
    frame = frame.assign(truncated=last & ~frame.terminated).drop(columns="episode")
    ends = [0, *(np.flatnonzero(last) + 1)[3::4]]
    lazy = dd.concat([dd.from_pandas(frame[start:stop], npartitions=1) for start, stop in pairwise(ends)])
    log, expected = vf.load(lazy), vf.load(frame)
    assert (len(log.shards), log.episodes) == (5, 20)
    same_log(join_logs(whole(log)), expected)
    cut = dd.from_pandas(frame, npartitions=7)
    with pytest.raises(
        ValueError, match=r"ends.cumsum\(\) - ends .* give frame.set_index\('episode', sorted=True\)\.$"
    ):
        vf.load(cut)
    ends = (cut.terminated | cut.truncated).astype(int)
    numbered = vf.load(cut.assign(episode=ends.cumsum() - ends).set_index("episode", sorted=True))
    assert len(numbered.shards) > 1
    same_log(join_logs(whole(numbered)), expected)


@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_an_index_of_episodes_and_empty_partitions_are_fine() -> None:
    frame = table().astype({"episode": "int32"})
    lazy = by_episode(frame, 4).set_index("episode", sorted=True)
    found = vf.evaluate(lazy.map_partitions(lambda part: part[part.index != 3]), features="identity", discount=0.9)
    expected = vf.evaluate(frame[frame.episode != 3], features="identity", discount=0.9)
    assert found.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-8)
    empty = dd.concat([by_episode(frame[frame.episode < 0], 1), by_episode(frame, 3)])
    assert vf.load(empty).steps == len(frame)


@pytest.mark.parametrize("lazy", [True, False], ids=["lazily read", "persisted"])
def test_a_frame_gives_the_evaluation_of_the_log_in_memory(lazy: bool, tmp_path: Path) -> None:
    frame = table(60)
    read = dd.read_parquet(write(frame, tmp_path / "log", 6))
    settings: dict[str, Any] = {"features": "fourier:order=3", "discount": 0.9}
    found = vf.evaluate(read if lazy else read.persist(), **settings)
    expected = vf.evaluate(frame, tol=1e-12, **settings)
    same, value = expected.policy_value, found.policy_value
    assert value.estimate == pytest.approx(same.estimate, rel=1e-8)
    assert value.standard_error == pytest.approx(same.standard_error, rel=1e-7)
    assert found.verdict == expected.verdict


def test_only_needed_columns_are_computed() -> None:
    shard = vf.load(by_episode(table().assign(other=1.0), 3)).shards[0]
    columns = list(dask.get(shard.graph, shard.key).columns)
    assert columns == list(table().columns)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.sample(frac=1, random_state=0), "not contiguous in the Dask DataFrame"),
        (lambda frame: frame.iloc[:0], "the Dask DataFrame of 3 partitions has no rows"),
        (lambda frame: frame.drop(columns="reward"), "has no column reward"),
        (lambda frame: frame.assign(obs_0="red"), "'obs_0' of the Dask DataFrame holds text"),
        (lambda frame: frame.assign(episode=frame.episode.where(frame.episode != 7)), "missing ids"),
        (lambda frame: frame.assign(episode=frame.episode.astype("Int64").mask(frame.episode == 7)), "missing ids"),
        (lambda frame: frame.assign(episode=frame.episode.astype("str").mask(frame.episode == 7)), "missing ids"),
    ],
)
def test_what_cannot_be_planned_is_refused(change: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vf.load(dd.from_pandas(change(table()), npartitions=3, sort=False))


def test_a_wrong_number_names_partition_and_row() -> None:
    frame = table()
    frame.loc[len(frame) - 3, "reward"] = np.nan
    log = vf.load(by_episode(frame, 3))
    row = len(whole(vf.load(by_episode(table(), 3)))[-1]) - 3
    with pytest.raises(ValueError, match=rf"In partition 2 of the Dask DataFrame: .* (row|step) {row}\b"):
        log.shards[-1].read()


def test_a_file_that_disappears_is_named(tmp_path: Path) -> None:
    log = vf.load(dd.read_parquet(write(table(), tmp_path / "log", 1)))
    for file in (tmp_path / "log").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match=r"Partition 0 of the Dask DataFrame cannot be read: .*parquet"):
        log.shards[0].read()


def test_a_partition_that_changes_is_refused() -> None:
    shard = vf.load(by_episode(table(), 2)).shards[0]
    with pytest.raises(ValueError, match=rf"Partition 0 .* had {shard.rows.rows} rows and now has 4"):
        shard.rows.log(pd.DataFrame({"x": range(4)}))


def test_other_sources_are_no_frames() -> None:
    assert is_frame(dd.from_pandas(table(), npartitions=1))
    assert not is_frame(table())
    assert default_client() is None
    assert isinstance(vf.load(dd.from_pandas(table(), npartitions=1)).shards[0], FrameShard)
