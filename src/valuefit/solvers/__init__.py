"""The solvers, one module each. `registry` finds new modules for the CLI, the tests, the benchmark and the docs."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache
from typing import Any

from valuefit.messages import shown
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers.solver import Solver


@cache
def registry() -> dict[str, type[Solver]]:
    """Short name -> class, for every solver in this package, sorted by `order`."""
    kinds: dict[str, type[Solver]] = {}
    for module in _modules():
        kinds |= {kind.name: kind for kind in _solvers_in(module)}
    return dict(sorted(kinds.items(), key=lambda item: (item[1].order, item[0])))


@cache
def _modules() -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules(__path__))


def _solvers_in(module: str) -> list[type[Solver]]:
    """The solver classes defined in a module of this package; abstract base classes have no `name`."""
    imported = importlib.import_module(f"{__name__}.{module}")
    members = [member for member in vars(imported).values() if isinstance(member, type) and issubclass(member, Solver)]
    return [member for member in members if member.__module__ == imported.__name__ and "name" in vars(member)]


def names() -> list[str]:
    """Short names of all solvers."""
    return list(registry())


def find(solver: str | Solver | type[Solver]) -> Solver:
    """The solver with this name or class, with default settings; a solver instance is returned as it is."""
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, type) and issubclass(solver, Solver):
        return solver()
    solver = solver if isinstance(solver, str) else shown(solver)
    module = solver.replace("-", "_")
    if module in _modules():  # only this module is imported, not all solvers
        for kind in _solvers_in(module):
            if kind.name == solver:
                return kind()
    if solver in registry():
        return registry()[solver]()
    similar = difflib.get_close_matches(solver.lower(), names(), n=1, cutoff=0.3)
    hint = f" Did you mean {similar[0]!r}?" if similar else ""
    raise ValueError(f"There is no solver {shown(solver)}.{hint} The solvers are {', '.join(names())}.")


def supports(solver: Solver | type[Solver], problem: SaddlePoint) -> bool:
    """Whether the solver supports every trait of this problem."""
    return not problem.traits & solver.refusals.keys()


def refuse(solver: Solver, problem: SaddlePoint) -> None:
    """Raise ValueError if the solver does not support a trait of this problem; the message lists solvers that do."""
    for trait in sorted(problem.traits):
        if trait in solver.refusals:
            able = [name for name, kind in registry().items() if supports(kind, problem)]
            raise ValueError(
                f"{solver.name} cannot solve a problem with {trait}: {solver.refusals[trait]} "
                f"These can: {', '.join(able)}."
            )


def __getattr__(name: str) -> Any:
    for kind in registry().values():
        if kind.__name__ == name:
            return kind
    raise AttributeError(f"valuefit.solvers has no {name!r}; the classes are "
                         f"{', '.join(kind.__name__ for kind in registry().values())}.")  # fmt: skip
