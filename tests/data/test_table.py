"""Several files as one table: episodes across files, columns that differ, exact numbers, memory."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import valuefit as vf
from helpers.log_files import assert_same_log, expected, flat, steps
from valuefit.data.table import Table, join, join_parts

COLUMNS = steps()
TABLE = pd.DataFrame(flat(COLUMNS))


def write(folder, *tables):
    """One CSV file per table."""
    for number, table in enumerate(tables):
        table.to_csv(folder / f"part-{number}.csv", index=False)
    return folder


def without(*names):
    return TABLE.drop(columns=[column for column in TABLE if column.startswith(names)])


def test_episodes_continue_from_file_to_file_by_their_ids(tmp_path):
    cuts = [0, 3, 10, 11, 20, len(TABLE)]  # inside episodes
    parts = [TABLE[start:stop] for start, stop in pairwise(cuts)]
    assert_same_log(vf.load(write(tmp_path, *parts)), expected())


def test_steps_of_an_episode_in_files_of_any_order_are_sorted_by_step(tmp_path):
    table = TABLE.assign(t=np.arange(len(TABLE)))
    log = vf.load(write(tmp_path, table[20:], table[:20]))
    assert "Rows were sorted by episode and step." in log.notes
    assert_same_log(log.select(range(12)), log)
    np.testing.assert_array_equal(np.sort(log.reward), np.sort(expected().reward))
    for episode in range(12):
        np.testing.assert_array_equal(log.select(episode).reward, expected().select(episode).reward)


def test_without_ids_each_file_ends_its_episode(tmp_path):
    """The same files one by one, with their episodes renumbered, give the same steps."""
    table = without("episode")
    parts = [table[:3], table[3:10], table[10:]]  # the first cut is inside an episode, the second too
    for number, part in enumerate(parts):
        part.to_csv(tmp_path / f"{number}.csv", index=False)
    log = vf.load(tmp_path)
    alone = [vf.load(tmp_path / f"{number}.csv") for number in range(3)]
    np.testing.assert_array_equal(log.begins, np.concatenate([one.begins for one in alone]))
    np.testing.assert_array_equal(log.reward, np.concatenate([one.reward for one in alone]))
    np.testing.assert_array_equal(log.terminated, TABLE["terminated"])
    assert log.truncated[2]
    assert log.begins[3]
    assert "the episode at the end of a file is treated as truncated there (2 files)" in log.notes[1]


def test_without_ids_and_next_observations_the_cut_step_is_left_out(tmp_path):
    table = without("episode", "next_obs", "truncated")
    terminated = np.arange(len(table)) % 5 == 4
    table = table.assign(terminated=terminated)
    log = vf.load(write(tmp_path, table[:7], table[7:15]))
    assert len(log) == 14
    assert log.continuity.cut == 1
    np.testing.assert_array_equal(log.reward, np.delete(table["reward"].to_numpy()[:15], 6))


def test_the_same_id_in_two_files_is_one_episode_so_a_restart_is_refused(tmp_path):
    with pytest.raises(ValueError, match="marked as terminated or truncated, but episode 0 continues after it"):
        vf.load(write(tmp_path, TABLE[:5], TABLE[:5]))


def test_files_with_different_columns_are_refused(tmp_path):
    for other, message in (
        (without("truncated"), r"part-1.csv has no column for truncated, but .*part-0.csv has the column 'truncated'"),
        (TABLE.assign(obs_3=0.0), r"the columns 'obs_0' to 'obs_3' \(4\) for obs, but .* 'obs_0' to 'obs_2' \(3\)"),
        (TABLE.rename(columns={"action": "actions"}), "has the column 'actions' for action, but"),
        (TABLE.assign(episode="a"), r"'episode' holds text, 'a' at row 0 of .*part-1.csv, but numbers in .*part-0.csv"),
    ):
        with pytest.raises(ValueError, match=message):
            vf.load(write(tmp_path, TABLE, other))


def test_lists_of_different_length_in_two_files_are_refused(tmp_path):
    for number, width in enumerate((2, 3)):
        lists = [[0.5] * width] * 4
        table = pa.table({"obs": lists, "reward": [0.0] * 4, "done": [0, 0, 0, 1]})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    with pytest.raises(ValueError, match=r"'obs' has entries of shape \(3,\) in .*1.parquet and \(2,\) in .*0.parquet"):
        vf.load(tmp_path)


def test_empty_parts_are_skipped(tmp_path):
    assert_same_log(vf.load(write(tmp_path, TABLE[:0], TABLE[:8], TABLE[:0], TABLE[8:])), expected())
    with pytest.raises(ValueError, match="empty"):
        vf.load([tmp_path / "part-0.csv", tmp_path / "part-2.csv"])


def test_integers_and_floats_are_joined_only_if_no_integer_is_rounded():
    whole, half = np.array([1, 2**60 + 1]), np.array([0.5])
    np.testing.assert_array_equal(join_parts("r", [whole[:1], half], ["a", "b"]), [1, 0.5])
    with pytest.raises(ValueError, match=r"'r' of a is 1152921504606846977 at row 1, which float64 does not represent"):
        join_parts("r", [whole, half], ["a", "b"])
    joined = join_parts("r", [whole, np.array([7], np.int32)], ["a", "b"])
    assert joined.tolist() == [1, 2**60 + 1, 7]


def test_the_limit_counts_all_files(tmp_path):
    source = write(tmp_path, *[TABLE] * 4)
    with pytest.raises(ValueError, match=r"needs 1\d.\d KiB in memory, more than the limit of 9.8 KiB"):
        vf.load(source, limit=10_000)


def test_joining_holds_the_columns_once_and_one_column_twice():
    n, parts = 100_000, 10

    def tables():
        for number in range(parts):
            columns = {name: np.full(n, float(number)) for name in ("reward", "obs_0", "obs_1", "obs_2")}
            matched = {"reward": "reward", "obs": ("obs_0", "obs_1", "obs_2")}
            yield Table(matched, columns.__getitem__, f"file {number}")

    tracemalloc.start()
    try:
        joined = join(tables(), "ten files", 1 << 30)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    column = 8 * n * parts
    assert len(joined.read("obs_0")) == n * parts
    assert peak < 6 * column  # four columns, one of them twice, and a part
