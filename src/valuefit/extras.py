"""Optional packages, imported where they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, extra: str, what: str) -> Any:
    """Import an optional module for the task `what`, or raise ValueError with the pip command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ValueError(f"{what} needs {package}. Install it with: pip install 'valuefit[{extra}]'") from error
