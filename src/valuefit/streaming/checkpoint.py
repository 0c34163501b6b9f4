"""Checkpoints of an evaluation that reads its log in parts: the sums of its passes, kept in a folder.

Everything that is not a sum over the log is computed again from the sums, in the same order. So a run that was killed
and started again makes the passes that are left, and ends with the same bits. Files are replaced by atomic renames.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import platform
import sys
import sysconfig
import types
import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import write_bytes
from valuefit.messages import said
from valuefit.streaming.parts import Function, Parts
from valuefit.typing import Array

FACTS = "evaluation.json"  # what was evaluated
SAMPLE = "sample"  # what features and policy computed on a sample of the log
SAME_VALUE_TOL = 1e-6  # relative, of numbers that another processor may round differently
PACKAGES = ("valuefit", "numpy", "scipy")  # whose versions decide about bits


class Checkpoint:
    """Sums of finished passes in a folder. facts: of what is evaluated, by name.

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

    def load(self, path: Path, task: str) -> Any:
        """The sums of this task in a file; None if it has none, or those of another task."""
        if not path.exists():
            return None
        content = path.read_bytes()
        digest, data = content[:64], content[64:]
        if hashlib.sha256(data).hexdigest().encode() != digest:
            warnings.warn(f"{path} is damaged: this pass over the log is made again.", stacklevel=2)
            return None
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            facts = json.loads(archive["facts"].tobytes())
            sums = self._decoded(facts["sums"], {name: archive[name] for name in archive.files})
        return sums if facts["task"] == task else None

    def save(self, path: Path, task: str, sums: Any) -> None:
        """Replace the file of a pass."""
        arrays: dict[str, Array] = {}
        facts = {"task": task, "sums": self._encoded(sums, arrays)}
        buffer = io.BytesIO()
        np.savez(buffer, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
        data = buffer.getvalue()
        write_bytes(path, hashlib.sha256(data).hexdigest().encode() + data)

    def require_same(self, what: str, arrays: tuple[Array, ...]) -> None:
        """Raise ValueError if a run before computed other arrays; keep them if there was none."""
        path = self.folder / SAMPLE
        known = self.load(path, SAMPLE)
        if known is None:
            self.save(path, SAMPLE, arrays)
        elif [one.shape for one in known] != [one.shape for one in arrays] or not all(
            np.allclose(one, other, rtol=SAME_VALUE_TOL, atol=SAME_VALUE_TOL * np.abs(one).max(initial=0.0))
            for one, other in zip(known, arrays, strict=True)
        ):
            raise ValueError(
                f"{self.folder} is the checkpoint of another evaluation: on a sample of the log {what} compute other "
                "numbers now. Give another folder, or delete it."
            )

    def _encoded(self, value: Any, arrays: dict[str, Array]) -> Any:
        """Encode as JSON, with arrays by name."""
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
    """`Parts` whose sums are kept in a checkpoint when a pass is complete."""

    def __init__(self, parts: Parts, checkpoint: Checkpoint) -> None:
        self.parts, self.checkpoint, self.steps, self.client = parts, checkpoint, parts.steps, parts.client

    def sum(self, function: Function) -> tuple[Any, ...]:
        """`Parts.sum`, or the sums that the checkpoint has."""
        path, task = self.checkpoint.next_pass(), token_of_task(function)
        sums = self.checkpoint.load(path, task)
        if sums is None:
            sums = self.parts.sum(function)
            self.checkpoint.save(path, task, sums)
        return tuple(sums)


# ---- what was evaluated -------------------------------------------------------------------------------------------


def facts_of(shards: Any, settings: Mapping[str, Any]) -> dict[str, str]:
    """Tokens of the log, the settings and the versions that decide about the bits of an evaluation."""
    files = sorted({(file.path, file.size, file.time) for shard in shards for file in getattr(shard, "files", ())})
    if not files:
        raise ValueError("A checkpoint needs a log in files, whose sizes and times it compares. Leave it out.")
    log = [replace(shard, files=()) for shard in shards]
    facts = {"log": _digest(repr((files, log)).encode())}
    for name, value in settings.items():
        try:
            facts[name] = _digest(token(value))
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"A checkpoint must recognise {name} again, which it cannot: {said(error)}. Leave the checkpoint out, "
                "or write it as a function of arrays and numbers."
            ) from error
    return facts | {package: version(package) for package in PACKAGES} | {"python": platform.python_version()}


def token(value: Any, inside: tuple[int, ...] = ()) -> bytes:
    """Bytes that are equal for equal settings: arrays by content, functions by code and all that it names.

    Other objects are pickled, with the code of their class. inside: ids of functions and classes that name this one.
    """
    if value is None or value is Ellipsis or isinstance(value, str | bytes | int | float | complex):
        return repr(value).encode()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return repr((value.shape, value.dtype.str)).encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, Mapping):
        return token([*value.items()], inside)
    if isinstance(value, tuple | list):
        return b"[" + b",".join(token(one, inside) for one in value) + b"]"
    if isinstance(value, set | frozenset):
        return b"{" + b",".join(sorted(token(one, inside) for one in value)) + b"}"
    if isinstance(value, types.ModuleType | types.BuiltinFunctionType | np.ufunc):
        owner = getattr(value, "__self__", None)
        name = f"{getattr(value, '__module__', '')} {value.__name__}".encode()
        return name if owner is None or isinstance(owner, types.ModuleType) else name + token(owner, inside)
    if isinstance(value, partial):
        return b"partial" + token([value.func, value.args, value.keywords], inside)
    if isinstance(value, types.MethodType):
        return token([value.__func__, value.__self__], inside)
    if isinstance(value, types.FunctionType | type):
        name = f"{value.__module__} {value.__qualname__}".encode()
        if id(value) in inside or _is_installed(value.__module__):
            return name
        within = (*inside, id(value))
        return name + (_class(value, within) if isinstance(value, type) else _function(value, within))
    if is_dataclass(value):
        return token([type(value), *_values(value)], inside)
    return token(type(value), inside) + pickle.dumps(value)


def _is_installed(module: str) -> bool:
    """Whether this is a module of an installed package or of Python, which its name identifies."""
    file = getattr(sys.modules.get(module), "__file__", None)
    places = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    own = Path(__file__).parents[1]
    return module == "builtins" or (file is not None and any(map(Path(file).is_relative_to, (*places, own))))


def _class(value: type, inside: tuple[int, ...]) -> bytes:
    """The bases, the functions and the constants of a class."""
    inner = [getattr(one, "fget", getattr(one, "__func__", one)) for one in vars(value).values()]
    parts = [one for one in inner if isinstance(one, types.FunctionType | int | float | np.ndarray)]
    return token([[base for base in value.__bases__ if base is not object], parts], inside)


def _function(value: types.FunctionType, inside: tuple[int, ...]) -> bytes:
    """Code, constants, defaults, and what closures and global names hold."""
    names = _global_names(value.__code__)
    named = [(name, value.__globals__[name]) for name in names if name in value.__globals__]
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    return _code(value.__code__) + token([value.__defaults__, value.__kwdefaults__, cells, named], inside)


def _code(code: types.CodeType) -> bytes:
    """Instructions, names and constants, those of inner functions included."""
    constants = [_code(one) if isinstance(one, types.CodeType) else one for one in code.co_consts]
    return code.co_code + token([code.co_names, code.co_freevars, constants])


def _global_names(code: types.CodeType) -> list[str]:
    """The names in some code and its inner functions, sorted."""
    inner = [name for one in code.co_consts if isinstance(one, types.CodeType) for name in _global_names(one)]
    return sorted({*code.co_names, *inner})


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
