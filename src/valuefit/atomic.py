"""Atomic writes of files and folders: a reader, also after a crash, finds the old contents or the new ones.

Everything is written under a temporary name next to the target, synced to disk and renamed. A folder cannot be renamed
over another, so an existing one is first renamed to a name ending in `.old`. If the process is killed before its second
rename, the next `read_folder` or `replacing` of that path gives the old folder its name back (`_finish_replacement`). A
killed write leaves its hidden temporary file or folder (`.NAME-....tmp`), which can be deleted.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from valuefit.messages import said, shown

T = TypeVar("T")
SILENT_LOCK_SECONDS = 1.0  # of waiting for a lock before a warning: our own renames take milliseconds
MAX_LOCK_SECONDS = 30.0  # of waiting for a lock: nothing of valuefit holds one for so long
LOCK_POLL_SECONDS = 0.002
MAX_READS = 100  # of a folder that is replaced while it is read
SHOWN_NAME_CHARACTERS = 40  # of the target, in temporary names; at most four bytes each, and a name has at most 255


def check_target(path: Path, *, force: bool, folder: bool = False) -> None:
    """Raise ValueError or OSError if `path` cannot be written; called before the work that gives the contents.

    force: whether an existing path may be replaced. folder: whether it will be a folder, not a file.
    """
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError(
            f"{shown(str(path))} has characters that no file name can have. Choose another name."
        ) from None
    if path.name in ("", ".."):
        raise ValueError(f"{str(path)!r} is no name to write to. Choose a name in that folder.")
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {str(path.parent)!r} to write into. Create it first.")
    probe = _unused_name(path, "tmp")
    try:
        with _locked(path.parent):  # no folder is between the renames of its replacement
            exists, is_link, is_file, is_folder = _exists(path), path.is_symlink(), path.is_file(), path.is_dir()
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(probe)
    except OSError as error:
        raise _not_written(path, error) from error
    if not exists:
        return
    if not force:
        raise ValueError(f"{path} already exists. Choose another name, or overwrite it with force=True.")
    if not (is_link or is_file or is_folder):
        raise ValueError(f"{path} is a device or a pipe, which cannot be replaced. Choose another name.")
    if is_folder != folder:
        found, written = ("folder", "file") if is_folder else ("file", "folder")
        raise ValueError(f"{path} is a {found}, but a {written} would be written. Choose another name.")


def _exists(path: Path) -> bool:
    """Whether something has this name, also a link to nowhere; OSError if the name is too long."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def write_bytes(path: Path, data: bytes, *, force: bool = True) -> Path:
    """Write a file."""
    with replacing(path, force=force) as temporary:
        temporary.write_bytes(data)
    return path


@contextmanager
def replacing(path: Path, *, force: bool = True, folder: bool = False) -> Iterator[Path]:
    """Yields an unused name; the file, or the folder, that the caller writes there then replaces `path`.

    After an exception `path` is as before. An OSError of the caller is raised with the name of `path`.
    """
    check_target(path, force=force, folder=folder)
    temporary = _unused_name(path, "tmp")
    try:
        yield temporary
        _sync(temporary)
        if force and not folder:
            os.replace(temporary, path)
        else:
            _rename_locked(temporary, path, force=force, folder=folder)
        _sync_folder(path.parent)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        _remove(temporary)


def read_folder(path: Path, read: Callable[[], T]) -> T:
    """`read()`, which reads the folder `path`, repeated if the folder is replaced meanwhile.

    The result is then of one version of the folder, and not of the files of two.
    """
    for _ in range(MAX_READS):
        descriptor = None if path.is_file() else _open_folder(path)
        if descriptor is None:
            return read()  # which reports that there is no folder
        try:
            result = read()
            if _is_open_as(descriptor, path):
                return result
        except (OSError, ValueError):
            if _is_open_as(descriptor, path):
                raise
        finally:
            os.close(descriptor)
    raise OSError(f"{path} was replaced {MAX_READS} times while it was read. Try again later.")


