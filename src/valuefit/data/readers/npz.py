"""`.npz` files of named arrays; the declared sizes are checked before any array is decompressed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from valuefit.data.columns import columns_to_read, match_columns
from valuefit.data.facts import facts_in
from valuefit.data.labels import NAMED_FIELDS
from valuefit.data.npy import array_names, read_npz_arrays
from valuefit.data.table import Table

EXTENSIONS = (".npz",)
COPIES = 3
FACTS = "facts"  # the array with the JSON of `plain_facts`


def read(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The arrays of an `.npz` file, named as the arguments of `Transitions.from_arrays` or mapped by `columns`."""
    where = str(path)
    stored_names = array_names(path)
    matched = match_columns(stored_names, columns, where)
    named = {field: name for field, name in NAMED_FIELDS.items() if name in stored_names}
    stored = {FACTS} & set(stored_names)
    arrays = read_npz_arrays(path, {*columns_to_read(matched), *named.values(), *stored}, limit=limit, kinds="biufSU")
    known = {field: arrays[name].ravel().astype(str).tolist() for field, name in named.items()}
    facts = facts_in(str(arrays[FACTS]), where) if stored else {}
    return Table(matched, arrays.__getitem__, where, known=known, **facts)
