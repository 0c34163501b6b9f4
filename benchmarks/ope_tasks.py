"""Tasks with known answers for the comparison with other libraries (`benchmarks.peers_ope`).

Three ask for the value of a policy: a table with ten periods, a pendulum, and a bandit log with propensities. The
fourth asks for the effect of treating always instead of never in a panel of three periods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

import valuefit as vf
from coverage_study.automatic import Setting
from coverage_study.held_out import HELD_OUT
from coverage_study.synthetic import mixed, optimal
from coverage_study.truths import truth_of
from coverage_study.worlds import Array, Policy, Table, distribution, draw, log_of, table_of, table_policy

Generator = np.random.Generator


@dataclass(frozen=True, eq=False)
class Task:
    """log: random numbers -> a log. target: the policy to evaluate. truth: its value, or for the panel the effect.

    inputs: observations -> what a neural network is given, and target_at: such inputs -> probabilities of the target.
    steps: length of all episodes, where they are of one length.
    """

    name: str
    log: Callable[[Generator], vf.Transitions]
    target: Policy
    discount: float
    truth: float
    actions: int
    inputs: Callable[[Array], Array] = np.asarray
    target_at: Policy | None = None
    steps: int | None = None

    def probabilities(self, inputs: Array) -> Array:
        """Of the target policy at inputs of a network."""
        return (self.target_at or self.target)(inputs)


# ---- a table with periods ------------------------------------------------------------------------------------

PLACES, PERIODS, TABLE_ACTIONS, TABLE_DISCOUNT, TABLE_EPISODES = 6, 10, 3, 0.95, 200


def periods_table() -> Table:
    """Six places, three actions, ten periods; a state is a place in a period, so that everything is Markov."""
    rng = np.random.default_rng(5)
    moves, rewards = distribution(rng, PLACES, TABLE_ACTIONS, PLACES), rng.normal(1.0, 1.0, (PLACES, TABLE_ACTIONS))
    states = PERIODS * PLACES
    transition, ends = np.zeros((states, TABLE_ACTIONS, states)), np.zeros((states, TABLE_ACTIONS))
    for period in range(PERIODS):
        here, after = (slice(t * PLACES, (t + 1) * PLACES) for t in (period, min(period + 1, PERIODS - 1)))
        transition[here, :, after] = moves
    ends[-PLACES:] = 1.0
    start = np.concatenate([np.full(PLACES, 1 / PLACES), np.zeros(states - PLACES)])
    return table_of(transition, np.tile(rewards, (PERIODS, 1)), ends, start, noise=0.5)


def periods_task(episodes: int = TABLE_EPISODES) -> Task:
    table = periods_table()
    best = optimal(table, TABLE_DISCOUNT)
    behaviour, target = mixed(best, 0.8), mixed(best, 0.3)
    return Task(
        "table", lambda rng: log_of(table, table_policy(behaviour), episodes, PERIODS, rng), table_policy(target),
        TABLE_DISCOUNT, table.value(target, TABLE_DISCOUNT), TABLE_ACTIONS, steps=PERIODS,
        inputs=lambda states: np.eye(table.states, dtype=np.float32)[np.asarray(states, int).ravel()],
        target_at=lambda rows: target[rows.argmax(axis=1)],
    )  # fmt: skip


# ---- a pendulum ----------------------------------------------------------------------------------------------

PENDULUM_DISCOUNT, PENDULUM_EPISODES = 0.95, 100


def pendulum_task(episodes: int = PENDULUM_EPISODES) -> Task:
    """That of the coverage study, on which the automatic features were not tuned; its value is simulated."""
    setting = Setting("pendulum", PENDULUM_DISCOUNT, episodes)
    return Task(
        "pendulum", setting.log, setting.target, PENDULUM_DISCOUNT, truth_of(setting.truth_name).value,
        HELD_OUT["pendulum"][0].actions, inputs=lambda x: np.asarray(x, np.float32), steps=HELD_OUT["pendulum"][4],
    )  # fmt: skip


# ---- a bandit ------------------------------------------------------------------------------------------------

ITEMS, TRAITS, VISITORS = 8, 4, 2000
QUADRATURE_VISITORS = 400_000  # over which the value of the bandit's policy is averaged
_taste = np.random.default_rng(11).standard_normal((ITEMS, TRAITS)) / 2


def click_probability(visitors: Array) -> Array:
    """(visitors, items): logistic, with a product of two traits that a linear model does not have."""
    return 1 / (1 + np.exp(1.5 - visitors @ _taste.T - 0.5 * (visitors[:, :1] * visitors[:, 1:2])))


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def old_rule(visitors: Array) -> Array:
    return softmax(np.linspace(0.8, -0.8, ITEMS) + 0.5 * visitors @ np.roll(_taste, 1, axis=0).T)


def new_rule(visitors: Array) -> Array:
    return softmax(2.0 * visitors @ _taste.T)


@cache
def bandit_value() -> float:
    """The click rate of the new rule: exact for each visitor, and averaged over many."""
    visitors = np.random.default_rng(0).standard_normal((QUADRATURE_VISITORS, TRAITS))
    return float(np.mean(np.sum(new_rule(visitors) * click_probability(visitors), axis=1)))


def bandit_log(rng: Generator, visitors: int) -> vf.Transitions:
    """Each visitor is an episode of one step: the item that was shown, its propensity, and whether it was clicked."""
    who = rng.standard_normal((visitors, TRAITS))
    shown = draw(old_rule(who), rng)
    rows = np.arange(visitors)
    return vf.Transitions.from_arrays(
        who, (rng.random(visitors) < click_probability(who)[rows, shown]).astype(float), episode=rows, action=shown,
        terminated=np.ones(visitors, bool), behaviour_prob=old_rule(who)[rows, shown],
    )  # fmt: skip


def bandit_task(visitors: int = VISITORS) -> Task:
    return Task("bandit", lambda rng: bandit_log(rng, visitors), new_rule, 0.0, bandit_value(), ITEMS, steps=1)


# ---- a panel -------------------------------------------------------------------------------------------------

PANEL_PERIODS, UNITS, COVARIATES = 3, 500, 3
PERSISTENCE, DIRECT_EFFECT = 0.5, 0.4
RESPONSE = np.array([0.6, 0.0, -0.3])  # of the covariates to a treatment
OUTCOME = np.array([1.0, 0.5, 0.0])  # of the last covariates
ASSIGNMENT = np.array([0.8, -0.5, 0.3])  # log odds of a treatment by covariate


def panel_effect() -> float:
    """Of treating always instead of never: a treatment acts on the next covariates, which persist, and the last one
    on the outcome itself.
    """
    carried = sum(PERSISTENCE**k for k in range(PANEL_PERIODS - 1))
    return float(DIRECT_EFFECT + carried * OUTCOME @ RESPONSE)


def panel_log(rng: Generator, units: int) -> vf.Transitions:
    """Three periods of each unit, observed by the period and its covariates; the outcome is the last reward."""
    x, columns = rng.standard_normal((units, COVARIATES)), []
    for period in range(PANEL_PERIODS):
        probability = 1 / (1 + np.exp(-x @ ASSIGNMENT))
        treated = (rng.random(units) < probability).astype(int)
        last = period == PANEL_PERIODS - 1
        outcome = x @ OUTCOME + DIRECT_EFFECT * treated + 0.5 * rng.standard_normal(units) if last else np.zeros(units)
        taken = np.where(treated == 1, probability, 1 - probability)
        columns.append((np.column_stack([np.full(units, period), x]), treated, taken, outcome, np.full(units, last)))
        x = PERSISTENCE * x + treated[:, None] * RESPONSE + 0.5 * rng.standard_normal((units, COVARIATES))
    observation, treated, taken, reward, terminated = (
        np.stack(column, axis=1).reshape(units * PANEL_PERIODS, *column[0].shape[1:])
        for column in zip(*columns, strict=True)
    )
    return vf.Transitions.from_arrays(
        observation, reward, terminated=terminated, episode=np.repeat(np.arange(units), PANEL_PERIODS), action=treated,
        behaviour_prob=taken,
    )  # fmt: skip


def constantly(action: int) -> Policy:
    """The policy that always takes this one of two actions."""
    return lambda observations: np.tile(np.eye(2)[action], (len(observations), 1))


def panel_task(units: int = UNITS) -> Task:
    return Task("panel", lambda rng: panel_log(rng, units), constantly(1), 1.0, panel_effect(), 2, steps=PANEL_PERIODS)


TASKS: dict[str, Callable[..., Task]] = {
    "table": periods_task, "pendulum": pendulum_task, "bandit": bandit_task, "panel": panel_task,
}  # fmt: skip
