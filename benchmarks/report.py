"""Writes the page, the data and the figure of the grid from its results."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from benchmarks.targets import TARGETS, fastest, reached
from benchmarks.tasks import OWN, PAIRED_THREADS, PEERS
from valuefit.atomic import write_bytes

Record = dict[str, Any]
WHY = Path(__file__).with_name("why.md")  # explanations of missed targets, written by hand after a full run
MARK = {True: "met", False: "**missed**", None: "not measured"}


def write(results: Record, out: Path) -> None:
    """Write results.md, results.json and results.png into the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    results = {**results, "machine": _machine(), "targets": _judged(results)}
    write_bytes(out / "results.json", (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())
    write_bytes(out / "results.md", page(results).encode())
    draw(results, out / "results.png")


def _machine() -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"SciPy {scipy.__version__}"
    )


def _judged(results: Record) -> Record:
    return {
        title: [{"target": what, "number": number, "met": met} for what, number, met in judge(results)]
        for title, judge in TARGETS.items()
    }


def present(results: Record, names: tuple[str, ...]) -> list[str]:
    """The named tasks that at least one cell has."""
    return [name for name in names if any(name in facts["tasks"] for facts in results["cells"].values())]


def page(results: Record) -> str:
    own, peers = present(results, OWN), present(results, PEERS)
    lines = [
        "# The benchmark grid",
        "",
        f"Written by `make bench` ({results['machine']}). Every solver runs with its defaults and tol=1e-6, for at "
        f"most 400 passes and {results['seconds']:.0f} s; in large cells our solvers have up to 8 times that, others "
        "twice. `gtd2`, `tdc` and TD-SVRG have a quarter of the time, on tiles also `pdbg`, `svrg` and `saga`, and on "
        "hashed tiles all: they seldom reach the gap. `gtd2` and `tdc`, which are sublinear, have 100 passes. One "
        "thread unless two are named; medians of five or three runs for short ones, after compilation. Gaps are true "
        "gaps, computed by code that is independent of the solvers. Times are ratios; `results.json` has seconds.",
        "",
        *(["**Shrunken cells: these numbers only test the code.**", ""] if results["quick"] else []),
        "![seconds over the fastest of each cell](results.png)",
        "",
        "## Targets",
    ]
    for title, rows in results["targets"].items():
        lines += ["", f"### {title}", "", "| target | number | |", "|---|---|---|"]
        lines += [f"| {row['target']} | {row['number']} | {MARK[row['met']]} |" for row in rows]
    if not results["quick"] and WHY.exists():
        lines += ["", "### Why targets are missed", "", WHY.read_text().strip()]
    lines += ["", "## Cells", "", "| cell | description | n | d | distinct rows | kappa(C) | true gap by |", _rule(7)]
    for name, facts in results["cells"].items():
        about = facts["tasks"].get("reference", {})
        kappa = "" if about.get("condition") is None else f"{about['condition']:.0e}"
        lines.append(
            f"| {name} | {facts['about']} | {about.get('n', facts['n']):,} | {about.get('d', facts['d']):,} | "
            f"{about.get('distinct', '')} | {kappa} | {about.get('about', about.get('message', ''))} |"
        )
    lines += ["", "## Passes and true gaps of our solvers", "", "`^`: its gap exceeded 1 during the run.", ""]
    lines += [f"| cell | {' | '.join(own)} |", _rule(1 + len(own))]
    for name, facts in results["cells"].items():
        lines.append(f"| {name} | {' | '.join(_passes(facts['tasks'].get(solver)) for solver in own)} |")
    shown = [*own, *peers]
    lines += ["", "## Seconds over the fastest that reached the gap", ""]
    lines += [
        "In parentheses: did not reach it, with its final gap. Where none did, ratios are to the fastest to end.",
        "",
    ]
    lines += [f"| cell | {' | '.join(shown)} |", _rule(1 + len(shown))]
    for name, facts in results["cells"].items():
        unit = _unit(facts["tasks"], shown)
        cells = " | ".join(_ratio(facts["tasks"].get(task), unit) for task in shown)
        lines.append(f"| {name} | {cells} |")
    pairs = {name: facts["tasks"] for name, facts in results["cells"].items() if "paired@1" in facts["tasks"]}
    if pairs:
        lines += ["", "## Seconds of textbook LSTD over seconds of `auto`", "", "Medians of alternating runs; "]
        lines[-1] += "`auto` includes the construction of the problem."
        heads = " | ".join(f"{count} threads" if count > 1 else "one thread" for count in PAIRED_THREADS)
        lines += ["", f"| cell | {heads} |", _rule(1 + len(PAIRED_THREADS))]
        for name, tasks in pairs.items():
            ratios = (tasks.get(f"paired@{count}", {}).get("ratio") for count in PAIRED_THREADS)
            lines.append(f"| {name} | {' | '.join('' if ratio is None else f'{ratio:.2f}' for ratio in ratios)} |")
    lines += ["", "## Runs that were refused, failed or did not finish", ""]
    lines += [
        f"- {name}, {task}: {record['status']}. {record.get('message', '')}".rstrip()
        for name, facts in results["cells"].items()
        for task, record in facts["tasks"].items()
        if record.get("status") in ("refused", "killed", "died", "failed", "not run", "out of memory", "diverged")
        and record.get("message") != "rows are dense"
    ]
    return "\n".join([*lines, ""])


