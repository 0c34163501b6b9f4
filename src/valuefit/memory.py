"""Memory limits, checked before an array is allocated or a file is read."""

from __future__ import annotations

import ctypes
import os
from functools import cache


def memory_limit() -> int:
    """Maximum bytes of one large array: half of the machine's physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@cache
def reuse_freed_memory() -> None:
    """Let this process reuse the memory of freed arrays, where its C library is glibc.

    Dask starts its workers with a setting that returns it to the system, which then clears every new array: passes over
    a log took twice the processor time (`benchmarks/cluster.py`).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: of an array whose memory is reused, the most that glibc allows
    mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD: of freed memory that is kept


class TooLarge(ValueError):
    """The contents of a file would take more memory than is allowed."""


def check_size(declared: int, limit: int, where: str) -> None:
    """Raise TooLarge if the contents of a file, of `declared` bytes in memory, exceed `limit` bytes."""
    if declared > limit:
        raise TooLarge(
            f"{where} needs {_format_bytes(declared)} in memory, more than the limit of {_format_bytes(limit)}. If you "
            "trust it, load it with a larger limit (in bytes), or load fewer columns."
        )


def _format_bytes(count: int) -> str:
    """A number of bytes with a readable unit."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def fits(count: int) -> bool:
    """Whether an array of `count` float64 numbers is within `memory_limit()`."""
    return 8 * count <= memory_limit()


def require_memory(count: int, what: str, instead: str) -> None:
    """Raise MemoryError if `what`, an array of `count` float64 numbers, does not fit; `instead` is the remedy."""
    if not fits(count):
        raise MemoryError(
            f"{what} would take {8 * count / 2**30:.1f} GiB, more than half of this machine's memory. {instead}"
        )
