"""The text summary of an evaluation, from the dictionary that `Evaluation.to_dict` returns."""

from __future__ import annotations

from textwrap import fill
from typing import Any

from valuefit.inference.following import MIN_FOLLOWING_EPISODES
from valuefit.messages import printable

LINE_CHARACTERS = 80


def summary(facts: dict[str, Any]) -> str:
    """The verdict with its reasons, settings, the policy value, the weights if listed, then checks and notes."""
    value, solved = facts["policy_value"], facts["solver"]
    left = [
        ("Values of", "states" if facts["values"] == "state" else "states and actions"),
        ("Steps", str(facts["steps"])),
        ("Episodes", str(facts["episodes"])),
        ("Features", str(facts["features"]["count"])),
        ("Starts", str(value["starts"])),
        ("Effective sample", number(value["effective_sample_size"], "all steps")),
    ]
    right = [
        ("Solver", solved["name"]),
        ("Status", solved["status"]),
        ("Passes", f"{solved['passes']:.1f}"),
        ("Discount", f"{facts['discount']:g}"),
        ("Trace", f"{facts['trace']:g}"),
        ("Ridge", f"{facts['ridge']:g}"),
    ]
    half = LINE_CHARACTERS // 2 - 2
    double_rule, rule = "=" * LINE_CHARACTERS, "-" * LINE_CHARACTERS
    lines = ["Policy evaluation".center(LINE_CHARACTERS).rstrip(), double_rule, paragraph(verdict_sentence(facts))]
    lines += [paragraph(reason, f"[{index}] ") for index, reason in enumerate(facts["verdict"]["reasons"], 1)]
    lines.append(double_rule)
    for (name, text), (right_name, right_text) in zip(left, right, strict=True):
        cells = f"{text:>{half - len(name) - 1}}", f"{right_text:>{half - len(right_name) - 1}}"
        lines.append(f"{name}:{cells[0]}    {right_name}:{cells[1]}")
    rows = [("policy value", value), *((entry["name"], entry) for entry in facts["weights"] or [])]
    level = f"{100 * value['level']:g}%"
    lines += [double_rule, _row("", "estimate", "std. error", f"[{level}", "interval]"), rule]
    lines += [_row(name, *_numbers(entry)) for name, entry in rows[:1]]
    if facts["cross_checks"]:
        lines += [rule, *(_cross_check(entry) for entry in facts["cross_checks"])]
    if len(rows) > 1:
        lines += [rule, *(_row(f"weight of {name}", *_numbers(entry)) for name, entry in rows[1:])]
    lines.append(double_rule)
    lines.append(paragraph(
        "The interval covers the fixed point: what this estimator, with these features, trace and ridge, would give "
        "with infinite data drawn like this log. The distance from there to the policy's true value is not covered."
    ))  # fmt: skip
    if facts["follows"]:
        lines.append(paragraph(following_sentence(facts)))
    lines += ["", "Checks:", *(paragraph(names, f"{outcome}: ") for outcome, names in checks_by_outcome(facts))]
    if facts["notes"]:
        lines += ["", "Notes:"]
        lines += [paragraph(sentence, f"[{index}] ") for index, sentence in enumerate(facts["notes"], 1)]
    return "\n".join(lines)


def verdict_sentence(facts: dict[str, Any]) -> str:
    """The verdict in words, and how many checks are behind it."""
    outcomes = [check["outcome"] for check in facts["checks"]]
    made, failed, warned = len(outcomes) - outcomes.count("skip"), outcomes.count("fail"), outcomes.count("warn")
    parts = [f"{failed} failed"] * bool(failed) + [f"{warned} warned"] * bool(warned)
    found = f"all {made} checks passed" if not parts else f"of {made} checks, {' and '.join(parts)}"
    return f"Verdict: {facts['verdict']['level']} ({found})."


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
    return [(outcome, ", ".join(found)) for outcome, found in names.items() if found]


def number(value: float | None, missing: str = "unknown") -> str:
    """The number with five significant digits; `missing` for None."""
    return missing if value is None else f"{value:.5g}"


def _numbers(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    low, high = entry["interval"] or (None, None)
    return number(entry["estimate"]), number(entry["standard_error"]), number(low), number(high)


def _cross_check(entry: dict[str, Any]) -> str:
    """Another estimate; in brackets if nothing is concluded from it."""
    numbers = number(entry["estimate"]), number(entry["standard_error"])
    if not entry["reliable"]:
        return _row(f"({entry['name']})", *(f"({text})" for text in numbers), "", "unreliable")
    agrees = entry["agrees"]
    return _row(entry["name"], *numbers, "", "not compared" if agrees is None else "agrees" if agrees else "DIFFERS")


def _row(name: str, *cells: str) -> str:
    name = printable(name)
    if len(name) > 28:
        name = name[:25] + "..."
    return f"{name:<28}" + "".join(f"{cell:>13}" for cell in cells)


def paragraph(text: str, prefix: str = "") -> str:
    """The text in lines of a page; the first begins with the prefix."""
    plain = printable(" ".join(text.split()))
    return fill(plain, LINE_CHARACTERS, initial_indent=prefix, subsequent_indent=" " * len(prefix))


def table_row(name: str, cells: tuple[str, ...], *, name_width: int, cell_width: int) -> str:
    """A name and cells in columns; a name that is too long has a line of its own."""
    name = printable(name)
    own_line = f"{name}\n" if len(name) > name_width else ""
    return own_line + f"{'' if own_line else name:<{name_width}}" + "".join(f"{cell:>{cell_width}}" for cell in cells)
