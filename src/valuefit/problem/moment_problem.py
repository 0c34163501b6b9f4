"""A problem that is given by its moments alone, which are sums over parts of a log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from valuefit.problem.cost import Cost
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint, SketchedRows
from valuefit.typing import Array


@dataclass(frozen=True)
class MomentSums:
    """Sums over the steps of a part of a log, which add up over parts.

    rewards: the squares of rewards summed along the traces, and of ratio times reward, (2,). weighted: steps whose
    ratio is not 1. stored: numbers in the feature rows.
    """

    n: int
    A: Array
    b: Array
    C: Array
    rewards: Array
    weighted: int
    terminated: int
    stored: int

    @classmethod
    def of(cls, problem: Problem) -> MomentSums:
        """Return the sums of a problem, which is a shard of a longer log."""
        n, (A, b, C) = problem.n, problem.moments()
        return cls(
            n, n * A, n * b, n * C, n * np.array(problem.reward_squares()),
            int(np.count_nonzero(problem.ratio != 1)), int(np.count_nonzero(problem.discount == 0)), problem.phi.stored,
        )  # fmt: skip

    def __add__(self, other: MomentSums) -> MomentSums:
        names = [field.name for field in fields(self)]
        return MomentSums(*(getattr(self, name) + getattr(other, name) for name in names))


class MomentProblem(SaddlePoint):
    """The problem of a log of which only the moments are known: every product costs O(d^2).

    trace, discount: with which the moments were made. ridge: at least 0.
    """

    storage: ClassVar[str] = "shards"

    def __init__(self, sums: MomentSums, *, trace: float, discount: float, ridge: float) -> None:
        self.sums, self.n, self.weighted = sums, sums.n, sums.weighted > 0
        self.k, self.d = sums.A.shape
        self.trace, self.ridge, self.max_discount = trace, ridge, discount
        self.identity, self.shared, self.sparse, self.distinct_rows = False, True, False, sums.n
        unused = np.diag(sums.C) == 0
        self.dead = np.flatnonzero(unused)
        self.A, self.b, self.C = np.where(unused, 0.0, sums.A / self.n), sums.b / self.n, sums.C / self.n
        self.second_moment, self.dual_squares = self.C, np.diag(self.C)

    @property
    def cost(self) -> Cost:
        return Cost.of_parts(
            self.n, self.d, self.sums.stored, sparse=False, traced=self.trace > 0, square=self.ridge == 0
        )

    def products(self, theta: Array | None, w: Array | None, rewards: bool = True) -> tuple[Array | None, Array]:
        rest = -self.b if rewards else np.zeros(self.k)
        if theta is not None:
            rest = rest + self.A @ theta
        if w is None:
            return None, rest
        return self.A.T @ w, rest + self.C @ w

    def At_dot(self, w: Array) -> Array:
        return np.asarray(self.A.T @ w)

    def C_dot(self, w: Array) -> Array:
        return np.asarray(self.C @ w)

    def mean_squares(self, c: Array | None, y: Array) -> tuple[float, float]:
        """The first is (A c)' C^+ A c, a lower bound of the mean square, which is itself what the excess needs."""
        image = None if c is None else self.C_root.T @ (self.A @ c)
        return (0.0 if image is None else float(image @ image)), float(y @ self.C @ y)

    def reward_squares(self) -> tuple[float, float]:
        along, weighted = self.sums.rewards / self.n
        return float(along), float(weighted)

    def sketched_rows(
        self, size: int, rng: np.random.Generator, *, cross: bool, traces: bool, dtype: Any, block_rows: int
    ) -> Iterator[SketchedRows]:
        raise ValueError("Of this log only the moments are left, so its rows cannot be sketched. Use 'lstd'.")
