"""Feature rows as torch tensors, on a GPU or the CPU; products with them and sums over them stay on their device."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch

from valuefit.memory import require_memory
from valuefit.rows.storage import MAX_MAGNITUDE, require_range
from valuefit.typing import Array

Tensor = Any  # torch.Tensor, which mypy does not know where torch is not installed

# Bytes of float64 rows in one matrix product (benchmarks/gpu.py): on a GPU long enough for its rate, else in cache.
GPU_BLOCK_BYTES, CPU_BLOCK_BYTES = 1 << 30, 8 << 20
MAX_SEGMENT = 256  # numbers that one thread of a GPU adds up
MAX_SHARE = 0.7  # of the free memory of a GPU that rows may take; products need some too


class DeviceRows(ABC):
    """Feature rows (m, d) on a device; products are float64."""

    shape: tuple[int, int]
    device: Any
    dtype: np.dtype[Any]  # float64 or float32, of the numbers that are read

    @abstractmethod
    def read(self, chosen: slice | Tensor) -> Tensor:
        """These rows: consecutive ones, which need not be copied, or those of an index."""

    @property
    def block_size(self) -> int:
        """Rows in one block."""
        size = GPU_BLOCK_BYTES if self.device.type == "cuda" else CPU_BLOCK_BYTES
        return max(1, size // (8 * self.shape[1]))

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Consecutive rows, and where they are."""
        for part in slices(self.shape[0], self.block_size):
            yield part, self.read(part)

    def dot(self, X: Tensor) -> Tensor:
        """Phi X for X (d,) or (d, columns)."""
        products = [block.double() @ X for _, block in self.blocks()]
        return products[0] if len(products) == 1 else torch.cat(products)

    def tdot(self, A: Tensor) -> Tensor:
        """Phi' A for A (m,) or (m, columns)."""
        products = [block.double().T @ A[part] for part, block in self.blocks()]
        return products[0] if len(products) == 1 else torch.stack(products).sum(dim=0)

    def column_squares(self, weights: Tensor) -> Tensor:
        """sum over rows of weight * row^2, for every column."""
        return torch.stack([weights[part] @ block.double().square() for part, block in self.blocks()]).sum(dim=0)

    def group_sums(self, index: Tensor, weights: Tensor, group: Tensor, groups: int) -> Tensor:
        """The sum of the rows `index` (m,) times `weights` (m,) in each group, (groups, d), in a fixed order."""
        order = torch.argsort(group, stable=True)
        sums = torch.zeros((groups, self.shape[1]), dtype=torch.float64, device=self.device)
        for part in slices(len(index), self.block_size):
            here = order[part]
            present, own = torch.unique_consecutive(group[here], return_inverse=True)
            sums[present] += RowSums(own, len(present))(self.read(index[here]).double() * weights[here, None])
        return sums

    def group_dots(self, index: Tensor, group: Tensor, X: Tensor) -> Tensor:
        """The product of each row of `index` (m,) with the row of X that `group` (m,) names, (m,)."""
        parts = slices(len(index), self.block_size)
        products = ((self.read(index[part]).double() * X[group[part]]).sum(dim=1) for part in parts)
        return torch.cat([X.new_zeros(0), *products])


class HostProducts:
    """Products of rows on a device with arrays in the memory of the host (`rows.storage.RowProducts`)."""

    def __init__(self, rows: DeviceRows) -> None:
        self._rows = rows

    def dot(self, X: Array) -> Array:
        return to_array(self._rows.dot(self._tensor(X)))

    def tdot(self, A: Array) -> Array:
        return to_array(self._rows.tdot(self._tensor(A)))

    def group_sums(self, index: Array, weights: Array, group: Array, groups: int) -> Array:
        return to_array(self._rows.group_sums(self._index(index), self._tensor(weights), self._index(group), groups))

    def group_dots(self, index: Array, group: Array, X: Array) -> Array:
        return to_array(self._rows.group_dots(self._index(index), self._index(group), self._tensor(X)))

    def _tensor(self, values: Array) -> Tensor:
        return to_tensor(values, self._rows.device)

    def _index(self, index: Array) -> Tensor:
        return to_tensor(index, self._rows.device, torch.int64)


