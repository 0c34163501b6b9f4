"""Optional packages, imported where they are needed, and the error messages of libraries."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def need(module: str, extra: str, what: str) -> Any:
    """Import an optional module for the task `what`, or raise ValueError with the pip command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ValueError(f"{what} needs {package}. Install it with: pip install 'valuefit[{extra}]'") from error


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


def said(error: BaseException) -> str:
    """Message of an exception, at most 200 printable characters: it may quote an untrusted file."""
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200].rstrip(". ")


def shown(value: object) -> str:
    """A wrong value for a message, at most 60 printable characters."""
    if isinstance(value, int) and value.bit_length() > 200:  # repr refuses more than 4,300 digits
        return f"a whole number of about {value.bit_length() * 3 // 10} digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
