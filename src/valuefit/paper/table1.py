"""Measure Table 1: the cost of LSTD, PDBG (I, II), SVRG and SAGA over sweeps in n and d, next to the formulas."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import write_bytes
from valuefit.data.archive import is_number
from valuefit.datasets.ar1 import ar1_log, fourier_features
from valuefit.engine.loop import solve
from valuefit.engine.result import Result
from valuefit.evaluation.text import markdown_table
from valuefit.paper.plots import write_png_and_svg
from valuefit.paper.run_files import read_run, write_run
from valuefit.problem.exact import Exact
from valuefit.problem.problem import Problem
from valuefit.problem.theory import Theory
from valuefit.solvers import registry
from valuefit.solvers.solver import Solver
from valuefit.threads import limit_threads

TARGET_GAP = 1e-6
OUTPUTS = ("table.md", "table-1.png", "table-1.svg")
METHOD_COLOURS = {
    "lstd": "#CC79A7", "pdbg (I)": "#0072B2", "pdbg (II)": "#56B4E9", "svrg": "#D55E00", "saga": "#009E73",
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """One cell of a sweep."""

    n: int
    d: int


def sweeps(quick: bool) -> dict[str, list[Size]]:
    """The sizes of the sweep in n and of the sweep in d."""
    if quick:
        return {"n": [Size(n, 20) for n in (500, 1000, 2000)], "d": [Size(1000, d) for d in (10, 20, 40)]}
    return {
        "n": [Size(n, 50) for n in (2_500, 5_000, 10_000, 20_000, 40_000, 80_000)],
        "d": [Size(20_000, d) for d in (25, 50, 100, 200, 400, 800)],
    }


def methods(problem: Problem) -> dict[str, tuple[str, Solver]]:
    """Name -> (row of Table 1, solver): the paper's methods in raw coordinates, constant steps from `auto_steps`."""
    kinds: Any = registry()

    def with_steps(name: str, **settings: Any) -> Solver:
        step_theta, step_w = kinds[name]().auto_steps(problem)
        solver: Solver = kinds[name](step_theta=step_theta, step_w=step_w, **settings)
        return solver

    return {
        "lstd": ("lstd", kinds["lstd"]()),
        "pdbg (I)": ("pdbg (I)", with_steps("pdbg")),
        "pdbg (II)": ("pdbg (II)", with_steps("pdbg", precompute=True)),
        "svrg": ("svrg/saga", with_steps("svrg")),
        "saga": ("svrg/saga", with_steps("saga")),
    }


def operations(name: str, problem: Problem, result: Result) -> float:
    """The number of additions and multiplications, derived from the algorithm."""
    n, d = problem.n, problem.d
    if name == "lstd":
        return 2.0 * n * d * d + 2 / 3 * d**3
    if name == "pdbg (II)":
        epochs = len(result.history) - 1
        cost = 3 * d * d / (2 * n * d)
        return 4.0 * n * d * d + epochs * max(1, min(1000, int(1 / cost))) * 6.0 * d * d
    flops = {"pdbg (I)": 8.0, "svrg": 14.0, "saga": 24.0}[name]  # per element of a row and pass
    return flops * n * d * result.passes


def measure(size: Size, *, max_passes: float = 6000) -> dict[str, Any]:
    """Seconds, passes and operations of every method to a gap of 1e-6 or to its budget, and the formulas of Table 1."""
    # this spread conditions the features well enough that most cells reach the target
    problem = Problem(ar1_log(size.n), fourier_features(size.d, spread=4.0), discount=0.9)
    exact, theory = Exact(problem), Theory(problem)
    formulas = theory.table1(TARGET_GAP)
    row: dict[str, Any] = {
        "n": size.n,
        "d": size.d,
        "kappa_C": theory.kappa_C,
        "kappa": theory.kappa,
        "kappa_G": theory.kappa_G,
        "beats lstd from d": theory.beats_lstd_from_d(TARGET_GAP),
        "beats pdbg from n": theory.beats_pdbg_from_n(),
        "methods": {},
    }
    with limit_threads(1):
        for name, (formula, solver) in methods(problem).items():
            result = solve(
                problem, solver, tol=0, max_passes=max_passes, max_seconds=40.0, reference=exact.theta,
                callback=_target_reached,
            )  # fmt: skip
            reached = bool(exact.gap(result.theta) <= TARGET_GAP)
            seconds = _median_seconds(problem, solver, result.passes) if reached else result.seconds
            row["methods"][name] = {
                "reached": reached,
                "passes": result.passes,
                "seconds": seconds,
                "operations": operations(name, problem, result),
                "formula": formulas[formula],
            }
    return row


