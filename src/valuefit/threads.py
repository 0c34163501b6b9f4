"""The cores that a pass over all rows may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

from numba import config
from threadpoolctl import threadpool_limits

PART_BYTES, PARTS = 4 << 20, 16  # of rows that are worth a thread's while, and how many such parts at most

_limit: ContextVar[int] = ContextVar("threads of valuefit", default=1 << 30)
_pools: dict[int, ThreadPoolExecutor] = {}
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


def threads() -> int:
    """Those that a pass may take: NUMBA_NUM_THREADS, by default every core at hand, or what `limit_threads` allows."""
    return min(config.NUMBA_NUM_THREADS, _limit.get())  # type: ignore[attr-defined]


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """At most this many threads, in our own loops and in BLAS."""
    before = _limit.set(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        _limit.reset(before)


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
