"""What a target policy may be given as: a callable, a table, a file, a name; read and checked."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.typing import Array

TOLERANCE = 1e-6  # of a probability, which often comes from float32
ROW_TOLERANCE = 1e-3  # of the sum of a row, whose entries may have been rounded for a file
FILE_LIMIT = 2 << 30  # bytes that a file of probabilities may hold
FILES = (".npy", ".csv", ".txt")


@dataclass(frozen=True, eq=False)
class Policy:
    """A target policy: exactly one of a function of observations, a table over states, and numbers by step.

    function: `f(observations) -> (m, actions)` probabilities, or, where `takes_actions`,
    `f(observations, actions) -> (m,)` probabilities of these actions. table: (states, actions).
    by_step: the probability of the logged action at each step. name: for sentences.
    """

    name: str
    function: Callable[..., Any] | None = None
    takes_actions: bool = False
    table: Array | None = None
    by_step: Array | None = None


def find_policy(policy: Any, *, allow_code: bool = False) -> Policy:
    """The policy that this names.

    policy: a callable, `f(observations) -> (m, actions)` or `f(observations, actions) -> (m,)`, such as the
    `predict_proba` of a classifier; "module:function", loaded only where `allow_code` says that the name comes from
    the person at the keyboard and not from a file; a table of probabilities (states, actions); one probability of the
    logged action a step; or a .npy, .csv or .txt file of either.
    """
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, str | Path):
        text = str(policy)
        if Path(text).suffix.lower() in FILES:
            return from_array(read_numbers(Path(text), "policy file"), f"the policy file {Path(text).name}")
        if ":" in text:
            return from_function(import_function(text, allow_code), text)
        raise ValueError(
            f'The policy {text!r} is neither "module:function" nor a file of probabilities ({", ".join(FILES)}).'
        )
    if callable(policy):
        return from_function(policy, getattr(policy, "__name__", type(policy).__name__))
    if isinstance(policy, np.ndarray | list | tuple):
        return from_array(np.asarray(policy), "the policy")
    raise ValueError(
        f"The policy is {type(policy).__name__}; give a callable, an array of probabilities (states x actions, or one "
        f'a step), a file of them ({", ".join(FILES)}), or "module:function".'
    )


def from_function(function: Callable[..., Any], name: str) -> Policy:
    """A policy of a callable; two arguments that must be given say that it takes actions."""
    try:
        arguments = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return Policy(name, function)
    needed = [
        argument for argument in arguments
        if argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
        and argument.default is argument.empty
    ]  # fmt: skip
    if len(needed) > 2:
        raise ValueError(
            f"The policy {name} takes {len(needed)} arguments; it must be f(observations) or f(observations, actions)."
        )
    return Policy(name, function, takes_actions=len(needed) == 2)


def from_array(values: Array, name: str) -> Policy:
    """A table of two axes, or one number a step."""
    if values.dtype.hasobject or values.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {values.dtype}, which is not numeric. Give probabilities.")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 1 and len(values):
        return Policy(name, by_step=np.array(values, np.float64))
    if values.ndim == 2 and len(values):
        return Policy(name, table=whole_rows(checked(values, name), name, None))
    raise ValueError(f"{name} has shape {values.shape}; give states x actions, or one probability a step.")


def read_numbers(path: Path, title: str) -> Array:
    """The numbers of a .npy, .csv or .txt file (a line of column names is skipped); sentences call it `title`."""
    if not path.is_file():
        raise ValueError(f"There is no {title} {path}.")
    try:
        if path.suffix.lower() == ".npy":
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)  # reads the header only
            refuse_large(mapped.nbytes, path, title)
            return np.array(mapped)
        refuse_large(4 * path.stat().st_size, path, title)  # 8 bytes for two characters or more
        with path.open(encoding="utf-8") as lines:
            first = lines.readline()
            comma = "," if "," in first else None
            header = not all(is_number(word) for word in first.split(comma))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an empty file is only a warning to NumPy
            return np.loadtxt(path, delimiter=comma, skiprows=int(header), ndmin=2, encoding="utf-8")
    except (OSError, ValueError, EOFError, UserWarning) as error:
        if str(error).startswith(f"The {title}"):
            raise
        raise ValueError(f"The {title} {path} cannot be read as numbers: {error}") from None


def refuse_large(size: int, path: Path, title: str) -> None:
    """A sentence where a file would take too much memory."""
    if size > FILE_LIMIT:
        raise ValueError(
            f"The {title} {path} may unfold to {size / 2**30:.1f} GiB; at most {FILE_LIMIT / 2**30:g} GiB are read."
        )


def is_number(word: str) -> bool:
    """Whether a word of a file reads as a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def import_function(text: str, allow_code: bool) -> Callable[..., Any]:
    """The callable that "module:function" names, looked for in the working directory last."""
    module_name, _, name = text.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")]):
        raise ValueError(f'The policy {text!r} is not of the form "module:function".')
    if not allow_code:
        raise ValueError(
            f"The policy {text!r} would run code, and a file may not ask for that. Repeat it on the command line, or "
            "pass the function itself in Python."
        )
    with working_directory():
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and module_name.split(".")[0] == error.name.split(".")[0]:
                raise ValueError(
                    f"There is no module {module_name!r} for the policy {text!r}, installed or in {Path.cwd()}."
                ) from None
            raise ValueError(f"Importing {module_name!r} for the policy failed: {error}.") from error
        except Exception as error:
            raise ValueError(f"Importing {module_name!r} for the policy failed: {error!r}.") from error
    for part in name.split("."):
        if part not in dir(found):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{module_name!r} has no {part!r}.{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{text!r} is {type(found).__name__}, not a function of observations.")
    return found


@contextmanager
def working_directory() -> Iterator[None]:
    """The working directory at the end of the search path, so that it shadows nothing installed."""
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.reverse()
        sys.path.remove(here)
        sys.path.reverse()


def checked(values: Array, name: str, *, densities: bool = False) -> Array:
    """Probabilities in float64, in [0, 1] (densities of continuous actions: 0 or more), or a sentence."""
    if values.dtype.hasobject or values.dtype.kind not in "biuf":
        raise ValueError(f"{name} gives dtype {values.dtype}, which is not numeric. Give probabilities.")
    values = values.astype(np.float64)
    wrong = ~(values >= -TOLERANCE) | ~np.isfinite(values)
    if not densities:
        wrong |= values > 1 + TOLERANCE
    if wrong.any():
        where = tuple(int(place) for place in np.argwhere(wrong)[0])
        value = values[where]
        hint = " Are these log-probabilities? Take exp first." if value < 0 else ""
        raise ValueError(f"{name} gives probability {value:g} at {', '.join(map(str, where))}.{hint}")
    return np.clip(values, 0.0, None if densities else 1.0)


def whole_rows(values: Array, name: str, actions: int | None) -> Array:
    """Rows that sum to one, made to do so exactly, over as many actions as expected."""
    if actions is not None and values.shape[1] != actions:
        raise ValueError(f"{name} gives {values.shape[1]} actions where {actions} are expected.")
    sums = values.sum(axis=1)
    off = np.abs(sums - 1) > ROW_TOLERANCE
    if off.any():
        where = int(np.flatnonzero(off)[0])
        raise ValueError(
            f"The probabilities of {name} sum to {sums[where]:g} in row {where}, not to 1. Give those of all "
            "actions, also of those the log never takes."
        )
    return values / sums[:, None]
