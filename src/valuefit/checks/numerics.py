"""Whether the numbers are accurate: the solver, the errors of the value, and the equations themselves."""

from __future__ import annotations

import numpy as np

from valuefit.checks.check import CERTAIN, Check, warn_if
from valuefit.engine.result import Result
from valuefit.inference.error_estimate import ErrorEstimate
from valuefit.inference.fit import Fit
from valuefit.inference.policy_value import MAX_LISTED_WEIGHTS, PolicyValue
from valuefit.problem.saddle_point import C_CUTOFF
from valuefit.tolerances import ROUNDING
from valuefit.typing import Array

# names of checks
SOLVER, STABLE_FIXED_POINT, SMALL_SAMPLE_BIAS = "solver", "fixed point is stable", "small-sample bias"
MIN_STEPS_PER_WEIGHT = 10  # with fewer, weights fit the errors of their steps


def solver(result: Result) -> Check:
    """Whether the solver converged."""
    if result.status == "converged":
        return Check(SOLVER, "pass", f"{result.solver} converged.", result.passes)
    text = f"The solver did not converge ({result.status}). {result.message}"
    return Check(SOLVER, "fail" if result.status == "diverged" else "warn", text, result.passes)


def standard_error(fit: Fit) -> Check | None:
    """Whether there is a standard error, and it is not 0."""
    error, name = fit.error, "standard error"
    if not error.determined:
        return None
    size = error.standard_error
    if size is None:
        return Check(name, "warn", f"There is no standard error. {error.reason}")
    if not without_randomness(fit):
        return Check(name, "pass", f"The standard error is {size:.5g}.", size)
    n, d, without_data = fit.problem.n, fit.problem.d, len(fit.problem.dead)
    text = "The standard error is 0 because all TD errors are 0"
    return warn_if(
        n < MIN_STEPS_PER_WEIGHT * d or without_data > 0, name, size,
        f"{text}: {d} features ({without_data} without data) fit {n} steps exactly, which says nothing about others. "
        "Use fewer features, or a longer log.",
        f"{text}: the values satisfy every step of the log.",
    )  # fmt: skip


def without_randomness(fit: Fit) -> bool:
    """Whether the standard error is 0 up to rounding."""
    size = fit.error.standard_error
    return size is not None and size <= ROUNDING * float(np.abs(fit.log.reward).max())


def optimisation_error(fit: Fit) -> Check | None:
    """The solver error of the policy value against its standard error."""
    error, name = fit.error, "optimisation error"
    if error.solver_error is None or not error.standard_error or without_randomness(fit):
        return None
    change, size = error.solver_error, error.solver_error / error.standard_error
    return warn_if(
        error.relative_solver_error > 1, name, change,
        f"The solver stopped early: at full convergence the policy value would change by {change:.2g}, {size:.2g} "
        "standard errors. The interval is wider by this amount on both sides. Give more `max_passes`, a smaller tol, "
        "or another solver.",
        f"At full convergence the policy value would change by {size:.1g} standard errors.",
        size,
    )  # fmt: skip


def skewness(value: PolicyValue, error: ErrorEstimate) -> Check | None:
    """Whether few episodes with large errors, as those of rare rewards, decide about the value."""
    if not value.is_random:
        return None
    size, text = abs(error.skewness), f"The skewness of the estimate is {error.skewness:.2g}"
    events = max(1, round(1 / max(size, ROUNDING) ** 2))
    return warn_if(
        size > 0.35, "skewness", error.skewness,  # that of 8 rare events, with which a 95% interval covers about 90%
        f"{text}, as if it rested on {events} rare events: the interval is too short. If it misses, the true value is "
        f"more likely {'above' if error.skewness > 0 else 'below'} it. Add episodes.",
        f"{text}.",
    )  # fmt: skip


def small_sample_bias(result: Result, value: PolicyValue, error: ErrorEstimate) -> Check | None:
    """The bias of the estimate in a log of this size, by the jackknife, against its standard error.

    Ratios weight the equations of a weight by their own mean, so with few steps for each the value leans to that of the
    logged policy. Where most weights have one step, the jackknife does not see it.
    """
    if not value.is_random or value.method == "cr1":
        return None
    assert error.standard_error is not None
    size = abs(error.bias) / error.standard_error
    text = f"Logs of this size bias the policy value by about {error.bias:.3g}, {size:.2g} standard errors"
    if value.bias:
        text += f"; without it the value would be about {value.estimate - value.bias:.5g}. The interval allows for both"
    live, steps = len(result.theta) - len(result.dead), value.effective_sample_size
    few = steps is not None and steps < 3 * live
    larger = f", but it can be larger: the ratios make the log worth {steps or 0:.0f} steps for {live} features"
    bad = few or size > CERTAIN  # a smaller bias is itself estimated roughly
    return warn_if(
        bad, SMALL_SAMPLE_BIAS, error.bias, f"{text}{larger if few else ''}. Use a longer log.", f"{text}.", size
    )


