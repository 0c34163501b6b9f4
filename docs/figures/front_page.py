"""Draw the figure of the front page: python docs/figures/front_page.py (two minutes).

CartPole, as in docs/which-features.md: logs in which half of the pushes are random, and the value of a policy with 30%.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

import valuefit as vf

HERE = Path(__file__).parent
TRUTH = 96.05  # a million simulated episodes
STYLES = {"sound": ("#1a7f37", "o"), "caution": ("#b26a00", "^"), "do not use": ("#b3261e", "X")}
EPISODES = (25, 50, 100, 200, 400)
FEATURES = {
    "polynomial:degree=1": "linear", "polynomial:degree=2": "quadratic", "kernel:landmarks=20": "20\nkernels",
    "auto": "auto",
}  # fmt: skip


def draw(axes: Axes, place: int, found: vf.Evaluation) -> None:
    """One interval with its estimate, in the style of its verdict."""
    colour, marker = STYLES[found.verdict.level]
    assert found.policy_value.interval is not None
    axes.plot([place, place], found.policy_value.interval, color=colour, lw=3, solid_capstyle="round")
    axes.plot(place, found.policy_value.estimate, marker, color=colour, ms=6)


def main() -> None:
    """Run the first block of the page of features for its log and policy, evaluate, and draw."""
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", (HERE.parent / "which-features.md").read_text(), re.S)[0], names)
    cartpole_log: Callable[..., vf.Transitions] = names["cartpole_log"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.4), layout="constrained")
    for place, episodes in enumerate(EPISODES):
        log = cartpole_log(episodes, np.random.default_rng(episodes))
        draw(left, place, vf.evaluate(log, policy=names["target"]))
    left.set_xticks(range(len(EPISODES)), [str(count) for count in EPISODES])
    left.set(xlabel="episodes in the log", ylabel="value of the policy")
    left.set_title("More data, shorter interval", fontsize=11)
    for place, features in enumerate(FEATURES):
        draw(right, place, vf.evaluate(names["log"], policy=names["target"], features=features))
    right.set_xticks(range(len(FEATURES)), list(FEATURES.values()), fontsize=9)
    right.set_xlabel("features (60 episodes)")
    right.set_title("Poor features are called out", fontsize=11)
    for axes in (left, right):
        axes.axhline(TRUTH, color="black", lw=1, ls="--")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(-1.4, axes.get_xlim()[1] + 0.3)
        axes.annotate("true value", (-1.35, TRUTH), va="bottom", fontsize=9)
    for level, (colour, marker) in STYLES.items():
        right.plot([], [], marker=marker, color=colour, lw=3, ms=7, label=level)
    right.legend(title="verdict", frameon=False, loc="lower right", fontsize=9)
    figure.savefig(HERE / "front-page.png", dpi=150)


if __name__ == "__main__":
    main()
