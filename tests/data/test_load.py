"""`load` and `save`: the same steps from any format give the same log, and a saved log is loaded unchanged."""

import dataclasses
import gzip
import sys
import time
from pathlib import Path

import gymnasium
import h5py
import hypothesis.extra.numpy as hnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import valuefit as vf
from helpers.log_files import WRITERS, assert_same_log, d4rl, expected, flat, minari_dataset, steps
from valuefit.data.readers import formats
from valuefit.data.shards import ShardedLog

COLUMNS = steps()
SAVED_NAMES = ["folder", "log.parquet", "log.npz"]


# ---- every source --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WRITERS)
def test_every_source_gives_the_same_log(kind, tmp_path):
    source = WRITERS[kind](COLUMNS, tmp_path)
    mapping = {"behaviour_prob": "infos/prob"} if kind == "minari" else None
    log = vf.load(source, columns=mapping)
    if kind == "d4rl":  # probabilities went through a logarithm
        np.testing.assert_allclose(log.behaviour_prob, COLUMNS["behaviour_prob"], rtol=1e-14)
        log = dataclasses.replace(log, behaviour_prob=COLUMNS["behaviour_prob"])
    assert_same_log(log, expected())
    assert log.notes == (() if kind != "parquet parts" else log.notes[:1])  # that several files were read
    if isinstance(source, Path):
        assert log.source == str(source)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("trace", [0.0, 0.7])
def test_every_source_gives_the_same_moments(kind, trace, tmp_path):
    log = vf.load(WRITERS[kind](COLUMNS, tmp_path))
    for found, correct in zip(
        vf.Problem(log, discount=0.9, trace=trace).moments(),
        vf.Problem(expected(), discount=0.9, trace=trace).moments(),
        strict=True,
    ):
        np.testing.assert_allclose(found, correct, rtol=1e-12)


@pytest.mark.parametrize("kind", WRITERS)
def test_integers_are_states_from_every_source(kind, tmp_path):
    rng = np.random.default_rng(3)
    columns = {**COLUMNS, "obs": rng.integers(0, 5, len(COLUMNS["reward"]))}
    follows = np.append(columns["obs"][1:], 9)
    columns["next_obs"] = np.where(columns["truncated"], rng.integers(0, 5, len(follows)), follows)
    if kind == "minari":
        source = minari_dataset(columns, tmp_path, space=gymnasium.spaces.Discrete(10))
    else:
        source = WRITERS[kind](columns, tmp_path)
    log = vf.load(source)
    np.testing.assert_array_equal(log.observations, np.arange(5))
    np.testing.assert_array_equal(log.observations[log.now], columns["obs"])
    continues = ~columns["terminated"]
    np.testing.assert_array_equal(log.observations[log.next[continues]], columns["next_obs"][continues])
    assert "5 states" in log.notes[-1]


