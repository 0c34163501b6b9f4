"""The command `compare`: evaluate several policies on one log, and print their differences."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import click
from rich.console import Console

from valuefit.cli.commands import check_outputs, evaluate_with, load_log, progress_bar
from valuefit.cli.config import Settings
from valuefit.cli.console import cli_facts, printable
from valuefit.cli.options import EXIT_NOT_CONVERGED
from valuefit.data.transitions import Transitions
from valuefit.evaluation.comparison import compare
from valuefit.evaluation.comparison_text import comparison_summary
from valuefit.evaluation.evaluation import Evaluation

LOGGED = "logged"  # the policy that produced the log


def run_compare(settings: Settings, policies: list[str]) -> int:
    """Evaluate every policy, print values and differences, write the report; returns the exit code."""
    for policy in policies:
        if policies.count(policy) > 1:
            raise ValueError(f"The policy {policy} is given twice. Give every policy once.")
    if len(policies) == 1:
        policies = [*policies, LOGGED]
    if policies == [LOGGED, LOGGED]:
        raise ValueError("The logged policy is compared with others. Give another --policy.")
    check_outputs(settings, None, policies)
    log = load_log(settings)
    compared = compare({policy: evaluate_policy(log, settings, policy) for policy in policies}, level=settings.level)
    facts = compared.to_dict()
    if settings.json:
        click.echo(json.dumps(facts, allow_nan=False, indent=2).replace("\x7f", "\\u007f"))
    else:
        click.echo(comparison_summary(cli_facts(facts)) + "\n")
    if settings.report is not None:
        path = compared.report(settings.report, force=settings.force)
        if not settings.json:
            click.echo(printable(f"Report: {path}"))
    converged = all(evaluation.result.status == "converged" for evaluation in compared.evaluations)
    return 0 if converged else EXIT_NOT_CONVERGED


def evaluate_policy(log: Transitions, settings: Settings, policy: str) -> Evaluation:
    """Evaluate one policy; the logged one by state values, which need no probabilities."""
    chosen = replace(settings, policy=None, values="state") if policy == LOGGED else replace(settings, policy=policy)
    with progress_bar(Console(), settings.max_passes, enabled=sys.stdout.isatty() and not settings.json) as callback:
        evaluation = evaluate_with(log, chosen, callback)
    if evaluation.result.status == "interrupted":
        raise KeyboardInterrupt
    return evaluation
