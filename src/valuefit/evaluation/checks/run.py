"""All checks of an evaluation, in the order in which they are shown."""

from __future__ import annotations

from valuefit.evaluation.checks.check import Check
from valuefit.evaluation.diagnostics import diagnostics, unseen_diagnostics
from valuefit.evaluation.fit import Fit
from valuefit.evaluation.state_action import unseen_share


def run_checks(fit: Fit) -> tuple[Check, ...]:
    """The checks that apply to this evaluation."""
    found = [*fit.log.warnings]
    found += diagnostics(fit.log, fit.problem, fit.result, fit.errors.sandwich, fit.error, discount=fit.discount)
    if fit.values == "state-action":
        found += unseen_diagnostics(unseen_share(fit.log, fit.features, policy=fit.policy))
    return tuple(Check("diagnostic", "warn", message) for message in found)
