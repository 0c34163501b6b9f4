"""The cores that a pass over all rows may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController, threadpool_limits

PART_BYTES, PARTS = 4 << 20, 16  # of rows that are worth a thread's while, and how many such parts at most

_limit: ContextVar[int] = ContextVar("threads of valuefit", default=1 << 30)
_blas_lock = Lock()
_blas_users: list[list[int]] = []  # those within `one_blas_thread`, each with the threads of every library before it
_pools: dict[int, ThreadPoolExecutor] = {}
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


def threads() -> int:
    """Those that a pass may take: NUMBA_NUM_THREADS, by default every core at hand, or what `limit_threads` allows."""
    return min(_cores(), _limit.get())


@cache
def _cores() -> int:
    """The default, as numba reads it; numba itself is not imported for this."""
    asked = os.environ.get("NUMBA_NUM_THREADS", "").strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """At most this many threads, in our own loops and in BLAS."""
    before = _limit.set(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        _limit.reset(before)


@cache
def _blas() -> list[Any]:
    """The BLAS libraries in this process (NumPy and SciPy bring one each); finding them takes milliseconds."""
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Products of BLAS on one thread, for small ones, and for those that threads of ours share.

    NumPy and SciPy carry a pool of threads each. A pool keeps its cores busy for a while after a product, so two
    that take turns slow each other down by up to twenty times; next to another busy process even one does.
    """
    with _blas_lock:  # the setting belongs to the process: the first to come saves it, the last to leave restores it
        _blas_users.append(_blas_users[0] if _blas_users else [library.get_num_threads() for library in _blas()])
        for library in _blas():
            library.set_num_threads(1)
    try:
        yield
    finally:
        with _blas_lock:
            before = _blas_users.pop()
            if not _blas_users:
                for library, count in zip(_blas(), before, strict=True):
                    library.set_num_threads(count)


def share_out(work: Callable[[int], None], parts: int) -> None:
    """work(0) to work(parts - 1), which must not get into each other's way and release the interpreter's lock."""
    count = min(threads(), parts)
    if count <= 1:
        for part in range(parts):
            work(part)
        return
    if count not in _pools:
        _pools.setdefault(count, ThreadPoolExecutor(count, thread_name_prefix="valuefit"))
    pool = _pools[count]
    for _ in pool.map(work, range(parts)):
        pass


def parts_of(size: float) -> int:
    """Into how many parts this many bytes of rows are divided, whatever the threads: sums must not depend on them."""
    return int(min(max(size / PART_BYTES, 1), PARTS))