def _open_folder(path: Path) -> int | None:
    """The descriptor of a folder, opened while no replacement is between its renames; None if there is no folder."""
    with _locked(path.parent):
        _finish_replacement(path)
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return None


def _is_open_as(descriptor: int, path: Path) -> bool:
    """Whether `path` is still the folder that was opened; the descriptor keeps its inode number from being reused."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _unused_name(path: Path, ending: str) -> Path:
    """A hidden name next to `path`, at most 255 bytes for a name of any length."""
    return path.with_name(f"{_prefix(path)}{secrets.token_hex(6)}.{ending}")


def _prefix(path: Path) -> str:
    """How the temporary names of `path` begin."""
    digest = hashlib.sha256(os.fsencode(path.name)).hexdigest()
    return f".{path.name[:SHOWN_NAME_CHARACTERS]}-{digest[:12]}-"


def _rename_locked(temporary: Path, path: Path, *, force: bool, folder: bool) -> None:
    """Rename to `path`, while no other thread or process does; an old folder is deleted."""
    with _locked(path.parent):
        if folder:
            _finish_replacement(path)
        if not force and _exists(path):
            raise ValueError(f"{path} was created while it was being written. Choose another name, or use force.")
        if folder and _exists(path):
            os.rename(path, _unused_name(path, "old"))
        try:
            os.rename(temporary, path)
        finally:
            if folder:
                _finish_replacement(path)


def _finish_replacement(path: Path) -> None:
    """Finish a replacement of a folder that stopped between its renames, or before the old folder was deleted."""
    prefix = _prefix(path)
    with suppress(OSError):  # if the parent folder cannot be read or written, `path` stays as it is
        left = [entry for entry in path.parent.iterdir() if entry.name.startswith(prefix) and entry.suffix == ".old"]
        if left and not _exists(path):
            latest = max(left, key=lambda entry: entry.lstat().st_mtime_ns)
            os.rename(latest, path)
            left.remove(latest)
        for old in left:
            deleted = _unused_name(path, "tmp")  # a partly deleted folder must not be found again
            os.rename(old, deleted)
            _remove(deleted)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Exclude other threads and processes from renames in a folder; the system unlocks it if the process is killed."""
    descriptor = None
    try:
        with suppress(OSError):  # some network file systems have no locks
            descriptor = os.open(folder, os.O_RDONLY)
        if descriptor is not None:
            _lock(descriptor, folder)
        yield
    finally:
        if descriptor is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process forked meanwhile has the descriptor, too
            os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    """Lock an opened folder; OSError if another program holds the lock for long."""
    begun, warned = time.monotonic(), False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - begun
        except OSError:
            return  # some network file systems have no locks
        if waited > MAX_LOCK_SECONDS:
            raise OSError(
                f"Another program has locked the folder {folder} for {waited:.0f} seconds (flock). End that program, "
                "or choose another folder."
            )
        if waited > SILENT_LOCK_SECONDS and not warned:
            warned = True
            warnings.warn(f"Waiting for another program that has locked the folder {folder}.", stacklevel=2)
        time.sleep(LOCK_POLL_SECONDS)


def _sync(path: Path) -> None:
    """Write a file, or a folder of files, from the cache to the disk."""
    if path.is_dir():
        for entry in path.iterdir():
            _sync(entry)
        _sync_folder(path)
    else:
        _fsync(path)


def _sync_folder(path: Path) -> None:
    """Write the names in a folder to the disk."""
    with suppress(OSError):  # some network file systems refuse it
        _fsync(path)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _not_written(path: Path, error: OSError) -> OSError:
    """The error with the name of the target in place of the temporary one."""
    if error.errno == errno.ENAMETOOLONG:
        return OSError(
            f"The name {path.name[:SHOWN_NAME_CHARACTERS]}... is too long to be written. Choose a shorter one."
        )
    return OSError(f"{path} cannot be written: {error.strerror or said(error)}.")
