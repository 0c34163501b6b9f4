"""The test of the value with a penalty, corrected, against the value without one, paired by episode."""

from __future__ import annotations

import numpy as np
from scipy.special import stdtr

from valuefit.evaluation.checks.check import HypothesisTest
from valuefit.evaluation.checks.inputs import TestInputs
from valuefit.evaluation.errors import ErrorEstimate


def penalty_test(inputs: TestInputs) -> HypothesisTest | None:
    """Whether the penalty changes the value by more than chance; None without a penalty.

    The value without it has no such bias, but a larger error, of which the difference contains the additional part.
    """
    fit, without = inputs.fit, inputs.moments.sandwich
    if not fit.penalty or not fit.value.standard_error:
        return None
    own = fit.errors.sandwich
    influences = [sandwich.influences([fit.starts])[0] for sandwich in (own, without)]
    if isinstance(influences[0], ErrorEstimate) or isinstance(influences[1], ErrorEstimate):
        return None
    difference = float(fit.starts.c @ (without.theta - own.theta))
    error = float(np.linalg.norm(without.contributions(influences[1]) - own.contributions(influences[0])))
    if not error:
        return None
    t, size = difference / error, difference / fit.value.standard_error
    p = 2 * float(stdtr(fit.error.degrees_of_freedom, -abs(t)))
    text = (
        f"Without the penalty the policy value changes by {difference:.3g} ({size:.2g} standard errors), where "
        f"{error:.2g} is the standard error of the change (p = {p:.2g})"
    )
    rejected = f"{text}: the penalty biases the value. Use a smaller penalty."
    return HypothesisTest("penalty", t, p, f"{text}.", rejected, abs(size))
