"""The text summary of comparisons, from the dictionary that `Comparisons.to_dict` returns."""

from __future__ import annotations

from typing import Any

from valuefit.evaluation.text import LINE_CHARACTERS, number, paragraph, table_row
from valuefit.messages import printable

NAME_CHARACTERS = 24  # a longer name has its own line
CELL_CHARACTERS = 11


def comparison_summary(facts: dict[str, Any]) -> str:
    """The values with their verdicts, the differences with p-values and notes, and the warnings of each evaluation."""
    level = f"{100 * facts['level']:g}%"
    double_rule, rule = "=" * LINE_CHARACTERS, "-" * LINE_CHARACTERS
    header = "std. error", f"[{level}", "interval]"
    lines = ["Comparison of policies".center(LINE_CHARACTERS).rstrip(), double_rule]
    lines += [_row("", "value", *header, "verdict"), rule]
    lines += [_row(entry["name"], *_numbers(entry), entry["verdict"]["level"]) for entry in facts["values"]]
    lines += [double_rule, _row("", "difference", *header, "p-value"), rule]
    for entry in facts["differences"]:
        lines.append(_row(" - ".join(entry["names"]), *_numbers(entry), f"{entry['p_value']:.2g}"))
    lines += [double_rule, _explanation(len(facts["differences"]))]
    numbered = [(f"Notes on {' - '.join(entry['names'])}", entry["notes"]) for entry in facts["differences"]]
    numbered += [(f"Warnings of {entry['name']}", entry["verdict"]["reasons"]) for entry in facts["values"]]
    for title, sentences in numbered:
        if sentences:
            lines += ["", printable(f"{title}:")]
            lines += [paragraph(text, f"[{index}] ") for index, text in enumerate(sentences, 1)]
    return "\n".join(lines)


def _explanation(pairs: int) -> str:
    together = " Their intervals and p-values hold for all pairs at once." if pairs > 1 else ""
    return paragraph(
        "The errors of the differences are paired by episode, so what the values share cancels."
        f"{together} The intervals cover the fixed points: what these estimators would give with infinite data."
    )


def _numbers(entry: dict[str, Any]) -> tuple[str, ...]:
    low, high = entry["interval"] or (None, None)
    return number(entry["estimate"]), number(entry["standard_error"]), number(low), number(high)


def _row(name: str, *cells: str) -> str:
    return table_row(name, cells, name_width=NAME_CHARACTERS, cell_width=CELL_CHARACTERS)
