"""The test of the estimate against logged returns: sums of discounted TD errors over episodes.

On-policy the sum over an episode is its discounted return, continued by the estimated value if it was cut, minus the
estimated value of its start. Off-policy TD errors are weighted by the ratios of all actions so far, over 30 steps.
"""

from __future__ import annotations

import numpy as np

from valuefit.checks.check import FEW_EPISODES, HypothesisTest
from valuefit.checks.inputs import TestInputs
from valuefit.data.transitions import effective_sample_size
from valuefit.data.validation import step_numbers
from valuefit.inference.fit import Fit
from valuefit.policies.episode_weights import MAX_LOG_PRODUCT
from valuefit.policies.importance import log_products
from valuefit.typing import Array

HORIZON = 30  # steps off-policy; longer products of ratios are too noisy


def returns_test(inputs: TestInputs) -> HypothesisTest | None:
    """Whether the mean over episodes of the sum of discounted TD errors is zero.

    None where products of ratios leave few effective episodes, or where all episodes have one step.
    """
    fit = inputs.fit
    number = step_numbers(fit.log.begins)
    weight = discounts = (fit.discount ** np.arange(number.max() + 1))[number]
    if not inputs.on_policy:
        products = cumulative_ratios(fit, number)
        last = np.append(number[1:] == 0, True)
        if effective_sample_size(products[last | (number == HORIZON - 1)]) < FEW_EPISODES:
            return None
        weight = np.where(number < HORIZON, weight * products, 0.0)
    sums = inputs.moments.weighted_sum(weight)
    if sums is None:
        return None
    p, episodes = sums.p_value(fit.seed), int(fit.log.begins.sum())
    difference, standard_error = float(sums.total[0]) / episodes, float(np.linalg.norm(sums.parts)) / episodes
    numbers = f"{difference:.3g} (standard error {standard_error:.2g}, p = {p:.2g})"
    if inputs.on_policy:
        what = (
            "The mean discounted return of the logged episodes (cut ones continued by the estimated value) minus the "
            f"estimated value of their starts is {numbers}"
        )
    else:
        weights = "" if (weight == discounts).all() else ", weighted by the ratios so far,"
        what = f"The discounted sum of TD errors over the first {HORIZON} steps of an episode{weights} is {numbers}"
    rejected = (
        f"{what}, more than chance: the estimated values are too {'low' if difference > 0 else 'high'} along the log. "
        "Use richer features, and check that observations, rewards and terminations are right."
    )
    size = abs(difference) / fit.value.standard_error if fit.value.standard_error else None
    return HypothesisTest("returns", difference / standard_error, p, f"{what}, within chance.", rejected, size)


def cumulative_ratios(fit: Fit, number: Array) -> Array:
    """Products of the ratios of an episode, (n,); 1 where probabilities are unknown.

    State values: up to the step before, because `problem.ratio` weights the step itself. State-action values: up to the
    step itself.
    """
    if fit.ratios is None:
        return np.ones(len(fit.log))
    product = np.exp(np.minimum(log_products(fit.ratios, fit.log.begins), MAX_LOG_PRODUCT))
    return np.where(number == 0, 1.0, np.roll(product, 1)) if fit.values == "state" else product
