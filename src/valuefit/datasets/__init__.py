"""Problems with known solutions, simulators and the example log; public as `valuefit.datasets`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from valuefit.datasets import mountain_car
    from valuefit.datasets.ar1 import ar1_log, fourier_features
    from valuefit.datasets.baird import baird_features, baird_log
    from valuefit.datasets.boyan import boyan_features, boyan_log
    from valuefit.datasets.example import example_log
    from valuefit.datasets.mdp import RandomMDP, random_mdp
    from valuefit.datasets.random_walk import random_walk_log, random_walk_value

_MODULES = {
    "RandomMDP": "mdp",
    "ar1_log": "ar1",
    "baird_features": "baird",
    "baird_log": "baird",
    "boyan_features": "boyan",
    "boyan_log": "boyan",
    "example_log": "example",
    "fourier_features": "ar1",
    "random_mdp": "mdp",
    "random_walk_log": "random_walk",
    "random_walk_value": "random_walk",
}
__all__ = [
    "RandomMDP", "ar1_log", "baird_features", "baird_log", "boyan_features", "boyan_log", "example_log",
    "fourier_features", "mountain_car", "random_mdp", "random_walk_log", "random_walk_value",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use."""
    if name == "mountain_car":
        return importlib.import_module("valuefit.datasets.mountain_car")
    if name not in _MODULES:
        raise AttributeError(f"valuefit.datasets has no {name!r}; it has {', '.join(__all__)}.")
    return getattr(importlib.import_module(f"valuefit.datasets.{_MODULES[name]}"), name)
