"""The dense preconditioner of krylov on a device: inverses of the factors, for triangular solves are slow there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from valuefit.gpu.device_rows import Tensor, to_array, to_tensor
from valuefit.linalg.cholesky import CLEAR_PIVOT
from valuefit.precondition.factor import is_fixed_point, likely_excess, rows_per_sum, shrunk
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array


@dataclass(frozen=True, eq=False)
class DeviceFactor:
    """`DenseFactor` with inverses on a device, for columns of C that are clearly independent.

    inverse_L: L^-1 with L L' = C~; None for C = I. inverse_A: A~^-1, for A theta = b. A and inverse_R, with
    R R' = A~' C~^-1 A~ + ridge I: for the saddle point. A vector goes to the device and back in each product.
    """

    device: Any
    inverse_L: Tensor | None
    excess: float
    likely: float
    passes: float
    apply_passes: float
    inverse_A: Tensor | None = None
    A: Tensor | None = None
    inverse_R: Tensor | None = None

    clear: ClassVar[bool] = True
    matrix: ClassVar[Any] = None
    patience: ClassVar[int] = 1

    def dual(self, r: Array) -> Array:
        """C~^-1 r."""
        return r if self.inverse_L is None else to_array(_solved(self.inverse_L, to_tensor(r, self.device)))

    def primal(self, g: Array) -> Array:
        """H~^-1 g."""
        return to_array(_solved(self.inverse_R, to_tensor(g, self.device)))

    def fixed_point(self, r: Array, dual: Array) -> Array:
        """A~^-1 r, or C~^-1 r where A is not sketched."""
        return dual if self.inverse_A is None else to_array(self.inverse_A @ to_tensor(r, self.device))

    def saddle(self, g: Array, r: Array, dual: Array) -> tuple[Array, Array]:
        """theta = H~^-1 (g + A~' C~^-1 r), w = C~^-1 (r - A~ theta)."""
        assert self.A is not None
        of_r = to_tensor(dual, self.device)
        theta = _solved(self.inverse_R, to_tensor(g, self.device) + self.A.T @ of_r)
        return to_array(theta), to_array(of_r - _solved(self.inverse_L, self.A @ theta))


def _solved(inverse: Tensor | None, x: Tensor) -> Tensor:
    """(L L')^-1 x, given L^-1; None for the identity."""
    return x if inverse is None else inverse.T @ (inverse @ x)


def device_factor(problem: SaddlePoint, C: Tensor, A: Tensor | None, *, size: int | None = None) -> DeviceFactor | None:
    """The preconditioner from mean psi psi' and A; None where columns are nearly dependent, which needs pivots.

    size: the number of sketched rows that they were estimated from; None: they are exact.
    """
    k, d, cost, cross = problem.k, problem.d, problem.cost, A is not None
    excess, likely, passes = 1.0, 1.0, cost.C + (cost.A if cross else 1)
    if size is not None:
        if A is not None and problem.shared:
            A = shrunk(A, C, size)
        passes = 1 + cost.flops(size * (k**2 + (2 * k * d if cross else 0)))
        if not problem.identity:
            excess = float(rows_per_sum(problem, size, cross=cross))
            likely = likely_excess(k, size, int(excess))
    inverse_L = None if problem.identity else inverse_cholesky(C)
    if inverse_L is None and not problem.identity:
        return None
    factor = DeviceFactor(C.device, inverse_L, excess, likely, passes + cost.flops(k**3), cost.reads(2 * k**2))
    if A is None:
        return factor
    if is_fixed_point(problem):
        passes, apply_passes = factor.passes + cost.flops(2 * k**3), factor.apply_passes + cost.reads(k**2)
        return replace(factor, inverse_A=inverse_of_A(A, C), passes=passes, apply_passes=apply_passes)
    M = A if inverse_L is None else inverse_L @ A
    H = M.T @ M
    H.diagonal().add_(problem.ridge)
    inverse_R = inverse_cholesky(H)
    if inverse_R is None:
        return None
    passes = factor.passes + cost.flops(2 * k**2 * d + k * d**2 + d**3)
    apply_passes = 2 * factor.apply_passes + cost.reads(2 * k * d + 2 * d**2)
    return replace(factor, A=A, inverse_R=inverse_R, passes=passes, apply_passes=apply_passes)


def inverse_cholesky(S: Tensor) -> Tensor | None:
    """L^-1 with L L' = S, or None where a column, scaled to unit length, is not clearly independent of the others."""
    lengths = S.diagonal().sqrt()
    if not bool((lengths > 0).all()):
        return None
    L, info = torch.linalg.cholesky_ex(S / lengths / lengths[:, None])
    pivot = L.diagonal().square()
    clear = int(info) == 0 and bool(pivot.min() > CLEAR_PIVOT)
    if not clear or not bool((pivot * lengths.square()).min() > CLEAR_PIVOT * lengths.square().max()):
        return None
    eye = torch.eye(len(S), dtype=S.dtype, device=S.device)
    return torch.linalg.solve_triangular(L, eye, upper=False) / lengths


def inverse_of_A(A: Tensor, C: Tensor) -> Tensor | None:
    """A^-1, or None where it is singular; rows and columns are scaled like the features."""
    lengths = C.diagonal().sqrt()
    inverse, info = torch.linalg.inv_ex(A / lengths / lengths[:, None])
    regular = int(info) == 0 and bool(inverse.isfinite().all())
    return inverse / lengths / lengths[:, None] if regular else None
