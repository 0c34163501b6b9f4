from __future__ import annotations

import errno
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import even_policy, in_shards, log_with_actions
from valuefit.data import shards
from valuefit.data.shards import ShardedLog
from valuefit.streaming.checkpoint import Checkpoint, facts_of
from valuefit.streaming.parts import Part, Parts

OPTIONS: dict[str, Any] = {"features": "fourier:order=3", "discount": 0.9}
RUN = """
import json, sys, time
import valuefit as vf
from valuefit.data.shards import NativeShard, open_shards
path, folder, solver, limit = sys.argv[1:]
read = NativeShard.read
NativeShard.read = lambda shard: (time.sleep(0.01), read(shard))[1]
log = open_shards(path, columns=None, limit=int(limit))
found = vf.evaluate(log, features="fourier:order=3", discount=0.9, solver=solver, checkpoint=folder)
facts = found.to_dict()
del facts["solver"]["seconds"], facts["notes"]  # which name what was faster
print(json.dumps([facts, found.result.theta.tobytes().hex()]))
"""


@pytest.fixture
def sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardedLog:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)
    return in_shards(log_with_actions(), tmp_path, "native")


def same(one: vf.Evaluation, other: vf.Evaluation) -> bool:
    first, second = one.to_dict(), other.to_dict()
    for facts in (first, second):
        del facts["solver"]["seconds"], facts["notes"]
    return first == second and np.array_equal(one.result.theta, other.result.theta)


@pytest.mark.parametrize("solver", ["lstd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("krylov",))])
def test_a_killed_run_goes_on_to_the_same_bits(solver: str, tmp_path: Path) -> None:
    log = log_with_actions(200)
    vf.save(log, tmp_path / "log")
    arguments = str(tmp_path / "log"), str(tmp_path / "kept"), solver, str(8 * 64 * 500)
    expected = _run_to_the_end(*arguments[:1], str(tmp_path / "other"), *arguments[2:])
    rng, killed = random.Random(solver), 0
    for least in (1, 2):  # files of passes when it is killed: soon after the first, and later
        process = subprocess.Popen([sys.executable, "-c", RUN, *arguments], stdout=subprocess.PIPE)
        while process.poll() is None and len(list((tmp_path / "kept").glob("pass-*"))) < least:
            time.sleep(0.002)
        time.sleep(0.05 * rng.random())
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        process.communicate()
    assert killed >= 1
    assert _run_to_the_end(*arguments) == expected


def _run_to_the_end(*arguments: str) -> Any:
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, check=True, text=True)
    return json.loads(done.stdout)


def test_a_second_run_reads_no_shard_of_a_finished_pass(
    sharded: ShardedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = vf.evaluate(sharded, **OPTIONS)
    first = vf.evaluate(sharded, checkpoint=tmp_path / "kept", **OPTIONS)
    reads: list[Any] = []
    original = shards.NativeShard.read
    monkeypatch.setattr(shards.NativeShard, "read", lambda shard: reads.append(shard) or original(shard))
    second = vf.evaluate(sharded, checkpoint=str(tmp_path / "kept"), **OPTIONS)
    assert same(plain, first)
    assert same(first, second)
    assert len(reads) == len(sharded.shards)  # for the samples


def _count(part: Part, *, stop: type[Exception], until: int) -> tuple[int, list[Any]]:
    if part.place[0] >= until:
        raise stop
    return part.problem.n, [part.place]


def test_finished_passes_survive_a_full_disk(
    sharded: ShardedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, task = tmp_path / "kept", partial(_count, stop=ValueError, until=len(sharded.shards))
    facts = facts_of(sharded.shards, {})
    parts = Parts(
        sharded.shards, partial(vf.Problem, part=True, discount=0.9), 1000, checkpoint=Checkpoint(kept, facts, ())
    )
    first = parts.sum(task)
    before = {file.name: file.read_bytes() for file in kept.iterdir()}
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        write(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"pass-000002 cannot be written.*[Nn]o space left on device"):
        parts.sum(task)
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == before
    assert Checkpoint(kept, facts, ()).sums(task, compute=_fail) == first


def test_the_sums_of_another_pass_are_not_taken(sharded: ShardedLog, tmp_path: Path) -> None:
    facts = facts_of(sharded.shards, {})
    for number, until in enumerate((1, 2, 2)):
        task = partial(_count, stop=ValueError, until=until)
        sums = Checkpoint(tmp_path / "kept", facts, ()).sums(task, compute=lambda number=number: (number, []))
        assert sums == (min(number, 1), [])


def _fail() -> tuple[Any, ...]:
    raise AssertionError("the pass is made again")


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_file_is_computed_again_with_a_warning(damage: str, sharded: ShardedLog, tmp_path: Path) -> None:
    first = vf.evaluate(sharded, checkpoint=tmp_path / "kept", **OPTIONS)
    path = tmp_path / "kept" / "pass-000001"
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[:-100], "flipped": bytes(flipped), "empty": b""}[damage])
    with pytest.warns(UserWarning, match="is damaged: this pass over the log is made again"):
        again = vf.evaluate(sharded, checkpoint=tmp_path / "kept", **OPTIONS)
    assert same(first, again)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"features": "fourier:order=2"}, "features"),
        ({"discount": 0.8}, "discount"),
        ({"solver": "krylov"}, "solver"),
        ({"policy": even_policy}, "policy"),
        ({"starts": np.zeros((1, 2))}, "starts"),
    ],
)
def test_the_checkpoint_of_other_options_is_refused(
    other: dict[str, Any], named: str, sharded: ShardedLog, tmp_path: Path
) -> None:
    vf.evaluate(sharded, checkpoint=tmp_path / "kept", **OPTIONS)
    with pytest.raises(ValueError, match=f"is the checkpoint of another evaluation: {named} differ"):
        vf.evaluate(sharded, checkpoint=tmp_path / "kept", **{**OPTIONS, **other})


