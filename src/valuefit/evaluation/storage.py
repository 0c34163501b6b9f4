"""Evaluations in .npz files: arrays and JSON, no pickle."""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from valuefit.atomic import refuse_existing, write_bytes
from valuefit.data.labels import check_names
from valuefit.data.npy import read_arrays
from valuefit.data.transitions import Transitions
from valuefit.engine.result import Result
from valuefit.memory import memory_limit
from valuefit.typing import Array

FORMAT_VERSION = 1
RESULT_ARRAYS = ("theta", "w", "history")
LOG_ARRAYS = (
    "observations", "now", "next", "reward", "terminated", "truncated", "episode", "ratio", "begins", "action",
    "behaviour_prob",
)  # fmt: skip
OPTIONAL_LOG_ARRAYS = ("action", "behaviour_prob")
NAME_ARRAYS = {"state_names": "observations", "episode_names": "episode"}  # names of the ids in these columns, if text
DTYPE_KINDS = {"now": "i", "next": "i", "episode": "i", "terminated": "b", "truncated": "b", "begins": "b"}


class Stored(NamedTuple):
    """The contents of a file, without code. facts: plain data for JSON. policy_table: (states, actions) or None."""

    facts: dict[str, Any]
    log: Transitions
    result: Result
    policy_table: Array | None


def write(stored: Stored, path: Path, *, force: bool) -> Path:
    """Write one .npz file of arrays and JSON."""
    refuse_existing(path, force=force)
    result, log = stored.result, stored.log
    facts = {
        "format": FORMAT_VERSION,
        **stored.facts,
        "result": {f.name: getattr(result, f.name) for f in fields(result) if f.name not in RESULT_ARRAYS},
        "log": {
            "notes": list(log.notes),
            "source": log.source,
            "names": list(log.names),
            "warnings": list(log.warnings),
        },
    }
    arrays = {name: getattr(result, name) for name in RESULT_ARRAYS}
    arrays |= {
        f"log_{name}": getattr(log, name) for name in (*LOG_ARRAYS, *NAME_ARRAYS) if getattr(log, name) is not None
    }
    if stored.policy_table is not None:
        arrays["policy_table"] = stored.policy_table
    stream = io.BytesIO()
    np.savez(stream, facts=np.array(json.dumps(as_plain(facts), allow_nan=False)), **arrays)
    return write_bytes(path, stream.getvalue())


def read(path: Path) -> Stored:
    """Read a file of `write`; the log and the result are validated."""
    try:
        stored = _arrays(path)
        facts = dict(json.loads(str(stored.pop("facts"))))
        version = facts.pop("format")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, LookupError, TypeError, EOFError, NotImplementedError, RuntimeError, zlib.error,
            zipfile.BadZipFile) as error:  # fmt: skip
        raise ValueError(
            f"{path} is not a valuefit evaluation, or is incomplete ({error}). Evaluate and save again."
        ) from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} has evaluation format {version}; this version of valuefit reads format {FORMAT_VERSION}. Load it "
            "with the version that wrote it, or evaluate again."
        )
    try:
        log = _log(stored, facts.pop("log"))
        values: dict[str, Any] = {**facts.pop("result"), **{name: stored[name] for name in RESULT_ARRAYS}}
        result = Result(**{**values, "dead": tuple(values["dead"])})
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise not_an_evaluation(path, error) from error
    return Stored(facts, log, result, stored.get("policy_table"))


def not_an_evaluation(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is not a valuefit evaluation: {error}. Evaluate and save again.")


def _arrays(path: Path) -> dict[str, Array]:
    """All arrays of the file; their declared sizes are checked before they are read."""
    return read_arrays(path, limit=memory_limit(), kinds="biufUV")


def _log(stored: dict[str, Array], facts: dict[str, Any]) -> Transitions:
    """The log, with the columns validated, because compiled code does not check its indices."""
    present = [name for name in LOG_ARRAYS if name not in OPTIONAL_LOG_ARRAYS or f"log_{name}" in stored]
    columns = {name: stored[f"log_{name}"] for name in present}
    n, m = len(columns["now"]), len(columns["observations"])
    for name, column in columns.items():
        right_length = name == "observations" or column.shape[:1] == (n,)
        if not right_length or column.dtype.kind not in DTYPE_KINDS.get(name, "biuf"):
            raise ValueError(f"the column {name} of its log has dtype {column.dtype} and shape {column.shape}")
        if column.dtype.kind == "f" and name != "observations" and not np.isfinite(column).all():
            raise ValueError(f"the column {name} of its log is not finite")
    now, next = columns["now"], columns["next"]
    if n == 0 or now.min() < 0 or next.min() < -1 or max(now.max(), next.max()) >= m:
        raise ValueError("the steps of its log point outside its observations")
    notes, names = tuple(map(str, facts["notes"])), tuple(map(str, facts["names"]))
    for name, ids in NAME_ARRAYS.items():
        if f"log_{name}" in stored:
            columns[name] = check_names(stored[f"log_{name}"], columns[ids])
    warnings = tuple(map(str, facts.get("warnings", ())))  # files of version 0.1 have none
    source = str(facts["source"])
    return Transitions(**columns, notes=notes, names=names, warnings=warnings, source=source)._frozen()


def as_plain(value: Any) -> Any:
    """Convert to numbers, text, lists and dicts for JSON; None for numbers that are not finite."""
    if isinstance(value, dict):
        return {str(key): as_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(entry) for entry in value]
    if isinstance(value, np.generic | np.ndarray):
        return as_plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
