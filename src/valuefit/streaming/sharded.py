"""A problem whose steps are in shards: every product is a sum over them, in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from valuefit.problem.cost import Cost
from valuefit.problem.saddle_point import SaddlePoint, SketchedRows
from valuefit.streaming.parts import Function, Part, Parts
from valuefit.typing import Array


class ShardedProblem(SaddlePoint):
    """The problem of a log in shards, whose moments are not formed: shards are read again in every pass.

    The first pass, on construction, computes what the solvers need to know. trace, discount, ridge: as in `parts.make`.
    """

    storage: ClassVar[str] = "shards"

    def __init__(
        self,
        parts: Parts,
        *,
        trace: float,
        discount: float,
        ridge: float,
    ) -> None:
        self.parts, self.trace, self.ridge, self.max_discount = parts, trace, ridge, discount
        self.passes = 0  # over the parts
        found = self._sum(_first_pass)
        n, b, squares, rewards, weighted, stored, self._starts, sparse, self.sketch_parts = found
        self.n, self._b, self._squares, self._rewards = n, b / n, squares / n, rewards / n
        self.d = self.k = len(b)
        self.identity, self.shared, self.sparse, self.distinct_rows = False, True, sparse > 0, n
        self.weighted, self._stored = weighted > 0, stored
        self.dead = np.flatnonzero(squares == 0)

    @cached_property
    def cost(self) -> Cost:
        return Cost.of_parts(
            self.n, self.d, self._stored, sparse=self.sparse, traced=self.trace > 0, square=self.ridge == 0,
            starts=self._starts,
        )  # fmt: skip

    def _sum(self, function: Function) -> tuple[Any, ...]:
        self.passes += 1
        return self.parts.sum(function)

    def _batch(self, theta: Array | None, w: Array | None, *, rewards: bool) -> tuple[Array | None, Array]:
        theta = None if theta is None else self._alive(theta)
        found = self._sum(partial(_batch, theta=theta, w=w))
        rest = found[-1] / self.n - (self.b if rewards else 0.0)
        return (None if w is None else self._alive(found[0] / self.n)), rest

    def _alive(self, x: Array) -> Array:
        """x, zero at features without data."""
        x = x.copy()
        x[self.dead] = 0.0
        return x

    def At_dot(self, w: Array) -> Array:
        return self._alive(self._sum(partial(_product, name="At_dot", x=w))[0] / self.n)

    def C_dot(self, w: Array) -> Array:
        return np.asarray(self._sum(partial(_product, name="C_dot", x=w))[0] / self.n)

    @property
    def b(self) -> Array:
        return self._b

    @cached_property
    def A(self) -> Array:
        self._require_moment_memory()
        A = self._sum(_cross_moment)[0] / self.n
        A[:, self.dead] = 0.0
        return np.asarray(A)

    def A_in_float32(self) -> Array:
        return self.A

    @cached_property
    def second_moment(self) -> Array:
        return np.asarray(self._sum(_second_moment)[0] / self.n)

    @property
    def dual_squares(self) -> Array:
        return self._squares

    def mean_squares(self, c: Array | None, y: Array) -> tuple[float, float]:
        found = self._sum(partial(_mean_squares, c=None if c is None else self._alive(c), y=y))
        return found[0] / self.n, found[1] / self.n

    def reward_squares(self) -> tuple[float, float]:
        return float(self._rewards[0]), float(self._rewards[1])

    def sketched_rows(
        self, size: int, rng: np.random.Generator, *, cross: bool, traces: bool, dtype: Any, block_rows: int
    ) -> Iterator[SketchedRows]:
        """One block of all sums; every part is sketched into the same sums, and adds at most one row more to one."""
        psi, v = self._sum(partial(_sketch, size=size, seed=int(rng.integers(2**32)), cross=cross))
        scale = 1 / np.sqrt(self.n)
        psi = (scale * psi).astype(dtype)
        v[:, self.dead] = 0.0
        yield SketchedRows(psi, psi, (scale * v).astype(dtype) if cross else None)


# ---- what a part adds; functions at module level can be sent to other processes ------------------------------------


def _first_pass(part: Part) -> tuple[Any, ...]:
    problem, n = part.problem, part.problem.n
    rewards = n * np.array(problem.reward_squares())
    weighted = int((problem.ratio != 1).sum())
    stored, starts = n * problem.phi.stored / problem.phi.shape[0], int((problem.visits > 0).sum())
    sums = n, n * problem.b, n * problem.dual_squares, rewards, weighted, stored, starts, int(problem.sparse)
    return *sums, 1


def _batch(part: Part, *, theta: Array | None, w: Array | None) -> tuple[Any, ...]:
    above, below = part.problem._batch(theta, w, rewards=False)
    return (part.problem.n * below,) if above is None else (part.problem.n * above, part.problem.n * below)


def _product(part: Part, *, name: str, x: Array) -> tuple[Array]:
    return (part.problem.n * getattr(part.problem, name)(x),)


def _cross_moment(part: Part) -> tuple[Array]:
    return (part.problem.n * part.problem.A,)


def _second_moment(part: Part) -> tuple[Array]:
    return (part.problem.n * part.problem.second_moment,)


def _mean_squares(part: Part, *, c: Array | None, y: Array) -> tuple[float, float]:
    of_c, of_y = part.problem.mean_squares(c, y)
    return part.problem.n * of_c, part.problem.n * of_y


def _sketch(part: Part, *, size: int, seed: int, cross: bool) -> tuple[Array, Array]:
    """Sums of rows with random signs, the t-th row of the part in sum t modulo size."""
    problem, n = part.problem, part.problem.n
    sign = np.random.default_rng([seed, *part.place]).choice([-1.0, 1.0], n)
    group = np.arange(n) % size
    psi = problem.psi.group_sums(problem.now, sign, group, size)
    if not cross:
        return psi, np.zeros((size, 0))
    signed = sign * problem.ratio
    v = problem.phi.group_sums(problem.now, signed, group, size)
    return psi, v - problem.phi.group_sums(problem.next, signed * problem.discount, group, size)
