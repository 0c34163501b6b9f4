"""Comparison of solvers with their naive twins: all combinations of settings, with the same row draws."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, product
from typing import NamedTuple

import numpy as np

import naive
import valuefit as vf
from valuefit.solvers.solver import Solver

STEP_THETA, STEP_W, STEP = 0.03, 0.06, 0.02
TOLERANCE = {"dense": 1e-10, "csr": 1e-10, "float32": 1e-9}


# ---- problems ----------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """One combination of the options of a problem."""

    storage: str = "dense"
    ratio: bool = False
    trace: float = 0.0
    ridge: float = 0.0
    more: bool = False  # dual features
    identity: bool = False

    @property
    def traits(self) -> set[str]:
        present = {
            "ratio": self.ratio,
            "trace": self.trace > 0,
            "ridge": self.ridge > 0,
            "float32": self.storage == "float32",
            "sparse": self.storage == "csr",
            "more dual features": self.more,
            "identity metric": self.identity,
        }
        return {name for name, here in present.items() if here}

    @property
    def label(self) -> str:
        return "+".join(sorted(self.traits)).replace(" ", "-") or "plain"

    def log(self, seed: int = 3) -> naive.Log:
        rng = np.random.default_rng(seed)
        n, d = (20, 8) if self.storage == "csr" else (16, 3)
        log = naive.random_log(rng, n, d, d + 2 if self.more else d, self.ratio, self.trace, self.ridge, self.identity)
        Psi = log.Psi
        if self.storage == "csr":  # the constant and two other features per row, so that trace rows are sparse
            shown = np.argsort(rng.random(Psi[:, 1:].shape), axis=1) < 2
            Psi = np.hstack([Psi[:, :1], Psi[:, 1:] * shown])
        if self.storage == "float32":
            Psi = Psi.astype(np.float32).astype(np.float64)
        return log._replace(Phi=Psi[:, :d].copy(), Psi=Psi)


CASES = [
    Case(*values)
    for values in product(
        ("dense", "csr", "float32"), (False, True), (0.0, 0.7), (0.0, 0.1), (False, True), (False, True)
    )
]


def first_steps(log: naive.Log, count: int) -> naive.Log:
    """The log of its first `count` steps."""
    names = ("now", "next", "reward", "discount", "ratio", "episode")
    return log._replace(**{name: getattr(log, name)[:count] for name in names})


def start_of(log: naive.Log) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    return rng.normal(size=log.Phi.shape[1]), rng.normal(size=log.Psi.shape[1])


# ---- the comparison ----------------------------------------------------------------------------------------


class Preset:
    """A replacement for the random generator of an epoch that returns given draws."""

    def __init__(self, draws: list[np.ndarray], n: int) -> None:
        self.draws, self.n = list(draws), n

    def integers(self, low: int, high: int, size: int) -> np.ndarray:
        chosen = self.draws.pop(0)
        assert (low, high, size) == (0, self.n, len(chosen))
        return chosen


def apart(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> float:
    """The largest difference between two iterates, relative to max(1, |x|)."""
    assert all(f.shape == e.shape for f, e in zip(found, expected, strict=True))
    pairs = zip(map(np.asarray, found), map(np.asarray, expected), strict=True)
    return max(float((np.abs(f - e) / np.maximum(1, np.abs(e))).max()) for f, e in pairs)


class Method(NamedTuple):
    """A solver that draws rows, with its settings, and the twin's iterates at the end of each epoch."""

    make: Callable[[int | None], Solver]
    twin: Callable[..., list[tuple[np.ndarray, np.ndarray]]]


def at_ends(trajectory: list, draws: list[np.ndarray]) -> list:
    return [trajectory[end - 1] for end in accumulate(map(len, draws))]


def without_w(thetas: list[np.ndarray], log: naive.Log) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(theta, np.zeros(log.Psi.shape[1])) for theta in thetas]


def saddle(cls: type, twin: Callable, *settings: float, **named: float) -> Method:
    """A method on (theta, w) with two step sizes."""
    return Method(
        lambda inner: cls(step_theta=STEP_THETA, step_w=STEP_W, inner=inner, **named),
        lambda log, start, draws: at_ends(twin(log, *start, draws, STEP_THETA, STEP_W, *settings), draws),
    )


def _flstd_sa(log: naive.Log, start: tuple, draws: list, averaging: bool) -> list:
    trajectory = naive.flstd_sa(log, start[0], draws, STEP, 2.5)
    thetas = naive.averaged(trajectory) if averaging else [theta for theta, _ in trajectory]
    return without_w(at_ends(thetas, draws), log)


def _ctd(log: naive.Log, start: tuple, draws: list, averaging: bool) -> list:
    return without_w(naive.ctd(log, start[0], draws, STEP, averaging)[1], log)


S = vf.solvers
METHODS = {
    "svrg": saddle(S.SVRG, naive.svrg),
    "saga": saddle(S.SAGA, naive.saga),
    "gtd2": saddle(S.GTD2, naive.gtd2, 2.5, decay=2.5),
    "tdc": saddle(S.TDC, naive.tdc, 2.5, decay=2.5),
    "flstd-sa": Method(
        lambda inner: S.FLSTDSA(step=STEP, decay=2.5, inner=inner), lambda *a: _flstd_sa(*a, averaging=False)
    ),
    "flstd-sa-averaged": Method(
        lambda inner: S.FLSTDSA(step=STEP, decay=2.5, inner=inner, averaging=True),
        lambda *a: _flstd_sa(*a, averaging=True),
    ),
    "ctd": Method(lambda inner: S.CTD(step=STEP, inner=inner), lambda *a: _ctd(*a, averaging=True)),
    "ctd-last": Method(
        lambda inner: S.CTD(step=STEP, inner=inner, averaging=False), lambda *a: _ctd(*a, averaging=False)
    ),
}


def run(solver: Solver, problem: vf.Problem, start: tuple, draws: list[np.ndarray]) -> list[tuple]:
    """The solver's iterates at the end of each epoch."""
    state, _ = solver.init(problem, *start)
    preset, ends = Preset(draws, problem.n), []
    for _ in draws:
        state, _ = solver.epoch(problem, state, preset)
        ends.append((state.theta, state.w))
    return ends


def schedules(n: int) -> list[list[int]]:
    """Epoch lengths: two epochs of various lengths, epochs of single updates, and many epochs."""
    return [[j, j] for j in (1, 2, 3, 5, n, 2 * n, 5 * n)] + [[1] * 8, [n] * 6]


def draws_for(n: int, lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, n, length) for length in lengths]


def label(value: object) -> str | None:
    return value.label if isinstance(value, Case) else None


def pairs(taken: bool) -> list[tuple[str, Case]]:
    """The combinations that each method accepts, or those that it refuses."""
    return [
        (name, case)
        for name, method in METHODS.items()
        for case in CASES
        if bool(case.traits & method.make(None).refusals.keys()) != taken
    ]


def cases_of(cls: type[Solver]) -> list[Case]:
    return [case for case in CASES if not case.traits & cls.refusals.keys()]
