"""The memory of a streamed evaluation, in a process of its own with a limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import valuefit as vf
from helpers.streamed import FILE_KINDS, in_shards, log_with_actions

MEMORY_SCRIPT = Path(__file__).parents[1] / "helpers" / "memory.py"
WIDTH, LENGTH = 32, 250  # numbers in an observation, steps in an episode
MORE_MIB, PEAK_MIB = 96, 72  # that a process may take more, and its peak; all observations would take 98


# quick: the format whose reader is likeliest to hold more than it is asked for
@pytest.mark.parametrize(
    "kind", [kind if kind == "parquet" else pytest.param(kind, marks=pytest.mark.slow) for kind in FILE_KINDS]
)
def test_memory_is_bounded_and_no_reader_holds_the_file(kind: str, tmp_path: Path) -> None:
    paths = [write_log(kind, tmp_path / name, episodes) for name, episodes in (("large", 1600), ("small", 400))]
    done = subprocess.run(
        [sys.executable, MEMORY_SCRIPT, *paths, str(MORE_MIB)], capture_output=True, text=True, check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-500:]
    steps, peak, error = map(float, done.stdout.split())
    assert steps == 1600 * LENGTH
    assert peak <= PEAK_MIB
    assert error > 0


def write_log(kind: str, folder: Path, episodes: int) -> Path:
    """A log in one file of a format, Parquet with a single row group."""
    folder.mkdir()
    rng, n = np.random.default_rng(0), episodes * LENGTH
    x, last = rng.standard_normal((n, WIDTH)), np.arange(n) % LENGTH == LENGTH - 1
    columns = {"observations": x, "rewards": x[:, 0], "terminations": last}
    if kind == "native":
        return vf.save(vf.Transitions.from_arrays(x, x[:, 0], terminated=last), folder / "log")
    if kind == "parquet":
        table = pa.table({**{f"obs_{i}": x[:, i] for i in range(WIDTH)}, "reward": x[:, 0], "terminated": last})
        pq.write_table(table, folder / "log.parquet", row_group_size=n, use_dictionary=False, data_page_size=1 << 16)
        return folder / "log.parquet"
    if kind == "hdf5":
        with h5py.File(folder / "log.h5", "w") as file:
            file.update(columns)
        return folder / "log.h5"
    few = log_with_actions(2)
    path = Path(in_shards(few, folder, "minari").source)
    (path / "data" / "metadata.json").write_text("{}")  # without the shape of the observations of that log
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        for episode in range(episodes):
            here = slice(episode * LENGTH, (episode + 1) * LENGTH)
            group = file.create_group(f"episode_{episode}")
            group.update({name: values[here] for name, values in columns.items()})
            del group["observations"]
            group["observations"] = np.concatenate([x[here], x[here][-1:]])
    return path