class OnlyArrow:
    """A table with nothing but the Arrow stream protocol, which polars and others implement."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def test_any_object_with_the_arrow_protocol_is_a_table():
    assert_same_log(vf.load(OnlyArrow(pa.table(flat(COLUMNS)))), expected())


def test_a_minari_id_is_looked_up_in_the_folder_of_minari(tmp_path, monkeypatch):
    minari_dataset(COLUMNS, tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    log = vf.load("minari:lab/walk-v0", columns={"behaviour_prob": "infos/prob"})
    assert_same_log(log, expected())
    assert log.source == "minari:lab/walk-v0"
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".minari").mkdir(parents=True)
    (tmp_path / "home" / ".minari" / "datasets").symlink_to(tmp_path)
    assert_same_log(vf.load("minari:lab/walk-v0", columns={"behaviour_prob": "infos/prob"}), expected())


def test_minari_observations_that_are_dicts_are_mapped_by_their_parts(tmp_path):
    parts = {"place": COLUMNS["obs"][:, :2], "speed": COLUMNS["obs"][:, 2]}
    after = {"place": COLUMNS["next_obs"][:, :2], "speed": COLUMNS["next_obs"][:, 2]}
    root = minari_dataset(COLUMNS, tmp_path)
    with h5py.File(root / "data" / "main_data.hdf5", "a") as file:  # as Minari stores spaces.Dict
        for name, group in file.items():
            here = COLUMNS["episode"] == int(name.split("_")[1])
            del group["observations"]
            for part in parts:
                group[f"observations/{part}"] = np.concatenate([parts[part][here], after[part][here][-1:]])
    mapping = {"behaviour_prob": "infos/prob", "obs": ["observations/place", "observations/speed"]}
    assert_same_log(vf.load(root, columns=mapping), expected())
    assert_same_log(vf.load(root, columns={**mapping, "obs": "observations/"}), expected())
    with pytest.raises(ValueError, match=r"has no column obs_0.*columns=\{'obs': ...\}.*'observations/place'"):
        vf.load(root)


def test_the_reset_entry_of_minari_infos_is_dropped(tmp_path):
    root = minari_dataset(COLUMNS, tmp_path)
    with h5py.File(root / "data" / "main_data.hdf5", "a") as file:
        for group in file.values():
            prob = group["infos/prob"][()]
            del group["infos/prob"]
            group["infos/prob"] = np.concatenate([[7.0], prob])
    assert_same_log(vf.load(root, columns={"behaviour_prob": "infos/prob"}), expected())


def test_d4rl_without_timeouts_ends_episodes_where_the_next_observation_differs(tmp_path):
    log = vf.load(d4rl(COLUMNS, tmp_path / "log.h5", leave_out=["timeouts"]))
    np.testing.assert_array_equal(log.truncated[:-1], COLUMNS["truncated"][:-1])  # no row follows the last one
    np.testing.assert_array_equal(log.begins, expected().begins)
    assert "the next observation differs from the observation of the next row" in log.notes[0]


def test_d4rl_with_timeouts_and_no_next_observations_drops_the_truncated_steps(tmp_path):
    log = vf.load(d4rl(COLUMNS, tmp_path / "log.h5", leave_out=["next_observations"]))
    count = int(COLUMNS["truncated"].sum())
    assert len(log) == len(COLUMNS["reward"]) - count
    assert log.continuity.cut == count
    kept = expected()[~COLUMNS["truncated"]]
    np.testing.assert_array_equal(log.observations[log.now], kept.observations[kept.now])
    np.testing.assert_array_equal(log.reward, kept.reward)
    np.testing.assert_array_equal(log.terminated, kept.terminated)


def test_load_returns_a_log_unchanged():
    log = expected()
    assert vf.load(log) is log


# ---- saving --------------------------------------------------------------------------------------


@st.composite
def logs(draw):
    """Ragged logs of states, scalars or vectors, of common dtypes, with and without the optional columns."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    n = sum(lengths)
    ids = draw(st.permutations(range(-2, 8)))[: len(lengths)]
    shape = draw(st.sampled_from([(), (1,), (3,)]))
    dtype = draw(st.sampled_from([np.float64, np.float32, np.int64, np.int16]))
    values = st.integers(-3, 3) if np.dtype(dtype).kind == "i" else st.floats(-4, 4, width=16).map(lambda x: x + 0.0)
    observation = draw(hnp.arrays(dtype, (n, *shape), elements=values))
    last = np.concatenate([np.arange(length) == length - 1 for length in lengths])
    terminated = last & np.repeat(draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))), lengths)
    truncated = last & np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    after = None
    if draw(st.booleans()) or not terminated[last].all():
        follows = np.concatenate([observation[1:], observation[:1]])
        own = draw(hnp.arrays(dtype, (n, *shape), elements=values))
        keep = (draw(st.booleans()) & ~last).reshape(-1, *[1] * len(shape))
        after = np.where(keep, follows, own)
    positive = st.floats(0.125, 4, width=16)
    many = {"elements": positive}
    return vf.Transitions.from_arrays(
        observation,
        draw(hnp.arrays(np.float64, n, elements=st.floats(-4, 4))),
        terminated=terminated,
        truncated=truncated,
        episode=np.repeat(ids, lengths),
        next_observation=after,
        action=draw(
            st.none() | hnp.arrays(np.int64, n, elements=st.integers(0, 3)) | hnp.arrays(np.float32, (n, 2), **many)
        ),
        behaviour_prob=draw(st.none() | hnp.arrays(np.float64, n, elements=st.floats(0.125, 1))),
        ratio=draw(st.none() | hnp.arrays(np.float64, n, **many)),
    )


