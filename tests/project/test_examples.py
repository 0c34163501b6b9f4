"""The scripts in examples/ run without warnings and print the expected results."""

import re
import subprocess
import sys

import pytest

from helpers.problems import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

EXPECTED_OUTPUT = {
    "compare_solvers": r"lstd\s+[\d.]+\s+\d\.\de-\d+\s+converged(.|\n)*ilstd\s+[\d.]+\s+\d\.\de-\d+\s+converged",
    "off_policy": r"truth:\s+0\.59399\n",
    "own_features": r"auto\s+44\d features(.|\n)*function\s+7 features",
    "quickstart": r"policy value\s+0\.34764",
    "table": r"Rows were sorted by episode and step\.",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_without_a_warning_and_prints_its_result(example, tmp_path):
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(EXPECTED_OUTPUT[example.stem], done.stdout), done.stdout


def test_the_intervals_of_both_off_policy_methods_contain_the_true_value(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "off_policy.py")]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    intervals = re.findall(r"interval ([\d.]+) to ([\d.]+)", shown)
    truth = float(re.search(r"truth:\s+([\d.]+)", shown)[1])
    assert len(intervals) == 2
    for low, high in intervals:
        assert float(low) < truth < float(high)


def test_every_example_is_on_the_examples_page_and_short():
    page = (ROOT / "docs" / "examples.md").read_text()
    assert {path.stem for path in EXAMPLES} == EXPECTED_OUTPUT.keys()
    for path in EXAMPLES:
        assert f"../examples/{path.name}" in page
        assert len(path.read_text().splitlines()) <= 50
