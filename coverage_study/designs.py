"""Designs with known truth: where intervals failed, nulls and misspecified features, and two published studies.

Each design draws a log, the arguments of `vf.evaluate` and the truth: the fixed point (the estimate from infinite
data), by linear algebra; for the published studies the value of the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.signal import lfilter
from scipy.special import ndtri

import valuefit as vf
from coverage_study import published
from coverage_study.splines import TensorSplines, published_size
from coverage_study.truths import truth_of
from coverage_study.worlds import Array, Table, distribution, log_of, table_of, table_policy, table_rows

Generator = np.random.Generator
LIMIT = 25  # steps of an episode in the tables
DISCOUNT = 0.9
SECTIONS = ("intervals", "null", "misspecified", "published")
SHI_STARTS = 1024  # points for the normal distribution of the starts


class Draw(NamedTuple):
    """A log, keyword arguments of `vf.evaluate`, and the number that the interval should cover."""

    log: vf.Transitions
    settings: dict[str, Any]
    truth: float


@dataclass(frozen=True)
class Design:
    """section: one of `SECTIONS`. draw: a generator of random numbers -> Draw.

    before: coverage of version 0.1, if it was measured. published: coverage of the papers, with their mean length.
    """

    name: str
    section: str
    draw: Callable[[Generator], Draw]
    before: float | None = None
    published: str = ""


# ---- tables ------------------------------------------------------------------------------------------------


@cache
def small_table(actions: int = 2) -> tuple[Table, Array]:
    """A random MDP of five states whose episodes terminate after some nine steps, and features of its states.

    Four features for two actions, and three for more, where each action has weights of its own.
    """
    rng = np.random.default_rng(0)
    transition, ends = distribution(rng, 5, actions, 5), rng.uniform(0.05, 0.2, (5, actions))
    table = table_of(transition, rng.normal(size=(5, actions)), ends, distribution(rng, 5), noise=0.1)
    return table, np.column_stack([np.ones(5), rng.normal(size=(5, 3 if actions == 2 else 2))])


def rarely(action: Array, probability: float, actions: int = 2) -> Array:
    """A policy that takes this action of each state with this probability, and the others equally often."""
    table = np.full((len(action), actions), (1 - probability) / (actions - 1))
    table[np.arange(len(action)), action] = probability
    return table


def on_table(
    rng: Generator, *, episodes: int, target: Array, behaviour: Array, rows: Array | None = None, trace: float = 0.0,
    values: str = "state",
) -> Draw:  # fmt: skip
    """A log of the small table; rows None: one-hot states, which "auto" chooses."""
    table, _ = small_table(target.shape[1])
    features = np.eye(5) if rows is None else rows
    if values == "state":
        truth = table.fixed_point(features, target, behaviour, DISCOUNT, LIMIT, trace)
    else:
        truth = table.state_action_fixed_point(features, target, behaviour, DISCOUNT, LIMIT)
    settings = {"discount": DISCOUNT, "trace": trace, "values": values}
    if target is not behaviour:
        settings["policy"] = target
    if rows is not None:
        settings["features"] = table_rows(rows)
    return Draw(log_of(table, table_policy(behaviour), episodes, LIMIT, rng), settings, truth)


STRONG_TARGET, STRONG_BEHAVIOUR = (rarely(np.array([0, 1, 0, 1, 0]), p) for p in (0.95, 0.1))  # effective sample: 11%
MILD_TARGET, MILD_BEHAVIOUR = (rarely(np.array([0, 1, 1, 0, 0]), p) for p in (0.7, 0.5))
RARE_TARGET, RARE_BEHAVIOUR = (rarely(np.full(5, 2), p, actions=3) for p in (0.6, 0.05))


def strong_ratios(rng: Generator, episodes: int, trace: float = 0.0) -> Draw:
    rows = small_table()[1]
    return on_table(
        rng, episodes=episodes, target=STRONG_TARGET, behaviour=STRONG_BEHAVIOUR, rows=rows, trace=trace
    )  # fmt: skip


def rare_action(rng: Generator, episodes: int) -> Draw:
    rows = small_table(3)[1]
    return on_table(
        rng, episodes=episodes, target=RARE_TARGET, behaviour=RARE_BEHAVIOUR, rows=rows, values="state-action"
    )  # fmt: skip


def one_hot_states(rng: Generator, episodes: int, off_policy: bool, values: str = "state") -> Draw:
    target = MILD_TARGET if off_policy else MILD_BEHAVIOUR
    return on_table(rng, episodes=episodes, target=target, behaviour=MILD_BEHAVIOUR, values=values)


def aggregated_states(rng: Generator, episodes: int) -> Draw:
    """Two features, which do not tell all states apart, and mild ratios."""
    rows = np.repeat(np.eye(2), [3, 2], axis=0)
    return on_table(rng, episodes=episodes, target=MILD_TARGET, behaviour=MILD_BEHAVIOUR, rows=rows)


# ---- autoregressive processes ------------------------------------------------------------------------------


def line(observations: Array) -> Array:
    """Features 1 and x."""
    return np.column_stack([np.ones(len(observations)), np.asarray(observations).reshape(len(observations), -1)[:, 0]])


def processes(rng: Generator, episodes: int, steps: int, memory: float) -> Array:
    """Stationary AR(1) processes of unit variance, (episodes, steps + 1)."""
    noise = rng.standard_normal((episodes, steps + 1))
    noise[:, 1:] *= np.sqrt(1 - memory**2)
    return np.asarray(lfilter([1.0], [1.0, -memory], noise, axis=1))


def cut_log(x: Array, reward: Array, lengths: Array) -> vf.Transitions:
    """The first steps of each row of processes x (episodes, steps + 1), as truncated episodes of these lengths."""
    inside = np.arange(reward.shape[1]) < lengths[:, None]
    return vf.Transitions.from_arrays(
        x[:, :-1][inside][:, None],
        reward[inside],
        truncated=(np.arange(reward.shape[1]) == lengths[:, None] - 1)[inside],
        episode=np.nonzero(inside)[0],
        next_observation=x[:, 1:][inside][:, None],
    )


def on_process(
    rng: Generator, lengths: Array, *, effect: float = 0.0, quadratic: float = 0.0, memory: float = 0.8,
    starts: Array | None = None,
) -> Draw:  # fmt: skip
    """Rewards 1 + x + quadratic (x^2 - 1) + noise + an effect of the episode, and the features 1 and x.

    The moments of the stationary process give V(x) = 1 / (1 - discount) + x / (1 - discount memory) as the fixed point,
    which is exact for quadratic = 0. starts: None for those of the log, whose mean is 0 in expectation.
    """
    x = processes(rng, len(lengths), int(lengths.max()), memory)
    now = x[:, :-1]
    reward = 1 + now + quadratic * (now**2 - 1) + rng.standard_normal(now.shape)
    reward += effect * rng.standard_normal(len(lengths))[:, None]
    slope = 1 / (1 - DISCOUNT * memory)
    truth = 1 / (1 - DISCOUNT) + (0.0 if starts is None else slope * float(np.mean(starts)))
    settings: dict[str, Any] = {"discount": DISCOUNT, "features": line}
    if starts is not None:
        settings["starts"] = starts
    return Draw(cut_log(x, reward, lengths), settings, truth)


def balanced(rng: Generator, episodes: int, quadratic: float = 0.0) -> Draw:
    return on_process(rng, np.full(episodes, 20), quadratic=quadratic)


def unequal_lengths(rng: Generator, episodes: int) -> Draw:
    """Lengths from 2 to 300, of which few are long, and an effect of the episode."""
    lengths = np.round(2 + 298 * rng.random(episodes) ** 12).astype(int)
    return on_process(rng, lengths, effect=3.0, starts=np.zeros((1, 1)))


def dominating_episode(rng: Generator) -> Draw:
    return on_process(rng, np.array([3000] + [3] * 30), starts=np.zeros((1, 1)))


def one_stream(rng: Generator, steps: int) -> Draw:
    """Given starts, because a single start of the log says nothing about their variation."""
    return on_process(rng, np.array([steps]), quadratic=1.0, memory=0.99, starts=np.array([[0.0], [1.0]]))


def hidden_lag(rng: Generator, episodes: int) -> Draw:
    """x depends on its last two values, of which the log has one: x'' = 0.5 x' + 0.4 x + noise. Starts at x = 1."""
    first, second, steps = 0.5, 0.4, 20
    correlation = first / (1 - second)
    noise = rng.standard_normal((episodes, steps + 101))  # 100 steps to become stationary
    x = lfilter([1.0], [1.0, -first, -second], noise, axis=1)[:, 100:]
    reward = x[:, :-1] + rng.standard_normal((episodes, steps))
    truth = 1 / (1 - DISCOUNT * correlation)
    settings = {"discount": DISCOUNT, "features": line, "starts": np.ones((1, 1))}
    return Draw(cut_log(x, reward, np.full(episodes, steps)), settings, truth)


