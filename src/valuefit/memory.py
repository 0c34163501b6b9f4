"""How much may be read, and the packages that read it: both are asked before anything is."""

from __future__ import annotations

import importlib
import os
from typing import Any


def memory_limit() -> int:
    """Bytes that one large array may take: half of what the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def check_size(declared: int, limit: int, where: str) -> None:
    """Refuse a file that says of itself that it unfolds to more than the limit."""
    if declared > limit:
        raise ValueError(
            f"{where} unfolds to {_size(declared)}, more than the limit of {_size(limit)}. If you trust it, load it "
            "with a larger limit (in bytes), or name fewer columns."
        )


def _size(count: int) -> str:
    """A number of bytes for people."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


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
