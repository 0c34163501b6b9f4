"""Mutations of bytes, text, `.npy` headers and arrays, and the odd values that they put in."""

from __future__ import annotations

import contextlib
import datetime
import io
import struct
import zipfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas
import scipy.sparse as sparse

Rng = np.random.Generator

EXTREME_NUMBERS: list[Any] = [
    0, 1, -1, 2, 0.5, -0.0, 255, 256, 258, 2**31 - 1, 2**31, 2**53 + 1, 2**60 + 1, 2**60 + 4, 2**63 - 1, 2**63,
    2**64 - 1,
    -(2**63), 10**19, 1e-320, 1e-300, 1e-160, 1e-55, 1e55, 1e100, 1e154, 1e300, 2e300, 1.7e308, float("nan"),
    float("inf"),
    -float("inf"), 0.1 + 0.2, 1e16 + 2,
]  # fmt: skip
NUMBER_TEXTS = [
    "1e400", "-1e-400", "1" * 400, "0x10", "1_000", "1,5", "+1", " 1 ", "1.", ".5", "1e", "--1", "NaN", "nan", "inf",
    "Infinity",
    "null", "NULL", "N/A", "", "true", "False", "1e308", "9223372036854775808", "18446744073709551616",
    "1.0000000000000002",
    "2021-01-01", "١", "1\u00a0", "\x00", "abc", "\u202e", "\U0001f600",
]  # fmt: skip
TEXTS = [
    "", " ", "a", "0.9", "nan", "\x00", "\n", "\x1b[31m", "é", "\ud800", "x" * 5000, "-" * 5000, "[" * 3000, "{}",
    "None", "../../etc",
    "%s%n", "auto", "a" * 300, "/", ".", "\u202eabc", "__import__('os')",
]  # fmt: skip


def chance(rng: Rng, probability: float) -> bool:
    return bool(rng.random() < probability)


def pick_entry(rng: Rng, tree: Any) -> tuple[Any, Any]:
    """A dict or list at any depth of a non-empty `tree` of such, and one of its keys."""
    while True:
        key = pick(rng, list(tree) if isinstance(tree, dict) else range(len(tree)))
        if not (isinstance(tree[key], dict | list) and tree[key] and chance(rng, 0.7)):
            return tree, key
        tree = tree[key]


def pick(rng: Rng, options: Sequence[Any]) -> Any:
    """One of the options; unlike rng.choice it does not convert them."""
    return options[int(rng.integers(len(options)))]


def number(rng: Rng) -> Any:
    """A number, often an extreme one."""
    return pick(rng, EXTREME_NUMBERS) if chance(rng, 0.8) else float(rng.normal()) * 10.0 ** int(rng.integers(-30, 30))


def scalar(rng: Rng) -> Any:
    """Any Python object that a caller might pass in place of a number or a name."""
    others: list[Any] = [
        None, True, False, [], [0.9], [[]], (), {}, {"a": 1}, {1, 2}, b"0.9", 1j, 10**400, -(10**400), Decimal("0.9"),
        Decimal("NaN"), Fraction(1, 3), datetime.date(2021, 1, 1), object(), int, len, lambda x: x, float,
        np.float16(0.5),
        np.float32(0.9), np.longdouble("1e4000"), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True),
        np.datetime64("NaT"),
        np.array(0.9), np.array([0.9]), np.array([]), np.array(["a"]), np.array(None), np.ma.masked, np.float64("nan"),
        np.zeros((2, 2)), range(3), iter([1.0]), type("Liar", (), {"__float__": lambda self: 0.9})(), Ellipsis,
        slice(3),
    ]  # fmt: skip
    draw = rng.random()
    if draw < 0.5:
        return pick(rng, others)
    return pick(rng, TEXTS) if draw < 0.65 else number(rng)


# ---- bytes -----------------------------------------------------------------------------------------


def mutate_bytes(rng: Rng, data: bytes, others: bytes = b"") -> bytes:
    """A few random edits, mostly small ones."""
    if chance(rng, 0.01):
        return b"" if chance(rng, 0.5) else rng.bytes(int(rng.integers(1, 2000)))
    for _ in range(int(rng.geometric(0.5))):
        data = _edit(rng, bytearray(data), others or data)
    return data


