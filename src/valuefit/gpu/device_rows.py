"""Feature rows and steps as torch tensors, on a GPU or the CPU; everything of length n stays on their device."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

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
    def span(self, start: int, stop: int) -> Tensor:
        """The rows from `start` to `stop`."""

    @abstractmethod
    def take(self, index: Tensor) -> Tensor:
        """These rows."""

    @property
    def row_bytes(self) -> int:
        """Bytes that are read of a row."""
        return self.shape[1] * self.dtype.itemsize

    @property
    def block_size(self) -> int:
        """Rows in one block."""
        size = GPU_BLOCK_BYTES if self.device.type == "cuda" else CPU_BLOCK_BYTES
        return max(1, size // (8 * self.shape[1]))

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """(first row, block of rows) in storage order."""
        for part in self.parts():
            yield part.start, self.span(part.start, part.stop)

    def parts(self) -> list[slice]:
        """Consecutive rows of at most `block_size`."""
        ends = [*range(0, self.shape[0], self.block_size), self.shape[0]]
        return [slice(start, stop) for start, stop in pairwise(ends)]

    def dot(self, X: Tensor) -> Tensor:
        """Phi X for X (d,) or (d, columns)."""
        parts = [block.double() @ X for _, block in self.blocks()]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def tdot(self, A: Tensor) -> Tensor:
        """Phi' A for A (m,) or (m, columns)."""
        parts = [block.double().T @ A[start : start + len(block)] for start, block in self.blocks()]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)

    def squared_norms(self) -> Tensor:
        """|row|^2 of every row."""
        return torch.cat([block.double().square().sum(dim=1) for _, block in self.blocks()])

    def column_squares(self, weights: Tensor) -> Tensor:
        """sum over rows of weight * row^2, for every column."""
        parts = [weights[start : start + len(block)] @ block.double().square() for start, block in self.blocks()]
        return torch.stack(parts).sum(dim=0)

    def group_sums(self, index: Tensor, weights: Tensor, group: Tensor, groups: int) -> Tensor:
        """The sum of the rows `index` (m,) times `weights` (m,) in each group, (groups, d), in a fixed order."""
        if not bool((group[1:] >= group[:-1]).all()):
            order = torch.argsort(group, stable=True)
            index, weights, group = index[order], weights[order], group[order]
        sums = torch.zeros((groups, self.shape[1]), dtype=torch.float64, device=self.device)
        for start in range(0, len(index), self.block_size):
            part = slice(start, start + self.block_size)
            rows = self.take(index[part]).double() * weights[part, None]
            present, counts = torch.unique_consecutive(group[part], return_counts=True)
            sums[present] += SegmentSums(counts)(rows)
        return sums

    def group_dots(self, index: Tensor, group: Tensor, X: Tensor) -> Tensor:
        """The product of each row of `index` (m,) with the row of X that `group` (m,) names, (m,)."""
        found = torch.empty(len(index), dtype=torch.float64, device=self.device)
        for start in range(0, len(index), self.block_size):
            part = slice(start, start + self.block_size)
            found[part] = (self.take(index[part]).double() * X[group[part]]).sum(dim=1)
        return found


class HostProducts:
    """Products of rows on a device with arrays in the memory of the host (`rows.storage.RowProducts`)."""

    def __init__(self, rows: DeviceRows) -> None:
        self._rows = rows

    def dot(self, X: Array) -> Array:
        return to_array(self._rows.dot(to_tensor(X, self._rows.device)))

    def tdot(self, A: Array) -> Array:
        return to_array(self._rows.tdot(to_tensor(A, self._rows.device)))

    def group_sums(self, index: Array, weights: Array, group: Array, groups: int) -> Array:
        places, which = self._index(index), self._index(group)
        return to_array(self._rows.group_sums(places, to_tensor(weights, self._rows.device), which, groups))

    def group_dots(self, index: Array, group: Array, X: Array) -> Array:
        places, which = self._index(index), self._index(group)
        return to_array(self._rows.group_dots(places, which, to_tensor(X, self._rows.device)))

    def _index(self, index: Array) -> Tensor:
        return torch.tensor(np.ascontiguousarray(index), dtype=torch.int64, device=self._rows.device)


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
        self.shape = tuple(matrix.shape)
        self.device = matrix.device
        self.dtype = np.dtype(np.float32 if self.matrix.dtype == torch.float32 else np.float64)
        self._check_range(name)

    def _check_range(self, name: str) -> None:
        peak = 0.0
        for start, block in self.blocks():
            low, high = (float(value) for value in block.aminmax())
            if not np.isfinite([low, high]).all():
                where = start + int((~block.isfinite().all(dim=1)).nonzero()[0])
                raise ValueError(
                    f"{name} are NaN or infinite in row {where}. Check the observation of that row and the "
                    "feature transformer."
                )
            peak = max(peak, high, -low)
        require_range(name, peak, MAX_MAGNITUDE)

    def span(self, start: int, stop: int) -> Tensor:
        return self.matrix[start:stop]

    def take(self, index: Tensor) -> Tensor:
        return self.matrix[index]

    def dot(self, X: Tensor) -> Tensor:
        return self.matrix @ X if self.dtype == np.float64 else super().dot(X)

    def tdot(self, A: Tensor) -> Tensor:
        return self.matrix.T @ A if self.dtype == np.float64 else super().tdot(A)

    def used_columns(self, rows: Tensor) -> Tensor:
        """For every column, whether any of these rows (a mask) is nonzero there."""
        used = torch.zeros(self.shape[1], dtype=torch.bool, device=self.device)
        for start, block in self.blocks():
            used |= ((block != 0) & rows[start : start + len(block), None]).any(dim=0)
            if bool(used.all()):
                break
        return used

    def without(self, columns: Tensor) -> TensorRows:
        """A copy with these columns (a mask) set to zero; self if there are none."""
        return TensorRows(self.matrix.masked_fill(columns, 0.0)) if bool(columns.any()) else self


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

    def span(self, start: int, stop: int) -> Tensor:
        return self._copied(self._host[start:stop])

    def take(self, index: Tensor) -> Tensor:
        return self._copied(self._host[index.cpu()])

    def _copied(self, rows: Tensor) -> Tensor:
        """A copy on the device; the host goes on while it is made."""
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


