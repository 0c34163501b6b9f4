"""Wrong values, the errors of libraries and damaged files as parts of one-line messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any

MAX_NAMES = 20  # columns that a message names
MAX_TOML_BYTES = 1 << 20  # far above any real file; guards against reading a log by mistake


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


@contextmanager
def user_errors(what: str, observations: Any, names: Sequence[str] = (), *, actions: bool = False) -> Iterator[None]:
    """Raise any error of the user's code, `what`, as a ValueError that says what it was called with.

    observations: the array that it is given. names: of its columns. actions: whether it is given actions, too.
    """
    try:
        yield
    except (MemoryError, RowError):  # the latter says what is wrong with the rows that the code returned
        raise
    except Exception as error:
        own = (os.path.dirname(__file__), "site-packages")  # the line of the user's code, if it is not in a library
        lines = [one for one in extract_tb(error.__traceback__) if not any(part in one.filename for part in own)]
        place = f" ({lines[-1].filename}, line {lines[-1].lineno})" if lines else ""
        columns, remedy = "", "It must take arrays of them."
        if names and observations.shape[1:] == (len(names),):
            shown_names = ", ".join(repr(printable(name)[:60]) for name in names[:MAX_NAMES])
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            columns = f" with the columns {shown_names}{more}"
            remedy = "It must take these columns in this order, as observations[:, 0] and so on."
        if observations.dtype.kind == "f" and (observations != observations).any():
            remedy = (
                "Some values are missing (NaN): fill the gaps inside of it, for example with a SimpleImputer in a "
                "Pipeline; the log keeps its gaps."
            )
        first_line = said(ValueError(str(error).partition("\n")[0])) if str(error) else ""
        raise ValueError(
            f"{what} failed with {type(error).__name__}{': ' * bool(first_line)}{first_line}{place}. It was called "
            f"with an array of observations of shape {observations.shape}{columns}{', and their actions' * actions}. "
            f"{remedy}"
        ) from error


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The table of a TOML file, or a ValueError that says why there is none. what: as in "an experiment"."""
    import tomllib

    with open(path, "rb") as stream:
        content = stream.read(MAX_TOML_BYTES + 1)
    if len(content) > MAX_TOML_BYTES:
        raise ValueError(f"{path} is larger than {MAX_TOML_BYTES:,} bytes, the limit for {what}.")
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None


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
