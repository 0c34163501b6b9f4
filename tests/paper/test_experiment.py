"""Experiments: the claims of the paper on quick versions, resumed runs, equal numbers from equal seeds."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from valuefit.paper import experiment as experiments
from valuefit.paper.definition import available, load_experiment
from valuefit.paper.experiment import run_experiment
from valuefit.paper.plots import draw, on_common_passes, straightness, table, write_tables


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The quick Random MDP, run once."""
    experiment = load_experiment("random-mdp", quick=True)
    folder = tmp_path_factory.mktemp("quick")
    return experiment, run_experiment(experiment, folder, jobs=1), folder


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Two panels and two methods of it, run once."""
    full = load_experiment("random-mdp", quick=True)
    experiment = replace(full, methods=("svrg", "gtd2"), panels=full.panels[:2], tuning_seeds=full.tuning_seeds[:1])
    folder = tmp_path_factory.mktemp("few")
    return experiment, run_experiment(experiment, folder, jobs=1), folder


def rows_of(curves):
    return {(row["panel"], row["grid"], row["method"]): row for row in table(curves)}


def test_every_experiment_of_the_package_is_well_formed():
    assert available() == ["mountain-car-20000", "mountain-car-5000", "off-policy", "random-mdp", "traces"]
    for name in available():
        for is_quick in (False, True):
            experiment = load_experiment(name, quick=is_quick)
            assert set(experiment.grids) == {"printed", "widened"}
            assert len(experiment.seeds) >= (2 if is_quick else 5)
            assert not set(experiment.tuning_seeds) & set(experiment.seeds)
            assert len(experiment.tuning_seeds) == 3
            sizes = {f"n = {panel.source['steps']:,}" for panel in experiment.panels}
            assert all(size in experiment.title for size in sizes)
            assert ("quick" in experiment.title) == is_quick
    figure1 = load_experiment("random-mdp")
    assert figure1.grids["printed"] == {"step_theta": [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6], "step_w": [1.0, 1e-1, 1e-2]}
    assert figure1.panels[0].source["states"] == 400


def test_svrg_and_saga_converge_linearly_and_faster_than_the_others_on_every_panel(quick):
    experiment, curves, _ = quick
    rows = rows_of(curves)
    for panel in experiment.panels:
        for method in ("SVRG", "SAGA"):
            row = rows[panel.label, "widened", method]
            assert row["last gap"] < 1e-6
            assert row["straightness"] >= 0.95
        for other in ("PDBG", "GTD2", "TD (fLSTD-SA)"):
            row = rows.get((panel.label, "widened", other))
            if row is not None:
                assert row["last gap"] > 1e4 * rows[panel.label, "widened", "SVRG"]["last gap"]


def test_td_is_excluded_where_its_fixed_point_is_not_the_minimiser(quick):
    rows = rows_of(quick[1])
    assert ("ridge = 0", "printed", "TD (fLSTD-SA)") in rows
    assert ("ridge = L", "printed", "TD (fLSTD-SA)") not in rows


def test_gtd2_and_td_stall(quick):
    for curve in quick[1]:
        if curve.method in ("gtd2", "flstd-sa") and curve.grid == "widened":
            _, logs = on_common_passes(curve.runs)
            middle, last = np.median(logs[:, logs.shape[1] // 2]), np.median(logs[:, -1])
            assert abs(last - middle) < 1.0
            assert last > -4


def test_a_larger_ridge_is_faster(quick):
    rows = rows_of(quick[1])
    for method in ("SVRG", "SAGA"):
        passes = [rows[panel, "widened", method]["passes to 1e-6"] for panel in ("ridge = 0", "ridge = L")]
        assert passes[1] < passes[0]


def test_the_printed_grid_fails_at_ridge_zero(quick):
    rows = rows_of(quick[1])
    for method in ("SVRG", "SAGA"):
        assert rows["ridge = 0", "printed", method]["last gap"] > 0.1


def test_a_second_run_gives_the_same_numbers(few, tmp_path):
    experiment, curves, _ = few
    assert run_experiment(experiment, tmp_path, jobs=2) == curves


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", r"damaged: Expecting value"),
        (lambda text: text[:100], r"is not the file of a finished run, or it is damaged"),
        (lambda text: text.replace('"gap"', '"gaps"'), "the key 'gap' is missing"),
        (lambda text: text.replace('"seed": ', '"seed": 7'), "the value of 'seed' is not that of this run"),
        (lambda text: text.replace('"passes": [', '"passes": ["x", '), "the value of 'passes' is not"),
        (lambda text: text.replace('"passes": [', '"passes": [1.0, '), "'passes' and 'gap' have different lengths"),
        (lambda text: text.replace('"status": "', '"status": "x'), "the value of 'status' is not"),
        (lambda text: "[]", "it holds no table of keys"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "has run format 2; this version of valuefit reads"),
        (lambda text: "[" * 100_000, "is not the file of a finished run"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(quick, tmp_path, change, message):
    experiment, _, folder = quick
    shutil.copytree(folder / "runs", tmp_path / "runs")
    search = experiments.StepSearch(experiment, experiment.panels[0], "printed", "saga")
    path = tmp_path / "runs" / f"{search.next_rung()[0].name}.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message) as caught:
        run_experiment(experiment, tmp_path, jobs=1)
    assert str(caught.value).startswith(str(path))


def test_workers_end_when_their_parent_is_killed(tmp_path):
    """The parent is killed as soon as it has finished a run; its workers then are in one of the next."""
    code = (
        "import sys, os, signal, multiprocessing as m; from pathlib import Path;"
        "from valuefit.paper.definition import load_experiment; from valuefit.paper.experiment import run_experiment;\n"
        "def kill(text, fraction):\n"
        "    print(*(child.pid for child in m.active_children()), flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
        "run_experiment(load_experiment('random-mdp', quick=True), Path(sys.argv[1]), jobs=2, progress=kill)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    workers = [int(word) for word in done.stdout.split()]
    assert workers
    deadline = time.monotonic() + 30
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline, "workers outlived their parent"
        time.sleep(0.05)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_interrupted_run_resumes(few, tmp_path):
    experiment, curves, folder = few
    fractions = []

    def stop(text, fraction):
        fractions.append(fraction)
        if len(fractions) == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path, jobs=1, progress=stop)
    assert sum(1 for _ in (tmp_path / "runs").glob("*.json")) == 20
    assert fractions == sorted(fractions)
    assert 0 < fractions[-1] < 0.5
    resumed = []
    assert run_experiment(experiment, tmp_path, jobs=1, progress=lambda _, fraction: resumed.append(fraction)) == curves
    total = sum(1 for _ in (folder / "runs").glob("*.json"))
    assert len(resumed) == total - 20
    assert resumed == sorted(resumed)
    assert resumed[0] > fractions[-1]  # finished runs count
    assert resumed[-1] == pytest.approx(1)
    calls = []
    assert run_experiment(experiment, tmp_path, jobs=1, progress=lambda *arguments: calls.append(arguments)) == curves
    assert calls == []


def test_figures_and_tables_are_written(quick):
    experiment, curves, folder = quick
    png, svg = draw(experiment, curves, folder)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
    markdown, tidy = write_tables(experiment, curves, folder)
    assert "| ridge = 0 | widened | SAGA |" in markdown.read_text()
    with tidy.open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["seed"] for row in rows} == {"1", "2"}
    assert min(float(row["gap"]) for row in rows if row["method"] == "saga") < 1e-6


def test_straightness_is_low_for_a_power_law():
    passes = np.arange(1.0, 1000)
    assert straightness(passes, passes**-4.0) < 0.95
    assert straightness(passes, 0.9**passes) > 0.999
    assert straightness(passes, passes**-1.0) is None


def test_straightness_measures_the_slow_tail_at_even_passes():
    passes = np.unique(np.concatenate([np.arange(0.0, 200), np.arange(0.0, 40_000, 100)]))
    fast_then_slow = 0.5**passes + 1e-6 * np.exp(-2e-4 * passes)
    assert straightness(passes, fast_then_slow) > 0.99
    stalled = 0.5**passes + 1e-7
    assert straightness(passes, stalled) < 0.5
    oscillating = 1e-2 * np.exp(-3e-4 * passes + 2 * np.sin(passes / 2000))
    assert straightness(passes, oscillating) < 0.9


def run_with(gap, *, status="budget", passes=None):
    """A run as `run_job` returns it, by default with one point per pass."""
    return {"gap": list(gap), "passes": list(passes or range(len(gap))), "status": status}


def test_scores_rank_stable_before_unstable_before_diverged_runs():
    fast = run_with([1, 1e-5, 1e-11])
    slow = run_with([1, 1e-3, 1e-5, 1e-7, 1e-9, 1e-11])
    not_solved = run_with([1, 1e-1, 1e-2])
    worse = run_with([1, 0.5, 0.4])
    unstable = run_with([1, 1e-6, 1e-3, 1e-11])
    diverged_late = run_with([1, 10, 1e5], status="diverged", passes=[0, 40_000, 90_000])
    diverged_early = run_with([1, 1e5], status="diverged")
    diverged_at_once = run_with([], status="diverged")
    order = [fast, slow, not_solved, worse, unstable, diverged_late, diverged_early, diverged_at_once]
    scores = [experiments.score(run) for run in order]
    assert scores == sorted(set(scores))
    # noise around a level does not count as instability, nor does a rise below a gap of 1e-10
    assert experiments.score(run_with([1, 1e-3, 9e-3, 2e-3])) < experiments.score(unstable)
    assert experiments.score(run_with([1, 1e-10, 1e-14, 1e-11])) == 1


def simulate(search, outcome):
    """Run a search with `outcome(steps, seed) -> run` instead of a solver; returns rungs of (steps, passes, seed)."""
    rungs = []
    while jobs := search.next_rung():
        for job in jobs:
            search.add_result(job, outcome((job.step_theta, job.step_w), job.seed) | {"seed": job.seed})
        rungs.append([((job.step_theta, job.step_w), job.passes, job.seed) for job in jobs])
    return rungs


def test_steps_that_diverge_on_one_tuning_seed_are_not_selected():
    experiment = load_experiment("random-mdp", quick=True)
    search = experiments.StepSearch(experiment, experiment.panels[0], "widened", "saga")
    lucky, safe = (1e2, 0.3), (3e1, 0.1)

    def outcome(steps, seed):
        if steps == lucky and seed == experiment.tuning_seeds[2]:
            return run_with([1, 1e6], status="diverged")
        return run_with([1, {lucky: 1e-9, safe: 1e-7}.get(steps, 1e-3)])

    rungs = simulate(search, outcome)
    assert len(rungs[0]) == 18
    assert {seed for _, _, seed in rungs[1]} == {experiment.tuning_seeds[0]}
    assert {seed for _, _, seed in rungs[2]} == set(experiment.tuning_seeds)
    assert {steps for steps, _, _ in rungs[3]} == {safe}
    assert [seed for _, _, seed in rungs[3]] == list(experiment.seeds)
    assert search.total_passes == sum(passes for rung in rungs for _, passes, _ in rung)


def test_panels_may_have_their_own_passes():
    for is_quick in (False, True):
        baird, ill_conditioned, other = load_experiment("off-policy", quick=is_quick).panels
        assert baird.passes > other.passes
        assert is_quick or ill_conditioned.passes > baird.passes


def test_a_log_without_A_is_refused():
    """One step of Baird's star, from a state whose action the target never takes, has ratio 0."""
    settings = {"discount": 0.99}
    with pytest.raises(ValueError, match="A is zero on this log, so the paper's step sizes do not exist"):
        experiments.prepare(json.dumps([{"kind": "baird", "steps": 1}, settings, {}]))


