"""Messages of the library for a terminal, and results on one line."""

from __future__ import annotations

import ast
from typing import Any

from valuefit.cli.settings import Settings
from valuefit.evaluation.text import estimate_cells, number


def escaped(text: str) -> str:
    """Escape control characters: names in a log are not trusted and must not reach the terminal as commands."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cli_message(text: str) -> str:
    """A message of the library with options for the arguments that it names in backticks, safe for a terminal."""
    first, *pieces = text.split("`")
    message = first
    while pieces:
        piece = pieces.pop(0)
        option = as_option(piece) if pieces else None  # the last piece has no backtick after it
        message += f"`{piece}" if option is None else option + pieces.pop(0)
    return escaped(message)


def as_option(code: str) -> str | None:
    """An argument of a Python function, such as ridge=0 or columns={"done": None}, as an option; None if it is none."""
    name, equals, text = code.partition("=")
    if name not in Settings.__dataclass_fields__ or len(code) > 200:  # which may come from an untrusted file
        return None
    try:
        value = ast.literal_eval(text) if equals else True
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    words = [] if value is True else [str(value)]
    if isinstance(value, dict):
        words = [f"{ours}={_column_text(theirs)}" for ours, theirs in value.items()]
    return " ".join([f"--{name.replace('_', '-')}", *words])


def _column_text(theirs: Any) -> str:
    """The name of a column in --columns; an ellipsis stands for one that the user knows."""
    if isinstance(theirs, list):
        return ",".join(map(str, theirs))
    return {None: "", ...: "..."}.get(theirs, str(theirs))


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
    level, count = facts["verdict"]["level"], len(facts["verdict"]["reasons"])
    reasons = f" ({count} reason{'s' * (count > 1)})" if count else ""
    return f"{number(value['estimate'])} ({_error(value, value['level'])}), verdict: {level}{reasons}"


def difference_lines(facts: dict[str, Any]) -> list[str]:
    """One line for each difference of `Comparisons.to_dict`: its interval, its p-value, and the verdicts of the two."""
    verdicts = {entry["name"]: entry["verdict"]["level"] for entry in facts["values"]}
    return [
        f"{' - '.join(entry['names'])}: {number(entry['estimate'])} ({_error(entry, facts['level'])}, p-value "
        f"{entry['p_value']:.2g}), verdicts: {', '.join(verdicts[name] for name in entry['names'])}"
        for entry in facts["differences"]
    ]


def _error(entry: dict[str, Any], level: float) -> str:
    """The standard error and the interval of an estimate."""
    _, error, low, high = estimate_cells(entry)
    if entry["standard_error"] is None:
        return f"standard error {error}"
    return f"standard error {error}, {100 * level:g}% interval {low} to {high}"
