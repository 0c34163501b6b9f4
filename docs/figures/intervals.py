"""Draw the figure of the README: python docs/figures/intervals.py (half a minute)."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import valuefit as vf
from valuefit.datasets.random_walk import random_walk_value

SLIP, DISCOUNT = 0.2, 0.95
EPISODES = (25, 50, 100, 200, 400, 800, 1600)


def walks(episodes: int, seed: int) -> vf.Transitions:
    """Random walks on five states; one step in five goes the other way."""
    rng = np.random.default_rng(seed)
    rows = []
    for episode in range(episodes):
        state = 2
        while 0 <= state <= 4:
            action = int(rng.integers(2))
            after = state + (2 * action - 1) * (1 if rng.random() > SLIP else -1)
            rows.append((episode, state, action, float(after == 5), not 0 <= after <= 4, 0.5))
            state = after
    names = "episode", "obs", "action", "reward", "terminated", "behaviour_prob"
    return vf.load({name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})


def mostly_right(states: np.ndarray) -> np.ndarray:
    """The policy to evaluate: right with probability 0.7."""
    return np.tile([0.3, 0.7], (len(states), 1))


def main() -> None:
    """Write the figure next to this file."""
    _, axis = plt.subplots(figsize=(7.2, 3.0), layout="constrained")
    for shift, colour, name, values in (
        (0.94, "#3b6fb6", "by importance ratios", "state"),
        (1.06, "#d1782a", "by state-action values", "state-action"),
    ):
        found = [
            vf.evaluate(walks(n, n), policy=mostly_right, values=values, discount=DISCOUNT).policy_value
            for n in EPISODES
        ]
        middle = np.array([value.estimate for value in found])
        ends = np.array([value.interval for value in found])
        axis.errorbar(
            np.array(EPISODES) * shift, middle, np.abs(ends.T - middle), fmt="o", color=colour, capsize=3, label=name
        )
    truth = random_walk_value(target=0.7 * (1 - SLIP) + 0.3 * SLIP, discount=DISCOUNT)[2]
    axis.axhline(truth, color="0.3", linestyle="--", linewidth=1, label="exact value")
    axis.set(xscale="log", xlabel="episodes in the log", ylabel="value of a policy\nthat never acted")
    axis.set_xticks(EPISODES, [str(n) for n in EPISODES])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="upper right")
    plt.savefig(Path(__file__).with_suffix(".png"), dpi=140)


if __name__ == "__main__":
    main()
