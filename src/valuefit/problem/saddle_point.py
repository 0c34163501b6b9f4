"""What every problem offers, wherever its rows are: products of the saddle point, and what follows from them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.linalg as linalg
from scipy.linalg import blas

from valuefit.linalg.moments import fill_upper
from valuefit.memory import require_memory
from valuefit.problem.cost import Cost
from valuefit.typing import Array

SKETCH_BLOCK_ROWS = 512  # sketched rows that are multiplied at a time, at least
C_CUTOFF = 1e-13  # eigenvalues of C, with a unit diagonal, below this fraction of the largest are treated as zero
# Properties of a problem that a solver must support beyond the on-policy case; tables and messages use these names.
TRAITS = ("ratio", "trace", "ridge", "float32", "sparse", "more dual features", "identity metric", "shards", "device")


class MomentArrays(NamedTuple):
    """A = mean u v' (k, d), b = mean r u (k,), C = mean psi psi' (k, k), or the identity."""

    A: Array
    b: Array
    C: Array


class SketchedRows(NamedTuple):
    """Some sums of rows with random signs, over sqrt(n): of psi (rows, k), of u (the same at trace 0), of v (rows, d).

    v is None where only psi was asked for.
    """

    psi: Array
    u: Array
    v: Array | None


class SaddlePoint(ABC):
    """min over theta of 1/2 |A theta - b|^2 in the metric C^-1, plus ridge/2 |theta|^2, by full passes over the log.

    Subclasses hold the rows: in memory (`Problem`), in shards (`ShardedProblem`), on a device (`DeviceProblem`). What a
    pass returns has the size of the weights. n, d, k: steps, features, dual features. shared: whether psi is phi.
    sparse: whether rows are. distinct_rows: as stored. dead: features that are zero in every `now` row.
    max_discount: of a step. weighted: whether some ratio is not 1. float32: whether rows are. sketch_parts: parts of
    the log that are sketched separately. storage: the trait of where rows are, "" for memory.
    """

    n: int
    d: int
    k: int
    trace: float
    ridge: float
    identity: bool
    shared: bool
    sparse: bool
    distinct_rows: int
    dead: Array
    max_discount: float
    weighted: bool
    float32: bool = False
    sketch_parts: int = 1
    storage: ClassVar[str] = ""

    # ---- what a storage of rows provides ------------------------------------------------------------------

    @property
    @abstractmethod
    def cost(self) -> Cost:
        """The cost model: costs of operations in passes over this log."""

    @abstractmethod
    def products(self, theta: Array | None, w: Array | None, rewards: bool = True) -> tuple[Array | None, Array]:
        """A' w, and A theta - b plus C w unless C = I, in one pass; without b if not `rewards`.

        None is a zero vector, whose products are skipped: w = None gives no A' w.
        """

    @abstractmethod
    def At_dot(self, w: Array) -> Array:
        """A' w."""

    @abstractmethod
    def C_dot(self, w: Array) -> Array:
        """C w."""

    # these are set on construction, or computed when they are asked for

    @cached_property
    def b(self) -> Array:
        """mean r u, (k,)."""
        raise NotImplementedError

    @cached_property
    def A(self) -> Array:
        """mean u v', (k, d)."""
        raise NotImplementedError

    @cached_property
    def second_moment(self) -> Array:
        """mean psi psi', (k, k), also if C is the identity."""
        raise NotImplementedError

    @cached_property
    def dual_squares(self) -> Array:
        """mean psi^2 of every dual feature, (k,)."""
        raise NotImplementedError

    @abstractmethod
    def sketched_rows(
        self, size: int, rng: np.random.Generator, *, cross: bool, traces: bool, dtype: Any, block_rows: int
    ) -> Iterator[SketchedRows]:
        """Blocks of about `block_rows` of `size` sums of rows with random signs; every row is added to one sum.

        So mean psi psi' is estimated by the sum of psi' psi over the blocks, and A by that of u' v. cross: whether v
        is sketched too. traces: whether u has traces. A block is valid until the next one is asked for.
        """

    def sketched_moments(
        self, size: int, rng: np.random.Generator, *, cross: bool, traces: bool = False
    ) -> tuple[Array, Array | None]:
        """mean psi psi' and, if `cross`, A, estimated from `size` sums of rows with random signs (CountSketch)."""
        k = self.k
        C, A = np.zeros((k, k), order="F"), np.zeros((k, self.d) if cross else (0, 0), order="F")
        block_rows = max(SKETCH_BLOCK_ROWS, k // 4)
        for block in self.sketched_rows(size, rng, cross=cross, traces=traces, dtype=np.float64, block_rows=block_rows):
            C = blas.dsyrk(1.0, block.psi.T, beta=1.0, c=C, lower=True, overwrite_c=True)
            if block.v is not None:
                A = blas.dgemm(1.0, block.u.T, block.v.T, beta=1.0, c=A, trans_b=True, overwrite_c=True)
        fill_upper(C)
        return C, A if cross else None

    def dense_factor(self, size: int, *, cross: bool) -> Any:
        """A dense preconditioner from `size` sketched rows, made where the rows are; None where memory makes it."""
        return None

    @abstractmethod
    def mean_squares(self, c: Array | None, y: Array) -> tuple[float, float]:
        """mean (z_t'c)^2, z being the trace of v run backwards (0 for None), and mean (psi_t'y)^2, in half a pass."""

    @abstractmethod
    def reward_squares(self) -> tuple[float, float]:
        """The mean squares of the rewards summed along the traces, and of ratio times reward."""

    def row_sizes(self) -> tuple[float, float, float] | None:
        """Upper bounds of the root mean squares of |psi_t|, ratio_t |v_t| and ratio_t r_t; None where they cost a pass.

        None also with traces and float32 rows, whose squares are summed in float32.
        """
        return None

    def with_ridge(self, ridge: float) -> Self:
        """Return this problem with another ridge, on which nothing that is stored depends."""
        other = copy.copy(self)
        other.ridge = ridge
        return other

    @property
    def traits(self) -> frozenset[str]:
        """The TRAITS of this problem, which a solver must support."""
        present = {
            "ratio": self.weighted,
            "trace": self.trace > 0,
            "ridge": self.ridge > 0,
            "float32": self.float32,
            "sparse": self.sparse,
            "more dual features": self.k != self.d,
            "identity metric": self.identity,
        }
        return frozenset({name for name, has in present.items() if has} | ({self.storage} - {""}))

    # ---- products -----------------------------------------------------------------------------------------

    def B(self, theta: Array, w: Array) -> tuple[Array, Array]:
        """The operator of equation (10): (ridge theta - A' w, A theta - b + C w)."""
        Atw, rest = self.products(theta, w)
        assert Atw is not None
        return self.ridge * theta - Atw, rest + w if self.identity else rest

    def residual(self, theta: Array) -> Array:
        """b - A theta."""
        return -self.products(theta, None)[1]

    def A_dot(self, theta: Array) -> Array:
        """A theta."""
        return self.products(theta, None, rewards=False)[1]

    # ---- moments ------------------------------------------------------------------------------------------

    def moments(self) -> MomentArrays:
        """A, b and C as dense arrays, in O(n d^2) operations, or fewer if rows repeat."""
        return MomentArrays(self.A, self.b, self.C)

    def completed(self, A: Array) -> Array:
        """A with a number on the diagonal of each feature without data, whose row and column are zero.

        It is regular if the data determine all other weights; solutions are 0 for features without data.
        """
        if not len(self.dead) or not self.shared:
            return A
        A = A.copy()
        A[self.dead, self.dead] = np.abs(np.diag(A)).max() or 1.0
        return A

    @cached_property
    def C(self) -> Array:
        """mean psi psi', (k, k), or the identity."""
        self._require_moment_memory()
        return np.eye(self.k) if self.identity else self.second_moment

    def _require_moment_memory(self) -> None:
        require_memory(
            self.k * (self.k + self.d),
            f"The moments of {self.d} features and {self.k} dual features",
            "Use a matrix-free solver such as 'svrg' or 'saga'.",
        )

    # ---- the objective, through the pseudo-inverse of C ---------------------------------------------------

    @cached_property
    def C_spectrum(self) -> tuple[Array, Array]:
        """The eigenvalues of C above the cutoff, ascending, and their eigenvectors as columns."""
        if self.identity:
            return np.ones(self.k), np.eye(self.k)
        values, vectors = linalg.eigh(self.C, check_finite=False)
        kept = values > C_CUTOFF * max(values[-1], 0.0)
        return values[kept], vectors[:, kept]

    @cached_property
    def C_root(self) -> Array:
        """R, (k, rank), with r' R R' r = r' C^+ r in the range of C, where b - A theta lies for every theta."""
        return self.C_whitening[0]

    @cached_property
    def C_whitening(self) -> tuple[Array, float]:
        """C_root and the condition number of C, scaled to a unit diagonal so that units do not look like dependence."""
        return (np.eye(self.k), 1.0) if self.identity else whitening(self.C)

    def objective(self, theta: Array) -> float:
        """F(theta)."""
        whitened = self.C_root.T @ self.residual(theta)
        return 0.5 * float(whitened @ whitened) + 0.5 * self.ridge * float(theta @ theta)

    def gradient(self, theta: Array) -> Array:
        """The gradient of F: ridge theta - A' C^+ (b - A theta)."""
        w = self.C_root @ (self.C_root.T @ self.residual(theta))
        return self.ridge * theta - self.At_dot(w)


def whitening(C: Array) -> tuple[Array, float]:
    """R with R R' = C^+ on the range of C, and the condition number of C with a unit diagonal."""
    lengths = np.sqrt(np.diag(C))
    scale = np.divide(1.0, lengths, out=np.zeros(len(C)), where=lengths > 0)
    values, vectors = linalg.eigh(scale[:, None] * C * scale, check_finite=False)
    kept = values > C_CUTOFF * max(values[-1], 0.0)
    values, vectors = values[kept], scale[:, None] * vectors[:, kept]
    return vectors / np.sqrt(values), float(values[-1] / values[0]) if len(values) else 1.0
