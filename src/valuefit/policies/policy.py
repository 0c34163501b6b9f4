"""Target policies from a callable, a table, a file or a name, validated."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.files import working_folder
from valuefit.data.gaps import Filling
from valuefit.data.labels import reads_as_number
from valuefit.data.npy import map_array
from valuefit.data.validation import PROBABILITY_TOL, array_of
from valuefit.messages import said, shown
from valuefit.policies.action_labels import Label, labels_of, split_labels
from valuefit.typing import Array

ROW_SUM_TOL = 1e-3  # entries of a file are often rounded to a few digits
MAX_POLICY_BYTES = 2 << 30  # in memory, of a file of probabilities
FILES = (".npy", ".csv", ".txt")  # suffixes of files of probabilities


@dataclass(frozen=True, eq=False)
class Policy:
    """A target policy: exactly one of a function, a table over numbered states, and probabilities by step.

    function: `f(observations) -> (m, actions)` probabilities, or, if `takes_actions`,
    `f(observations, actions) -> (m,)` probabilities of these actions. constant: whether it is made of probabilities
    that are equal for all observations, and so has no name of its own. table: (states, actions).
    by_step: the probability of the logged action of each step, (n,). name: for notes and error messages.
    labels: the actions of the columns, where they are known; else columns are in the order of the log's actions.
    known: the labels of the actions by number, once the policy is matched to a log; None before. missing: those of the
    log that the policy does not know, which have probability 0. filling: of the log whose observations the function is
    given, with their gaps. columns: the names of the entries of an observation, for error messages.
    """

    name: str
    function: Callable[..., Any] | None = None
    takes_actions: bool = False
    constant: bool = False
    table: Array | None = None
    by_step: Array | None = None
    labels: tuple[Label, ...] | None = None
    known: tuple[Label, ...] | None = None
    missing: tuple[Label, ...] = ()
    filling: Filling | None = None
    columns: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The policy at the beginning of a sentence."""
        described = self.function is None or self.constant
        return f"{self.name[0].upper()}{self.name[1:]}" if described else f"The policy {self.name}"

    def on(self, log: Any) -> Policy:
        """The policy for observations of this log, which are filled where the source had gaps."""
        entries = log.names if log.filling is None else log.names[: log.filling.width]
        if log.filling is None and not entries:
            return self
        return replace(self, filling=log.filling or self.filling, columns=entries or self.columns)

    def seen(self, observations: Array) -> Array:
        """Observations as the function is given them."""
        return observations if self.filling is None else self.filling.raw(observations)


def find_policy(policy: Any, *, allow_code: bool = False) -> Policy:
    """Convert any representation of a policy to a `Policy`.

    policy: a callable, `f(observations) -> (m, actions)` or `f(observations, actions) -> (m,)`; the name of one,
    "module:function"; a fitted classifier, or its `predict_proba`, whose `classes_` are the actions; a table of
    probabilities (states, actions); one probability of the logged action per step, (n,); a .npy, .csv or .txt file of
    either; or a mapping from each action to its probability, in all states or in each. What a callable returns, and a
    table, may also be a mapping or a data frame with a column for each action, by name; columns without names are in
    the order of the log's actions, which is the sorted order of their names.
    allow_code: whether a name may be imported, which runs code. Only for names that the user typed, not from a file.
    """
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, str | Path):
        text = str(policy)
        if Path(text).suffix.lower() in FILES:
            read = from_array(read_numbers(Path(text), "policy file"), f"the policy file {Path(text).name}")
            return read if read.table is None else replace(read, labels=header_of(Path(text), read.name))
        if ":" in text:
            return from_function(import_function(text, allow_code), text)
        raise ValueError(
            f'The policy {shown(text)} is neither "module:function" nor a file of probabilities ({", ".join(FILES)}).'
        )
    if callable(policy) or callable(getattr(policy, "predict_proba", None)):
        return from_callable(policy)
    values, labels = split_labels(policy, "The policy")
    if labels is not None:
        if values.ndim == 1:
            return Policy("the policy", partial(constant, np.array(values)), constant=True, labels=labels)
        return replace(from_array(values, "the policy"), labels=labels)
    if isinstance(policy, np.ndarray | list | tuple):
        return from_array(array_of("the policy", policy, place="in row"), "the policy")
    raise ValueError(
        f"The policy is {type(policy).__name__}; give a callable, an array of probabilities (states x actions, or one "
        f'per step), a file of them ({", ".join(FILES)}), a classifier, a mapping of actions, or "module:function".'
    )