@settings(max_examples=80)
@given(logs(), st.sampled_from(SAVED_NAMES))
def test_a_saved_log_is_loaded_unchanged(tmp_path_factory, log, name):
    path = vf.save(log, tmp_path_factory.mktemp("saved") / name)
    assert_same_log(vf.load(path), log)


@settings(max_examples=40)
@given(logs(), st.data())
def test_a_folder_keeps_any_selection_of_steps(tmp_path_factory, log, data):
    piece = log[data.draw(st.lists(st.integers(0, len(log) - 1), min_size=1, max_size=8))]
    assert_same_log(vf.load(vf.save(piece, tmp_path_factory.mktemp("saved") / "folder")), piece)


@pytest.mark.parametrize("name", SAVED_NAMES)
def test_an_episode_truncated_in_the_state_where_the_next_begins_keeps_its_last_step(name, tmp_path):
    log = vf.Transitions.from_arrays([0, 1, 2], [1.0, 2.0, 3.0], next_observation=[1, 2, 0], truncated=[0, 1, 0],
                                     terminated=[0, 0, 1], episode=[0, 0, 1])  # fmt: skip
    assert_same_log(vf.load(vf.save(log, tmp_path / name)), log)


@pytest.mark.parametrize("name", SAVED_NAMES[1:])
def test_a_table_keeps_consecutive_steps_and_refuses_other_selections(name, tmp_path):
    piece = expected()[2:12]
    assert_same_log(vf.load(vf.save(piece, tmp_path / name)), piece, rows=False)
    for selection in (expected()[[0, 2, 3]], expected()[[6, 6]], expected()[::-1]):
        with pytest.raises(ValueError, match="is a selection in which the steps of an episode are not consecutive"):
            vf.save(selection, tmp_path / f"selection-{name}")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_notes_are_saved_with_a_folder(tmp_path):
    log = dataclasses.replace(expected(), notes=("Left out <b>[/]\x1b.",))
    assert vf.load(vf.save(log, tmp_path / "log")).notes == log.notes


def test_observations_of_a_folder_are_memory_mapped(tmp_path):
    log = vf.load(vf.save(expected(), tmp_path / "log"))
    base = log.observations
    while not isinstance(base, np.memmap):
        base = base.base
    assert base.filename == tmp_path / "log" / "observations.npy"
    assert vf.solve(vf.Problem(log, discount=0.9, ridge=0.1), "saga", max_passes=3).theta.shape == (3,)


def test_images_are_saved_as_a_folder_or_npz_and_not_as_a_table(tmp_path):
    log = vf.Transitions.from_arrays(np.ones((4, 2, 2)), np.ones(4), terminated=[0, 0, 0, 1])
    for name in ("folder", "log.npz"):
        assert_same_log(vf.load(vf.save(log, tmp_path / name)), log)
    with pytest.raises(ValueError, match=r"shape \(2, 2\) do not fit the columns of a table. Save the log as a folder"):
        vf.save(log, tmp_path / "log.parquet")


@pytest.mark.parametrize("name", SAVED_NAMES)
def test_nothing_is_overwritten_without_force(name, tmp_path):
    first, second = expected(), expected()[:3]
    path = vf.save(first, tmp_path / name)
    with pytest.raises(ValueError, match="already exists"):
        vf.save(second, path)
    assert_same_log(vf.load(path), first)
    vf.save(second, path, force=True)
    assert_same_log(vf.load(path), second, rows=False)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_folder_with_other_files_is_never_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(ValueError, match="contains other files than a valuefit log"):
        vf.save(expected(), tmp_path / "thesis", force=True)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("text")
    with pytest.raises(ValueError, match="is a file, but a folder would be written"):
        vf.save(expected(), tmp_path / "file", force=True)
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(ValueError, match="is a folder, but a file would be written"):
        vf.save(expected(), tmp_path / "folder.parquet", force=True)


