"""The worst policy value under hidden confounding by value iteration in plain loops."""

from __future__ import annotations

from typing import Any, NamedTuple

import valuefit as vf

MAX_ITERATIONS = 400  # 0.9^400 is 5e-19


class Choice(NamedTuple):
    """An action in a state: its probability under the policy, the steps that took it, and its frequency."""

    probability: float
    steps: list[int]
    frequency: float


def lowest_value(log: vf.Transitions, policy: Any, discount: float, odds: float, sign: int) -> float:
    """The lower bound of the mean value at the first states of the episodes, for rewards times `sign`.

    An action that was never taken in a state has the lowest value that rewards can add up to.
    """
    reward = [sign * one for one in log.reward.tolist()]
    now, after = log.now.tolist(), log.next.tolist()
    worst = min(*reward, 0.0) / (1 - discount)
    states = [_choices(log, policy, place) for place in range(len(log.observations))]
    value = [0.0] * len(states)
    for _ in range(MAX_ITERATIONS):
        following = [0.0 if end else value[place] for end, place in zip(log.terminated, after, strict=True)]
        target = [one + discount * other for one, other in zip(reward, following, strict=True)]
        previous, value = value, [
            sum(one.probability * _worst_mean(one, target, odds, worst) for one in choices) for choices in states
        ]  # fmt: skip
        if value == previous:
            break
    first = [t for t in range(len(now)) if t == 0 or log.episode[t] != log.episode[t - 1]]
    return sum(value[now[t]] for t in first) / len(first)


def _choices(log: vf.Transitions, policy: Any, place: int) -> list[Choice]:
    visits = [t for t, other in enumerate(log.now) if other == place]
    found = []
    for action, probability in enumerate(policy[log.observations.ravel()[place]]):
        own = [t for t in visits if log.action[t] == action]
        found.append(Choice(float(probability), own, len(own) / max(len(visits), 1)))
    return found


def _worst_mean(choice: Choice, target: list[float], odds: float, worst: float) -> float:
    """The least mean of the targets of these steps, e being the frequency of the action.

    Their weights sum to 1 and are between (e + (1 - e) / odds) / count and (e + (1 - e) odds) / count.
    """
    if not choice.steps:
        return worst
    count, e = len(choice.steps), choice.frequency
    least, most = (e + (1 - e) / odds) / count, (e + (1 - e) * odds) / count
    left, total = 1 - count * least, 0.0
    for one in sorted(target[t] for t in choice.steps):
        extra = min(most - least, left)
        left -= extra
        total += (least + extra) * one
    return total
