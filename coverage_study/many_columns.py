"""Kernel features with and without an additive part, on processes of up to 50 columns of which three matter.

Columns are AR(1) processes; an action moves the first. Each log has 200 episodes of 20 steps and is evaluated by ratios
and by state-action values. Prints the root mean square error over the true value, and the coverage of the interval,
for several shares of the additive part.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import valuefit as vf
from coverage_study.records import generator
from coverage_study.tasks import often
from coverage_study.worlds import Array, World, log_of, simulated_value

DISCOUNT, EPISODES, STEPS, ROLLOUTS = 0.9, 200, 20, 200_000
RELEVANT = 3  # columns; the truth is simulated without the others
SHARES = (0.0, 0.5, 1.0)
COLUMNS = (8, 20, 50)


class Columns(World):
    """kind: "main" (a sum of functions of single columns), "products" (of two), "dynamics" (the action acts by the sign
    of another column), "survival" (episodes end with a probability that depends on all three).
    """

    actions = 2

    def __init__(self, count: int, kind: str) -> None:
        self.count, self.kind = count, kind

    def start(self, count: int, rng: np.random.Generator) -> Array:
        state = rng.standard_normal((count, self.count))
        state[:, :RELEVANT] = 0.5 * state[:, :RELEVANT] + 1
        return state

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        after = 0.8 * state + 0.6 * rng.standard_normal(state.shape)
        x, y, z = state[:, :RELEVANT].T
        push, ended = 0.4 * (2 * action - 1), np.zeros(len(state), bool)
        after[:, 0] += push * (np.sign(y) if self.kind == "dynamics" else 1)
        if self.kind == "main":
            reward = -np.abs(x - 0.5) + y**2 / 2 + np.tanh(3 * z) + 0.3 * action
        elif self.kind == "products":
            reward = x * y + (y > 0) * (z > 0) - 0.3 * action
        elif self.kind == "dynamics":
            after[:, 2] += 0.3 * np.tanh(2 * x)
            reward = np.cos(2 * after[:, 2]) - 0.1 * after[:, 0] ** 2
        else:
            ended = rng.random(len(state)) < 0.15 / (1 + np.exp(-2 * (y + z - x - 1)))
            return after, 1.0 - 0.2 * action - 3 * ended, ended
        return after, reward + 0.5 * rng.standard_normal(len(state)), ended


KINDS = ("main", "products", "dynamics", "survival")


def act(observations: Array) -> Array:
    return (observations[:, 0] + 0.5 * observations[:, 1] < 0).astype(int)


BEHAVIOUR, TARGET = often(act, 2, 0.6), often(act, 2, 0.2)


def found(kind: str, columns: int, values: str, share: float, replication: int) -> tuple[float, Any]:
    """The estimate, and its interval."""
    rng = generator(f"many-columns-{kind}-{columns}", replication)
    log = log_of(Columns(columns, kind), BEHAVIOUR, EPISODES, STEPS, rng)
    value = vf.evaluate(
        log, features=f"kernel:additive={share}", policy=TARGET, values=values, discount=DISCOUNT
    ).policy_value  # fmt: skip
    return value.estimate, value.interval


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m coverage_study.many_columns", description=__doc__)
    parser.add_argument("--replications", type=int, default=20)
    parser.add_argument("--columns", type=int, nargs="+", default=list(COLUMNS))
    options = parser.parse_args(arguments)
    print("| process | columns | route | " + " | ".join(f"share {share:g}" for share in SHARES) + " |")
    print("|---|---|---|" + "---|" * len(SHARES), flush=True)
    for kind in KINDS:
        truth = simulated_value(Columns(RELEVANT, kind), TARGET, DISCOUNT, ROLLOUTS).value
        for columns in options.columns:
            for values, route in (("state", "ratios"), ("state-action", "state-action")):
                cells = []
                for share in SHARES:
                    each = [found(kind, columns, values, share, k) for k in range(options.replications)]
                    error = np.sqrt(np.mean([(estimate - truth) ** 2 for estimate, _ in each])) / abs(truth)
                    covered = np.mean([low <= truth <= high for _, (low, high) in each])
                    cells.append(f"{error:.1%}, {covered:.0%}")
                print(f"| {kind} | {columns} | {route} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
