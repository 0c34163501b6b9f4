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
        n, b, squares, rewards, weighted, stored, self._starts, sparse, self.sketch_parts = self._sum(_first_pass)
        self.n, self.b, self.dual_squares, self._rewards = n, b / n, squares / n, rewards / n
        self.d = self.k = len(b)
        self.identity, self.shared, self.sparse, self.distinct_rows = False, True, sparse > 0, n
        self.weighted, self._stored = weighted > 0, stored
        self.dead = np.flatnonzero(squares == 0)

    @property
    def cost(self) -> Cost:
        return Cost.of_parts(
            self.n, self.d, self._stored, sparse=self.sparse, traced=self.trace > 0, square=self.ridge == 0,
            starts=self._starts,
        )  # fmt: skip

    def _sum(self, function: Function) -> tuple[Any, ...]:
        self.passes += 1
        return self.parts.sum(function)

    def _mean(self, name: str, *arguments: Array | bool | None) -> list[Any]:
        """The mean over all steps of what the problem of a part has, or returns for these arguments, by this name."""
        return [total / self.n for total in self._sum(partial(_share, name=name, arguments=arguments))]

    def products(self, theta: Array | None, w: Array | None, rewards: bool = True) -> tuple[Array | None, Array]:
        *Atw, rest = self._mean("products", None if theta is None else self._alive(theta), w, False)
        return self._alive(Atw[0]) if Atw else None, rest - (self.b if rewards else 0.0)

    def _alive(self, x: Array) -> Array:
        """x, zero at features without data."""
        x = x.copy()
        x[..., self.dead] = 0.0
        return x

    def At_dot(self, w: Array) -> Array:
        return self._alive(self._mean("At_dot", w)[0])

    def C_dot(self, w: Array) -> Array:
        return np.asarray(self._mean("C_dot", w)[0])

    @cached_property
    def A(self) -> Array:
        self._require_moment_memory()
        return self._alive(self._mean("A")[0])

    @cached_property
    def second_moment(self) -> Array:
        return np.asarray(self._mean("second_moment")[0])

    def mean_squares(self, c: Array | None, y: Array) -> tuple[float, float]:
        of_c, of_y = self._mean("mean_squares", None if c is None else self._alive(c), y)
        return of_c, of_y

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


def _share(part: Part, *, name: str, arguments: tuple[Array | bool | None, ...]) -> tuple[Any, ...]:
    """What the problem of a part has, or returns for these arguments, by this name, times its steps."""
    value = getattr(part.problem, name)
    value = value(*arguments) if callable(value) else value
    entries = value if isinstance(value, tuple) else (value,)
    return tuple(part.problem.n * entry for entry in entries if entry is not None)


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
