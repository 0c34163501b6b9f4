"""Problems on a device from what a user gives: tensors, a log with kernel features, or rows in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sparse
import torch

from valuefit.data.transitions import Transitions
from valuefit.data.validation import whole_number
from valuefit.features.kernel import Kernel
from valuefit.gpu.device_problem import DeviceProblem
from valuefit.gpu.device_rows import MAX_SHARE, DeviceRows, HostProducts, StreamedRows, Tensor, TensorRows
from valuefit.gpu.kernel_rows import KernelRows
from valuefit.memory import fits
from valuefit.messages import shown
from valuefit.problem.arguments import (
    StepArrays,
    check_dual_shape,
    check_steps,
    fraction,
    is_device_array,
    refuse_infinite_sums,
    settings_of,
    step_arrays,
)
from valuefit.problem.problem import Problem
from valuefit.rows.storage import Rows
from valuefit.typing import Array


def from_device_rows(Phi: Any, *columns: Any, trace: Any, ridge: Any, dual_rows: Any, metric: Any) -> DeviceProblem:
    """`Problem.from_rows` for rows on a device; columns: now, next, reward, discount, ratio, episode, there or not."""
    phi = TensorRows(_tensor(Phi))
    on_host = (_tensor(column).cpu().numpy() if is_device_array(column) else column for column in columns)
    steps = step_arrays(*on_host, rows=phi.shape[0])
    psi = None if dual_rows is None else TensorRows(_tensor(dual_rows).to(phi.device), "dual_rows")
    if psi is not None:
        check_dual_shape(psi.shape, phi.shape)
    used = torch.zeros(phi.shape[0], dtype=torch.bool)
    used[torch.from_numpy(steps.now)] = True
    phi, dead = phi.without_unused(used.to(phi.device))
    return _problem(phi, psi, steps, trace, ridge, metric, dead)


def _tensor(rows: Any) -> Tensor:
    return rows if isinstance(rows, torch.Tensor) else torch.from_dlpack(rows)


def _problem(
    phi: DeviceRows, psi: DeviceRows | None, steps: StepArrays, trace: Any, ridge: Any, metric: Any, dead: Array
) -> DeviceProblem:
    """The problem over these rows, once the other arguments are checked; steps: `next` is -1 where there is none."""
    check_steps(steps)
    trace, ridge, identity = settings_of(trace, ridge, metric)
    steps = steps._replace(next=np.where(steps.next < 0, steps.now, steps.next))
    return DeviceProblem(phi, psi, steps, trace=trace, ridge=ridge, identity=identity, dead=dead)


def kernel_problem(
    log: Transitions, kernel: Any, device: Any, *, discount: Any, trace: Any, ridge: Any
) -> DeviceProblem:  # fmt: skip
    """`Problem.from_kernel`."""
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel is {shown(kernel)}; it must be a fitted valuefit.features.Kernel.")
    discount = fraction("discount", discount)
    refuse_infinite_sums(discount == 1 and not log.terminated.any(), "mark the terminated steps")
    per_step = np.where(log.terminated | (log.next < 0), 0.0, discount)
    steps = StepArrays(log.now, log.next, log.reward, per_step, log.ratio, log.begins)
    phi = KernelRows(kernel, log.observations, device_of(device))
    return _problem(phi, None, steps, trace, ridge, "C", np.zeros(0, np.int64))


class Placement:
    """Copies problems in memory to a device; problems that share their rows share the copy.

    Their moments are formed there too, and kept in the problem in memory, where standard errors and checks use them.
    Until the context ends, products over all rows in memory are computed with their copy, if it is on the device.
    memory: bytes that rows may take on the device, by default MAX_SHARE of what is free on a GPU; larger ones stay in
    memory and are copied block by block whenever they are read.
    """

    def __init__(self, device: Any, memory: Any = None) -> None:
        requirement = "it must be a number of bytes, 1 or more"
        self.memory = None if memory is None else whole_number("device_memory", memory, requirement, low=1)
        self.device = device_of(device)
        self._copies: dict[int, tuple[Rows, DeviceRows]] = {}  # by identity; the rows stay alive with their copy

    def __enter__(self) -> Placement:
        return self

    def __exit__(self, *_: object) -> None:
        """Give the memory of the device back."""
        for rows, _copy in self._copies.values():
            rows.on_device = None
        self._copies.clear()

    def __call__(self, problem: Problem) -> DeviceProblem:
        steps = (problem.now, problem.next, problem.reward, problem.discount, problem.ratio, problem.begins)
        placed = DeviceProblem(
            self._copy(problem.phi), None if problem.shared else self._copy(problem.psi), StepArrays(*steps),
            trace=problem.trace, ridge=problem.ridge, identity=problem.identity, dead=problem.dead,
        )  # fmt: skip
        if fits(2 * problem.k * (problem.k + problem.d)):
            problem.use_moments_of(placed)
        return placed

    def _copy(self, rows: Rows) -> DeviceRows:
        if id(rows) not in self._copies:
            if sparse.issparse(rows.matrix):
                raise ValueError(
                    "Sparse features, such as tiles and one-hot ones, are not computed on a device. Leave out device."
                )
            memory = self.memory
            if memory is None and self.device.type == "cuda":
                memory = int(MAX_SHARE * torch.cuda.mem_get_info(self.device)[0])
            if memory is not None and rows.matrix.nbytes > memory:
                self._copies[id(rows)] = rows, StreamedRows(rows.matrix, self.device)
            else:
                copy = TensorRows(torch.tensor(rows.matrix, device=self.device))
                self._copies[id(rows)], rows.on_device = (rows, copy), HostProducts(copy)
        return self._copies[id(rows)][1]


def device_of(name: Any) -> torch.device:
    """The device of this name."""
    requirement = 'it must be "cuda", a GPU by its number ("cuda:0"), or "cpu"'
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"device is {shown(name)}; {requirement}.") from None
    if device.type not in ("cuda", "cpu"):
        raise ValueError(f"device is {shown(name)}; {requirement}: others do not compute in float64.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device is {shown(name)}, but torch finds {torch.cuda.device_count()} GPUs. Leave out the device, or "
            "install a build of torch for your GPU."
        )
    return device
