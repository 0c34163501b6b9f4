"""Feature transformers, one file each; any other scikit-learn transformer, pipeline or callable does as well."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from valuefit.features.tiles import Tiles

_HOME = {"Tiles": "tiles"}
__all__ = ["Tiles"]


def __getattr__(name: str) -> Any:
    """Imported on first use: scikit-learn takes a second."""
    if name not in _HOME:
        raise AttributeError(f"valuefit.features has no {name!r}; it has {', '.join(__all__)}.")
    return getattr(importlib.import_module(f"valuefit.features.{_HOME[name]}"), name)
