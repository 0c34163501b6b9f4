"""Linear equations whose solution is the minimiser, and what their residual says of the gap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from valuefit.precondition.factor import is_fixed_point
from valuefit.precondition.preconditioner import SaddlePreconditioner
from valuefit.problem.gap import energy_below, gap_above
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array, Gradient


@dataclass(frozen=True)
class Equations(ABC):
    """K x = f with a preconditioner, and the norm |r|^2 = r' dual(r) of residuals r = f - K x.

    start_energy: a lower bound of 2 (F(0) - F*) before that of theta is subtracted, b' C^+ b; where b = 0, of
    2 (F(start) - F*), for the start is then the unit of the gap.
    """

    problem: SaddlePoint
    preconditioner: SaddlePreconditioner
    start_energy: float = 0.0

    @property
    @abstractmethod
    def right(self) -> Array:
        """f."""

    @abstractmethod
    def join(self, theta: Array, w: Array) -> Array:
        """x."""

    @abstractmethod
    def split(self, x: Array) -> tuple[Array, Array]:
        """theta and w."""

    @abstractmethod
    def gradient(self, residual: Array) -> Gradient:
        """B(theta, w)."""

    @abstractmethod
    def apply(self, x: Array) -> Array:
        """K x, in one pass."""

    @abstractmethod
    def residual(self, x: Array) -> Array:
        """f - K x, in one pass."""

    @abstractmethod
    def dual(self, residual: Array) -> Array:
        """The matrix of the norm times a residual."""

    @abstractmethod
    def direction(self, residual: Array, dual: Array) -> Array:
        """K^-1 residual, approximately."""

    @property
    @abstractmethod
    def trusted(self) -> bool:
        """Whether the norm of a residual bounds the gap, as far as the preconditioner is known."""

    @abstractmethod
    def bound(self, x: Array, residual: Array, dual: Array) -> tuple[float, float]:
        """2 (F - F*) from above, and F; infinite where nothing is known."""

    def gap(self, x: Array, residual: Array, dual: Array) -> tuple[float | None, float | None]:
        """An upper bound of the gap, and F.

        2 (F(0) - F*) is at least 2 (F(0) - F(theta)), and its root |theta*|_H at least
        sqrt(ridge) |theta| - |theta - theta*|_H; the excess is divided by the larger of the two.
        """
        excess, objective = self.bound(x, residual, dual)
        if not np.isfinite(excess):
            return None, None
        if not self.problem.b.any():
            return (excess / self.start_energy if self.start_energy > 0 else np.inf), objective
        norm = np.sqrt(self.problem.ridge) * float(np.linalg.norm(self.split(x)[0]))
        least = 0.5 * max(norm - np.sqrt(excess), 0.0) ** 2
        return gap_above(0.5 * excess, self.start_energy, objective, least), objective


class FixedPoint(Equations):
    """A theta = b, for ridge 0 and psi = phi, where F* = 0; |r|^2 is near 2 F."""

    @property
    def right(self) -> Array:
        return self.problem.b

    def join(self, theta: Array, w: Array) -> Array:
        return theta

    def split(self, x: Array) -> tuple[Array, Array]:
        return x, np.zeros(self.problem.k)

    def gradient(self, residual: Array) -> Gradient:
        return np.zeros(self.problem.d), -residual

    def apply(self, x: Array) -> Array:
        return self.problem.A_dot(x)

    def residual(self, x: Array) -> Array:
        return self.problem.residual(x)

    def dual(self, residual: Array) -> Array:
        return self.preconditioner.dual(residual)

    def direction(self, residual: Array, dual: Array) -> Array:
        return self.preconditioner.fixed_point(residual, dual)

    @property
    def trusted(self) -> bool:
        return True

    def bound(self, x: Array, residual: Array, dual: Array) -> tuple[float, float]:
        excess = self.preconditioner.likely * max(float(residual @ dual), 0.0)
        return excess, 0.5 * excess


class Saddle(Equations):
    """ridge theta - A' w = 0 and A theta + C w = b, with |(g, e)|^2 = |g|^2 / ridge + e' C~^+ e.

    At ridge 0, g' H~^-1 g takes the place of |g|^2 / ridge.
    """

    @property
    def right(self) -> Array:
        return np.concatenate([np.zeros(self.problem.d), self.problem.b])

    def join(self, theta: Array, w: Array) -> Array:
        return np.concatenate([theta, w])

    def split(self, x: Array) -> tuple[Array, Array]:
        return x[: self.problem.d], x[self.problem.d :]

    def gradient(self, residual: Array) -> Gradient:
        return self.split(-residual)

    def apply(self, x: Array) -> Array:
        of_theta, of_w = self.problem.B(*self.split(x))
        return np.concatenate([of_theta, of_w + self.problem.b])

    def residual(self, x: Array) -> Array:
        return -np.concatenate(self.problem.B(*self.split(x)))

    def dual(self, residual: Array) -> Array:
        g, e = self.split(residual)
        ridge = self.problem.ridge
        return np.concatenate([g / ridge if ridge else self.preconditioner.primal(g), self.preconditioner.dual(e)])

    def direction(self, residual: Array, dual: Array) -> Array:
        g, e = self.split(residual)
        return np.concatenate(self.preconditioner.saddle(g, e, dual[self.problem.d :]))

    @property
    def trusted(self) -> bool:
        return self.preconditioner.clear  # otherwise the cut between zero and small eigenvalues of C decides F

    def bound(self, x: Array, residual: Array, dual: Array) -> tuple[float, float]:
        """2 (F - F*) <= |g|^2 / ridge + e' C^+ e, and F = (b'w + e'w - g'theta + e' C^+ e) / 2."""
        problem = self.problem
        if problem.ridge == 0 or not self.trusted:
            return np.inf, np.inf
        (theta, w), (g, e) = self.split(x), self.split(residual)
        energy = self.preconditioner.likely * max(float(e @ dual[problem.d :]), 0.0)
        objective = 0.5 * (float(problem.b @ w) + float(e @ w) - float(g @ theta) + energy)
        return float(g @ g) / problem.ridge + energy, objective


def equations_at(problem: SaddlePoint, preconditioner: SaddlePreconditioner, theta: Array) -> tuple[Equations, float]:
    """The equations of a problem for a solve that starts from theta, and their passes."""
    equations = (FixedPoint if is_fixed_point(problem) else Saddle)(problem, preconditioner)
    energy, passes = energy_below(problem, preconditioner, problem.b)
    if not problem.b.any():
        energy, passes = energy_below(problem, preconditioner, problem.residual(theta))
        energy, passes = energy + problem.ridge * float(theta @ theta), passes + 1
    return replace(equations, start_energy=energy), passes
