from __future__ import annotations

import os
import pickle
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import valuefit as vf
from helpers.streamed import FILE_KINDS, hdf5_file, in_shards, log_with_actions
from valuefit.data import shards
from valuefit.data.joining import episode_blocks, join_logs
from valuefit.data.readers import parquet
from valuefit.data.shards import ShardedLog, open_shards
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


@pytest.mark.parametrize("kind", [*FILE_KINDS, "files"])
@pytest.mark.parametrize("steps", [1, 50, 200, 10_000])
def test_shards_are_the_log_cut_between_episodes(kind: str, steps: int, tmp_path: Path) -> None:
    log = log_with_actions(40)
    sharded = in_shards(log, tmp_path, kind, steps=steps)
    parts = [pickle.loads(pickle.dumps(shard)).read() for shard in sharded.shards]
    assert (sharded.steps, sharded.episodes) == (len(log), 40)
    whole = log if kind not in ("hdf5", "minari") else vf.load(sharded.source, columns={"behaviour_prob": "infos/prob"})
    same(whole, join_logs(parts))
    np.testing.assert_array_equal(whole.reward, log.reward)
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


def test_an_episode_with_an_id_may_go_on_through_several_files(tmp_path: Path) -> None:
    for number in range(4):
        columns = {
            "obs": np.arange(8.0) + number,
            "reward": np.ones(8),
            "episode": np.full(8, number // 3),
            "terminated": np.zeros(8),
        }
        pq.write_table(pa.table(columns), tmp_path / f"part-{number}.parquet")
    sharded = open_shards(str(tmp_path / "*.parquet"), columns=None, limit=1)
    assert (sharded.steps, sharded.episodes) == (32, 2)


@pytest.mark.parametrize("ends", [[3, 7], [3, 7, 11]])
def test_the_end_of_a_file_is_the_end_of_an_episode_in_memory_and_in_shards(ends: list[int], tmp_path: Path) -> None:
    last = np.isin(np.arange(12), ends)
    for number in range(3):
        columns = {"obs_0": np.arange(12.0), "next_obs_0": np.arange(12.0) + 1, "reward": np.ones(12)}
        table = pa.table({**columns, "terminated": last, "truncated": np.zeros(12, bool)})
        pq.write_table(table, tmp_path / f"part-{number}.parquet")
    whole = vf.load(str(tmp_path / "*.parquet"))
    assert whole.truncated.sum() == (3 if len(ends) == 2 else 0)
    for limit in (1, 8 * 8 * 20 * 5, 1 << 20):
        sharded = open_shards(str(tmp_path / "*.parquet"), columns=None, limit=limit)
        same(whole, join_logs([shard.read() for shard in sharded.shards]))


def test_a_list_of_hdf5_files_is_read_in_parts(tmp_path: Path) -> None:
    log = log_with_actions(40)
    files = [hdf5_file(log[:300], tmp_path / "a.h5"), hdf5_file(log[300:], tmp_path / "b.h5")]
    settings = {"columns": {"behaviour_prob": "infos/prob"}}
    sharded = open_shards(files, limit=1, **settings)
    same(vf.load(files, **settings), join_logs([shard.read() for shard in sharded.shards]))
    assert len(sharded.shards) > 20


def test_flags_of_shape_n_1_and_ids_mark_episodes_in_hdf5(tmp_path: Path) -> None:
    done = np.arange(40)[:, None] % 4 == 3
    for name, marks in (("flags", {"terminals": done}), ("ids", {"episode": np.arange(40) // 4, "terminals": done})):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.update({"observations": np.arange(40.0)[:, None], "rewards": np.ones(40), **marks})
        sharded = open_shards(tmp_path / f"{name}.h5", columns=None, limit=1)
        assert (sharded.episodes, len(sharded.shards)) == (10, 4)
        same(vf.load(tmp_path / f"{name}.h5"), join_logs([shard.read() for shard in sharded.shards]))


def test_what_is_wrong_in_hdf5_and_minari_is_refused_when_they_are_opened(tmp_path: Path) -> None:
    columns = {"observations": np.ones((8, 2)), "rewards": np.ones(8), "terminals": np.ones(8)}
    cases = {
        "lengths": ({**columns, "observations": np.ones((9, 2))}, r"'rewards' has 8 rows, but 'observations' has 9"),
        "text": ({**columns, "rewards": ["a"] * 8}, r"Column 'rewards' of .* holds text"),
        "ends": ({"observations": np.ones((8, 2)), "rewards": np.ones(8)}, r"No column of .* marks how episodes end"),
        "empty": ({name: values[:0] for name, values in columns.items()}, r"The log is empty"),
    }
    for name, (arrays, words) in cases.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.update(arrays)
        with pytest.raises(ValueError, match=words):
            vf.load(tmp_path / f"{name}.h5", memory="stream")
    with h5py.File(tmp_path / "chunk.h5", "w") as file:
        file.update({name: values for name, values in columns.items() if name != "observations"})
        file.create_dataset("observations", data=columns["observations"], chunks=(8 << 20, 1), maxshape=(None, 2))
    with pytest.raises(TooLarge, match=r"One chunk of 'observations' in .*chunk.h5 needs 64.0 MiB"):
        vf.load(tmp_path / "chunk.h5", memory="stream", limit=1 << 20)
    path = Path(in_shards(log_with_actions(5), tmp_path, "minari").source)
    with pytest.raises(ValueError, match="define their own next observations"):
        vf.load(path, memory="stream", columns={"episode": "rewards"})


def test_a_minari_dataset_is_opened_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_with_actions(12)
    in_shards(log, tmp_path, "minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    sharded = vf.load("minari:lab/walk-v0", memory="stream", limit=8 * 64 * 20)
    assert repr(sharded).endswith("shards of minari:lab/walk-v0)")
    np.testing.assert_array_equal(join_logs([shard.read() for shard in sharded.shards]).reward, log.reward)


def test_files_of_other_types_are_refused(tmp_path: Path) -> None:
    columns = {"obs": np.arange(4), "reward": np.ones(4), "terminated": np.ones(4)}
    pq.write_table(pa.table(columns), tmp_path / "part-1.parquet")
    pq.write_table(pa.table({**columns, "obs": np.arange(4.0) / 3}), tmp_path / "part-2.parquet")
    with pytest.raises(ValueError, match=r"'obs' of .*part-2.parquet has type double, but that of .* has type int64"):
        vf.load(str(tmp_path / "*.parquet"), memory="stream")


def test_rows_that_another_thread_is_decoding_are_not_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second shard is asked for while the first is being decoded: it waits, and goes on with the same stream."""
    opened, decoding, go_on = [], Event(), Event()

    class Stream(parquet._RowStream):
        def __init__(self, *arguments: Any) -> None:
            opened.append(self)
            super().__init__(*arguments)

        def read(self, start: int, stop: int, limit: int) -> Any:
            decoding.set()
            assert go_on.wait(60)
            return super().read(start, stop, limit)

    log = log_with_actions(40)
    sharded = in_shards(log, tmp_path, "parquet", steps=100)
    assert isinstance(sharded.shards, tuple)
    monkeypatch.setattr(parquet, "_RowStream", Stream)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(sharded.shards[0].read)
        assert decoding.wait(60)
        second = threads.submit(sharded.shards[1].read)
        sleep(0.1)  # in which the second would open a stream of its own
        go_on.set()
        steps = len(first.result()) + len(second.result())
    same(join_logs([first.result(), second.result()]), log[:steps].compact())
    assert len(opened) == 1


def test_a_file_with_fewer_rows_than_it_declares_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sharded = in_shards(log_with_actions(10), tmp_path, "parquet", steps=1000)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: iter(()))
    with pytest.raises(ValueError, match=r"log.parquet holds fewer rows than it declares: the file is damaged"):
        sharded.shards[0].read()


def test_rows_within_a_row_group_are_read(tmp_path: Path) -> None:
    log = log_with_actions(40)
    vf.save(log, tmp_path / "log.parquet")
    table = pq.read_table(tmp_path / "log.parquet")
    pq.write_table(table, tmp_path / "groups.parquet", row_group_size=150)
    sharded = open_shards(tmp_path / "groups.parquet", columns=None, limit=8 * 64 * 100)
    same(log, join_logs([shard.read() for shard in sharded.shards]))


def test_shards_may_be_read_in_any_order_and_by_several_threads(tmp_path: Path) -> None:
    log = log_with_actions(40)
    sharded = in_shards(log, tmp_path, "parquet", steps=30)
    backwards = [shard.read() for shard in reversed(sharded.shards)]
    same(log, join_logs(backwards[::-1]))
    with ThreadPoolExecutor(4) as pool:
        same(log, join_logs(list(pool.map(lambda shard: shard.read(), sharded.shards))))


@pytest.mark.parametrize("kind", ["native", "parquet", "hdf5", "minari"])
def test_load_opens_what_exceeds_memory_in_shards(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_with_actions(40)
    path = in_shards(log, tmp_path, kind).source
    assert isinstance(vf.load(path), vf.Transitions)
    with pytest.raises(TooLarge, match="more than the limit"):
        vf.load(path, limit=20_000)  # a limit that is given is kept
    monkeypatch.setattr("valuefit.data.load.memory_limit", lambda: 20_000)
    found = vf.load(path)
    assert isinstance(found, ShardedLog)
    assert found.steps == len(log)
    assert repr(found).startswith("ShardedLog(")
    assert vf.load(found) is found


@pytest.mark.parametrize(
    ("limit", "size"), [("20 kB", 20_000), ("0.5KiB", 512), ("3G", 3 * 10**9), ("2gib", 2 << 30), (1e3, 1000), ("7", 7)]
)
def test_a_limit_is_a_number_of_bytes_or_text(limit: Any, size: int, tmp_path: Path) -> None:
    vf.save(log_with_actions(40), tmp_path / "log.parquet")
    assert vf.load(tmp_path / "log.parquet", memory="stream", limit=limit).limit == size


@pytest.mark.parametrize("limit", [-1, 0, 1.5, True, "2 apples", "-3MB", "", "9" * 30, [3]])
def test_other_limits_are_refused(limit: Any, tmp_path: Path) -> None:
    log = log_with_actions(5)
    vf.save(log, tmp_path / "log.parquet")
    for source, memory in ((tmp_path / "log.parquet", "auto"), (tmp_path / "log.parquet", "stream"), (log, "stream")):
        with pytest.raises(ValueError, match=r"^limit is .*; it must be a number of bytes, 1 or more, or text such as"):
            vf.load(source, memory=memory, limit=limit)


def test_what_takes_a_log_in_memory_says_so() -> None:
    sharded = vf.load(log_with_actions(5), memory="stream")
    evaluator = vf.PolicyEvaluator()
    for what in (
        vf.Problem,
        vf.Moments("identity").add,
        evaluator.fit,
        evaluator.partial_fit,
        partial(vf.save, path="x"),
    ):
        with pytest.raises(
            ValueError, match=r"takes a Transitions, not ShardedLog: load the log, or part of it, first"
        ):
            what(sharded)


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


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_truncated_file_and_one_that_disappears_are_named(kind: str, tmp_path: Path) -> None:
    sharded = in_shards(log_with_actions(40), tmp_path, kind)
    files = {"native": "log/reward.npy", "minari": "lab/walk-v0/data/main_data.hdf5"}
    path = tmp_path / files.get(kind, f"log.{kind}")
    whole = path.read_bytes()
    for damage in (lambda: path.write_bytes(whole[: len(whole) // 2]), path.unlink):
        damage()
        for run in (as_it_is(sharded).shards[-1].read, lambda: vf.evaluate(as_it_is(sharded), features="identity")):
            with pytest.raises(ValueError, match=rf"^In (rows|steps) [\d,]+ .*{tmp_path}/\w+[^\n]*$"):
                run()
        opened = rf"^{path} had .* since the log was opened|^In (rows|steps) [\d,]+ .*{tmp_path}/\w+[^\n]*$"
        with pytest.raises(ValueError, match=opened):
            sharded.shards[-1].read()
    with pytest.raises(ValueError, match=r"(?i)no file|missing|incomplete"):
        vf.load(tmp_path / files.get(kind, f"log.{kind}") if kind in ("parquet", "hdf5") else sharded.source,
                memory="stream")  # fmt: skip


def as_it_is(sharded: ShardedLog) -> ShardedLog:
    """The log as if its files had been opened as they are now."""
    return replace(sharded, shards=tuple(replace(shard, files=()) for shard in sharded.shards))


@pytest.mark.parametrize("kind", FILE_KINDS)
@pytest.mark.parametrize("same_time", [True, False])
def test_a_log_that_is_replaced_between_passes_is_refused(kind: str, same_time: bool, tmp_path: Path) -> None:
    log = log_with_actions(40)
    sharded, calls = in_shards(log, tmp_path, kind), []
    files = {"native": "log/reward.npy", "minari": "lab/walk-v0/data/main_data.hdf5"}
    path = tmp_path / files.get(kind, f"log.{kind}")

    def features(observations: Any) -> Any:
        if not calls:  # in the first pass over the rows
            calls.append(path)
            state = path.stat()
            shutil.copy(path, tmp_path / "copy")
            os.replace(tmp_path / "copy", path)
            if same_time:
                os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        return np.column_stack([np.ones(len(observations)), observations])

    with pytest.raises(ValueError, match=f"^{path} was written again since the log was opened.*Evaluate again when"):
        vf.evaluate(sharded, features=features, discount=0.9)
    assert vf.evaluate(as_it_is(sharded), features="identity").size[0] == len(log)  # evaluated again


def test_files_that_are_added_to_a_folder_do_not_matter(tmp_path: Path) -> None:
    log = log_with_actions(40)
    sharded = in_shards(log, tmp_path, "files")
    vf.save(log, tmp_path / "part-4.parquet")
    assert vf.evaluate(sharded, features="identity").size[0] == len(log)


@pytest.mark.parametrize("kind", [*FILE_KINDS, "files"])
@pytest.mark.parametrize("field", ["obs", "reward"])
def test_a_nan_in_shard_17_is_named_with_file_and_row(kind: str, field: str, tmp_path: Path) -> None:
    log = log_with_actions(60)
    step = int(np.flatnonzero(log.episode == 50)[3])
    sharded = in_shards(log, tmp_path, kind, steps=12)
    before = np.cumsum([0, *(len(shard.read()) for shard in sharded.shards)])
    number = int(np.searchsorted(before, step, side="right")) - 1
    assert number >= 17
    place = put_nan(tmp_path, kind, field, step, log)
    sharded = as_it_is(sharded)
    for shard in sharded.shards[:number]:
        shard.read()
    with pytest.raises(ValueError, match=rf"^In (rows|steps) .*(NaN|nan).* at (row|step) {re.escape(place)}[. ]"):
        sharded.shards[number].read()


def put_nan(folder: Path, kind: str, field: str, step: int, log: vf.Transitions) -> str:
    """Replace a number by NaN in a file; returns the row and the file that a message must name."""
    if kind == "native":
        file, row = folder / "log" / ("observations.npy" if field == "obs" else "reward.npy"), step
        values = np.load(file)
        row = int(log.now[step]) if field == "obs" else step
        values[row] = np.nan
        np.save(file, values)
        return f"{row:,}" if field == "obs" else f"{row:,} of {folder / 'log'}"
    if kind in ("hdf5", "minari"):
        group, row, file = "", step, folder / "log.hdf5"
        if kind == "minari":
            group, row = "episode_50/", 0 if field == "obs" else 3  # 3 is the next observation of step 2 too
            file = folder / "lab" / "walk-v0" / "data" / "main_data.hdf5"
        with h5py.File(file, "r+") as content:
            content[group + ("observations" if field == "obs" else "rewards")][row] = np.nan
        return f"{row:,} of {file}" if kind == "hdf5" else f"{row} of episode_50 of {folder / 'lab' / 'walk-v0'}"
    parts = np.arange(len(log)) * 4 // len(log)
    row = step if kind == "parquet" else step - int(np.flatnonzero(parts == parts[step])[0])
    file = folder / ("log.parquet" if kind == "parquet" else f"part-{parts[step]}.parquet")
    table = pq.read_table(file)
    name = "obs_1" if field == "obs" else "reward"
    values = table[name].to_numpy().copy()
    values[row] = np.nan
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, pa.array(values)), file)
    return f"{row:,} of {file}"


def test_parts_with_other_observations_are_not_joined() -> None:
    log = log_with_actions(5)
    wide = replace(log, observations=np.ones((len(log.observations), 3)))
    with pytest.raises(ValueError, match=r"observations of shape \(2,\), others of shape \(3,\)"):
        join_logs([log, wide])


def test_blocks_are_whole_episodes() -> None:
    log = log_with_actions(20)
    for steps in (1, 60, 10_000):
        blocks = list(episode_blocks(log, steps))
        same(log, join_logs(blocks))
        episodes = [set(block.episode) for block in blocks]
        assert sum(map(len, episodes)) == len(set.union(*episodes))
        lengths = [len(block) for block in blocks]
        assert max(lengths) <= max(steps, max(np.bincount(log.episode)))
        assert len(blocks) == 1 or min(lengths[:-1]) >= min(lengths[-1], len(log) / len(blocks)) - max(
            np.bincount(log.episode)
        )
    part = log[100:150].compact()
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


def test_declared_categories_are_refused_in_parts_with_what_to_do(tmp_path):
    wards = np.arange(200) // 2 % 3
    table = {"age": np.arange(200.0) % 7, "ward": wards, "reward": np.ones(200), "terminated": [0, 1] * 100}
    pd.DataFrame(table).to_parquet(tmp_path / "log.parquet")
    columns = {"obs": ["age", "ward"], "categorical": ["ward"]}
    with pytest.raises(
        ValueError, match=r"columns declares 'ward' as categorical.* read in parts.* load it into memory"
    ):
        vf.load(tmp_path / "log.parquet", columns=columns, memory="stream")
    expected = vf.load(tmp_path / "log.parquet", columns=columns, limit="1GB")
    dummies = pd.get_dummies(pd.DataFrame(table), columns=["ward"], dtype=float)
    dummies.to_parquet(tmp_path / "dummies.parquet")
    columns = {"obs": ["age", "ward_0", "ward_1", "ward_2"]}
    streamed = vf.load(tmp_path / "dummies.parquet", columns=columns, memory="stream")
    rows = np.concatenate([(log := shard.read()).observations[log.now] for shard in streamed.shards])
    np.testing.assert_array_equal(rows, expected.observations[expected.now])
