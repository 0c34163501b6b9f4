"""Compatibility: public names and signatures, the keys of the JSON output, files of newer versions."""

import inspect
import json

import click
import numpy as np
import pytest
from click.testing import CliRunner

import valuefit as vf
from helpers.problems import ROOT
from helpers.small_mdp import SmallMDP
from valuefit.cli.main import main
from valuefit.paper.run_files import read_run, write_run

DATA = ROOT / "tests" / "fixtures"
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


@pytest.mark.parametrize("kind", ["log", "result", "evaluation", "run"])
def test_files_of_a_newer_version_say_so(kind, tmp_path):
    evaluation = vf.evaluate(SmallMDP().log(20))
    path = tmp_path / f"{kind}.npz"
    if kind == "log":
        path = vf.save(evaluation.log, tmp_path / kind)
        text = path / "valuefit.json"
    elif kind == "run":
        write_run(path, {})
        text = path
    else:
        (evaluation if kind == "evaluation" else evaluation.result).save(path)
        with np.load(path) as stored:
            arrays = dict(stored)
        facts = json.loads(str(arrays["facts"]))
        np.savez(path, **{**arrays, "facts": np.array(json.dumps({**facts, "format": 3}))})
    if kind in ("log", "run"):
        text.write_text(json.dumps({**json.loads(text.read_text()), "format": 3}))
    read = {
        "log": vf.load, "result": vf.Result.load, "evaluation": vf.Evaluation.load,
        "run": lambda path: read_run(path, {}),
    }[kind]  # fmt: skip
    with pytest.raises(ValueError, match=r"format 3; this version of valuefit reads .* written by a newer version"):
        read(path)
