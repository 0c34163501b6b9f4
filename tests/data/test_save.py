"""Saved logs under concurrent writers and after failures: every load gives one whole log."""

import resource
import subprocess
import sys
import threading

import numpy as np
import pytest

import valuefit as vf
from valuefit.data.save import check_save

NAMES = ["folder", "log.npz", "log.parquet"]
# Save logs whose rewards are all one number until a file "stop" appears.
WRITER = """
import sys
from pathlib import Path
import numpy as np
import valuefit as vf
path, number = Path(sys.argv[1]), float(sys.argv[2])
log = vf.Transitions.from_arrays(np.full(300, number), np.full(300, number), terminated=np.arange(300) == 299)
while not (path.parent / "stop").exists():
    vf.save(log, path, force=True)
"""


def uniform(number, steps=300):
    """A log whose observations and rewards all are `number`."""
    last = np.arange(steps) == steps - 1
    return vf.Transitions.from_arrays(np.full(steps, number), np.full(steps, number), terminated=last)


@pytest.mark.parametrize("name", NAMES)
def test_every_load_is_of_one_version_while_threads_and_processes_save(tmp_path, name):
    path = vf.save(uniform(0.0), tmp_path / name)
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, path, str(number)]) for number in (100, 101)]
    failures = []

    def write(number):
        try:
            for _ in range(8):
                vf.save(uniform(number), path, force=True)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(float(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    seen, loads = set(), 0
    while any(thread.is_alive() for thread in threads) or (loads < 2000 and not seen & {100.0, 101.0}):
        log = vf.load(path)
        numbers = {*log.reward.tolist(), *np.ravel(log.observations).tolist()}
        assert len(numbers) == 1
        seen |= numbers
        loads += 1
    (tmp_path / "stop").touch()
    assert [process.wait(60) for process in processes] == [0, 0]
    assert failures == []
    assert {entry.name for entry in tmp_path.iterdir()} == {name, "stop"}


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_keeps_the_old_log(tmp_path, name):
    path = vf.save(uniform(0.0), tmp_path / name)
    rewards = np.random.default_rng(0).random(10_000)  # Parquet compresses equal ones
    large = vf.Transitions.from_arrays(rewards, rewards, terminated=np.arange(10_000) == 9_999)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match=f"{name} cannot be written: "):
            vf.save(large, path, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert set(vf.load(path).reward) == {0.0}
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["x" * 256, "x" * 252 + ".npz"])
def test_long_names_are_refused_before_the_work(tmp_path, name):
    with pytest.raises(OSError, match="is too long to be written"):
        check_save(tmp_path / name, force=False)


def test_a_name_of_255_bytes_is_saved_and_replaced(tmp_path):
    path = vf.save(uniform(0.0), tmp_path / ("x" * 255))
    vf.save(uniform(1.0), path, force=True)
    assert set(vf.load(path).reward) == {1.0}
