"""The text summary of a selection, from the dictionary that `Selection.to_dict` returns."""

from __future__ import annotations

from typing import Any

from valuefit.evaluation.notes import longer_notes
from valuefit.evaluation.text import LINE_CHARACTERS, number, paragraph, table_row

NAME_CHARACTERS = 32  # a longer candidate has its own line
CELL_CHARACTERS = 12
UNSTABLE = "unstable"  # in place of the verdict


def selection_summary(facts: dict[str, Any]) -> str:
    """The verdict with its reasons, the value, the choice, and the table of each half."""
    value, double_rule, rule = facts["policy_value"], "=" * LINE_CHARACTERS, "-" * LINE_CHARACTERS
    low, high = value["interval"] or (None, None)
    lines = ["Selection of features".center(LINE_CHARACTERS).rstrip(), double_rule]
    lines.append(f"Verdict: {facts['verdict']['level']}.")
    lines += [paragraph(reason, f"[{index}] ") for index, reason in enumerate(facts["verdict"]["reasons"], 1)]
    lines += [
        double_rule,
        _row("", "estimate", "std. error", f"[{100 * value['level']:g}%", "interval]"),
        rule,
        _row("policy value", number(value["estimate"]), number(value["standard_error"]), number(low), number(high)),
    ]
    for half in range(len(facts["chosen"])):
        lines += [double_rule, _row(_title(facts, half), "criterion", "std. error", "weights", "verdict"), rule]
        for row in (row for row in facts["table"] if row["half"] == half + 1):
            mark = "> " if row["chosen"] else "  "
            cells = number(row["criterion"]), number(row["standard_error"]), str(row["weights"])
            found = UNSTABLE if row["stable"] is False else row["verdict"] or ""
            lines.append(_row(mark + row["settings"], *cells, found))
    lines += [double_rule, paragraph(explanation(facts))]
    return "\n".join(lines)


def explanation(facts: dict[str, Any]) -> str:
    """What was compared, and what the interval covers."""
    compared = f"The criterion is the {facts['criterion']} on held-out episodes; lower is better."
    if any(row["stable"] is False for row in facts["table"]):
        compared += f" {UNSTABLE.capitalize()}: the equations are nearly singular on the episodes to be evaluated."
    if not facts["cross_fitted"]:
        return f"{compared} The choice (>) was evaluated on the same log."
    value = facts["policy_value"]
    longer = "".join(f" {note}" for note in longer_notes(value["bias"], value["unseen"]))
    return (
        f"{compared} The choice (>) of each half was fitted to the other half, and the policy value is the mean of the "
        "two. Its interval covers the mean of two fixed points: what the two chosen estimators would give with "
        "infinite data drawn like this log. The distance from there to the policy's true value is not covered."
        f"{longer}"
    )


def _title(facts: dict[str, Any], half: int) -> str:
    return f"Half {half + 1}" if facts["cross_fitted"] else "The log"


def _row(name: str, *cells: str) -> str:
    return table_row(name, cells, name_width=NAME_CHARACTERS, cell_width=CELL_CHARACTERS)
