"""Logs in shards, for tests that compare them with the same log in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import valuefit as vf
from valuefit.data.shards import ShardedLog, open_shards


def log_with_actions(episodes: int = 60, *, seed: int = 0) -> vf.Transitions:
    """An autoregression of two numbers, pushed by the action; lengths differ, and half of the episodes terminate."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("x", "y", "reward", "episode", "terminated", "action", "prob")
    }
    for episode in range(episodes):
        x, length = rng.normal(size=2), int(rng.integers(5, 60))
        for t in range(length):
            action = int(rng.random() < 0.4)
            y = 0.8 * x + 0.3 * (action - 0.4) + 0.4 * rng.normal(size=2)
            row = (x, y, x[0] + action, episode, t == length - 1 and episode % 2 == 0, action, 0.4 if action else 0.6)
            for name, value in zip(columns, row, strict=True):
                columns[name].append(value)
            x = y
    found = {name: np.array(values) for name, values in columns.items()}
    return vf.Transitions.from_arrays(
        found["x"], found["reward"], terminated=found["terminated"], episode=found["episode"], action=found["action"],
        next_observation=found["y"], behaviour_prob=found["prob"],
    )  # fmt: skip


def even_policy(observations: Any) -> Any:
    """Both actions equally often."""
    return np.full((len(observations), 2), 0.5)


def in_shards(log: vf.Transitions, folder: Path, kind: str, *, limit: int = 64 << 20, steps: int = 200) -> ShardedLog:
    """The log, saved and opened in shards of about so many steps. kind: "native", "parquet" or "files"."""
    path: Any = folder / ("log" if kind == "native" else "log.parquet")
    if kind == "files":  # episodes continue from file to file
        path = [folder / f"part-{number}.parquet" for number in range(4)]
        for number, file in enumerate([] if path[0].exists() else path):
            here = np.arange(len(log)) * 4 // len(log) == number
            vf.save(replace(log[here], notes=(), warnings=()), file)
    else:
        vf.save(log, path)
    sharded = open_shards(path, columns=None, limit=8 * 64 * steps)
    return replace(sharded, limit=limit)
