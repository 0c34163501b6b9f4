"""Figures and tables of an experiment from its curves."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import write_bytes
from valuefit.evaluation.text import markdown_table
from valuefit.paper.definition import METHODS, Experiment
from valuefit.paper.experiment import Curves
from valuefit.typing import Array

MIN_PLOTTED_GAP = 1e-12  # lower end of the gap axis


def on_common_passes(runs: list[dict[str, Any]]) -> tuple[Array, Array]:
    """Passes of the longest run, and log10 of the gap of every run at these (runs, passes); shorter runs are held."""
    longest = max(runs, key=lambda run: run["passes"][-1])
    passes = np.array(longest["passes"])
    rows = [np.interp(passes, run["passes"], np.log10(np.maximum(run["gap"], 1e-300))) for run in runs]
    return passes, np.array(rows)


def straightness(passes: Array, gap: Array) -> float | None:
    """R^2 of log gap against passes over the linear part; None if the gap does not fall below 1e-6.

    The linear part is the lower half of the descent in decades: from the first pass at the square root of the lowest
    gap (at least 1e-10) to the first pass at the lowest gap. It is sampled at 200 evenly spaced passes.
    """
    lowest = max(float(gap.min()), 1e-10)
    first, last = (np.flatnonzero(gap <= level)[0] for level in (np.sqrt(lowest), lowest))
    if lowest > 1e-6 or last - first < 3:
        return None
    even = np.linspace(passes[first], passes[last], 200)
    logs = np.interp(even, passes, np.log(np.maximum(gap, 1e-300)))
    return float(np.corrcoef(even, logs)[0, 1] ** 2)


def passes_to(passes: Array, gap: Array, target: float) -> float | None:
    """The first pass at which the gap is at most `target`, or None."""
    below = np.flatnonzero(gap <= target)
    return float(passes[below[0]]) if len(below) else None


def outputs(experiment: Experiment) -> list[str]:
    """Names of the files that `draw` and `write_tables` write."""
    return [f"{experiment.name}.png", f"{experiment.name}.svg", "table.md", "results.csv"]


def draw(experiment: Experiment, curves: list[Curves], folder: Path) -> list[Path]:
    """Write the figure as PNG and SVG: columns are panels, rows grids; median over seeds, their range shaded."""
    from matplotlib.figure import Figure

    grids, panels = list(experiment.grids), experiment.panels
    figure = Figure(figsize=(4.2 * len(panels), 3.3 * len(grids)))
    axes = figure.subplots(len(grids), len(panels), squeeze=False, sharey=True)
    for row, grid in enumerate(grids):
        for column, panel in enumerate(panels):
            axis = axes[row, column]
            for curve in curves:
                if (curve.grid, curve.panel) == (grid, panel.label) and any(run["passes"] for run in curve.runs):
                    _draw_curve(axis, curve)
            axis.set_yscale("log")
            axis.set_ylim(MIN_PLOTTED_GAP, 1e2)
            axis.set_title(f"{panel.label} ({grid} grid)", fontsize=10)
            axis.set_xlabel("passes over the log")
            axis.grid(alpha=0.3)
        axes[row, 0].set_ylabel("gap")
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    legend = f"steps tuned on each grid; line: median of {len(experiment.seeds)} seeds, shaded: all of them"
    figure.suptitle(f"{experiment.title}\n{legend}", fontsize=11)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    return write_png_and_svg(figure, folder, experiment.name)


def _draw_curve(axis: Any, curve: Curves) -> None:
    """The median over seeds as a line, their range shaded, and how many diverged."""
    label, colour, dashes = METHODS[curve.method]
    passes, logs = on_common_passes([run for run in curve.runs if run["passes"]])
    # the limits lie outside the axis, so that curves run out of the panel
    shown = 10 ** np.clip(logs, np.log10(MIN_PLOTTED_GAP) - 1, 3)
    # dashed lines are drawn over solid ones, so that both show where they coincide
    zorder = 2.0 if dashes == "-" else 2.1
    axis.plot(passes, np.median(shown, axis=0), dashes, color=colour, label=label, zorder=zorder)
    axis.fill_between(passes, shown.min(axis=0), shown.max(axis=0), color=colour, alpha=0.25, linewidth=0)
    diverged = sum(run["status"] == "diverged" for run in curve.runs)
    if diverged:
        position = (0.97, 0.94 - 0.08 * len(axis.texts))  # below the previous texts
        text = f"{label} diverges ({diverged} of {len(curve.runs)} seeds)"
        axis.text(*position, text, color=colour, transform=axis.transAxes, ha="right", va="top", fontsize=9)


def write_png_and_svg(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG, without a date, so that the same numbers give the same file."""
    written = []
    for suffix in ("png", "svg"):
        stream = io.BytesIO()
        figure.savefig(stream, format=suffix, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
        written.append(write_bytes(folder / f"{name}.{suffix}", stream.getvalue()))
    return written


def table(curves: list[Curves]) -> list[dict[str, Any]]:
    """One row per method, grid and panel: best steps, passes to a gap of 1e-2 and 1e-6, last gap, straightness.

    They refer to the median curve, except "1e-6 by seed", the fewest and the most passes to 1e-6 of a single seed.
    """
    rows = []
    for curve in curves:
        runs = [run for run in curve.runs if run["passes"]]
        row: dict[str, Any] = {
            "panel": curve.panel,
            "grid": curve.grid,
            "method": METHODS[curve.method][0],
            "step_theta": curve.step_theta * curve.unit_theta,
            "step_w": None if curve.method == "flstd-sa" else curve.step_w * curve.unit_w,
            "diverged": sum(run["status"] == "diverged" for run in curve.runs),
        }
        if runs:
            passes, logs = on_common_passes(runs)
            median = 10 ** np.median(logs, axis=0)
            row |= {
                "passes to 1e-2": passes_to(passes, median, 1e-2),
                "passes to 1e-6": passes_to(passes, median, 1e-6),
                "1e-6 by seed": _by_seed(curve.runs),
                "last gap": float(median[-1]),
                "straightness": straightness(passes, median),
            }
        rows.append(row)
    return rows


def write_tables(experiment: Experiment, curves: list[Curves], folder: Path) -> list[Path]:
    """Write `table.md`, a summary in Markdown, and `results.csv`, all curves in tidy form."""
    rows = table(curves)
    columns = ["panel", "grid", "method", "step_theta", "step_w", "passes to 1e-2", "passes to 1e-6", "1e-6 by seed",
               "last gap", "straightness", "diverged"]  # fmt: skip
    cells = [[_cell(column, row.get(column)) for column in columns] for row in rows]
    markdown = "\n".join([f"# {experiment.title}", "", *markdown_table(columns, cells)]) + "\n"
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["panel", "grid", "method", "seed", "step_theta", "step_w", "passes", "gap"])
    for curve in curves:
        for run in curve.runs:
            steps = (curve.step_theta * curve.unit_theta, curve.step_w * curve.unit_w)
            for passes, gap in zip(run["passes"], run["gap"], strict=True):
                writer.writerow([curve.panel, curve.grid, curve.method, run["seed"], *steps, passes, gap])
    texts = {"table.md": markdown, "results.csv": out.getvalue()}
    return [write_bytes(folder / name, text.encode()) for name, text in texts.items()]


def _by_seed(runs: list[dict[str, Any]]) -> str | None:
    """Fewest and most passes to 1e-6 of a single seed, as in "152 to 161"; None if no seed reaches it."""
    by_seed = [passes_to(np.array(run["passes"]), np.array(run["gap"]), 1e-6) for run in runs]
    reached = [passes for passes in by_seed if passes is not None]
    if not reached:
        return None
    return f"{min(reached):.0f} to " + (f"{max(reached):.0f}" if len(reached) == len(by_seed) else "never")


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if column.startswith("passes") else f"{value:.3g}"
    return str(value)
