"""Random small problems through every solver and `evaluate`, compared with a plain NumPy reference.

A failure is a "converged" that is false, an exception other than a ValueError of one sentence, a warning, or an
answer that is not finite. The reference shares no code with valuefit: it never forms C, which would square its
condition number, and decides ranks on columns of equal length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sparse

import valuefit as vf
from fuzz.calls import compile_solvers
from fuzz.outcome import RIGHT, Failure, Refusal, ask
from fuzz.runner import Target

FAILED = "FAILED"

EPSILON = np.finfo(float).eps
# Singular values of unit columns between these parts of the largest are neither clearly zero nor clearly not: all
# ranks between are then admitted, and a gap is too large only if it is with each of them.
DOUBTFUL_ROWS = 1e-9, 1e-5
DOUBTFUL_SYSTEM = 1e-13, 1e-7
ROUNDING_UNITS = 100.0  # rounding errors of A and b, in units of the last place, that a solver is allowed
SLACK = 1.01  # of tol: a certificate and the reference may differ in rounding


@dataclass(frozen=True)
class Case:
    """The arguments of `Problem.from_rows`, with dense float64 rows, and how to solve it."""

    Phi: np.ndarray
    Psi: np.ndarray | None
    now: np.ndarray
    next: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    ratio: np.ndarray
    episode: np.ndarray
    trace: float
    ridge: float
    identity: bool
    storage: str
    tol: float
    max_passes: int

    def problem(self) -> vf.Problem:
        store = {"dense": np.asarray, "float32": np.float32, "csr": sparse.csr_array}[self.storage]
        return vf.Problem.from_rows(
            store(self.Phi), self.now, self.next, self.reward, self.discount, self.ratio, self.episode,
            trace=self.trace, ridge=self.ridge, dual_rows=None if self.Psi is None else store(self.Psi),
            metric="identity" if self.identity else "C",
        )  # fmt: skip

    def log(self) -> vf.Transitions:
        """The same steps as a log whose observations are the feature rows."""
        last = np.append(np.diff(self.episode) != 0, True)
        return vf.Transitions.from_arrays(
            self.Phi[self.now], self.reward, terminated=self.next < 0, truncated=last & (self.next >= 0),
            episode=self.episode, next_observation=self.Phi[self.next], ratio=self.ratio,
        )  # fmt: skip


# ---- random problems -----------------------------------------------------------------------------------------


def random_case(rng: np.random.Generator) -> Case:
    """A problem of 1 to 60 steps and 1 to 7 features, with what makes problems hard."""
    lengths = rng.integers(1, rng.choice([2, 6, 20]) + 1, rng.integers(1, 5))
    n = int(lengths.sum())
    episode = np.repeat(np.arange(len(lengths)), lengths)
    last = np.append(np.diff(episode) != 0, True)
    now, after, m = _path(rng, episode, last)
    after = np.where(last & (rng.random(n) < rng.choice([0.0, 0.5, 1.0])), -1, after)
    d = int(rng.integers(1, 7))
    Phi = _rows(rng, m, d)
    d = Phi.shape[1]
    Psi = np.hstack([Phi, _rows(rng, m, int(rng.integers(1, 3)))]) if rng.random() < 0.15 else None
    discount = np.full(n, rng.choice([0.0, 0.5, 0.9, 0.99, 0.9999]))
    if rng.random() < 0.15:
        discount = rng.uniform(0, 1, n)
    storage = str(rng.choice(["dense", "dense", "float32", "csr"]))
    if storage == "float32":
        with np.errstate(under="ignore"):
            Phi = Phi.astype(np.float32).astype(float)
            Psi = None if Psi is None else Psi.astype(np.float32).astype(float)
    return Case(
        Phi=Phi,
        Psi=Psi,
        now=now,
        next=after,
        reward=_rewards(rng, n, Phi[now]),
        discount=np.where(after < 0, 0.0, discount),
        ratio=_ratios(rng, n),
        episode=episode,
        trace=float(rng.choice([0.0, 0.0, 0.5, 1.0, rng.random()])),
        ridge=float(rng.choice([0.0, 0.0, 10.0 ** rng.uniform(-12, 3), 10.0 ** rng.uniform(-90, 90)])),
        identity=bool(rng.random() < 0.1),
        storage=storage,
        tol=float(rng.choice([1e-2, 1e-4, 1e-6, 1e-8, 1e-10])),
        max_passes=int(rng.choice([10, 50, 200])),
    )


def _path(rng: np.random.Generator, episode: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """now, next and the number of rows: one row per observation, or few states."""
    n = len(episode)
    if rng.random() < 0.5:
        now = np.arange(n) + episode
        return now, now + 1, n + int(episode[-1]) + 1
    states = int(rng.integers(1, 8))
    now = rng.integers(0, states, n)
    return now, np.where(last, rng.integers(0, states, n), np.append(now[1:], 0)), states


def _rows(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    rows = rng.standard_normal((m, d))
    kind = rng.integers(8)
    if kind == 0:
        rows = rng.integers(-1, 2, (m, d)).astype(float)  # zeros and ties
    elif kind == 1:
        rows[:, 0] = 1.0
    elif kind == 2:
        rows = np.hstack([rows, rows @ rng.integers(-1, 2, (d, 1))])  # dependent, equal or zero columns
    elif kind == 3:
        near = rows[:, :1] + 10.0 ** rng.uniform(-12, -2) * rng.standard_normal((m, 1))
        rows = np.hstack([rows, near])
    scale = rng.integers(6)
    if scale == 0:
        rows *= 10.0 ** rng.uniform(-6, 6, rows.shape[1])
    elif scale == 1:
        rows *= 10.0 ** -np.arange(0.0, 3 * rows.shape[1], 3)  # 1, 1e-3, 1e-6, ...
    elif scale == 2:
        rows *= 10.0 ** rng.uniform(-30, 30)
    elif scale == 3:
        rows *= 10.0 ** rng.uniform(-4, 4, (m, 1))
    return rows


def _rewards(rng: np.random.Generator, n: int, rows: np.ndarray) -> np.ndarray:
    kind = rng.integers(6)
    if kind == 0:
        return np.zeros(n)
    if kind == 1:
        return np.full(n, 10.0 ** rng.uniform(-30, 30))
    if kind == 2:
        return np.where(np.arange(n) == rng.integers(n), 1.0, 0.0)
    if kind == 3:  # large along features that may be small
        lengths = np.sqrt((rows**2).mean(axis=0))
        return rows @ np.divide(rng.standard_normal(len(lengths)), lengths, out=0 * lengths, where=lengths > 0)
    return rng.standard_normal(n) * 10.0 ** rng.choice([0.0, 0.0, rng.uniform(-25, 25)])


def _ratios(rng: np.random.Generator, n: int) -> np.ndarray:
    kind = rng.integers(6)
    if kind == 0:
        return rng.lognormal(0, 1, n)
    if kind == 1:
        return rng.choice([0.0, 0.5, 2.0], n)
    if kind == 2:
        return 10.0 ** rng.uniform(-5, 5, n)
    return np.ones(n)


# ---- the reference -------------------------------------------------------------------------------------------


class Reference:
    """Gaps of a case from F(theta) = 1/2 |M theta - y|^2 + ridge/2 |theta|^2, with a system for each admissible rank.

    With P the rows psi_t, P = W S Z' and u = T P, the residual b - A theta is P'e / n with e = T'(r - V theta), so
    its energy in C^+ is |W'e|^2 / n, and M = W'T'V / sqrt(n).
    """

    def __init__(self, case: Case) -> None:
        Phi = case.Phi * (case.Phi[case.now] != 0).any(axis=0)
        P = (Phi if case.Psi is None else case.Psi)[case.now]
        self.case, self.n = case, len(case.now)
        self.T, self.V = _traces(case), Phi[case.now] - case.discount[:, None] * Phi[case.next]
        unit, _ = _unit_columns(P)
        self._systems: list[System] = []
        if case.identity:
            whitenings = [(P.T / np.sqrt(self.n), np.abs(P.T) / np.sqrt(self.n), 0.0)]
        else:
            U, singular, _ = np.linalg.svd(unit, full_matrices=False)
            ranks = _ranks(singular, *DOUBTFUL_ROWS)
            # rounding errors of P'e are magnified by the inverse of the smallest singular value
            whitenings = [
                (U[:, :r].T, np.abs(unit.T) / singular[r - 1], EPSILON * (singular[0] / singular[r - 1]) ** 2)
                for r in ranks if r
            ]  # fmt: skip
        for W, size, relative in whitenings:
            M, y = W @ self.T.T @ self.V / np.sqrt(self.n), W @ self.T.T @ case.reward / np.sqrt(self.n)
            # C is known up to a part of its smallest eigenvalue, which turns y that much
            rounding_of_C = _half_square(10 * relative * y)
            self._systems += [
                replace(one, rounding_of_C=rounding_of_C) for one in _least_squares(M, y, case.ridge, size)
            ]

    def gaps(self, theta: np.ndarray, start: np.ndarray) -> list[tuple[float, float]]:
        """(gap, rounding error of the gap) with each admissible rank; none where all features are zero."""
        found = []
        for system in self._systems:
            scale, floor = system.excess(0 * theta), self._rounding(system, theta)
            if scale <= floor:  # theta = 0 is optimal but for rounding
                scale = max(system.excess(start), scale)
            found.append((system.excess(theta) / scale, floor / scale) if scale > 0 else (0.0, 0.0))
        return found

    def _rounding(self, system: System, theta: np.ndarray) -> float:
        """What rounding of A theta - b and of C, where the moments are formed, may add to F."""
        steps = np.abs(self.T.T) @ (np.abs(self.V) @ np.abs(theta) + np.abs(self.case.reward)) / np.sqrt(self.n)
        return _half_square(ROUNDING_UNITS * EPSILON * (system.size @ steps)) + system.rounding_of_C

    def value_error(self, value: float, c: np.ndarray, theta: np.ndarray, gap: float) -> float:
        """The smallest |value - c'theta*| over admissible ranks beyond what `gap` allows; 0 if undetermined."""
        errors = [0.0] if not self._systems else []
        for system in self._systems:
            allowed = np.sqrt(2 * (gap * system.excess(0 * theta) + self._rounding(system, theta)))
            weights, *_ = np.linalg.lstsq(system.K.T, c, rcond=None)
            if np.linalg.norm(system.K.T @ weights - c) > 1e-9 * np.linalg.norm(c):
                return 0.0
            error = abs(value - float(c @ theta) + float(weights @ (system.K @ theta - system.target)))
            rounding = 1e-9 * float(np.abs(c) @ np.abs(theta))
            errors.append(max(0.0, error - SLACK * allowed * float(np.linalg.norm(weights)) - rounding))
        return min(errors)


