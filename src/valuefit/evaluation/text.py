"""The text summaries of evaluations, comparisons and selections, from the dictionaries that `to_dict` returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

from valuefit.evaluation.notes import longer_notes
from valuefit.inference.following import MIN_FOLLOWING_EPISODES
from valuefit.messages import printable

LINE_CHARACTERS = 80
UNSTABLE = "unstable"  # in place of the verdict of a candidate

# ---- layout ------------------------------------------------------------------------------------------------------


def page(title: str, *blocks: Iterable[str]) -> str:
    """A centred title, and blocks of lines below double rules."""
    lines = [title.center(LINE_CHARACTERS).rstrip()]
    for block in blocks:
        lines += ["=" * LINE_CHARACTERS, *block]
    return "\n".join(lines)


def table(name_characters: int, *groups: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of rows, each a name and its cells, with a rule between groups; a name that is too long has its own line.

    name_characters: the width of the first column; the others, of which the first row tells the number, share the rest.
    """
    cell_characters = (LINE_CHARACTERS - name_characters) // (len(groups[0][0]) - 1)
    lines: list[str] = []
    for group in filter(None, groups):
        lines += ["-" * LINE_CHARACTERS] * bool(lines)
        for name, *cells in group:
            name = printable(name)
            if len(name) > name_characters:
                lines.append(name)
                name = ""
            lines.append(f"{name:<{name_characters}}" + "".join(f"{cell:>{cell_characters}}" for cell in cells))
    return lines


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table in Markdown."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return [first, "|---" * len(header) + "|", *others]


def paragraph(text: str, prefix: str = "") -> str:
    """The text in lines of a page; the first begins with the prefix."""
    plain = printable(" ".join(text.split()))
    return fill(plain, LINE_CHARACTERS, initial_indent=prefix, subsequent_indent=" " * len(prefix))


def numbered(sentences: Sequence[str], title: str = "") -> list[str]:
    """Numbered paragraphs, below a title if there is one; nothing if there are none."""
    lines = ["", printable(f"{title}:")] if title and sentences else []
    return lines + [paragraph(text, f"[{index}] ") for index, text in enumerate(sentences, 1)]


def number(value: float | None, missing: str = "unknown") -> str:
    """The number with five significant digits; `missing` for None."""
    return missing if value is None else f"{value:.5g}"


