"""Damaged files of every format load or are refused in one sentence; no other exception, no abort."""

import ast
import os
import subprocess
import sys
from collections import Counter
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


def in_a_process(kind, folder):
    """The counts of outcomes; pyarrow and h5py run code in C and C++, which could abort."""
    command = [sys.executable, mutations.__file__, kind, str(folder), str(CASES)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(mutations.__file__).parents[1]), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return Counter(ast.literal_eval(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("kind", ["parquet", "parquet with lists", "d4rl", "minari"])
def test_damaged_files_do_not_end_the_process(kind, tmp_path):
    check(in_a_process(kind, tmp_path), kind)


def test_damaged_metadata_of_parquet_columns_do_not_end_the_process(tmp_path):
    """pyarrow aborts where the metadata of such a column are asked for, but not where it is read."""
    assert in_a_process("histograms", tmp_path)["refused"] > 10