def test_off_policy_td_diverges_where_svrg_and_saga_converge_linearly(tmp_path):
    full = load_experiment("off-policy", quick=True)
    stars = tuple(panel for panel in full.panels if panel.source["kind"] == "baird")
    quick = replace(full, panels=stars, methods=("flstd-sa", "svrg", "saga"), grids={"widened": full.grids["widened"]})
    rows = rows_of(run_experiment(quick, tmp_path, jobs=1))
    for panel in stars:
        td = rows[panel.label, "widened", "TD (fLSTD-SA)"]
        assert td["diverged"] == len(quick.seeds)  # at the best steps of the grid
        assert td["last gap"] > 100
        for method in ("SVRG", "SAGA"):
            row = rows[panel.label, "widened", method]
            assert row["diverged"] == 0
            assert row["last gap"] < 1e-6
            if panel is stars[0]:
                assert row["straightness"] > 0.99
                assert row["last gap"] < 1e-10


def widened_only(name):
    """A quick experiment with its widened grid only, tuned on one seed."""
    full = load_experiment(name, quick=True)
    return replace(full, grids={"widened": full.grids["widened"]}, tuning_seeds=full.tuning_seeds[:1])


def test_with_traces_svrg_and_saga_converge_linearly_and_faster_than_the_others(tmp_path):
    quick = widened_only("traces")
    rows = rows_of(run_experiment(quick, tmp_path, jobs=1))
    for panel in quick.panels:
        for method in ("SVRG", "SAGA"):
            row = rows[panel.label, "widened", method]
            assert row["diverged"] == 0
            assert row["last gap"] < 1e-6
            assert row["straightness"] >= 0.95
            for other in ("PDBG", "GTD2", "TD (fLSTD-SA)"):
                assert rows[panel.label, "widened", other]["last gap"] > 100 * row["last gap"]


