"""The demo: every solver on a Random MDP."""

from __future__ import annotations

import re

import pytest

import valuefit as vf
from helpers.command_line import run


def test_every_solver_is_shown_with_its_passes_gap_and_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = run("demo", "--quick").stdout
    for word in ("passes", "seconds", "gap", "status", *vf.solvers.names()):
        assert word in shown
    assert re.search(r"lstd\W+[\d.]+\W+[\d.]+\W+[\d.e-]+\W+converged", shown)
