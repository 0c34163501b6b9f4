"""The benchmark grid on small cells: problems, gaps, other implementations, the results page."""

import json
import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import checks, costs, floors, peers, report, targets, wide
from benchmarks.cells import CELLS
from benchmarks.engine import ORDERS, dense_problem, in_order
from benchmarks.grid import Kept, main, slug, wanted_tasks
from benchmarks.reference import dense_reference, moments, reference
from benchmarks.tasks import engine_figures, fresh, own_solvers, tasks_of
from valuefit.machine import COSTS
from valuefit.problem.exact import Exact
from valuefit.solvers.adaptive_steps import StepController
from valuefit.solvers.blocks import Blocks


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_makes_a_problem_and_a_held_out_one_with_the_same_features(name):
    cell = CELLS[name].shrunk()
    problem, other = cell.make(), cell.make(seed=1)
    assert problem.phi.sparse == cell.sparse
    assert problem.n == cell.n == other.n
    assert problem.d == other.d
    assert abs(problem.d - cell.d) <= 0.4 * cell.d
    assert not np.array_equal(problem.reward, other.reward)


def test_the_required_sizes_are_in_the_grid():
    sizes = {(cell.n, cell.d) for cell in CELLS.values()}
    assert {(10**5, 200), (10**6, 200), (10**5, 1000), (5 * 10**4, 4000), (20_000, 201)} <= sizes
    assert {(10**5, 10**4), (10**6, 10**5), (10**6, 10**6)} <= sizes
    assert len({slug(name) for name in CELLS}) == len(CELLS)


