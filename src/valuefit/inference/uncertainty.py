"""Errors of the reported numbers: clusters that suit them, and CR3, or CR1 where CR3 is too expensive.

CR3 is the delete-one-episode jackknife: v_g is the number without episode g, its weights and its starts, and the
variance is (G-1)/G times the sum of (v_g - v)^2. Student's t has the effective number of episodes minus one as degrees
of freedom: episodes of unequal weight give a less precise standard error than their number suggests.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.sparse as sparse

from valuefit.inference.errors import ErrorEstimate, Influence, LinearFunction
from valuefit.inference.jackknife import Replicates, replicates
from valuefit.inference.jackknife_basis import Basis, InverseBasis, jackknife_basis
from valuefit.inference.sandwich import AdjointMethod, Sandwich
from valuefit.memory import memory_limit
from valuefit.typing import Array

Kind = Literal["cr3", "cr1"]
KINDS = ("cr3", "cr1")
MIN_EFFECTIVE_CLUSTERS = 2  # with fewer effective episodes one dominates, and long ones are cut into blocks
MIN_STREAM_BLOCKS = 8  # of a log of one episode
BLOCK_TIMES = 5  # length of a block over the autocorrelation time of the values
MAX_SHARE_OF_ONE = 0.5  # of the variance; above it the value rests on one cluster, if many count by their weights:
MIN_CLUSTERS_OF_SHARE = 20  # effective ones; with fewer of unequal weight such a share is common in clean logs
MIN_UNDETERMINED = 0.05  # |cosine| of c with a direction that the other clusters do not determine, to rest on one


class Uncertainty:
    """Errors of linear functions of theta over the clusters of a sandwich.

    kind: "cr3" or "cr1", as asked for, or "cr1" where that was too expensive (`Sandwich.method` is ITERATIVE, or it
    does not fit into memory). refused: what was asked for where that is not `kind`, else None.
    basis: `jackknife_basis` of the whole log, if these are clusters of a part of it.
    """

    def __init__(self, sandwich: Sandwich, kind: Kind = "cr3", *, basis: Basis | InverseBasis | None = None) -> None:
        self.sandwich, self.basis = sandwich, basis
        size = 8 * sandwich.clusters * sandwich.problem.d
        feasible = sandwich.method is not AdjointMethod.ITERATIVE and 8 * size <= memory_limit()
        self.kind: Kind = kind if feasible else "cr1"
        self.refused: Kind | None = None if self.kind == kind else kind

    @cached_property
    def replicates(self) -> Replicates:
        """The weights without each cluster."""
        return _replicates(self.sandwich, self.basis)

    @property
    def has_row_intervals(self) -> bool:
        """Whether `row_intervals` has two clusters, and equations that are solved directly."""
        return self.sandwich.clusters >= 2 and self.sandwich.method is not AdjointMethod.ITERATIVE

    @property
    def changes(self) -> Array:
        """(clusters, d): the norm of the products with c is the standard error of c'theta, for fixed c."""
        return np.asarray(count_factor(self.kind, self.sandwich.clusters) * self.unscaled_changes)

    @property
    def unscaled_changes(self) -> Array:
        """`changes` without the factor of the number of clusters, which is that of the whole log."""
        if self.kind != "cr1":
            return -self.replicates.theta
        return self.sandwich.changes(np.ones(len(self.sandwich.cluster)))

    def error(self, function: LinearFunction) -> ErrorEstimate:
        """The errors of one number."""
        return self.errors([function])[0]

    def errors(self, functions: list[LinearFunction]) -> list[ErrorEstimate]:
        """The errors of each number."""
        influences = self.sandwich.influences(functions)
        found = []
        for function, influence in zip(functions, influences, strict=True):
            if isinstance(influence, ErrorEstimate):
                found.append(influence)
                continue
            parts, undetermined = self.contributions(function, influence), self._undetermined_without_one(function)
            error = error_of_parts(
                parts, influence.effective_clusters, influence.solver_error, undetermined=undetermined
            )
            found.append(error)
        return found

    def contributions(self, function: LinearFunction, influence: Influence) -> Array:
        """The part of each cluster in the error, (clusters,); the norm of this vector is the standard error."""
        if self.kind == "cr1":
            return self.sandwich.contributions(influence)
        return self._jackknife_parts(function)

    def parts(self, functions: list[LinearFunction]) -> list[Array | None]:
        """`contributions` of each number; None where they are unknown. The jackknife needs no influences of steps."""
        sandwich = self.sandwich
        if self.kind == "cr1" or sandwich.clusters < 2:
            found = sandwich.influences(functions)
            return [None if isinstance(one, ErrorEstimate) else sandwich.contributions(one) for one in found]
        determined = sandwich.solver_errors([function.c for function in functions])
        return [
            None if error is None else self._jackknife_parts(function)
            for function, error in zip(functions, determined, strict=True)
        ]

    def _jackknife_parts(self, function: LinearFunction) -> Array:
        return np.asarray(count_factor("cr3", self.sandwich.clusters) * -self._without_each(function))

    def _without_each(self, function: LinearFunction) -> Array:
        """v_g - v of each cluster."""
        change = self.replicates.theta @ function.c
        if function.first is None:
            return change
        values = np.asarray(function.rows @ self.sandwich.theta).ravel()
        mean = values.mean() if function.total is None else float(function.c @ self.sandwich.theta)
        owner, starts = self.sandwich.cluster[function.first], function.starts
        own = row_products(function.rows, self.replicates.theta[owner])
        count = np.bincount(owner, minlength=len(change))
        removed = np.bincount(owner, weights=values + own, minlength=len(change))
        left = starts - count
        with np.errstate(divide="ignore", invalid="ignore"):
            without = (starts * (mean + change) - removed) / left
        return np.where(left > 0, without - mean, change)

    def _undetermined_without_one(self, function: LinearFunction) -> bool:
        """Whether the other clusters do not determine the value."""
        if self.kind == "cr1":
            return False
        for cluster, directions in self.replicates.undetermined.items():
            c = function.c
            if function.first is not None:
                kept = self.sandwich.cluster[function.first] != cluster
                c = np.asarray(function.rows[kept].mean(axis=0)).ravel() if kept.any() else c
            if _along(c[None], directions)[0]:
                return True
        return False

    def rests_on_one(self, rows: Array) -> Array:
        """Whether the product of theta with each row, (m,), is undetermined without one of the clusters."""
        found = np.zeros(len(rows), bool)
        if self.kind != "cr1":
            for directions in self.replicates.undetermined.values():
                found |= _along(rows, directions)
        return found


