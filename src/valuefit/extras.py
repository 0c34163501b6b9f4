"""Optional packages, imported where they are needed; the sentence for those that are not installed."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, extra: str, what: str) -> Any:
    """An optional package, or the sentence that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ValueError(f"{what} needs {package}. Install it with: pip install 'valuefit[{extra}]'") from error


def said(error: BaseException) -> str:
    """What a library said, short and in printable characters: its message may quote an untrusted file."""
    text = " ".join(str(error).split())
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200].rstrip(". ")