class TensorRows(DeviceRows):
    """Rows in a dense tensor of float64 or float32, which is not copied."""

    def __init__(self, matrix: Tensor, name: str = "features") -> None:
        if matrix.layout != torch.strided:
            raise ValueError(
                f"{name} are a sparse tensor, which a problem on a device does not take. Give a dense tensor, or a "
                "SciPy sparse matrix on the CPU."
            )
        if matrix.ndim != 2 or matrix.shape[1] == 0:
            raise ValueError(f"{name} must be a matrix, one row per observation; the shape is {tuple(matrix.shape)}.")
        if matrix.is_complex():
            raise ValueError(f"{name} have dtype {matrix.dtype}, which is not numeric. Convert them to floats.")
        matrix = matrix.detach()
        self.matrix = (matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.double()).contiguous()
        self.shape, self.device = tuple(matrix.shape), matrix.device
        self.dtype = np.dtype(np.float32 if self.matrix.dtype == torch.float32 else np.float64)
        peak = 0.0
        for part, block in self.blocks():
            low, high = (float(value) for value in block.aminmax())
            if not np.isfinite([low, high]).all():
                where = part.start + int((~block.isfinite().all(dim=1)).nonzero()[0])
                raise ValueError(
                    f"{name} are NaN or infinite in row {where}. Check the observation of that row and the "
                    "feature transformer."
                )
            peak = max(peak, high, -low)
        require_range(name, peak, MAX_MAGNITUDE)

    def read(self, chosen: slice | Tensor) -> Tensor:
        return self.matrix[chosen]

    def dot(self, X: Tensor) -> Tensor:
        return self.matrix @ X if self.dtype == np.float64 else super().dot(X)

    def tdot(self, A: Tensor) -> Tensor:
        return self.matrix.T @ A if self.dtype == np.float64 else super().tdot(A)

    def without_unused(self, used: Tensor) -> tuple[TensorRows, Array]:
        """These rows with zeros in the columns where no row that is `used` (a mask) has any other number, and those."""
        dead = torch.ones(self.shape[1], dtype=torch.bool, device=self.device)
        for part, block in self.blocks():
            dead &= ~((block != 0) & used[part, None]).any(dim=0)
            if not bool(dead.any()):
                return self, np.zeros(0, np.int64)
        return TensorRows(self.matrix.masked_fill(dead, 0.0)), np.flatnonzero(dead.cpu().numpy())


class StreamedRows(DeviceRows):
    """Rows in the memory of the host, more than fit on the device: blocks are copied there whenever they are read.

    A GPU works on one block while the next is copied, through two buffers in page-locked memory.
    """

    def __init__(self, matrix: Array, device: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is only read
            self._host = torch.from_numpy(matrix)
        self.shape = self._host.shape[0], self._host.shape[1]
        self.device, self.dtype = torch.device(device), matrix.dtype
        self._buffers: list[tuple[Tensor, Any]] = []  # of pinned memory, with the event that ends its use

    def read(self, chosen: slice | Tensor) -> Tensor:
        """A copy on the device; the host goes on while it is made."""
        rows = self._host[chosen if isinstance(chosen, slice) else chosen.cpu()]
        if self.device.type != "cuda":
            return rows
        buffer, used = self._buffers.pop(0) if len(self._buffers) == 2 else (None, torch.cuda.Event())
        used.synchronize()
        if buffer is None or len(buffer) < len(rows):
            buffer = torch.empty((len(rows), self.shape[1]), dtype=self._host.dtype, pin_memory=True)
        buffer[: len(rows)].copy_(rows)
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            out = buffer[: len(rows)].to(self.device, non_blocking=True)
            used.record()
        current.wait_event(used)
        out.record_stream(current)  # its memory is not used again before the work on it is done
        self._buffers.append((buffer, used))
        return out

    @cached_property
    def _stream(self) -> Any:
        return torch.cuda.Stream(self.device)


class RowSums:
    """Sums of numbers, or of rows of them, by an `index` (m,) below `count`, the same to the bit every time.

    One thread of a GPU adds up a segment, so long ones are added in pieces first.
    """

    def __init__(self, index: Tensor, count: int) -> None:
        self._order = None if bool((index[1:] >= index[:-1]).all()) else torch.argsort(index, stable=True)
        counts = torch.bincount(index, minlength=count)
        self._pieces = -(-counts // MAX_SEGMENT)  # of each segment
        lengths = torch.full((int(self._pieces.sum()),), MAX_SEGMENT, device=index.device)
        present = counts > 0
        last = self._pieces.cumsum(0)[present] - 1
        self._lengths = lengths.index_copy(0, last, (counts - (self._pieces - 1) * MAX_SEGMENT)[present])

    def __call__(self, values: Tensor) -> Tensor:
        values = values if self._order is None else values[self._order]
        for lengths in (self._lengths, self._pieces):
            values = torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True, initial=0.0)
        return values


def slices(count: int, size: int) -> list[slice]:
    """Consecutive slices of at most `size`."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def to_tensor(values: Array, device: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers of the host on the device."""
    return torch.tensor(np.ascontiguousarray(values), dtype=dtype, device=device)


def to_array(tensor: Tensor) -> Array:
    """A tensor as a NumPy array of float64."""
    return np.asarray(tensor.double().cpu().numpy())


def require_device_memory(count: int, device: Any, what: str, instead: str) -> None:
    """Raise MemoryError if `what`, a tensor of `count` float64 numbers, does not fit; `instead` is the remedy."""
    if device.type != "cuda":
        require_memory(count, what, instead)
    elif 8 * count > MAX_SHARE * torch.cuda.mem_get_info(device)[0]:
        raise MemoryError(f"{what} would take {8 * count / 2**30:.1f} GiB, too much for the GPU. {instead}")