def from_callable(policy: Any) -> Policy:
    """A policy from a function, or from a classifier or its `predict_proba`, whose columns are its classes."""
    owner = getattr(policy, "__self__", policy)
    classes = getattr(owner, "classes_", None)
    name = getattr(policy if classes is None else owner, "__name__", type(owner).__name__)
    function = policy if callable(policy) else policy.predict_proba
    unnamed = from_function(function, name)
    if classes is None or unnamed.takes_actions:
        return unnamed
    if not all(np.ndim(one) == 0 for one in classes):
        raise ValueError(f"The policy {name} predicts several outputs. Give a classifier of the action alone.")
    labels = labels_of(list(classes), f"The policy {name}")
    return replace(unnamed, function=partial(with_rows, function), labels=labels)


def with_rows(function: Callable[..., Any], observations: Array) -> Any:
    """Call a function of rows, which classifiers take, also where an observation is a single number."""
    return function(observations.reshape(len(observations), -1))


def constant(probabilities: Array, observations: Array) -> Array:
    """These probabilities for every observation, (m, actions)."""
    return np.tile(probabilities, (len(observations), 1))


def from_function(function: Callable[..., Any], name: str) -> Policy:
    """A policy from a callable; it takes actions if it has two required arguments."""
    try:
        arguments = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return Policy(name, function)
    required = [
        argument for argument in arguments
        if argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
        and argument.default is argument.empty
    ]  # fmt: skip
    if len(required) > 2:
        raise ValueError(
            f"The policy {name} takes {len(required)} arguments; it must be f(observations) or f(observations, "
            "actions)."
        )
    return Policy(name, function, takes_actions=len(required) == 2)


def from_array(values: Array, name: str) -> Policy:
    """A policy from a table (states, actions), or from one probability per step."""
    if values.dtype.hasobject or values.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {values.dtype}, which is not numeric. Give probabilities.")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 1 and len(values):
        return Policy(name, by_step=np.array(values, np.float64))
    if values.ndim == 2 and len(values):
        return Policy(name, table=normalised_rows(valid_probabilities(values, name), name, None))
    raise ValueError(f"{name} has shape {values.shape}; give states x actions, or one probability per step.")


