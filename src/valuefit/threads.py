"""The thread pool for passes over all rows, and the limit on its size."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

from numba import config
from threadpoolctl import threadpool_limits

PART_BYTES = 4 << 20  # minimum bytes of rows per part; in smaller parts the cost of starting a task exceeds the gain
PARTS = 16  # maximum number of parts; a fixed number, so that results do not depend on the number of cores

_limit: ContextVar[int] = ContextVar("valuefit_thread_limit", default=1 << 30)
_pools: dict[int, ThreadPoolExecutor] = {}
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


def thread_count() -> int:
    """Number of threads of a pass: NUMBA_NUM_THREADS (by default all cores), or fewer under `limit_threads`."""
    return min(config.NUMBA_NUM_THREADS, _limit.get())  # type: ignore[attr-defined]


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Use at most `count` threads in valuefit's own loops and in BLAS."""
    before = _limit.set(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        _limit.reset(before)


def share_out(work: Callable[[int], None], parts: int) -> None:
    """Run work(0), ..., work(parts - 1) on up to `thread_count()` threads.

    The calls must not write to the same memory, and gain speed only where they release the interpreter lock.
    """
    count = min(thread_count(), parts)
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
    """Number of parts that `size` bytes of rows are divided into.

    It does not depend on the number of threads, so that sums are the same to the bit on any number of them.
    """
    return int(min(max(size / PART_BYTES, 1), PARTS))
