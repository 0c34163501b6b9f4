"""Whether the log contains what the estimate needs: episodes, actions of the policy, and states like the starts."""

from __future__ import annotations

import numpy as np

from valuefit.checks.check import BETTER_LOG, FEW_EPISODES, Check, warn_if
from valuefit.checks.instruments import action_count, evenly_spaced
from valuefit.checks.reach import sampled_rows
from valuefit.data.transitions import effective_sample_size
from valuefit.data.validation import MAX_EXACT_FLOAT, episode_starts
from valuefit.inference.clusters import MIN_EFFECTIVE_CLUSTERS
from valuefit.inference.error_estimate import MATERIAL_SIZE, ErrorEstimate, LinearFunction
from valuefit.inference.fit import Fit
from valuefit.inference.unseen import Unseen
from valuefit.policies.action_labels import label_of, listed
from valuefit.policies.importance import action_probabilities, has_names, is_continuous
from valuefit.rows.storage import dense
from valuefit.typing import Array

MIN_EFFECTIVE_STEPS = 50
MIN_EFFECTIVE_SHARE = 0.1  # effective sample size / steps
MAX_UNSEEN_SHARE = 0.05  # of the starts, of the policy's actions, or of its expected next features


# ---- episodes and starts ------------------------------------------------------------------------------------------


def effective_episodes(fit: Fit) -> Check | None:
    """How many equally important episodes the standard error rests on."""
    error = fit.error
    if fit.sums is not None:  # whose episodes are never cut
        return episode_count(fit.sums.size[1], error)
    clusters, episodes = fit.errors.whole.clusters, int(episode_starts(fit.log.episode).sum())
    if not clusters.blocks and error.standard_error is None:
        return None
    if clusters.blocks:
        text = (
            f"The log is one episode, so its standard error is computed from {clusters.count} consecutive blocks, "
            f"treated as independent. This is valid if correlations decay within {len(fit.log) // clusters.count} "
            "steps, and it does not include the variation of the starts. Add episodes if you can."
        )
    elif clusters.count > episodes:
        text = (
            f"The {episodes} episodes count as fewer than {MIN_EFFECTIVE_CLUSTERS} equally important ones, so long "
            f"ones were cut: the standard error is computed from {clusters.count} blocks of consecutive steps, "
            "treated as independent, and is too small if episodes differ persistently. Add episodes if you can."
        )
    else:
        return episode_count(episodes, error)
    return Check("effective episodes", "warn", text, error.effective_clusters)


def episode_count(episodes: int, error: ErrorEstimate) -> Check:
    """The check of `effective_episodes` where episodes were not cut."""
    size, count = error.effective_clusters, f"The {episodes} episodes count as"
    return warn_if(
        round(size) < FEW_EPISODES, "effective episodes", size,
        f"{count} only {size:.1f} equally important ones, so the interval is rough. Add episodes if you can.",
        f"{count} {size:.1f} equally important ones.",
    )  # fmt: skip


def one_episode(fit: Fit) -> Check | None:
    """Whether the value rests on a single episode."""
    if fit.error.standard_error is None:
        return None
    share = fit.error.largest_share
    return warn_if(
        fit.error.one_cluster, "one episode", share,
        "The value rests on one episode: without it the log says little about the value. Add episodes like it.",
        f"No single episode determines the value; the largest has {share:.0%} of the squared standard error.",
    )  # fmt: skip


def determined(fit: Fit) -> Check | None:
    """Whether the data determine the value at the starts, and if not, at which share of them."""
    name = "value is determined"
    if fit.error.determined:
        known = fit.error.standard_error is not None
        return Check(name, "pass", "The data determine the value at the starts.", 0.0) if known else None
    rows = _sampled_starts(fit)
    inside = fit.errors.equations.solver.determines(rows)
    share = max(1 - float(inside.mean()), 1 / fit.starts.rows.shape[0])  # those that are not sampled may be different
    text = (
        "The value at the starts is not determined by the data: other weights fit the log equally well and give a "
        f"different value at {100 * share:.2g}% of the starts. The value of the minimum-norm weights is shown, without "
        f"an interval. {_bounds(fit, rows[inside], share)}{_what_determines(fit)}"
    )
    return Check(name, "fail" if share > MAX_UNSEEN_SHARE else "warn", text, share)


def _bounds(fit: Fit, inside: Array, share: float) -> str:
    """What the value can be: its interval over the starts that are determined, the reachable range at the others."""
    reach = fit.reach
    if reach is None:
        return ""
    part = LinearFunction(np.zeros(fit.problem.d) if not len(inside) else (1 - share) * inside.mean(axis=0))
    mean = float(part.c @ fit.result.theta)
    low, high = fit.errors.error(part).interval(mean, fit.value.level) or (mean, mean)
    rewards = "logged" if fit.reward_range is None else "declared"
    least, most = (f"{bound:.5g}" for bound in (low + share * reach.low, high + share * reach.high))
    return "" if least == most else f"With the {rewards} rewards it can be {least} to {most}. "


