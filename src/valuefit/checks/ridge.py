"""What the ridge does to the policy value that is reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from valuefit.checks.check import CERTAIN, DETERMINING, Check, Outcome, warn_if
from valuefit.inference.adjoints import Equations
from valuefit.inference.error_estimate import MATERIAL_SIZE, ErrorEstimate
from valuefit.inference.fit import Fit
from valuefit.inference.policy_value import ROUNDING, PolicyValue
from valuefit.typing import Array

REMEDY = "Evaluate with `ridge=0`."


def ridge(fit: Fit) -> Check | None:
    """The change of the policy value without the ridge, and of its standard error; None where there is no ridge.

    In shards the change of the value alone is known: the standard error takes another pass over the log.
    """
    if not fit.problem.ridge:
        return None
    if fit.sums is not None:
        errors = fit.sums.errors
        assert errors.value is not None
        return ridge_change(fit.problem.ridge, errors.equations.without_ridge(), fit.value, errors.value.c)
    without = fit.without_ridge.equations.at(fit.result.theta)
    check = ridge_change(fit.problem.ridge, without, fit.value, fit.starts.c)
    if check.outcome != "pass" or not fit.value.standard_error:
        return check
    error = fit.without_ridge.error(fit.starts).standard_error
    if not error or fit.value.standard_error > MATERIAL_SIZE * error:
        return check
    text = (
        f"{check.message} But the ridge hides {1 - fit.value.standard_error / error:.0%} of the uncertainty: without it"
    )
    return replace(check, outcome="warn", message=f"{text} the standard error is {error:.2g}. {REMEDY}")


def ridge_change(ridge: float, without: Equations, value: PolicyValue, c: Array) -> Check:
    """The change of the policy value c'theta without the ridge, against its standard error.

    It is the sum of all corrections of a value with a ridge by the adjoint with the same ridge. The first of them alone
    is too small where values are shrunk most: of a change by 135 standard errors it was 8. without: the equations
    without the ridge, at the weights with it.
    """
    change, name = without.to_minimum(c), "ridge"
    if isinstance(change, ErrorEstimate):
        if change.determined:
            text = f"What the ridge of {ridge:g} does to the policy value is not known, because the equations without "
            return Check(name, "warn", f"{text}it were not solved. {REMEDY}", ridge)
        text = f"Without the ridge of {ridge:g} the data do not determine the policy value: the ridge decides it. "
        return Check(name, "fail", f"{text}{DETERMINING}", ridge)
    text = f"Without the ridge of {ridge:g} the policy value would be {value.estimate + change:.5g}"
    if abs(change) <= ROUNDING * abs(value.estimate):
        return Check(name, "pass", f"{text}, the same.", change, size=0.0)
    text += f" instead of {value.estimate:.5g}"
    if value.standard_error is None:
        return Check(name, "warn", f"{text}, and there is no standard error to compare with. {REMEDY}", change)
    size = abs(change) / value.standard_error if value.standard_error else np.inf
    outcome: Outcome = "pass" if size <= MATERIAL_SIZE else "warn" if size <= CERTAIN else "fail"
    text += f", a change of {size:.2g} standard errors"
    return warn_if(outcome, name, change, f"{text} that the interval does not allow for. {REMEDY}", f"{text}.", size)
