"""The report of comparisons: one self-contained HTML page with forest plots of the values and their differences."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from valuefit.atomic import check_target, write_bytes
from valuefit.evaluation.comparison import Comparisons
from valuefit.evaluation.text import number
from valuefit.report.figures import Figure
from valuefit.report.forest import Row, forest
from valuefit.report.page import fill_template


def write_comparison(comparisons: Comparisons, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write the report to `path` and return the path; an existing file needs `force=True`."""
    path = Path(path)
    check_target(path, force=force)
    return write_bytes(path, render(comparisons).encode(), force=force)


def render(comparisons: Comparisons) -> str:
    """The page as HTML text."""
    facts = comparisons.to_dict()
    first = comparisons.evaluations[0]
    variables = {
        "source": first.log.source or "a log in memory",
        "discount": f"{first.discount:g}",
        "figures": [_difference_figure(facts), _value_figure(facts)],
        "together": len(facts["differences"]) > 1,
        "notes": [(" − ".join(entry["names"]), entry["notes"]) for entry in facts["differences"]],
        "verdicts": [(entry["name"], entry["verdict"]) for entry in facts["values"]],
    }
    return fill_template("comparison.html", variables)


def _value_figure(facts: dict[str, Any]) -> Figure:
    entries = facts["values"]
    rows = [_forest_row(entry["name"], entry) for entry in entries]
    header = "policy", "value", "standard error", "low", "high", "effective episodes", "verdict"
    table = tuple(
        (entry["name"], *_estimate_cells(entry), number(entry["effective_episodes"]), entry["verdict"]["level"])
        for entry in entries
    )
    label = f"policy value, {100 * facts['level']:g}% interval"
    svg = forest("values", "Values", _sentence(rows), rows, x_label=label, zero=False)
    caption = "The value of each policy with an interval of its own. The sampling error that values share is in all of "
    caption += "them, so whether they overlap does not say whether policies differ."
    return Figure("values", "Values", caption, svg, header, table)


def _difference_figure(facts: dict[str, Any]) -> Figure:
    entries = facts["differences"]
    rows = [_forest_row(" − ".join(entry["names"]), entry) for entry in entries]
    header = "difference", "estimate", "standard error", "low", "high", "effective episodes", "p-value"
    table = tuple(
        (row.label, *_estimate_cells(entry), number(entry["effective_episodes"]), f"{entry['p_value']:.2g}")
        for row, entry in zip(rows, entries, strict=True)
    )
    label = f"difference, {100 * facts['level']:g}% interval"
    svg = forest("differences", "Differences", _sentence(rows), rows, x_label=label, zero=True)
    caption = "The value of the first policy minus that of the second, paired by episode. Policies differ where the "
    caption += "interval does not contain 0, the dashed line."
    return Figure("differences", "Differences", caption, svg, header, table)


def _forest_row(label: str, entry: dict[str, Any]) -> Row:
    low, high = entry["interval"] or (None, None)
    return Row(label, entry["estimate"], low, high)


def _estimate_cells(entry: dict[str, Any]) -> tuple[str, ...]:
    low, high = entry["interval"] or (None, None)
    return number(entry["estimate"]), number(entry["standard_error"]), number(low), number(high)


def _sentence(rows: list[Row]) -> str:
    return "; ".join(f"{row.label}: {row.text}" for row in rows) + "."
