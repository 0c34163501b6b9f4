"""The study of selection: true values, a quick run of two designs, its table."""

import sys

import numpy as np
import pytest

from helpers.problems import ROOT

sys.path.insert(0, str(ROOT))

from coverage_study import selection
from coverage_study.selection import DESIGNS, MAX_RATIO, lines_of, run_one, summarise, values_at
from coverage_study.synthetic import random_walk
from coverage_study.worlds import table_policy


def test_values_at_states_are_those_of_linear_algebra():
    table, uniform = random_walk(), np.full((19, 2), 0.5)
    P = np.einsum("sa,sat->st", uniform, table.transition())
    exact = np.linalg.solve(np.eye(19) - 0.9 * P, np.sum(uniform * table.mean_reward(), axis=1))
    states = np.array([0, 12, 18])
    found = values_at(table, table_policy(uniform), 0.9, states, 4000, np.random.default_rng(0))
    np.testing.assert_allclose(found, exact[states], atol=0.03)


@pytest.mark.parametrize("name", ["sine-process, on-policy, features", "sine-process, ratios, features"])
def test_the_choice_is_nearly_as_good_as_the_best_candidate(name):
    found = summarise([run_one(DESIGNS[name], replication) for replication in range(2)])
    assert found.oracle - 1e-9 <= found.function <= MAX_RATIO[DESIGNS[name].route]
    assert found.before > 1.5  # the held-out MSPBE
    assert lines_of({name: found})[-1].startswith(f"| {name} | 2 | ")


def test_the_table_on_the_page_is_of_these_designs():
    table = selection.PAGE.read_text().split("<!-- measured -->")[1].split("<!-- end -->")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.strip().splitlines()[2:]]
    assert {DESIGNS[name].route for name in rows} == set(MAX_RATIO)
