"""Atomic writes of files and folders: a reader, also after a crash, finds the old contents or the new ones.

Everything is written under a temporary name next to the target, synced to disk and renamed; an existing folder is
exchanged with the new one and then deleted. A killed write leaves its hidden temporary file or folder
(`.NAME-....tmp`), which can be deleted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from valuefit.messages import said, shown

T = TypeVar("T")
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
    probe = _temporary_name(path)
    try:
        with suppress(FileNotFoundError):
            os.lstat(path)  # which fails if the name is too long
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(probe)
    except OSError as error:
        raise _not_written(path, error) from error
    if not os.path.lexists(path):
        return
    if not force:
        raise ValueError(f"{path} already exists. Choose another name, or overwrite it with `force=True`.")
    if not (path.is_symlink() or path.is_file() or path.is_dir()):
        raise ValueError(f"{path} is a device or a pipe, which cannot be replaced. Choose another name.")
    if path.is_dir() != folder:
        existing, written = ("file", "folder") if folder else ("folder", "file")
        raise ValueError(f"{path} is a {existing}, but a {written} would be written. Choose another name.")


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
    temporary = _temporary_name(path)
    try:
        yield temporary
        _sync(temporary)
        if not force and os.path.lexists(path):
            raise ValueError(
                f"{path} was created while it was being written. Choose another name, or use `force=True`."
            )
        if folder:
            _replace_folder(temporary, path)
        else:
            os.replace(temporary, path)
        with suppress(OSError):  # some network file systems refuse it
            _fsync(path.parent)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        if temporary.is_dir() and not temporary.is_symlink():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def read_folder(path: Path, read: Callable[[], T]) -> T:
    """`read()`, which reads the folder `path`, repeated if the folder is replaced meanwhile.

    The result is then of one version of the folder, and not of the files of two.
    """
    for _ in range(MAX_READS):
        try:  # opened, so that its inode number is not used again
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
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


def _is_open_as(descriptor: int, path: Path) -> bool:
    """Whether `path` is still the folder that was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _temporary_name(path: Path) -> Path:
    """A hidden unused name next to `path`, at most 255 bytes for a name of any length."""
    return path.with_name(f".{path.name[:SHOWN_NAME_CHARACTERS]}-{secrets.token_hex(8)}.tmp")


def _replace_folder(new: Path, path: Path) -> None:
    """Rename a folder to `path`; what has this name gets the name of the new one."""
    while True:
        with suppress(FileNotFoundError):
            return _exchange(new, path)
        try:
            return os.rename(new, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # another process was faster
                raise


def _exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders in one step, which `os` does not offer."""
    libc, names = ctypes.CDLL(None, use_errno=True), (os.fsencode(one), os.fsencode(other))
    if hasattr(libc, "renamex_np"):  # macOS
        status = libc.renamex_np(*names, 2)  # RENAME_SWAP
    else:
        status = libc.renameat2(-100, names[0], -100, names[1], 2)  # AT_FDCWD, RENAME_EXCHANGE
    number = ctypes.get_errno()
    if status and number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise OSError("its file system cannot replace a folder in one step. Delete the folder first")
    if status:
        raise OSError(number, os.strerror(number))


def _sync(path: Path) -> None:
    """Write a file, or a folder of files, from the cache to the disk."""
    if path.is_dir():
        for entry in path.iterdir():
            _sync(entry)
        with suppress(OSError):  # some network file systems refuse it for folders
            _fsync(path)
    else:
        _fsync(path)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _not_written(path: Path, error: OSError) -> OSError:
    """The error with the name of the target in place of the temporary one."""
    if error.errno == errno.ENAMETOOLONG:
        return OSError(
            f"The name {path.name[:SHOWN_NAME_CHARACTERS]}... is too long to be written. Choose a shorter one."
        )
    return OSError(f"{path} cannot be written: {error.strerror or said(error)}.")
