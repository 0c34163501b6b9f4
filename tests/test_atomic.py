"""Atomic writes: whole files for every reader, nothing left after a failure, targets checked before the work."""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress

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
# End as by kill -9 after the names of two folders were exchanged.
KILLED_AFTER_EXCHANGE = """
import os, sys
from pathlib import Path
from valuefit import atomic
exchange = atomic._exchange
def killed(new, path):
    exchange(new, path)
    os._exit(9)
atomic._exchange = killed
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


def test_a_folder_whose_writer_was_killed_has_the_new_contents(tmp_path):
    path = folder_of(tmp_path / "folder", "old")
    assert child(KILLED_AFTER_EXCHANGE, path).wait(60) == 9
    assert atomic.read_folder(path, (path / "file").read_text) == "new"
    folder_of(path, "newer")
    assert (path / "file").read_text() == "newer"
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix != ".tmp"] == ["folder"]


def test_a_folder_is_there_at_every_moment_of_its_replacement(tmp_path):
    path = folder_of(tmp_path / "folder", "0")
    threads = [threading.Thread(target=lambda: [folder_of(path, str(one)) for one in range(30)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_that_exchanges_no_folders_is_named_with_a_way_that_works(tmp_path, monkeypatch):
    class Libc:
        def renameat2(self, *_):
            ctypes.set_errno(errno.EINVAL)
            return -1

    path = folder_of(tmp_path / "folder", "old")
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc())
    with pytest.raises(OSError, match=r"folder cannot be written: its file system .*\. Delete the folder first\."):
        folder_of(path, "new")
    assert (path / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    shutil.rmtree(path)
    monkeypatch.undo()
    folder_of(path, "new")
    assert (path / "file").read_text() == "new"


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
        ("old", False, "old already exists. Choose another name, or overwrite it with `force=True`."),
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
