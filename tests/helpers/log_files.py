"""One log in every supported format, written by the libraries that define the formats."""

import dataclasses
import json
import os
import warnings
from unittest import mock

import gymnasium
import h5py
import minari
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from minari.data_collector import EpisodeBuffer

import valuefit as vf


def steps(lengths=(5, 1, 3, 7, 1, 2, 2, 2, 2, 2, 4, 3), width=3, seed=0):
    """Columns of ragged episodes (more than ten, which sort differently as text), every other one truncated."""
    rng = np.random.default_rng(seed)
    table = {name: [] for name in ("episode", "obs", "next_obs", "action", "reward", "terminated", "truncated")}
    for episode, length in enumerate(lengths):
        path = rng.normal(size=(length + 1, width))
        last = np.arange(length) == length - 1
        table["episode"].append(np.full(length, episode))
        table["obs"].append(path[:-1])
        table["next_obs"].append(path[1:])
        table["action"].append(rng.integers(0, 3, length))
        table["reward"].append(rng.normal(size=length))
        table["terminated"].append(last & (episode % 2 == 0))
        table["truncated"].append(last & (episode % 2 == 1))
    columns = {name: np.concatenate(parts) for name, parts in table.items()}
    columns["behaviour_prob"] = rng.uniform(0.1, 1.0, len(columns["reward"]))
    return columns


def flat(columns):
    """The same columns with obs_0, obs_1, ... in place of vectors."""
    wide = {}
    for name, values in columns.items():
        if values.ndim == 1:
            wide[name] = values
        else:
            wide.update({f"{name}_{i}": values[:, i] for i in range(values.shape[1])})
    return wide


def source_of(kind, frame, folder):
    """A pandas frame in another form of this kind, in a file of this folder if it is one."""
    path = folder / f"log.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path, index=False)
    elif kind == "jsonl":
        path.write_text(frame.to_json(orient="records", lines=True, double_precision=15))
    elif kind == "npz":
        np.savez(path, **{name: frame[name].to_numpy() for name in frame})
    elif kind == "arrow":
        return pa.Table.from_pandas(frame, preserve_index=False)
    elif kind == "lists":
        return {name: [None if value != value else value for value in frame[name].tolist()] for name in frame}
    elif kind == "masked":
        return {name: np.ma.masked_invalid(frame[name].to_numpy()) for name in frame}
    else:
        return frame if kind == "pandas" else {name: frame[name].to_numpy() for name in frame}
    return path


