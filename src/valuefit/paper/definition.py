"""The TOML file of an experiment: problems, methods, step grids and seeds, with every key checked."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from valuefit.data.archive import is_number
from valuefit.messages import read_toml, shown

EXPERIMENTS = Path(__file__).parent
# Label, colour and dashes of each method. The palette is safe for colour blindness; dashes distinguish the curves in
# black-and-white print.
METHODS = {
    "pdbg": ("PDBG", "#0072B2", "-."),
    "gtd2": ("GTD2", "#E69F00", ":"),
    "flstd-sa": ("TD (fLSTD-SA)", "#999999", "--"),
    "svrg": ("SVRG", "#D55E00", "-"),
    "saga": ("SAGA", "#009E73", "-"),
    "tdc": ("TDC", "#CC79A7", ":"),
}


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: a problem, its label and its budget of passes."""

    label: str
    source: dict[str, Any]
    problem: dict[str, Any]
    ridge: dict[str, Any]
    passes: float

    @property
    def key(self) -> str:
        """The problem as JSON, for `experiment.prepare`."""
        return json.dumps([self.source, self.problem, self.ridge], sort_keys=True)


@dataclass(frozen=True)
class Experiment:
    """The contents of a TOML file."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    methods: tuple[str, ...]
    grids: dict[str, dict[str, list[float]]]
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]


def available() -> list[str]:
    """Names of the experiments in the package."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.toml"))


def load_experiment(name: str, *, quick: bool = False, seed: int = 0) -> Experiment:
    """Load an experiment by name or from a path to a TOML file; `quick` applies its [quick] table.

    A panel has the passes of [run] or its own `passes`; in the quick version those of [quick.run] or its own
    `quick_passes`. Tuning uses three seeds, because one can converge at unstable steps; the
    reported runs use the seeds after `seed`.
    """
    path = Path(name) if name.endswith(".toml") else EXPERIMENTS / f"{name}.toml"
    if not path.is_file():
        raise ValueError(f"There is no experiment {name!r}. Choose one of {', '.join(available())}, or a .toml file.")
    keys, checked = _known_keys(), partial(_checked, path)
    data = checked("", read_toml(path, "an experiment"), keys["file"])
    changes = checked("quick", data.get("quick", {}), keys["quick"]) if quick else {}
    run = checked("run", {**data["run"], **changes.get("run", {})}, keys["run"])
    grids = {**data["grid"], **changes.get("grid", {})}
    for grid, steps in grids.items():
        checked(f"grid.{grid}", steps, keys["grid"])
    source = {**data.get("source", {}), **changes.get("source", {})}
    panels = []
    for number, panel in enumerate(data["panel"], 1):
        where = f"panel {number}"
        checked(where, panel, keys["panel"])
        own_source = panel.get("only_source") or {**source, **panel.get("source", {})}
        kind = checked(f"source of {where}", {"kind": own_source.get("kind")}, keys["kind"])["kind"]
        problem = {**data.get("problem", {}), **panel.get("problem", {})}
        passes = float(panel.get("quick_passes" if quick else "passes", run["passes"]))
        own_source = checked(f"source of {where}", own_source, keys[kind])
        problem = checked(f"problem of {where}", problem, keys["problem"])
        ridge = checked(f"ridge of {where}", panel.get("ridge", {}), keys["ridge"])
        panels.append(Panel(panel["label"], own_source, problem, ridge, passes))
    seeds = tuple(seed + 1 + k for k in range(run["seeds"]))
    tuning = (seed, seed + 1000, seed + 2000)
    title = changes.get("title", data["title"] + (" (quick version)" if quick else ""))
    return Experiment(path.stem, title, tuple(panels), tuple(run["methods"]), grids, seeds, tuning)


class Key(NamedTuple):
    """A key of a table: which values are valid, the same in words, and whether it must be there."""

    is_valid: Callable[[Any], bool]
    expected: str
    required: bool = True

    def optional(self) -> Key:
        return self._replace(required=False)


def _checked(path: Path, where: str, table: dict[str, Any], keys: dict[str, Key]) -> dict[str, Any]:
    """The table, if its keys and values are valid; `where` is its name, empty for the whole file."""
    title = f"[{where}] of {path}" if where else str(path)
    for key in table:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The known keys are {', '.join(keys)}."
            raise ValueError(f"{title} has the key {key[:40]!r}, which no experiment has. {hint}")
    for key, rule in keys.items():
        if key not in table:
            if rule.required:
                raise ValueError(f"{title} has no {key!r}; it must be {rule.expected}.")
        elif not rule.is_valid(table[key]):
            raise ValueError(f"{title} sets {key} = {shown(table[key])}; it must be {rule.expected}.")
    return table


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 10**9


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value is a list of one or more such values."""
    return lambda value: isinstance(value, list) and len(value) > 0 and all(map(is_valid, value))


def _are_methods(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) == len({str(one) for one in value})
        and set(map(str, value)) <= METHODS.keys()
    )


def _are_tables(value: Any) -> bool:
    return _is_table(value) and len(value) > 0 and all(map(_is_table, value.values()))


def _known_keys() -> dict[str, dict[str, Key]]:
    """The keys of each table, by the name of the table; the tables of sources by their kind."""
    text = Key(lambda value: isinstance(value, str) and value.isprintable(), "text")
    table = Key(_is_table, "a table")
    count = Key(_is_count, "a whole number from 1 to 1e9")
    passes = Key(lambda value: _is_positive(value) and value <= 1e6, "a number above 0 and at most 1e6")
    probability = Key(lambda value: is_number(value) and 0 <= value <= 1, "a number from 0 to 1", required=False)
    steps = Key(_list_of(_is_positive), "a list of numbers above 0")
    kinds = "random-mdp", "baird", "mountain-car"
    kind = Key(lambda value: value in kinds, f"one of {', '.join(kinds)}")
    seed = Key(lambda value: type(value) is int and 0 <= value < 2**63, "a whole number, 0 or more", required=False)
    source = {"kind": kind, "steps": count, "seed": seed}
    file = {
        "title": text,
        "source": table.optional(),
        "problem": table.optional(),
        "panel": Key(_list_of(_is_table), "one table [[panel]] or more"),
        "run": table,
        "grid": Key(_are_tables, "one table [grid.NAME] or more"),
        "quick": table.optional(),
    }
    return {
        "file": file,
        "quick": {name: file[name].optional() for name in ("title", "source", "run", "grid")},
        "run": {
            "methods": Key(_are_methods, f"a list of some of {', '.join(METHODS)}"),
            "passes": passes,
            "seeds": Key(lambda value: _is_count(value) and value <= 10_000, "a whole number from 1 to 10,000"),
        },
        "grid": {"step_theta": steps, "step_w": steps},
        "panel": {
            "label": text,
            **dict.fromkeys(("source", "only_source", "problem", "ridge"), table.optional()),
            **dict.fromkeys(("passes", "quick_passes"), passes.optional()),
        },
        "kind": {"kind": kind},
        "random-mdp": {
            **source,
            **dict.fromkeys(("states", "actions", "features"), count.optional()),
            "off_policy": Key(lambda value: isinstance(value, bool), "true or false", required=False),
        },
        "baird": source,
        "mountain-car": source,
        "problem": {"discount": probability, "trace": probability},
        "ridge": {
            "times": Key(lambda value: is_number(value) and value >= 0, "a number, 0 or more", required=False),
            "of": Key(lambda value: value in ("L", "sqrt(L)"), "L or sqrt(L)", required=False),
        },
    }
