"""Files that are written whole or not at all, and refusals to overwrite."""

from __future__ import annotations

import os
from pathlib import Path


def refuse_existing(path: Path, *, force: bool) -> None:
    """Refuse to overwrite what is there, unless forced to."""
    if os.path.lexists(path) and not force:
        raise ValueError(f"{path} is there already. Choose another name, or overwrite it with force=True.")


def write_bytes(path: Path, data: bytes) -> Path:
    """Write to a temporary name beside `path`, then rename it: a reader sees all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
