"""The cost of operations in passes over the log, the unit in which solvers count."""

from __future__ import annotations

from dataclasses import dataclass

from valuefit.linalg.moments import CACHED_MATRIX_BYTES
from valuefit.machine import GEMM_FLOPS, GPU_FLOPS, SPARSE_FLOPS, seconds
from valuefit.memory import memory_limit


@dataclass(frozen=True)
class Cost:
    """Converts operations on a problem into passes over its log that take as long.

    n, d, k: steps, features and dual features. row: mean stored numbers of a feature row. starts: distinct rows
    that steps start from. sparse, traced, identity: scattered sparse rows, trace > 0, identity metric. square: whether
    A theta = b is solved, with ridge 0 and as many dual features as features. row_bytes: of all feature rows.
    two_reads: whether a pass reads dense rows twice, with traces or dual features. gpu: whether rows are on a GPU.
    ranges: whether rows fill ranges of their columns (`ColumnRanges`), and so are read and multiplied like dense ones.
    """

    n: int
    d: int
    k: int
    row: float
    starts: int
    sparse: bool
    traced: bool
    identity: bool
    square: bool
    row_bytes: float
    two_reads: bool
    gpu: bool = False
    ranges: bool = False

    def seconds(self, name: str, threads: int | None = None) -> float:
        """The cost of this name where the rows are."""
        return seconds(name, threads, gpu=self.gpu)

    @classmethod
    def of_parts(
        cls, n: int, d: int, stored: float, *, sparse: bool, traced: bool, square: bool, starts: int | None = None
    ) -> Cost:
        """For a log in parts, with this many stored numbers in its rows; starts: n if None."""
        return cls(
            n=n, d=d, k=d, row=stored / n, starts=starts or n, sparse=sparse, traced=traced, identity=False,
            square=square, row_bytes=8.0 * stored, two_reads=traced,
        )  # fmt: skip

    @property
    def fixed_seconds(self) -> float:
        """Estimated seconds of what every solve begins with."""
        return self.seconds("fixed") + self.seconds("solve_step") * self.n

    @property
    def pass_seconds(self) -> float:
        """Estimated seconds of A theta."""
        if self.sparse:
            return self.seconds("pass_nonzero") * self.n * self.row + self.seconds("sparse_step") * self.n
        one = self.seconds("pass_byte") * self.row_bytes + self.seconds("pass_step") * self.n
        return 1.3 * one if self.two_reads else one

    @property
    def _pass(self) -> float:
        """Stored numbers that one pass reads, each of them twice."""
        return self.n * max(1.0, self.row)

    @property
    def _flops(self) -> int:
        """Matrix-product operations that take as long as one stored number in a pass."""
        if self.gpu:
            return GPU_FLOPS
        return SPARSE_FLOPS if self.sparse else GEMM_FLOPS

    def flops(self, count: float) -> float:
        """Cost of `count` operations at the rate of a dense matrix product."""
        return count / (self._flops * self._pass)

    def host_flops(self, count: float) -> float:
        """Cost of `count` operations of a factorisation in memory, wherever the rows are."""
        return count * self.seconds("factor_flop") / self.pass_seconds if self.gpu else self.flops(count)

    def reads(self, numbers: float) -> float:
        """Cost of reading this many numbers from memory."""
        return numbers * GEMM_FLOPS / 2 / (self._flops * self._pass)

    def sparse_product(self, nonzeros: float) -> float:
        """Cost of a product with a sparse matrix that stores this many numbers, on a problem with sparse rows.

        A number of C takes a fifth of the time of one of a row on hashed tiles (1e5, 1e5), a tenth on (1e6, 1e6).
        """
        return nonzeros / (8 * self._pass)

    def affords_factor(self, size: int, *, cross: bool, limit: float) -> bool:
        """Whether a sketch (all of the moments, for sparse rows) and its factors fit into memory and `limit` passes."""
        k, d = self.k, self.d
        wide = k + d if cross else k
        if 8 * (3 * k * wide + (0 if self.sparse else size * wide)) > memory_limit():
            return False
        work = k**3 + (2 * k * d * (k + d) if cross else 0)
        if self.sparse:
            return (self.A + self.C if cross else 1 + self.C) + self.flops(work) <= limit
        rows = min(size, self.starts)
        return 1 + self.flops(rows * (k**2 + (2 * k * d if cross else 0)) + work) <= limit

    @property
    def solve_flops(self) -> float:
        """Operations of a direct solve from the moments: LU of A, or Cholesky factors of C and of A'C^-1A + ridge I."""
        k, d = float(self.k), float(self.d)
        return 2 / 3 * d**3 if self.square else k**3 / 3 + k**2 * d + k * d**2 + d**3 / 3

    @property
    def moments(self) -> float:
        """Cost of A, b and C."""
        return self.A + (0.0 if self.identity else self.C)

    @property
    def A(self) -> float:
        """Cost of A and b."""
        if self.sparse and not self.traced:
            return 1 + self._sparse_outer_products(2.0)
        return 1 + self.flops(self.A_flops)

    @property
    def A_flops(self) -> float:
        """Operations that form A from dense rows, or from ranges, of which each step multiplies two pairs."""
        rows = self.n if self.traced else self.starts
        return 4.0 * self.n * self.row**2 if self.ranges and not self.traced else 2.0 * rows * self.k * self.d

    @property
    def C(self) -> float:
        """Cost of C = mean psi psi'."""
        return self._sparse_outer_products(1.0) if self.sparse else self.flops(self.C_flops)

    @property
    def C_flops(self) -> float:
        """Operations that form C from dense rows, of which half are computed, or from ranges."""
        return 2.0 * self.starts * self.row**2 if self.ranges else float(self.starts) * self.k**2

    def _sparse_outer_products(self, products: float) -> float:
        """Cost of n sparse outer products, which run far below the rate of dense products, above all out of cache."""
        slowdown = 44.0 if 8 * self.k * self.d <= CACHED_MATRIX_BYTES else 220.0
        return self.flops(slowdown * products * self.n * self.row**2)
