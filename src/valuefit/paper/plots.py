"""Figures and tables of an experiment, from its curves."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import write_bytes
from valuefit.paper.experiment import Curves, Experiment
from valuefit.typing import Array

NAMES = {"pdbg": "PDBG", "gtd2": "GTD2", "flstd-sa": "TD (fLSTD-SA)", "svrg": "SVRG", "saga": "SAGA", "tdc": "TDC"}
# A colour-blind safe palette, and dashes besides, so that curves differ in print too.
STYLES = {
    "pdbg": ("#0072B2", "-."),
    "gtd2": ("#E69F00", ":"),
    "flstd-sa": ("#999999", "--"),
    "svrg": ("#D55E00", "-"),
    "saga": ("#009E73", "-"),
    "tdc": ("#CC79A7", ":"),
}
FLOOR = 1e-12


def on_common_passes(runs: list[dict[str, Any]]) -> tuple[Array, Array]:
    """passes, and log10 of the gap of every run there (runs, passes); a run that ended early stays where it was."""
    longest = max(runs, key=lambda run: run["passes"][-1])
    passes = np.array(longest["passes"])
    rows = [np.interp(passes, run["passes"], np.log10(np.maximum(run["gap"], 1e-300))) for run in runs]
    return passes, np.array(rows)


def straightness(passes: Array, gap: Array) -> float | None:
    """R^2 of log gap against passes over the linear part; None where the curve does not go below 1e-6.

    The linear part is the lower half of the descent, counted in decades: from the first pass at the square root of
    the lowest gap (1e-10 where it goes below that) to the first pass there. It is looked at in evenly spaced passes.
    """
    lowest = max(float(gap.min()), 1e-10)
    first, last = (np.flatnonzero(gap <= level)[0] for level in (np.sqrt(lowest), lowest))
    if lowest > 1e-6 or last - first < 3:
        return None
    even = np.linspace(passes[first], passes[last], 200)
    logs = np.interp(even, passes, np.log(np.maximum(gap, 1e-300)))
    return float(np.corrcoef(even, logs)[0, 1] ** 2)


def passes_to(passes: Array, gap: Array, target: float) -> float | None:
    below = np.flatnonzero(gap <= target)
    return float(passes[below[0]]) if len(below) else None


def draw(experiment: Experiment, curves: list[Curves], folder: Path) -> list[Path]:
    """One figure: a column a panel, a row a grid; the median over seeds with their spread shaded. PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    grids, panels = list(experiment.grids), experiment.panels
    size = (4.2 * len(panels), 3.3 * len(grids))
    figure, axes = plt.subplots(len(grids), len(panels), figsize=size, squeeze=False, sharey=True)
    for row, grid in enumerate(grids):
        for column, panel in enumerate(panels):
            axis = axes[row, column]
            for found in curves:
                if (found.grid, found.panel) != (grid, panel.label) or not any(run["passes"] for run in found.runs):
                    continue
                colour, dashes = STYLES[found.method]
                passes, logs = on_common_passes([run for run in found.runs if run["passes"]])
                shown = 10 ** np.clip(logs, np.log10(FLOOR) - 1, 3)  # beyond the axis, so that curves leave the panel
                # dashes over solid lines: where GTD2 goes along with SAGA both are seen
                above = 2.0 if dashes == "-" else 2.1
                middle = np.median(shown, axis=0)
                axis.plot(passes, middle, dashes, color=colour, label=NAMES[found.method], zorder=above)
                axis.fill_between(passes, shown.min(axis=0), shown.max(axis=0), color=colour, alpha=0.25, linewidth=0)
                lost = sum(run["status"] == "diverged" for run in found.runs)
                if lost:
                    place = (0.97, 0.94 - 0.08 * len(axis.texts))  # below what is told already
                    text = f"{NAMES[found.method]} diverges ({lost} of {len(found.runs)} seeds)"
                    axis.text(*place, text, color=colour, transform=axis.transAxes, ha="right", va="top", fontsize=9)
            axis.set_yscale("log")
            axis.set_ylim(FLOOR, 1e2)
            axis.set_title(f"{panel.label} ({grid} grid)", fontsize=10)
            axis.set_xlabel("passes over the log")
            axis.grid(alpha=0.3)
        axes[row, 0].set_ylabel("gap")
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    spread = f"steps tuned on each grid; line: median of {len(experiment.seeds)} seeds, shaded: all of them"
    figure.suptitle(f"{experiment.title}\n{spread}", fontsize=11)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    written = []
    for suffix in ("png", "svg"):
        stream = io.BytesIO()
        # no date inside, so that the same numbers give the same file
        figure.savefig(stream, format=suffix, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
        path = folder / f"{experiment.name}.{suffix}"
        write_bytes(path, stream.getvalue())
        written.append(path)
    plt.close(figure)
    return written


def table(curves: list[Curves]) -> list[dict[str, Any]]:
    """One row a method, grid and panel: best steps, passes to a gap of 1e-2 and 1e-6, last gap, straightness.

    All of them are those of the median curve, except the fewest and the most passes to 1e-6 of a single seed.
    """
    rows = []
    for found in curves:
        runs = [run for run in found.runs if run["passes"]]
        row: dict[str, Any] = {
            "panel": found.panel,
            "grid": found.grid,
            "method": NAMES[found.method],
            "step_theta": found.step_theta * found.unit_theta,
            "step_w": None if found.method == "flstd-sa" else found.step_w * found.unit_w,
            "diverged": sum(run["status"] == "diverged" for run in found.runs),
        }
        if runs:
            passes, logs = on_common_passes(runs)
            median = 10 ** np.median(logs, axis=0)
            row |= {
                "passes to 1e-2": passes_to(passes, median, 1e-2),
                "passes to 1e-6": passes_to(passes, median, 1e-6),
                "1e-6 by seed": _by_seed(found.runs),
                "last gap": float(median[-1]),
                "straightness": straightness(passes, median),
            }
        rows.append(row)
    return rows


def write_tables(experiment: Experiment, curves: list[Curves], folder: Path) -> list[Path]:
    """`table.md` for people and `results.csv`, tidy, for programs."""
    rows = table(curves)
    columns = ["panel", "grid", "method", "step_theta", "step_w", "passes to 1e-2", "passes to 1e-6", "1e-6 by seed",
               "last gap", "straightness", "diverged"]  # fmt: skip
    lines = [f"# {experiment.title}", "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(_cell(column, row.get(column)) for column in columns) + " |" for row in rows]
    markdown = "\n".join(lines) + "\n"
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["panel", "grid", "method", "seed", "step_theta", "step_w", "passes", "gap"])
    for found in curves:
        for run in found.runs:
            steps = (found.step_theta * found.unit_theta, found.step_w * found.unit_w)
            for passes, gap in zip(run["passes"], run["gap"], strict=True):
                writer.writerow([found.panel, found.grid, found.method, run["seed"], *steps, passes, gap])
    written = []
    for name, text in (("table.md", markdown), ("results.csv", out.getvalue())):
        write_bytes(folder / name, text.encode())
        written.append(folder / name)
    return written


def _by_seed(runs: list[dict[str, Any]]) -> str | None:
    """Fewest and most passes to 1e-6 of a single seed, as in "152 to 161"; None where no seed gets there."""
    found = [passes_to(np.array(run["passes"]), np.array(run["gap"]), 1e-6) for run in runs]
    there = [passes for passes in found if passes is not None]
    if not there:
        return None
    return f"{min(there):.0f} to " + (f"{max(there):.0f}" if len(there) == len(found) else "never")


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if column.startswith("passes") else f"{value:.3g}"
    return str(value)
