"""The table solver x capability, made from what the solvers themselves declare."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from valuefit.problem.problem import TRAITS
from valuefit.solvers import registry


def markdown_table() -> str:
    """The table and, below it, the reason for every refusal."""
    lines = ["| solver | " + " | ".join(TRAITS) + " |", "|---" * (len(TRAITS) + 1) + "|"]
    reasons: dict[str, list[str]] = {}
    for name, kind in registry().items():
        cells = ["no" if trait in kind.refusals else "yes" for trait in TRAITS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
        for trait, reason in kind.refusals.items():
            reasons.setdefault(f"**{trait}**: {reason}", []).append(f"`{name}`")
    lines.append("")
    lines += [f"- {', '.join(names)} refuse {reason}" for reason, names in reasons.items()]
    return "\n".join(lines)


def print_table() -> None:
    """The same for a terminal, with a line on each solver."""
    table = Table(title="valuefit solvers", title_justify="left")
    table.add_column("solver", style="bold", no_wrap=True)
    table.add_column("what it does")
    table.add_column("refuses")
    for name, kind in registry().items():
        table.add_row(name, kind.summary, ", ".join(kind.refusals) or "nothing")
    Console().print(table)
