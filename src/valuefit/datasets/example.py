"""The log that comes with the package: Mountain Car, driven by a policy that Sarsa learned.

`python -m valuefit.datasets.example` makes it again.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.readers.npz import read_npz
from valuefit.data.transitions import Transitions

FILE = Path(__file__).with_name("mountain_car.npz")
EPISODES, LIMIT, SEED = 150, 1000, 0
NOTE = (
    "This is the log that comes with valuefit: 150 episodes of Mountain Car, -1 a step until the car is out of the "
    "valley, driven by a policy that Sarsa learned."
)


def example_log() -> Transitions:
    """The embedded log: 18,307 steps in 150 episodes that all reach the goal; (position, velocity), three actions."""
    log = read_npz(FILE, columns=None, limit=1 << 22)
    source = "the Mountain Car log that comes with valuefit"
    return replace(log, notes=(NOTE,), source=source, names=("position", "velocity"))


def make_example() -> dict[str, Any]:
    """Its columns, simulated anew. Observations are float32: half the size, and 1e-7 matters to no feature."""
    from valuefit.datasets.mountain_car import REWARD, rollouts, sarsa

    runs = rollouts(sarsa(seed=SEED), EPISODES, LIMIT, np.random.default_rng(SEED))
    assert all(reached for *_, reached in runs)  # so that no observation after the last one is needed
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


def write_example(path: Path = FILE) -> None:
    """Make it again and write it, compressed."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **make_example())
    path.write_bytes(stream.getvalue())


if __name__ == "__main__":
    write_example()
