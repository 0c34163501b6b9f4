"""Checkpoints of an evaluation that reads its log in parts: the sums of its passes, kept in a folder.

Everything that is not a sum over the log is computed again from the sums, in the same order. So a run that was killed
and started again reads what is left of the log, and ends with the same bits. Files are replaced by atomic renames.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import time
import types
import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import write_bytes
from valuefit.problem.parts import Function, Parts, add, each_shard
from valuefit.typing import Array

MAX_SAVING_SHARE = 0.05  # of the time, that goes into writing sums that are not complete
FACTS = "evaluation.json"  # what was evaluated
PACKAGES = ("valuefit", "numpy", "scipy")  # whose versions decide about bits


class Checkpoint:
    """Sums of finished and unfinished passes in a folder. facts: of what is evaluated, by name.

    kinds: dataclasses that occur in sums. A folder of other facts is refused; a damaged file is computed again.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str], kinds: tuple[type, ...]) -> None:
        self.folder, self.kinds = folder, {kind.__name__: kind for kind in kinds}
        self._number = 0
        if not folder.parent.is_dir():
            raise ValueError(f"There is no folder {str(folder.parent)!r} for the checkpoint. Create it first.")
        folder.mkdir(exist_ok=True)
        if (folder / FACTS).exists():
            self._refuse_others(dict(facts))
        elif any(folder.iterdir()):
            raise ValueError(f"{folder} holds other files than a checkpoint. Give a new folder.")
        else:
            write_bytes(folder / FACTS, json.dumps(dict(facts), indent=1).encode())

    def _refuse_others(self, facts: dict[str, str]) -> None:
        try:
            found = json.loads((self.folder / FACTS).read_text())
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"{self.folder / FACTS} is damaged. Delete the folder, or give another one.")
        different = sorted(name for name in facts | found if facts.get(name) != found.get(name))
        if different:
            raise ValueError(
                f"{self.folder} is the checkpoint of another evaluation: {', '.join(different)} differ. Give another "
                "folder, or delete it."
            )

    def next_pass(self) -> Path:
        """The file of the next pass."""
        self._number += 1
        return self.folder / f"pass-{self._number:06d}"

    def load(self, path: Path, task: str) -> tuple[int, Any]:
        """How many shards were summed, and their sum; (0, None) if none, or of another task."""
        if not path.exists():
            return 0, None
        content = path.read_bytes()
        digest, data = content[:64], content[64:]
        if hashlib.sha256(data).hexdigest().encode() != digest:
            warnings.warn(f"{path} is damaged: this pass over the log is made again.", stacklevel=2)
            return 0, None
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            facts = json.loads(archive["facts"].tobytes())
            found = self._decoded(facts["sums"], {name: archive[name] for name in archive.files})
        return (facts["shards"], found) if facts["task"] == task else (0, None)

    def save(self, path: Path, task: str, shards: int, sums: Any) -> None:
        """Replace the file of a pass."""
        arrays: dict[str, Array] = {}
        facts = {"task": task, "shards": shards, "sums": self._encoded(sums, arrays)}
        buffer = io.BytesIO()
        np.savez(buffer, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
        data = buffer.getvalue()
        write_bytes(path, hashlib.sha256(data).hexdigest().encode() + data)

    def _encoded(self, value: Any, arrays: dict[str, Array]) -> Any:
        """As JSON, with arrays by name."""
        if isinstance(value, np.ndarray):
            name = f"array{len(arrays)}"
            arrays[name] = value
            return {"array": name}
        if isinstance(value, tuple | list):
            return {type(value).__name__: [self._encoded(one, arrays) for one in value]}
        if type(value).__name__ in self.kinds:
            return {"kind": type(value).__name__, "of": [self._encoded(one, arrays) for one in _values(value)]}
        return value.item() if isinstance(value, np.generic) else value

    def _decoded(self, value: Any, arrays: Mapping[str, Array]) -> Any:
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return arrays[value["array"]]
        if "kind" in value:
            return self.kinds[value["kind"]](*(self._decoded(one, arrays) for one in value["of"]))
        found = [self._decoded(one, arrays) for one in next(iter(value.values()))]
        return tuple(found) if "tuple" in value else found


class KeptParts:
    """`Parts` whose sums are kept in a checkpoint, while they are made and when they are complete."""

    def __init__(self, parts: Parts, checkpoint: Checkpoint) -> None:
        self.parts, self.checkpoint, self.steps, self.client = parts, checkpoint, parts.steps, parts.client

    def sum(self, function: Function) -> tuple[Any, ...]:
        """`Parts.sum`, of the shards that are not yet summed in the checkpoint; it adds up in the same order."""
        shards, keep = tuple(self.parts.shards), self.checkpoint
        path, task = keep.next_pass(), token_of_task(function)
        found: tuple[Any, ...]
        done, found = keep.load(path, task)
        if done == len(shards):
            return found
        if self.client is not None:
            found = self.parts.sum(function)
        else:
            saved, seconds = time.monotonic(), 0.0
            task_of_shard = partial(self.parts.of_shard, function=function)
            rest = each_shard(shards[done:], task_of_shard, self.parts.at_once, done)
            for number, here in enumerate(rest, done):
                found = here if found is None else add(found, here)
                if time.monotonic() - saved >= seconds / MAX_SAVING_SHARE and number + 1 < len(shards):
                    begun = time.monotonic()
                    keep.save(path, task, number + 1, found)
                    saved = time.monotonic()
                    seconds = saved - begun
        keep.save(path, task, len(shards), found)
        return found


# ---- what was evaluated -------------------------------------------------------------------------------------------


def facts_of(shards: Any, settings: Mapping[str, Any]) -> dict[str, str]:
    """Tokens of the log, the settings and the versions that decide about the bits of an evaluation."""
    files = sorted({path for shard in shards for path in _paths(shard)})
    if not files:
        raise ValueError("A checkpoint needs a log in files, whose sizes and times it compares. Leave it out.")
    log = [(path, *_size_and_time(Path(path))) for path in files]
    found = {"log": _digest(repr((log, len(tuple(shards)), shards)).encode())}
    for name, value in settings.items():
        try:
            found[name] = _digest(token(value))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ValueError(f"A checkpoint must recognise {name} again, which it cannot: {error}.") from error
    return found | {package: version(package) for package in PACKAGES}


def _paths(value: Any) -> list[str]:
    """The existing paths among the strings of a shard."""
    if isinstance(value, str):
        return [value] if os.path.exists(value) else []
    if isinstance(value, tuple | list):
        return [path for one in value for path in _paths(one)]
    return [path for one in _values(value) for path in _paths(one)] if is_dataclass(value) else []


def _size_and_time(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of a file, or of the files in a folder."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def token(value: Any) -> bytes:
    """Bytes that are equal for equal settings: arrays by content, functions by their code, other objects pickled."""
    if value is None or isinstance(value, str | int | float):
        return repr(value).encode()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return repr((value.shape, value.dtype.str)).encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, Mapping):
        return token([*value.items()])
    if isinstance(value, tuple | list):
        return b"[" + b",".join(token(one) for one in value) + b"]"
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        constants = [one for one in value.__code__.co_consts if not isinstance(one, types.CodeType | frozenset)]
        return token([value.__module__, value.__qualname__, constants, cells, value.__defaults__]) + (
            value.__code__.co_code
        )
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__qualname__.encode() + token(list(_values(value)))
    return pickle.dumps(value)


def token_of_task(function: Function) -> str:
    """A digest of a function over parts and its arrays and numbers."""
    if not isinstance(function, partial):
        return function.__qualname__
    return f"{function.func.__qualname__} {_digest(_argument(list(function.keywords.items())))}"


def _argument(value: Any) -> bytes:
    if isinstance(value, tuple | list):
        return b"[" + b",".join(_argument(one) for one in value) + b"]"
    if value is None or isinstance(value, str | int | float | np.ndarray | np.generic):
        return token(np.asarray(value) if isinstance(value, np.generic) else value)
    return type(value).__qualname__.encode()  # made from the settings


def _values(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, field.name) for field in fields(value))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
