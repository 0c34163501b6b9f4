"""Untrusted files: no unpickling, sizes checked before reading, no links followed, and errors for damaged content."""

import io
import json
import pickle
import socket
import zipfile
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import valuefit as vf
from helpers.log_files import WRITERS, minari_dataset, steps
from valuefit.data.readers import native
from valuefit.memory import memory_limit

COLUMNS = steps()
MEGABYTE = 2**20


def refused(message, source, **settings):
    with pytest.raises(ValueError, match=message):
        vf.load(source, **settings)


class CreatesFile:
    """An object whose unpickling creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def objects(tmp_path):
    """An object array; the test fails if its elements are unpickled."""
    created = tmp_path / "unpickled"
    array = np.empty(3, object)
    array[:] = CreatesFile(created)
    yield array
    assert not created.exists()


def npy_bytes(array=None, *, shape=None, dtype="<f8", version=(1, 0)):
    """The bytes of an .npy file, or of a header alone that declares this shape."""
    stream = io.BytesIO()
    if array is not None:
        np.lib.format.write_array(stream, array, allow_pickle=True)
        return stream.getvalue()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def npz(path, **entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(f"{name}.npy", content if isinstance(content, bytes) else npy_bytes(np.asarray(content)))
    return path


# ---- sizes ---------------------------------------------------------------------------------------


def test_a_small_npz_with_large_arrays_is_refused_before_it_is_read(tmp_path, monkeypatch):
    n = 20 * MEGABYTE
    path = npz(tmp_path / "large.npz", observation=np.zeros(n), reward=np.zeros(1), done=np.ones(1))
    assert path.stat().st_size < 200_000
    monkeypatch.setattr("valuefit.data.npy._read_entry", lambda *_: pytest.fail("an array was read"))
    refused(
        r"large.npz needs 160.0 MiB in memory, more than the limit of 100.0 MiB.*larger `limit`",
        path,
        limit=100 * MEGABYTE,
    )


def test_an_entry_that_declares_more_than_it_holds_is_refused(tmp_path):
    path = npz(tmp_path / "a.npz", observation=npy_bytes(shape=(10**9,)), reward=np.zeros(1), done=np.ones(1))
    refused(r"'observation' in .*a.npz declares more numbers than it holds", path)
    path = npz(tmp_path / "b.npz", observation=npy_bytes(shape=(2**40, 2**40)), reward=np.zeros(1), done=np.ones(1))
    refused(r"'observation' in .*b.npz is not an array of numbers in .npy format \(its shape is", path)


def test_arrays_that_are_not_read_do_not_count(tmp_path):
    path = npz(tmp_path / "log.npz", observation=np.ones((2, 1)), reward=[1, 2], done=[0, 1], video=np.zeros(MEGABYTE))
    assert len(vf.load(path, limit=1000)) == 2


@pytest.mark.parametrize("kind", ["csv", "parquet", "parquet with lists", "npz", "d4rl", "minari"])
def test_every_reader_checks_the_size(kind, tmp_path):
    source = WRITERS[kind](COLUMNS, tmp_path)
    mapping = {"behaviour_prob": "infos/prob"} if kind == "minari" else None
    steps = len(COLUMNS["reward"])
    refused(r"needs .* in memory, more than the limit of 1.6 KiB", source, columns=mapping, limit=steps * 8 * 6)
    assert len(vf.load(source, columns=mapping, limit=10 * MEGABYTE)) == steps


def test_the_default_limit_is_half_of_memory(tmp_path, monkeypatch):
    source = WRITERS["npz"](COLUMNS, tmp_path)
    monkeypatch.setattr("valuefit.data.load.memory_limit", lambda: 100)
    refused(r"takes up to 3 times its contents, .* but half of the memory is 100 bytes", source)
    monkeypatch.undo()
    assert memory_limit() > 2**28


def test_the_size_of_a_parquet_column_of_one_value_is_that_of_its_rows(tmp_path):
    n = 2 * MEGABYTE
    numbers = pa.array(np.zeros(n))
    pq.write_table(pa.table({"obs": numbers, "reward": numbers, "done": numbers}), tmp_path / "log.parquet")
    assert (tmp_path / "log.parquet").stat().st_size < 50_000
    refused(r"needs 48.0 MiB", tmp_path / "log.parquet", limit=20 * MEGABYTE)
    lists = pa.FixedSizeListArray.from_arrays(np.zeros(n), 2**18)
    small = pa.array(np.zeros(8))
    pq.write_table(pa.table({"obs": lists, "reward": small, "done": small}), tmp_path / "list.parquet")
    refused(r"needs 16.0 MiB", tmp_path / "list.parquet", limit=10 * MEGABYTE)


def test_the_size_of_a_csv_is_that_of_its_lines(tmp_path):
    (tmp_path / "log.csv").write_text("obs,reward,done\n" + "0,0,0\n" * 100_000)
    refused(r"needs 2.3 MiB", tmp_path / "log.csv", limit=MEGABYTE)


def test_an_hdf5_shape_without_data_and_a_chunk_larger_than_its_data_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("observations", (2**40, 8), "f8", chunks=(1024, 8))
        file["rewards"] = file["terminals"] = np.ones(1)
    assert (tmp_path / "a.h5").stat().st_size < 100_000
    refused(r"a.h5 needs 65536.0 GiB", tmp_path / "a.h5", limit=1 << 30)
    refused(r"'rewards' has 1 rows, but 'observations' has 1099511627776", tmp_path / "a.h5")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        for name in ("observations", "rewards", "terminals"):
            file.create_dataset(name, (2**40,), "f8", chunks=(1024,))
    refused(r"'observations' in .*c.h5 declares far more numbers than it holds", tmp_path / "c.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        chunk = {"chunks": (MEGABYTE,), "maxshape": (None,), "compression": "gzip"}
        file.create_dataset("observations", data=np.zeros(4), **chunk)
        file["rewards"] = file["terminals"] = np.ones(4)
    refused(r"b.h5 needs 8.0 MiB", tmp_path / "b.h5", limit=MEGABYTE)


# ---- pickles -------------------------------------------------------------------------------------


def test_pickles_in_npz_are_refused(tmp_path, objects):
    path = npz(tmp_path / "log.npz", observation=npy_bytes(objects), reward=np.zeros(3), done=np.ones(3))
    refused(r"'observation' in .*log.npz holds Python objects, not numbers. valuefit does not unpickle objects", path)
    path = npz(tmp_path / "raw.npz", observation=pickle.dumps(objects), reward=np.zeros(3), done=np.ones(3))
    refused(r"'observation' in .*raw.npz is not an array of numbers in .npy format", path)
    (tmp_path / "whole.npz").write_bytes(pickle.dumps(objects))
    refused(r"is not an .npz file", tmp_path / "whole.npz")
    path = npz(tmp_path / "dates.npz", observation=np.zeros(2, "M8[s]"), reward=np.zeros(2), done=np.ones(2))
    refused(r"'observation' in .*dates.npz holds dtype datetime64\[s\], not numbers", path)


@pytest.mark.parametrize("name", ["observations", "reward", "action"])
def test_pickles_in_a_folder_are_refused(name, tmp_path, objects):
    path = vf.save(vf.load(COLUMNS), tmp_path / "log")
    (path / f"{name}.npy").write_bytes(npy_bytes(objects))
    refused(rf"{name}.npy holds Python objects, not numbers", path)
    (path / f"{name}.npy").write_bytes(pickle.dumps(objects))
    refused(rf"{name}.npy is not an array of numbers", path)


def test_no_reader_allows_pickles():
    for path in (Path(native.__file__).parent).glob("*.py"):
        text = path.read_text()
        assert "allow_pickle=True" not in text
        assert "np.load(" not in text
        assert "import pickle" not in text


# ---- HDF5 ----------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path):
    """A valid file that another file links to."""
    with h5py.File(tmp_path / "outside.h5", "w") as file:
        file["observations"] = np.ones((4, 2))
    return tmp_path / "outside.h5"


def hdf5(path, write):
    with h5py.File(path, "w") as file:
        write(file)
        file["rewards"] = file["terminals"] = np.ones(4)
    return path


def test_links_out_of_an_hdf5_file_are_refused(tmp_path, outside):
    def external(file):
        file["observations"] = h5py.ExternalLink(outside, "/observations")

    refused(r"'observations' in .*a.h5 is a link.*Copy the data into the file", hdf5(tmp_path / "a.h5", external))

    def indirect(file):  # a soft link through an external one
        file["elsewhere"] = h5py.ExternalLink(outside, "/")
        file["observations"] = h5py.SoftLink("/elsewhere/observations")

    refused(r"'observations' in .*b.h5 is a link", hdf5(tmp_path / "b.h5", indirect))

    def group(file):
        file["data"] = h5py.ExternalLink(outside, "/")

    path = hdf5(tmp_path / "c.h5", group)
    refused(r"has no column 'data/observations'", path, columns={"obs": "data/observations"})
    refused(r"'data' in .*c.h5 is a link", path, columns={"obs": "data"})


def test_external_storage_and_virtual_datasets_are_refused(tmp_path, outside):
    (tmp_path / "raw.bin").write_bytes(np.ones(8).tobytes())

    def stored(file):
        file.create_dataset("observations", (4, 2), "f8", external=[(str(tmp_path / "raw.bin"), 0, 64)])

    refused(r"is stored in another file.*does not open other files", hdf5(tmp_path / "a.h5", stored))

    def virtual(file):
        layout = h5py.VirtualLayout((4, 2), "f8")
        layout[:] = h5py.VirtualSource(outside, "observations", (4, 2))
        file.create_virtual_dataset("observations", layout)

    refused(r"is a virtual dataset, which may refer to other files", hdf5(tmp_path / "b.h5", virtual))


def test_unusual_and_damaged_hdf5_files(tmp_path):
    def loop(file):
        file["observations"] = np.ones((4, 2))
        file["self"] = file["/"]

    assert len(vf.load(hdf5(tmp_path / "loop.h5", loop))) == 4

    def many_loops(file):  # visiting every path would take hours
        file["observations"] = np.ones((4, 2))
        for number in range(100):
            file[f"loop{number}"] = file["/"]

    assert len(vf.load(hdf5(tmp_path / "loops.h5", many_loops))) == 4

    def many_names(file):
        for number in range(10_001):
            file[f"scalar{number}"] = h5py.SoftLink("/rewards")

    refused(r"holds more than 10000 arrays, so it is not a log of steps", hdf5(tmp_path / "many.h5", many_names))

    def empty(file):
        file["observations"] = h5py.Empty("f8")

    refused(r"'observations' in .* is not an array of numbers", hdf5(tmp_path / "empty.h5", empty))

    def words(file):
        file.create_dataset("observations", data=["a", "b", "2", "d"], dtype=h5py.string_dtype())

    refused(
        r"Column 'observations' of .* holds text, 'a' at row 0 of .*, and numbers", hdf5(tmp_path / "words.h5", words)
    )

    def damaged(file):
        file.create_dataset("observations", data=np.ones((4, 2)), compression="gzip", fletcher32=True)

    path = hdf5(tmp_path / "damaged.h5", damaged)
    with h5py.File(path) as file:
        offset = file["observations"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset + 8] ^= 255
    path.write_bytes(content)
    refused(r"'observations' in .* cannot be read", path)


# ---- the native folder ---------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    return vf.save(vf.load(COLUMNS), tmp_path / "log")


def test_paths_in_the_metadata_are_ignored(folder, tmp_path):
    secret = tmp_path / "secret.npy"
    np.save(secret, np.full((100, 3), 42.0))
    metadata = json.loads((folder / "valuefit.json").read_text())
    metadata |= {"observations": str(secret), "files": {"observations": "../secret.npy"}, "path": str(secret)}
    (folder / "valuefit.json").write_text(json.dumps(metadata))
    assert not (vf.load(folder).observations == 42).any()


def replace_array(folder, name, change):
    values = np.load(folder / f"{name}.npy")
    np.save(folder / f"{name}.npy", change(values))


def put(index, value):
    def change(values):
        values[index] = value
        return values

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("now", put(3, 10**6), r"a step refers to an observation that is not among the \d+ in the folder"),
        ("now", put(3, -1), r"a step refers to an observation that is not among"),
        ("next", put(3, -2), r"a step refers to an observation that is not among"),
        ("next", put(3, 10**6), r"a step refers to an observation that is not among"),
        ("next", put(0, -1), r"next.npy and terminated.npy disagree"),
        ("begins", put(0, False), r"begins.npy and episode.npy disagree"),
        ("episode", put(1, 99), r"begins.npy and episode.npy disagree"),
        ("reward", put(2, np.nan), r"reward.npy of .* is nan at step 2"),
        ("ratio", put(2, -1.0), r"a ratio is negative"),
        ("behaviour_prob", put(2, 0.0), r"the probability of a logged action is not positive"),
        ("observations", put((2, 1), np.inf), r"observations.npy of .* is NaN or infinite at row 2"),
        ("reward", lambda values: values[:-1], r"reward.npy has shape \(33,\) and dtype float64 for 34 steps"),
        ("reward", lambda values: values.astype(int), r"reward.npy has shape \(34,\) and dtype int64"),
        ("reward", lambda values: values[:, None], r"reward.npy has shape \(34, 1\)"),
        ("observations", lambda values: np.float64(3), r"an observation that is not among the 0 in the folder"),
        ("observations", lambda values: values[:5], r"not among the 5 in the folder"),
    ],
)
def test_inconsistent_arrays_are_refused(folder, name, change, message):
    replace_array(folder, name, change)
    refused(message, folder)


def test_an_incomplete_folder_is_refused(folder):
    (folder / "next.npy").unlink()
    refused(r"is not a valuefit log, or it is damaged: next.npy is missing. Save the log again", folder)


def test_a_folder_that_declares_more_than_it_holds_or_than_the_limit_is_refused(folder):
    refused(r"needs .* in memory, more than the limit of 100 bytes", folder, limit=100)
    (folder / "observations.npy").write_bytes(npy_bytes(shape=(2**40, 3)))
    refused(r"observations.npy declares more numbers than it holds", folder)
    (folder / "reward.npy").write_bytes(npy_bytes(shape=(2**50,)))
    refused(r"reward.npy has shape \(1125899906842624,\) and dtype float64 for \d+ steps", folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"damaged: valuefit.json: "),
        ("[" * 100_000, r"damaged: valuefit.json"),
        ("[]", r"does not give the number of steps"),
        ('{"format": 1, "steps": true}', r"does not give the number of steps"),
        ('{"format": 1, "steps": -1}', r"does not give the number of steps"),
        ('{"format": 2, "steps": 34}', r"has log format 2; this version of valuefit reads format 1"),
        ('{"format": 1, "steps": 34, "notes": [1]}', r"notes in valuefit.json are not text"),
        ('{"format": 1, "steps": 34, "names": "x"}', r"names in valuefit.json are not text"),
        (" " * (2**20 + 1), r"does not give the number of steps"),
    ],
)
def test_invalid_metadata_are_refused(folder, text, message):
    (folder / "valuefit.json").write_text(text)
    refused(message, folder)


def test_a_folder_with_the_other_byte_order_is_read(folder):
    before = vf.load(folder).observations.copy()
    replace_array(folder, "observations", lambda values: values.astype(">f8"))
    after = vf.load(folder).observations
    np.testing.assert_array_equal(after, before)
    assert after.dtype.isnative


# ---- Minari --------------------------------------------------------------------------------------


BAD_IDS = [
    "",
    "..",
    "../secret-v0",
    "/etc/passwd",
    "a/../b-v0",
    "a//b-v0",
    "a b-v0",
    "a\n-v0",
    "a-v0\n",
    "a/",
    "~/x-v0",
]


@pytest.mark.parametrize("name", [*BAD_IDS, "x-v0\x00", "ä-v0", "a.b-v0", "x" * 201])
def test_minari_ids_are_validated_before_anything_is_looked_up(name, monkeypatch):
    monkeypatch.setattr("valuefit.data.readers.minari.is_minari", lambda path: pytest.fail("the folder was looked up"))
    refused(r"is not a Minari id. Ids look like", f"minari:{name}")


def test_a_missing_minari_dataset_is_not_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "socket", lambda *arguments, **more: pytest.fail("a socket was opened"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    refused(
        r"no Minari dataset 'D4RL/door/human-v2' under .*does not download.*minari download D4RL/door/human-v2",
        "minari:D4RL/door/human-v2",
    )
    refused(r"There is no file '.*none'", tmp_path / "none")


def test_the_environment_of_a_minari_dataset_is_never_created(tmp_path):
    root = minari_dataset(COLUMNS, tmp_path)
    path = root / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    created = tmp_path / "created"
    metadata.pop("observation_space"), metadata.pop("action_space")  # Minari would create the environment for them
    metadata["env_spec"] = json.dumps({"id": "Walk-v0", "entry_point": "os:mkdir", "kwargs": {"path": str(created)}})
    path.write_text(json.dumps(metadata))
    assert len(vf.load(root)) == len(COLUMNS["reward"])
    assert not created.exists()


def test_links_in_minari_files_are_refused(tmp_path, outside):
    root = minari_dataset(COLUMNS, tmp_path)
    with h5py.File(root / "data" / "main_data.hdf5", "a") as file:
        del file["episode_3/observations"]
        file["episode_3/observations"] = h5py.ExternalLink(outside, "/observations")
    refused(r"'observations' in .* is a link", root)
    with h5py.File(root / "data" / "main_data.hdf5", "a") as file:
        del file["episode_3"]
        file["episode_3"] = h5py.ExternalLink(outside, "/")
    refused(r"'episode_3' in .* is a link or not a group", root)


def test_minari_episodes_of_the_wrong_length_and_images_are_refused(tmp_path):
    root = minari_dataset(COLUMNS, tmp_path)
    with h5py.File(root / "data" / "main_data.hdf5", "a") as file:
        del file["episode_3/actions"]
        file["episode_3/actions"] = np.zeros(9)
    refused(r"Episode 3 of .* has 7 rewards and 9 entries in 'actions'", root)
    images = np.zeros((len(COLUMNS["reward"]), 32, 32, 3), np.uint8)
    columns = {**COLUMNS, "obs": images, "next_obs": images}
    space = gymnasium.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    root = minari_dataset(columns, tmp_path, name="lab/images-v0", space=space)
    refused(r"are images stored as JPEG", root)
    root = minari_dataset(columns, tmp_path, name="lab/raw-v0", space=space, jpeg_encoding=False)
    assert vf.load(root).observations.shape[1:] == (32, 32, 3)


def test_a_minari_file_without_episodes_is_refused(tmp_path):
    root = minari_dataset(COLUMNS, tmp_path)
    with h5py.File(root / "data" / "main_data.hdf5", "w") as file:
        file["other"] = 1
    refused(r"contains no episodes", root)
