"""Tests of what the estimate assumes: features that can express the value, Markov observations, right ratios."""

from __future__ import annotations

import numpy as np

from valuefit.evaluation.checks.check import TEST_LEVEL, HypothesisTest
from valuefit.evaluation.checks.enrichment import enrichment
from valuefit.evaluation.checks.inputs import TestInputs
from valuefit.evaluation.checks.moments import Sums, cluster_sums

NEXT_FUNCTIONS = 10  # of the next observation; a reward that belongs to the next action depends on it in any of them


def features_test(inputs: TestInputs) -> HypothesisTest | None:
    """Whether TD errors depend on the observation (and the action, for state-action values).

    None where the features span all instruments, as one-hot features of numbered states do.
    """
    fit, sums = inputs.fit, inputs.td_sums.current
    if sums is None:
        return None
    p = sums.p_value(fit.seed)
    depends = "the observation" if fit.values == "state" else "the observation and the action"
    found = f"TD errors depend on {depends} (p = {p:.2g}): the features cannot express the value"
    advice = "Use richer features, or a longer trace."
    size = None
    if p < TEST_LEVEL:
        change = enrichment(fit, inputs.moments, inputs.sample)
        if change is not None and fit.value.standard_error:
            size = abs(change.value) / fit.value.standard_error
            found += (
                f". With {change.functions} random functions of {depends} added to the features, the policy value "
                f"would change by {change.value:.3g} (standard error {change.standard_error:.2g}; that of the policy "
                f"value is {fit.value.standard_error:.2g})"
            )
    passed = f"TD errors do not depend on {depends} beyond chance (p = {p:.2g})."
    return HypothesisTest("features suffice", sums.statistic, p, passed, f"{found}. {advice}", size)


def markov_test(inputs: TestInputs) -> HypothesisTest | None:
    """Whether TD errors depend on the step before or on the step number, beyond the current observation.

    None where every episode has one step.
    """
    fit, sums = inputs.fit, inputs.td_sums.history
    if sums is None or fit.log.begins.all():
        return None
    p = sums.p_value(fit.seed)
    passed = f"Given the observation, TD errors do not depend on earlier steps beyond chance (p = {p:.2g})."
    rejected = (
        f"Given the observation, TD errors depend on the step before or on the step number (p = {p:.2g}): the "
        "observation does not contain all that matters, or rewards belong to other steps. Add what is missing to the "
        "observations (the time left, earlier observations or actions), check that rewards and steps are aligned, or "
        "use a trace of 0.9 or more."
    )
    return HypothesisTest("observations are Markov", sums.statistic, p, passed, rejected)


def alignment_test(inputs: TestInputs) -> HypothesisTest | None:
    """Whether TD errors depend on the action of the next step, given the observation in which it was chosen.

    The ratio of the next action has mean 1 given that observation and all that was known before, so its products with
    TD errors have mean zero whatever the features. None where ratios are unknown, or all are 1.
    """
    fit, steps = inputs.fit, inputs.steps
    if fit.ratios is None or (fit.ratios == 1).all():
        return None
    last = np.append(fit.log.begins[1:], True)[steps]
    after = steps + ~last
    deviation = np.where(last, 0.0, fit.ratios[after] - 1)
    z = np.ones((len(steps), NEXT_FUNCTIONS))
    z[:, 1:] = inputs.instruments.current(fit.log.now[after])[:, 1:NEXT_FUNCTIONS]
    sums = inputs.moments.sums(steps, deviation[:, None] * z) if deviation.any() else None
    if sums is None:
        return None
    p = sums.p_value(fit.seed)
    passed = f"TD errors do not depend on the action of the next step beyond chance (p = {p:.2g})."
    rejected = (
        f"TD errors depend on the action of the next step (p = {p:.2g}), which is chosen after the reward: rewards "
        "were logged with the step before their own, actions were chosen by what the observations do not contain, or "
        "their probabilities are wrong. Check that rewards and steps are aligned, add to the observations what the "
        "behaviour policy knew, and check behaviour_prob."
    )
    return HypothesisTest("rewards precede actions", sums.statistic, p, passed, rejected)


def ratios_test(inputs: TestInputs) -> HypothesisTest | None:
    """Whether the mean of the ratios is 1 given the observation; None where all are 1."""
    fit, steps = inputs.fit, inputs.steps
    ratio, sandwich = fit.problem.ratio, fit.errors.sandwich
    if (ratio == 1).all():
        return None
    parts = cluster_sums(inputs.current, sandwich.cluster[steps], sandwich.clusters, ratio[steps] - 1)
    if not parts.any():
        return None
    sums = Sums(parts.sum(axis=0), parts)
    p = sums.p_value(fit.seed)
    mean = f"mean over the log {ratio.mean():.3g}, p = {p:.2g}"
    passed = f"Given the observation, the ratios have mean 1 up to chance ({mean}), as with right probabilities."
    rejected = (
        f"Given the observation, the ratios do not have mean 1 ({mean}), so some probabilities are wrong. Check that "
        "behaviour_prob is the probability (not its logarithm) of the logged action under the policy that generated "
        "the log, and that actions are numbered as in the policy; or use state-action values, which need no ratios."
    )
    return HypothesisTest("ratios are right", sums.statistic, p, passed, rejected)