def _median_seconds(problem: Problem, solver: Solver, passes: float) -> float:
    """Median time of this many passes, each on a new copy of the problem, without cached moments.

    Solves below two seconds are timed three times, longer ones once.
    """
    seconds: list[float] = []
    while len(seconds) < (3 if not seconds or seconds[0] < 2.0 else 1):
        fresh = Problem.from_rows(problem.phi.matrix, problem.now, problem.next, problem.reward, problem.discount)
        seconds.append(solve(fresh, solver, tol=0, max_passes=max(1.0, passes)).seconds)
    return statistics.median(seconds)


def _target_reached(progress: Any) -> bool:
    return bool(progress.gap <= TARGET_GAP)


def run_table1(
    folder: Path, *, quick: bool, progress: Callable[[str, float], None] = lambda text, fraction: None
) -> dict[str, list[dict[str, Any]]]:
    """Measure every cell, then write figure and table; finished cells are files, so that a second call resumes."""
    store = folder / "runs"
    store.mkdir(parents=True, exist_ok=True)
    measure(Size(200, 5), max_passes=50)  # compile first, so that seconds exclude compilation
    measured: dict[str, list[dict[str, Any]]] = {}
    sizes_by_axis = sweeps(quick)
    total, done = sum(size.n * size.d for sizes in sizes_by_axis.values() for size in sizes), 0
    for axis, sizes in sizes_by_axis.items():
        measured[axis] = []
        for size in sizes:
            path = store / f"n{size.n}-d{size.d}.json"
            if not path.exists():
                row = measure(size, max_passes=2000 if quick else 6000)
                write_run(path, row)
            measured[axis].append(_read_cell(path, size))
            done += size.n * size.d
            progress(f"n = {size.n}, d = {size.d}", done / total)
    write_bytes(folder / "table.md", markdown(measured).encode())
    draw(measured, folder)
    return measured


def _read_cell(path: Path, size: Size) -> dict[str, Any]:
    """The row of a finished cell, as `measure` returned it."""
    facts = ("kappa_C", "kappa", "kappa_G", "beats lstd from d", "beats pdbg from n")
    checks = {"n": size.n.__eq__, "d": size.d.__eq__, **dict.fromkeys(facts, is_number), "methods": _are_costs}
    return read_run(path, checks)


def _are_costs(methods: Any) -> bool:
    return isinstance(methods, dict) and all(_is_cost(methods.get(name)) for name in METHOD_COLOURS)


def _is_cost(cost: Any) -> bool:
    """Whether a value in a file is the cost of one method, as in `measure`."""
    numbers = ("passes", "seconds", "operations", "formula")
    return (
        isinstance(cost, dict)
        and isinstance(cost.get("reached"), bool)
        and all(is_number(cost.get(name)) for name in numbers)
    )


def exponent(rows: list[dict[str, Any]], axis: str, name: str, what: str) -> float:
    """Slope of log cost against log size over the cells that reached the target."""
    points = [(row[axis], row["methods"][name][what]) for row in rows if row["methods"][name]["reached"]]
    if len(points) < 2:
        return math.nan
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def crossover(rows: list[dict[str, Any]], axis: str, one: str, other: str) -> str:
    """The sizes at which `one` took less time than `other`; without the target, the seconds are a lower bound."""
    sizes: dict[str, list[int]] = {"faster": [], "slower": [], "undecided": []}
    for row in rows:
        a, b = row["methods"][one], row["methods"][other]
        faster = a["reached"] and a["seconds"] < b["seconds"]
        slower = b["reached"] and b["seconds"] <= a["seconds"]
        sizes["faster" if faster else "slower" if slower else "undecided"].append(row[axis])
    if not sizes["faster"] and not sizes["undecided"]:
        return f"not up to {axis} = {rows[-1][axis]}"
    if not sizes["slower"] and not sizes["undecided"]:
        return f"everywhere from {axis} = {rows[0][axis]}"
    return "; ".join(f"{word} at {axis} = {', '.join(map(str, at))}" for word, at in sizes.items() if at)