class SegmentSums:
    """Sums of consecutive numbers, or rows of them, `counts` (segments,) at a time, in a fixed order.

    One thread of a GPU adds up a segment, so long ones are added in pieces first.
    """

    def __init__(self, counts: Tensor) -> None:
        self._pieces = -(-counts // MAX_SEGMENT)  # of each segment
        lengths = torch.full((int(self._pieces.sum()),), MAX_SEGMENT, device=counts.device)
        found = counts > 0
        last = self._pieces.cumsum(0)[found] - 1
        self._lengths = lengths.index_copy(0, last, (counts - (self._pieces - 1) * MAX_SEGMENT)[found])

    def __call__(self, values: Tensor) -> Tensor:
        sums = torch.segment_reduce(values, "sum", lengths=self._lengths, axis=0, unsafe=True, initial=0.0)
        return torch.segment_reduce(sums, "sum", lengths=self._pieces, axis=0, unsafe=True, initial=0.0)


class RowSums:
    """Sums of the numbers of steps by row, in a fixed order, so that they are the same to the bit every time.

    order: the steps in the order of their rows; None where they are so already.
    """

    def __init__(self, index: Tensor, rows: int) -> None:
        self.in_order = SegmentSums(torch.bincount(index, minlength=rows))
        self.order = None if bool((index[1:] >= index[:-1]).all()) else torch.argsort(index, stable=True)

    def __call__(self, values: Tensor) -> Tensor:
        return self.in_order(values if self.order is None else values[self.order])


def recurrence(x: Tensor, keep: Tensor) -> Tensor:
    """y_t = x_t + keep_t * y_{t-1} for numbers or rows x_t, by recursive doubling as in `rows.traces.recurrence`."""
    y = x
    keep = keep[:, None] if x.ndim > 1 else keep
    span = 1
    while span < len(y) and bool(keep[span:].any()):
        y = torch.cat([y[:span], torch.addcmul(y[span:], keep[span:], y[:-span])])
        keep = torch.cat([keep[:span], keep[span:] * keep[:-span]])
        span *= 2
    return y


class Members(NamedTuple):
    """Steps, or distinct rows, with what a sketch needs of them; weight: over sqrt(n)."""

    now: Tensor
    next: Tensor
    discount: Tensor
    ratio: Tensor
    keep: Tensor
    weight: Tensor


class DeviceSteps:
    """The steps of a log on a device: their rows, discounts, ratios, rewards and the traces along them.

    In a trajectory, where steps are in the order of their rows and the next row of a step follows its own (next =
    now + 1), `now` and `next` are None: there is then one step for every row, and those that are not in the log,
    such as the last observations of episodes, have ratio 0 and `live` 0. Blocks of rows are views then.
    """

    def __init__(self, columns: Sequence[Tensor], trace: float, rows: int) -> None:
        """columns: now, next, reward, discount, ratio, begins; next is not negative."""
        now, next, reward, discount, ratio, begins = columns
        self.trace, self.rows, self.count = trace, rows, len(now)
        follows = (next == now + 1) | (discount == 0)
        self.now, self.next = now, next
        self.reward, self.discount, self.ratio, self.begins = reward, discount, ratio, begins
        self.live = torch.ones_like(ratio)
        if bool(follows.all()) and bool((now[1:] > now[:-1]).all()):
            self.now = self.next = None
            columns = self.reward, self.discount, self.ratio, self.live
            self.reward, self.discount, self.ratio, self.live = (self._by_row(now, column) for column in columns)
            self.begins = torch.ones(rows, dtype=torch.bool, device=now.device).index_copy(0, now, begins)

    def _by_row(self, now: Tensor, column: Tensor) -> Tensor:
        return torch.zeros(self.rows, dtype=column.dtype, device=column.device).index_copy(0, now, column)

    @property
    def trajectory(self) -> bool:
        """Whether there is one step for every row, and the row after it is its next one."""
        return self.now is None

    # ---- between numbers of rows and numbers of steps ----------------------------------------------------

    def at_now(self, p: Tensor) -> Tensor:
        """p of the row of each step."""
        return p if self.trajectory else p[self.now]

    def at_next(self, p: Tensor) -> Tensor:
        """p of the next row of each step, arbitrary where the discount is 0."""
        return torch.cat([p[1:], torch.zeros_like(p[:1])]) if self.trajectory else p[self.next]

    def sum_now(self, x: Tensor) -> Tensor:
        """For every row, the sum of x over the steps from it."""
        return x if self.trajectory else self._now_sums(x)

    def sum_next(self, x: Tensor) -> Tensor:
        """For every row, the sum of x over the steps to it."""
        return torch.cat([torch.zeros_like(x[:1]), x[:-1]]) if self.trajectory else self._next_sums(x)

    @cached_property
    def _now_sums(self) -> RowSums:
        return RowSums(self.now, self.rows)

    @cached_property
    def _next_sums(self) -> RowSums:
        return RowSums(self.next, self.rows)

    @cached_property
    def visits(self) -> Tensor:
        """The number of steps with each row as `now`."""
        return self.sum_now(self.live)

    def members(self, *, cross: bool) -> Members:
        """The steps of the log, without those that are not in it, or if not `cross`, its distinct rows."""
        if self.now is not None and cross:
            return Members(
                self.now, self.next, self.discount, self.ratio, self.keep_forward, self.live / self.count**0.5
            )
        rows = self.visits.nonzero()[:, 0]
        weight = (self.visits[rows] / self.count).sqrt()
        if self.now is not None:
            return Members(rows, rows, weight, weight, weight, weight)
        after = (rows + 1).clamp(max=self.rows - 1)
        return Members(rows, after, self.discount[rows], self.ratio[rows], self.keep_forward[rows], weight)

    def difference(self, p: Tensor) -> Tensor:
        """p_now - discount * p_next of every step: v_t' theta for p = Phi theta, a number or a row of each."""
        discount = self.discount if p.ndim == 1 else self.discount[:, None]
        return torch.addcmul(self.at_now(p), discount, self.at_next(p), value=-1)

    def difference_transposed(self, x: Tensor) -> Tensor:
        """The weights of rows a with sum x_t v_t = Phi' a."""
        return self.sum_now(x) - self.sum_next(self.discount * x)

    # ---- traces ------------------------------------------------------------------------------------------

    @cached_property
    def keep_forward(self) -> Tensor:
        """The factor of u_{t-1} in u_t: ratio_t * trace * discount_{t-1}, and 0 at the first step of an episode."""
        keep = self.ratio * self.trace
        keep[1:] *= self.discount[:-1]
        return keep.masked_fill(self.begins, 0.0)

    @cached_property
    def keep_backward(self) -> Tensor:
        """The factor of z_{t+1} in z_t: ratio_t * trace * discount_t, and 0 at the last step of an episode."""
        last = torch.cat([self.begins[1:], torch.ones_like(self.begins[:1])])
        return (self.ratio * self.trace * self.discount).masked_fill(last, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """y_t = ratio_t (x_t + trace * discount_{t-1} * y_{t-1}) in an episode: u_t'w for x_t = psi_t'w.

        For one number of each step, or a row of them.
        """
        weighted = (self.ratio if x.ndim == 1 else self.ratio[:, None]) * x
        return recurrence(weighted, self.keep_forward) if self.trace else weighted

    def backward(self, x: Tensor) -> Tensor:
        """z_t = ratio_t (x_t + trace * discount_t * z_{t+1}) within an episode: sum u_t x_t = sum psi_t z_t."""
        if not self.trace:
            return self.ratio * x
        return recurrence((self.ratio * x).flip(0), self.keep_backward.flip(0)).flip(0)


def to_tensor(vector: Array, device: Any) -> Tensor:
    """A vector of the solver as float64 on the device."""
    return torch.tensor(np.ascontiguousarray(vector), dtype=torch.float64, device=device)


def to_array(tensor: Tensor) -> Array:
    """A tensor as a NumPy array of float64."""
    return np.asarray(tensor.double().cpu().numpy())


def require_device_memory(count: int, device: Any, what: str, instead: str) -> None:
    """Raise MemoryError if `what`, a tensor of `count` float64 numbers, does not fit; `instead` is the remedy."""
    if device.type != "cuda":
        require_memory(count, what, instead)
    elif 8 * count > MAX_SHARE * torch.cuda.mem_get_info(device)[0]:
        raise MemoryError(f"{what} would take {8 * count / 2**30:.1f} GiB, too much for the GPU. {instead}")
