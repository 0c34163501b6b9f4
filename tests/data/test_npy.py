"""Arrays in .npy format: valid ones as NumPy reads them, damaged headers refused in one sentence."""

import io
import warnings
import zipfile

import numpy as np
import pytest

from valuefit.data.npy import array_names, find_array, map_array, read_header, read_npz_arrays

HEADER = "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }"
DAMAGED_HEADERS = {
    "open bracket": HEADER.replace("(3,)", "(3,"),
    "open string": HEADER.replace("'<f8'", "'''<f8"),
    "keys of several types": HEADER.replace("'descr'", "3"),
    "no dict": "[]",
    "negative length": HEADER.replace("3,", "-3,"),
    "flag as length": HEADER.replace("3,", "True,"),
    "length beyond 64 bits": HEADER.replace("3,", f"{10**30},"),
    "empty, with a length beyond 64 bits": HEADER.replace("3,", f"0, {10**30}"),
    "dtype beyond 64 bits": HEADER.replace("<f8", f"V{10**30}"),
    "dtype of no bytes": HEADER.replace("<f8", "<U0"),
    "dtype of objects": HEADER.replace("<f8", "|O"),
    "dtype as a number": HEADER.replace("'<f8'", "7"),
    "dtype with fields of no name": HEADER.replace("'<f8'", "[(1, 2)]"),
    "more dimensions than NumPy has": HEADER.replace("3,", "1," * 70 + "3"),
    "deep nesting": HEADER.replace("(3,)", "(" * 5000 + "3" + ")" * 5000),
    "null character": HEADER.replace("3,", "3\x00,"),
    "bad indentation": "  1\n 2\n",
}


def npy(header=HEADER, content=bytes(24), version=b"\x01\x00"):
    text = header.encode("latin1")
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + content


def npz(path, **entries):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
        np.zeros((0, 3)),
        np.float32(1.5),
        np.array([True, False]),
        np.array("text"),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    ],
    ids=lambda array: f"{array.dtype}-{np.shape(array)}",
)
def test_arrays_are_read_as_numpy_reads_them(array, tmp_path):
    np.savez_compressed(tmp_path / "a.npz", one=array, two=1)
    np.save(tmp_path / "a.npy", array)
    found = read_npz_arrays(tmp_path / "a.npz", limit=1000, kinds="biufUV")
    assert list(found) == array_names(tmp_path / "a.npz") == ["one", "two"]
    for values in (found["one"], map_array(tmp_path / "a.npy", kinds="biufUV")):
        np.testing.assert_array_equal(values, array)
        assert values.dtype == array.dtype
    assert found["one"].flags.writeable


@pytest.mark.parametrize("damage", DAMAGED_HEADERS)
def test_a_damaged_header_is_refused_in_one_sentence(damage, tmp_path):
    content = npy(DAMAGED_HEADERS[damage])
    (tmp_path / "a.npy").write_bytes(content)
    path = npz(tmp_path / "a.npz", values=content)
    for read in (
        lambda: read_header(io.BytesIO(content), "a.npy"),
        lambda: map_array(tmp_path / "a.npy"),
        lambda: read_npz_arrays(path, ["values"], limit=2**40),
    ):
        with pytest.raises(ValueError, match=r"not an array of numbers|not numbers|declares more numbers") as caught:
            read()
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 600


def test_content_that_differs_from_the_header_is_refused(tmp_path):
    for content, message in ((bytes(23), "declares more numbers than it holds"), (bytes(32), "declares fewer numbers")):
        (tmp_path / "a.npy").write_bytes(npy(content=content))
        with pytest.raises(ValueError, match=message):
            map_array(tmp_path / "a.npy")
        with pytest.raises(ValueError, match=message):
            read_npz_arrays(npz(tmp_path / "a.npz", values=npy(content=content)), limit=1000)
    for content in (b"", b"\x93NUMPY", npy(version=b"\x09\x09"), npy()[:20]):
        (tmp_path / "a.npy").write_bytes(content)
        with pytest.raises(ValueError, match=r"a.npy is not an array of numbers in .npy format \(.*\). Write it again"):
            map_array(tmp_path / "a.npy")


def test_a_damaged_archive_is_refused(tmp_path):
    path = npz(tmp_path / "a.npz", values=npy())
    with pytest.raises(ValueError, match="more than the limit of 10 bytes"):
        read_npz_arrays(path, limit=10)
    with pytest.raises(ValueError, match=r"no item named 'weights.npy' in the archive"):
        read_npz_arrays(path, ["weights"], limit=1000)
    content = path.read_bytes()
    middle = content.index(bytes(24))
    path.write_bytes(content[:middle] + b"\x01" + content[middle + 1 :])
    with pytest.raises(
        ValueError, match=r"'values' in .*a.npz is .* \(Bad CRC-32 for file 'values.npy'\). Write it again"
    ):
        read_npz_arrays(path, limit=1000)
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"a.npz is not an .npz file, or it is damaged \(File is not a zip file"):
        array_names(path)
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        array_names(tmp_path / "none.npz")


def test_headers_of_python_2_are_read_without_a_warning(tmp_path):
    content = npy(HEADER.replace("(3,)", "(3L,)"), np.arange(3.0).tobytes())
    npz(tmp_path / "log.npz", x=content)
    (tmp_path / "x.npy").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_npz_arrays(tmp_path / "log.npz", limit=1 << 20)["x"].tolist() == [0.0, 1.0, 2.0]
        assert map_array(tmp_path / "x.npy").tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 3)])
def test_some_rows_of_a_file_are_those_of_the_array(tmp_path, shape, order):
    values = np.asarray(np.arange(np.prod(shape), dtype=">i4").reshape(shape), order=order)
    np.save(tmp_path / "x.npy", values)
    found = find_array(tmp_path / "x.npy")
    for first, last in ((0, 7), (2, 5), (6, 7), (3, 3)):
        rows = found.rows(slice(first, last))
        np.testing.assert_array_equal(rows, values[first:last])
        assert not isinstance(rows, np.memmap)


def test_a_file_that_becomes_shorter_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(10.0))
    found = find_array(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.arange(5.0))
    with pytest.raises(ValueError, match=r"x.npy has become shorter while it was read. Save the log again"):
        found.rows(slice(3, 8))