# ---- published studies -------------------------------------------------------------------------------------


@cache
def normal_starts() -> Array:
    """Points of a lattice (Fibonacci) for the standard normal distribution in two dimensions."""
    index = np.arange(SHI_STARTS)
    golden = (np.sqrt(5) - 1) / 2
    return np.asarray(ndtri(np.column_stack([(index + 0.5) / SHI_STARTS, (index * golden + 0.5 / SHI_STARTS) % 1])))


def shi(rng: Generator, behaviour: Callable[[Array], Array], episodes: int, steps: int) -> Draw:
    settings = {
        "discount": published.SHI_DISCOUNT,
        "policy": published.shi_target,
        "values": "state-action",
        "features": TensorSplines(published_size(episodes * steps)),
        "starts": normal_starts(),
    }
    return Draw(log_of(published.Shi(), behaviour, episodes, steps, rng), settings, truth_of("shi").value)


def circle_walk(rng: Generator, episodes: int) -> Draw:
    table = published.circle()
    settings = {"discount": published.CIRCLE_DISCOUNT, "policy": published.CIRCLE_TARGET, "values": "state-action",
                "starts": np.arange(3)}  # fmt: skip
    log = log_of(table, table_policy(published.CIRCLE_BEHAVIOUR), episodes, 50, rng)
    return Draw(log, settings, table.value(published.CIRCLE_TARGET, published.CIRCLE_DISCOUNT))


