"""The command `compare`: evaluate several policies on one log, and print their differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from valuefit.cli.commands import (
    check_outputs,
    connected,
    evaluate_with,
    exit_code,
    log_of,
    print_json,
    progress_bar,
    write_outputs,
)
from valuefit.cli.console import cli_facts, difference_lines
from valuefit.cli.settings import Settings
from valuefit.evaluation.comparison import compare
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.text import comparison_summary

LOGGED = "logged"  # the policy that produced the log


def run_compare(settings: Settings, write_config: str | None) -> int:
    """Evaluate every policy, print values and differences, write the requested files; returns the exit code."""
    policies = settings.policy
    for policy in policies:
        if policies.count(policy) > 1:
            raise ValueError(f"The policy {policy} is given twice. Give every policy once.")
    if len(policies) == 1:
        policies = (*policies, LOGGED)
    if policies == (LOGGED, LOGGED):
        raise ValueError("The logged policy is compared with others. Give another --policy.")
    saved = numbered(settings.save, len(policies))
    check_outputs(settings, saved, write_config)
    with connected(settings) as client:
        log = log_of(settings)
        kept: list[str | None] = [*numbered(settings.checkpoint, len(policies))] or [None] * len(policies)
        evaluations = {
            policy: evaluate_policy(log, replace(settings, policy=(policy,), checkpoint=folder), client)
            for policy, folder in zip(policies, kept, strict=True)
        }
        compared = compare(evaluations, level=settings.level)
    print_comparison(compared.to_dict(), settings)
    by_path = dict(zip(saved, compared.evaluations, strict=False))  # `saved` is empty without --save
    write_outputs(compared.report, by_path, settings, write_config)
    return exit_code(compared.evaluations, settings)


def numbered(name: str | None, count: int) -> list[str]:
    """The paths of this many evaluations: run-1.npz, run-2.npz, ... for run.npz; none for None."""
    if name is None:
        return []
    path = Path(name)
    return [str(path.with_name(f"{path.stem}-{number}{path.suffix}")) for number in range(1, count + 1)]


def print_comparison(facts: dict[str, Any], settings: Settings) -> None:
    """Print JSON or one line for each difference if requested; otherwise tables as text."""
    if settings.json:
        print_json(facts)
    elif settings.quiet:
        click.echo("\n".join(difference_lines(cli_facts(facts))))
    else:
        click.echo(comparison_summary(cli_facts(facts)) + "\n")


def evaluate_policy(log: Any, settings: Settings, client: Any = None) -> Evaluation:
    """Evaluate the policy of the settings; the logged one by state values, which need no probabilities."""
    chosen = replace(settings, policy=(), values="state") if settings.policy == (LOGGED,) else settings
    with progress_bar(settings) as callback:
        evaluation = evaluate_with(log, chosen, callback, client)
    if evaluation.result.status == "interrupted":
        raise KeyboardInterrupt
    return evaluation
