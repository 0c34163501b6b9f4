"""The report of comparisons: one self-contained HTML page with forest plots of the values and their differences."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from valuefit.evaluation.comparison import Comparisons
from valuefit.evaluation.text import estimate_cells, number
from valuefit.report.figures import Figure
from valuefit.report.forest import Row, forest
from valuefit.report.page import fill_template, write_page


def write_comparison(comparisons: Comparisons, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write the report to `path` and return the path; an existing file needs `force=True`."""
    return write_page(path, lambda: render(comparisons), force=force)


def render(comparisons: Comparisons) -> str:
    """The page as HTML text."""
    facts = comparisons.to_dict()
    first = comparisons.evaluations[0]
    interval = f"{100 * facts['level']:g}% interval"
    values = [{**entry, "last": entry["verdict"]["level"]} for entry in facts["values"]]
    differences = [
        {**entry, "name": " − ".join(entry["names"]), "last": f"{entry['p_value']:.2g}"}
        for entry in facts["differences"]
    ]
    figures = [
        _figure(
            "differences", "difference", "estimate", "p-value", differences, f"difference, {interval}",
            "The value of the first policy minus that of the second, paired by episode. Policies differ where the "
            "interval does not contain 0, the dashed line.",
        ),
        _figure(
            "values", "policy", "value", "verdict", values, f"policy value, {interval}",
            "The value of each policy with an interval of its own. The sampling error that values share is in all of "
            "them, so whether they overlap does not say whether policies differ.",
        ),
    ]  # fmt: skip
    variables = {
        "source": first.log.source or "a log in memory",
        "discount": f"{first.discount:g}",
        "figures": figures,
        "together": len(differences) > 1,
        "notes": [(entry["name"], entry["notes"]) for entry in differences],
        "verdicts": [(entry["name"], entry["verdict"]) for entry in values],
    }
    return fill_template("comparison.html", variables)


def _figure(
    name: str, what: str, quantity: str, last: str, entries: list[dict[str, Any]], label: str, caption: str
) -> Figure:
    """The forest plot and the table of values or of differences. last: the title of the last column."""
    rows = [Row(entry["name"], entry["estimate"], *(entry["interval"] or (None, None))) for entry in entries]
    header = what, quantity, "standard error", "low", "high", "effective episodes", last
    table = tuple(
        (entry["name"], *estimate_cells(entry), number(entry["effective_episodes"]), entry["last"]) for entry in entries
    )
    desc = "; ".join(f"{row.label}: {row.text}" for row in rows) + "."
    svg = forest(name, name.capitalize(), desc, rows, x_label=label, zero=what == "difference")
    return Figure(name, name.capitalize(), caption, svg, header, table)
