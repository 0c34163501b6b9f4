"""Write a log as a `.parquet` or `.npz` file, or into a folder of `.npy` files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from valuefit.data.facts import plain_facts
from valuefit.data.labels import NAMED_FIELDS
from valuefit.data.readers.native import LOG_FORMAT, METADATA_FILE, TEXTS, array_names
from valuefit.data.readers.npz import FACTS
from valuefit.data.readers.parquet import FACTS_KEY, NAMES_KEY
from valuefit.data.transitions import Transitions
from valuefit.extras import need
from valuefit.typing import Array


def write_parquet(path: Path, columns: dict[str, Any], names: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write columns under their names, a matrix as name_0, name_1, ...; masked entries become null.

    `names` lists all names of states ("obs"), episodes and actions that are text, also of those without a row.
    facts: those of `plain_facts`.
    """
    pyarrow = need("pyarrow", "files", "Writing Parquet")
    parquet = need("pyarrow.parquet", "files", "Writing Parquet")
    flat: dict[str, Any] = {}
    for name, values in columns.items():
        parts = {name: values} if values.ndim == 1 else {f"{name}_{i}": values[:, i] for i in range(values.shape[1])}
        for key, part in parts.items():
            data = np.ma.getdata(part)
            mask = np.ma.getmaskarray(part) if np.ma.isMaskedArray(part) else None
            flat[key] = pyarrow.array(np.ascontiguousarray(data), mask=mask)
    table = pyarrow.table(flat)
    metadata = {FACTS_KEY: json.dumps(facts)}
    if names:
        metadata[NAMES_KEY] = json.dumps({field: list(map(str, listed)) for field, listed in names.items()})
    table = table.replace_schema_metadata(metadata)
    repetitive = [name for name, column in flat.items() if not pyarrow.types.is_floating(column.type)]
    parquet.write_table(table, path, use_dictionary=repetitive)


def write_npz(path: Path, columns: dict[str, Any], names: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
    """Write columns under their names; masked entries keep arbitrary numbers, because readers never use them.

    `names` has all names of states ("obs"), episodes and actions that are text, also of those without a row.
    facts: those of `plain_facts`.
    """
    plain: dict[str, Any] = {name: np.ma.getdata(values) for name, values in columns.items()}
    plain |= {NAMED_FIELDS[field]: listed for field, listed in names.items()}
    plain[FACTS] = np.array(json.dumps(facts))
    with open(path, "wb") as stream:
        np.savez(stream, **plain)


def write_native(path: Path, log: Transitions) -> None:
    """Write a log into an empty folder."""
    for name in array_names():
        values = getattr(log, name)
        if values is not None:
            _write_array(path / f"{name}.npy", values)
    metadata = {"format": LOG_FORMAT, "steps": len(log), **{key: list(getattr(log, key)) for key in TEXTS}}
    metadata["facts"] = plain_facts(log.filling, log.continuity)
    (path / METADATA_FILE).write_text(json.dumps(metadata, allow_nan=False))


def _write_array(path: Path, values: Array) -> None:
    """Write an .npy file; `numpy.save` does not notice if the last bytes do not fit on the disk."""
    values = np.ascontiguousarray(values)
    with open(path, "wb") as stream:
        npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(values))
        if values.size:
            stream.write(values.data)
