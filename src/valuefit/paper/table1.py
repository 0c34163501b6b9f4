"""Table 1 measured: cost of LSTD, PDBG (I, II), SVRG and SAGA over sweeps in n and d, beside the formulas."""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import write_bytes
from valuefit.datasets.ar1 import ar1_log, fourier_features
from valuefit.engine.loop import solve
from valuefit.engine.result import Result
from valuefit.problem.exact import Exact
from valuefit.problem.problem import Problem
from valuefit.problem.theory import Theory
from valuefit.solvers import registry
from valuefit.solvers.solver import Solver
from valuefit.threads import limit_threads

GAP = 1e-6
SPREAD = 4.0  # of the features' frequencies: so well conditioned that every method gets there on most sizes
PATIENCE = 40.0  # seconds for one method on one size
BRIEF = 2.0  # seconds; what takes longer is timed once, not three times
COLOURS = {"lstd": "#CC79A7", "pdbg (I)": "#0072B2", "pdbg (II)": "#56B4E9", "svrg": "#D55E00", "saga": "#009E73"}


@dataclass(frozen=True)
class Size:
    """One cell of a sweep."""

    n: int
    d: int


def sweeps(quick: bool) -> dict[str, list[Size]]:
    """The sizes of both sweeps."""
    if quick:
        return {"n": [Size(n, 20) for n in (500, 1000, 2000)], "d": [Size(1000, d) for d in (10, 20, 40)]}
    return {
        "n": [Size(n, 50) for n in (2_500, 5_000, 10_000, 20_000, 40_000, 80_000)],
        "d": [Size(20_000, d) for d in (25, 50, 100, 200, 400, 800)],
    }


def methods(problem: Problem) -> dict[str, tuple[str, Solver]]:
    """Name -> (row of Table 1, solver): the paper's methods with constant eigenvalue-free steps, in raw coordinates."""
    found: Any = registry()

    def plain(name: str, **settings: Any) -> Solver:
        step_theta, step_w = found[name]().auto_steps(problem)
        solver: Solver = found[name](step_theta=step_theta, step_w=step_w, **settings)
        return solver

    return {
        "lstd": ("lstd", found["lstd"]()),
        "pdbg (I)": ("pdbg (I)", plain("pdbg")),
        "pdbg (II)": ("pdbg (II)", plain("pdbg", precompute=True)),
        "svrg": ("svrg/saga", plain("svrg")),
        "saga": ("svrg/saga", plain("saga")),
    }


def operations(name: str, problem: Problem, result: Result) -> float:
    """Multiplications and additions done, counted from the algorithm."""
    n, d = problem.n, problem.d
    if name == "lstd":
        return 2.0 * n * d * d + 2 / 3 * d**3
    if name == "pdbg (II)":
        epochs = len(result.history) - 1
        cost = 3 * d * d / (2 * n * d)
        return 4.0 * n * d * d + epochs * max(1, min(1000, int(1 / cost))) * 6.0 * d * d
    each = {"pdbg (I)": 8.0, "svrg": 14.0, "saga": 24.0}[name]  # flops a number of a row in one touch
    return each * n * d * result.passes


def measure(size: Size, *, max_passes: float = 6000) -> dict[str, Any]:
    """Seconds, passes and operations of every method to a gap of 1e-6 (or to the budget), and the formulas."""
    problem = Problem(ar1_log(size.n), fourier_features(size.d, spread=SPREAD), discount=0.9)
    exact, theory = Exact(problem), Theory(problem)
    formulas = theory.table1(GAP)
    row: dict[str, Any] = {
        "n": size.n,
        "d": size.d,
        "kappa_C": theory.kappa_C,
        "kappa": theory.kappa,
        "kappa_G": theory.kappa_G,
        "beats lstd from d": theory.beats_lstd_from_d(GAP),
        "beats pdbg from n": theory.beats_pdbg_from_n(),
        "methods": {},
    }
    with limit_threads(1):
        for name, (formula, solver) in methods(problem).items():
            target = solve(
                problem, solver, tol=0, max_passes=max_passes, max_seconds=PATIENCE, reference=exact.theta,
                callback=_there,
            )  # fmt: skip
            reached = bool(exact.gap(target.theta) <= GAP)
            seconds = _seconds(problem, solver, target.passes) if reached else target.seconds
            row["methods"][name] = {
                "reached": reached,
                "passes": target.passes,
                "seconds": seconds,
                "operations": operations(name, problem, target),
                "formula": formulas[formula],
            }
    return row