def error_of_parts(parts: Array, effective: float, solver_error: float, *, undetermined: bool) -> ErrorEstimate:
    """The error of a number in which the clusters have these parts.

    undetermined: whether the number is undetermined without one of them.
    """
    size, count = float(np.linalg.norm(parts)), len(parts)
    shares = parts / size if size else parts
    largest = float(np.abs(shares).max()) ** 2
    dominated = effective >= MIN_CLUSTERS_OF_SHARE and largest > MAX_SHARE_OF_ONE
    return ErrorEstimate(
        size, effective, solver_error=solver_error, one_cluster=dominated or undetermined, largest_share=largest,
        skewness=float(np.sum(shares**3)), bias=float(bias_of(parts.sum(), count)),
    )  # fmt: skip


def bias_of(total: Any, clusters: int) -> Any:
    """The bias of numbers in which the parts of the clusters add up to this: (G-1) times the mean of v_g - v.

    0 if the parts are those of CR1.
    """
    return -count_factor("cr3", clusters) * total


def count_factor(kind: str, clusters: int) -> float:
    """What parts of clusters are multiplied by, for a standard error without bias if they are equal."""
    return float(np.sqrt((clusters - 1) / clusters if kind != "cr1" else clusters / (clusters - 1)))


def basis_of(sandwich: Sandwich) -> Basis | InverseBasis:
    """The coordinates of the jackknife, with the factor of A if there is one."""
    return jackknife_basis(sandwich.problem, sandwich.w, sandwich.factor_of_A)