def _what_determines(fit: Fit) -> str:
    """What to do where the data do not determine the value. Fewer features determine one, by extrapolation."""
    texts = ["Give starts that the log has visited."] if fit.starts.first is None else []
    texts.append(BETTER_LOG)
    problem, iterative = fit.problem, fit.errors.equations.iterative
    if iterative or problem.identity or fit.values != "state" or len(problem.dead) or problem.k != problem.d:
        return " ".join(texts)
    if fit.rank_and_condition[0] < problem.d:
        texts.append("Leave out features that depend on others, but only if they do so in all states, logged or not.")
    return " ".join(texts)


def extrapolation(fit: Fit) -> Check | None:
    """The leverage x'C^-1 x of the starts against that of logged steps: whether starts are unlike the log.

    A sketch of C changes leverages by about the same factor, up to a standard deviation of sqrt(2 / features).
    """
    problem = fit.problem
    if fit.starts.first is not None and fit.values == "state":
        return None  # they are steps of the log
    if problem.identity or problem.k != problem.d or fit.errors.equations.iterative:
        return None
    logged = sampled_rows(fit)
    if fit.starts.first is not None:
        logged = np.vstack([logged, dense(problem.phi.take(problem.now[fit.starts.first[: len(logged)]]))])
    largest, leverage = (fit.leverages(rows) for rows in (logged, _sampled_starts(fit)))
    share = float((leverage > 2 * largest.max()).mean())
    # the log visited its own starts: what it lacks there are actions
    advice = BETTER_LOG if fit.starts.first is not None else "Give starts that the log has visited."
    text = (
        f"{share:.0%} of the starts are far from every logged step (more than 2 times the largest "
        f"leverage), so the features extrapolate their values. {advice}"
    )
    passed = text if share else "No start is far from the logged steps."
    return warn_if(share > MAX_UNSEEN_SHARE, "starts are like the log", share, text, passed)


def _sampled_starts(fit: Fit) -> Array:
    return dense(fit.starts.rows[evenly_spaced(fit.starts.rows.shape[0])])


# ---- ratios -------------------------------------------------------------------------------------------------------


def effective_sample(fit: Fit) -> Check | None:
    """The effective number of steps under the ratios, along the trace if there is one."""
    if not fit.problem.weighted:
        return None
    n = fit.problem.n
    size = effective_sample_size(fit.problem.forward(np.ones(n)))
    return warn_if(
        size < max(MIN_EFFECTIVE_SHARE * n, MIN_EFFECTIVE_STEPS), "effective sample", size,
        f"The ratios reduce the log to an effective sample of {size:.0f} of {n} steps: the estimate depends on few "
        'steps. Use a log whose policy is closer to the target policy, or `values="state-action"`.',
        f"The effective sample is {size:.0f} of {n} steps.",
    )  # fmt: skip


