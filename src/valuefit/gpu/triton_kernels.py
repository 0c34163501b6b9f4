"""Triton kernels that read the rows on a GPU once where torch would read them two or more times."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from valuefit.gpu.device_rows import Tensor, TensorRows
from valuefit.gpu.device_steps import DeviceSteps, Members

PARTS = 528  # of the rows in one sweep: four for each of 132 multiprocessors, a fixed number for the same bits
COLUMNS_PER_WARP = 256  # eight numbers of a row for each thread
MAX_WARPS = 32
VALUES_PER_PROGRAM = 1024  # of the columns of a row, in kernels that compute them one by one


@triton.jit
def _sweep(
    rows, theta, w, discount, ratio, reward, live, of_theta, of_w, m, d, chunk,
    width: tl.constexpr, both: tl.constexpr,
):  # fmt: skip
    """Rows of one chunk from the last to the first: the sums of `sweep` over them."""
    part = tl.program_id(0).to(tl.int64)
    start = part * chunk
    stop = tl.minimum(start + chunk, m)
    column = tl.arange(0, width)
    inside = column < d
    x = tl.load(theta + column, mask=inside, other=0.0)
    sum_theta = tl.zeros([width], tl.float64)
    sum_w = tl.zeros([width], tl.float64)
    after = tl.load(rows + stop * d + column, mask=inside & (stop < m), other=0.0).to(tl.float64)
    p_after = tl.sum(after * x)
    if both:
        y = tl.load(w + column, mask=inside, other=0.0)
        uw_after = tl.load(ratio + stop, mask=stop < m, other=0.0) * tl.sum(after * y)
    row = tl.load(rows + (stop - 1) * d + column, mask=inside, other=0.0).to(tl.float64)
    for back in range(stop - start):
        i = stop - 1 - back
        before = tl.load(rows + (i - 1) * d + column, mask=inside & (i > 0), other=0.0).to(tl.float64)
        p = tl.sum(row * x)
        keep = tl.load(discount + i)
        scale = tl.load(ratio + i)
        c = scale * (p - keep * p_after - tl.load(reward + i))
        if both:
            q = tl.sum(row * y)
            if back > 0:  # the row after the chunk belongs to the next chunk
                sum_theta += (uw_after - keep * scale * q) * after
            c += tl.load(live + i) * q
            uw_after = scale * q
            after = row
        sum_w += c * row
        p_after = p
        row = before
    if both:
        keep = tl.load(discount + start - 1, mask=start > 0, other=0.0)
        scale = tl.load(ratio + start - 1, mask=start > 0, other=0.0)
        sum_theta += (uw_after - keep * scale * tl.sum(row * y)) * after
        tl.store(of_theta + part * d + column, sum_theta, mask=inside)
    tl.store(of_w + part * d + column, sum_w, mask=inside)


def sweep(
    phi: TensorRows, steps: DeviceSteps, theta: Tensor, w: Tensor | None, reward: Tensor, live: Tensor
) -> tuple[Tensor | None, Tensor]:
    """sum_t v_t (u_t' w), or None without w, and sum_t u_t (v_t' theta - r_t) + live_t phi_t phi_t' w.

    For a trajectory without traces; steps: its discounts and ratios, by row.
    """
    rows, (m, d) = phi.matrix, phi.shape
    chunk = -(-m // PARTS)
    parts = -(-m // chunk)
    of_w = torch.empty((parts, d), dtype=torch.float64, device=rows.device)
    of_theta = of_w if w is None else torch.empty_like(of_w)
    width = triton.next_power_of_2(d)
    _sweep[(parts,)](
        rows, theta, theta if w is None else w, steps.discount, steps.ratio, reward, live, of_theta, of_w, m, d, chunk,
        width=width, both=w is not None, num_warps=_warps(width),
    )  # fmt: skip
    return None if w is None else of_theta.sum(dim=0), of_w.sum(dim=0)


@triton.jit
def _differences(rows, discount, ratio, out, start, m, d, weighted: tl.constexpr, width: tl.constexpr):
    """Some columns of one row of `differences`."""
    row = tl.program_id(0).to(tl.int64)
    t = start + row
    column = tl.program_id(1) * width + tl.arange(0, width)
    here = tl.load(rows + t * d + column, mask=column < d, other=0.0).to(tl.float64)
    after = tl.load(rows + (t + 1) * d + column, mask=(column < d) & (t + 1 < m), other=0.0).to(tl.float64)
    value = here - tl.load(discount + t) * after
    if weighted:
        value *= tl.load(ratio + t)
    tl.store(out + row * d + column, value, mask=column < d)


def differences(phi: TensorRows, steps: DeviceSteps, part: slice, dtype: torch.dtype, *, weighted: bool) -> Tensor:
    """v_t of some steps of a trajectory, times ratio_t if `weighted`; every row is read once."""
    (m, d), count = phi.shape, part.stop - part.start
    out = torch.empty((count, d), dtype=dtype, device=phi.device)
    grid = count, triton.cdiv(d, VALUES_PER_PROGRAM)
    _differences[grid](
        phi.matrix, steps.discount, steps.ratio, out, part.start, m, d, weighted=weighted, width=VALUES_PER_PROGRAM
    )
    return out


@triton.jit
def _sketch(
    phi, psi, now, next, discount, ratio, sign, shift, of_psi, of_v, n, k, d, size, laps,
    wide: tl.constexpr, width: tl.constexpr, shared: tl.constexpr, cross: tl.constexpr,
):  # fmt: skip
    """One sum of the sketch: a step of every lap. (Triton takes pointers and sizes one by one, not in tuples.)"""
    place = tl.program_id(0).to(tl.int64)
    of_k = tl.arange(0, wide)
    of_d = tl.arange(0, width)
    sum_psi = tl.zeros([wide], tl.float64)
    sum_v = tl.zeros([width], tl.float64)
    for lap in range(laps):
        t = lap * size + (place + size - tl.load(shift + lap)) % size
        if t < n:
            here = tl.load(now + t)
            signed = tl.load(sign + t)
            row = tl.load(psi + here * k + of_k, mask=of_k < k, other=0.0).to(tl.float64)
            sum_psi += signed * row
            if cross:
                keep = tl.load(discount + t)
                after = tl.load(phi + tl.load(next + t) * d + of_d, mask=of_d < d, other=0.0).to(tl.float64)
                if not shared:
                    row = tl.load(phi + here * d + of_d, mask=of_d < d, other=0.0).to(tl.float64)
                sum_v += signed * tl.load(ratio + t) * (row - keep * after)
    tl.store(of_psi + place * k + of_k, sum_psi, mask=of_k < k)
    if cross:
        tl.store(of_v + place * d + of_d, sum_v, mask=of_d < d)


def sketch(
    phi: TensorRows, psi: TensorRows, members: Members, sign: Tensor, shift: Tensor, of_psi: Tensor, of_v: Tensor | None
) -> None:
    """Write the sums of sign_t psi_t and, unless `of_v` is None, of sign_t ratio_t v_t; see `device_moments.sketch`."""
    (size, k), d = of_psi.shape, phi.shape[1]
    wide, width = triton.next_power_of_2(k), triton.next_power_of_2(d)
    _sketch[(size,)](
        phi.matrix, psi.matrix, members.now, members.next, members.discount, members.ratio, sign, shift, of_psi,
        of_psi if of_v is None else of_v, len(members.now), k, d, size, len(shift), wide=wide, width=width,
        shared=psi is phi, cross=of_v is not None, num_warps=_warps(max(wide, width)),
    )  # fmt: skip


@triton.jit
def _kernel_values(
    squares, stride, columns, kind: tl.constexpr, scales: tl.constexpr, shrink: tl.constexpr, width: tl.constexpr
):
    """One block of `kernel_values`; shrink: a length scale relative to the next longer one."""
    column = tl.program_id(1) * width + tl.arange(0, width)
    place = squares + tl.program_id(0).to(tl.int64) * stride + column
    square = tl.maximum(tl.load(place, mask=column < columns, other=0.0), 0.0)
    distance = tl.sqrt(square)
    if kind == 0:
        distance *= 2.23606797749979
    total = tl.zeros_like(square)
    for _ in tl.static_range(scales):
        if kind == 1:
            total += tl.exp(-0.5 * distance * distance)
        elif kind == 2:
            total += tl.exp(-distance)
        else:
            total += (1.0 + distance + distance * distance / 3.0) * tl.exp(-distance)
        distance *= shrink
    tl.store(place, total / scales, mask=column < columns)


def kernel_values(squares: Tensor, kind: int, scales: int, scale_ratio: float) -> None:
    """`kernel_rows.kernel_values`: "matern" (0), "gaussian" (1) or "laplace" (2), in one read."""
    rows, columns = squares.shape
    grid = rows, triton.cdiv(columns, VALUES_PER_PROGRAM)
    _kernel_values[grid](
        squares, squares.stride(0), columns, kind=kind, scales=scales, shrink=1 / scale_ratio, width=VALUES_PER_PROGRAM
    )  # fmt: skip


def _warps(width: int) -> int:
    return min(MAX_WARPS, max(1, width // COLUMNS_PER_WARP))
