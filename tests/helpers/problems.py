"""Problems and logs for tests: the oracles, random problems, and problems with a known difficulty."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sparse
from hypothesis import strategies as st

import naive
import valuefit as vf
from valuefit import solvers
from valuefit.datasets.mdp import random_mdp
from valuefit.features import Tiles
from valuefit.solvers.solver import Solver, Steps

ROOT = Path(__file__).resolve().parents[2]
STORAGES = {
    "dense": np.asarray,
    "csr": sparse.csr_array,
    "float32": lambda rows: np.asarray(rows, np.float32),
}


def problem_of(log: naive.Log, storage: str = "dense") -> vf.Problem:
    """The `Problem` of a naive log."""
    convert = STORAGES[storage]
    own_dual = log.Psi is not log.Phi and not (log.Psi.shape == log.Phi.shape and np.array_equal(log.Psi, log.Phi))
    return vf.Problem.from_rows(
        convert(log.Phi),
        log.now,
        log.next,
        log.reward,
        log.discount,
        log.ratio,
        log.episode,
        trace=log.trace,
        ridge=log.ridge,
        dual_rows=convert(log.Psi) if own_dual else None,
        metric="identity" if log.identity else "C",
    )


def raw(name: str, problem: vf.Problem) -> Solver:
    """pdbg, svrg or saga as in the paper: fixed step sizes and no preconditioner."""
    solver = solvers.find(name)
    assert isinstance(solver, Steps)
    step_theta, step_w = solver.auto_steps(problem)
    return replace(solver, step_theta=step_theta, step_w=step_w)


class Oracle:
    """One of the 16 small problems whose solutions were computed by plain loops."""

    def __init__(self, number: int) -> None:
        with np.load(ROOT / "tests" / "fixtures" / "oracles.npz") as stored:
            for name in stored.files:
                if name.startswith(f"{number}/"):
                    setattr(self, name.split("/")[1], stored[name])

    def log(self) -> naive.Log:
        return naive.Log(
            self.rows, self.rows, self.now, self.next, self.reward, self.discount, self.ratio, self.episode,
            float(self.trace), float(self.ridge), False,
        )  # fmt: skip

    def problem(self, storage: str = "dense") -> vf.Problem:
        return problem_of(self.log(), storage)


def cosines(n, d, *, discount=0.9, seed=0, spread=1.0, ratio=False, **settings):
    """Random Fourier features of an AR(1) process: distinct rows; a smaller `spread` gives worse conditioning."""
    rng = np.random.default_rng(seed)
    x, noise = np.zeros((n + 1, 4)), rng.standard_normal((n + 1, 4))
    for t in range(n):
        x[t + 1] = 0.9 * x[t] + 0.4 * noise[t + 1]
    rows = np.cos(x @ rng.standard_normal((4, d - 1)) * spread + rng.uniform(0, 2 * np.pi, d - 1))
    rows = np.column_stack([rows, np.ones(n + 1)])
    reward = x[:-1, 0] + rng.standard_normal(n)
    ratios = rng.lognormal(0, 0.4, n) if ratio else None
    return vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), reward, discount, ratios, **settings)


def collinear(n=60, d=5, **settings):
    """A problem with two equal features and one that is always zero."""
    log = naive.random_log(np.random.default_rng(3), n=n, d=d, **settings)
    rows = log.Phi.copy()
    rows[:, 2] = rows[:, 1]
    rows[:, 4] = 0.0
    return problem_of(log._replace(Phi=rows, Psi=rows))


def small(seed, **settings):
    return problem_of(naive.random_log(np.random.default_rng(seed), n=40, d=4, **settings))


def chain(rows, reward, **settings):
    n = rows.shape[0] - 1
    return vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), reward, 0.9, **settings)


def slow_process(rng, n, d):
    x = np.zeros((n + 1, d))
    for t in range(n):
        x[t + 1] = 0.8 * x[t] + 0.6 * rng.standard_normal(d)
    return x


def hard(kind):
    """Problems on which a small residual does not imply a small gap, so that a naive stopping test stops too early."""
    rng = np.random.default_rng(0)
    if kind == "five features a thousand times smaller":
        x = slow_process(rng, 2000, 40)
        return chain(x * np.where(np.arange(40) < 5, 1e-3, 1), (x @ rng.standard_normal(40))[:-1])
    if kind == "nearly equal pairs":
        x, y = slow_process(rng, 3000, 20), slow_process(rng, 3000, 20)
        return chain(np.column_stack([x, x + 1e-4 * y]), (y @ rng.standard_normal(20))[:-1])
    if kind == "nearly equal sparse pairs":
        one, other = (sparse.random_array((3001, 300), density=0.02, rng=seed, format="csr") for seed in (1, 2))
        return chain(sparse.hstack([one, one + 1e-2 * other]).tocsr(), rng.standard_normal(3000))
    x = slow_process(rng, 1500, 30)
    return chain(x, (x @ rng.standard_normal(30))[:-1], ridge=1e3)  # F(0) - F* is a small fraction of F(0)


def walk(rows: np.ndarray, reward: np.ndarray, discount: float = 0.9, **settings: object) -> vf.Problem:
    n = len(rows) - 1
    return vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), reward, discount, **settings)


def bumps(x: np.ndarray, width: float) -> np.ndarray:
    return np.exp(-((x[:, :1] - np.linspace(-1.5, 1.5, 12)) ** 2) / (2 * width**2))


def make(kind: str) -> vf.Problem:
    """The problem of a kind in `KINDS`."""
    rng = np.random.default_rng(7)
    n, d = 600, 10
    x = slow_process(rng, n, d)
    reward = x[:-1, 0] + 0.5 * rng.normal(size=n)
    ones = np.ones((n + 1, 1))
    if kind == "random MDP":
        mdp = random_mdp(50, 4, 12, seed=3)
        return vf.Problem(mdp.log(1000, seed=1), mdp.rows, discount=0.95)
    if kind == "badly scaled columns":
        return walk(x * 10.0 ** np.linspace(-3, 3, d), reward)
    if kind == "nearly collinear bumps":
        return walk(np.hstack([bumps(x, 0.5), ones]), reward)
    if kind == "Student-t rows":
        return walk(rng.standard_t(2, size=(n + 1, d)), reward)
    if kind == "lognormal ratios":
        return walk(np.hstack([x, ones]), reward, ratio=rng.lognormal(-0.5, 1, n))
    if kind == "trace 0.8":
        return walk(np.hstack([x, ones]), reward, trace=0.8)
    if kind == "discount 0.99":
        return walk(np.hstack([x, ones]), reward, 0.99)
    if kind == "ridge":
        return walk(np.hstack([bumps(x, 0.5), ones]), reward, ridge=0.01)
    if kind == "identity metric":
        return walk(np.hstack([x, ones]), reward, metric="identity")
    if kind == "dual features":
        return walk(np.hstack([x, ones]), reward, dual_rows=np.hstack([x, ones, x[:, :3] ** 2]))
    return walk(np.hstack([x, ones]).astype(np.float32), reward)


KINDS = ["random MDP", "badly scaled columns", "nearly collinear bumps", "Student-t rows", "lognormal ratios",
         "trace 0.8", "discount 0.99", "ridge", "identity metric", "dual features", "float32"]  # fmt: skip


def sparse_of(problem: vf.Problem) -> vf.Problem:
    """The same problem with its rows in CSR."""
    return vf.Problem.from_rows(
        sparse.csr_array(problem.phi.matrix), problem.now, np.where(problem.discount == 0, -1, problem.next),
        problem.reward, problem.discount, problem.ratio, np.cumsum(problem.begins), trace=problem.trace,
        ridge=problem.ridge, dual_rows=None if problem.psi is problem.phi else sparse.csr_array(problem.psi.matrix),
        metric="identity" if problem.identity else "C",
    )  # fmt: skip


def tiled(**given: object) -> vf.Problem:
    """Tile coding of an AR(1) process: rarely and never visited columns, and a constant only in the span."""
    rng = np.random.default_rng(1)
    n = 800
    x = np.zeros((n + 1, 2))
    for t in range(n):
        x[t + 1] = 0.9 * x[t] + 0.4 * rng.standard_normal(2)
    rows = Tiles(4, 5, low=-3.0, high=3.0).fit_transform(x)
    reward = np.sin(2 * x[:-1, 0]) + 0.3 * rng.standard_normal(n)
    return vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), reward, 0.9, **given)


def wide_log(n=400, episodes=20, seed=0, **columns):
    """A log with random two-dimensional observations."""
    rng = np.random.default_rng(seed)
    each = n // episodes
    given = {"reward": rng.normal(size=n), "terminated": np.arange(n) % each == each - 1} | columns
    return vf.Transitions.from_arrays(rng.normal(size=(n, 2)), **given)


VALUES = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.0, 0.25, 1.0, 3.0])  # exact in float32; zeros and ties are frequent


def matrix(draw, rows, columns):
    flat = draw(st.lists(VALUES, min_size=rows * columns, max_size=rows * columns))
    return np.array(flat).reshape(rows, columns)


@st.composite
def logs(draw, dual=True):
    """Logs of 1 to 30 steps: short episodes, shared or distinct rows, ratios of 0, columns without data."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    ends = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    states = draw(st.none() | st.integers(1, 5))
    m = sum(lengths) + len(lengths) if states is None else states
    now, after, episode = [], [], []
    for number, (length, terminated) in enumerate(zip(lengths, ends, strict=True)):
        if states is None:
            first = sum(lengths[:number]) + number
            path = list(range(first, first + length + 1))
        else:
            path = draw(st.lists(st.integers(0, states - 1), min_size=length + 1, max_size=length + 1))
        now += path[:-1]
        after += [*path[1:-1], -1 if terminated else path[-1]]
        episode += [number] * length
    n = len(now)
    now, after = np.array(now), np.array(after)

    d = draw(st.integers(1, 6))
    Phi = matrix(draw, m, d)
    dead = np.array(draw(st.lists(st.sampled_from([False, False, True]), min_size=d, max_size=d)))
    Phi[np.ix_(np.unique(now), dead)] = 0.0
    extra = draw(st.sampled_from([0, 0, 1, 2])) if dual else 0
    Psi = np.hstack([Phi, matrix(draw, m, extra)]) if extra else Phi

    discount = np.where(after < 0, 0.0, draw(st.sampled_from([0.0, 0.5, 0.9, 0.99] + [1.0] * any(ends))))
    off_policy = draw(st.booleans())
    ratio = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=n, max_size=n)) if off_policy else np.ones(n)
    return naive.Log(
        Phi=Phi,
        Psi=Psi,
        now=now,
        next=after,
        reward=np.array(draw(st.lists(VALUES, min_size=n, max_size=n))),
        discount=discount,
        ratio=np.array(ratio),
        episode=np.array(episode),
        trace=draw(st.sampled_from([0.0, 0.0, 0.3, 0.9, 1.0])),
        ridge=draw(st.sampled_from([0.0, 0.0, 1e-3, 1.0])),
        identity=draw(st.booleans()),
    )


def without_dead(log):
    """The log as `Problem` treats it: a feature that is zero in all `now` rows is set to zero everywhere."""
    Phi = log.Phi * (log.Phi[log.now] != 0).any(axis=0)
    return log._replace(Phi=Phi, Psi=Phi if log.Psi is log.Phi else log.Psi)


PROBLEM = problem_of(naive.random_log(np.random.default_rng(0), n=60, d=4))