def ratio_tail(fit: Fit) -> Check | None:
    """Whether few ratios have most of the weight."""
    n, ratio = fit.problem.n, fit.problem.ratio
    if not fit.problem.weighted or n < 2 * MIN_EFFECTIVE_STEPS:
        return None
    squares = np.sort(ratio / ratio.max()) ** 2
    share = float(squares[-max(1, n // 100) :].sum() / squares.sum())
    return warn_if(
        share > 0.5, "ratio tail", share,
        f"The ratios have a heavy tail: the largest is {ratio.max():.3g}, and the largest 1% have most of the weight, "
        "so the interval may be too short. Check behaviour_prob where ratios are largest.",
        f"The largest 1% of the ratios have {share:.0%} of the weight.",
    )  # fmt: skip


def mean_ratio(fit: Fit) -> Check | None:
    """Whether the mean ratio is 1, as it is with correct probabilities of all actions that the policy takes."""
    ratio, clusters = fit.problem.ratio, fit.errors.whole.clusters
    if not fit.problem.weighted:
        return None
    mean = float(ratio.mean())
    deviation = clusters.sums(ratio - mean)
    standard_error = float(np.linalg.norm(deviation)) / len(ratio)
    missing = ", and that this policy takes every action that the target policy takes" if mean < 1 else ""
    return warn_if(
        len(deviation) > 1 and abs(mean - 1) > max(0.05, 5 * standard_error), "mean ratio", mean,
        f"The mean of the ratios is {mean:.3g}, but with correct probabilities it is close to 1. Check that "
        f"behaviour_prob is the probability of the logged action under the policy that generated the log{missing}.",
        f"The mean of the ratios is {mean:.3g}.",
    )  # fmt: skip


# ---- actions ------------------------------------------------------------------------------------------------------


def order_of_actions(fit: Fit) -> Check | None:
    """Whether the columns of a policy for actions with names have names; statistic: how many columns have none."""
    log, policy = fit.log, fit.policy
    if log.action_names is None or policy is None or policy.takes_actions or policy.by_step is not None:
        return None
    named, names = has_names(policy, log.observations[log.now[:1]]), log.action_names.tolist()
    return warn_if(
        not named, "order of actions", 0.0 if named else float(len(names)),
        f"The columns of {policy.name} have no names, so they were taken in the sorted order of the actions: "
        f"{listed(names)}. If theirs is another, the value is that of another policy. Return a mapping or a data frame "
        "with a column for each action, by name, or give the classifier itself.",
        f"The columns of {policy.name} have the names of the actions.",
    )  # fmt: skip


def overlap(fit: Fit) -> Check | None:
    """Whether the log has enough steps of each action that the policy often takes."""
    action = fit.log.action
    if action is None or action.dtype.kind not in "biuf" or is_continuous(action):
        return None
    if np.abs(action.astype(np.float64)).max() > MAX_EXACT_FLOAT:  # no numbers of actions
        return None
    number = action.reshape(len(action)).astype(np.int64)
    shares = _target_shares(fit, number)
    ratio = fit.problem.ratio
    sizes = {
        one: effective_sample_size(ratio[number == one]) if (number == one).any() else 0.0
        for one, share in shares.items()
        if share > MAX_UNSEEN_SHARE
    }
    if not sizes:
        return None
    rarest = sorted(sizes, key=sizes.__getitem__)[:5]
    worst, fewest = rarest[0], sizes[rarest[0]]
    known = fit.log.action_names if fit.policy is None or fit.policy.known is None else fit.policy.known
    label = {one: label_of(one, known) for one in rarest}
    steps = ", ".join(f"{sizes[one]:.0f} of action {label[one]}" for one in rarest)
    return warn_if(
        fewest < FEW_EPISODES, "overlap", fewest,
        f"The policy takes action {label[worst]} with probability {shares[worst]:.2g}, but the log has only an "
        f"effective {fewest:.0f} steps with it (effective steps, rarest first: {steps}). Use a log that contains this "
        "action more often.",
        f"The log has an effective {fewest:.0f} steps or more of every action that the policy often takes (rarest "
        f"first: {steps}).",
    )  # fmt: skip


def _target_shares(fit: Fit, action: Array) -> dict[int, float]:
    """The share of each action under the policy, over the logged states; empty where it is unknown."""
    if fit.values == "state":
        if not fit.problem.weighted or action.min() < 0 or not fit.problem.ratio.any():
            return {}
        ids, index = np.unique(action, return_inverse=True)
        total = np.bincount(index, weights=fit.problem.ratio)
        return dict(zip(ids.tolist(), (total / total.sum()).tolist(), strict=True))
    steps = evenly_spaced(len(fit.log))
    probabilities = action_probabilities(fit.policy, fit.log.observations[fit.log.now[steps]], action_count(fit))
    return dict(enumerate(probabilities.mean(axis=0).tolist()))


def unseen_actions(fit: Fit) -> Check | None:
    """For state-action values: whether the policy often leads to state-action pairs without data, or they matter.

    size: the larger change of the policy value if these pairs have values within those of the logged steps.
    """
    return None if fit.values != "state-action" else unseen_share(fit.unseen, fit.value.standard_error)


def unseen_share(unseen: Unseen, error: float | None) -> Check:
    """The check of `unseen_actions`; error: the standard error of the policy value."""
    name, (share, changes) = "unseen actions", unseen
    if share == 0:
        return Check(name, "pass", "The log has the states and actions that the policy leads to.", share)
    text = (
        f"{100 * share:.2g}% of the policy's expected next features belong to states and actions that no logged step "
        "has, so their weights are 0. "
    )
    size = None
    if changes is not None and error:
        size = max(-changes[0], changes[1]) / error
        text += (
            f"With values within those of the logged steps instead, the policy value could change by {changes[0]:.2g} "
            f"to {changes[1]:.2g} (standard error {error:.2g}), which the interval allows for. "
        )
    bad = share > MAX_UNSEEN_SHARE or (size is not None and size > MATERIAL_SIZE)
    advice = "Use a log that contains those actions, or features that share more between states."
    return warn_if(bad, name, share, f"{text}{advice}", text.rstrip(), size)
