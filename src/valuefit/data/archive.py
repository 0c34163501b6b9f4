"""One .npz file of arrays and JSON facts with a format version: the files of results and evaluations, no pickle."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import write_bytes
from valuefit.data.exact import in_native_order
from valuefit.data.npy import read_npz_arrays
from valuefit.memory import memory_limit
from valuefit.messages import shown, translated
from valuefit.typing import Array


def write_archive(path: Path, facts: dict[str, Any], arrays: dict[str, Array], *, version: int, force: bool) -> Path:
    """Write facts that JSON can represent, with the format version, and arrays; not compressed."""
    text = json.dumps({"format": version, **facts}, allow_nan=False)
    stream = io.BytesIO()
    np.savez(stream, facts=np.array(text), **arrays)  # type: ignore[arg-type]
    return write_bytes(path, stream.getvalue(), force=force)


def read_archive(path: Path, what: str, *, version: int, remedy: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Facts and arrays of a file of `write_archive`, which `what` names in messages; at most the size of the file."""
    with translated(f"{path} is not a valuefit {what}, or is incomplete", remedy):
        arrays = _arrays(path)
        facts = dict(json.loads(str(arrays.pop("facts")), parse_constant=_refuse_constant))
        format = facts.pop("format")
    check_version(path, what, format, version, remedy)
    return facts, arrays


def check_version(path: Path, what: str, format: Any, version: int, remedy: str) -> None:
    """Raise ValueError unless the file has the format version that is read."""
    if type(format) is int and format == version:
        return
    newer = type(format) is int and format > version
    advice = "It was written by a newer version: update valuefit." if newer else remedy
    raise ValueError(
        f"{path} has {what} format {shown(format)}; this version of valuefit reads format {version}. {advice}"
    )


def is_number(value: Any) -> bool:
    """Whether a value in a file is a finite number that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _arrays(path: Path) -> dict[str, Array]:
    """All arrays of the file; their declared sizes are checked before they are read."""
    with zipfile.ZipFile(path) as archive:
        total = sum(entry.file_size for entry in archive.infolist())
        if foreign := [name for name in archive.namelist() if not name.endswith(".npy")]:
            raise ValueError(f"it contains {shown(foreign[0])}, which is no array")
    if total > path.stat().st_size:
        raise ValueError("its arrays are compressed or overlap, and would take more memory than the file has bytes")
    # numbers, text (the facts) and columns (a history)
    arrays = read_npz_arrays(path, limit=memory_limit(), kinds="biufUV")
    return {name: in_native_order(array) for name, array in arrays.items()}


def _refuse_constant(word: str) -> float:
    raise ValueError(f"it contains the number {word}")