@pytest.mark.parametrize("name", [name for name, cell in CELLS.items() if not cell.sparse])
def test_the_reference_agrees_with_the_exact_solution(name, tmp_path):
    problem = CELLS[name].shrunk().make()
    for ours, theirs in zip(moments(problem), problem.moments(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12 * max(np.abs(theirs).max(), 1))
    exact = Exact(problem)
    first, again = (dense_reference(problem, tmp_path / "kept.npz") for _ in range(2))
    rng = np.random.default_rng(0)
    for theta in (np.zeros(problem.d), exact.theta + 1e-3 * rng.standard_normal(problem.d)):
        assert first.gap(theta) == pytest.approx(exact.gap(theta), rel=1e-5)
        assert again.gap(theta) == pytest.approx(first.gap(theta), rel=1e-12)
    assert first.gap(exact.theta) < 1e-10


def test_the_gap_of_sparse_rows_agrees_with_the_exact_one():
    problem = CELLS["tiles (1e5, 1e4)"].shrunk().make()
    exact, truth = Exact(problem), reference(problem)
    rng = np.random.default_rng(0)
    for theta in (np.zeros(problem.d), exact.theta + 0.1 * rng.standard_normal(problem.d)):
        assert truth.gap(theta) == pytest.approx(exact.gap(theta), rel=1e-2)
    assert truth.gap(exact.theta) < 1e-10


def run_once(work):
    return 0.0, work()


@pytest.mark.parametrize(
    "name", ["random-mdp ridge=0", "random-mdp ridge=L", "lognormal ratios (1e5, 200)", "trace 0.8 (1e5, 200)"]
)
def test_textbook_and_gmres_find_the_minimiser(name):
    problem = fresh(CELLS[name].shrunk().make())
    truth = reference(problem)
    assert truth.gap(peers.textbook(problem, run_once).theta) < 1e-12
    found = peers.gmres(problem, truth, tol=1e-6, seconds=30)
    assert found.status == "converged"
    assert truth.gap(found.theta) <= 1e-6


def test_td_svrg_converges_with_its_published_step():
    problem = CELLS["fourier well (1e5, 200)"].shrunk().make()
    truth = reference(problem)
    found = peers.td_svrg(problem, truth, tol=1e-6, seconds=30)
    assert found.status == "converged"
    assert truth.gap(found.theta) <= 1e-6
    assert peers.td_svrg(CELLS["random-mdp ridge=L"].shrunk().make(), truth, tol=1e-6, seconds=1).status == "not run"


def test_td_svrg_steps_equal_those_of_plain_loops():
    problem = CELLS["lognormal ratios (1e5, 200)"].shrunk().make()
    rng = np.random.default_rng(3)
    draws, snapshot, step = rng.integers(0, problem.n, 50), rng.standard_normal(problem.d), 0.01
    rows, mean = problem.phi.matrix, problem.residual(snapshot)
    theta = snapshot.copy()

    def direction(t, theta):
        delta = problem.reward[t] + (problem.discount[t] * rows[problem.next[t]] - rows[problem.now[t]]) @ theta
        return problem.ratio[t] * delta * rows[problem.now[t]]

    for t in draws:
        theta = theta + step * (direction(t, theta) - direction(t, snapshot) + mean)
    deviation = np.zeros(problem.d)
    peers.td_updates(
        problem.phi.kernel, problem.now[draws], problem.next[draws], problem.discount[draws], problem.ratio[draws],
        mean, deviation, step,
    )  # fmt: skip
    np.testing.assert_allclose(snapshot + deviation, theta, rtol=1e-10, atol=1e-12)


def test_sparse_lu_solves_tiles_and_rejects_dense_rows():
    problem = CELLS["tiles (1e5, 1e4)"].shrunk().make()
    assert reference(problem).gap(peers.sparse_lu(problem).theta) < 1e-8
    assert peers.sparse_lu(CELLS["random-mdp ridge=0"].shrunk().make()).note == "rows are dense"


def test_a_fresh_problem_has_no_cached_moments():
    problem = CELLS["trace 0.8 (1e5, 200)"].shrunk().make()
    vf.solve(problem, "lstd")
    assert "A" in vars(problem)
    again = fresh(problem)
    assert "A" not in vars(again)
    np.testing.assert_allclose(again.A, problem.A)


def test_results_of_other_sources_are_not_reused(tmp_path):
    path = tmp_path / "cell.json"
    Kept(path, "here").add("lstd", {"status": "converged"})
    assert Kept(path, "here").tasks == {"lstd": {"status": "converged"}}
    assert Kept(path, "elsewhere").tasks == {}
    assert Kept(path, "here", again=True).tasks == {}


def grid(*arguments):
    command = [sys.executable, "-m", "benchmarks.grid", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


def test_the_quick_grid_writes_its_tables_data_and_figure(tmp_path):
    name = "tiles (1e5, 1e4)"
    done = grid("--quick", "--only", name, "--again", "--seconds", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"results.md", "results.json", "results.png"}
    page, data = (tmp_path / "results.md").read_text(), json.loads((tmp_path / "results.json").read_text())
    assert "Shrunken cells" in page
    assert list(data["cells"]) == [name]
    tasks = data["cells"][name]["tasks"]
    assert list(tasks) == tasks_of(CELLS[name])
    assert tasks["lstd"]["status"] == "converged"
    assert tasks["lstd"]["gap"] <= 1e-6
    assert page.count(f"| {name} |") == 3
    for title in targets.TARGETS:
        assert f"### {title}" in page
    for solver in own_solvers():
        assert f"| {solver} |" in page
    assert tasks["textbook"]["status"] in ("failed", "inexact")


def test_auto_and_the_textbook_alternate(tmp_path):
    done = grid("--quick", "--only", "direct (2e4, 50)", "--again", "--seconds", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    tasks = json.loads((tmp_path / "results.json").read_text())["cells"]["direct (2e4, 50)"]["tasks"]
    assert all(tasks[f"paired@{count}"]["ratio"] > 0 for count in (1, 2, 8))
    assert "| cell | one thread | 2 threads | 8 threads |" in (tmp_path / "results.md").read_text()


def test_an_unknown_name_gives_an_error_message():
    with pytest.raises(SystemExit, match="No cell has 'chess' in its name"):
        main(["--only", "chess"])
    with pytest.raises(SystemExit, match="There is no 'adam' in the grid"):
        main(["--solvers", "adam"])


def test_solvers_can_be_selected():
    assert wanted_tasks("fourier well (1e5, 1000)", ["textbook"]) == ["reference", "textbook", "textbook@2"]


def synthetic_results(**tasks):
    facts = {"kind": "random-mdp", "sparse": False, "n": 10, "d": 2, "tasks": tasks}
    return {"cells": {"random-mdp ridge=0": facts}, "engine": None}


def test_a_cell_that_no_solver_solved_is_on_the_page(tmp_path):
    over_budget = {"status": "budget", "gap": 0.1, "passes": 400.0, "seconds": 2.0, "worst": 1.0}
    killed = {"status": "killed", "message": "no end after 60 s"}
    results = synthetic_results(svrg=over_budget, lstd=killed, saga={**over_budget, "seconds": 4.0})
    results["cells"]["random-mdp ridge=0"]["about"] = "synthetic"
    results["cells"]["none"] = {**results["cells"]["random-mdp ridge=0"], "tasks": {"lstd": killed}}
    report.write({**results, "seconds": 1.0, "quick": False}, tmp_path)
    page = (tmp_path / "results.md").read_text()
    assert "| random-mdp ridge=0 | killed | (1: 1e-01) | (2: 1e-01) |" in page
    assert "- random-mdp ridge=0, lstd: killed. no end after 60 s" in page
    assert (tmp_path / "results.png").stat().st_size > 1000


def test_targets_are_met_and_missed_as_expected():
    good = {"status": "converged", "gap": 1e-7, "passes": 20.0, "seconds": 1.0, "worst": 1.0, "message": ""}
    bad = {**good, "status": "diverged", "gap": 3.0}
    verdicts = [met for *_, met in targets.stochastic(synthetic_results(svrg=good, saga=bad))]
    assert verdicts == [True, True, True, False, False, False]
    assert targets.krylov(synthetic_results(krylov=good))[0][2]
    assert not targets.krylov(synthetic_results(krylov={**good, "passes": 31.0}))[0][2]
    assert not targets.krylov(
        synthetic_results(
            krylov={**good, "message": "Krylov iterations stalled; this was solved directly, as by 'lstd'."}
        )
    )[0][2]
    slow = {**good, "seconds": 1.2}
    book = {**good, "seconds": 11.0}
    assert [met for *_, met in targets.automatic(synthetic_results(auto=slow, lstd=good, textbook=book))] == [
        False,
        True,
        False,
    ]
    assert [met for *_, met in targets.automatic(synthetic_results(auto=good, lstd=good, textbook=book))] == [
        True,
        True,
        True,
    ]
    pairs = synthetic_results(auto=good, textbook=book, **{"paired@1": {"ratio": 0.96}, "paired@2": {"ratio": 0.94}})
    pairs["cells"]["random-mdp ridge=0"].update(kind="direct", d=50)
    assert [met for *_, met in targets.automatic(pairs)][2:] == [True, False, None]
    pairs["cells"]["random-mdp ridge=0"].update(d=49)
    assert len(targets.automatic(pairs)) == 2
    run = {"passes": 10.0, "best": 4.0, "full": 30.0}
    statistical = {"statistical": {"status": "done", "solvers": {"svrg": run, "saga": {**run, "passes": 31.0}}}}
    assert [met for *_, met in targets.statistical(synthetic_results(**statistical))] == [False, False]
    alone = {"statistical": {"status": "done", "solvers": {"svrg": run}}}
    assert [met for *_, met in targets.statistical(synthetic_results(**alone))] == [True, True]


def test_rates_are_measured_for_all_orders_and_the_target_uses_blocks():
    figures = engine_figures(400, 7)
    assert all(figures[f"{name} {order} float32"]["over_floor"] > 0 for name in ("svrg", "saga") for order in ORDERS)
    for name, order in product(("svrg", "saga"), ORDERS):
        figures[f"{name} {order} float64"]["over_floor"] = 2.0 if order == "blocks" else 4.0
        figures[f"{name} {order} speed-up"] = 1.5 if name == "svrg" else 1.7
    lines = targets.engine({**synthetic_results(), "engine": figures})
    assert [met for *_, met in lines] == [True, False, True, True]
    assert lines[0][1] == "2.00x (single rows 4.00x, mini-batches 4.00x)"
    assert [met for *_, met in targets.engine(synthetic_results())] == [None] * 4


def test_each_order_selects_its_memory():
    problem = dense_problem(400, 7)
    zero = np.zeros(7)
    memory = {order: in_order("svrg", order).init(problem, zero, zero)[0].memory for order in ORDERS}
    assert isinstance(memory["blocks"][1], Blocks)
    assert memory["single rows"] == (400, None)
    assert isinstance(memory["mini-batches"], StepController)


def test_costs_are_positive_and_a_line_is_fitted():
    found = costs.measure(quick=True)
    assert list(found) == list(COSTS)
    assert all(0 <= value < 1 for value in found.values())
    assert min(found[name] for name in ("gram_flop", "factor_flop", "fixed")) > 0  # a fitted slope can be 0 by chance
    assert costs.line([1.0, 2.0, 4.0], [3.0, 5.0, 9.0]) == pytest.approx((2.0, 1.0))
    assert costs.line([1.0, 2.0], [1.0, 3.0])[1] == 0.0


@pytest.mark.parametrize("name", [case.name for case in checks.cases()])
def test_every_stage_of_an_evaluation_is_timed(name):
    case = next(case for case in checks.cases() if case.name == name).shrunk()
    seconds = checks.measure(case, repeats=1)
    assert list(seconds) == ["pass", "solve", "interval", "cross-checks", "checks"]
    assert min(seconds.values()) >= 0 < sum(seconds.values())  # some take less than the clock resolves


@pytest.mark.parametrize("name", [case.name for case in floors.cases()])
def test_evaluations_and_their_floors_are_timed(name):
    case = next(case for case in floors.cases() if case.name == name).shrunk()
    seconds = floors.measure(case, repeats=1)
    assert {"floor", "evaluate", "solve", "interval", "cross-checks", "checks"} <= set(seconds)
    assert seconds["evaluate"] > 0


@pytest.mark.parametrize("name", ["(1e5, 200) of 10 steps", "(5e4, 400) one-hot"])
def test_what_is_asked_for_is_timed(name):
    case = next(case for case in checks.asked_cases() if case.name == name).shrunk()
    seconds = checks.measure_asked(case, repeats=1)
    assert list(seconds) == ["pass", "solve", "values", "simultaneous"]
    assert min(seconds.values()) >= 0 < seconds["simultaneous"]


def test_costs_are_compared_with_the_solve_or_with_passes():
    found = {"pass": 0.1, "solve": 3.0, "interval": 1.5, "cross-checks": 0.5, "checks": 2.5}
    assert checks.relative_cost(found) == 1.5
    assert not checks.met(found, relative=True)
    assert checks.met({**found, "solve": 5.0}, relative=True)
    assert checks.met(found, relative=False)
    assert not checks.met({**found, "checks": 3.5}, relative=False)


def test_wide_logs_are_measured_in_new_processes():
    cells = {name: CELLS[name].shrunk() for name in wide.TARGETS}
    lines = wide.measure(cells, 1)
    assert [line.split(", seed")[0] for line in lines] == list(wide.TARGETS)
    assert all(" converged in " in line and line.endswith("s: met)") for line in lines)