# Coverage of version 0.1, and what the papers report. Shi et al. 2022: coverage and mean length by episodes and steps,
# of behaviours A and B; 2021: coverage of double RL and of their triply robust interval, by episodes.
SHI_A = {(25, 30): (0.928, "92.8, 0.490"), (50, 50): (0.944, "95.8, 0.290"), (100, 70): (0.934, "95.5, 0.170")}
SHI_B = {(25, 30): (0.920, "92.6, 0.435"), (50, 50): (0.942, "94.1, 0.247"), (100, 70): (0.952, "93.7, 0.153")}
CIRCLE = {50: (0.937, "96.0 / 95.5"), 150: (0.957, "90 / 93"), 250: (0.943, "92 / 92.5"), 450: (0.940, "89 / 92.5")}


def _all() -> list[Design]:
    interval, null, misspecified, reported = SECTIONS
    found = [Design(f"balanced-{g}", interval, partial(balanced, episodes=g)) for g in (10, 30, 100)]
    for g, before in ((30, 0.874), (100, 0.904), (300, 0.948)):
        found.append(Design(f"strong-ratios-{g}", interval, partial(strong_ratios, episodes=g), before))
    found += [
        Design("strong-ratios-trace-100", interval, partial(strong_ratios, episodes=100, trace=0.5), 0.868),
        Design("rare-action-30", interval, partial(rare_action, episodes=30), 0.848),
    ]
    for g, before in ((20, 0.738), (30, 0.760), (100, 0.884)):
        found.append(Design(f"unequal-lengths-{g}", interval, partial(unequal_lengths, episodes=g), before))
    found.append(Design("dominating-episode", interval, dominating_episode, 0.17))
    for n, before in ((1000, 0.58), (5000, 0.76), (20000, 0.81)):
        found.append(Design(f"one-stream-{n}", interval, partial(one_stream, steps=n), before))
    for g in (20, 200):
        found += [
            Design(f"null-line-{g}", null, partial(balanced, episodes=g)),
            Design(f"null-states-{g}", null, partial(one_hot_states, episodes=g, off_policy=False)),
            Design(f"null-ratios-{g}", null, partial(one_hot_states, episodes=g, off_policy=True)),
        ]
    found += [
        Design("null-state-action-200", null,
               partial(one_hot_states, episodes=200, off_policy=True, values="state-action")),
        Design("square-100", misspecified, partial(balanced, episodes=100, quadratic=1.0)),
        Design("weak-square-100", misspecified, partial(balanced, episodes=100, quadratic=0.15)),
        Design("aggregated-states-100", misspecified, partial(aggregated_states, episodes=100)),
        Design("hidden-lag-100", misspecified, partial(hidden_lag, episodes=100)),
    ]  # fmt: skip
    for letter, behaviour, papers in (("a", published.shi_coin, SHI_A), ("b", published.shi_logistic, SHI_B)):
        for (episodes, steps), (before, paper) in papers.items():
            draw = partial(shi, behaviour=behaviour, episodes=episodes, steps=steps)
            found.append(Design(f"shi-{letter}-{episodes}x{steps}", reported, draw, before, paper))
    for n, (before, paper) in CIRCLE.items():
        found.append(Design(f"circle-{n}", reported, partial(circle_walk, episodes=n), before, paper))
    return found


DESIGNS = {design.name: design for design in _all()}
