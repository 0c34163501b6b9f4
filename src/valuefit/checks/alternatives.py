"""Other traces, which should give the same value, solved again on request."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from valuefit.checks.check import HypothesisTest
from valuefit.engine.loop import solve
from valuefit.inference.adjoints import Equations
from valuefit.inference.errors import Errors
from valuefit.inference.fit import Fit
from valuefit.problem.arguments import MAX_RATIO
from valuefit.problem.problem import Problem

DEPENDENT = ("traits", "cost", "A", "b", "u", "u_squared", "u_squared_bound")  # cached, on the trace


class Change(NamedTuple):
    """The policy value with another setting minus that of the evaluation, and its paired standard error."""

    difference: float
    standard_error: float | None


def trace_tests(fit: Fit) -> list[HypothesisTest]:
    """Tests whether other traces give the same value without a ridge, as they do if the features can express it.

    Traces whose products of ratios leave the range of float64 are left out.
    """
    without = fit.without_ridge
    if not fit.value.standard_error or (fit.problem.ridge and without.equations.iterative):
        return []
    found = []
    for trace in (0.0, 0.5, 0.9):
        problem = with_trace(without.equations.problem, trace)
        with np.errstate(over="ignore", invalid="ignore"):
            inside = bool((problem.forward(np.ones(problem.n)) <= MAX_RATIO).all())
        if trace == fit.problem.trace or not inside:
            continue
        change = change_of(fit, problem)
        if not change.standard_error:
            continue
        t = change.difference / change.standard_error
        size = change.difference / fit.value.standard_error
        text = f"With trace {trace:g} the policy value changes by {change.difference:.3g} ({size:.2g} standard errors)"
        found.append(
            HypothesisTest(
                f"trace {trace:g}", t, 2 * float(stdtr(fit.error.degrees_of_freedom, -abs(t))), f"{text}.",
                f"{text}, more than its sampling error: the features cannot express the value, or the observations do "
                "not contain all that matters. Use richer features, or add earlier observations to them.",
                abs(size),
            )
        )  # fmt: skip
    return found


def with_trace(problem: Problem, trace: float) -> Problem:
    """The problem over the same rows with another trace; what does not depend on it is shared."""
    other = copy.copy(problem)
    for name in DEPENDENT:
        other.__dict__.pop(name, None)
    other.trace = trace
    return other


def change_of(fit: Fit, problem: Problem) -> Change:
    """Solve another problem over the same log and features, and compare its policy value, paired by cluster."""
    theta, own = solve(problem, "auto", tol=1e-10, seed=fit.seed).theta, fit.without_ridge
    difference = float(fit.starts.c @ (theta - own.equations.theta))
    other = Errors.in_memory(Equations.of(problem, theta), own.whole.shard.of_problem(problem), own.kind)
    (mine,), (others,) = own.parts([fit.starts]), other.parts([fit.starts])
    return Change(difference, None if mine is None or others is None else float(np.linalg.norm(others - mine)))
