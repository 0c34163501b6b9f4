"""valuefit: how good is this policy, from logged data alone?"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from valuefit import features, solvers
    from valuefit.estimator import PolicyEvaluator
    from valuefit.evaluation import Evaluation, evaluate
    from valuefit.files import load, save
    from valuefit.loop import solve
    from valuefit.problem import Problem
    from valuefit.result import Result
    from valuefit.theory import Theory
    from valuefit.transitions import Transitions

# public name -> module that holds it; imported on first use, for numba and scipy take their time
_HOME = {
    "Evaluation": "evaluation",
    "PolicyEvaluator": "estimator",
    "Problem": "problem",
    "Result": "result",
    "Theory": "theory",
    "Transitions": "transitions",
    "evaluate": "evaluation",
    "features": "features",
    "load": "files",
    "save": "files",
    "solve": "loop",
    "solvers": "solvers",
}

__all__ = [
    "Evaluation", "PolicyEvaluator", "Problem", "Result", "Theory", "Transitions", "evaluate", "features", "load",
    "save", "solve", "solvers",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"valuefit has no {name!r}; it has {', '.join(__all__)}.")
    module = importlib.import_module(f"valuefit.{_HOME[name]}")
    found = module if name in ("features", "solvers") else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
