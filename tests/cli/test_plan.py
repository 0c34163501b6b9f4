from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from valuefit.cli.main import main
from valuefit.cli.plan import duration, size

ARGUMENTS = ["plan", "--steps", "1e10", "--features", "2000", "--workers", "64"]


def test_the_plan_says_that_it_is_a_model() -> None:
    done = CliRunner().invoke(main, [*ARGUMENTS, "--price", "2"])
    assert done.exit_code == 0
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[:5]] == [
        "time", "memory", "passes", "disk read", "cost",
    ]  # fmt: skip
    assert "3 over 10,000 shards of 1,000,000 steps, solver lstd" in done.stdout
    assert "2.25 TB" in done.stdout
    assert "Predicted by a model" in done.stdout


def test_json_has_the_same_numbers() -> None:
    done = CliRunner().invoke(main, [*ARGUMENTS, "--json"])
    facts = json.loads(done.stdout)
    assert (facts["shards"], facts["workers"], facts["cost"]) == (10_000, 64, None)
    assert facts["seconds"] == pytest.approx(
        facts["solve_seconds"] + sum(one["count"] * one["seconds"] for one in facts["passes"])
    )
    assert "model" in facts["model"]


def test_the_limit_is_a_size() -> None:
    two, same, other = (CliRunner().invoke(main, [*ARGUMENTS, "--json", "--limit", one]).stdout for one in
                        ("2GB", "2000000000", "4GB"))  # fmt: skip
    assert two == same != other


def test_nonsense_ends_in_a_sentence() -> None:
    done = CliRunner().invoke(main, [*ARGUMENTS, "--threads", "0.5"])
    assert done.exit_code == 1
    assert "threads is 0.5; it must be a whole number" in done.stderr


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0123, "12 milliseconds"), (12.3, "12 seconds"), (89.0, "89 seconds"), (90.0, "1.5 minutes"),
     (7200.0, "2 hours"), (1e7, "116 days")],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"), [(75e6, "75 MB"), (2.25e12, "2.25 TB"), (1.5e16, "15,000 TB"), (3, "0.003 kB")]
)
def test_sizes(count: float, words: str) -> None:
    assert size(count) == words
