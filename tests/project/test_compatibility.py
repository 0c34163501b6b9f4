"""Compatibility: public names and signatures, the keys of the JSON output, files of earlier versions."""

import inspect
import json
import shutil

import click
import numpy as np
import pytest
from click.testing import CliRunner

import valuefit as vf
from helpers.problems import ROOT
from valuefit.cli.main import main
from valuefit.paper.definition import load_experiment
from valuefit.paper.experiment import Job, _read_run
from valuefit.paper.table1 import Size, _read_cell

DATA = ROOT / "tests" / "fixtures"
OLD = DATA / "version-0.1"
EXPECTED = json.loads((OLD / "expected.json").read_text())
# methods of solvers that the engine and the cost model call, but users do not
INTERNAL = [
    "A_passes", "C_passes", "auto_steps", "choose_step", "choose_steps", "correction", "epoch", "guarded", "init",
    "meeting", "moment_passes", "order", "passes", "proximal", "reading", "run", "steps", "theorem_steps",
    "with_ridge",
]  # fmt: skip


def members(kind):
    """(name, member) of the public methods and properties that valuefit defines in a class."""
    for name, member in inspect.getmembers(kind):
        if name in INTERNAL:
            continue
        if not name.startswith("_") and getattr(member, "__module__", "valuefit").startswith("valuefit"):
            yield name, member


def signature_of(thing):
    """Names, kinds and defaults of the parameters, without annotations, which may change."""
    if not callable(thing):
        return "value"
    bare = inspect.Parameter.empty
    parameters = [one.replace(annotation=bare) for one in inspect.signature(thing).parameters.values()]
    return str(inspect.Signature(parameters))


def signatures():
    """Signatures by public name, including the public members of classes and the options of the command line."""
    found = {}
    named = {f"vf.{name}": getattr(vf, name) for name in vf.__all__ if name not in ("features", "solvers", "datasets")}
    named |= {f"vf.features.{name}": getattr(vf.features, name) for name in vf.features.__all__}
    named |= {f"vf.solvers.{kind.__name__}": kind for kind in vf.solvers.registry().values()}
    for title, thing in named.items():
        found[title] = signature_of(thing)
        if inspect.isclass(thing):
            found |= {f"{title}.{name}": signature_of(member) for name, member in members(thing)}
    for name, command in main.commands.items():
        for parameter in command.params:
            kind = "argument" if isinstance(parameter, click.Argument) else "option"
            found[f"valuefit {name} {' '.join(parameter.opts)}"] = kind
    return found


def test_public_names_and_signatures_are_unchanged():
    """After an intended change, run here: `python -c "import test_compatibility as t; t.write_signatures()"`."""
    wanted = json.loads((DATA / "signatures.json").read_text())
    now = signatures()
    assert {name: now.get(name) for name in wanted} == wanted


def write_signatures():
    (DATA / "signatures.json").write_text(json.dumps(signatures(), indent=1) + "\n")


def keys_of(facts, path=""):
    """Paths of all keys in nested dicts."""
    for key, value in facts.items():
        yield path + key
        if isinstance(value, dict):
            yield from keys_of(value, f"{path}{key}.")


def test_the_json_output_keeps_its_keys():
    done = CliRunner().invoke(main, ["evaluate", "--json"])
    assert done.exit_code == 0, done.output
    assert set(json.loads((DATA / "json-keys.json").read_text())) <= set(keys_of(json.loads(done.stdout)))


@pytest.mark.parametrize("name", ["log", "log.npz", "log.parquet"])
def test_a_log_of_version_0_1_loads(name):
    log = vf.load(OLD / name)
    assert len(log) == 60
    assert log.reward.sum() == pytest.approx(EXPECTED["reward_sum"])
    assert log.ratio.sum() == pytest.approx(EXPECTED["ratio_sum"])
    assert log.truncated.sum() == 3
    assert log.terminated.sum() == 2


def test_results_of_version_0_1_load():
    result = vf.Result.load(OLD / "result.npz")
    np.testing.assert_array_equal(result.theta, EXPECTED["theta"])
    assert (result.status, result.solver) == ("converged", "lstd")
    unfinished = vf.Result.load(OLD / "result-unfinished.npz")
    assert unfinished.status == "budget"
    assert unfinished.history.dtype.names == ("passes", "seconds", "residual")


@pytest.mark.parametrize("name", ["evaluation", "evaluation-state-action"])
def test_evaluations_of_version_0_1_load(name):
    evaluation = vf.Evaluation.load(OLD / f"{name}.npz")
    assert "version 0.1, which made few checks" in evaluation.verdict.reasons[-1]
    value = evaluation.policy_value
    found = {"estimate": value.estimate, "standard_error": value.standard_error, "interval": list(value.interval)}
    assert found == EXPECTED[name]
    assert np.mean(evaluation.value(evaluation.log.observations)) < 10
    assert "policy value" in evaluation.summary()


def test_an_evaluation_of_version_0_1_over_given_starts_loads():
    evaluation = vf.Evaluation.load(OLD / "evaluation-starts.npz")
    assert evaluation.policy_value.starts == 2
    assert evaluation.policy_value.estimate == pytest.approx(np.mean(evaluation.value(evaluation.log.observations[:2])))


def test_runs_of_version_0_1_are_resumed():
    panel = load_experiment("random-mdp", quick=True).panels[0]
    job = Job(panel, "saga", 10.0, 0.3, 24.0, 1)
    run = _read_run(OLD / "runs" / f"{job.name}.json", job)
    assert run["passes"][-1] == pytest.approx(24, abs=1)
    assert run["gap"][-1] < run["gap"][0]
    assert _read_cell(OLD / "runs" / "n200-d5.json", Size(200, 5))["methods"]["lstd"]["reached"]


def test_settings_of_version_0_1_are_read(monkeypatch):
    monkeypatch.chdir(OLD)
    done = CliRunner().invoke(main, ["evaluate", "--config", "config.toml", "--quiet"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("-0.31273 (standard error 0.14486")  # the automatic features of version 0.2


@pytest.mark.parametrize("name", ["log", "result.npz", "evaluation.npz", "runs"])
def test_files_of_a_newer_version_say_so(name, tmp_path):
    if name.endswith(".npz"):
        with np.load(OLD / name) as stored:
            arrays = dict(stored)
        facts = json.loads(str(arrays["facts"]))
        np.savez(tmp_path / name, **{**arrays, "facts": np.array(json.dumps({**facts, "format": 2}))})
    else:
        shutil.copytree(OLD / name, tmp_path / name)
        for path in (tmp_path / name).glob("*.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    read = {
        "log": vf.load, "result.npz": vf.Result.load, "evaluation.npz": vf.Evaluation.load,
        "runs": lambda path: _read_cell(path / "n200-d5.json", Size(200, 5)),
    }[name]  # fmt: skip
    with pytest.raises(
        ValueError, match=r"format 2; this version of valuefit reads format 1\. It was written by a newer"
    ):
        read(tmp_path / name)
