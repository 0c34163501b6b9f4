"""Saved evaluations: equal when loaded, user code must be given again and is checked, invalid files are refused."""

import json
import zipfile

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

import valuefit as vf
from helpers.npy_headers import DAMAGED, damaged_npy, replace_entry
from helpers.problems import wide_log
from helpers.small_mdp import SmallMDP
from valuefit.data.serialise import as_plain
from valuefit.features import Tiles
from valuefit.inference.errors import ErrorEstimate


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
    return vf.evaluate(wide_log(action=np.arange(400) % 2), features=own_features).save(tmp_path / "evaluation.npz")


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


def rewrite(path, change):
    """Apply `change` to the arrays and facts of the file."""
    with np.load(path) as stored:
        arrays = dict(stored)
    facts = json.loads(str(arrays["facts"]))
    change(arrays, facts)
    np.savez(path, **{**arrays, "facts": np.array(json.dumps(facts))})


def changed(name, change):
    """Change one array of the file."""
    return lambda arrays, facts: arrays.update({name: change(arrays[name])})


def updated(name, **entries):
    """Change entries of the facts, or of those of one field."""
    return lambda arrays, facts: (facts[name] if name else facts).update(entries)


WEIGHT_ERROR = as_plain(ErrorEstimate(1.0, 9.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("log.reward", lambda column: column[:-1]), "the column reward of its log has dtype float64 and shape"),
        (changed("log.now", lambda column: column + 1000), "point outside its observations"),
        (changed("log.now", lambda column: column - 1), "point outside its observations"),
        (changed("log.next", lambda column: column.astype(float)), "the column next of its log has dtype float64"),
        (changed("log.ratio", lambda column: column.astype(bool)), "the column ratio of its log has dtype bool"),
        (changed("log.ratio", lambda column: column * np.nan), "the column ratio of its log is not finite"),
        (changed("log.action", lambda column: np.array(3)), "the column action of its log"),
        (changed("log.next", lambda column: column[:, None]), "the column next of its log has dtype int64 and shape"),
        (changed("log.observations", lambda column: np.array("x")), "the column observations of its log has dtype <U1"),
        (lambda a, f: a.pop("log.episode"), "the array 'log.episode' is missing"),
        (lambda a, f: a.pop("log.action"), "the array 'log.action' is missing"),
        (changed("result.theta", lambda theta: theta * np.nan), "theta does not hold finite weights"),
        (changed("result.theta", lambda theta: np.array([{}], object)), "is not a valuefit evaluation"),
        (changed("result.theta", lambda theta: theta + 1), "its policy value is .*, but its weights give"),
        (changed("fingerprint", lambda rows: rows[:1]), "are not those of"),
        (changed("fingerprint", lambda rows: rows.astype(str)), "its fingerprint does not hold numbers"),
        (lambda a, f: f.pop("notes"), "'notes' is missing"),
        (updated("", format=7), "has evaluation format 7; this version of valuefit reads format 2"),
        (updated("result", colour="red"), "'result.colour' is unknown"),
        (updated("policy_value", estimate=123.0, interval=[0.0, 200.0]), "its policy value is 123, but"),
        (updated("policy_value", estimate=123.0), "contradict each other"),
        (updated("policy_value", standard_error=-1.0), "contradict each other"),
        (updated("policy_value", effective_episodes=None), "a standard error without an interval, or the reverse"),
        (updated("policy_value", starts=0), "or it has no starts"),
        (updated("policy_value", level=95), "the level of its interval is not between 0 and 1"),
        (updated("policy_value", method="cr2"), "policy_value.method is 'cr2', not 'cr3' or 'cr1'"),
        (updated("", values="both"), "values is 'both', not 'state' or 'state-action'"),
        (updated("", whole=[3, 1]), "it is of 3 steps and 1 episodes"),
        (updated("", whole=[10**9, 0]), "it is of 1000000000 steps and 0 episodes"),
        (updated("", follows={"steps": -1, "to_the_end": False}), "for how many steps the log follows"),
        (updated("", weight_errors=[WEIGHT_ERROR]), r"it has errors of 1 weights, but \d+ weights"),
        (updated("", policy={"name": "x", "table": None, "labels": ["a"]}), "the labels of its policy are not those"),
    ],
)
def test_a_modified_file_is_refused(saved, change, message):
    rewrite(saved, change)
    with pytest.raises(ValueError, match=message):
        vf.Evaluation.load(saved, features=own_features)


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
    rewrite(path, lambda arrays, facts: facts["features"].update(change))
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
@pytest.mark.parametrize("name", ["result.theta", "facts", "other"])
def test_a_damaged_header_is_refused(saved, error, name):
    replace_entry(saved, f"{name}.npy", damaged_npy(error))
    with pytest.raises(ValueError, match="is not a valuefit evaluation, or is incomplete"):
        vf.Evaluation.load(saved)


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        vf.Evaluation.load(tmp_path / "missing.npz")
