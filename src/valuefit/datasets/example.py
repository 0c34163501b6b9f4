"""The example log that is part of the package: Mountain Car under a policy learned by Sarsa.

`python -m valuefit.datasets.example` generates it again.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.assemble import build_log
from valuefit.data.readers import npz
from valuefit.data.transitions import Transitions

FILE = Path(__file__).with_name("mountain_car.npz")
EPISODES = 150
VALUE = -70.59  # of the policy with discount 0.99, by 20,000 simulated episodes; its standard error is 0.05


def example_log() -> Transitions:
    """18,307 steps in 150 episodes that all reach the goal; observations (position, velocity), three actions."""
    log = build_log(npz.read(FILE, columns=None, limit=1 << 22))
    note = (
        f"This is the example log of valuefit: {EPISODES} episodes of Mountain Car under a policy learned by Sarsa, "
        "with reward -1 per step until the car is out of the valley."
    )
    source = "the Mountain Car example log of valuefit"
    return replace(log, notes=(note,), source=source, names=("position", "velocity"))


def make_example() -> dict[str, Any]:
    """Simulate the columns of the log. Float32 halves the file; its rounding (1e-7) does not affect the features."""
    from valuefit.datasets.mountain_car import REWARD, rollouts, sarsa

    runs = rollouts(sarsa(seed=0), EPISODES, 1000, np.random.default_rng(0))
    assert all(reached for *_, reached in runs)  # terminated episodes need no observation after their last step
    lengths = [len(actions) for _, actions, _ in runs]
    terminated = np.zeros(sum(lengths), bool)
    terminated[np.cumsum(lengths) - 1] = True
    return {
        "observation": np.concatenate([states[:-1] for states, *_ in runs]).astype(np.float32),
        "reward": np.full(sum(lengths), REWARD, np.float32),
        "terminated": terminated,
        "episode": np.repeat(np.arange(EPISODES, dtype=np.int16), lengths),
        "action": np.concatenate([actions for _, actions, _ in runs]).astype(np.int8),
    }


if __name__ == "__main__":
    stream = io.BytesIO()
    np.savez_compressed(stream, **make_example())
    FILE.write_bytes(stream.getvalue())
