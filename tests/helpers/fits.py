"""The fit that an evaluation hands to its checks."""

from __future__ import annotations

from unittest.mock import patch

import valuefit as vf
from valuefit.evaluation import evaluate


def fit_of(log, **settings):
    """The `Fit` of this evaluation."""
    with patch.object(evaluate, "run_checks", return_value=()) as checks:
        vf.evaluate(log, **settings)
    return checks.call_args.args[0]
