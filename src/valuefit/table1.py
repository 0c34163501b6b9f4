"""Table 1 measured: cost of LSTD, PDBG (I, II), SVRG and SAGA over sweeps in n and d, beside the formulas."""

from __future__ import annotations

import io
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from valuefit.exact import Exact
from valuefit.loop import solve
from valuefit.problem import Problem
from valuefit.result import Result, write_bytes
from valuefit.solver import Solver
from valuefit.solvers import registry
from valuefit.sources.ar1 import ar1_log, fourier_features
from valuefit.theory import Theory

GAP = 1e-6


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
        "n": [Size(n, 100) for n in (2_500, 5_000, 10_000, 20_000, 40_000, 80_000)],
        "d": [Size(20_000, d) for d in (25, 50, 100, 200, 400, 800)],
    }


def methods() -> dict[str, tuple[str, Solver]]:
    """Name -> (row of Table 1, solver)."""
    found: Any = registry()
    return {
        "lstd": ("lstd", found["lstd"]()),
        "pdbg (I)": ("pdbg (I)", found["pdbg"]()),
        "pdbg (II)": ("pdbg (II)", found["pdbg"](precompute=True)),
        "svrg": ("svrg/saga", found["svrg"]()),
        "saga": ("svrg/saga", found["saga"]()),
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


def measure(size: Size, *, max_passes: float = 20_000) -> dict[str, Any]:
    """Seconds, passes and operations of every method to a gap of 1e-6 (or to the budget), and the formulas."""
    problem = Problem(ar1_log(size.n), fourier_features(size.d), discount=0.9)
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
    with threadpool_limits(1):
        for name, (formula, solver) in methods().items():
            target = solve(problem, solver, tol=0, max_passes=max_passes, reference=exact.theta, callback=_there)
            reached = exact.gap(target.theta) <= GAP
            budget = max(1.0, target.passes)
            seconds = []
            for _ in range(3):
                fresh = Problem.from_rows(
                    problem.phi.matrix, problem.now, problem.next, problem.reward, problem.discount
                )
                seconds.append(solve(fresh, solver, tol=0, max_passes=budget).seconds)
            row["methods"][name] = {
                "reached": bool(reached),
                "passes": target.passes,
                "seconds": statistics.median(seconds),
                "operations": operations(name, problem, target),
                "formula": formulas[formula],
            }
    return row


def _there(standing: Any) -> bool:
    return bool(standing.gap <= GAP)


def run_table1(folder: Path, *, quick: bool, progress: Any = lambda text: None) -> dict[str, list[dict[str, Any]]]:
    """Measure every cell (each a file, so that a stopped run goes on), then write figure and table."""
    store = folder / "runs"
    store.mkdir(parents=True, exist_ok=True)
    measure(Size(200, 5), max_passes=50)  # for the compiler
    found: dict[str, list[dict[str, Any]]] = {}
    for axis, sizes in sweeps(quick).items():
        found[axis] = []
        for size in sizes:
            path = store / f"n{size.n}-d{size.d}.json"
            if not path.exists():
                row = measure(size, max_passes=2000 if quick else 20_000)
                write_bytes(path, json.dumps(row, allow_nan=False).encode())
            found[axis].append(json.loads(path.read_text()))
            progress(f"n = {size.n}, d = {size.d}")
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
    """From which size on `one` took less time than `other`."""
    faster = [row[axis] for row in rows if row["methods"][one]["seconds"] < row["methods"][other]["seconds"]]
    slower = [row[axis] for row in rows if row["methods"][one]["seconds"] >= row["methods"][other]["seconds"]]
    if not faster:
        return f"not up to {axis} = {rows[-1][axis]}"
    if not slower:
        return f"everywhere from {axis} = {rows[0][axis]}"
    return f"at {axis} = {', '.join(map(str, faster))}, not at {', '.join(map(str, slower))}"


def markdown(found: dict[str, list[dict[str, Any]]]) -> str:
    """The page: costs, growth, crossovers."""
    names = list(methods())
    intro = "Seconds (passes) to a gap of 1e-6, default steps, one thread; > where it was not reached."
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
    """Seconds against n and against d, with the formulas as thin lines through the middle point."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"lstd": "#CC79A7", "pdbg (I)": "#0072B2", "pdbg (II)": "#56B4E9", "svrg": "#D55E00", "saga": "#009E73"}
    figure, axes = plt.subplots(1, len(found), figsize=(5 * len(found), 4), squeeze=False)
    for axis, (letter, rows) in zip(axes[0], found.items(), strict=True):
        for name, colour in colours.items():
            good = [row for row in rows if row["methods"][name]["reached"]]
            if not good:
                continue
            x = np.array([row[letter] for row in good])
            y = np.array([row["methods"][name]["seconds"] for row in good])
            formula = np.array([row["methods"][name]["formula"] for row in good])
            axis.loglog(x, y, "o-", color=colour, label=name)
            middle = len(good) // 2
            axis.loglog(x, formula * y[middle] / formula[middle], ":", color=colour, linewidth=1)
        other = "d" if letter == "n" else "n"
        axis.set_xlabel(f"{letter} ({other} = {rows[0][other]})")
        axis.set_ylabel("seconds to a gap of 1e-6")
        axis.grid(alpha=0.3)
    axes[0, 0].legend(frameon=False, title="dotted: growth of the formula")
    figure.suptitle("Table 1: measured cost and the growth of its formulas")
    figure.tight_layout()
    for suffix in ("png", "svg"):
        stream = io.BytesIO()
        figure.savefig(stream, format=suffix, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
        write_bytes(folder / f"table-1.{suffix}", stream.getvalue())
    plt.close(figure)
