"""Atomic writes: whole files for every reader, nothing left after a failure, targets checked before the work."""

import os
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

import valuefit as vf
from valuefit import atomic

# Write files of one letter each until a file "stop" appears.
WRITER = """
import sys
from pathlib import Path
from valuefit.atomic import write_bytes
path, letter = Path(sys.argv[1]), sys.argv[2]
while not (path.parent / "stop").exists():
    write_bytes(path, letter.encode() * 50_000)
"""
# End as by kill -9 after the first of the two renames of a folder.
KILLED_BETWEEN_RENAMES = """
import os, sys
from pathlib import Path
from valuefit import atomic
rename = os.rename
def killed(old, new):
    rename(old, new)
    os._exit(9)
os.rename = killed
with atomic.replacing(Path(sys.argv[1]), folder=True) as temporary:
    temporary.mkdir()
    (temporary / "file").write_text("new")
"""
REFUSED_TO_NOBODY = """
import os, sys
from pathlib import Path
from valuefit import atomic
os.setuid(65534)
try:
    atomic.check_target(Path(sys.argv[1]), force=True)
except OSError as error:
    print(error, end="")
"""


def child(code, *arguments):
    """Start a process that runs the code."""
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)])


def test_a_reader_sees_whole_files_while_eight_threads_and_two_processes_write(tmp_path):
    path = tmp_path / "file"
    atomic.write_bytes(path, b"0" * 50_000)
    processes = [child(WRITER, path, letter) for letter in "ab"]
    failures, seen = [], set()

    def write(letter):
        try:
            for _ in range(12):
                atomic.write_bytes(path, letter * 50_000)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(b"%d" % number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        content = path.read_bytes()
        assert len(content) == 50_000
        assert len(set(content)) == 1
        seen.add(content[:1])
    while not seen & {b"a", b"b"}:
        seen.add(path.read_bytes()[:1])
    (tmp_path / "stop").touch()
    assert [process.wait(60) for process in processes] == [0, 0]
    assert failures == []
    assert {entry.name for entry in tmp_path.iterdir()} == {"file", "stop"}


def test_contents_are_on_disk_before_the_name_changes(tmp_path, monkeypatch):
    calls = []
    fsync, replace, rename = os.fsync, os.replace, os.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("sync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda old, new: (calls.append("rename"), replace(old, new)))
    monkeypatch.setattr(os, "rename", lambda old, new: (calls.append("rename"), rename(old, new)))
    atomic.write_bytes(tmp_path / "file", b"text")
    assert calls == ["sync", "rename", "sync"]
    calls.clear()
    with atomic.replacing(tmp_path / "folder", folder=True) as temporary:
        temporary.mkdir()
        for name in "ab":
            (temporary / name).write_text(name)
    assert calls == ["sync", "sync", "sync", "rename", "sync"]


def folder_of(path, text):
    with atomic.replacing(path, folder=True) as temporary:
        temporary.mkdir()
        (temporary / "file").write_text(text)
    return path


@pytest.mark.parametrize("finish", ["read", "write"])
def test_a_folder_replaced_by_a_killed_process_is_found_again(tmp_path, finish):
    path = folder_of(tmp_path / "folder", "old")
    assert child(KILLED_BETWEEN_RENAMES, path).wait(60) == 9
    assert not path.exists()
    if finish == "read":
        assert atomic.read_folder(path, (path / "file").read_text) == "old"
    else:
        folder_of(path, "newer")
        assert (path / "file").read_text() == "newer"
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix != ".tmp"] == ["folder"]


def test_the_old_folder_comes_back_when_the_second_rename_fails(tmp_path, monkeypatch):
    path = folder_of(tmp_path / "folder", "old")
    rename = os.rename

    def busy(old, new):
        if Path(new) == path and Path(old).suffix == ".tmp":
            raise OSError("busy")
        rename(old, new)

    monkeypatch.setattr(os, "rename", busy)
    with pytest.raises(OSError, match="folder cannot be written: busy"):
        folder_of(path, "new")
    assert (path / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(tmp_path):
    path = folder_of(tmp_path / "folder", "old")
    versions = iter(["second", "third"])

    def read():
        before = (path / "file").read_text()
        with suppress(StopIteration):
            folder_of(path, next(versions))
        return before, (path / "file").read_text()

    assert atomic.read_folder(path, read) == ("third", "third")


def test_names_up_to_the_limit_of_the_file_system_are_written(tmp_path):
    for name in ("x" * 255, "ü" * 127):
        assert atomic.write_bytes(tmp_path / name, b"text").read_bytes() == b"text"
    with pytest.raises(OSError, match=r"The name x{40}\.\.\. is too long to be written\. Choose a shorter one\."):
        atomic.check_target(tmp_path / ("x" * 256), force=True)


def test_a_read_only_folder_is_refused_before_the_work(tmp_path):
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(0o755)  # nobody must be able to enter
    tmp_path.chmod(0o555)
    if os.getuid() == 0:
        command = [sys.executable, "-c", REFUSED_TO_NOBODY, tmp_path / "file"]
        message = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    else:
        with pytest.raises(OSError, match="cannot be written") as caught:
            atomic.check_target(tmp_path / "file", force=True)
        message = str(caught.value)
    assert message == f"{tmp_path / 'file'} cannot be written: Permission denied."


@pytest.mark.parametrize(
    ("name", "folder", "message"),
    [
        ("none/file", False, "There is no folder '.*none' to write into. Create it first."),
        ("old", False, "old already exists. Choose another name, or overwrite it with force=True."),
        ("..", False, "is no name to write to"),
    ],
)
def test_targets_that_cannot_be_written_are_refused(tmp_path, name, folder, message):
    (tmp_path / "old").touch()
    with pytest.raises(ValueError, match=message):
        atomic.check_target(tmp_path / name, force=False, folder=folder)


def test_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is a device or a pipe, which cannot be replaced"):
        atomic.write_bytes(tmp_path / "pipe", b"text")


def test_a_target_that_appears_meanwhile_is_kept(tmp_path):
    path = tmp_path / "file"

    def write():
        with atomic.replacing(path, force=False) as temporary:
            temporary.write_text("mine")
            path.write_text("theirs")

    with pytest.raises(ValueError, match="was created while it was being written"):
        write()
    assert path.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has characters that no file name can have"):
        atomic.check_target(tmp_path / "\ud800.npz", force=False)
    for source in ("\ud800", ["\ud800.csv", "log.csv"]):
        with pytest.raises(ValueError, match="no file name has these characters"):
            vf.load(source)


HOLD = """
import fcntl, os, sys, time
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(("held", "most"), [(0.6, 30.0), (60.0, 0.5)])
def test_a_lock_of_another_program_is_named_and_not_waited_for_without_end(tmp_path, monkeypatch, held, most):
    monkeypatch.setattr(atomic, "SILENT_LOCK_SECONDS", 0.1)
    monkeypatch.setattr(atomic, "MAX_LOCK_SECONDS", most)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path, str(held)], stdout=subprocess.PIPE)
    message = f"Another program has locked the folder {tmp_path} for .* seconds"
    refused = nullcontext() if held < most else pytest.raises(OSError, match=message)
    try:
        assert holder.stdout.readline() == b"locked\n"
        waiting = f"Waiting for another program that has locked the folder {tmp_path}"
        with refused, pytest.warns(UserWarning, match=waiting):
            atomic.write_bytes(tmp_path / "file", b"content")
    finally:
        holder.kill()
        holder.communicate()
    atomic.write_bytes(tmp_path / "file", b"content")  # that program has ended
    assert (tmp_path / "file").read_bytes() == b"content"