def _replicates(sandwich: Sandwich, basis: Basis | InverseBasis | None = None) -> Replicates:
    weights, clusters = (sandwich.theta, sandwich.w), (sandwich.cluster, sandwich.clusters)
    basis = basis or basis_of(sandwich)
    return replicates(sandwich.problem, *weights, *clusters, basis=basis, error=sandwich.td_errors)


def _along(rows: Array, directions: Array) -> Array:
    """Whether rows, (m, d), have a component along one of these directions, (d, count)."""
    sizes = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(directions, axis=0)
    return np.asarray((np.abs(rows @ directions) > MIN_UNDETERMINED * sizes).any(axis=1))


def row_products(rows: Any, others: Array) -> Array:
    """The product of each row with the same row of `others`."""
    if sparse.issparse(rows):
        return np.asarray(rows.multiply(others).sum(axis=1)).ravel()
    return np.einsum("ij,ij->i", np.asarray(rows), others)


def uncertainty(sandwich: Sandwich, function: LinearFunction, kind: Kind = "cr3") -> Uncertainty:
    """With clusters that suit this number."""
    if sandwich.clusters < 2:
        return Uncertainty(sandwich, kind)
    influence = sandwich.influences([function])[0]
    effective = influence.effective_clusters if isinstance(influence, Influence) else np.inf
    cluster = suitable_clusters([sandwich], effective)
    return Uncertainty(sandwich.with_clusters(cluster, blocks=sandwich.blocks), kind)


def suitable_clusters(sandwiches: list[Sandwich], effective: float) -> Array:
    """The cluster of each step, (n,), for numbers with this many effective episodes, of one log.

    A log of one episode is cut into blocks whose length is 5 times the autocorrelation time of the values; so are long
    episodes if fewer than 2 effective ones would be left. Groups of episodes are not cut.
    """
    first = sandwiches[0]
    n = first.problem.n
    if first.grouped or (not first.blocks and effective >= MIN_EFFECTIVE_CLUSTERS):
        return first.cluster
    time = max(map(autocorrelation_time, sandwiches))
    if first.blocks:
        count = int(max(min(max(n / (BLOCK_TIMES * time), MIN_STREAM_BLOCKS), np.sqrt(n)), 2))
        return np.asarray(np.arange(n) * count // n)
    return cut(first.cluster, max(np.sqrt(n), BLOCK_TIMES * time))


def autocorrelation_time(sandwich: Sandwich) -> float:
    """(1 + r) / (1 - r), r being the correlation of the values of consecutive steps: steps that count as one."""
    problem = sandwich.problem
    every = problem.phi.dot(sandwich.theta)[problem.now]
    values = every - every.mean()
    follows = sandwich.episode[1:] == sandwich.episode[:-1]
    square = float(values @ values)
    if square <= 1e-24 * float(every @ every) or not follows.any():  # constant, up to rounding
        return 1.0
    pairs = float((values[1:] * values[:-1])[follows].mean())
    r = float(np.clip(pairs / (square / len(values)), 0.0, 0.9999))
    return (1 + r) / (1 - r)


def cut(cluster: Array, length: float) -> Array:
    """Clusters longer than 1.5 times `length` cut into consecutive blocks of about this length; renumbered."""
    order = np.argsort(cluster, kind="stable")
    sizes = np.bincount(cluster)
    blocks = np.maximum(1, np.round(sizes / length)).astype(np.int64)
    position = np.arange(len(cluster)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    sorted_sizes, sorted_blocks = np.repeat(sizes, sizes), np.repeat(blocks, sizes)
    first = np.repeat(np.cumsum(blocks) - blocks, sizes)
    found = np.empty(len(cluster), np.int64)
    found[order] = first + position * sorted_blocks // sorted_sizes
    return found
