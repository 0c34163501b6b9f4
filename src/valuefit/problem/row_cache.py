"""Feature rows of a log in shards, kept on disk where reading them takes less time than computing them again."""

from __future__ import annotations

import io
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import numpy as np
import scipy.sparse as sparse

from valuefit.data.shards import episode_blocks
from valuefit.problem.parts import Function, Part, Parts, add, each_part, sum_shards
from valuefit.problem.problem import Problem
from valuefit.typing import Array

DISK_BYTES_PER_SECOND = 5e8  # that a disk is assumed to deliver
FAST_COMPRESSION = 1  # level of zlib
ROWS_COMPUTED = "feature rows were computed in every pass"


@dataclass(eq=False)
class RowCache:
    """The problems of the parts of a log in a temporary file without a name, compressed or plain."""

    compressed: bool
    bytes: int = 0
    places: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # of the parts of each shard in the file

    def __post_init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="valuefit-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    def store(self, part: Part) -> tuple[int]:
        """Add a part."""
        data = packed(part.problem, self.compressed)
        self.places.setdefault(part.place[0], []).append((self.bytes, len(data)))
        self._file.seek(self.bytes)
        self._file.write(data)
        self._file.flush()  # a full disk is found here
        self.bytes += len(data)
        return (part.problem.n,)

    def parts(self, shard: int, trace: float) -> list[Part]:
        """The parts of a shard, without their logs."""
        found: list[Part] = []
        no_log: Any = None
        for number, (start, size) in enumerate(self.places[shard]):
            self._file.seek(start)
            problem = unpacked(self._file.read(size), self.compressed, trace)
            found.append(Part(problem, no_log, (shard, number)))
        return found


@dataclass(frozen=True, eq=False)
class _CachedShard:
    cache: RowCache
    number: int
    trace: float

    def read(self) -> Any:
        return self.cache.parts(self.number, self.trace)


@dataclass(frozen=True, eq=False)
class CachedParts:
    """What `Parts` offers, with problems from a cache."""

    cache: RowCache
    steps: int
    trace: float
    client: None = None
    at_once: int = 1  # the file is read by one thread

    @property
    def shards(self) -> tuple[_CachedShard, ...]:
        return tuple(_CachedShard(self.cache, number, self.trace) for number in self.cache.places)

    def sum(self, function: Function) -> tuple[Any, ...]:
        """`Parts.sum`."""
        return sum_shards(self.shards, partial(self.of_shard, function=function), None)

    def of_shard(self, parts: Any, number: int, function: Function) -> tuple[Any, ...]:
        return reduce(add, map(function, parts))

    def parts_of(self, parts: Any, number: int) -> Any:
        """`Parts.parts_of`."""
        return parts

    def each(self, function: Callable[[Part], Any], places: Any) -> Iterator[Any]:
        """`Parts.each`."""
        return each_part(self, function)


def cached(parts: Parts, trace: float) -> tuple[Parts | CachedParts, str]:
    """The parts, or their rows on disk where those are read faster than computed, and what was chosen in words.

    The first part is computed, packed and unpacked to know how long each takes. Sums do not depend on the choice.
    """
    if parts.client is not None:
        return parts, ROWS_COMPUTED
    log = next(iter(episode_blocks(next(iter(parts.shards)).read(), parts.steps)))
    problem = parts.make(log)
    seconds = {"": _seconds(partial(parts.make, log))}
    for word, compressed in (("plain", False), ("compressed", True)):
        data = packed(problem, compressed)
        seconds[word] = len(data) / DISK_BYTES_PER_SECOND + _seconds(partial(unpacked, data, compressed, trace))
    chosen = min(seconds, key=lambda word: seconds[word])
    if not chosen:
        return parts, ROWS_COMPUTED
    cache = RowCache(chosen == "compressed")
    try:
        for _ in each_part(parts, cache.store):  # one after the other
            pass
    except OSError as error:
        if error.errno is None:  # raised by a reader, not by the disk
            raise
        return parts, f"{ROWS_COMPUTED}, because the disk has no room for them ({error.strerror})"
    size = f"{cache.bytes / 2**30:.2g} GiB"
    note = f"feature rows were computed each time, and kept on disk, {chosen}, in {size}, for the passes of the solver"
    return CachedParts(cache, parts.steps, trace), note


def _seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def packed(problem: Problem, compressed: bool) -> bytes:
    """The rows and steps of a problem as bytes."""
    matrix = problem.phi.matrix
    rows = {"rows": matrix}
    if problem.sparse:
        rows = {name: np.asarray(getattr(matrix, name)) for name in ("data", "indices", "indptr", "shape")}
    columns = {name: getattr(problem, name) for name in ("now", "next", "reward", "discount", "ratio", "begins")}
    buffer = io.BytesIO()
    np.savez(buffer, **rows, **columns)
    return zlib.compress(buffer.getvalue(), FAST_COMPRESSION) if compressed else buffer.getvalue()


def unpacked(data: bytes, compressed: bool, trace: float) -> Problem:
    """The problem in bytes of `packed`, with the same bits; its ridge is 0."""
    arrays: dict[str, Array]
    with np.load(io.BytesIO(zlib.decompress(data) if compressed else data), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    rows: Any = arrays.get("rows")
    if rows is None:
        rows = sparse.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(arrays["shape"]))
    now, next, reward, discount, ratio = (arrays[name] for name in ("now", "next", "reward", "discount", "ratio"))
    episode = np.cumsum(arrays["begins"])
    found: Problem = Problem.from_rows(rows, now, next, reward, discount, ratio, episode, trace=trace, part=True)
    return found
