"""Calls of valuefit in a fuzz case, and the judgement of how they end: an answer, a refusal or a failure."""

from __future__ import annotations

import linecache
import re
import struct
import traceback
import warnings
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Any

import valuefit

PACKAGE = str(Path(valuefit.__file__).parent)
MAX_MESSAGE_CHARACTERS = 600
# what a message must not contain: internals of Python in place of words
INTERNAL = re.compile(r"NoneType|Traceback|<ast\.")
SKLEARN_WARNINGS = ("ConvergenceWarning", "DataConversionWarning")  # estimators must give them
DOCUMENTED = re.compile("The episodes count as only .* the simultaneous intervals may be too short")  # a warning

RIGHT, ANSWER, REFUSED = "right", "answer", "refused"
ALLOWED = (RIGHT, ANSWER, REFUSED)
FAILURES = ("wrong", "exception", "unclear", "warning", "memory", "abort", "hang", "harness")

STATE = struct.Struct("qq")  # case, phase
PREPARING, IN_VALUEFIT, CHECKING = range(3)


class Refusal(Exception):
    """valuefit refused the input in one printable sentence."""


class Failure(Exception):
    """valuefit did what it must not do; `kind` is one of FAILURES."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Progress:
    """The case that a child is in, in memory that it shares with its parent, who reads it if the child dies."""

    def __init__(self) -> None:
        self._memory = mmap(-1, STATE.size)

    def set(self, case: int, phase: int) -> None:
        self._memory[:] = STATE.pack(case, phase)

    def get(self) -> tuple[int, int]:
        case, phase = STATE.unpack(self._memory[:])
        return case, phase

    def phase(self, phase: int) -> None:
        self.set(self.get()[0], phase)


progress = Progress()  # replaced in each child


def ask(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The answer of valuefit; raises Refusal or Failure where there is none."""
    progress.phase(IN_VALUEFIT)
    try:
        with warnings.catch_warnings(record=True) as leaked:
            warnings.simplefilter("always")
            try:
                answer = function(*arguments, **options)
            except Exception as error:  # whatever valuefit raises is judged
                raise _judge(error) from error
        for warning in leaked:
            documented = isinstance(warning.message, UserWarning) and DOCUMENTED.match(str(warning.message))
            if warning.category.__name__ not in SKLEARN_WARNINGS and not documented:
                place = f"{Path(warning.filename).name}:{warning.lineno}"
                raise Failure("warning", f"{warning.category.__name__}: {warning.message} ({place})")
    finally:
        progress.phase(CHECKING)
    return answer


def expect(condition: Any, detail: str) -> None:
    """Raise Failure("wrong") unless the condition holds."""
    if not condition:
        raise Failure("wrong", detail)


def _judge(error: Exception) -> Refusal | Failure:
    text, name = str(error), type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    where = next((f"{Path(one.filename).name}:{one.lineno}" for one in reversed(frames) if PACKAGE in one.filename), "")
    shown = f"{name}: {ascii(text)[1:-1][:300]} ({where})"
    last = frames[-1]
    deliberate = linecache.getline(last.filename, last.lineno or 0).lstrip().startswith("raise ")
    if isinstance(error, MemoryError):
        return Refusal(text) if deliberate and PACKAGE in last.filename else Failure("memory", shown)
    from_sklearn = any(
        "sklearn/utils" in one.filename for one in frames
    )  # estimators must give scikit-learn's messages
    if from_sklearn and isinstance(error, ValueError | TypeError):
        return Refusal(text)
    if not isinstance(error, ValueError | OSError):
        return Failure("exception", shown)
    if not isinstance(error, OSError) and not (deliberate and PACKAGE in last.filename):
        return Failure("unclear", f"message of a library: {shown}")
    why = fault_of_message(text)
    return Failure("unclear", f"{why}: {shown}") if why else Refusal(text)


def fault_of_message(text: str) -> str:
    """Why a message is not one printable sentence; empty if it is."""
    if not text.isprintable():
        return "not printable on one line"
    if len(text) > MAX_MESSAGE_CHARACTERS:
        return f"{len(text)} characters"
    if found := INTERNAL.search(text):
        return f"shows {found[0]!r}"
    return "" if len(text) >= 15 else "says too little"
