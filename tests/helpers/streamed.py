"""Logs in shards, for tests that compare them with the same log in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
from dask import delayed

import valuefit as vf
from helpers.log_files import minari_dataset
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


def with_text_actions(log: vf.Transitions, names: dict[int, str], rare: str) -> vf.Transitions:
    """The log with these names of its actions, but `rare` for action 1 in the last tenth of the steps."""
    action = np.array([names[action] for action in log.action.tolist()], object)
    action[(log.action == 1) & (np.arange(len(log)) >= 0.9 * len(log))] = rare
    given, codes = np.unique(action.astype(str), return_inverse=True)
    return replace(log, action=codes, action_names=given)._frozen()


def actions_of(log: vf.Transitions) -> Any:
    """The actions, by name if they have names."""
    return log.action if log.action_names is None else log.action_names[log.action].astype(object)


def by_episode(frame: pd.DataFrame, partitions: int) -> Any:
    """A Dask DataFrame whose partitions hold whole episodes, if they are many some none."""
    number = np.unique(frame.episode, return_inverse=True)[1]
    parts = [frame[number * partitions // (number.max(initial=0) + 1) == k] for k in range(partitions)]
    return dd.from_delayed([delayed(part) for part in parts], meta=frame.iloc[:0])


def frame_of(log: vf.Transitions) -> pd.DataFrame:
    """The columns of such a log."""
    now = log.observations[log.now]
    next = np.where(log.terminated[:, None], now, log.observations[log.next])
    return pd.DataFrame({
        "obs_0": now[:, 0], "obs_1": now[:, 1], "next_obs_0": next[:, 0], "next_obs_1": next[:, 1],
        "reward": log.reward, "terminated": log.terminated, "episode": log.episode, "action": actions_of(log),
        "behaviour_prob": log.behaviour_prob,
    })  # fmt: skip


def even_policy(observations: Any) -> Any:
    """Both actions equally often."""
    return np.full((len(observations), 2), 0.5)


FILE_KINDS = ("native", "parquet", "hdf5", "minari")
KINDS = ("memory", *FILE_KINDS)  # of `in_shards`


def in_shards(log: vf.Transitions, folder: Path, kind: str, *, limit: int = 64 << 20, steps: int = 200) -> ShardedLog:
    """The log, saved and opened in shards of about so many steps. kind: one of KINDS, or "files": four of Parquet."""
    if kind == "memory":
        return replace(vf.load(log, memory="stream", limit=8 * 64 * steps), limit=limit)
    path: Any = folder / ("log" if kind == "native" else "log.parquet")
    columns = None
    if kind == "files":  # episodes continue from file to file
        path = [folder / f"part-{number}.parquet" for number in range(4)]
        for number, file in enumerate([] if path[0].exists() else path):
            here = np.arange(len(log)) * 4 // len(log) == number
            vf.save(replace(log[here], notes=(), warnings=()), file)
    elif kind == "hdf5":
        path, columns = hdf5_file(log, folder / "log.hdf5"), {"behaviour_prob": "infos/prob"}
    elif kind == "minari":
        path, columns = minari_dataset(columns_of(log), folder), {"behaviour_prob": "infos/prob"}
    else:
        vf.save(log, path)
    sharded = open_shards(path, columns=columns, limit=8 * 64 * steps)
    return replace(sharded, limit=limit)


def columns_of(log: vf.Transitions) -> dict[str, Any]:
    """The columns of a log by the names of valuefit; the last steps of episodes are terminated or truncated."""
    last = np.append(log.episode[1:] != log.episode[:-1], True)
    return {
        "episode": log.episode, "obs": log.observations[log.now],
        "next_obs": log.observations[np.where(log.next < 0, log.now, log.next)], "action": actions_of(log),
        "reward": log.reward, "terminated": log.terminated, "truncated": last & ~log.terminated,
        "behaviour_prob": log.behaviour_prob,
    }  # fmt: skip


def hdf5_file(log: vf.Transitions, path: Path) -> Path:
    """The log in the layout of D4RL, in compressed chunks of some rows, with probabilities under infos/prob."""
    columns = columns_of(log)
    del columns["episode"]
    names = {"obs": "observations", "next_obs": "next_observations", "action": "actions", "reward": "rewards",
             "terminated": "terminals", "truncated": "timeouts", "behaviour_prob": "infos/prob"}  # fmt: skip
    with h5py.File(path, "w") as file:
        for field, values in columns.items():
            chunk = (min(64, len(values)), *values.shape[1:])
            file.create_dataset(names[field], data=values, compression="gzip", chunks=chunk)
    return path
