"""Memory limits, checked before an array is allocated or a file is read."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path


def memory_limit() -> int:
    """Maximum bytes of one large array: half of the memory that this process may use."""
    return available_memory() // 2


@cache
def available_memory(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of physical memory, or of the smallest limit of the control groups of this process (of a container, a job).

    root: the folder of the control groups; groups: the file that names those of this process. On other systems than
    Linux there are none.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in _text(groups).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        here = top / path.lstrip("/")
        texts = (_text(folder / name).strip() for folder in (here, *here.parents) if folder.is_relative_to(top))
        limits += [int(text) for text in texts if text.isdigit()]  # it is "max" where there is no limit
    return min(limits)


def _text(path: Path) -> str:
    """The text of a file of the system; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


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
    """The contents of a file would take more memory than is allowed. size: in bytes, as far as it is known."""

    def __init__(self, message: str, where: str, size: int) -> None:
        super().__init__(message)
        self.where, self.size = where, size


def check_size(declared: int, limit: int, where: str) -> None:
    """Raise TooLarge if the contents of a file, of `declared` bytes in memory, exceed `limit` bytes."""
    if declared > limit:
        raise TooLarge(
            f"{where} needs {format_bytes(declared)} in memory, more than the limit of {format_bytes(limit)}. If you "
            "trust it, load it with a larger `limit` (in bytes), or load fewer columns.",
            where, declared,
        )  # fmt: skip


def format_bytes(count: int) -> str:
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