def _unit(tasks: Record, shown: list[str]) -> float:
    """Seconds of the fastest that reached the gap; of the fastest to end where none did."""
    best = fastest(tasks, tuple(shown))
    ended = [tasks[name]["seconds"] for name in shown if tasks.get(name, {}).get("seconds")]
    return best[1] if best else min(ended, default=1.0)


def _rule(columns: int) -> str:
    return "|" + "---|" * columns


def _passes(task: Record | None) -> str:
    if task is None:
        return ""
    if task.get("passes") is None:
        return str(task["status"])
    rose = "^" if (task.get("worst") or 0.0) > 1.0001 else ""
    gap = "?" if task.get("gap") is None else f"{task['gap']:.0e}"
    word = "" if task["status"] == "converged" else f" {task['status']}"
    return f"{task['passes']:.0f}{rose} ({gap}){word}"


def _ratio(task: Record | None, unit: float) -> str:
    if task is None:
        return ""
    if task.get("seconds") is None:
        return str(task["status"])
    ratio = f"{task['seconds'] / unit:.3g}"
    if reached(task):
        return ratio
    gap = "" if task.get("gap") is None else f": {task['gap']:.0e}"
    return f"({ratio}{gap})"


def draw(results: Record, path: Path) -> None:
    """One line per cell, one mark per solver: seconds over the fastest; hollow where the gap was not reached."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = results["cells"]
    shown = [*present(results, OWN), *present(results, PEERS)]
    figure, axes = pyplot.subplots(figsize=(10, 1.5 + 0.4 * len(cells)), layout="constrained")
    for place, name in enumerate(shown):
        colour, marker = f"C{place % 10}", "o" if name in OWN else "s"
        axes.plot([], [], marker, color=colour, label=name)
        for row, facts in enumerate(cells.values()):
            task = facts["tasks"].get(name)
            if task is None or not task.get("seconds"):
                continue
            inside = colour if reached(task) else "none"
            axes.plot(
                task["seconds"] / _unit(facts["tasks"], shown),
                row,
                marker,
                color=colour,
                markerfacecolor=inside,
                alpha=0.8,
            )
    axes.set_yticks(range(len(cells)), list(cells))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1.0, color="0.7", linewidth=0.8, zorder=0)
    axes.set_xlabel("seconds over the fastest that reached a gap of 1e-6 (hollow: did not reach it)")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
