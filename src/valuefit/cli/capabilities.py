"""The table of solvers and the problems that each supports, generated from the solver classes."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from valuefit.evaluation.text import markdown_table
from valuefit.problem.saddle_point import TRAITS
from valuefit.solvers import registry


def markdown() -> str:
    """The table in Markdown, followed by the reason for every "no"."""
    rows: list[list[str]] = []
    reasons: dict[str, list[str]] = {}
    for name, kind in registry().items():
        rows.append([f"`{name}`", *("no" if trait in kind.refusals else "yes" for trait in TRAITS)])
        for trait, reason in kind.refusals.items():
            reasons.setdefault(f"**{trait}**: {reason}", []).append(f"`{name}`")
    lines = [*markdown_table(["solver", *TRAITS], rows), ""]
    lines += [f"- {', '.join(names)} refuse {reason}" for reason, names in reasons.items()]
    return "\n".join(lines)


def print_table() -> None:
    """Print name, summary and unsupported problems of every solver on a terminal."""
    table = Table(title="valuefit solvers", title_justify="left")
    table.add_column("solver", style="bold", no_wrap=True)
    table.add_column("method")
    table.add_column("does not support")
    for name, kind in registry().items():
        table.add_row(name, kind.summary, ", ".join(kind.refusals) or "-")
    Console().print(table)
