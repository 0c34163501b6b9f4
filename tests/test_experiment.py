"""Experiments: what the paper claims, on the quick version; resumed runs; equal seeds, equal numbers."""

import csv
import json

import numpy as np
import pytest

from valuefit import experiment as experiments
from valuefit.experiment import available, load_experiment, run_experiment
from valuefit.figures import draw, on_common_passes, straightness, table, write_tables


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The quick Random MDP, run once."""
    experiment = load_experiment("random-mdp", quick=True)
    folder = tmp_path_factory.mktemp("quick")
    return experiment, run_experiment(experiment, folder, jobs=1), folder


def rows_of(curves):
    return {(row["panel"], row["grid"], row["method"]): row for row in table(curves)}


def test_every_experiment_of_the_package_is_well_formed():
    assert available() == ["mountain-car-20000", "mountain-car-5000", "off-policy", "random-mdp", "traces"]
    for name in available():
        for small in (False, True):
            experiment = load_experiment(name, quick=small)
            assert set(experiment.grids) == {"printed", "widened"}
            assert len(experiment.seeds) >= (2 if small else 5)
            assert experiment.tuning_seed not in experiment.seeds
    figure1 = load_experiment("random-mdp")
    assert figure1.grids["printed"] == {
        "step_theta": [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6],
        "step_w": [1.0, 1e-1, 1e-2],
    }
    assert figure1.panels[0].source["states"] == 400


def test_svrg_and_saga_are_linear_and_ahead_on_every_panel(quick):
    experiment, curves, _ = quick
    rows = rows_of(curves)
    for panel in experiment.panels:
        for method in ("SVRG", "SAGA"):
            row = rows[panel.label, "widened", method]
            assert row["last gap"] < 1e-6
            assert row["straightness"] >= 0.95
        for other in ("PDBG", "GTD2", "TD (fLSTD-SA)"):
            slower = rows.get((panel.label, "widened", other))
            if slower is not None:
                assert slower["last gap"] > 1e4 * rows[panel.label, "widened", "SVRG"]["last gap"]


def test_td_is_left_out_where_its_fixed_point_is_not_the_minimiser(quick):
    rows = rows_of(quick[1])
    assert ("ridge = 0", "printed", "TD (fLSTD-SA)") in rows
    assert ("ridge = L", "printed", "TD (fLSTD-SA)") not in rows


def test_gtd2_and_td_flatten(quick):
    for found in quick[1]:
        if found.method in ("gtd2", "flstd-sa") and found.grid == "widened":
            _, logs = on_common_passes(found.runs)
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


def test_a_second_run_gives_the_same_numbers(quick, tmp_path):
    experiment, curves, _ = quick
    assert run_experiment(experiment, tmp_path, jobs=2) == curves


def test_a_stopped_run_goes_on_where_it_was(quick, tmp_path):
    experiment, curves, folder = quick
    finished = []

    def stop(text):
        finished.append(text)
        if len(finished) == 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path, jobs=1, progress=stop)
    left = sum(1 for _ in (tmp_path / "runs").glob("*.json"))
    assert left == 60
    done = []
    assert run_experiment(experiment, tmp_path, jobs=1, progress=done.append) == curves
    total = sum(1 for _ in (folder / "runs").glob("*.json"))
    assert len(done) == total - 60
    again = []
    assert run_experiment(experiment, tmp_path, jobs=1, progress=again.append) == curves
    assert again == []


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


def test_straightness_can_fail():
    passes = np.arange(1.0, 1000)
    assert straightness(passes, passes**-4.0) < 0.95
    assert straightness(passes, 0.9**passes) > 0.999
    assert straightness(passes, passes**-1.0) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [("title = ", "not an experiment"), ('title = "x"', "not an experiment"), ("panel = 3\n", "not an experiment")],
)
def test_a_file_that_is_no_experiment_is_refused(tmp_path, text, words):
    path = tmp_path / "odd.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        load_experiment(str(path))


def test_an_unknown_experiment_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="random-mdp"):
        load_experiment("figure-7")


def test_an_unknown_source_is_refused():
    with pytest.raises(ValueError, match="no source 'chess'"):
        experiments.prepare(json.dumps([{"kind": "chess", "steps": 3}, {}, {}]))


def test_off_policy_td_diverges_where_svrg_and_saga_do_not():
    full = load_experiment("off-policy", quick=True)
    panel = full.panels[0]
    assert panel.label == "Baird's star"
    for method in ("flstd-sa", "svrg", "saga"):
        gap = experiments.run_job(experiments.Job(panel, method, 0.01, 0.1, 200.0, 1))["gap"]
        if method == "flstd-sa":
            assert gap[-1] > 100 * gap[len(gap) // 2] > 100 * gap[0]
        else:
            assert gap[-1] < 1e-5
