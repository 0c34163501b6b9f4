from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sparse

import valuefit as vf
from helpers.streamed import log_with_actions
from valuefit.features.registry import make
from valuefit.streaming.shuffled import Layout, ShuffledCopy


def copy_of(problem: vf.Problem, copies: np.ndarray, steps: int = 70) -> ShuffledCopy:
    """A shuffled copy of a problem in two parts."""
    phi = problem.phi
    layout = Layout(problem.d, phi.longest, problem.sparse, phi.dtype, problem.trace)
    copy = ShuffledCopy(problem.n, int(copies.sum()), layout, steps)
    copy.deal(layout.pack(problem, np.zeros(0, int)), copies)
    copy.shuffle()
    return copy


def rows_of(kernel: object, d: int) -> np.ndarray:
    if isinstance(kernel, tuple):
        return sparse.csr_array(kernel, shape=(len(kernel[2]) - 1, d)).toarray()
    return np.asarray(kernel)


def contents(copy: ShuffledCopy, d: int) -> np.ndarray:
    """Every step of the copy, with its weight: [now, next, u, discount, weight]."""
    found = []
    for rows, draws, weight in copy.draw(np.random.default_rng(0), copy.total):
        phi, u = rows_of(rows.phi, d), rows_of(rows.u, d)
        columns = phi[draws.now], phi[draws.next], draws.u_factor[:, None] * u[draws.u_row]
        found.append(np.column_stack([*columns, draws.discount, weight]))
    return np.concatenate(found)


@pytest.mark.parametrize("trace", [0.0, 0.7])
@pytest.mark.parametrize("features", ["fourier:order=2", "tiles:tilings=4"])
def test_the_copy_has_every_step_as_often_as_asked(features: str, trace: float) -> None:
    log = log_with_actions(10)
    problem = vf.Problem(log, make(features, log)[0], discount=0.9, trace=trace)
    copies = np.random.default_rng(1).integers(1, 4, problem.n)
    found = contents(copy_of(problem, copies), problem.d)
    every = np.arange(problem.n)
    phi, u = problem.phi.matrix, problem.u.matrix
    phi, u = (x.toarray() if sparse.issparse(x) else x for x in (phi, u))
    u = u if trace else problem.ratio[:, None] * u[problem.now]
    weight = copies.sum() / (problem.n * copies)
    expected = np.column_stack([phi[problem.now], phi[problem.next], u, problem.discount, weight])
    expected = np.repeat(expected[every], copies, axis=0)
    assert not np.array_equal(found, expected)
    order, same = np.lexsort(found.T), np.lexsort(expected.T)
    np.testing.assert_array_equal(found[order], expected[same])
    assert weight @ copies == pytest.approx(copies.sum() * problem.n / problem.n)


def test_neighbours_in_the_copy_are_far_apart_in_the_log() -> None:
    n = 4000
    problem = vf.Problem.from_rows(np.arange(1.0, n + 1)[:, None], np.arange(n), np.full(n, -1), np.ones(n), 0.9)
    copy = copy_of(problem, np.ones(n, int), steps=250)
    place = contents(copy, 1)[:, 0]
    assert abs(np.corrcoef(place[1:], place[:-1])[0, 1]) < 0.05
    blocks = place.reshape(16, 250).mean(axis=1)
    assert np.ptp(blocks) < 0.2 * n  # the mean of 250 random places has a standard error of 0.018 n


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = log_with_actions(10)
    problem = vf.Problem(log, make("fourier:order=2", log)[0])
    with file_size_limit(1000), pytest.raises(OSError, match=r"has no room for .*Set TMPDIR .* or use 'krylov'"):
        copy_of(problem, np.ones(problem.n, int))
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_of_a_copy_when_the_process_is_killed(tmp_path: Path) -> None:
    script = (
        "import numpy as np, os, signal\n"
        "from valuefit.streaming.shuffled import Layout, ShuffledCopy\n"
        "ShuffledCopy(10, 10, Layout(3, 3, False, np.dtype(float), 0.0), 5)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())
