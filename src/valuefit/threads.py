"""The thread pool for passes over all rows, and the limit on its size."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from threading import Lock, RLock
from typing import Any

from threadpoolctl import ThreadpoolController, threadpool_limits

PART_BYTES = 2 << 20  # minimum bytes of rows per part; in smaller parts the cost of starting a task exceeds the gain
ONE_BLAS_THREAD = 400  # features up to which BLAS uses one thread; not tuned
PARTS = 16  # maximum number of parts; a fixed number, so that results do not depend on the number of cores

user_code = RLock()  # held while features and policies of the user run: they need not allow several threads
_limit: ContextVar[int] = ContextVar("valuefit_thread_limit", default=1 << 30)
_blas_lock = Lock()
_blas_users: list[list[int]] = []  # callers inside `one_blas_thread`, each with the previous thread counts
_pools: dict[int, ThreadPoolExecutor] = {}
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


def thread_count() -> int:
    """Number of threads of a pass: NUMBA_NUM_THREADS (by default all cores), or fewer under `limit_threads`."""
    return min(_cores(), _limit.get())


@cache
def _cores() -> int:
    """The default, as numba would read it, without importing numba."""
    asked = os.environ.get("NUMBA_NUM_THREADS", "").strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_threads(count: int) -> AbstractContextManager[None]:
    """Use at most `count` threads in valuefit's own loops and in BLAS."""
    return _limited(count, lambda: threadpool_limits(count))


def one_thread() -> AbstractContextManager[None]:
    """Use one thread in valuefit's own loops and in BLAS, where the caller runs on several threads at once."""
    return _limited(1, one_blas_thread)


@contextmanager
def _limited(count: int, limit_blas: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    before = _limit.set(count)
    try:
        with limit_blas():
            yield
    finally:
        _limit.reset(before)


@cache
def _blas() -> list[Any]:
    """The BLAS libraries in this process (NumPy and SciPy have one each); finding them takes milliseconds."""
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run BLAS on one thread: for small products, and inside our own threads.

    NumPy and SciPy have separate BLAS thread pools, whose threads spin for a while after each product. Two pools in
    alternation slow each other down by up to 20 times, and so does one pool next to another busy process.
    """
    with _blas_lock:  # the setting is global: the first caller saves it, the last one restores it
        if _blas_users:
            _blas_users.append(_blas_users[0])
        else:
            _blas_users.append([library.get_num_threads() for library in _blas()])
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


def blas_threads(features: int) -> AbstractContextManager[None]:
    """Run BLAS on one thread for matrices of few features: passes over rows, on our threads, need the cores.

    A product of another BLAS thread lets that thread spin for about 25 ms, on two cores half of them.
    """
    return one_blas_thread() if features <= ONE_BLAS_THREAD else nullcontext()


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
        _pools.setdefault(count, ThreadPoolExecutor(count - 1, thread_name_prefix="valuefit"))
    remaining = iter(range(parts))

    def work_on_remaining() -> None:
        for part in remaining:
            work(part)

    others = [_pools[count].submit(work_on_remaining) for _ in range(count - 1)]
    try:
        work_on_remaining()  # the calling thread works too, and does not wait for threads that have not started yet
    finally:
        for _ in remaining:  # after an error, or Ctrl-C, the rest is not begun
            pass
        started = [other for other in others if not other.cancel()]
        wait(started)
    for other in started:
        other.result()


def parts_of(size: float) -> int:
    """Number of parts that `size` bytes of rows are divided into.

    It does not depend on the number of threads, so that sums are the same to the bit on any number of them.
    """
    return int(min(max(size / PART_BYTES, 1), PARTS))
