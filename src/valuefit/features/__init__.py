"""Built-in feature transformers, one file each; scikit-learn transformers and callables can be used instead."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from valuefit.features.fourier import Fourier
    from valuefit.features.identity import Identity
    from valuefit.features.kernel import Kernel
    from valuefit.features.onehot import OneHot
    from valuefit.features.polynomial import Polynomial
    from valuefit.features.rbf import RBF
    from valuefit.features.registry import Fitted, from_spec, make, names
    from valuefit.features.state_action import StateAction
    from valuefit.features.tiles import Tiles

_MODULES = {
    "Fitted": "registry",
    "Fourier": "fourier",
    "Identity": "identity",
    "Kernel": "kernel",
    "OneHot": "onehot",
    "Polynomial": "polynomial",
    "RBF": "rbf",
    "StateAction": "state_action",
    "Tiles": "tiles",
    "from_spec": "registry",
    "make": "registry",
    "names": "registry",
}
# name in specs and on the command line -> class
BUILT_IN = {
    "kernel": "Kernel",
    "tiles": "Tiles",
    "fourier": "Fourier",
    "rbf": "RBF",
    "polynomial": "Polynomial",
    "one-hot": "OneHot",
    "identity": "Identity",
}
__all__ = [
    "RBF", "Fitted", "Fourier", "Identity", "Kernel", "OneHot", "Polynomial", "StateAction", "Tiles",
    "from_spec", "make", "names",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use: scipy.sparse is slow to import."""
    if name not in _MODULES:
        raise AttributeError(f"valuefit.features has no {name!r}; it has {', '.join(__all__)}.")
    return getattr(importlib.import_module(f"valuefit.features.{_MODULES[name]}"), name)