def markdown(measured: dict[str, list[dict[str, Any]]]) -> str:
    """The page as Markdown: costs, growth exponents, crossovers."""
    names = list(METHOD_COLOURS)
    intro = (
        "Seconds (passes) to a gap of 1e-6, constant steps computed without eigenvalues, raw coordinates, one thread; "
        "> marks a lower bound where the gap was not reached."
    )
    lines = ["# Table 1, measured", "", intro, ""]

    def cost(cell: dict[str, Any]) -> str:
        return f"{'' if cell['reached'] else '> '}{cell['seconds']:.3g} ({cell['passes']:.0f})"

    cells = [
        [str(row["n"]), str(row["d"]), *(cost(row["methods"][name]) for name in names)]
        for rows in measured.values() for row in rows
    ]  # fmt: skip
    lines += markdown_table(["n", "d", *names], cells)
    lines += ["", "Growth exponents of the counted operations, of the seconds, and of the formula of Table 1.", ""]
    kinds = [(axis, what) for axis in measured for what in ("operations", "seconds", "formula")]
    growth = [
        [name, *(f"{exponent(measured[axis], axis, name, what):.2f}".replace("nan", "-") for axis, what in kinds)]
        for name in names
    ]
    lines += markdown_table(["method", *(f"{what} in {axis}" for axis, what in kinds)], growth)
    last = measured["d"][-1]
    lines += [
        "",
        "Sizes at which SVRG and SAGA are faster on this machine, and the inequalities of section 6:",
        "",
        f"- SAGA against LSTD: {crossover(measured['d'], 'd', 'saga', 'lstd')}. "
        f"The inequality requires d > {last['beats lstd from d']:.1e} at n = {last['n']}, d = {last['d']}.",
        f"- SAGA against PDBG (I): {crossover(measured['n'], 'n', 'saga', 'pdbg (I)')}. "
        f"The inequality requires n > {last['beats pdbg from n']:.1e} at this size.",
        f"- SVRG against PDBG (I): {crossover(measured['n'], 'n', 'svrg', 'pdbg (I)')}.",
        f"- PDBG (II) against PDBG (I): {crossover(measured['n'], 'n', 'pdbg (II)', 'pdbg (I)')}.",
        "",
    ]
    return "\n".join(lines)


def draw(measured: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Write the figure: seconds and counted operations against n and d, the growth of the formulas as dotted lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(measured), 7))
    axes = figure.subplots(2, len(measured), squeeze=False, sharex="col", sharey="row")
    for row, (what, label) in enumerate({"seconds": "seconds", "operations": "operations counted"}.items()):
        for axis, (letter, cells) in zip(axes[row], measured.items(), strict=True):
            for name in METHOD_COLOURS:
                _plot_method(axis, cells, letter, name, what)
            sizes = [cell[letter] for cell in cells]
            axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
            other = "d" if letter == "n" else "n"
            axis.set_title(f"{other} = {cells[0][other]:,}", fontsize=10)
        costs = [
            cell["methods"][name][what] for cells in measured.values() for cell in cells for name in METHOD_COLOURS
        ]
        axes[row, 0].set_ylim(min(costs) / 2, max(costs) * 2)  # the dotted lines may run out of the panel
        axes[row, 0].set_ylabel(f"{label} to a gap of 1e-6")
    for axis, letter in zip(axes[-1], measured, strict=True):
        axis.set_xlabel(letter)
    axes[0, 0].plot([], [], ":", color="black", label="growth of the formula")
    axes[0, 0].plot([], [], "^", color="black", markerfacecolor="none", linestyle="none", label="not reached: at least")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.suptitle("Table 1 measured: cost of a gap of 1e-6, one thread")
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    write_png_and_svg(figure, folder, "table-1")


def _plot_method(axis: Any, cells: list[dict[str, Any]], letter: str, name: str, what: str) -> None:
    """Plot one method in one panel: measured cells, lower bounds, the formula scaled to the middle measured cell."""
    colour = METHOD_COLOURS[name]
    reached = [cell for cell in cells if cell["methods"][name]["reached"]]
    missed = [cell for cell in cells if not cell["methods"][name]["reached"]]
    x, y = ([cell[letter] for cell in reached], [cell["methods"][name][what] for cell in reached])
    axis.loglog(x, y, "o-", color=colour, label=name, markersize=5)
    x_missed, y_missed = ([cell[letter] for cell in missed], [cell["methods"][name][what] for cell in missed])
    axis.loglog(x_missed, y_missed, "^", color=colour, markerfacecolor="none")
    if len(reached) > 1:
        formula = np.array([cell["methods"][name]["formula"] for cell in reached])
        middle = len(reached) // 2
        axis.loglog(x, formula * y[middle] / formula[middle], ":", color=colour, linewidth=1)
