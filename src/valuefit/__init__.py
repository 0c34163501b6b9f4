"""valuefit: policy evaluation from logged data with linear value functions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from valuefit import datasets, features, solvers
    from valuefit.data.load import load
    from valuefit.data.save import save
    from valuefit.data.shards import ShardedLog
    from valuefit.data.split import split
    from valuefit.data.transitions import Transitions
    from valuefit.engine.loop import solve
    from valuefit.engine.moments import Moments
    from valuefit.engine.result import Result
    from valuefit.evaluation.comparison import Comparison, Comparisons, compare
    from valuefit.evaluation.estimator import PolicyEvaluator
    from valuefit.evaluation.evaluate import evaluate
    from valuefit.evaluation.evaluation import Evaluation
    from valuefit.evaluation.selection import Selection, select
    from valuefit.problem.problem import Problem
    from valuefit.problem.theory import Theory

# Public name -> module, imported on first use because numba and scipy import slowly.
_MODULE_OF = {
    "Comparison": "evaluation.comparison",
    "Comparisons": "evaluation.comparison",
    "Evaluation": "evaluation.evaluation",
    "Moments": "engine.moments",
    "PolicyEvaluator": "evaluation.estimator",
    "Problem": "problem.problem",
    "Result": "engine.result",
    "Selection": "evaluation.selection",
    "ShardedLog": "data.shards",
    "Theory": "problem.theory",
    "Transitions": "data.transitions",
    "compare": "evaluation.comparison",
    "datasets": "datasets",
    "evaluate": "evaluation.evaluate",
    "features": "features",
    "load": "data.load",
    "save": "data.save",
    "select": "evaluation.selection",
    "solve": "engine.loop",
    "solvers": "solvers",
    "split": "data.split",
}

__all__ = [
    "Comparison", "Comparisons", "Evaluation", "Moments", "PolicyEvaluator", "Problem", "Result", "Selection",
    "ShardedLog", "Theory", "Transitions", "compare", "datasets", "evaluate", "features", "load", "save", "select",
    "solve", "solvers", "split",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"valuefit has no attribute {name!r}; it has {', '.join(__all__)}.")
    module = importlib.import_module(f"valuefit.{_MODULE_OF[name]}")
    value = module if name in ("datasets", "features", "solvers") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
