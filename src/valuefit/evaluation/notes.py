"""Sentences on what was evaluated and how, for the notes of an evaluation."""

from __future__ import annotations

from valuefit.data.transitions import Transitions
from valuefit.inference.fit import Fit
from valuefit.inference.reach import Reach, RewardRange
from valuefit.policies.action_labels import listed
from valuefit.policies.policy import Policy

LEARNED_HERE = (
    "If the policy was learned from this log, its value is optimistic here: learn it on one part of the episodes and "
    "evaluate it on the other (valuefit.split)."
)
METHODS = {"cr3": "the jackknife (CR3)", "cr1": "the sandwich estimate (CR1)"}


def policy_note(log: Transitions, policy: Policy | None, values: str) -> str:
    """Which policy is evaluated, and how."""
    if values == "state-action":
        name = "the policy" if policy is None else policy.name
        how = f"Off-policy by state-action values: the next value is averaged over the actions of {name}."
        return f"{how} {LEARNED_HERE}"
    if policy is not None:
        return (
            f"Off-policy: steps are weighted by the probability of their action under {policy.name} / behaviour_prob. "
            f"{LEARNED_HERE}"
        )
    if (log.ratio != 1).any():
        return "Off-policy: steps are weighted by the ratios of the log."
    if log.behaviour_prob is not None:
        return (
            "The log has behaviour_prob, but no target policy was given: it is treated as on-policy, so this is the "
            "value of the policy that generated the log."
        )
    return "On-policy: this is the value of the policy that generated the log."


def actions_notes(log: Transitions, policy: Policy | None) -> list[str]:
    """The names of the actions, in the order of a policy's columns, and those that the policy does not know."""
    notes = []
    if log.action_names is not None:
        notes.append(f"The actions are, in the order of columns without names: {listed(log.action_names.tolist())}.")
    if policy is not None and policy.missing:
        notes.append(f"{policy.name} does not know {listed(policy.missing)}: its probability of these actions is 0.")
    return notes


def starts_note(fit: Fit, *, given: bool) -> str:
    """Which starts the value is averaged over, and how its standard error is computed."""
    value, errors = fit.value, fit.whole_errors
    over = f"{value.starts} given starts" if given else f"the first observations of {value.starts} episodes"
    if value.standard_error is None:
        return f"The policy value is the mean over {over}."
    clusters = errors.shards.clusters
    grouped = fit.log.cluster is not None
    parts = "clusters of episodes" if grouped else "episodes" if clusters == fit.size[1] else "blocks of steps"
    method, refused = METHODS[errors.kind], ""
    if errors.refused is not None:
        why = "does not fit into memory"
        if errors.equations.iterative:
            why = "needs a direct solution, for which there are too many features"
        refused = (
            f" The jackknife (CR3) was not used, because it {why}. The sandwich estimate is too small with few or "
            "unequal episodes: with fewer features the other one can be used."
        )
    return (
        f"The policy value is the mean over {over}; its standard error is {method} over {clusters} {parts}, which "
        f"count as {value.effective_episodes:.3g} equally important ones, and the interval uses Student's t.{refused}"
    )


def cut_notes(declared: RewardRange | None, reach: Reach | None) -> list[str]:
    """Where the interval is cut, if rewards were declared."""
    if declared is None:
        return []
    if reach is None:
        return ["With discount 1 sums of rewards have no bound, so `reward_range` does not bound the value."]
    return [f"The interval is cut at what is possible: declared {reach.reason}."]


def longer_notes(bias: float, unseen: tuple[float, float]) -> list[str]:
    """Why an interval is longer than its standard error makes it; empty if it is not."""
    (down, up), notes = unseen, []
    if bias:
        notes.append(
            f"The interval is longer by {abs(bias):.3g} on one side, because logs of this size bias the estimate by "
            f"about {bias:.3g}."
        )
    if down or up:
        notes.append(
            f"The interval is longer by {-down:.3g} below and {up:.3g} above, because a target policy leads to states "
            "and actions that no logged step has: that is what they change if their values are within those of the log."
        )
    return notes