def test_a_link_to_a_folder_is_replaced_and_not_its_target(tmp_path):
    vf.save(expected(), tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    vf.save(expected()[:3], tmp_path / "link", force=True)
    assert len(vf.load(tmp_path / "real")) == len(expected())
    assert len(vf.load(tmp_path / "link")) == 3


@pytest.mark.parametrize("name", SAVED_NAMES)
def test_a_failed_write_keeps_the_old_log_and_leaves_no_temporary_file(name, tmp_path, monkeypatch):
    kept = vf.save(expected(), tmp_path / name)

    def disk_full(*arguments, **more):
        raise OSError("No space left on device")

    for function in ("valuefit.data.writers._write_array", "numpy.savez", "pyarrow.parquet.write_table"):
        monkeypatch.setattr(function, disk_full)
    with pytest.raises(OSError, match="No space left"):
        vf.save(expected()[:3], kept, force=True)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    monkeypatch.undo()
    assert_same_log(vf.load(kept), expected())


@pytest.mark.parametrize("suffix", [".csv", ".h5", ".pkl"])
def test_formats_that_cannot_be_written_are_refused(suffix, tmp_path):
    with pytest.raises(ValueError, match=f"saves logs as folders, .parquet or .npz, not as {suffix}"):
        vf.save(expected(), tmp_path / f"log{suffix}")
    with pytest.raises(ValueError, match=r"There is no folder .*nowhere' to write into"):
        vf.save(expected(), tmp_path / "nowhere" / "log")


# ---- invalid sources and missing packages --------------------------------------------------------


def test_sources_that_are_not_logs_are_refused(tmp_path):
    (tmp_path / "log.txt").write_text("1 2 3")
    for source, message in (
        (tmp_path / "none.csv", r"There is no file '.*none.csv'"),
        (tmp_path / "log.txt", r"log.txt has an unsupported extension. valuefit reads .csv, .tsv, "),
        (
            tmp_path,
            r"neither a log that valuefit saved nor a Minari dataset, and it contains no files that.* reads \(.csv",
        ),
        ("https://example.org/log.csv", "is not on this machine. Download it first"),
        ("x" * 5000, r"There is no file 'x{50,60}\.\.\.: this name is too long for a file"),
        ("[" * 5000, r"There is no file '\[{50,60}\.\.\.: this name is too long for a file"),
        (["x" * 5000 + ".csv"], r"There is no file 'x{50,60}\.\.\.: this name is too long for a file"),
        (7, "cannot read a log of type int. Give a path"),
        (None, "cannot read a log that is None. Give a path"),
        (np.ones((3, 3)), "cannot read a log of type ndarray"),
    ):
        with pytest.raises(ValueError, match=message):
            vf.load(source)
    with pytest.raises(ValueError, match="the source is already a log"):
        vf.load(expected(), columns={"reward": "r"})
    with pytest.raises(ValueError, match="has fixed column names"):
        vf.load(vf.save(expected(), tmp_path / "log"), columns={"reward": "r"})


@pytest.mark.parametrize("kind", ["pandas", "csv", "parquet", "d4rl", "minari"])
def test_a_missing_package_is_named_with_its_extra(kind, tmp_path, monkeypatch):
    source = WRITERS[kind](COLUMNS, tmp_path)
    package = "h5py" if kind in ("d4rl", "minari") else "pyarrow"
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf"needs {package}. Install it with: pip install 'valuefit\[files\]'"):
        vf.load(source)
    if kind == "parquet":
        with pytest.raises(ValueError, match="Writing Parquet needs pyarrow"):
            vf.save(expected(), tmp_path / "other.parquet")


# ---- size ----------------------------------------------------------------------------------------


def large(n, folder):
    """The same n steps of 50 numbers in five formats."""
    rng = np.random.default_rng(0)
    columns = {
        "obs": rng.normal(size=(n, 50)),
        "reward": rng.normal(size=n),
        "terminated": np.arange(n) % 100 == 99,
        "truncated": np.zeros(n, bool),
        "episode": np.arange(n) // 100,
    }
    sources = [WRITERS[kind](columns, folder) for kind in ("npz", "d4rl")]
    pq.write_table(pa.table(flat(columns)), folder / "large.parquet", row_group_size=10_000)
    pa.csv.write_csv(pa.table(flat(columns)), folder / "large.csv")
    return [*sources, folder / "large.parquet", folder / "large.csv", vf.save(vf.load(columns), folder / "native")]


def check_large(n, folder, seconds):
    logs = []
    for source in large(n, folder):
        start = time.perf_counter()
        logs.append(vf.load(source))
        assert time.perf_counter() - start < seconds, source
    for log in logs[1:]:
        assert_same_log(log, logs[0])