def _edit(rng: Rng, data: bytearray, others: bytes) -> bytes:
    at = int(rng.integers(len(data) + 1))
    length = int(rng.integers(1, 1 + min(64, max(1, len(data) // 4))))
    kind = int(rng.integers(9))
    if kind <= 1 and data:
        data[at % len(data)] ^= 1 << int(rng.integers(8))
    elif kind == 2 and data:
        data[at % len(data)] = int(rng.integers(256))
    elif kind == 3:
        return bytes(data[:at])
    elif kind == 4:
        del data[at : at + length]
    elif kind == 5:
        data[at:at] = rng.bytes(length)
    elif kind == 6:
        start = int(rng.integers(len(others) + 1))
        data[at : at + length] = others[start : start + length]
    elif kind == 7:
        data[at : at + length] = pick(rng, [b"\x00", b"\xff", b" ", b"\n"]) * length
    else:
        word = pick(rng, [0, 1, -1, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), len(data)])
        size = pick(rng, ["<q", "<i", ">q", ">i"])
        mask = 2 ** (8 * struct.calcsize(size)) - 1
        data[at : at + struct.calcsize(size)] = struct.pack(size.upper(), word & mask)
    return bytes(data)


def mutate_text(rng: Rng, text: str) -> bytes:
    """Edits of lines and words of a text file: CSV, JSON or TOML."""
    for _ in range(int(rng.geometric(0.6))):
        lines = text.split("\n")
        at = int(rng.integers(len(lines)))
        kind = int(rng.integers(8))
        if kind <= 2:
            lines[at] = _replace_word(rng, lines[at])
        elif kind == 3:
            del lines[at]
        elif kind == 4:
            lines.insert(int(rng.integers(len(lines) + 1)), lines[at])
        elif kind == 5:
            other = int(rng.integers(len(lines)))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 6:
            lines[at] += pick(rng, [",", ",1", '"', "'", " ", "\t", ";", "#", "[", "{", "]", "}", "=", ":", "\\"])
        else:
            separator = pick(rng, ["\r\n", "\r", "\n\n", "\x0b", "\u2028", " "])
            return separator.join(lines).encode("utf-8", "surrogatepass")
        text = "\n".join(lines)
    data = text.encode("utf-8", "surrogatepass")
    return mutate_bytes(rng, data) if chance(rng, 0.3) else data


def _replace_word(rng: Rng, line: str) -> str:
    """Replace one cell or word by an odd number or text."""
    for separator in (",", ":", "=", " "):
        if separator in line:
            words = line.split(separator)
            text = pick(rng, NUMBER_TEXTS) if chance(rng, 0.7) else repr(number(rng))
            words[int(rng.integers(len(words)))] = text if chance(rng, 0.9) else pick(rng, TEXTS)
            return separator.join(words)
    return line + str(number(rng))


# ---- .npy and .npz ---------------------------------------------------------------------------------

DESCRS = [
    "'<f8'", "'>f8'", "'<f4'", "'<f2'", "'<i8'", "'<u8'", "'|i1'", "'|b1'", "'|O'", "'<U5'", "'|S3'", "'<M8[s]'",
    "'<c16'", "'|V8'",
    "'<f16'", "[('a', '<f8')]", "[('a', '<f8', (2**40,))]", "'f8,f8'", "'<f99'", "''", "None", "3", "['x']",
    "'" + "a" * 500 + "'",
]  # fmt: skip
SHAPES = [
    "()", "(0,)", "(1,)", "(3,)", "(30,)", "(30, 2)", "(-1,)", "(2**62,)", "(4611686018427387904,)",
    "(9223372036854775807, 2)", "(1" + "0" * 400 + ",)",
    "(0, 9999999999)", "(1.5,)", "('3',)", "(None,)", "3", "[3]", "((3,),)", "(True,)", "(" + "1, " * 100 + ")", "(3",
    "(-3, -10)", "{3}", "(1000000000,)",
]  # fmt: skip


def mutate_npy(rng: Rng, data: bytes) -> bytes:
    """Change the header of an .npy file, its bytes, or replace the array."""
    draw = rng.random()
    if draw < 0.25:
        return mutate_bytes(rng, data)
    if draw < 0.5:
        with contextlib.suppress(Exception):  # the data may be mutated already
            return npy_bytes(mutate_array(rng, np.load(io.BytesIO(data), allow_pickle=False)))
    size = struct.unpack("<H", data[8:10])[0]
    header, body = data[10 : 10 + size].decode("latin1").strip(), data[10 + size :]
    if "'shape'" not in header:  # mutated before
        return mutate_bytes(rng, data)
    if draw < 0.7:
        header = (
            f"{{'descr': {pick(rng, DESCRS)}, 'fortran_order': {pick(rng, ['False', 'True', '0', 'None'])}, "
            + header[header.index("'shape'") :]
        )
    elif draw < 0.9:
        header = header[: header.index("'shape'")] + f"'shape': {pick(rng, SHAPES)}, }}"
    else:
        at = int(rng.integers(len(header)))
        insert = pick(
            rng,
            ["(", ")", "'", '"', "{", "\\", "\n", "\x00", "é", "(" * 300, "-" * 300, "\n  (", "'''", "1L", ", 'x': 1"],
        )
        header = header[:at] + insert + header[at + int(rng.integers(3)) :]
    text = header.encode("utf-8")
    if chance(rng, 0.03):
        text = text.ljust(60_000)
    version = pick(rng, [b"\x01\x00"] * 8 + [b"\x02\x00", b"\x03\x00", b"\x09\x00"])
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text) + 1)
    return b"\x93NUMPY" + version + length + text + b"\n" + body


def npy_bytes(array: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)
    return stream.getvalue()


def mutate_npz(rng: Rng, data: bytes) -> bytes:
    """Change one entry of an archive, the set of entries, or the bytes of the archive."""
    if chance(rng, 0.3):
        return mutate_bytes(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    name = pick(rng, list(entries))
    kind = int(rng.integers(10))
    if kind < 7:
        entries[name] = mutate_npy(rng, entries[name])
    elif kind == 7:
        del entries[name]
    elif kind == 8:
        entries[pick(rng, [name.replace(".npy", ""), "x" + name, name.upper(), "../" + name, "a/" + name])] = (
            entries.pop(name)
        )
    else:
        entries[name] = entries[pick(rng, list(entries))]
    return npz_bytes(rng, entries)


def npz_bytes(rng: Rng, entries: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", pick(rng, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


# ---- arrays ----------------------------------------------------------------------------------------

DTYPES = "?bBhHiIlLefdg"


def mutate_array(rng: Rng, array: Any) -> Any:
    """A numeric array with other values, another dtype, shape or layout; always plain enough for an .npy file."""
    array = np.array(array)
    kind = int(rng.integers(9))
    with np.errstate(all="ignore"):
        if kind <= 1 and array.size and array.dtype.kind in "biuf":
            return put(rng, array)
        if kind == 2 and array.dtype.kind in "biuf":
            return array.astype(pick(rng, DTYPES))
        if kind == 3 and array.dtype.kind in "iuf":
            return array * pick(rng, [0, -1, 3, 1e-30, 1e30, 1e-55, 1e120])
    if kind == 4:
        first = array.flat[0] if array.size else np.float64(0)
        rows = array if array.ndim else array[None]
        return pick(rng, [rows[:-1], rows[:0], rows[:1], rows[::-1], rows[..., None], rows[None], np.asarray(first)])
    if kind == 5:
        return array.astype(array.dtype.newbyteorder(">")) if array.dtype.kind in "iuf" else array
    if kind == 6:
        return np.asfortranarray(np.repeat(array, 2, axis=0)) if array.ndim else array
    if kind == 7 and array.ndim:
        return rng.permutation(array)
    return pick(rng, [np.zeros(3), np.zeros((0, 3)), np.array("text"), np.array(["a", "b"]), np.array([b"a"]),
    np.array([1 + 1j]),
                      np.array(["2021"], "M8[Y]"), np.zeros(2, [("a", "f8")])])  # fmt: skip


def put(rng: Rng, array: Any) -> Any:
    """The array with one entry replaced by an extreme number, in a dtype that holds it."""
    value = number(rng)
    if array.dtype.kind != "f" and isinstance(value, int) and abs(value) < 2**64:
        array = array.astype(np.int64 if value < 2**63 else np.uint64)
    elif not (array.dtype.kind == "f" and isinstance(value, float)):
        array = array.astype(np.float64)
    array.flat[int(rng.integers(array.size))] = value
    return array


def odd_array(rng: Rng, array: Any) -> Any:
    """What a caller might pass in place of an array: another array, list, series, masked or sparse array, a scalar."""
    draw = rng.random()
    if draw < 0.4:
        return mutate_array(rng, array)
    if draw < 0.6:
        return scalar(rng)
    array = np.array(array)
    column = array.ravel() if array.ndim else array[None]
    others: list[Callable[[], Any]] = [
        array.tolist,
        lambda: [*array.tolist(), "x"],
        lambda: [*array.tolist(), [1, 2, 3]],
        lambda: np.ma.masked_array(array, mask=rng.random(array.shape) < 0.2),
        lambda: np.ma.masked_array(array, mask=False),
        lambda: pandas.Series(column),
        lambda: pandas.Series(column).astype("Float64").mask(rng.random(len(column)) < 0.2),
        lambda: pandas.Series(column.astype(np.int64)).astype("Int64").mask(rng.random(len(column)) < 0.2),
        lambda: pandas.Series(column.astype(str)).astype("category"),
        lambda: pandas.Series(column, dtype=object),
        lambda: pandas.DataFrame(np.atleast_2d(array)),
        lambda: sparse.csr_array(np.atleast_2d(array)),
        lambda: sparse.coo_matrix(np.atleast_2d(array)),
        lambda: array.astype(object),
        lambda: array.astype(str),
        lambda: array.astype("M8[s]"),
        lambda: array.astype(complex),
        lambda: np.broadcast_to(array, (3, *array.shape)),
        lambda: (value for value in column),
        lambda: memoryview(np.ascontiguousarray(array)),
        lambda: array.astype(np.longdouble) * np.longdouble("1e400"),
    ]
    try:
        with np.errstate(all="ignore"):
            return pick(rng, others)()
    except (TypeError, ValueError, OverflowError):
        return array
