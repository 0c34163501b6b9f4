"""Tests of what the estimate assumes: features that can express the value, Markov observations, right ratios."""

from __future__ import annotations

import numpy as np

from valuefit.checks.alternatives import Change, finer_change, richer_features, too_short_for_more
from valuefit.checks.check import CERTAIN, TEST_LEVEL, HypothesisTest, without_probabilities
from valuefit.checks.enrichment import OBSERVED, enrichment
from valuefit.checks.inputs import TestInputs
from valuefit.checks.moments import Sums, cluster_sums
from valuefit.checks.regression import with_constant
from valuefit.features.kernel import STEPS_PER_LANDMARK
from valuefit.inference.fit import Fit


def features_test(inputs: TestInputs) -> HypothesisTest | None:
    """Whether TD errors depend on the observation (and the action, for state-action values).

    None where the features span all instruments, as one-hot features of numbered states do. Finer functions of the
    observation than these instruments are tested where they explain a dependence on the history.
    """
    fit, sums = inputs.fit, inputs.td_sums.current
    if sums is None:
        return None
    p = sums.p_value(fit.seed)
    if inputs.too_coarse:
        assert inputs.history_p_value is not None
        p = min(p, inputs.history_p_value)
    depends = OBSERVED[fit.values]
    rejected = f"TD errors depend on {depends} (p = {p:.2g}): the features cannot express the value"
    size, error, advice = None, None, _richer(fit)
    change, advised = _change(inputs) if p < TEST_LEVEL else (None, False)
    if change is not None:
        size = _size(fit, change.value)
        error = None if advised else _size(fit, change.standard_error)  # chance is no reason to leave the advice
        if not (advised and too_short_for_more(fit)):
            advice = "Use these." if advised else advice
            rejected += f". {change.text(fit)}"
    passed = f"TD errors do not depend on {depends} beyond chance (p = {p:.2g})."
    return HypothesisTest("features suffice", sums.statistic, p, passed, f"{rejected}. {advice}", size, error)


def markov_test(inputs: TestInputs) -> HypothesisTest | None:
    """Whether TD errors depend on the step before or on the step number, given the observation.

    They also do where the features are too coarse and the history tells at which observations values are wrong. Where
    fine functions of the observation explain the dependence, *features suffice* is rejected instead. None where every
    episode has one step.
    """
    fit, sums, p = inputs.fit, inputs.td_sums.history, inputs.history_p_value
    if sums is None or p is None or fit.log.begins.all():
        return None
    if inputs.too_coarse and inputs.history_sums.past is not None:
        sums = inputs.history_sums.past
        p = sums.p_value(fit.seed)
    passed = f"Given the observation, TD errors do not depend on earlier steps beyond chance (p = {p:.2g})."
    rejected = f"Given the observation, TD errors depend on the step before or on the step number (p = {p:.2g})"
    size = None
    change = enrichment(fit, inputs.moments, inputs.sample, history=True) if p < TEST_LEVEL else None
    if change is not None:  # what is hidden may be worth more than what one step before shows of it
        size = _size(fit, change.value) + CERTAIN * _size(fit, change.standard_error)
        rejected += f". {change.text(fit)}"
    explained = p < TEST_LEVEL and not inputs.hidden
    cause = (
        "Rewards belong to other steps, the features are too coarse, or the observation does not contain all that "
        "matters; this log does not tell which."
        if explained
        else "Finer functions of the observation do not explain it."
    )
    then = f"{_richer(fit)} If that does not help," if explained else "Then"
    rejected += (
        f". {cause} Check first that rewards and steps are aligned: a reward logged one step late or early looks like "
        f"this. {then} add what is missing to the observations (the time left, earlier observations or "
        "actions)."
    )
    return HypothesisTest("observations are Markov", sums.statistic, p, passed, rejected, size)


def _change(inputs: TestInputs) -> tuple[Change | None, bool]:
    """The change of the policy value with richer features, and whether these are features that one can ask for.

    None unless it is as certain as the policy value. Functions of the observation added to the features are cheaper.
    They are as coarse as the features where only the history shows that these are, and nearly functions of many
    features; finer features take their place.
    """
    fit = inputs.fit
    for advised in (True, False) if inputs.too_coarse else (False, True):
        change = finer_change(fit) if advised else enrichment(fit, inputs.moments, inputs.sample)
        if change is not None and _size(fit, change.standard_error) <= 1:
            return change, advised
    return None, False


def _size(fit: Fit, change: float) -> float:
    """In standard errors of the policy value."""
    assert fit.value.standard_error  # else there are no tests
    return abs(change) / fit.value.standard_error


def _richer(fit: Fit) -> str:
    if too_short_for_more(fit):
        return (
            f"The log is too short for features that could express the value: it has fewer than {STEPS_PER_LANDMARK} "
            "effective steps for each weight. Use a log of more episodes."
        )
    return f'Use richer features, such as `features="{richer_features(fit)}"`.'


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
    # a few functions of the next observation: a reward that belongs to the next action depends on it in any of them
    z = with_constant(inputs.instruments.current(fit.log.now[after])[:, 1:10])
    sums = inputs.moments.sums(steps, deviation[:, None] * z) if deviation.any() else None
    if sums is None:
        return None
    p = sums.p_value(fit.seed)
    passed = f"TD errors do not depend on the action of the next step beyond chance (p = {p:.2g})."
    rejected = (
        f"TD errors depend on the action of the next step (p = {p:.2g}), which is chosen after the reward: rewards "
        "were logged with the step before their own, actions were chosen by what the observations do not contain, or "
        "their probabilities are wrong. Check that rewards and steps are aligned, add to the observations what the "
        f"behaviour policy knew, and check behaviour_prob.{without_probabilities(fit.values)}"
    )
    return HypothesisTest("rewards precede actions", sums.statistic, p, passed, rejected)


def ratios_test(inputs: TestInputs) -> HypothesisTest | None:
    """Whether the mean of the ratios is 1 given the observation; None where all are 1."""
    fit, steps = inputs.fit, inputs.steps
    ratio, clusters = fit.problem.ratio, fit.errors.whole.clusters
    if not fit.problem.weighted:
        return None
    parts = cluster_sums(inputs.current, clusters.of_step[steps], clusters.count, ratio[steps] - 1)
    if not parts.any():
        return None
    sums = Sums(parts.sum(axis=0), parts)
    p = sums.p_value(fit.seed)
    mean = f"mean over the log {ratio.mean():.3g}, p = {p:.2g}"
    passed = f"Given the observation, the ratios have mean 1 up to chance ({mean}), as with right probabilities."
    rejected = (
        f"Given the observation, the ratios do not have mean 1 ({mean}); with right probabilities that happens by "
        f"chance in at most 1 of {1 / TEST_LEVEL:.0f} logs. Check that "
        "behaviour_prob is the probability (not its logarithm) of the logged action under the policy that generated "
        "the log, and that actions are numbered as in the policy; or use state-action values, which need no ratios."
    )
    return HypothesisTest("ratios are right", sums.statistic, p, passed, rejected)
