"""Wrong values and the errors of libraries as parts of one-line messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def translated(problem: str, remedy: str) -> Iterator[None]:
    """Raise any error of the library calls inside as one ValueError: "problem (message of the error). remedy".

    For libraries that read untrusted files: a damaged file can make them raise an exception of any type. A missing file
    or permission is not damage, and keeps its OSError.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        raise ValueError(f"{problem} ({said(error)}). {remedy}") from error


class RowError(ValueError):
    """A wrong value at a row of a source: "`before` row 5 of `where``after`". kind: "row" or "step"."""

    def __init__(self, before: str, row: int, after: str, kind: str = "row", where: str = "") -> None:
        self.row, self._text = row, (before, row, after, kind, where)
        super().__init__(self.at(f"{kind} {row} of {where}" if where else f"{kind} {row}"))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._text

    def at(self, place: str) -> str:
        """The message with another name of the row, for rows of a part of the source."""
        return f"{self._text[0]} {place}{self._text[2]}".lstrip()


def said(error: BaseException) -> str:
    """Message of an exception, at most 200 printable characters: it may quote an untrusted file."""
    text = re.sub(r"<[\w.]+ object at 0x\w+>", "...", " ".join(str(error).split())) or type(error).__name__
    return printable(text)[:200].rstrip(". ")


def printable(text: str) -> str:
    """The text with "?" for characters that a terminal would act on: names may come from an untrusted file."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shown(value: Any) -> str:
    """A value for a message: one line of at most 60 printable characters, without the dtype of NumPy scalars."""
    if hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if isinstance(value, int) and value.bit_length() > 200:  # Python prints no more than 4,300 digits
        return f"a whole number of about {value.bit_length() * 3 // 10} digits"
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # such a number, inside a list
        return f"a {type(value).__name__} that is too long to print"
    text = printable(text)
    return text if len(text) <= 60 else f"{text[:57]}..."
