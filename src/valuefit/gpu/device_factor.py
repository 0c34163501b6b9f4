"""The dense preconditioner of krylov on a device: inverses of the factors, for triangular solves are slow there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch

from valuefit.gpu.device_problem import DeviceProblem
from valuefit.gpu.device_rows import Tensor, to_array, to_tensor
from valuefit.linalg.cholesky import CLEAR_PIVOT
from valuefit.precondition.factor import is_fixed_point, likely_excess, shrunk
from valuefit.precondition.sketched_moments import rows_per_sum
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
        return r if self.inverse_L is None else to_array(self._dual(to_tensor(r, self.device)))

    def _dual(self, r: Tensor) -> Tensor:
        return r if self.inverse_L is None else self.inverse_L.T @ (self.inverse_L @ r)

    def _primal(self, g: Tensor) -> Tensor:
        assert self.inverse_R is not None
        return self.inverse_R.T @ (self.inverse_R @ g)

    def primal(self, g: Array) -> Array:
        """H~^-1 g."""
        return to_array(self._primal(to_tensor(g, self.device)))

    def fixed_point(self, r: Array, dual: Array) -> Array:
        """A~^-1 r, or C~^-1 r where A is not sketched."""
        return dual if self.inverse_A is None else to_array(self.inverse_A @ to_tensor(r, self.device))

    def saddle(self, g: Array, r: Array, dual: Array) -> tuple[Array, Array]:
        """theta = H~^-1 (g + A~' C~^-1 r), w = C~^-1 (r - A~ theta)."""
        assert self.A is not None
        of_r = to_tensor(dual, self.device)
        theta = self._primal(to_tensor(g, self.device) + self.A.T @ of_r)
        return to_array(theta), to_array(of_r - self._dual(self.A @ theta))


class _Moments(NamedTuple):
    """`factor.Sketch` on a device."""

    C: Tensor
    A: Tensor | None
    excess: float
    likely: float
    passes: float


def device_preconditioner(problem: DeviceProblem, size: int, *, cross: bool) -> DeviceFactor | None:
    """The preconditioner from `size` sketched rows, or None where columns are nearly dependent, which needs pivots."""
    moments = _moments(problem, size, cross=cross)
    inverse_L = None if problem.identity else inverse_cholesky(moments.C)
    if inverse_L is None and not problem.identity:
        return None
    k, d, cost = problem.k, problem.d, problem.cost
    excess, likely = (1.0, 1.0) if problem.identity else (moments.excess, moments.likely)
    factor = DeviceFactor(
        problem.phi.device, inverse_L, excess, likely, moments.passes + cost.flops(k**3), cost.reads(2 * k**2)
    )
    if moments.A is None:
        return factor
    if is_fixed_point(problem):
        inverse_A = inverse_of_A(moments.A, moments.C)
        passes, apply_passes = factor.passes + cost.flops(2 * k**3), factor.apply_passes + cost.reads(k**2)
        return replace(factor, inverse_A=inverse_A, passes=passes, apply_passes=apply_passes)
    inverse_R = normal_root(moments.A, inverse_L, problem.ridge)
    if inverse_R is None:
        return None
    passes = factor.passes + cost.flops(2 * k**2 * d + k * d**2 + d**3)
    apply_passes = 2 * factor.apply_passes + cost.reads(2 * k * d + 2 * d**2)
    return replace(factor, A=moments.A, inverse_R=inverse_R, passes=passes, apply_passes=apply_passes)


def _moments(problem: DeviceProblem, size: int, *, cross: bool) -> _Moments:
    """`factor.sketch` on the device."""
    k, d, cost = problem.k, problem.d, problem.cost
    if size >= cost.starts:
        A = problem.cross_moment() if cross else None
        return _Moments(problem.second_moment_on_device(), A, 1.0, 1.0, cost.C + (cost.A if cross else 1))
    C, A = problem.sketch(size, 0, cross=cross).moments()
    if A is not None and problem.shared:
        A = shrunk(A, C, size)
    share = rows_per_sum(problem, size, cross=cross)
    passes = 1 + cost.flops(size * (k**2 + (2 * k * d if cross else 0)))
    return _Moments(C, A, float(share), likely_excess(k, size, share), passes)


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
    found = int(info) == 0 and bool(inverse.isfinite().all())
    return inverse / lengths / lengths[:, None] if found else None


def normal_root(A: Tensor, inverse_L: Tensor | None, ridge: float) -> Tensor | None:
    """R^-1 with R R' = A' C~^-1 A + ridge I, or None where that is nearly singular."""
    M = A if inverse_L is None else inverse_L @ A
    H = M.T @ M
    H.diagonal().add_(ridge)
    return inverse_cholesky(H)
