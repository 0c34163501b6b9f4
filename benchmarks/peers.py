"""Other implementations for comparison: textbook LSTD, GMRES without preconditioner, sparse LU and TD-SVRG.

Each takes a problem and returns a `Peer`. They have advantages over our solvers: rows are materialised before the clock
starts, GMRES uses our compiled products, and the iterative ones stop at their true gap, computed while the clock stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
import scipy.sparse.linalg as sparse_linalg

import valuefit as vf
from benchmarks.reference import Reference, trace_rows
from valuefit.rows.kernels import axpy, compiled, dot2v, prefetch_row

Array = np.ndarray[Any, np.dtype[Any]]
MAX_ROWS_BYTES = 12 << 30  # memory for materialised rows, within the limit of a task (tasks.MEMORY)


@dataclass(frozen=True)
class Peer:
    """The result of another implementation; theta is None where it could not run, and `note` says why."""

    theta: Array | None
    seconds: float | None = None
    passes: float | None = None
    status: str = "done"
    note: str = ""


class _Stop(Exception):
    """The tolerance is met, the budget is spent, or the method diverged."""


class Watch:
    """A clock that stops while the true gap is computed, and ends the run by raising `_Stop`.

    growth: the gap is computed again when the passes have grown by this factor.
    """

    def __init__(self, gap: Callable[[Array], float], tol: float, seconds: float, passes: float, growth: float) -> None:
        self.gap, self.tol, self.max_seconds, self.max_passes, self.growth = gap, tol, seconds, passes, growth
        self.passes, self.last_check, self.gap_seconds = 0.0, 0.0, 0.0
        self.began = time.perf_counter()
        self.status = "budget"

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began - self.gap_seconds

    def spend(self, passes: float) -> None:
        self.passes += passes
        if self.seconds > self.max_seconds or self.passes > self.max_passes:
            raise _Stop

    def check(self, theta: Array) -> None:
        if self.passes < self.last_check * self.growth:
            return
        start = time.perf_counter()
        self.last_check = self.passes
        gap = self.gap(theta) if np.isfinite(theta).all() else np.inf
        self.gap_seconds += time.perf_counter() - start
        if not gap < 1e6:
            self.status = "diverged"
        if gap <= self.tol or self.status == "diverged":
            self.status = "converged" if gap <= self.tol else "diverged"
            raise _Stop


# ---- textbook LSTD ------------------------------------------------------------------------------------------


def materialised(problem: vf.Problem) -> tuple[Array, Array, Array]:
    """The `now` rows (n, d), the `next` rows (n, d) and the discounts (n, 1) of all steps."""
    rows = problem.phi.matrix
    rows = rows.toarray() if sparse.issparse(rows) else rows
    return rows[problem.now], rows[problem.next], problem.discount[:, None]


def textbook(problem: vf.Problem, repeats: Callable[[Callable[[], Array]], tuple[float, Array]]) -> Peer:
    """solve(Phi.T @ (Phi - g Phi_next), Phi.T @ r), with ratios and traces in Phi.T; ridge by the normal equations."""
    need = 8 * 3 * problem.n * problem.d
    if need > MAX_ROWS_BYTES:
        return Peer(None, status="not run", note=f"its rows would take {need / 2**30:.0f} GiB")
    now, after, discount = materialised(problem)
    before = np.concatenate([[0.0], problem.discount[:-1]])
    off_policy = bool((problem.ratio != 1).any())

    def solve() -> Array:
        left = now
        if problem.trace:
            left = np.empty_like(now)
            trace_rows(now, problem.ratio, before, problem.begins, problem.trace, np.zeros(problem.d), left)
        elif off_policy:
            left = problem.ratio[:, None] * now
        A, b = left.T @ (now - discount * after), left.T @ problem.reward
        if not problem.ridge:
            return np.linalg.solve(A, b)
        C = now.T @ now
        K = np.linalg.solve(C, np.column_stack([A, b]))
        H = A.T @ K[:, :-1] / problem.n + problem.ridge * np.eye(problem.d)
        return np.linalg.solve(H, A.T @ K[:, -1] / problem.n)

    try:
        seconds, theta = repeats(solve)
    except np.linalg.LinAlgError:
        return Peer(None, status="failed", note="A is singular")
    return Peer(theta, seconds)


# ---- GMRES -------------------------------------------------------------------------------------------------


def gmres(problem: vf.Problem, reference: Reference, *, tol: float, seconds: float, restart: int = 50) -> Peer:
    """SciPy's GMRES(50) on A theta = b, or on the saddle-point system where ridge > 0, without preconditioner.

    The residual that gives the gap is unknown in advance, so smaller ones are tried in turn; only the last run counts.
    """
    tried = 0.0
    for rtol in (1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10, 1e-14):
        found = _gmres(problem, reference, rtol, tol, seconds, restart)
        tried += found.seconds or 0.0
        if found.status != "budget" or (found.seconds or 0.0) >= seconds or tried >= 1.5 * seconds:
            break
    return found


def _gmres(problem: vf.Problem, reference: Reference, rtol: float, tol: float, seconds: float, restart: int) -> Peer:
    d, saddle = problem.d, problem.ridge > 0
    watch = Watch(reference.gap, tol, seconds, 2000.0, 1.0 if not problem.phi.sparse else 2.0)
    best = np.zeros(2 * d if saddle else d)
    offset = problem.B(np.zeros(d), np.zeros(d)) if saddle else None

    def product(x: Array) -> Array:
        watch.spend(1)
        if offset is None:
            return problem.A_dot(x)
        return np.concatenate([part - zero for part, zero in zip(problem.B(x[:d], x[d:]), offset, strict=True)])

    def after_restart(x: Array) -> None:
        best[:] = x
        watch.check(x[:d])

    right = problem.b if offset is None else np.concatenate([np.zeros(d), problem.b])
    size = len(best)
    operator = sparse_linalg.LinearOperator((size, size), product, dtype=np.float64)
    try:
        best[:], _ = sparse_linalg.gmres(
            operator, right, rtol=rtol, restart=min(restart, size), maxiter=10_000, callback=after_restart,
            callback_type="x",
        )  # fmt: skip
        watch.last_check = 0.0
        watch.check(best[:d])
    except _Stop:
        pass
    return Peer(best[:d].copy(), watch.seconds, watch.passes, watch.status, f"relative residual {rtol:.0e}")


# ---- sparse LU ----------------------------------------------------------------------------------------------


def sparse_lu(problem: vf.Problem) -> Peer:
    """SuperLU of the sparse A plus 1e-9 of its mean diagonal, because tile coding makes A singular."""
    if not problem.phi.sparse:
        return Peer(None, status="not run", note="rows are dense")
    start = time.perf_counter()
    rows = problem.phi.matrix
    now, after = rows[problem.now], rows[problem.next]
    v = now - sparse.diags_array(problem.discount) @ after
    A = sparse.csc_array((sparse.diags_array(problem.ratio) @ now).T @ v / problem.n)
    shift = 1e-9 * float(A.diagonal().mean())
    try:
        factor = sparse_linalg.splu(sparse.csc_array(A + shift * sparse.eye_array(problem.d)))
    except (MemoryError, RuntimeError) as error:
        return Peer(None, time.perf_counter() - start, status="failed", note=str(error) or "out of memory")
    return Peer(factor.solve(problem.b), time.perf_counter() - start)


# ---- TD-SVRG ------------------------------------------------------------------------------------------------


def td_svrg(problem: vf.Problem, reference: Reference, *, tol: float, seconds: float, seed: int = 0) -> Peer:
    """TD with variance reduction, step 1/8 on rows scaled to |phi| <= 1, inner loops of 16 / lambda_A.

    The next snapshot is a random iterate of the inner loop, which therefore stops there. lambda_A, the smallest
    eigenvalue of the symmetric part of A, is computed while the clock stops; where it is unknown or not positive (the
    theory is on-policy), loops have n steps. Mustafin, Olshevsky and Paschalidis 2022 (arXiv 2211.16237).
    """
    if problem.ridge or problem.trace:
        return Peer(None, status="not run", note="it has no ridge and no traces")
    rng = np.random.default_rng(seed)
    largest = float(problem.phi.squared_norms()[problem.now].max())
    step = 1 / (8 * largest)
    known = reference.lambda_A is not None and reference.lambda_A > 0
    inner = 16 * largest / reference.lambda_A if known and reference.lambda_A else float(problem.n)
    max_passes = 400.0
    inner = int(min(inner, max_passes * problem.n)) + 1
    watch = Watch(reference.gap, tol, seconds, max_passes, 1.0 if not problem.phi.sparse else 2.0)
    theta = np.zeros(problem.d)
    deviation = np.zeros(problem.d)
    piece = min(problem.n, 200_000)
    try:
        while True:
            mean = problem.residual(theta)
            watch.spend(1)
            deviation[:] = 0.0
            left = int(rng.integers(1, inner + 1))
            while left > 0:
                draws = rng.integers(0, problem.n, min(left, piece))
                td_updates(
                    problem.phi.kernel, problem.now[draws], problem.next[draws], problem.discount[draws],
                    problem.ratio[draws], mean, deviation, step,
                )  # fmt: skip
                left -= len(draws)
                watch.spend(len(draws) / problem.n)
                if not np.isfinite(deviation).all():
                    watch.status = "diverged"
                    raise _Stop
                watch.check(theta + deviation)
            theta = theta + deviation
            deviation[:] = 0.0
    except _Stop:
        theta = theta + deviation
    note = f"inner loops of {inner / problem.n:.3g} n"
    note += "" if known else ", because lambda_A is unknown or not positive"
    return Peer(theta, watch.seconds, watch.passes, watch.status, note)


@compiled
def td_updates(phi, now, next, discount, ratio, mean, theta, step):
    """theta += step * (mean - ratio phi v' theta) for each drawn step; theta is the deviation from the snapshot.

    It is stored as theta = y + along * mean during the loop, so that a step costs as much as its row.
    """
    along = 0.0
    for j in range(now.shape[0]):
        ahead = min(j + 4, now.shape[0] - 1)
        prefetch_row(phi, now[ahead])
        prefetch_row(phi, next[ahead])
        y_dot, mean_dot = dot2v(phi, now[j], next[j], discount[j], theta, mean)
        change = -step * ratio[j] * (y_dot + along * mean_dot)
        axpy(phi, now[j], change, theta)
        along += step
    for c in range(theta.shape[0]):
        theta[c] += along * mean[c]
