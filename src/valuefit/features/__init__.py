"""Built-in feature transformers, one module each; scikit-learn transformers and callables can be used instead.

The name of features, in specs and on the command line, is that of their module, in which their class comes first.
Modules are imported on first use: scipy.sparse is slow to import.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

_OTHER_MODULES = {"featurise", "registry", "scaling", "state_action", "tile_kernel", "transformer"}
_FUNCTIONS = ("Fitted", "from_spec", "make", "names")  # of the registry


@cache
def built_in() -> tuple[str, ...]:
    """The names of all features in this package."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(name.replace("_", "-") for name in modules if name not in _OTHER_MODULES)


def class_of(name: str) -> type[Any]:
    """The transformer with this name."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return next(one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__)


def __getattr__(name: str) -> Any:
    modules = {one.replace("-", ""): one.replace("-", "_") for one in (*built_in(), "state-action")}
    module = "registry" if name in _FUNCTIONS else modules.get(name.lower())
    if module is None:
        public = [*(class_of(one).__name__ for one in (*built_in(), "state-action")), *_FUNCTIONS]
        if name == "__all__":
            return public
        raise AttributeError(f"valuefit.features has no {name!r}; it has {', '.join(public)}.")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
