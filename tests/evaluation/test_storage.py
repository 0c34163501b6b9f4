"""Saved evaluations: equal when loaded, user code must be given again and is checked, invalid files are refused."""

import json
import zipfile

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

import valuefit as vf
from helpers.npy_headers import DAMAGED, damaged_npy, replace_entry
from helpers.problems import ROOT, wide_log
from helpers.small_mdp import SmallMDP
from valuefit.features import Tiles


def own_features(x):
    return np.column_stack([np.ones(len(x)), x, x[:, 0] ** 2])


def own_policy(states):
    return np.full((len(states), 2), 0.5)


CASES = {
    "by name": (wide_log(), {"features": "fourier:order=2", "ridge": 0.1}, {}),
    "tiles": (wide_log(), {"features": Tiles(3, 3)}, {}),
    "states": (SmallMDP(off_policy=True).log(40), {"discount": 0.9, "trace": 0.5}, {}),
    "own features": (wide_log(), {"features": own_features}, {"features": own_features}),
    "own transformer": (wide_log(), {"features": StandardScaler()}, {"features": StandardScaler()}),
    "table": (
        SmallMDP(off_policy=True).log(40),
        {"discount": 0.9, "policy": SmallMDP(off_policy=True).policy, "values": "state-action"},
        {},
    ),
    "own policy": (
        wide_log(action=np.arange(400) % 2),
        {"policy": own_policy, "values": "state-action", "features": "identity"},
        {"policy": own_policy},
    ),
    "policy by ratios": (
        wide_log(action=np.arange(400) % 2, behaviour_prob=np.linspace(0.4, 0.6, 400)),
        {"policy": own_policy, "features": "identity"},
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_evaluation_equals_the_saved_one(case, tmp_path):
    log, settings, again = CASES[case]
    before = vf.evaluate(log, **settings)
    after = vf.Evaluation.load(before.save(tmp_path / "evaluation.npz"), **again)
    assert after.to_dict() == before.to_dict()
    assert after.summary() == before.summary()
    assert repr(after) == repr(before)
    np.testing.assert_array_equal(after.td_errors(), before.td_errors())
    np.testing.assert_array_equal(after.value(log.observations[:7]), before.value(log.observations[:7]))
    assert after.result.history.dtype == before.result.history.dtype


@pytest.fixture
def saved(tmp_path):
    return vf.evaluate(wide_log(), features=own_features).save(tmp_path / "evaluation.npz")


def test_user_features_must_be_given_again_and_are_checked(saved):
    with pytest.raises(ValueError, match="used features of your own, which the file does not contain"):
        vf.Evaluation.load(saved)
    with pytest.raises(ValueError, match="are not those of the evaluation in"):
        vf.Evaluation.load(saved, features=lambda x: own_features(2 * x))
    with pytest.raises(ValueError, match="holds 4 weights, but there are 2 features"):
        vf.Evaluation.load(saved, features=lambda x: x)
    # rounding on another machine is tolerated
    assert vf.Evaluation.load(saved, features=lambda x: own_features(x) * (1 + 1e-12)).problem.d == 4


def test_a_callable_policy_must_be_given_again_and_is_checked(tmp_path):
    log, settings, _ = CASES["own policy"]
    path = vf.evaluate(log, **settings).save(tmp_path / "evaluation.npz")
    with pytest.raises(ValueError, match="used the policy own_policy, which is code"):
        vf.Evaluation.load(path)
    with pytest.raises(ValueError, match="are not those of the evaluation in"):
        vf.Evaluation.load(path, policy=lambda states: np.tile([0.9, 0.1], (len(states), 1)))


def test_existing_files_are_overwritten_only_with_force(saved):
    evaluation = vf.evaluate(wide_log())
    before = saved.read_bytes()
    with pytest.raises(ValueError, match=r"evaluation\.npz already exists"):
        evaluation.save(saved)
    assert saved.read_bytes() == before
    evaluation.save(saved, force=True)
    assert vf.Evaluation.load(saved).policy_value == evaluation.policy_value
    assert [entry.name for entry in saved.parent.iterdir()] == ["evaluation.npz"]


WEIGHT_ERROR = {
    "standard_error": 1.0, "effective_clusters": 9.0, "determined": True, "reason": "", "solver_error": 0.0,
    "one_cluster": False,
}  # fmt: skip


def rewrite(path, change):
    """Apply `change` to the arrays and facts of the file."""
    with np.load(path) as stored:
        arrays = dict(stored)
    facts = json.loads(str(arrays["facts"]))
    change(arrays, facts)
    np.savez(path, **{**arrays, "facts": np.array(json.dumps(facts))})


def shorten(name):
    return lambda arrays, facts: arrays.update({name: arrays[name][:-1]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shorten("log_reward"), "the column reward of its log has dtype float64 and shape"),
        (lambda a, f: a.update(log_now=a["log_now"] + 1000), "point outside its observations"),
        (lambda a, f: a.update(log_now=a["log_now"] - 1), "point outside its observations"),
        (lambda a, f: a.update(log_next=a["log_next"].astype(float)), "the column next of its log has dtype float64"),
        (lambda a, f: a.update(log_ratio=a["log_ratio"].astype(bool)), "the column ratio of its log has dtype bool"),
        (lambda a, f: a.update(log_ratio=a["log_ratio"] * np.nan), "the column ratio of its log is not finite"),
        (lambda a, f: a.update(log_action=np.array(3)), "the column action of its log"),
        (
            lambda a, f: a.update(log_next=a["log_next"][:, None]),
            "the column next of its log has dtype int64 and shape",
        ),
        (lambda a, f: a.update(log_begins=a["log_begins"][:, None]), "the column begins of its log has dtype bool"),
        (lambda a, f: a.pop("log_episode"), "is not a valuefit evaluation"),
        (lambda a, f: a.update(theta=a["theta"] * np.nan), "weights"),
        (lambda a, f: a.pop("theta"), "is not a valuefit evaluation"),
        (lambda a, f: f.pop("notes"), "is not a valuefit evaluation"),
        (lambda a, f: f.update(format=7), "has evaluation format 7; this version of valuefit reads format 1"),
        (lambda a, f: f["result"].update(colour="red"), "is not a valuefit evaluation"),
        (lambda a, f: f["policy_value"].pop("level"), "is not a valuefit evaluation"),
        (lambda a, f: f.update(fingerprint=[1.0]), "are not those of"),
        (lambda a, f: f["policy_value"].update(estimate=123.0, interval=[0.0, 200.0]), "its policy value is 123, but"),
        (lambda a, f: f["policy_value"].update(estimate=123.0), "contradict each other"),
        (lambda a, f: f["policy_value"].update(standard_error="small"), "standard_error is not a finite number"),
        (lambda a, f: f["policy_value"].update(starts=[]), "the number of starts is not a whole number"),
        (lambda a, f: f["policy_value"].update(interval=3), "is not a valuefit evaluation"),
        (lambda a, f: a.update(theta=a["theta"] + 1), "its policy value is .*, but its weights give"),
        (lambda a, f: f.update(checks=3), "an entry has a value of the wrong type"),
        (lambda a, f: f.update(checks=[{"name": "range", "outcome": "pass"}]), "'statistic' is missing"),
        (lambda a, f: f.update(discount="0.9"), "discount is not a finite number"),
        (lambda a, f: f.update(ridge=[]), "ridge is not a finite number"),
        (lambda a, f: f.update(values="both"), "values or seed are not those of an evaluation"),
        (lambda a, f: f["result"].update(gap="small"), "gap is 'small', which no result has"),
        (lambda a, f: a.update(theta=np.array([{}], object)), "is not a valuefit evaluation"),
        (lambda a, f: f.update(whole=[3, 1]), "it is of 3 steps and 1 episodes"),
        (lambda a, f: f.update(whole=[1e9, 1]), "it is of 1000000000.0 steps and 1 episodes"),
        (lambda a, f: f.update(whole=[10**9, 0]), "it is of 1000000000 steps and 0 episodes"),
        (lambda a, f: f.update(whole=7), "an entry has a value of the wrong type"),
        (lambda a, f: f.update(follows={"steps": -1, "to_the_end": False}), "for how many steps the log follows"),
        (lambda a, f: f.update(follows={"steps": 3, "to_the_end": "yes"}), "for how many steps the log follows"),
        (lambda a, f: f.update(follows=[3]), "an entry has a value of the wrong type"),
        (lambda a, f: f.update(weight_errors=[WEIGHT_ERROR]), r"it has errors of 1 weights, but \d+ weights"),
        (lambda a, f: f.update(weight_errors=[{**WEIGHT_ERROR, "solver_error": "0"}]), "solver_error is not a finite"),
        (lambda a, f: f.update(weight_errors=[{}]), "'standard_error' is missing"),
    ],
)
def test_a_modified_file_is_refused(saved, change, message):
    rewrite(saved, change)
    with pytest.raises(ValueError, match=message):
        vf.Evaluation.load(saved, features=own_features)


def test_a_file_of_version_0_1_with_another_policy_value_is_refused(tmp_path):
    path = tmp_path / "evaluation.npz"
    path.write_bytes((ROOT / "tests" / "fixtures" / "version-0.1" / "evaluation.npz").read_bytes())
    rewrite(path, lambda arrays, facts: facts["policy_value"].update(estimate=123.0, interval=[0.0, 200.0]))
    with pytest.raises(ValueError, match="its policy value is 123, but its weights give"):
        vf.Evaluation.load(path)


def test_an_evaluation_over_given_starts_is_checked_when_it_is_loaded(tmp_path):
    path = vf.evaluate(wide_log(), starts=wide_log().observations[:3]).save(tmp_path / "evaluation.npz")
    assert vf.Evaluation.load(path).policy_value.starts == 3
    rewrite(path, lambda arrays, facts: facts["policy_value"].update(estimate=123.0, interval=[0.0, 200.0]))
    with pytest.raises(ValueError, match="its policy value is 123, but its weights give"):
        vf.Evaluation.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3}, {"name": "tiles", "options": {"tilings": "x"}}, {"options": {"order": [1]}}, {"shape": "x"},
        {"shape": [10**9]}, {"shape": None}, {"options": None}, {"options": {"low": {}}}, {"shape": [-1]},
    ],
)  # fmt: skip
def test_a_wrong_specification_of_features_is_refused(tmp_path, change):
    path = vf.evaluate(wide_log(), features="fourier:order=2").save(tmp_path / "evaluation.npz")
    rewrite(path, lambda arrays, facts: facts["spec"].update(change))
    with pytest.raises(ValueError, match="is not a valuefit evaluation"):
        vf.Evaluation.load(path)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.99])
def test_an_incomplete_file_is_refused(saved, part):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ValueError, match="is not a valuefit evaluation, or is incomplete"):
        vf.Evaluation.load(saved, features=own_features)


def test_a_file_that_declares_more_than_memory_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "bomb.npz"
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("theta.npy", header.ljust(127) + b"\n")
    with pytest.raises(ValueError, match="declares more numbers than it holds"):
        vf.Evaluation.load(path)


@pytest.mark.parametrize("error", DAMAGED)
@pytest.mark.parametrize("name", ["theta", "facts", "other"])
def test_a_damaged_header_is_refused(saved, error, name):
    replace_entry(saved, f"{name}.npy", damaged_npy(error))
    with pytest.raises(ValueError, match="is not a valuefit evaluation, or is incomplete"):
        vf.Evaluation.load(saved)


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        vf.Evaluation.load(tmp_path / "missing.npz")