def d4rl(columns, path, leave_out=()):
    """An HDF5 file in the layout of D4RL, with behaviour probabilities as logarithms."""
    names = {
        "observations": "obs", "next_observations": "next_obs", "actions": "action", "rewards": "reward",
        "terminals": "terminated", "timeouts": "truncated",
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        for name, field in names.items():
            if name not in leave_out and field in columns:
                file.create_dataset(name, data=columns[field], compression="gzip")
        if "behaviour_prob" in columns:
            file.create_group("infos")["action_log_probs"] = np.log(columns["behaviour_prob"])
        file.create_group("metadata")["algorithm"] = "text that is not needed"
    return path


def buffers(columns):
    """Episode buffers of Minari."""
    for episode in np.unique(columns["episode"]):
        here = columns["episode"] == episode
        yield EpisodeBuffer(
            id=int(episode),
            observations=np.concatenate([columns["obs"][here], columns["next_obs"][here][-1:]]),
            actions=columns["action"][here],
            rewards=list(columns["reward"][here]),
            terminations=list(columns["terminated"][here]),
            truncations=list(columns["truncated"][here]),
            infos={"prob": columns["behaviour_prob"][here]},
        )


def minari_dataset(columns, root, name="lab/walk-v0", space=None, **settings):
    """The folder of a dataset that Minari writes under `root`."""
    width = columns["obs"].shape[1:]
    with warnings.catch_warnings(), mock.patch.dict(os.environ, MINARI_DATASETS_PATH=str(root)):
        warnings.simplefilter("ignore")  # Minari asks for an author, a description, ...
        minari.create_dataset_from_buffers(
            name,
            list(buffers(columns)),
            observation_space=space or gymnasium.spaces.Box(-np.inf, np.inf, width, np.float64),
            action_space=gymnasium.spaces.Discrete(3),
            **settings,
        )
    return root / name


def json_steps(columns, path):
    """JSON Lines with one step per line."""
    table = {name: values.tolist() for name, values in columns.items()}
    lines = [json.dumps(dict(zip(table, step, strict=True))) for step in zip(*table.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def rllib(columns, folder, name="output-2024-05-01_12-00-00_worker-0_0.json", size=8):
    """A file in the format of RLlib's JsonWriter without packing: batches of `size` steps, which cut episodes.

    RLlib itself is not installed: the keys and the spacing are those of its files.
    """
    n = len(columns["reward"])
    first = np.append(True, columns["episode"][1:] != columns["episode"][:-1])
    batch = {
        "obs": columns["obs"],
        "new_obs": columns["next_obs"],
        "actions": columns["action"],
        "prev_actions": np.zeros(n, int),
        "rewards": columns["reward"],
        "terminateds": columns["terminated"],
        "truncateds": columns["truncated"],
        "eps_id": columns["episode"],
        "unroll_id": np.arange(n) // size,
        "agent_index": np.zeros(n, int),
        "t": np.arange(n) - np.maximum.accumulate(np.where(first, np.arange(n), 0)),
        "vf_preds": np.zeros(n),
        "action_dist_inputs": np.zeros((n, 3)),
        "action_prob": columns["behaviour_prob"],
        "action_logp": np.log(columns["behaviour_prob"]),
        "weights": np.ones(n),
    }
    with open(folder / name, "w") as file:
        for start in range(0, n, size):
            part = {key: values[start : start + size].tolist() for key, values in batch.items()}
            part = {"type": "SampleBatch", **part, "infos": [{}] * len(part["t"])}
            file.write(json.dumps(part) + "\n")
    return folder / name


def parquet_parts(columns, folder, size=4):
    """A folder of Parquet parts with more than ten names, which sort differently as text, and Spark's markers."""
    parts = folder / "parts"
    parts.mkdir()
    table = pa.table(flat(columns))
    for number, start in enumerate(range(0, len(table), size)):
        pq.write_table(table.slice(start, size), parts / f"part-{number}.parquet")
    (parts / "_SUCCESS").touch()
    (parts / ".part-0.parquet.crc").write_bytes(b"crc")
    return parts


def arrow_list(values):
    return pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])


WRITERS = {
    "dict": lambda columns, folder: columns,
    "pandas": lambda columns, folder: pd.DataFrame(flat(columns)),
    "arrow": lambda columns, folder: pa.table(flat(columns)),
    "csv": lambda columns, folder: (
        pd.DataFrame(flat(columns)).to_csv(folder / "log.csv", index=False) or folder / "log.csv"
    ),
    "parquet": lambda columns, folder: (
        pq.write_table(pa.table(flat(columns)), folder / "log.parquet", row_group_size=7) or folder / "log.parquet"
    ),
    "parquet with lists": lambda columns, folder: (
        pq.write_table(
            pa.table({name: arrow_list(v) if v.ndim == 2 else v for name, v in columns.items()}),
            folder / "list.parquet",
        )
        or folder / "list.parquet"
    ),
    "npz": lambda columns, folder: (
        np.savez(
            folder / "log.npz",
            **{
                {"obs": "observation", "next_obs": "next_observation"}.get(name, name): v for name, v in columns.items()
            },
        )
        or folder / "log.npz"
    ),
    "json lines": lambda columns, folder: json_steps(columns, folder / "log.jsonl"),
    "rllib": rllib,
    "parquet parts": parquet_parts,
    "d4rl": lambda columns, folder: d4rl(columns, folder / "log.hdf5"),
    "minari": minari_dataset,
}


def assert_same_log(log, other, *, rows=True):
    """Equal to the bit, with the same stored rows; or, without `rows`, with equal steps."""
    for field in dataclasses.fields(vf.Transitions):
        left, right = getattr(log, field.name), getattr(other, field.name)
        if field.name == "filling":
            assert left == right
        if field.name in ("notes", "warnings", "source", "names", "filling", "continuity") or (
            not rows and field.name in ("observations", "now", "next")
        ):
            continue
        np.testing.assert_array_equal(left, right, err_msg=field.name)
        assert left is None or left.dtype == right.dtype, field.name
    np.testing.assert_array_equal(log.observations[log.now], other.observations[other.now])
    continues = log.next >= 0
    np.testing.assert_array_equal(continues, other.next >= 0)
    np.testing.assert_array_equal(log.observations[log.next[continues]], other.observations[other.next[continues]])


def expected(columns=None):
    """The log of these columns, built directly from arrays."""
    columns = dict(steps() if columns is None else columns)
    return vf.Transitions.from_arrays(
        columns.pop("obs"), columns.pop("reward"), next_observation=columns.pop("next_obs"), **columns
    )
