"""Feature transformers, one file each; any other scikit-learn transformer, pipeline or callable does as well."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from valuefit.features.fourier import Fourier
    from valuefit.features.identity import Identity
    from valuefit.features.onehot import OneHot
    from valuefit.features.polynomial import Polynomial
    from valuefit.features.rbf import RBF
    from valuefit.features.registry import Fitted, from_spec, make, names
    from valuefit.features.state_action import StateAction
    from valuefit.features.tiles import Tiles

_HOME = {
    "Fitted": "registry",
    "Fourier": "fourier",
    "Identity": "identity",
    "OneHot": "onehot",
    "Polynomial": "polynomial",
    "RBF": "rbf",
    "StateAction": "state_action",
    "Tiles": "tiles",
    "from_spec": "registry",
    "make": "registry",
    "names": "registry",
}
__all__ = [
    "RBF", "Fitted", "Fourier", "Identity", "OneHot", "Polynomial", "StateAction", "Tiles",
    "from_spec", "make", "names",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use: scipy.sparse and the readers of logs take a while."""
    if name not in _HOME:
        raise AttributeError(f"valuefit.features has no {name!r}; it has {', '.join(__all__)}.")
    return getattr(importlib.import_module(f"valuefit.features.{_HOME[name]}"), name)
