"""Damaged files of every format load or are refused in one sentence; no other exception, no abort."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import mutations

CASES = 150


def check(counts, kind):
    assert sum(counts.values()) == CASES
    assert counts["refused"] > CASES / 10
    if kind != "minari":  # most of its file is structure
        assert counts["loaded"] > 0


@pytest.mark.parametrize("kind", ["npz", "folder", "csv"])
def test_damaged_files_load_or_are_refused(kind, tmp_path):
    check(mutations.outcomes(kind, tmp_path, CASES), kind)


@pytest.mark.parametrize("kind", ["parquet", "parquet with lists", "d4rl", "minari"])
def test_damaged_files_do_not_end_the_process(kind, tmp_path):
    """In a process of its own: pyarrow and h5py run code in C and C++, which could abort."""
    command = [sys.executable, mutations.__file__, kind, str(tmp_path), str(CASES)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(mutations.__file__).parents[1]), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    check({"loaded": 0, **ast.literal_eval(done.stdout.splitlines()[-1])}, kind)
