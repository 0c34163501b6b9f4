"""Diagnostics of an evaluation: sentences that explain why it may be unreliable and what to do."""

from __future__ import annotations

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.engine.result import Result
from valuefit.evaluation.importance import effective_sample_size
from valuefit.evaluation.sandwich import ErrorEstimate, Sandwich
from valuefit.evaluation.uncertainty import MIN_EFFECTIVE_CLUSTERS
from valuefit.problem.problem import Problem
from valuefit.typing import Array

# thresholds of the warnings, rules of thumb
FEW_EPISODES = 20
MIN_EFFECTIVE_STEPS = 50
MIN_EFFECTIVE_SHARE = 0.1  # effective sample size / steps
HEAVY_TAIL_SHARE = 0.5  # of the sum of squared ratios, in the largest 1%
MAX_SHARE_WITHOUT_DATA = 0.5  # of the features
MAX_TRUNCATED_SHARE = 0.5  # of the episodes
MAX_UNSEEN_SHARE = 0.05  # of the expected next features
MAX_MEAN_RATIO_ERROR = 0.05  # |mean ratio - 1|, if it is also more than 5 standard errors


def diagnostics(
    log: Transitions, problem: Problem, result: Result, sandwich: Sandwich, error: ErrorEstimate, *, discount: float
) -> list[str]:
    """All warnings that apply, the most serious first."""
    found = [*_error_diagnostics(result, sandwich, error, log), *_ratio_diagnostics(problem.ratio, sandwich.cluster)]
    dead = len(problem.dead)
    if dead > MAX_SHARE_WITHOUT_DATA * problem.d:
        found.append(
            f"{dead} of {problem.d} features have no data and weight 0: values are extrapolated where these features "
            "are active. Use fewer features, or take their ranges from the data."
        )
    return found + _horizon_diagnostics(log, discount)


def _error_diagnostics(result: Result, sandwich: Sandwich, error: ErrorEstimate, log: Transitions) -> list[str]:
    found = []
    if result.status != "converged":
        found.append(f"The solver did not converge ({result.status}). {result.message}")
    if not error.determined:
        found.append(
            "The value at the starts is not determined by the data: other weights fit the log equally well and give "
            "a different value. The value of the minimum-norm weights is shown, without an interval. Add a ridge, use "
            "fewer features, or give starts that the log has visited."
        )
    elif error.standard_error is None:
        found.append(f"There is no standard error. {error.reason}")
    elif error.standard_error <= 1e-12 * float(np.abs(log.reward).max()):  # 0 up to rounding
        found.append(
            "The standard error is 0 because all TD errors are 0: the log has no randomness to estimate it from."
        )
    elif error.relative_solver_error > 1:
        found.append(
            f"The solver stopped early: at full convergence the policy value would change by {error.solver_error:.2g}, "
            f"{error.relative_solver_error / 10:.2g} standard errors. The interval is wider by this amount on both "
            "sides. Give more max_passes, a smaller tol, or another solver."
        )
    episodes = len(np.unique(log.episode))
    if sandwich.blocks:
        found.append(
            f"The log is one episode, so its standard error is computed from {sandwich.clusters} consecutive blocks, "
            f"treated as independent. This is valid if correlations decay within {len(log) // sandwich.clusters} "
            "steps, and it does not include the variation of the starts. Add episodes if you can."
        )
    elif error.standard_error is not None and sandwich.clusters > episodes:
        found.append(
            f"The {episodes} episodes count as fewer than {MIN_EFFECTIVE_CLUSTERS} equally important ones, so long "
            f"ones were cut: the standard error is computed from {sandwich.clusters} blocks of consecutive steps, "
            "treated as independent, and is too small if episodes differ persistently. Add episodes if you can."
        )
    elif error.standard_error is not None and error.effective_clusters < FEW_EPISODES:
        found.append(
            f"The {episodes} episodes count as only {error.effective_clusters:.1f} equally important ones, so the "
            "interval is rough. Add episodes if you can."
        )
    if error.one_cluster:
        found.append(
            "The value rests on one episode: without it the log says little about the value. Add episodes like it, or "
            "use fewer features."
        )
    return found


def _ratio_diagnostics(ratio: Array, cluster: Array) -> list[str]:
    if (ratio == 1).all():
        return []
    found = []
    size, n = effective_sample_size(ratio), len(ratio)
    if size < max(MIN_EFFECTIVE_SHARE * n, MIN_EFFECTIVE_STEPS):
        found.append(
            f"The ratios reduce the log to an effective sample of {size:.0f} of {n} steps: the estimate depends on few "
            'steps. Use a log whose policy is closer to the target policy, or values="state-action".'
        )
    largest = np.sort(ratio)[-max(1, n // 100) :]
    if n >= 2 * MIN_EFFECTIVE_STEPS and largest @ largest > HEAVY_TAIL_SHARE * (ratio @ ratio):
        found.append(
            f"The ratios have a heavy tail: the largest is {ratio.max():.3g}, and the largest 1% have most of the "
            "weight, so the interval may be too short. Check behaviour_prob where ratios are largest."
        )
    deviation = np.bincount(cluster, weights=ratio - ratio.mean())
    standard_error = float(np.sqrt(deviation @ deviation)) / n
    if len(deviation) > 1 and abs(ratio.mean() - 1) > max(MAX_MEAN_RATIO_ERROR, 5 * standard_error):
        found.append(
            f"The mean of the ratios is {ratio.mean():.3g}, but with correct probabilities it is close to 1. Check "
            "that behaviour_prob is the probability of the logged action under the policy that generated the log."
        )
    return found


def unseen_diagnostics(share: float) -> list[str]:
    """For state-action values: whether the policy often leads to state-action pairs without data.

    share: of the expected next features, see `state_action.unseen_share`.
    """
    if share <= MAX_UNSEEN_SHARE:
        return []
    return [
        f"{share:.0%} of the policy's expected next features belong to states and actions that no logged step has, so "
        "their weights are 0. Use a log that contains those actions, or features that share more between states."
    ]


def _horizon_diagnostics(log: Transitions, discount: float) -> list[str]:
    found = []
    ids, where = np.unique(log.episode, return_inverse=True)
    terminated = np.zeros(len(ids), bool)
    terminated[where[log.terminated]] = True
    truncated = 1 - terminated.mean()
    mean_length = len(log) / len(ids)
    if discount == 1:
        found.append(
            "With discount 1 values exist only if every episode of the policy terminates; a loop that the log does not "
            "contain would make them infinite."
        )
    if truncated > MAX_TRUNCATED_SHARE and (1 - discount) * mean_length < 1:
        horizon = "infinite" if discount == 1 else f"about {1 / (1 - discount):.0f} steps"
        found.append(
            f"{truncated:.0%} of the episodes were truncated before they terminated, after {mean_length:.0f} steps on "
            f"average, while the horizon of the discount is {horizon}: rewards beyond the episodes are extrapolated by "
            "the features."
        )
    return found
