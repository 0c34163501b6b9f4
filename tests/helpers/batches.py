"""Comparison of the mini-batch kernels of SVRG and SAGA with their naive twins."""

from __future__ import annotations

import inspect

import numpy as np

import naive
from helpers.problems import problem_of
from helpers.twins import Case, apart, start_of
from valuefit.precondition.stochastic_preconditioner import sketched_preconditioner
from valuefit.rows.draws import at
from valuefit.solvers import saga, svrg
from valuefit.solvers.solver import StepSizes

CASES = {
    "on-policy": Case(),
    "ratios": Case(ratio=True),
    "traces": Case(trace=0.7),
    "ridge": Case(ridge=0.1),
    "identity": Case(identity=True),
    "dual features": Case(more=True),
    "float32": Case("float32"),
    "all but identity": Case("float32", ratio=True, trace=0.7, ridge=0.1, more=True),
    "all": Case(ratio=True, trace=0.7, ridge=0.1, more=True, identity=True),
}


STEPS = 0.02, 0.05


class Setting:
    """A problem with its naive log, row draws with repeats, sampling weights and preconditioners."""

    def __init__(self, case: Case, *, plain: bool = False, count: int | None = None) -> None:
        self.log = case.log()
        self.problem = problem_of(self.log, case.storage)
        self.start = start_of(self.log)
        n = self.problem.n
        # 2 n + 2 is no multiple of 3, so the last batch of three rows is shorter
        self.draws = np.random.default_rng(5).integers(0, n, 2 * n + 2)
        self.draws[1] = self.draws[0]  # the same row twice in one batch
        chosen = sketched_preconditioner(self.problem, count or n)
        self.weight = np.ones(n) if plain else chosen.weight
        self.theta = np.eye(self.problem.d) if plain else chosen.theta
        self.w = np.eye(self.problem.k) if plain else chosen.w

    def twin(self, name: str, batch: int) -> list[tuple[np.ndarray, ...]]:
        """The iterates of the naive twin after each batch."""
        naive_batches = {"svrg": naive.svrg_batches, "saga": naive.saga_batches}[name]
        return naive_batches(
            self.log, *self.start, [self.draws], batch, self.weight, self.theta, self.w, *STEPS
        )  # fmt: skip

    def rows(self, draws: np.ndarray) -> tuple:
        """The arguments of the kernels that hold rows and per-step data."""
        p = self.problem
        return p.row_sets, p.steps(draws)

    def fast(self, name: str, count: int, batch: int | None, kernel: object = None) -> tuple[np.ndarray, ...]:
        """The iterates of the kernel after `count` draws; batch None: the unweighted kernel for single rows."""
        return (self._svrg if name == "svrg" else self._saga)(self.draws[:count], batch, kernel)

    def _svrg(self, draws: np.ndarray, batch: int | None, kernel: object) -> tuple[np.ndarray, ...]:
        p, (theta, w) = self.problem, self.start
        d_theta, d_w = np.zeros(p.d), np.zeros(p.k)
        rows, gradient, step = self.rows(draws), p.B(theta, w), StepSizes.of(p, STEPS)
        if batch is None:
            svrg.single_rows(*rows, gradient, (d_theta, d_w), step)
        else:
            (kernel or svrg.batches)(
                *rows, self.weight[draws], gradient, (self.theta, self.w), (d_theta, d_w), batch, step
            )  # fmt: skip
        return theta + d_theta, w + d_w

    def _saga(self, draws: np.ndarray, batch: int | None, kernel: object) -> tuple[np.ndarray, ...]:
        p = self.problem
        state, _ = saga.SAGA(step_theta=STEPS[0], step_w=STEPS[1]).init(p, *self.start)
        (table, mean), _ = state.memory
        theta, w = state.theta.copy(), state.w.copy()
        mean_theta, mean_w = np.zeros(p.d), np.zeros(p.k)
        rows, steps = self.rows(draws)
        step = StepSizes.of(p, STEPS)
        if batch is None:
            saga.single_rows(rows, draws, steps, table, mean, (theta, w), step)
            return theta, w, *mean
        else:
            (kernel or saga.batches)(
                rows, draws, steps, self.weight[draws], table, mean, (self.theta, self.w),
                (theta, w), (mean_theta, mean_w), batch, step,
            )  # fmt: skip
        return theta, w, *mean, mean_theta, mean_w

    def apart(self, name: str, batch: int, kernel: object = None) -> float:
        """The largest difference between kernel and twin after any batch."""
        ends = [min(len(self.draws), start + batch) for start in range(0, len(self.draws), batch)]
        expected = self.twin(name, batch)
        found = [self.fast(name, end, batch, kernel) for end in ends]
        assert apart(expected[-1][:1], self.start[:1]) > 1e-3, "the twin did not move, so the comparison is empty"
        return max(apart(one, other) for one, other in zip(found, expected, strict=True))


def axpy(rows: np.ndarray, i: int, a: float, x: np.ndarray) -> None:
    x += a * rows[i]


def axpyv(rows: np.ndarray, i: int, j: int, discount: float, a: float, x: np.ndarray) -> None:
    x += a * (rows[i] - discount * rows[j])


def axpy2(rows: np.ndarray, i: int, a: float, x: np.ndarray, b: float, y: np.ndarray) -> None:
    axpy(rows, i, a, x)
    axpy(rows, i, b, y)


def axpy2v(rows: np.ndarray, i: int, j: int, discount: float, a: float, x: np.ndarray, b: float, y: np.ndarray) -> None:
    axpyv(rows, i, j, discount, a, x)
    axpyv(rows, i, j, discount, b, y)


def kernel_with(name: str, right: str = "", wrong: str = "") -> object:
    """The kernel in plain Python, without compilation, with the text `right` of its source replaced by `wrong`."""
    source = inspect.getsource({"svrg": svrg.batches, "saga": saga.batches}[name].py_func)
    source = source.replace("@compiled\n", "")
    assert right in source
    namespace = PYTHON_FUNCTIONS | {"axpy": axpy, "axpyv": axpyv, "axpy2": axpy2, "axpy2v": axpy2v}
    exec(source.replace(right, wrong) if right else source, namespace)
    return namespace["batches"]


PYTHON_FUNCTIONS = {
    "np": np,
    "prefetch_row": lambda rows, i: None,
    "at": at.py_func,
    "times": lambda P, x: P @ x,
    "dot": lambda rows, i, x: rows[i] @ x,
    "dotv": lambda rows, i, j, discount, x: (rows[i] - discount * rows[j]) @ x,
}