@dataclass(frozen=True)
class System:
    """F - F* = 1/2 |K theta - target|^2; size: absolute values that bound rounding errors of b - A theta."""

    K: np.ndarray
    target: np.ndarray
    size: np.ndarray
    rounding_of_C: float = 0.0

    def excess(self, theta: np.ndarray) -> float:
        return _half_square(self.K @ theta - self.target)


def _least_squares(M: np.ndarray, y: np.ndarray, ridge: float, size: np.ndarray) -> list[System]:
    """The systems of |M theta - y|^2 + ridge |theta|^2 with each admissible rank of columns of equal length."""
    d = M.shape[1]
    K = np.vstack([M, np.sqrt(ridge) * np.eye(d)]) if ridge else M
    unit, lengths = _unit_columns(K)
    U, singular, Vt = np.linalg.svd(unit, full_matrices=False)
    target = U.T @ np.concatenate([y, np.zeros(len(K) - len(y))])
    scaled = singular[:, None] * Vt * lengths
    return [System(scaled[:rank], target[:rank], size) for rank in _ranks(singular, *DOUBTFUL_SYSTEM)]


def _unit_columns(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """X with columns of length 1 (or 0), and their lengths."""
    peaks = np.abs(X).max(axis=0, initial=0.0)
    peaks = np.where(peaks > 0, peaks, 1.0)
    lengths = peaks * np.linalg.norm(X / peaks, axis=0)  # squares alone could underflow
    return X / np.where(lengths > 0, lengths, 1.0), lengths


def _ranks(singular: np.ndarray, zero: float, nonzero: float) -> range:
    """The ranks that are admissible: all from the number of clearly nonzero values to that of not clearly zero ones."""
    largest = singular[0] if len(singular) else 0.0
    return range(int((singular > nonzero * largest).sum()), int((singular > zero * largest).sum()) + 1)


def _traces(case: Case) -> np.ndarray:
    """T with u = T psi."""
    T = np.zeros((len(case.now),) * 2)
    for t in range(len(T)):
        if t and case.episode[t] == case.episode[t - 1]:
            T[t] = case.trace * case.discount[t - 1] * T[t - 1]
        T[t, t] = 1.0
        T[t] *= case.ratio[t]
    return T


def _half_square(x: np.ndarray) -> float:
    return 0.5 * float(x @ x)


# ---- the comparison ------------------------------------------------------------------------------------------


def differential_case(rng: np.random.Generator, folder: Path) -> str | None:
    """One random problem through every solver and `evaluate`."""
    found = outcomes(rng)
    failures = [f"{name}: {outcome}" for name, outcome in found.items() if outcome.startswith(FAILED)]
    if failures:
        raise Failure("wrong", "; ".join(failures))
    return RIGHT if "converged" in found.values() else None


def outcomes(rng: np.random.Generator) -> dict[str, str]:
    """How each solver and `evaluate` ended on one random problem; a wrong end begins with FAILED."""
    case = random_case(rng)
    start = rng.standard_normal(case.Phi.shape[1]) if rng.random() < 0.1 else np.zeros(case.Phi.shape[1])
    reference = Reference(case)
    calls = {name: partial(_solve, case, reference, name, start) for name in vf.solvers.names()}
    return {name: _ended(call) for name, call in {**calls, "evaluate": partial(_evaluate, case, reference)}.items()}


def _ended(call: Callable[[], str]) -> str:
    try:
        return str(ask(call))
    except Refusal as refusal:
        text = str(refusal)
        return f"refused ({text[:40]})" if text.endswith(".") else f"{FAILED}: not one sentence: {text!r}"
    except Failure as failure:
        return f"{FAILED}: {failure.kind}: {failure}"


def _solve(case: Case, reference: Reference, name: str, start: np.ndarray) -> str:
    problem = case.problem()
    start = np.where(np.isin(np.arange(problem.d), problem.dead), 0.0, start)
    result = vf.solve(problem, name, tol=case.tol, max_passes=case.max_passes, init=start)
    return _judge(result, reference, start, case.tol)


def _evaluate(case: Case, reference: Reference) -> str:
    going = case.discount[case.next >= 0]
    if case.Psi is not None or case.identity or len(np.unique(going)) > 1:
        return "not applicable"
    found = vf.evaluate(
        case.log(), features=lambda rows: rows, discount=float(going[0]) if len(going) else 0.9, trace=case.trace,
        ridge=case.ridge, tol=case.tol, max_passes=case.max_passes,
    )  # fmt: skip
    outcome = _judge(found.result, reference, np.zeros(case.Phi.shape[1]), case.tol)
    value = found.policy_value.estimate
    first = np.unique(case.episode, return_index=True)[1]
    c = case.Phi[case.now[first]].mean(axis=0)
    if not np.isfinite(value):
        return f"{FAILED}: the policy value is {value}"
    if outcome == "converged" and (error := reference.value_error(value, c, found.result.theta, case.tol)) > 0:
        return f"{FAILED}: the policy value is {value}, off by {error}"
    return outcome


def _judge(result: vf.Result, reference: Reference, start: np.ndarray, tol: float) -> str:
    theta = result.theta
    if not (np.isfinite(theta).all() and np.isfinite(result.w).all()):
        return f"{FAILED}: weights that are not finite"
    if not result.message.isprintable():
        return f"{FAILED}: not one line: {result.message!r}"
    if result.status != "converged":
        return result.status
    gaps = reference.gaps(theta, start) or [(0.0, 0.0)]
    if all(gap > max(SLACK * tol, floor) for gap, floor in gaps):
        gap, floor = min(gaps)
        return (
            f"{FAILED}: converged at tol {tol:.0e}, true gap {gap:.1e}, rounding {floor:.1e}, stated {result.gap:.1e}"
        )
    return result.status


def prepare() -> None:
    """Compile the kernels of each storage."""
    case = random_case(np.random.default_rng(0))
    for storage in ("dense", "float32", "csr"):
        compile_solvers(replace(case, storage=storage, ridge=0.0, identity=False, Psi=None).problem())


TARGETS = [Target("differential", differential_case, cases=1500, prepare=prepare)]