def test_the_checkpoint_of_another_log_is_refused(sharded: ShardedLog, tmp_path: Path) -> None:
    vf.evaluate(sharded, checkpoint=tmp_path / "kept", **OPTIONS)
    os.utime(tmp_path / "log" / "reward.npy")
    again = replace(shards.open_shards(tmp_path / "log", columns=None, limit=8 * 64 * 200), limit=sharded.limit)
    with pytest.raises(ValueError, match="another evaluation: log differ"):
        vf.evaluate(again, checkpoint=tmp_path / "kept", **OPTIONS)


def test_folders_that_are_no_checkpoint_are_refused(sharded: ShardedLog, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Create it first"):
        vf.evaluate(sharded, checkpoint=tmp_path / "a" / "b", **OPTIONS)
    with pytest.raises(ValueError, match="other files than a checkpoint"):
        vf.evaluate(sharded, checkpoint=tmp_path / "log", **OPTIONS)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "evaluation.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        vf.evaluate(sharded, checkpoint=tmp_path / "kept", **OPTIONS)
    with pytest.raises(ValueError, match="checkpoint is 3; it must be the name of a folder"):
        vf.evaluate(sharded, checkpoint=3, **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="read in parts"):
        vf.evaluate(log_with_actions(), checkpoint=tmp_path / "new", **OPTIONS)


A, B = np.array([[0.2, 0.8], [0.9, 0.1]]), np.array([[0.6, 0.4], [0.5, 0.5]])


def test_functions_are_recognised_by_code_closures_and_defaults(sharded: ShardedLog) -> None:
    def scaled(factor: float) -> Any:
        return lambda x: factor * x

    def with_default(table: Any) -> Any:
        def policy(s: Any, table: Any = table) -> Any:
            return table[s]

        return policy

    def fact(value: Any) -> str:
        return facts_of(sharded.shards, {"policy": value})["policy"]

    assert fact(scaled(1.0)) == fact(scaled(1.0)) != fact(scaled(2.0))
    assert fact(with_default(A)) == fact(with_default(A.copy())) != fact(with_default(B))
    assert fact(lambda s: A[s]) != fact(lambda s: B[s])
    assert fact(lambda s: np.sin(s)) != fact(lambda s: np.cos(s))
    assert fact(lambda s: [x + 1 for x in s]) != fact(lambda s: [x + 2 for x in s])
    assert fact(np.random.default_rng(0).normal) != fact(np.random.default_rng(1).normal)
    assert fact(partial(np.add, 1.0)) != fact(partial(np.add, 2.0))
    assert fact(np.zeros(2)) != fact(np.zeros(3)) != fact(np.zeros(3, np.float32))
    assert fact(vf.solvers.Krylov()) == fact(vf.solvers.Krylov()) != fact(vf.solvers.PDBG())
    with pytest.raises(ValueError, match="A checkpoint must recognise policy again"):
        fact((lambda: (yield))())


def test_the_checkpoint_of_another_policy_file_is_refused(
    sharded: ShardedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = "import numpy as np\nSHARE = {}\ndef choose(x): return np.tile([SHARE, 1 - SHARE], (len(x), 1))\n"
    for share, expected in ((0.5, None), (0.25, "another evaluation: on a sample of the log")):
        (tmp_path / "chooser.py").write_text(text.format(share))
        monkeypatch.delitem(sys.modules, "chooser", raising=False)
        importlib.invalidate_caches()
        with pytest.raises(ValueError, match=expected) if expected else nullcontext():
            vf.evaluate(sharded, checkpoint=tmp_path / "kept", policy="chooser:choose", **OPTIONS)


class Hidden:
    """A policy whose code and pickled state stay the same where its numbers change."""

    tables: ClassVar[list[Any]] = [[0.5, 0.5]]

    def __call__(self, x: Any) -> Any:
        return np.tile(self.tables[0], (len(x), 1))


def test_what_the_policy_computes_on_a_sample_must_be_the_same(
    sharded: ShardedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = vf.evaluate(sharded, checkpoint=tmp_path / "kept", policy=Hidden(), **OPTIONS)
    assert same(first, vf.evaluate(sharded, checkpoint=tmp_path / "kept", policy=Hidden(), **OPTIONS))
    monkeypatch.setattr(Hidden, "tables", [[0.3, 0.7]])
    with pytest.raises(ValueError, match="on a sample of the log the features or the policy compute other numbers"):
        vf.evaluate(sharded, checkpoint=tmp_path / "kept", policy=Hidden(), **OPTIONS)
    assert same(first, vf.evaluate(sharded, policy=Hidden(), **OPTIONS)) is False
