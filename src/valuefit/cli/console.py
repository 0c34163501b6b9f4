"""Print an evaluation on a terminal: the verdict and the value, then settings and log, then checks and notes."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from valuefit.evaluation.text import checks_by_outcome, number, verdict_sentence

# Messages of the library name arguments of the Python functions; these patterns replace them by the options.
ARGUMENT = (
    r"(?<![\w-])(columns|policy|values|features|discount|trace|ridge|starts|solver|tol|seed|interval|level"
    r"|cluster|missing)"
)
IN_OPTIONS = (
    (re.compile(r"""columns=\{['"](\w+)['"]: \.\.\.\}"""), r"--columns \1=..."),
    (re.compile(r"""columns=\{['"](\w+)['"]: None\}"""), r"--columns \1="),
    (re.compile(ARGUMENT + r"""=(["'])([\w:.=,-]+)\2"""), r"--\1 \3"),  # values="state"
    (re.compile(ARGUMENT + r"=(?=-?[\d.]*\d)"), r"--\1 "),  # ridge=0.1
    (re.compile(ARGUMENT + r"=(?=$|[\s,;:)]|\.(?!\.))"), r"--\1"),  # columns= before a space or punctuation, not "=..."
    (re.compile(r"\bload it with a larger limit"), "load it with a larger --limit"),
    (re.compile(r"(?<![\w-])force=True\b"), "--force"),
    (re.compile(r"\b(with|use|give) force(?=$|[\s,;.])"), r"\1 --force"),
    (re.compile(r"""(?<![\w'"-])max_passes=(?=\d)"""), "--max-passes "),
    (re.compile(r"\breward_range\b"), "--reward-range"),
    (re.compile(r"""(?<![\w'"-])max_passes=?(?=[\s.,;:)])"""), "--max-passes"),
)


def escaped(text: str) -> str:
    """Escape control characters: names in a log are not trusted and must not reach the terminal as commands."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cli_message(text: str) -> str:
    """A message of the library with options instead of Python arguments, safe to print on a terminal."""
    for pattern, replacement in IN_OPTIONS:
        text = pattern.sub(replacement, text)
    return escaped(text)


def cli_facts(facts: Any) -> Any:
    """Nested dicts and lists with `cli_message` applied to every string."""
    if isinstance(facts, dict):
        return {key: cli_facts(value) for key, value in facts.items()}
    if isinstance(facts, list):
        return [cli_facts(value) for value in facts]
    return cli_message(facts) if isinstance(facts, str) else facts


def one_line(facts: dict[str, Any]) -> str:
    """The value, its standard error and interval, and the verdict, on one line."""
    value = facts["policy_value"]
    words = [number(value["estimate"])]
    if value["standard_error"] is None:
        words.append("(standard error unknown)")
    else:
        low, high = map(number, value["interval"])
        words.append(
            f"(standard error {number(value['standard_error'])}, {100 * value['level']:g}% interval {low} to {high})"
        )
    level, count = facts["verdict"]["level"], len(facts["verdict"]["reasons"])
    reasons = f" ({count} reason{'s' * (count > 1)})" if count else ""
    return f"{' '.join(words)}, verdict: {level}{reasons}"


def difference_lines(facts: dict[str, Any]) -> list[str]:
    """One line for each difference of `Comparisons.to_dict`: its interval, its p-value, and the verdicts of the two."""
    verdicts, level = {entry["name"]: entry["verdict"]["level"] for entry in facts["values"]}, 100 * facts["level"]
    lines = []
    for entry in facts["differences"]:
        low, high = map(number, entry["interval"])
        lines.append(
            f"{' - '.join(entry['names'])}: {number(entry['estimate'])} (standard error "
            f"{number(entry['standard_error'])}, {level:g}% interval {low} to {high}, p-value {entry['p_value']:.2g}), "
            f"verdicts: {', '.join(verdicts[name] for name in entry['names'])}"
        )
    return lines


def print_tables(facts: dict[str, Any], source: str, console: Console) -> None:
    """Print an evaluation for a terminal.

    facts: `Evaluation.to_dict()` after `cli_facts`. source: the name of the log, printable.
    """
    explanation = (
        f"The policy value is the expected sum of future rewards from a start, with discount {facts['discount']:g} per "
        "step. The interval covers sampling error, not the error that these features make with infinite data."
    )
    colours = {"sound": "green", "caution": "yellow", "do not use": "red"}
    style = f"bold {colours[facts['verdict']['level']]}"
    console.print(_numbered(verdict_sentence(facts), facts["verdict"]["reasons"], style))
    console.print(Group("", _estimates(facts, style), Text(explanation, style="dim"), "", _details(facts, source)))
    console.print(_checks(facts))
    console.print(_numbered("Notes", facts["notes"], "bold"))


def _estimates(facts: dict[str, Any], style: str) -> Table:
    """The policy value in this style and, if there are few, the weights."""
    value = facts["policy_value"]
    table = Table(title="How good is the policy?", title_justify="left", title_style="bold")
    table.add_column("")
    for title in ("estimate", "std. error", f"{100 * value['level']:g}% interval"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_row("policy value", *_estimate_cells(value), style=style, end_section=True)
    for weight in facts["weights"] or []:
        table.add_row(Text(f"weight of {weight['name']}"), *_estimate_cells(weight))
    return table


def _estimate_cells(entry: dict[str, Any]) -> tuple[str, str, str]:
    low, high = entry["interval"] or (None, None)
    interval = "unknown" if low is None else f"{number(low)} to {number(high)}"
    return number(entry["estimate"]), number(entry["standard_error"]), interval


def _details(facts: dict[str, Any], source: str) -> Table:
    """Log, policy, settings and solver, one per line."""
    value, solver = facts["policy_value"], facts["solver"]
    style = "green" if solver["status"] == "converged" else "bold red"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("log", Text(source))
    grid.add_row("", Text(f"{facts['steps']:,} steps in {facts['episodes']:,} episodes"))
    if value["effective_sample_size"] is not None:
        grid.add_row("", Text(f"effective sample size {value['effective_sample_size']:,.0f} steps"))
    unnamed = "the behaviour policy" if value["effective_sample_size"] is None else "the target of the log's ratios"
    grid.add_row("policy", Text(facts["policy"] or unnamed))
    grid.add_row("values of", Text("states" if facts["values"] == "state" else "states and actions"))
    grid.add_row("mean over", Text(f"{value['starts']:,} starts"))
    grid.add_row("features", Text(f"{facts['features']['count']:,}"))
    grid.add_row("discount", Text(f"{facts['discount']:g}, trace {facts['trace']:g}, ridge {facts['ridge']:g}"))
    outcome = Text(f"{solver['name']}, ")
    outcome.append(solver["status"], style=style)
    outcome.append(f" after {solver['passes']:.1f} passes, {solver['seconds']:.2f} s")
    grid.add_row("solver", outcome)
    return grid


def _checks(facts: dict[str, Any]) -> Group:
    """The names of the checks by outcome."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for outcome, names in checks_by_outcome(facts):
        grid.add_row(outcome, Text(names))
    return Group("", Text("Checks", style="bold"), grid)


def _numbered(title: str, sentences: list[str], style: str) -> Group:
    """A numbered list under a title."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", style="dim")
    grid.add_column()
    for position, text in enumerate(sentences, 1):
        grid.add_row(f"{position}.", Text(text))
    return Group("", Text(title, style=style), grid)
