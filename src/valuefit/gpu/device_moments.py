"""Moments and sketches of device rows at the rate of the device's matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from valuefit.gpu.device_rows import DeviceRows, DeviceSteps, Tensor, TensorRows, recurrence

PANEL_COLUMNS = 256  # of a symmetric product that are multiplied at a time, with themselves and the columns after them
KERNEL_COLUMNS = 256, 16_384  # widths of rows that a kernel holds in registers; shorter ones leave its threads idle


def kernels_on(device: Any) -> Any:
    """The module of kernels for this device, or None where there are none."""
    return import_module("valuefit.gpu.device_kernels") if device.type == "cuda" and find_spec("triton") else None


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
        if X.dtype == C.dtype:
            C[first : first + PANEL_COLUMNS, first:].addmm_(panel, X[:, first:])
        else:
            C[first : first + PANEL_COLUMNS, first:] += panel @ X[:, first:]


def mirrored(C: Tensor) -> Tensor:
    """The symmetric matrix with this upper triangle."""
    return C.triu() + C.triu(1).T


def second_moment(psi: DeviceRows, visits: Tensor) -> Tensor:
    """sum over rows of visits * psi psi'."""
    k = psi.shape[1]
    C = torch.zeros((k, k), dtype=torch.float64, device=psi.device)
    plain = bool((visits == 1).all())
    root = visits.sqrt()[:, None]
    for start, block in psi.blocks():
        block = block.double()
        gram(block if plain else block * root[start : start + len(block)], C)
    return mirrored(C)


def cross_moment(phi: DeviceRows, psi: DeviceRows, steps: DeviceSteps, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """sum of u_t v_t' in float64, of products in `dtype`; float32 is TF32 on a GPU that has it."""
    A = torch.zeros((psi.shape[1], phi.shape[1]), dtype=torch.float64, device=phi.device)
    carried = None
    with tensor_cores():
        for part in blocks_of(len(steps.ratio), min(phi.block_size, psi.block_size)):
            U, V = step_block(phi, psi, steps, part, dtype)
            if steps.trace:
                U, carried = trace_rows(U, steps.ratio[part], steps.keep_forward[part], carried)
            if dtype == A.dtype:
                A.addmm_(U.T, V)
            else:
                A += U.T.to(dtype) @ V
    return A


def step_block(
    phi: DeviceRows, psi: DeviceRows, steps: DeviceSteps, part: slice, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """psi_t and v_t of some steps; without traces v_t times ratio_t."""
    kernels = kernels_of(phi) if steps.trajectory else None
    if kernels is not None:
        U = psi.span(part.start, part.stop).to(dtype)
        return U, kernels.differences(phi, steps, part, dtype, weighted=not steps.trace)
    here, after = pair_block(phi, steps, part, dtype)
    V = torch.addcmul(here, steps.discount[part, None].to(dtype), after, value=-1)
    if not steps.trace:
        V *= steps.ratio[part, None].to(dtype)
    if psi is phi:
        return here, V
    return (psi.span(part.start, part.stop) if steps.trajectory else psi.take(steps.now[part])).to(dtype), V


def blocks_of(count: int, size: int) -> list[slice]:
    """Consecutive slices of at most `size`."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def pair_block(rows: DeviceRows, steps: DeviceSteps, part: slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The rows of some steps and their next rows, which are arbitrary where the discount is 0."""
    if not steps.trajectory:
        return rows.take(steps.now[part]).to(dtype), rows.take(steps.next[part]).to(dtype)
    both = rows.span(part.start, min(part.stop + 1, rows.shape[0])).to(dtype)
    count = part.stop - part.start
    after = both[1:] if len(both) > count else torch.cat([both[1:], both[-1:]])
    return both[:count], after


def trace_rows(rows: Tensor, ratio: Tensor, keep: Tensor, carried: Tensor | None) -> tuple[Tensor, Tensor]:
    """The rows u of consecutive steps from their rows psi, and the last of them, to be carried into the next steps."""
    U = ratio[:, None] * rows.double()
    if carried is not None:
        U[0] += keep[0] * carried
    U = recurrence(U, keep)
    return U, U[-1]


class Sketch(NamedTuple):
    """Sums of rows with random signs, over sqrt(n): of psi (size, k), of u (the same at trace 0) and of v (size, d).

    Without traces the ratio is in v; v is None where only psi was asked for.
    """

    psi: Tensor
    u: Tensor
    v: Tensor | None

    def moments(self) -> tuple[Tensor, Tensor | None]:
        """Estimates of mean psi psi' and of A."""
        k = self.psi.shape[1]
        C = torch.zeros((k, k), dtype=torch.float64, device=self.psi.device)
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
    for lap, part in enumerate(blocks_of(count, size)):
        place = (torch.arange(part.stop - part.start, device=device) + shift[lap]) % size
        rows = psi.take(members.now[part]).double()
        X.index_add_(0, place, rows * sign[part, None])
        if traces:
            found, carried = trace_rows(rows, members.ratio[part], members.keep[part], carried)
            U.index_add_(0, place, found * sign[part, None])
        if V is not None:
            here = rows if psi is phi else phi.take(members.now[part]).double()
            after = phi.take(members.next[part]).double()
            weight = sign[part] if traces else sign[part] * members.ratio[part]
            V.index_add_(0, place, torch.addcmul(here, members.discount[part, None], after, value=-1) * weight[:, None])
    return Sketch(X, U, V)
