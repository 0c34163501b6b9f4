"""`.npz` files of named arrays; the declared sizes are checked before any array is decompressed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.columns import columns_to_read, match_columns
from valuefit.data.facts import facts_in
from valuefit.data.labels import NAMED_FIELDS
from valuefit.data.npy import array_names, read_npz_arrays
from valuefit.data.table import Table
from valuefit.typing import Array

FACTS = "facts"  # the array with the JSON of `plain_facts`


def read_npz(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The arrays of an `.npz` file, named as the arguments of `Transitions.from_arrays` or mapped by `columns`."""
    where = str(path)
    found = array_names(path)
    matched = match_columns(found, columns, where)
    named = {field: name for field, name in NAMED_FIELDS.items() if name in found}
    stored = {FACTS} & set(found)
    arrays = read_npz_arrays(path, {*columns_to_read(matched), *named.values(), *stored}, limit=limit, kinds="biufSU")
    known = {field: arrays[name].ravel().astype(str).tolist() for field, name in named.items()}
    facts = facts_in(str(arrays[FACTS]), where) if stored else {}
    return Table(matched, arrays.__getitem__, where, known=known, **facts)


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
