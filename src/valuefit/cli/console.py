"""An evaluation on a terminal: the answer first, then how it was found, then what is doubtful."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from valuefit.evaluation.text import number

# words of the Python interface in sentences of the library, and what they are called on the command line
IN_OPTIONS = (
    (re.compile(r"columns=\{'(\w+)': \.\.\.\}"), r"--columns \1=..."),
    (re.compile(r"columns=\{'(\w+)': None\}"), r"--columns \1="),
    (re.compile(r"\bcolumns=\."), "--columns."),
    (re.compile(r"\bload it with a larger limit"), "load it in Python with a larger limit"),
    (re.compile(r'values="(state(?:-action)?)"'), r"--values \1"),
    (re.compile(r"\bwith force(?:=True)?\."), "with --force."),
    (re.compile(r"\buse force\."), "use --force."),
    (re.compile(r"\bpolicy=,"), "--policy,"),
    (re.compile(r"\bwith max_passes\b"), "with --max-passes"),
)
MEANS = (
    "What a start is worth: the sum of all rewards to come, each step discounted by {:g}. The interval covers the "
    "chance in the log, not what these features cannot express."
)


def printable(text: str) -> str:
    """Text in which nothing can steer a terminal: names in a log are not trusted."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def sentence(text: str) -> str:
    """A sentence of the library for somebody at the command line."""
    for pattern, words in IN_OPTIONS:
        text = pattern.sub(words, text)
    return printable(text)


def cleaned(facts: Any) -> Any:
    """Facts whose every text is fit for a terminal."""
    if isinstance(facts, dict):
        return {key: cleaned(value) for key, value in facts.items()}
    if isinstance(facts, list):
        return [cleaned(value) for value in facts]
    return sentence(facts) if isinstance(facts, str) else facts


def one_line(facts: dict[str, Any]) -> str:
    """The value, how sure it is, and whether there are warnings."""
    value = facts["policy_value"]
    words = [number(value["estimate"])]
    if value["standard_error"] is None:
        words.append("(standard error unknown)")
    else:
        low, high = map(number, value["interval"])
        words.append(
            f"(standard error {number(value['standard_error'])}, {100 * value['level']:g}% interval {low} to {high})"
        )
    if facts["warnings"]:
        count = len(facts["warnings"])
        words.append(f"with {count} warning{'s' * (count > 1)}")
    return " ".join(words)


def show(facts: dict[str, Any], source: str, console: Console) -> None:
    """Print an evaluation, from what `Evaluation.to_dict` gives, cleaned."""
    console.print(Group(_values(facts), Text(MEANS.format(facts["discount"]), style="dim"), "", _how(facts, source)))
    if facts["warnings"]:
        console.print(_listed("Warnings", facts["warnings"], "bold yellow"))
    console.print(_listed("Notes", facts["notes"], "bold"))


def _values(facts: dict[str, Any]) -> Table:
    """The policy's value, and the weights where they are few."""
    value = facts["policy_value"]
    table = Table(title="How good is the policy?", title_justify="left", title_style="bold")
    table.add_column("")
    for title in ("estimate", "std. error", f"{100 * value['level']:g}% interval"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_row("policy value", *_numbers(value), style="bold green", end_section=True)
    for weight in facts["weights"] or []:
        table.add_row(Text(f"weight of {weight['name']}"), *_numbers(weight))
    return table


def _numbers(entry: dict[str, Any]) -> tuple[str, str, str]:
    low, high = entry["interval"] or (None, None)
    interval = "unknown" if low is None else f"{number(low)} to {number(high)}"
    return number(entry["estimate"]), number(entry["standard_error"]), interval


def _how(facts: dict[str, Any], source: str) -> Table:
    """How it was found, a line each."""
    value, solved = facts["policy_value"], facts["solver"]
    status = "green" if solved["status"] == "converged" else "bold red"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("log", Text(source))
    grid.add_row("", Text(f"{facts['steps']:,} steps in {facts['episodes']:,} episodes"))
    if value["effective_sample_size"] is not None:
        grid.add_row("", Text(f"worth {value['effective_sample_size']:,.0f} steps of the target policy"))
    acted = "the one that acted" if value["effective_sample_size"] is None else "the one that the log's ratios are of"
    grid.add_row("policy", Text(facts["policy"] or acted))
    grid.add_row("values of", Text("states" if facts["values"] == "state" else "states and actions"))
    grid.add_row("mean over", Text(f"{value['starts']:,} starts"))
    grid.add_row("features", Text(f"{facts['features']['count']:,}"))
    grid.add_row("discount", Text(f"{facts['discount']:g}, trace {facts['trace']:g}, ridge {facts['ridge']:g}"))
    words = Text(f"{solved['name']}, ")
    words.append(solved["status"], style=status)
    words.append(f" after {solved['passes']:.1f} passes, {solved['seconds']:.2f} s")
    grid.add_row("solver", words)
    return grid


def _listed(title: str, sentences: list[str], style: str) -> Group:
    """Sentences under a title, numbered."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", style="dim")
    grid.add_column()
    for place, text in enumerate(sentences, 1):
        grid.add_row(f"{place}.", Text(text))
    return Group("", Text(title, style=style), grid)
