"""How much memory arrays and files may take, decided before anything is allocated."""

from __future__ import annotations

import os


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


def fits(count: int) -> bool:
    """Whether `count` float64 find room."""
    return 8 * count <= memory_limit()


def require_memory(count: int, what: str, instead: str) -> None:
    """Refuse an array of `count` float64 that would not fit."""
    if not fits(count):
        raise MemoryError(
            f"{what} would take {8 * count / 2**30:.1f} GiB, more than half of this machine's memory. {instead}"
        )