def read_numbers(path: Path, title: str) -> Array:
    """The array in a .npy, .csv or .txt file, without a header line; error messages call the file `title`."""
    if not path.is_file():
        raise ValueError(f"There is no {title} {path}.")
    mapped = None
    with as_numbers(path, title):
        mapped = map_array(path) if path.suffix.lower() == ".npy" else None
        # a number in a text has at least two characters, and takes 8 bytes
        size = 4 * path.stat().st_size if mapped is None else mapped.nbytes
    if size > MAX_POLICY_BYTES:
        raise ValueError(
            f"The {title} {path} may take {size / 2**30:.1f} GiB of memory; at most {MAX_POLICY_BYTES / 2**30:g} GiB "
            "are read."
        )
    with as_numbers(path, title):
        if mapped is not None:
            return np.array(mapped)
        words, comma = first_line(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy only warns about an empty file
            header = not all(map(reads_as_number, words))
            return np.loadtxt(path, delimiter=comma, skiprows=int(header), ndmin=2, encoding="utf-8")


@contextmanager
def as_numbers(path: Path, title: str) -> Iterator[None]:
    """Raise what reading the file raises as a ValueError that names it."""
    try:
        yield
    except (OSError, ValueError, EOFError, UserWarning) as error:
        raise ValueError(f"The {title} {path} cannot be read as numbers: {said(error)}.") from None


def first_line(path: Path) -> tuple[list[str], str | None]:
    """The words of the first line of a file of text, and their delimiter (None: white space)."""
    with path.open(encoding="utf-8") as lines:
        line = lines.readline().strip()
    comma = "," if "," in line else None
    return [word.strip().strip('"') for word in line.split(comma)], comma


def header_of(path: Path, name: str) -> tuple[Label, ...] | None:
    """The words of the header line of a file of text, one for each column; None without such a line."""
    words = [] if path.suffix.lower() == ".npy" else first_line(path)[0]
    return None if all(map(reads_as_number, words)) else labels_of(words, name)


def import_function(text: str, allow_code: bool) -> Callable[..., Any]:
    """The callable "module:function", from the installed modules or else from the working directory."""
    module_name, _, name = text.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")]):
        raise ValueError(f'The policy {text!r} is not of the form "module:function".')
    if not allow_code:
        raise ValueError(
            f"The policy {text!r} would run code, which a file is not allowed to do. Repeat it on the command line, or "
            "pass the function itself in Python."
        )
    with importable_working_directory():
        try:
            value: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and module_name.split(".")[0] == error.name.split(".")[0]:
                raise ValueError(
                    f"There is no module {module_name!r} for the policy {text!r}, installed or in {Path.cwd()}."
                ) from None
            raise ValueError(f"Importing {module_name!r} for the policy failed: {error}.") from error
        except Exception as error:
            raise ValueError(f"Importing {module_name!r} for the policy failed: {error!r}.") from error
    for part in name.split("."):
        if part not in dir(value):
            own = [one for one in dir(value) if getattr(getattr(value, one, None), "__module__", None) == module_name]
            near = difflib.get_close_matches(part, own, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{module_name!r} has no {part!r}.{hint}")
        value = getattr(value, part)
    if not callable(value):
        raise ValueError(f"{text!r} is {type(value).__name__}, not a function of observations.")
    return value


@contextmanager
def importable_working_directory() -> Iterator[None]:
    """Append the working directory to sys.path, after the installed modules, which take precedence."""
    here = str(working_folder())
    sys.path.append(here)
    try:
        yield
    finally:  # remove its last occurrence
        sys.path.reverse()
        sys.path.remove(here)
        sys.path.reverse()


def valid_probabilities(values: Array, name: str, *, densities: bool = False) -> Array:
    """Probabilities as float64 in [0, 1]; densities of continuous actions may exceed 1."""
    if values.dtype.hasobject or values.dtype.kind not in "biuf":
        raise ValueError(f"{name} gives dtype {values.dtype}, which is not numeric. Give probabilities.")
    values = values.astype(np.float64)
    wrong = ~(values >= -PROBABILITY_TOL) | ~np.isfinite(values)
    if not densities:
        wrong |= values > 1 + PROBABILITY_TOL
    if wrong.any():
        where = tuple(int(index) for index in np.argwhere(wrong)[0])
        value = values[where]
        hint = " Are these log-probabilities? Take exp first." if value < 0 else ""
        raise ValueError(f"{name} gives probability {value:g} at {', '.join(map(str, where))}.{hint}")
    return np.clip(values, 0.0, None if densities else 1.0)


def normalised_rows(values: Array, name: str, actions: int | None) -> Array:
    """Rows that sum to 1 up to ROW_SUM_TOL, divided by their sums; actions: the expected number of columns, or None."""
    if actions is not None and values.shape[1] != actions:
        raise ValueError(f"{name} gives {values.shape[1]} actions where {actions} are expected.")
    sums = values.sum(axis=1)
    wrong = np.abs(sums - 1) > ROW_SUM_TOL
    if wrong.any():
        where = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"The probabilities of {name} sum to {sums[where]:g} in row {where}, not to 1. Give the probabilities of "
            "all actions, including those that the log never takes."
        )
    return values / sums[:, None]