def _seconds(problem: Problem, solver: Solver, passes: float) -> float:
    """Median time of that many passes, each time on a problem of which nothing is known yet."""
    seconds: list[float] = []
    while len(seconds) < (3 if not seconds or seconds[0] < BRIEF else 1):
        fresh = Problem.from_rows(problem.phi.matrix, problem.now, problem.next, problem.reward, problem.discount)
        seconds.append(solve(fresh, solver, tol=0, max_passes=max(1.0, passes)).seconds)
    return statistics.median(seconds)


def _there(standing: Any) -> bool:
    return bool(standing.gap <= GAP)


def run_table1(
    folder: Path, *, quick: bool, progress: Callable[[str, float], None] = lambda text, share: None
) -> dict[str, list[dict[str, Any]]]:
    """Measure every cell (each a file, so that a stopped run goes on), then write figure and table."""
    store = folder / "runs"
    store.mkdir(parents=True, exist_ok=True)
    measure(Size(200, 5), max_passes=50)  # for the compiler
    found: dict[str, list[dict[str, Any]]] = {}
    wanted = sweeps(quick)
    total, done = sum(size.n * size.d for sizes in wanted.values() for size in sizes), 0
    for axis, sizes in wanted.items():
        found[axis] = []
        for size in sizes:
            path = store / f"n{size.n}-d{size.d}.json"
            if not path.exists():
                row = measure(size, max_passes=2000 if quick else 6000)
                write_bytes(path, json.dumps(row, allow_nan=False).encode())
            found[axis].append(json.loads(path.read_text()))
            done += size.n * size.d
            progress(f"n = {size.n}, d = {size.d}", done / total)
    write_bytes(folder / "table.md", markdown(found).encode())
    draw(found, folder)
    return found


def exponent(rows: list[dict[str, Any]], axis: str, name: str, what: str) -> float:
    """Slope of log cost against log size over the cells where the gap was reached."""
    points = [(row[axis], row["methods"][name][what]) for row in rows if row["methods"][name]["reached"]]
    if len(points) < 2:
        return math.nan
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def crossover(rows: list[dict[str, Any]], axis: str, one: str, other: str) -> str:
    """At which sizes `one` took less time than `other`; seconds of what was not reached are a lower bound."""
    sizes: dict[str, list[int]] = {"faster": [], "slower": [], "open": []}
    for row in rows:
        a, b = row["methods"][one], row["methods"][other]
        faster = a["reached"] and a["seconds"] < b["seconds"]
        slower = b["reached"] and b["seconds"] <= a["seconds"]
        sizes["faster" if faster else "slower" if slower else "open"].append(row[axis])
    if not sizes["faster"] and not sizes["open"]:
        return f"not up to {axis} = {rows[-1][axis]}"
    if not sizes["slower"] and not sizes["open"]:
        return f"everywhere from {axis} = {rows[0][axis]}"
    told = [f"{word} at {axis} = {', '.join(map(str, at))}" for word, at in sizes.items() if at]
    return "; ".join(told)


