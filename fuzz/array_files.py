"""Logs in .npz files, folders that `save` wrote, HDF5 files and Minari folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import valuefit as vf
from fuzz.logs import LIMIT, check_load, check_shards
from fuzz.mutators import (
    Rng,
    chance,
    mutate_array,
    mutate_bytes,
    mutate_npy,
    mutate_npz,
    mutate_text,
    npy_bytes,
    npz_bytes,
    number,
    pick,
)
from fuzz.outcome import RIGHT, ask, expect
from fuzz.reference import Columns, Unknown
from fuzz.runner import Target
from fuzz.tables import base_table, mutate_table
from valuefit.data import shards

# ---- arrays: .npz, native folder, HDF5, Minari -----------------------------------------------------------


def _vector_names(columns: Columns) -> dict[str, Any]:
    """The columns as arrays, with obs_0, obs_1, ... joined; raises where an array cannot hold the values."""
    arrays = {}
    for name in ("obs", "next_obs"):
        parts = [column for column in columns if column.startswith(f"{name}_") and column[len(name) + 1 :].isdigit()]
        if parts:
            rows = zip(*(columns[part] for part in parts), strict=False)
            arrays[name] = np.array([[np.nan if v is None else v for v in row] for row in rows])
    for name, values in columns.items():
        if not name.startswith(("obs_", "next_obs_")):
            arrays[name] = np.array([np.nan if value is None else value for value in values])
    return {name: array for name, array in arrays.items() if array.dtype.kind in "biufUS"}


def _mutated_arrays(rng: Rng) -> dict[str, Any]:
    columns = base_table(rng)
    mutate_table(rng, columns)
    try:
        arrays = _vector_names(columns)
    except (ValueError, TypeError, OverflowError):
        arrays = _vector_names(base_table(rng))
    if arrays and chance(rng, 0.3):
        name = pick(rng, list(arrays))
        arrays[name] = mutate_array(rng, arrays[name])
    return arrays


def npz_case(rng: Rng, folder: Path) -> str | None:
    arrays = _mutated_arrays(rng)
    if any("/" in name or "\n" in name for name in arrays):
        arrays = {name.replace("/", "").replace("\n", ""): array for name, array in arrays.items()}
    data = npz_bytes(rng, {f"{name}.npy": npy_bytes(array) for name, array in arrays.items()})
    damaged = bool(arrays) and chance(rng, 0.6)
    if damaged:
        data = mutate_npz(rng, data)
    path = folder / "log.npz"
    path.write_bytes(data)

    def plain() -> Columns:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name].tolist() for name in stored.files if f"{name}.npy" in stored.zip.namelist()}

    return check_load(rng, path, plain, damaged=damaged)


def native_case(rng: Rng, folder: Path) -> str | None:
    """A folder that `save` wrote, with one file changed."""
    path = folder / "log"
    shutil.rmtree(path, ignore_errors=True)
    log = vf.load(_vector_names(base_table(rng)))
    vf.save(log, path)
    files = sorted(path.iterdir())
    for file in (pick(rng, files) for _ in range(int(rng.integers(1, 3)))):
        if file.suffix == ".json":
            file.write_bytes(_mutated_json(rng, file.read_text(errors="replace")))
        elif file.exists():
            file.write_bytes(mutate_npy(rng, file.read_bytes())) if chance(rng, 0.95) else file.unlink()
    if chance(rng, 0.3):
        shards.MIN_SHARD_STEPS = int(rng.integers(1, 30))
        check_shards(path)
        return RIGHT
    loaded = ask(vf.load, path, limit=LIMIT)
    for file in files:
        if file.suffix == ".npy" and file.exists():
            try:
                stored = np.load(file, allow_pickle=False)
            except Exception:  # NumPy's own limits on headers
                continue
            found = getattr(loaded, file.stem)
            same = np.array_equal(found, stored) or np.allclose(found, stored, rtol=0, atol=0, equal_nan=False)
            expect(same and found.shape == stored.shape, f"{file.name} was read as other numbers")
    if chance(rng, 0.3):
        ask(vf.evaluate, loaded, features="one-hot" if loaded.has_numbered_states else "identity", discount=0.9)
    return RIGHT


def _mutated_json(rng: Rng, text: str) -> bytes:
    if chance(rng, 0.5) or "\n" in text:
        return mutate_text(rng, text.replace(", ", ",\n"))
    facts = json.loads(text)
    odd = [None, -1, 0, 10**30, 1e300, "x", [], [1], {}, True, ["\x1b[31m"], number(rng)]
    facts[pick(rng, [*facts, "extra"])] = pick(rng, odd)
    return json.dumps(facts).encode()


D4RL = {"obs": "observations", "next_obs": "next_observations", "reward": "rewards", "terminated": "terminals",
"truncated": "timeouts",
        "action": "actions"}  # fmt: skip


def hdf5_case(rng: Rng, folder: Path) -> str | None:
    path = folder / "log.h5"
    with h5py.File(path, "w", libver=pick(rng, ["earliest", "latest"])) as file:
        for name, array in _mutated_arrays(rng).items():
            _write_dataset(rng, file, D4RL.get(name, name), array)
        file.create_group("metadata")["algorithm"] = "text that is not needed"
    damaged = chance(rng, 0.6)
    if damaged:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))

    if chance(rng, 0.3):
        shards.MIN_SHARD_STEPS = int(rng.integers(1, 30))
        check_shards(path)
        return RIGHT

    def plain() -> Columns:
        columns: Columns = {}
        with h5py.File(path, "r") as file:
            for name in file:
                if isinstance(file[name], h5py.Dataset):
                    columns[name] = np.asarray(file[name][()]).tolist()
        return columns

    return check_load(rng, path, plain, damaged=damaged)


def _write_dataset(rng: Rng, group: Any, name: str, array: Any) -> None:
    name = name.replace("\x00", "").replace("/", "").strip(".") or "x"
    if array.dtype.kind not in "biufc" or name in group:
        array, name = np.zeros(3), f"text {name[:20]}"
    options: dict[str, Any] = {}
    if array.size and array.ndim and chance(rng, 0.5):
        options = {"compression": pick(rng, ["gzip", "lzf", None]), "chunks": True, "shuffle": chance(rng, 0.5)}
    with np.errstate(all="ignore"):
        group.create_dataset(name, data=array.astype(np.float64) if array.dtype.char == "g" else array, **options)


def minari_case(rng: Rng, folder: Path) -> str | None:
    """A Minari folder as Minari 0.5 writes it, with mutated arrays, metadata or bytes."""
    data = folder / "walk-v0" / "data"
    data.mkdir(parents=True, exist_ok=True)
    width = int(rng.integers(1, 4))
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for episode in range(int(rng.integers(2, 5))):
            n = int(rng.integers(1, 6))
            arrays = {
                "observations": np.round(rng.normal(size=(n + 1, width)), 3), "actions": rng.integers(0, 3, n),
                "rewards": rng.normal(size=n),
                "terminations": np.arange(n) == n - 1 + episode % 2,
                "truncations": np.arange(n) == n - 1 - (episode + 1) % 2 * n,
            }  # fmt: skip
            group = file.create_group(f"episode_{episode}")
            for name, array in arrays.items():
                if chance(rng, 0.99):
                    _write_dataset(rng, group, name, mutate_array(rng, array) if chance(rng, 0.02) else array)
            group.attrs["id"] = episode
    space = json.dumps(
        {"type": "Box", "dtype": "float64", "shape": [width], "low": [-1.0] * width, "high": [1.0] * width}
    )
    metadata = json.dumps(
        {"total_episodes": 3, "data_format": "hdf5", "observation_space": space, "dataset_id": "walk-v0"}
    )
    path = data / "main_data.hdf5"
    draw = rng.random()
    if draw < 0.2:
        metadata = _mutated_json(rng, metadata).decode("utf-8", "replace")
    elif draw < 0.75:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    (data / "metadata.json").write_text(metadata)
    if chance(rng, 0.3):
        shards.MIN_SHARD_STEPS = int(rng.integers(1, 10))
        check_shards(folder / "walk-v0")
        return RIGHT
    return check_load(rng, folder / "walk-v0", lambda: _plain_minari(path), damaged=draw < 0.75)


def _plain_minari(path: Path) -> Columns:
    names = ("observations", "rewards", "terminations", "truncations", "actions")
    columns: Columns = {name: [] for name in ("episode", "obs", "next_obs", *names[1:])}
    with h5py.File(path, "r") as file:
        groups = sorted(file, key=lambda name: int(name.removeprefix("episode_")))
        for episode in groups:
            arrays = {name: np.asarray(file[episode][name][()]).tolist() for name in names}
            n = len(arrays["rewards"])
            if any(len(arrays[name]) != n + (name == "observations") for name in names):
                raise Unknown
            columns["episode"] += [int(episode.removeprefix("episode_"))] * n
            columns["obs"] += arrays["observations"][:-1]
            columns["next_obs"] += arrays["observations"][1:]
            for name in names[1:]:
                columns[name] += arrays[name]
    return columns


TARGETS = [
    Target("npz", npz_case),
    Target("native", native_case),
    Target("hdf5", hdf5_case, cases=1000),
    Target("minari", minari_case, cases=1000),
]
