"""The hypothesis tests of an evaluation: sizes of 5% before the correction for their number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from valuefit.checks.check import FEW_TESTED, HypothesisTest
from valuefit.checks.inputs import TestInputs
from valuefit.checks.instruments import Instruments, sampled_steps
from valuefit.checks.moments import TDMoments
from valuefit.checks.numerics import without_randomness
from valuefit.checks.returns import returns_test
from valuefit.checks.specification import alignment_test, features_test, markov_test, ratios_test
from valuefit.checks.stability import stability_test
from valuefit.inference.fit import Fit


def hypothesis_tests(fit: Fit) -> list[HypothesisTest]:
    """The tests that this log allows.

    None with fewer than 10 effective episodes or blocks, without randomness, or where the fit of theta cannot be
    accounted for. With a ridge the fit without one is tested, and messages say so. Where moments are too expensive to
    form (`Equations.iterative`) only the tests of returns and ratios remain, with the weights as reported.
    """
    error = fit.error
    few = error.effective_clusters < FEW_TESTED
    if error.standard_error is None or few or without_randomness(fit):
        return []
    instruments = Instruments(fit.log, actions=fit.values == "state-action", seed=fit.seed, dtype=np.float32)
    inputs = TestInputs(fit, TDMoments(fit), instruments, sampled_steps(fit.problem.n, fit.seed))
    tests = [ratios_test]
    if inputs.moments.available:
        tests = [returns_test, ratios_test]
        if not inputs.moments.iterative:
            tests = [returns_test, features_test, markov_test, ratios_test, alignment_test, stability_test]
    judged = [result for test in tests if (result := test(inputs)) is not None]
    if not fit.problem.ridge or inputs.moments.iterative:
        return judged
    note = "(Weights without the ridge were tested.)"
    return [replace(test, passed=f"{test.passed} {note}", rejected=f"{test.rejected} {note}") for test in judged]
