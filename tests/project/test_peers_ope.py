"""The comparison with other libraries: true values by other computations, and a small run of valuefit alone."""

import sys
from functools import partial
from itertools import product

import numpy as np
import pytest

from helpers.problems import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import ope_tasks, peers_ope
from benchmarks.ope_libraries import LIBRARIES, Library
from benchmarks.ope_tasks import TASKS
from benchmarks.peers_ope import PeerCell, page, rows, table_of
from coverage_study.held_out import HELD_OUT
from coverage_study.worlds import simulated_value

SMALL = {"table": 200, "pendulum": 20, "bandit": 300, "panel": 100}  # episodes


def test_the_value_of_the_table_is_that_of_simulated_episodes():
    task = TASKS["table"]()
    found = simulated_value(ope_tasks.periods_table(), task.target, task.discount, 40_000)
    assert task.truth == pytest.approx(found.value, abs=4 * found.standard_error)
    assert found.standard_error < 0.01 * task.truth


def test_the_value_of_the_pendulum_is_that_of_other_simulated_episodes():
    task = TASKS["pendulum"]()
    found = simulated_value(HELD_OUT["pendulum"][0], task.target, task.discount, 4000, seed=1)
    assert task.truth == pytest.approx(found.value, abs=4 * found.standard_error)
    assert found.standard_error < 0.02 * abs(task.truth)


def test_the_value_of_the_bandit_is_that_of_quadrature():
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    visitors = np.array(list(product(nodes, repeat=ope_tasks.TRAITS)))
    mass = np.prod(list(product(weights / weights.sum(), repeat=ope_tasks.TRAITS)), axis=1)
    clicks = np.sum(ope_tasks.new_rule(visitors) * ope_tasks.click_probability(visitors), axis=1)
    assert TASKS["bandit"]().truth == pytest.approx(mass @ clicks, rel=0.005)


def test_the_effect_in_the_panel_is_that_of_inverse_propensity_weights():
    units = 200_000
    log = TASKS["panel"](units).log(np.random.default_rng(0))
    shape = units, ope_tasks.PANEL_PERIODS
    treated, taken = np.asarray(log.action).reshape(shape), log.behaviour_prob.reshape(shape)
    weight = 1 / taken.prod(axis=1)
    always, never = treated.all(axis=1), ~treated.any(axis=1)
    parts = log.reward.reshape(shape)[:, -1] * weight * (always.astype(float) - never)
    error = parts.std() / np.sqrt(units)
    assert ope_tasks.panel_effect() == pytest.approx(parts.mean(), abs=4 * error)
    assert error < 0.02 * ope_tasks.panel_effect()


@pytest.mark.parametrize("name", ["table", "pendulum"])
def test_logs_are_of_one_length_and_networks_see_the_same_policy(name):
    task = TASKS[name](5)
    log = task.log(np.random.default_rng(0))
    assert len(log) == 5 * task.steps
    observations = log.observations[log.now]
    np.testing.assert_allclose(task.probabilities(task.inputs(observations)), task.target(observations), atol=1e-6)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Small tasks, of libraries valuefit and one that does not exist, and results that are written elsewhere."""
    tasks = {name: partial(TASKS[name], size) for name, size in SMALL.items()}
    libraries = {
        "valuefit": LIBRARIES["valuefit"],
        "absent": Library("absent", "absent_library", lambda *_: {}, {"table": 1}),
    }
    monkeypatch.setattr(peers_ope, "TASKS", tasks)
    monkeypatch.setattr(peers_ope, "LIBRARIES", libraries)
    monkeypatch.setattr(peers_ope, "FOLDER", tmp_path / "kept")
    monkeypatch.setattr(peers_ope, "PAGE", tmp_path / "page.md")
    return tmp_path


def test_valuefit_runs_on_every_task_and_missing_libraries_are_named(small, capsys):
    peers_ope.main(["--logs", "2", "--jobs", "0"])
    written = (small / "page.md").read_text()
    reason = "absent (ModuleNotFoundError: No module named 'absent_library')"
    assert f"Left out: {reason}" in capsys.readouterr().out
    assert f"Left out: {reason}." in written
    table = [line.strip("| ").split(" | ") for line in written.splitlines() if line.startswith("| ")][1:]
    assert [line[0] for line in table] == [name for name in SMALL for _ in range(2)]
    for _, _, logs, rmse, _, covered, _ in table:
        assert logs == "2"
        assert float(rmse.removesuffix("%")) < 40
        assert covered.endswith(" of 2")


def test_a_second_run_computes_nothing_again(small, monkeypatch, capsys):
    peers_ope.main(["--logs", "1", "--jobs", "0"])
    first = (small / "page.md").read_text()
    monkeypatch.setattr(PeerCell, "run", lambda *_: pytest.fail("computed again"))
    peers_ope.main(["--logs", "1", "--jobs", "0"])
    assert (small / "page.md").read_text() == first


def test_rows_state_errors_relative_to_the_truth():
    task = TASKS["panel"](10)
    records = [
        {"found": {"A": [1.1 * task.truth, [0.0, 2.0]], "B": [task.truth, None]}, "seconds": 1.0},
        {"found": {"A": [0.7 * task.truth, [0.0, 1.0]], "B": [task.truth, None]}, "seconds": 3.0},
    ]
    assert rows(task, "library", records) == [
        "| panel | library, A | 2 | 22.4% | -10.0% | 1 of 2 | 2 |",
        "| panel | library, B | 2 | 0.0% | +0.0% | none | 2 |",
    ]


def test_valuefit_is_also_shown_on_the_logs_that_all_had():
    task = TASKS["panel"](10)
    records = [{"found": {"A": [factor * task.truth, None]}, "seconds": 1.0} for factor in (1.1, 1.1, 1.5)]
    lines = table_of(task, {"valuefit": records, "obp": records[:2]})
    assert [line.split(" | ")[1:4] for line in lines] == [
        ["valuefit, A", "3", "30.0%"], ["obp, A", "2", "10.0%"], ["valuefit, A", "2", "10.0%"],
    ]  # fmt: skip


def test_the_table_on_the_page_is_the_one_that_was_written():
    measured = [line for line in peers_ope.PAGE.read_text().splitlines() if line.startswith("| ")]
    assert {line.split(" | ")[0].removeprefix("| ") for line in measured[1:]} == set(TASKS)
    shown = (ROOT / "docs" / "others.md").read_text().splitlines()
    assert [line for line in measured if line not in shown] == []


def test_the_page_names_versions():
    assert "valuefit 0.2, obp 0.4.1" in page({"valuefit": "0.2", "obp": "0.4.1"}, {}, [])
