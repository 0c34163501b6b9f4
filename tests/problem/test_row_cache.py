from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import in_shards, log_with_actions
from valuefit.data import shards
from valuefit.features.registry import make
from valuefit.problem import row_cache
from valuefit.problem.parts import Parts
from valuefit.problem.row_cache import CachedParts, cached, packed, unpacked
from valuefit.problem.sharded import ShardedProblem


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)


def choose(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> None:
    """Pretend that making a part, and unpacking it, plain and compressed, take so long."""
    answers = iter([seconds["computed"], seconds["plain"], seconds["compressed"]])
    monkeypatch.setattr(row_cache, "_seconds", lambda work: next(answers))


def parts_of(log: vf.Transitions, folder: Path, features: str, trace: float = 0.0) -> tuple[Parts, list[int]]:
    """The parts of a log, and how many steps each call computed the features of."""
    fitted, calls = make(features, log)[0], []

    def problem(piece: vf.Transitions) -> vf.Problem:
        calls.append(len(piece))
        return vf.Problem(piece, fitted, discount=0.9, trace=trace, part=True)

    return Parts(in_shards(log, folder, "native").shards, problem, 100), calls


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("features", ["fourier:order=2", "tiles:tilings=4"])
def test_a_problem_has_the_same_bits_after_packing(features: str, compressed: bool) -> None:
    log = log_with_actions(10)
    problem = vf.Problem(log, make(features, log)[0], discount=0.9, trace=0.5, part=True)
    found = unpacked(packed(problem, compressed), compressed, 0.5)
    rng = np.random.default_rng(0)
    theta, w = rng.normal(size=problem.d), rng.normal(size=problem.d)
    for one, other in zip(found.B(theta, w), problem.B(theta, w), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found.A, problem.A)
    assert found.sparse == problem.sparse == (features != "fourier:order=2")


@pytest.mark.parametrize("word", ["plain", "compressed"])
def test_rows_that_are_read_faster_are_computed_once(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_with_actions()
    parts, calls = parts_of(log, tmp_path, "fourier:order=2", trace=0.3)
    computed = ShardedProblem(parts, trace=0.3, discount=0.9, ridge=0.0)
    choose(monkeypatch, {"computed": 9.0, "plain": 8.0, "compressed": 8.0} | {word: 1.0})
    rows, note = cached(parts, 0.3)
    assert isinstance(rows, CachedParts)
    assert f"kept on disk, {word}" in note
    calls.clear()
    found = ShardedProblem(rows, trace=0.3, discount=0.9, ridge=0.0)
    one, other = (vf.solve(problem, "krylov", tol=1e-10) for problem in (found, computed))
    np.testing.assert_array_equal(one.theta, other.theta)
    assert sum(calls) > 5 * len(log)  # those of the problem without a cache
    calls.clear()
    vf.solve(found, "pdbg", tol=1e-6)
    assert not calls


def test_rows_that_are_computed_faster_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, _ = parts_of(log_with_actions(10), tmp_path, "fourier:order=2")
    choose(monkeypatch, {"computed": 1.0, "plain": 2.0, "compressed": 2.0})
    assert cached(parts, 0.0) == (parts, "feature rows were computed in every pass")


def test_without_room_on_disk_rows_are_computed_in_every_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, _ = parts_of(log_with_actions(10), tmp_path, "fourier:order=2")
    choose(monkeypatch, {"computed": 9.0, "plain": 1.0, "compressed": 2.0})
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: open("/dev/full", "wb"))  # noqa: SIM115
    rows, note = cached(parts, 0.0)
    assert rows is parts
    assert "computed in every pass, because the disk has no room for them (No space left on device)" in note


@pytest.mark.parametrize(("slow", "word"), [(True, "kept on disk"), (False, "computed in every pass")])
def test_the_notes_say_what_was_chosen(slow: bool, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other: dict[str, Any] = {"plain": 1.0, "compressed": 1.0}
    choose(monkeypatch, {"computed": 9.0 if slow else 0.1, **other})
    sharded = in_shards(log_with_actions(), tmp_path, "native")
    shard, reads = type(sharded.shards[0]), []
    read = shard.read
    monkeypatch.setattr(shard, "read", lambda self: reads.append(self) or read(self))
    found = vf.evaluate(sharded, features="fourier:order=3", discount=0.9, solver="krylov")
    assert word in found.notes[0]
    count, first = divmod(len(reads), len(sharded.shards))
    assert f"once for the samples and {count - 1} times for the solution and its error" in found.notes[0]
    assert first == 1  # read once more to know how long it takes
    assert (count == 4) == slow
    direct = vf.evaluate(sharded, features="fourier:order=3", discount=0.9)
    assert "computed in every pass" in direct.notes[0]
