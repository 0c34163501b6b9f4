"""Problems on a device from what a user gives: tensors, a log with kernel features, or rows in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sparse
import torch

from valuefit.data.transitions import Transitions
from valuefit.features.kernel import Kernel
from valuefit.gpu.device_kernel import KernelRows
from valuefit.gpu.device_problem import DeviceProblem
from valuefit.gpu.device_rows import MAX_SHARE, DeviceRows, HostProducts, StreamedRows, Tensor, TensorRows
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


def from_device_rows(
    Phi: Any,
    now: Any,
    next: Any,
    reward: Any,
    discount: Any,
    ratio: Any,
    episode: Any,
    *,
    trace: float,
    ridge: float,
    dual_rows: Any,
    metric: str,
) -> DeviceProblem:
    """`Problem.from_rows` for rows on a device; the other arguments may be there or on the host."""
    phi = TensorRows(_tensor(Phi))
    steps = step_arrays(*map(_host, (now, next, reward, discount, ratio, episode)), rows=phi.shape[0])
    check_steps(steps)
    steps = steps._replace(next=np.where(steps.next < 0, steps.now, steps.next))
    psi = None if dual_rows is None else TensorRows(_tensor(dual_rows).to(phi.device), "dual_rows")
    if psi is not None:
        check_dual_shape(psi.shape, phi.shape)
    is_now_row = torch.zeros(phi.shape[0], dtype=torch.bool)
    is_now_row[torch.from_numpy(steps.now)] = True
    dead = ~phi.used_columns(is_now_row.to(phi.device))
    trace, ridge, identity = settings_of(trace, ridge, metric)
    problem = DeviceProblem(
        phi.without(dead), psi, *steps, trace=trace, ridge=ridge, identity=identity,
        dead=np.flatnonzero(dead.cpu().numpy()),
    )  # fmt: skip
    problem.check_ratios(steps.ratio)
    return problem


def _tensor(rows: Any) -> Tensor:
    return rows if isinstance(rows, torch.Tensor) else torch.from_dlpack(rows)


def _host(values: Any) -> Any:
    """Values of steps on the host, where they are checked."""
    return _tensor(values).cpu().numpy() if is_device_array(values) else values


def kernel_problem(
    log: Transitions, kernel: Any, device: Any, *, discount: float, trace: float, ridge: float
) -> DeviceProblem:
    """`Problem.from_kernel`."""
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel is {shown(kernel)}; it must be a fitted valuefit.features.Kernel.")
    discount = fraction("discount", discount)
    refuse_infinite_sums(discount == 1 and not log.terminated.any(), "mark the terminated steps")
    trace, ridge, identity = settings_of(trace, ridge, "C")
    per_step = np.where(log.terminated | (log.next < 0), 0.0, discount)
    steps = StepArrays(log.now, np.where(log.next < 0, log.now, log.next), log.reward, per_step, log.ratio, log.begins)
    check_steps(steps)
    phi = KernelRows(kernel, log.observations, device_of(device))
    problem = DeviceProblem(phi, None, *steps, trace=trace, ridge=ridge, identity=identity, dead=np.zeros(0, np.int64))
    problem.check_ratios(steps.ratio)
    return problem


def copied(matrix: Any, device: torch.device, memory: int | None) -> DeviceRows:
    """Rows in memory, copied to a device; copied block by block whenever they are read if they exceed `memory` bytes.

    memory: None takes MAX_SHARE of what is free on a GPU.
    """
    if sparse.issparse(matrix):
        raise ValueError(
            "Sparse features, such as tiles and one-hot ones, are not computed on a device. Leave out device."
        )
    if memory is None and device.type == "cuda":
        memory = int(MAX_SHARE * torch.cuda.mem_get_info(device)[0])
    if memory is not None and matrix.nbytes > memory:
        return StreamedRows(matrix, device)
    return TensorRows(torch.tensor(matrix, device=device))


def host_products(rows: DeviceRows) -> HostProducts | None:
    """Products with arrays in memory, where the rows are on the device and need no copy each time."""
    return None if isinstance(rows, StreamedRows) else HostProducts(rows)


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
