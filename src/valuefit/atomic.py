"""Atomic file writes, and the check against overwriting."""

from __future__ import annotations

import os
from pathlib import Path


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise ValueError if `path` exists, unless `force` is set."""
    if os.path.lexists(path) and not force:
        raise ValueError(f"{path} already exists. Choose another name, or overwrite it with force=True.")


def write_bytes(path: Path, data: bytes) -> Path:
    """Write to a temporary file next to `path`, then rename it, so that a reader never sees a partial file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