def conditioning(fit: Fit) -> Check | None:
    """Features without data and dependent features: the rank and the condition number of C."""
    problem, name, dead = fit.problem, "conditioning", len(fit.problem.dead)
    if 2 * dead > problem.d:
        text = (
            f"{dead} of {problem.d} features have no data and weight 0: values are extrapolated where these features "
            "are active. Use fewer features, or take their ranges from the data."
        )
        return Check(name, "warn", text, dead / problem.d)
    if problem.identity or fit.errors.equations.iterative:
        return None
    rank, condition = fit.rank_and_condition
    text = f"C has rank {rank} of {problem.k} features, and its condition number is about {condition:.1g}"
    dependent = problem.k - dead - rank
    listed = problem.psi is problem.phi and not problem.ridge and problem.d <= MAX_LISTED_WEIGHTS
    return warn_if(
        listed and dependent > 0, name, condition,
        f"{text}: {dependent} of the features are linear combinations of others, so single weights are not unique. "
        "Leave out features that depend on others.",
        f"{text}.",
    )  # fmt: skip


def _magnification(fit: Fit, x: Array) -> float:
    """|C^1/2 A'^-1 C x|^2 / |C^1/2 x|^2, reading the rows twice."""
    problem, factor = fit.problem, fit.errors.equations.solver.factor_of_A
    assert factor is not None  # the saddle matrix contains C
    image = problem.C_dot(x)
    y = factor.solve_transposed(image)
    return problem.mean_squares(None, y)[1] / float(x @ image)


def stability(fit: Fit) -> Check | None:
    """The smallest singular value of C^-1/2 A C^-1/2, which on-policy is at least 1 - discount.

    Its reciprocal is how much the equations magnify what the features cannot express; off-policy it has no bound
    (Kolter 2011). It is the power iteration for the largest eigenvalue of (A'C^-1A + ridge I)^-1 C. Where C is
    estimated, only the vector of this eigenvalue is, so the result is a little too large.
    """
    problem, equations = fit.problem, fit.errors.equations
    if fit.discount == 1 or problem.identity or problem.k != problem.d or equations.iterative:
        return None

    def inverse(x: Array) -> Array:
        """(A'C^-1A + ridge I)^-1 x."""
        factor = equations.solver.factor_of_A
        if factor is None:
            return equations.solver.respond(x, np.zeros(x.shape))
        return factor.solve(C @ factor.solve_transposed(x))

    C, before = fit.estimated_C, 0.0
    block = np.random.default_rng(0).standard_normal((problem.d, min(8, problem.d)))
    for _ in range(20):
        block, growth = np.linalg.qr(inverse(C @ block))
        size = float(np.linalg.norm(growth, 2))
        if abs(size - before) <= 1e-3 * size:
            break
        before = size
    C_block = C @ block
    scale, vectors = np.linalg.eigh(block.T @ C_block)
    kept = scale > C_CUTOFF * scale[-1]
    if not kept.any():  # all features are zero
        return None
    root = vectors[:, kept] / np.sqrt(scale[kept])
    inner = root.T @ (C_block.T @ inverse(C_block)) @ root
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    largest = float(values[-1])
    if largest <= 0:  # no determined direction has data
        return None
    if C is not vars(problem).get("C"):
        largest = _magnification(fit, block @ (root @ vectors[:, -1]))
    smallest = float(1 / np.sqrt(largest))
    text = f"The smallest singular value of the equations is {smallest:.2g}; on-policy it is {1 - fit.discount:.2g} or"
    return warn_if(
        smallest < 0.1 * (1 - fit.discount), STABLE_FIXED_POINT, smallest,
        f"{text} more. The equations magnify what the features cannot express, so the value can be arbitrarily wrong. "
        "Use other features, or a log whose policy is closer to the target policy.",
        f"{text} more.",
    )  # fmt: skip
