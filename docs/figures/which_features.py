"""Draw the figure of docs/which-features.md: python docs/figures/which_features.py (half a minute)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

import valuefit as vf

HERE = Path(__file__).parent
TRUTH = 96.05  # a million simulated episodes
COLOURS = {"sound": "#1a7f37", "caution": "#b26a00", "do not use": "#b3261e"}
FEATURES = (
    "polynomial:degree=1", "polynomial:degree=2", "kernel:landmarks=10", "kernel:landmarks=20", "kernel:landmarks=40",
    "kernel:landmarks=80", "kernel:landmarks=160", "auto",
)  # fmt: skip


def main() -> None:
    """Run the first block of the page for its log, evaluate, and draw."""
    page = (HERE.parent / "which-features.md").read_text()
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.S)[0], names)
    figure, axes = plt.subplots(figsize=(7.2, 3.4))
    for place, features in enumerate(FEATURES):
        found = vf.evaluate(names["log"], policy=names["target"], features=features)
        value, level = found.policy_value, found.verdict.level
        assert value.interval is not None
        axes.plot([place, place], value.interval, color=COLOURS[level], lw=3, solid_capstyle="round")
        axes.plot(place, value.estimate, "o", color=COLOURS[level])
    axes.axhline(TRUTH, color="black", lw=1)
    axes.annotate("true value", (-0.3, TRUTH + 0.5), va="bottom", fontsize=9)
    for level, colour in COLOURS.items():
        axes.plot([], [], color=colour, lw=3, label=level)
    axes.set_xticks(
        range(len(FEATURES)),
        [name.replace(":landmarks=", "\n").replace(":", "\n").replace("=", " ") for name in FEATURES],
        fontsize=8,
    )
    axes.set_ylabel("value of the policy")
    axes.set_xlabel("features (kernel: number of landmarks)", fontsize=9)
    axes.legend(frameon=False, loc="upper right", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(HERE / "which-features.png", dpi=150)


if __name__ == "__main__":
    main()