@pytest.mark.slow  # quick: the same claims on every panel of the Random MDP
def test_on_mountain_car_svrg_and_saga_are_faster_than_the_others_and_with_a_larger_ridge(tmp_path):
    # n = 1,000 is harder than the sizes of the figures: no method reaches 1e-6 within these passes
    quick, twin = (widened_only(name) for name in ("mountain-car-5000", "mountain-car-20000"))
    assert (quick.panels, quick.grids, quick.methods) == (twin.panels, twin.grids, twin.methods)
    none, _, large = quick.panels
    rows = rows_of(run_experiment(replace(quick, panels=(none, large)), tmp_path, jobs=1))
    for method in ("SVRG", "SAGA"):
        small, big = (rows[panel.label, "widened", method] for panel in (none, large))
        assert big["passes to 1e-2"] < 50 < (small["passes to 1e-2"] or none.passes)
        for other in ("PDBG", "GTD2", "TD (fLSTD-SA)"):
            assert rows[none.label, "widened", other]["last gap"] > 2 * small["last gap"]
        for other in ("PDBG", "GTD2"):
            assert rows[large.label, "widened", other]["last gap"] > 100 * big["last gap"]


def test_the_table_has_the_range_over_seeds():
    fast, slow, never = run_with([1, 1e-7]), run_with([1, 1e-2, 1e-7]), run_with([1, 0.5])
    curves = experiments.Curves("panel", "grid", "saga", 1.0, 1.0, 1.0, 1.0, [])
    ranges = [table([replace(curves, runs=runs)])[0]["1e-6 by seed"] for runs in ([fast, slow], [fast, never], [never])]
    assert ranges == ["1 to 2", "1 to never", None]
