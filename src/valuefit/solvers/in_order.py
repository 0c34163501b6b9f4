"""The log as kernels read it that go through it once, in its order: iLSTD and recursive LSTD."""

from __future__ import annotations

from typing import Any, NamedTuple

from valuefit.problem.problem import Problem
from valuefit.rows.kernels import axpy, axpyv, compiled
from valuefit.typing import Array


class LogInOrder(NamedTuple):
    """The rows of phi and psi, and the data of every step, as arguments of kernels."""

    phi: Any
    psi: Any
    now: Array
    next: Array
    discount: Array
    ratio: Array
    begins: Array
    trace: float

    @classmethod
    def of(cls, problem: Problem) -> LogInOrder:
        return cls(
            problem.phi.kernel, problem.psi.kernel, problem.now, problem.next, problem.discount, problem.ratio,
            problem.begins, problem.trace,
        )  # fmt: skip


@compiled
def read_step(log, t, u, v):
    """u_t, given that of the step before it, and v_t, in place."""
    u *= 0.0 if log.begins[t] else log.ratio[t] * log.trace * log.discount[t - 1]
    axpy(log.psi, log.now[t], log.ratio[t], u)
    v[:] = 0.0
    axpyv(log.phi, log.now[t], log.next[t], log.discount[t], 1.0, v)