def markdown(found: dict[str, list[dict[str, Any]]]) -> str:
    """The page: costs, growth, crossovers."""
    names = list(COLOURS)
    intro = (
        "Seconds (passes) to a gap of 1e-6, constant eigenvalue-free steps in raw coordinates, one thread; "
        "> where it was not reached in time."
    )
    lines = ["# Table 1, measured", "", intro, ""]
    lines += ["| n | d | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for rows in found.values():
        for row in rows:
            cells = []
            for name in names:
                cell = row["methods"][name]
                cells.append(f"{'' if cell['reached'] else '> '}{cell['seconds']:.3g} ({cell['passes']:.0f})")
            lines.append(f"| {row['n']} | {row['d']} | " + " | ".join(cells) + " |")
    lines += ["", "Growth: exponent of operations counted, of seconds, and of Table 1's formula.", ""]
    heads = [f"{what} in {axis}" for axis in found for what in ("operations", "seconds", "formula")]
    lines += ["| method | " + " | ".join(heads) + " |"]
    lines += ["|---" * (1 + 3 * len(found)) + "|"]
    for name in names:
        cells = [
            f"{exponent(rows, axis, name, what):.2f}".replace("nan", "-")
            for axis, rows in found.items()
            for what in ("operations", "seconds", "formula")
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    last = found["d"][-1]
    lines += [
        "",
        "Where SVRG and SAGA are faster on this machine, beside the inequalities of section 6:",
        "",
        f"- SAGA against LSTD: {crossover(found['d'], 'd', 'saga', 'lstd')}. "
        f"The inequality asks for d > {last['beats lstd from d']:.1e} at n = {last['n']}, d = {last['d']}.",
        f"- SAGA against PDBG (I): {crossover(found['n'], 'n', 'saga', 'pdbg (I)')}. "
        f"The inequality asks for n > {last['beats pdbg from n']:.1e} there.",
        f"- SVRG against PDBG (I): {crossover(found['n'], 'n', 'svrg', 'pdbg (I)')}.",
        f"- PDBG (II) against PDBG (I): {crossover(found['n'], 'n', 'pdbg (II)', 'pdbg (I)')}.",
        "",
    ]
    return "\n".join(lines)


def draw(found: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Seconds and counted operations against n and against d, with the formulas as dotted lines through a point."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(found), figsize=(5 * len(found), 7), squeeze=False, sharex="col", sharey="row")
    for row, (what, label) in enumerate({"seconds": "seconds", "operations": "operations counted"}.items()):
        for axis, (letter, cells) in zip(axes[row], found.items(), strict=True):
            for name in COLOURS:
                _line(axis, cells, letter, name, what)
            sizes = [cell[letter] for cell in cells]
            axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
            other = "d" if letter == "n" else "n"
            axis.set_title(f"{other} = {cells[0][other]:,}", fontsize=10)
        every = [cell["methods"][name][what] for cells in found.values() for cell in cells for name in COLOURS]
        axes[row, 0].set_ylim(min(every) / 2, max(every) * 2)  # the formulas may leave
        axes[row, 0].set_ylabel(f"{label} to a gap of 1e-6")
    for axis, letter in zip(axes[-1], found, strict=True):
        axis.set_xlabel(letter)
    axes[0, 0].plot([], [], ":", color="black", label="growth of the formula")
    axes[0, 0].plot([], [], "^", color="black", markerfacecolor="none", linestyle="none", label="not reached: at least")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.suptitle("Table 1 measured: cost of a gap of 1e-6, one thread")
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    for suffix in ("png", "svg"):
        stream = io.BytesIO()
        figure.savefig(stream, format=suffix, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
        write_bytes(folder / f"table-1.{suffix}", stream.getvalue())
    plt.close(figure)


def _line(axis: Any, cells: list[dict[str, Any]], letter: str, name: str, what: str) -> None:
    """One method in one panel: where it got there, its formula through the middle of those, and lower bounds."""
    colour = COLOURS[name]
    good = [cell for cell in cells if cell["methods"][name]["reached"]]
    short = [cell for cell in cells if not cell["methods"][name]["reached"]]
    x, y = ([cell[letter] for cell in good], [cell["methods"][name][what] for cell in good])
    axis.loglog(x, y, "o-", color=colour, label=name, markersize=5)
    x_short, y_short = ([cell[letter] for cell in short], [cell["methods"][name][what] for cell in short])
    axis.loglog(x_short, y_short, "^", color=colour, markerfacecolor="none")
    if len(good) > 1:
        formula = np.array([cell["methods"][name]["formula"] for cell in good])
        middle = len(good) // 2
        axis.loglog(x, formula * y[middle] / formula[middle], ":", color=colour, linewidth=1)
