"""Which files a path, a folder, a pattern or a list of them names, in which order, and how they are opened."""

from __future__ import annotations

import glob
import gzip
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from valuefit.data.columns import quote_names


def file_format(path: Path) -> str:
    """The extension that names the format, in lower case; that of a gzip file has two parts (.csv.gz)."""
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() + suffix if suffix == ".gz" else suffix


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading, decompressing it if its name ends in .gz."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]  # GzipFile is a BinaryIO in all but name
    return open(path, "rb")


class FileState(NamedTuple):
    """A file as it was when a log was opened. time: of its last change, in nanoseconds. host: that looked at it."""

    path: str
    size: int
    time: int
    inode: int
    host: str

    @classmethod
    def of(cls, path: Path) -> FileState:
        state = path.stat()
        return cls(str(path), state.st_size, state.st_mtime_ns, state.st_ino, os.uname().nodename)

    @property
    def change(self) -> str:
        """What happened to the file since then, empty if nothing; numbers of inodes are compared on one host only."""
        try:
            now = FileState.of(Path(self.path))
        except OSError:
            return ""  # it is not here, or not any more, which the reader of its rows reports
        if now.size != self.size:
            return f"had {self.size:,} bytes and now has {now.size:,}"
        replaced = now.host == self.host and now.inode != self.inode
        return "was written again" if replaced or now.time != self.time else ""


def file_states(paths: Iterable[Path]) -> tuple[FileState, ...]:
    """The states of files, and of the files in folders."""
    inside = [sorted(path.iterdir()) if path.is_dir() else [path] for path in paths]
    return tuple(FileState.of(file) for files in inside for file in files if file.is_file())


@contextmanager
def unchanged(files: Iterable[FileState]) -> Iterator[None]:
    """Raise ValueError naming a file that changed since it was opened, whatever reading it gave."""
    try:
        yield
    finally:
        for file in files:
            if change := file.change:
                raise ValueError(
                    f"{file.path} {change} since the log was opened, so its passes would mix two logs. Evaluate again "
                    "when nothing writes to the log."
                )


def is_pattern(source: str | os.PathLike[str]) -> bool:
    """Whether the source is a pattern (part-*.parquet); an existing file with these characters in its name is not."""
    return glob.has_magic(os.fspath(source)) and not os.path.lexists(source)


def find_files(source: Any, formats: Collection[str]) -> list[Path]:
    """The files of a folder, a pattern, a path or a sequence of these, in natural order of their names."""
    if isinstance(source, str | os.PathLike):
        files = _expand(source, formats)
    else:
        files = [file for one in _check_list(source) for file in _expand(one, formats)]
    files.sort(key=_natural_order)
    if not all(file.is_absolute() for file in files):
        working_folder()
    real = [os.path.realpath(file) for file in files]
    for file, path in zip(files, real, strict=True):
        if real.count(path) > 1:
            raise ValueError(f"{file} is named more than once, so its steps would count twice. Name it once.")
    return files


def working_folder() -> Path:
    """The working folder; raises ValueError if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ValueError(
            "The working folder does not exist any more, so nothing is found in it. Change to another folder."
        ) from None


def _check_list(source: Sequence[Any]) -> Sequence[Any]:
    if not source:
        raise ValueError("The list of files is empty. Name at least one file.")
    for position, one in enumerate(source):
        if not isinstance(one, str | os.PathLike):
            raise ValueError(
                f"A list of logs holds paths of files, but its entry {position} is no path. Give one table or dict "
                "with all steps."
            )
    return source


def _expand(source: str | os.PathLike[str], formats: Collection[str]) -> list[Path]:
    path = Path(source)
    if is_pattern(source):
        files = [Path(name) for name in glob.glob(os.fspath(source), recursive=True) if os.path.isfile(name)]
        if not files:
            raise ValueError(f"No file matches {os.fspath(source)!r}.")
        return files
    return _folder_files(path, formats) if path.is_dir() else [path]


def _folder_files(folder: Path, formats: Collection[str]) -> list[Path]:
    """The files of a folder that holds the parts of one log; hidden files and those that begin with _ are ignored."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "_"))]
    files = [entry for entry in entries if file_format(entry) in formats and entry.is_file()]
    kinds = sorted({file_format(entry) for entry in files})
    if len(kinds) > 1:
        raise ValueError(
            f"The folder {folder} contains files of several formats ({', '.join(kinds)}), perhaps copies of one log. "
            f"Name one kind with a pattern: {str(folder / '*')!r} followed by the extension."
        )
    inner = [entry.name for entry in entries if entry.is_dir()]
    if inner and files:
        raise ValueError(
            f"The folder {folder} contains files and the folders {quote_names(sorted(inner))}. Name the files with a "
            f"pattern: {str(folder / f'*{kinds[0]}')!r}, or {str(folder / '**' / f'*{kinds[0]}')!r} with those inside."
        )
    if not files:
        raise ValueError(
            f"The folder {folder} is neither a log that valuefit saved nor a Minari dataset, and it contains no files "
            f"that valuefit reads ({', '.join(formats)})."
        )
    return files


def _natural_order(path: Path) -> tuple[list[str | int], str]:
    """Sort key by which part-2 comes before part-10."""
    pieces = re.split(r"([0-9]+)", str(path))
    return [int(piece) if index % 2 else piece for index, piece in enumerate(pieces)], str(path)