def estimate_cells(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    """An estimate, its standard error and the ends of its interval."""
    low, high = entry["interval"] or (None, None)
    return number(entry["estimate"]), number(entry["standard_error"]), number(low), number(high)


def _header(what: str, level: float, *others: str) -> list[tuple[str, ...]]:
    return [("", what, "std. error", f"[{100 * level:g}%", "interval]", *others)]


# ---- an evaluation -----------------------------------------------------------------------------------------------


def summary(facts: dict[str, Any]) -> str:
    """The verdict with its reasons, settings, the policy value, the weights if listed, then checks and notes."""
    value, rows = facts["policy_value"], [(entry["name"], entry) for entry in facts["weights"] or []]
    estimates = table(
        28,
        _header("estimate", value["level"]),
        [("policy value", *estimate_cells(value))],
        [_cross_check(entry) for entry in facts["cross_checks"]],
        [(f"weight of {name}", *estimate_cells(entry)) for name, entry in rows],
    )
    covered = [paragraph(
        "The interval covers the fixed point: what this estimator, with these features, trace and ridge, would give "
        "with infinite data drawn like this log. The distance from there to the policy's true value is not covered."
    )]  # fmt: skip
    follows = [paragraph(following_sentence(facts))] if facts["follows"] else []
    checks = ["", "Checks:", *(paragraph(names, f"{outcome}: ") for outcome, names in checks_by_outcome(facts))]
    verdict = [paragraph(verdict_sentence(facts)), *numbered(facts["verdict"]["reasons"])]
    end = [*covered, *follows, *checks, *numbered(facts["notes"], "Notes")]
    return page("Policy evaluation", verdict, _details(facts), estimates, end)


def _details(facts: dict[str, Any]) -> list[str]:
    """Log, settings and solver in two columns."""
    value, solved = facts["policy_value"], facts["solver"]
    left = {
        "Values of": "states" if facts["values"] == "state" else "states and actions",
        "Steps": str(facts["steps"]),
        "Episodes": str(facts["episodes"]),
        "Features": str(facts["features"]["count"]),
        "Starts": str(value["starts"]),
        "Effective sample": number(value["effective_sample_size"], "all steps"),
    }
    right = {
        "Solver": solved["name"],
        "Status": solved["status"],
        "Passes": f"{solved['passes']:.1f}",
        "Discount": f"{facts['discount']:g}",
        "Trace": f"{facts['trace']:g}",
        "Ridge": f"{facts['ridge']:g}",
    }
    half = LINE_CHARACTERS // 2 - 2

    def cell(name: str, text: str) -> str:
        return f"{name}:{text:>{half - len(name) - 1}}"

    return [f"{cell(*one)}    {cell(*other)}" for one, other in zip(left.items(), right.items(), strict=True)]


def _cross_check(entry: dict[str, Any]) -> tuple[str, ...]:
    """Another estimate; in brackets if nothing is concluded from it."""
    numbers = number(entry["estimate"]), number(entry["standard_error"])
    if not entry["reliable"]:
        return f"({entry['name']})", *(f"({text})" for text in numbers), "", "unreliable"
    agrees = entry["agrees"]
    return entry["name"], *numbers, "", "not compared" if agrees is None else "agrees" if agrees else "DIFFERS"


def verdict_sentence(facts: dict[str, Any]) -> str:
    """The verdict in words, and how many checks are behind it."""
    outcomes = [check["outcome"] for check in facts["checks"]]
    made, failed, warned = len(outcomes) - outcomes.count("skip"), outcomes.count("fail"), outcomes.count("warn")
    parts = [f"{failed} failed"] * bool(failed) + [f"{warned} warned"] * bool(warned)
    checked = f"all {made} checks passed" if not parts else f"of {made} checks, {' and '.join(parts)}"
    return f"Verdict: {facts['verdict']['level']} ({checked})."


def following_sentence(facts: dict[str, Any]) -> str:
    """For how many steps the log follows the target policy, next to the horizon of the discount."""
    steps, horizon = facts["follows"]["steps"], facts["follows"]["horizon"]
    if steps is None:
        return (
            "It is not known for how many steps the log follows the target policy, because it has no probabilities of "
            "its actions (behaviour_prob)."
        )
    if facts["follows"]["to_the_end"]:
        return "The log follows the target policy to the end of the episodes."
    length = "is infinite" if horizon is None else f"is {horizon:.3g} steps"
    return (
        f"The log follows the target policy for {steps} step{'' if steps == 1 else 's'}; beyond that fewer than "
        f"{MIN_FOLLOWING_EPISODES:g} effective episodes still act like it, and the answer rests on the observations "
        f"being Markov. The horizon of the discount {length}."
    )


def checks_by_outcome(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Each outcome, the most serious first, with the names of its checks."""
    names: dict[str, list[str]] = {"fail": [], "warn": [], "pass": [], "skip": []}
    for check in facts["checks"]:
        names[check["outcome"]].append(check["name"])
    return [(outcome, ", ".join(checks)) for outcome, checks in names.items() if checks]


# ---- a comparison ------------------------------------------------------------------------------------------------


def comparison_summary(facts: dict[str, Any]) -> str:
    """The values with their verdicts, the differences with p-values and notes, and the warnings of each evaluation."""
    values, differences, level = facts["values"], facts["differences"], facts["level"]
    value_rows = [(entry["name"], *estimate_cells(entry), entry["verdict"]["level"]) for entry in values]
    difference_rows = [
        (" - ".join(entry["names"]), *estimate_cells(entry), f"{entry['p_value']:.2g}") for entry in differences
    ]
    together = " Their intervals and p-values hold for all pairs at once." if len(differences) > 1 else ""
    paired = paragraph(
        "The errors of the differences are paired by episode, so what the values share cancels."
        f"{together} The intervals cover the fixed points: what these estimators would give with infinite data."
    )
    notes = [
        line for entry in differences for line in numbered(entry["notes"], f"Notes on {' - '.join(entry['names'])}")
    ]
    warnings = [
        line for entry in values for line in numbered(entry["verdict"]["reasons"], f"Warnings of {entry['name']}")
    ]
    return page(
        "Comparison of policies",
        table(24, _header("value", level, "verdict"), value_rows),
        table(24, _header("difference", level, "p-value"), difference_rows),
        [paired, *notes, *warnings],
    )


# ---- a selection -------------------------------------------------------------------------------------------------


def selection_summary(facts: dict[str, Any]) -> str:
    """The verdict with its reasons, the value, the choice, and the table of each half."""
    value, verdict = facts["policy_value"], facts["verdict"]
    halves = []
    for half in range(len(facts["chosen"])):
        title = f"Half {half + 1}" if facts["cross_fitted"] else "The log"
        rows = [
            (
                ("> " if row["chosen"] else "  ") + row["settings"],
                number(row["criterion"]), number(row["standard_error"]), str(row["weights"]),
                UNSTABLE if row["stable"] is False else row["verdict"] or "",
            )
            for row in facts["table"] if row["half"] == half + 1
        ]  # fmt: skip
        halves.append(table(32, [(title, "criterion", "std. error", "weights", "verdict")], rows))
    return page(
        "Selection of features",
        [f"Verdict: {verdict['level']}.", *numbered(verdict["reasons"])],
        table(32, _header("estimate", value["level"]), [("policy value", *estimate_cells(value))]),
        *halves,
        [paragraph(explanation(facts))],
    )


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
