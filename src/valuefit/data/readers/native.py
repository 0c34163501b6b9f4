"""valuefit's own folder of `.npy` files: every observation once, mapped into memory instead of read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from valuefit.data.npy import read_header
from valuefit.data.transitions import Transitions
from valuefit.data.validation import check_observations, numbers
from valuefit.extras import said
from valuefit.memory import check_size
from valuefit.typing import Array

FORMAT = 1
FACTS = "valuefit.json"
LONGEST_FACTS = 1 << 20  # bytes
# the only files that are ever opened, each NAME.npy; kinds of numbers, as NumPy letters
COLUMNS = {
    "now": "i", "next": "i", "reward": "f", "terminated": "b", "truncated": "b", "episode": "i", "ratio": "f",
    "begins": "b",
}  # fmt: skip
OPTIONAL = {"action": "biuf", "behaviour_prob": "f"}


def is_native(path: Path) -> bool:
    return (path / FACTS).is_file()


def own_files() -> set[str]:
    """Names that a native folder may contain."""
    return {FACTS, *(f"{name}.npy" for name in ("observations", *COLUMNS, *OPTIONAL))}


def read_native(path: Path, *, limit: int) -> Transitions:
    """The log in a folder that `save` wrote; observations stay on disk until used, so they may exceed memory."""
    facts = _facts(path)
    names = {**COLUMNS, **{name: kind for name, kind in OPTIONAL.items() if (path / f"{name}.npy").is_file()}}
    headers = {name: _header(path, name) for name in names}
    check_size(
        sum(dtype.itemsize * int(np.prod(shape, dtype=object)) for shape, dtype in headers.values()), limit, str(path)
    )
    n = facts["steps"]
    table: dict[str, Any] = {}
    for name, kinds in names.items():
        shape, dtype = headers[name]
        if dtype.kind not in kinds or shape[:1] != (n,) or (len(shape) > 1 and name != "action"):
            raise _damaged(path, f"{name}.npy has shape {shape} and dtype {dtype} for {n} steps")
        table[name] = np.array(_mapped(path, name))
    observations = _mapped(path, "observations")
    _check(path, table, len(observations) if observations.ndim else 0)
    check_observations(f"observations.npy of {path}", observations)
    log = Transitions(observations=observations, **table)
    return replace(log, notes=facts["notes"], names=facts["names"], source=str(path))._frozen()


def write_native(path: Path, log: Transitions) -> None:
    """Fill an empty folder with a log."""
    for name in ("observations", *COLUMNS, *OPTIONAL):
        values = getattr(log, name)
        if values is not None:
            np.save(path / f"{name}.npy", values, allow_pickle=False)
    facts = {"format": FORMAT, "steps": len(log), "notes": list(log.notes), "names": list(log.names)}
    (path / FACTS).write_text(json.dumps(facts, allow_nan=False))


def _facts(path: Path) -> dict[str, Any]:
    with open(path / FACTS, "rb") as stream:
        text = stream.read(LONGEST_FACTS + 1)
    try:
        facts = json.loads(text) if len(text) <= LONGEST_FACTS else None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"{FACTS}: {said(error)}") from error
    if not isinstance(facts, dict) or type(facts.get("steps")) is not int or facts["steps"] < 1:
        raise _damaged(path, f"{FACTS} does not say how many steps there are")
    if facts.get("format") != FORMAT:
        raise ValueError(
            f"{path} has log format {facts.get('format')!r}; this version of valuefit reads format {FORMAT}. Load it "
            "with the version that wrote it and save it as Parquet."
        )
    words = {key: facts.get(key, []) for key in ("notes", "names")}
    for key, texts in words.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise _damaged(path, f"{FACTS} has {key} that are no text")
    return {"steps": facts["steps"], **{key: tuple(texts) for key, texts in words.items()}}


def _header(path: Path, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    file = path / f"{name}.npy"
    if not file.is_file():
        raise _damaged(path, f"{name}.npy is missing")
    with open(file, "rb") as stream:
        shape, dtype = read_header(stream, str(file))
    return shape, dtype


def _mapped(path: Path, name: str) -> Array:
    _header(path, name)
    try:
        array = npy.open_memmap(path / f"{name}.npy", mode="r")
    except (ValueError, OSError, OverflowError) as error:
        raise _damaged(path, f"{name}.npy: {said(error)}") from error
    plain = np.asarray(array)  # still mapped, but of the class that compiled code knows
    return plain if plain.dtype.isnative else plain.astype(plain.dtype.newbyteorder("="))


def _check(path: Path, table: dict[str, Array], rows: int) -> None:
    """What `Transitions.from_arrays` would have made sure of."""
    now, next, terminated = table["now"], table["next"], table["terminated"]
    if now.min() < 0 or max(now.max(), next.max()) >= rows or next.min() < -1:
        raise _damaged(path, f"a step names an observation that is not among the {rows} on file")
    if ((next < 0) != terminated).any():
        raise _damaged(path, "next.npy and terminated.npy disagree")
    begins, episode = table["begins"], table["episode"]
    if not begins[0] or (~begins[1:] & (episode[1:] != episode[:-1])).any():
        raise _damaged(path, "begins.npy and episode.npy disagree")
    for name in ("reward", "ratio", "behaviour_prob"):
        if name in table:
            numbers(f"{name}.npy of {path}", table[name])
    if (table["ratio"] < 0).any() or (table.get("behaviour_prob", np.ones(1)) <= 0).any():
        raise _damaged(path, "a ratio is negative, or the probability of an action that was taken is not positive")
    for name, dtype in (
        ("now", np.int64),
        ("next", np.int64),
        ("episode", np.int64),
        ("reward", np.float64),
        ("ratio", np.float64),
    ):
        table[name] = table[name].astype(dtype, copy=False)


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is no valuefit log, or it is damaged: {why}. Save the log anew.")
