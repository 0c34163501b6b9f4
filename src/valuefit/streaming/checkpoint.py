"""Checkpoints of an evaluation that reads its log in parts: the sums of its passes, kept in a folder.

Everything that is not a sum over the log is computed again from the sums, in the same order. So a run that was killed
and started again makes the passes that are left, and ends with the same bits. Files are replaced by atomic renames.
"""

from __future__ import annotations

import hashlib
import io
import json
import marshal
import pickle
import platform
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import write_bytes
from valuefit.messages import said
from valuefit.typing import Array

FACTS = "evaluation.json"  # what was evaluated
SAMPLE = "sample"  # what features and policy computed on a sample of the log


class Checkpoint:
    """Sums of finished passes in a folder. facts: of what is evaluated, by name (`facts_of`).

    kinds: dataclasses that occur in sums. A folder of other facts is refused; a damaged file is computed again.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str], kinds: tuple[type, ...]) -> None:
        self.folder, self.kinds = folder, {kind.__name__: kind for kind in kinds}
        self._number = 0
        if not folder.parent.is_dir():
            raise ValueError(f"There is no folder {str(folder.parent)!r} for the checkpoint. Create it first.")
        folder.mkdir(exist_ok=True)
        if not (folder / FACTS).exists():
            if any(folder.iterdir()):
                raise ValueError(f"{folder} holds other files than a checkpoint. Give a new folder.")
            write_bytes(folder / FACTS, json.dumps(dict(facts), indent=1).encode())
        try:
            known = dict(json.loads((folder / FACTS).read_text()))
        except (TypeError, ValueError):
            raise ValueError(f"{folder / FACTS} is damaged. Delete the folder, or give another one.") from None
        different = sorted(name for name in {**facts, **known} if facts.get(name) != known.get(name))
        if different:
            self._refuse(f"{', '.join(different)} differ")

    def _refuse(self, why: str) -> None:
        raise ValueError(
            f"{self.folder} is the checkpoint of another evaluation: {why}. Give another folder, or delete it."
        )

    def sums(self, task: Callable[..., Any], compute: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """The sums of the next pass, which adds up what `task` returns: those in the folder, or those of `compute`."""
        self._number += 1
        path, name = self.folder / f"pass-{self._number:06d}", _name_of(task)
        kept = self._load(path, name)
        if kept is None:
            kept = compute()
            self._save(path, name, kept)
        return tuple(kept)

    def require_same(self, what: str, arrays: tuple[Array, ...]) -> None:
        """Raise ValueError if a run before computed other arrays; keep them if there was none."""
        known = self._load(self.folder / SAMPLE, SAMPLE)
        if known is None:
            self._save(self.folder / SAMPLE, SAMPLE, arrays)
        elif [one.shape for one in known] != [one.shape for one in arrays] or not all(
            # another processor may round differently
            np.allclose(one, other, rtol=1e-6, atol=1e-6 * np.abs(one).max(initial=0.0))
            for one, other in zip(known, arrays, strict=True)
        ):
            self._refuse(f"on a sample of the log {what} compute other numbers now")

    def _load(self, path: Path, task: str) -> Any:
        """The sums of this task in a file; None if it has none, or those of another task."""
        if not path.exists():
            return None
        content = path.read_bytes()
        digest, data = content[:64], content[64:]
        if hashlib.sha256(data).hexdigest().encode() != digest:
            warnings.warn(f"{path} is damaged: this pass over the log is made again.", stacklevel=4)
            return None
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            facts = json.loads(archive["facts"].tobytes())
            return self._decoded(facts["sums"], archive) if facts["task"] == task else None

    def _save(self, path: Path, task: str, sums: Any) -> None:
        arrays: dict[str, Array] = {}
        facts = {"task": task, "sums": self._encoded(sums, arrays)}
        buffer = io.BytesIO()
        np.savez(buffer, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
        data = buffer.getvalue()
        write_bytes(path, hashlib.sha256(data).hexdigest().encode() + data)

    def _encoded(self, value: Any, arrays: dict[str, Array]) -> Any:
        """The value as JSON: a number, or the name of its kind with its entries or that of its array."""
        kind = type(value).__name__
        if isinstance(value, np.ndarray):
            name = f"array{len(arrays)}"
            arrays[name] = value
            return [kind, name]
        if kind in self.kinds:
            value = [getattr(value, field.name) for field in fields(value)]
        elif not isinstance(value, tuple | list):
            return value.item() if isinstance(value, np.generic) else value
        return [kind, *(self._encoded(one, arrays) for one in value)]

    def _decoded(self, value: Any, arrays: Any) -> Any:
        if not isinstance(value, list):
            return value
        kind, *entries = value
        if kind == "ndarray":
            return arrays[entries[0]]
        decoded = [self._decoded(one, arrays) for one in entries]
        return self.kinds[kind](*decoded) if kind in self.kinds else tuple(decoded) if kind == "tuple" else decoded


def facts_of(shards: Any, settings: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the log, the settings and the versions that decide about the bits of an evaluation.

    Functions count by their own code. What else they compute with shows in the numbers that `require_same` compares.
    """
    files = sorted({(file.path, file.size, file.time) for shard in shards for file in getattr(shard, "files", ())})
    if not files:
        raise ValueError("A checkpoint needs a log in files, whose sizes and times it compares. Leave it out.")
    facts = {"log": _digest(repr((files, [replace(shard, files=()) for shard in shards])).encode())}
    for name, value in settings.items():
        buffer = io.BytesIO()
        try:
            _Pickler(buffer).dump(value)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"A checkpoint must recognise {name} again, which it cannot: {said(error)}. Leave the checkpoint out, "
                "or write it as a function of arrays and numbers."
            ) from error
        facts[name] = _digest(buffer.getvalue())
    versions = {package: version(package) for package in ("valuefit", "numpy", "scipy")}  # they decide about bits
    return facts | versions | {"python": platform.python_version()}


class _Pickler(pickle.Pickler):
    """Writes functions as their code, defaults and closures, not as their names; what it writes is never read."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, types.FunctionType):
            return NotImplemented
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        # format 2 of marshal: later ones depend on what else refers to a constant
        return tuple, ((marshal.dumps(value.__code__, 2), value.__defaults__, value.__kwdefaults__, cells),)


def _name_of(task: Callable[..., Any]) -> str:
    """The name of a function over parts with a digest of its arrays and numbers; the rest is made from the settings."""
    content = []
    for name, value in getattr(task, "keywords", {}).items():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, int | float | str | np.ndarray):
                content.append((name, np.asarray(one).dtype.str, np.asarray(one).tobytes()))
    return f"{getattr(task, 'func', task).__qualname__} {_digest(repr(content).encode())}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
