"""Moments and sketches of device rows at the rate of the device's matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from valuefit.gpu.device_rows import DeviceRows, Tensor, TensorRows, slices
from valuefit.gpu.device_steps import DeviceSteps, trace_rows

PANEL_COLUMNS = 256  # of a symmetric product that are multiplied at a time, with themselves and the columns after them
KERNEL_COLUMNS = 256, 16_384  # widths of rows that a kernel holds in registers; shorter ones leave its threads idle


def kernels_on(device: Any) -> Any:
    """The module of kernels for this device, or None where there are none."""
    return import_module("valuefit.gpu.triton_kernels") if device.type == "cuda" and find_spec("triton") else None


def kernels_of(*rows: DeviceRows) -> Any:
    """The module of kernels that read such rows in memory once, or None where there is none for them."""
    low, high = KERNEL_COLUMNS
    stored = all(isinstance(one, TensorRows) and low <= one.shape[1] <= high for one in rows)
    return kernels_on(rows[0].device) if stored else None


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Multiply float32 matrices in TF32, where the device has it, in place of plain float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def gram(X: Tensor, C: Tensor) -> None:
    """Add X'X to the upper triangle of C (float64)."""
    for first in range(0, X.shape[1], PANEL_COLUMNS):
        panel = X[:, first : first + PANEL_COLUMNS].T
        C[first : first + PANEL_COLUMNS, first:].addmm_(panel, X[:, first:])


def mirrored(C: Tensor) -> Tensor:
    """The symmetric matrix with this upper triangle."""
    return C.triu() + C.triu(1).T


def second_moment(psi: DeviceRows, visits: Tensor) -> Tensor:
    """sum over rows of visits * psi psi'."""
    C = torch.zeros((psi.shape[1], psi.shape[1]), dtype=torch.float64, device=psi.device)
    plain = bool((visits == 1).all())
    root = visits.sqrt()[:, None]
    for part, block in psi.blocks():
        gram(block.double() if plain else block.double() * root[part], C)
    return mirrored(C)


def cross_moment(phi: DeviceRows, psi: DeviceRows, steps: DeviceSteps, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """sum of u_t v_t' in float64, of products in `dtype`; float32 is TF32 on a GPU that has it."""
    A = torch.zeros((psi.shape[1], phi.shape[1]), dtype=torch.float64, device=phi.device)
    kernels = kernels_of(phi) if steps.trajectory else None
    carried = None
    with tensor_cores():
        for part in slices(len(steps.ratio), min(phi.block_size, psi.block_size)):
            if kernels is not None:
                U, V = psi.read(part).to(dtype), kernels.differences(phi, steps, part, dtype, weighted=not steps.trace)
            else:
                U, V = steps.psi_and_v(phi, psi, part, dtype)
                V = V if steps.trace else V.mul_(steps.ratio[part, None].to(dtype))
            if steps.trace:
                U, carried = trace_rows(U, steps.ratio[part], steps.keep_forward[part], carried)
            if dtype == A.dtype:
                A.addmm_(U.T, V)
            else:
                A += U.T.to(dtype) @ V
    return A


class Sketch(NamedTuple):
    """Sums of rows with random signs, over sqrt(n): of psi (size, k), of u (the same at trace 0) and of v (size, d).

    Without traces the ratio is in v; v is None where only psi was asked for.
    """

    psi: Tensor
    u: Tensor
    v: Tensor | None

    def moments(self) -> tuple[Tensor, Tensor | None]:
        """Estimates of mean psi psi' and of A."""
        C = torch.zeros((self.psi.shape[1], self.psi.shape[1]), dtype=torch.float64, device=self.psi.device)
        gram(self.psi, C)
        return mirrored(C), None if self.v is None else self.u.T @ self.v


def sketch(
    phi: DeviceRows, psi: DeviceRows, steps: DeviceSteps, size: int, *, seed: int, cross: bool, traces: bool = False
) -> Sketch:
    """CountSketch: every step, or distinct row if not `cross`, is added with a random sign to one of `size` sums.

    They are taken in laps of `size`. Those of a lap go to one sum each, starting from a random sum, so a sum has at
    most one of every lap, as in `linalg.sketch`. traces: whether u has traces.
    """
    members = steps.members(cross=cross)
    count, device = len(members.now), phi.device
    rng = torch.Generator(device).manual_seed(seed)
    shift = torch.randint(0, size, (-(-count // size),), generator=rng, device=device)
    sign = (2.0 * torch.randint(0, 2, (count,), generator=rng, device=device) - 1.0) * members.weight
    X = torch.zeros((size, psi.shape[1]), dtype=torch.float64, device=device)
    V = torch.zeros((size, phi.shape[1]), dtype=torch.float64, device=device) if cross else None
    traces = traces and steps.trace > 0
    kernels = kernels_of(phi, psi)
    if kernels is not None and not traces:
        kernels.sketch(phi, psi, members, sign, shift, X, V)
        return Sketch(X, X, V)
    U = torch.zeros_like(X) if traces else X
    carried = None
    for lap, part in enumerate(slices(count, size)):
        place = (torch.arange(part.stop - part.start, device=device) + shift[lap]) % size
        rows = psi.read(members.now[part]).double()
        X.index_add_(0, place, rows * sign[part, None])
        if traces:
            u, carried = trace_rows(rows, members.ratio[part], members.keep[part], carried)
            U.index_add_(0, place, u * sign[part, None])
        if V is not None:
            here = rows if psi is phi else phi.read(members.now[part]).double()
            after = phi.read(members.next[part]).double()
            weight = sign[part] if traces else sign[part] * members.ratio[part]
            V.index_add_(0, place, torch.addcmul(here, members.discount[part, None], after, value=-1) * weight[:, None])
    return Sketch(X, U, V)
