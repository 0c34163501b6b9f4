"""What makes an evaluation doubtful, each in a sentence that says what to do."""

from __future__ import annotations

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.engine.result import Result
from valuefit.evaluation.importance import effective_sample_size
from valuefit.evaluation.sandwich import Sandwich, Spread
from valuefit.problem.problem import Problem
from valuefit.typing import Array

FEW_EPISODES = 20
FEW_STEPS = 50  # that ratios leave
LOW_SHARE = 0.1  # of the steps, likewise
HEAVY_SHARE = 0.5  # of all squared ratios, in the largest 1% of them
DEAD_SHARE = 0.5
CUT_SHARE = 0.5
UNSEEN_SHARE = 0.05
RATIO_OFF = 0.05  # how far the mean ratio may lie from 1 before it is looked at


def doubts(
    log: Transitions, problem: Problem, result: Result, sandwich: Sandwich, spread: Spread, *, discount: float
) -> list[str]:
    """All that apply, the gravest first."""
    found = [*_of_the_answer(result, sandwich, spread, log), *_of_the_ratios(problem.ratio, sandwich.cluster)]
    dead = len(problem.dead)
    if dead > DEAD_SHARE * problem.d:
        found.append(
            f"{dead} of {problem.d} features have no data and weight 0: values are made up where they matter. "
            "Use fewer features, or take their ranges from the data."
        )
    return found + _of_the_horizon(log, discount)


def _of_the_answer(result: Result, sandwich: Sandwich, spread: Spread, log: Transitions) -> list[str]:
    found = []
    if result.status != "converged":
        found.append(f"The solver did not converge ({result.status}). {result.message}")
    if not spread.determined:
        found.append(
            "The value at the starts is not determined by the data: other weights fit the log equally well and give "
            "another value. The one of smallest weights is shown, without an interval. Add a ridge, use fewer "
            "features, or give starts that the log has visited."
        )
    elif spread.standard_error is None:
        found.append(f"There is no standard error. {spread.reason}")
    elif spread.standard_error <= 1e-12 * float(np.abs(log.reward).max()):  # 0 but for rounding
        found.append(
            "The standard error is 0 because no TD error differs from 0: the log shows no randomness to measure."
        )
    elif spread.unfinished > 1:
        found.append(
            f"The solver stopped early: solved to the end, the policy value would move by {spread.solver_error:.2g}, "
            f"{spread.unfinished / 10:.2g} standard errors. The interval is wider by as much on both sides. Give more "
            "max_passes, a smaller tol, or another solver."
        )
    episodes = len(np.unique(log.episode))
    if sandwich.blocks:
        found.append(
            f"The log is one episode, so its standard error comes from {sandwich.clusters} consecutive blocks taken "
            f"as independent. That holds if the process forgets within {len(log) // sandwich.clusters} steps, and it "
            "leaves out how starts vary. More episodes would tell."
        )
    elif 1 < episodes < FEW_EPISODES:
        found.append(
            f"There are only {episodes} episodes, so the interval is rough, often too short. Add episodes if you can."
        )
    return found


def _of_the_ratios(ratio: Array, cluster: Array) -> list[str]:
    if (ratio == 1).all():
        return []
    found = []
    size, n = effective_sample_size(ratio), len(ratio)
    if size < max(LOW_SHARE * n, FEW_STEPS):
        found.append(
            f"The ratios leave an effective sample of {size:.0f} of {n} steps: the answer rests on few of them. Use a "
            'log nearer to the policy, or values="state-action".'
        )
    largest = np.sort(ratio)[-max(1, n // 100) :]
    if n >= 2 * FEW_STEPS and largest @ largest > HEAVY_SHARE * (ratio @ ratio):
        found.append(
            f"The ratios have a heavy tail: the largest is {ratio.max():.3g} and the top 1% carry most of the weight, "
            "so the interval may be too short. Check behaviour_prob where ratios are largest."
        )
    off = np.bincount(cluster, weights=ratio - ratio.mean())
    error = float(np.sqrt(off @ off)) / n
    if len(off) > 1 and abs(ratio.mean() - 1) > max(RATIO_OFF, 5 * error):
        found.append(
            f"The ratios average {ratio.mean():.3g}, but those of right probabilities average 1. Check that "
            "behaviour_prob is that of the policy that acted, for the logged actions."
        )
    return found


def of_unseen(share: float) -> list[str]:
    """For state-action values: how much the policy rests on pairs that the log does not have."""
    if share <= UNSEEN_SHARE:
        return []
    return [
        f"{share:.0%} of what the policy does next rests on features of states and actions that no logged step has, "
        "so their weights are 0. Use a log that tries those actions, or features that share more between states."
    ]


def _of_the_horizon(log: Transitions, discount: float) -> list[str]:
    found = []
    ids, where = np.unique(log.episode, return_inverse=True)
    over = np.zeros(len(ids), bool)
    over[where[log.terminated]] = True
    cut = 1 - over.mean()
    mean_length = len(log) / len(ids)
    if discount == 1:
        found.append(
            "With discount 1 values exist only if every episode of the policy ends; loops that the log happens not to "
            "show would make them infinite."
        )
    if cut > CUT_SHARE and (1 - discount) * mean_length < 1:
        horizon = "without end" if discount == 1 else f"about {1 / (1 - discount):.0f} steps"
        found.append(
            f"{cut:.0%} of the episodes were cut before they ended, after {mean_length:.0f} steps on average, while "
            f"the discount looks ahead {horizon}: what comes later is extrapolated by the features."
        )
    return found