def test_fifty_thousand_steps_of_fifty_columns_load_in_seconds(tmp_path):
    check_large(50_000, tmp_path, seconds=10)


@pytest.mark.slow
def test_a_million_steps_of_fifty_columns_load_in_seconds(tmp_path):
    check_large(1_000_000, tmp_path, seconds=60)


@pytest.mark.parametrize("extension", sorted({*formats(), ".CSV", ".H5"}))
def test_every_extension_is_read(extension, tmp_path):
    kinds = {".tsv": "csv", ".pq": "parquet", ".h5": "d4rl", ".hdf5": "d4rl", ".json": "rllib"}
    kinds |= dict.fromkeys((".jsonl", ".ndjson"), "json lines")
    plain = extension.lower().removesuffix(".gz")
    source = WRITERS[kinds.get(plain, plain[1:])](COLUMNS, tmp_path)
    if extension.endswith(".gz"):
        source.write_bytes(gzip.compress(source.read_bytes()))
    assert len(vf.load(source.rename(tmp_path / f"renamed{extension}"))) == len(COLUMNS["reward"])


def test_numbers_in_arrays_of_objects_are_numbers_unless_they_would_change():
    table = {"reward": np.ones(3), "terminated": np.array([False, False, True])}
    pairs = np.array([[0.5, 1], [2, 3], [4, 5]], object)
    assert vf.load({**table, "obs": pairs}).observations.tolist() == [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]]
    ids = vf.load({**table, "obs": np.array([2**60 + 1, 0, 1], object)})
    assert ids.observations[ids.now].tolist() == [2**60 + 1, 0, 1]
    with pytest.raises(ValueError, match="an object of type"):
        vf.load({**table, "obs": np.array([2**60 + 1, 0.5, 1], object)})


@pytest.mark.parametrize("text", [False, True])
def test_ids_that_begin_again_in_every_file_are_refused_in_memory_and_in_parts(text: bool, tmp_path: Path) -> None:
    episode, step, paths = np.repeat([0, 1], 4), np.tile(np.arange(4), 2), []
    for number in range(2):
        columns = {"obs_0": np.arange(8.0) + number, "reward": np.ones(8), "episode": episode}
        columns |= {"next_obs_0": np.ones(8), "terminated": np.zeros(8)}
        if text:
            columns["episode"] = np.array(["a", "b"])[episode]
        paths.append(tmp_path / f"part-{number}.parquet")
        pd.DataFrame(columns).to_parquet(paths[-1])
    first = "'a'" if text else "0"
    refused = rf"^Episode {first} is in .*part-0.parquet and, after other episodes, in .*part-1.parquet"
    with pytest.raises(ValueError, match=refused):
        vf.load(paths)
    with pytest.raises(ValueError, match=f"The steps of episode {first} are not contiguous"):
        vf.load(paths, memory="stream")
    for number, path in enumerate(paths):
        frame = pd.read_parquet(path)
        frame.assign(step=step + 4 * number).to_parquet(path)
    assert len(vf.load(paths).episodes) == 2
    for number, path in enumerate(paths):
        frame = pd.read_parquet(path).drop(columns="step")
        frame.assign(episode=frame["episode"].astype(str) + f" of {number}").to_parquet(path)
    assert len(vf.load(paths).episodes) == vf.load(paths, memory="stream").episodes == 4


@pytest.mark.parametrize(("copies", "streamed"), [(7.5, True), (8.5, False)])
def test_a_log_is_read_in_parts_if_loading_it_would_take_more_than_half_of_memory(
    copies: float, streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 10_000
    columns = {"obs_0": np.ones(n) / 3, "reward": np.ones(n) / 7, "terminated": np.arange(n) % 10 == 9.0}
    table = pa.table({name: np.asarray(values, float) for name, values in columns.items()})
    pq.write_table(table, tmp_path / "log.parquet")
    np.savez(tmp_path / "log.npz", **columns)
    monkeypatch.setattr("valuefit.data.load.memory_limit", lambda: int(copies * table.nbytes))
    assert isinstance(vf.load(tmp_path / "log.parquet"), ShardedLog) == streamed
    assert len(vf.load(tmp_path / "log.npz")) == n  # it cannot be read in parts
