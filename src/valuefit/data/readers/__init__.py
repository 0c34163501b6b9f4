"""File formats, one module each; `formats` finds new modules.

A module has `EXTENSIONS`; `read(path, columns=, limit=)`, which returns a `Table`; if loading takes less memory than
other formats, `COPIES`; and, if it can read some rows of a file without the others, `scan`, and `rows=` in `read`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import NamedTuple

from valuefit.data.table import Scan, Table


class Format(NamedTuple):
    """How files of a format are read.

    copies: of its contents that a log takes while it is loaded. 8 where it can be read in shards instead: with few
    numbers a step, as the log itself adds about 100 bytes to each step; else with 30, and at most twice that with two.
    """

    read: Callable[..., Table]
    scan: Callable[..., AbstractContextManager[Scan]] | None
    copies: int


@cache
def formats() -> dict[str, Format]:
    """The format of each extension."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {
        extension: Format(module.read, getattr(module, "scan", None), getattr(module, "COPIES", 8))
        for module in modules
        for extension in getattr(module, "EXTENSIONS", ())
    }


def sharded_formats() -> list[str]:
    """The extensions of files that are read in shards."""
    return [extension for extension, one in formats().items() if one.scan is not None]
