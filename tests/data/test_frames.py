from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import valuefit as vf
from helpers.streamed import frame_of, log_with_actions, with_text_actions
from valuefit.data.frames import FrameShard, Marks, Piece, _Plan, default_client, is_frame, piece_of
from valuefit.data.shards import ShardedLog


@pytest.fixture(autouse=True)
def no_client() -> Iterator[None]:
    """Tests of this file run in this process."""
    with dask.config.set(scheduler="synchronous"):
        yield


def table(episodes: int = 30) -> pd.DataFrame:
    return frame_of(log_with_actions(episodes))


def write(frame: pd.DataFrame, folder: Path, files: int) -> Path:
    """The rows as Parquet files in a folder, which episodes cross."""
    folder.mkdir()
    for number in range(files):
        here = np.arange(len(frame)) * files // len(frame) == number
        frame[here].to_parquet(folder / f"part-{number}.parquet")
    return folder


def same_log(one: vf.Transitions, other: vf.Transitions) -> None:
    np.testing.assert_array_equal(one.observations[one.now], other.observations[other.now])
    np.testing.assert_array_equal(one.reward, other.reward)
    np.testing.assert_array_equal(one.terminated, other.terminated)


def whole(log: ShardedLog) -> list[vf.Transitions]:
    return [shard.read() for shard in log.shards]


@pytest.mark.parametrize("partitions", [1, 4, 60])
def test_shards_are_whole_episodes_wherever_partitions_end(partitions: int) -> None:
    frame = table()
    log = vf.load(dd.from_pandas(frame, npartitions=partitions))
    read, expected = whole(log), vf.load(frame)
    assert (log.steps, log.episodes) == (len(expected), len(expected.episodes))
    assert sum(len(one.episodes) for one in read) == len(expected.episodes)
    position = 0
    for one, (step, episode) in zip(read, log.firsts, strict=True):
        assert step == position
        assert episode == len(np.unique(expected.episode[:step]))
        same_log(one, expected[position : position + len(one)])
        position += len(one)
    assert position == len(expected)


@pytest.mark.parametrize("dtype", ["string[pyarrow]", "object", "category"])
def test_text_actions_are_numbered_alike_in_all_partitions(dtype: str) -> None:
    frame = frame_of(with_text_actions(log_with_actions(30), {0: "wait", 1: "push"}, rare="hit"))
    lazy = dd.from_pandas(frame.astype({"action": dtype}), npartitions=5)
    assert {tuple(one.action_names) for one in whole(vf.load(lazy))} == {("hit", "push", "wait")}
    settings = {"policy": {"wait": 0.5, "push": 0.3, "hit": 0.2}, "features": "identity", "discount": 0.9}
    for values in ("state", "state-action"):
        expected, evaluation = (vf.evaluate(one, values=values, **settings) for one in (frame, lazy))
        assert evaluation.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-6)


def test_an_episode_may_be_longer_than_several_partitions() -> None:
    frame = table(6).assign(episode=0, terminated=False)
    log = vf.load(dd.from_pandas(frame, npartitions=5))
    assert (len(log.shards), log.episodes) == (1, 1)
    same_log(log.shards[0].read(), vf.load(frame))


def test_without_ids_an_open_episode_goes_on_in_the_next_partition() -> None:
    frame = table(20)
    last = frame.episode.diff(-1).ne(0)
    frame = frame.assign(truncated=last & ~frame.terminated).drop(columns="episode")
    log, expected = vf.load(dd.from_pandas(frame, npartitions=7)), vf.load(frame)
    assert log.episodes == len(expected.episodes)
    assert [len(one.episodes) for one in whole(log)] == [
        len(np.unique(expected.episode[step:stop]))
        for (step, _), (stop, _) in zip(log.firsts, [*log.firsts[1:], (len(expected), 0)], strict=True)
    ]


def test_an_index_of_episodes_and_empty_partitions_are_fine() -> None:
    frame = table().astype({"episode": "int32"})
    lazy = dd.from_pandas(frame.set_index("episode"), npartitions=4)
    found = vf.evaluate(lazy.map_partitions(lambda part: part[part.index != 3]), features="identity", discount=0.9)
    expected = vf.evaluate(frame[frame.episode != 3], features="identity", discount=0.9)
    assert found.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-8)
    empty = dd.concat([dd.from_pandas(frame[frame.episode < 0], npartitions=1), dd.from_pandas(frame, npartitions=3)])
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
    shard = vf.load(dd.from_pandas(table().assign(other=1.0), npartitions=3)).shards[0]
    assert list(dask.get(shard.graph, shard.keys[0]).columns) == list(table().columns)


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
    log = vf.load(dd.from_pandas(frame, npartitions=3))
    with pytest.raises(ValueError, match=r"In partition 2 of the Dask DataFrame \(row numbers count from row \d+"):
        log.shards[-1].read()


def test_a_file_that_disappears_is_named(tmp_path: Path) -> None:
    log = vf.load(dd.read_parquet(write(table(), tmp_path / "log", 3)))
    for file in (tmp_path / "log").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match=r"Partition 0 of the Dask DataFrame cannot be read: .*parquet"):
        log.shards[0].read()


def test_a_partition_that_changes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Partition 1 .* had 5 rows and now has 4"):
        piece_of(pd.DataFrame({"x": range(4)}), Piece(1, 0, 5, 5))


def test_plan_of_pieces() -> None:
    plan = _Plan.of([
        Marks(4, 2, 3, np.array([1, 2]), True), Marks(0, 0, 0, np.zeros(0), False),
        Marks(2, 1, 2, np.array([2]), True), Marks(5, 3, 1, np.array([2, 3, 4]), True),
    ])  # fmt: skip
    assert plan.shards == [[Piece(0, 0, 4, 4), Piece(2, 0, 2, 2), Piece(3, 0, 1, 5)], [Piece(3, 1, 5, 5)]]
    assert (plan.firsts, plan.episodes) == ([(0, 0), (7, 2)], 4)


def test_other_sources_are_no_frames() -> None:
    assert is_frame(dd.from_pandas(table(), npartitions=1))
    assert not is_frame(table())
    assert default_client() is None
    assert isinstance(vf.load(dd.from_pandas(table(), npartitions=1)).shards[0], FrameShard)
