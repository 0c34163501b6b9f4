"""What others would run: the textbook LSTD, GMRES without a preconditioner, sparse LU and TD-SVRG.

Each takes a problem and gives a `Peer`. Favours to them: rows are materialised off the clock, GMRES multiplies
with our own compiled products, and the iterative ones stop as soon as their true gap, looked up off the clock, is met.
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
from valuefit.rows.kernels import axpy, compiled, dot2v, fetch

Array = np.ndarray[Any, np.dtype[Any]]
ROOM = 12 << 30  # bytes that materialised rows may take


@dataclass(frozen=True)
class Peer:
    """Where a peer ended; theta is None where it could not run, and `note` says why."""

    theta: Array | None
    seconds: float | None = None
    passes: float | None = None
    status: str = "done"
    note: str = ""


class _Enough(Exception):
    """The gap is met, or the budget spent."""


class Watch:
    """A clock that stands still while the true gap is looked up."""

    def __init__(self, gap: Callable[[Array], float], tol: float, seconds: float, passes: float, every: float) -> None:
        self.gap, self.tol, self.limit, self.most, self.every = gap, tol, seconds, passes, every
        self.passes, self.looked, self.free = 0.0, 0.0, 0.0
        self.began = time.perf_counter()
        self.status = "budget"

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began - self.free

    def spend(self, passes: float) -> None:
        self.passes += passes
        if self.seconds > self.limit or self.passes > self.most:
            raise _Enough

    def look(self, theta: Array) -> None:
        if self.passes < self.looked * self.every:
            return
        start = time.perf_counter()
        self.looked = self.passes
        found = self.gap(theta) if np.isfinite(theta).all() else np.inf
        self.free += time.perf_counter() - start
        if not found < 1e6:
            self.status = "diverged"
        if found <= self.tol or self.status == "diverged":
            self.status = "converged" if found <= self.tol else "diverged"
            raise _Enough


# ---- textbook LSTD ------------------------------------------------------------------------------------------


def materialised(problem: vf.Problem) -> tuple[Array, Array, Array]:
    """Rows now, rows next, and the discounts as a column, as the textbook writes them."""
    rows = problem.phi.matrix
    rows = rows.toarray() if sparse.issparse(rows) else rows
    return rows[problem.now], rows[problem.next], problem.discount[:, None]


def textbook(problem: vf.Problem, repeats: Callable[[Callable[[], Array]], tuple[float, Array]]) -> Peer:
    """solve(Phi.T @ (Phi - g Phi_next), Phi.T @ r); ratios and traces on the left; ridge by the normal equations."""
    need = 8 * 3 * problem.n * problem.d
    if need > ROOM:
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
    """SciPy's GMRES(50) on A theta = b, or on the saddle-point system where ridge > 0, without a preconditioner.

    Nobody knows which residual gives the gap that is wanted, so ever smaller ones are tried; only the last try counts.
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
        watch.look(x[:d])

    right = problem.b if offset is None else np.concatenate([np.zeros(d), problem.b])
    size = len(best)
    operator = sparse_linalg.LinearOperator((size, size), product, dtype=np.float64)
    try:
        best[:], _ = sparse_linalg.gmres(
            operator, right, rtol=rtol, restart=min(restart, size), maxiter=10_000, callback=after_restart,
            callback_type="x",
        )  # fmt: skip
        watch.looked = 0.0
        watch.look(best[:d])
    except _Enough:
        pass
    return Peer(best[:d].copy(), watch.seconds, watch.passes, watch.status, f"relative residual {rtol:.0e}")


# ---- sparse LU ----------------------------------------------------------------------------------------------


def sparse_lu(problem: vf.Problem) -> Peer:
    """SuperLU of the sparse A, with 1e-9 of its mean diagonal added, for tile coding makes A singular."""
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

    The next snapshot is an iterate drawn at random from the loop, so a loop stops there. lambda_A, the smallest
    eigenvalue of the symmetric part of A, is given free of charge; where it is unknown or not positive (the theory is
    on-policy), loops have n steps. Mustafin, Olshevsky and Paschalidis 2022 (arXiv 2211.16237).
    """
    if problem.ridge or problem.trace:
        return Peer(None, status="not run", note="it has no ridge and no traces")
    rng = np.random.default_rng(seed)
    largest = float(problem.phi.squared_norms()[problem.now].max())
    step = 1 / (8 * largest)
    known = reference.lambda_A is not None and reference.lambda_A > 0
    inner = 16 * largest / reference.lambda_A if known and reference.lambda_A else float(problem.n)
    most = 400.0
    inner = int(min(inner, most * problem.n)) + 1
    watch = Watch(reference.gap, tol, seconds, most, 1.0 if not problem.phi.sparse else 2.0)
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
                    raise _Enough
                watch.look(theta + deviation)
            theta = theta + deviation
            deviation[:] = 0.0
    except _Enough:
        theta = theta + deviation
    note = f"inner loops of {inner / problem.n:.3g} n" + ("" if known else ", for lambda_A is unknown or not positive")
    return Peer(theta, watch.seconds, watch.passes, watch.status, note)


@compiled
def td_updates(phi, now, next, discount, ratio, mean, theta, step):
    """theta += step * (mean - ratio phi v' theta) for each drawn step; theta is the deviation from the snapshot.

    Kept as theta = y + along * mean, so that a step costs as much as its row.
    """
    along = 0.0
    for j in range(now.shape[0]):
        ahead = min(j + 4, now.shape[0] - 1)
        fetch(phi, now[ahead])
        fetch(phi, next[ahead])
        y_dot, mean_dot = dot2v(phi, now[j], next[j], discount[j], theta, mean)
        change = -step * ratio[j] * (y_dot + along * mean_dot)
        axpy(phi, now[j], change, theta)
        along += step
    for c in range(theta.shape[0]):
        theta[c] += along * mean[c]
