"""Target policies in every supported form, ratios of the logged actions, and invalid policies."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import valuefit as vf
from helpers.npy_headers import DAMAGED, damaged_npy
from valuefit.data.transitions import effective_sample_size
from valuefit.policies import policy as target
from valuefit.policies.importance import (
    action_probabilities,
    ratios,
    target_probabilities,
    with_ratios,
)
from valuefit.policies.policy import find_policy

TABLE = np.array([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0], [0.25, 0.25, 0.5], [0.0, 0.5, 0.5]])
STATES = np.array([0, 1, 2, 3, 2, 0])
ACTIONS = np.array([2, 0, 1, 1, 2, 0])
TARGET = np.array([0.7, 1.0, 0.25, 0.5, 0.5, 0.1])
BEHAVIOUR = np.array([0.5, 0.25, 0.5, 1.0, 0.125, 0.2])


def log_of(states=STATES, action=ACTIONS, behaviour_prob=BEHAVIOUR):
    n = len(states)
    return vf.Transitions.from_arrays(
        states, np.zeros(n), terminated=np.arange(n) == n - 1, action=action, behaviour_prob=behaviour_prob
    )


def rows_of(observations):
    return TABLE[np.asarray(observations, int).reshape(len(observations))]


def of_logged(observations, actions):
    return rows_of(observations)[np.arange(len(actions)), np.asarray(actions, int)]


def files_of(folder):
    np.save(folder / "table.npy", TABLE.astype(np.float32))
    np.save(folder / "steps.npy", TARGET)
    np.savetxt(folder / "bare.csv", TABLE, delimiter=",")
    np.savetxt(folder / "steps.csv", TARGET, header="target_prob", comments="")
    np.savetxt(folder / "steps.txt", TARGET)
    np.savetxt(folder / "table.txt", TABLE)
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    "policy",
    [
        rows_of,
        of_logged,
        TABLE,
        TABLE.tolist(),
        TARGET,
        TARGET.tolist(),
        TARGET[:, None],
        lambda obs, k=1: rows_of(obs),
    ],
    ids=["f(obs)", "f(obs, act)", "table", "list", "steps", "list of steps", "column of steps", "f(obs, option)"],
)
def test_every_form_of_a_policy_gives_the_probabilities_of_the_logged_actions(policy):
    np.testing.assert_allclose(target_probabilities(policy, log_of()), TARGET, rtol=1e-12)
    np.testing.assert_allclose(ratios(policy, log_of()), TARGET / BEHAVIOUR, rtol=1e-12)


def test_policies_are_read_from_files(tmp_path):
    files = files_of(tmp_path)
    assert len(files) == 6
    for path in files:
        np.testing.assert_allclose(target_probabilities(path, log_of()), TARGET, rtol=1e-6)
        np.testing.assert_allclose(target_probabilities(str(path), log_of()), TARGET, rtol=1e-6)


def test_observations_may_be_a_column_of_whole_floats():
    log = log_of(states=STATES[:, None].astype(float))
    np.testing.assert_allclose(target_probabilities(TABLE, log), TARGET, rtol=1e-12)
    np.testing.assert_allclose(target_probabilities(rows_of, log), TARGET, rtol=1e-12)


@pytest.mark.parametrize("policy", [rows_of, of_logged, TABLE], ids=["f(obs)", "f(obs, act)", "table"])
def test_probabilities_of_all_actions(policy):
    np.testing.assert_allclose(action_probabilities(policy, np.array([2, 0]), 3), TABLE[[2, 0]], rtol=1e-12)


@pytest.mark.parametrize("kind", ["rows", "logged", "table"])
def test_the_ratio_is_of_the_logged_action_and_no_action_is_sampled(kind):
    """Some libraries sample an action from the policy; the ratios of other actions are far from the right ones."""
    rng = np.random.default_rng(0)
    states, action = rng.integers(0, 4, 500), rng.integers(0, 3, 500)
    table = rng.dirichlet([0.2, 0.2, 0.2], 4)
    policy = {"rows": lambda obs: table[obs], "logged": lambda obs, act: table[obs, act], "table": table}[kind]
    log = log_of(states, action, np.full(500, 1 / 3))
    before = np.random.get_state()[1].copy()  # noqa: NPY002  (the global generator must not be used)
    found = ratios(policy, log)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    expected = np.array([3 * table[s, a] for s, a in zip(states, action, strict=True)])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(found, ratios(policy, log))
    elsewhere = np.array([3 * table[s, (a + 1) % 3] for s, a in zip(states, action, strict=True)])
    assert not np.allclose(found, elsewhere, rtol=0.1)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_policy_of_the_log_gives_the_evaluation_of_the_log(dtype):
    """Its probabilities are computed again, with other last bits, or were logged as float32."""
    rng = np.random.default_rng(0)
    states, exact = rng.integers(0, 3, 400), np.array([[1, 2, 4], [3, 3, 1], [1, 5, 1]]) / 7
    actions = np.array([rng.choice(3, p=exact[state]) for state in states])
    logged = (exact.astype(dtype) * (1 + 2e-16))[states, actions]
    log = vf.Transitions.from_arrays(
        states, rng.normal(size=400), action=actions, behaviour_prob=logged, terminated=np.arange(400) % 8 == 7
    )
    plain, same = vf.evaluate(log, discount=0.9), vf.evaluate(log, policy=exact, discount=0.9)
    assert same.policy_value == plain.policy_value
    assert [(check.name, check.outcome) for check in same.checks] == [(c.name, c.outcome) for c in plain.checks]


def test_a_policy_sees_each_distinct_observation_once():
    seen = []

    def policy(observations):
        seen.append(np.array(observations))
        return rows_of(observations)

    target_probabilities(policy, log_of())
    assert [call.tolist() for call in seen] == [[0, 1, 2, 3]]


def test_with_ratios_replaces_the_ratios_of_the_log():
    log = with_ratios(log_of(), TABLE)
    np.testing.assert_allclose(log.ratio, TARGET / BEHAVIOUR, rtol=1e-12)
    assert "off-policy" in repr(log)
    assert not log.ratio.flags.writeable
    assert len(with_ratios(log_of()[1:4], TABLE)) == 3


def test_densities_of_continuous_actions_may_exceed_one():
    rng = np.random.default_rng(0)
    action = rng.standard_normal((6, 2))
    log = log_of(rng.standard_normal((6, 3)), action, np.full(6, 0.5))
    density = np.exp(-50 * (action**2).sum(axis=1)) * 50 / np.pi + 2
    np.testing.assert_allclose(ratios(lambda obs, act: density, log), density / 0.5)
    np.testing.assert_allclose(ratios(density, log), density / 0.5)
    with pytest.raises(ValueError, match=r"not whole numbers. For continuous actions give a policy"):
        ratios(lambda obs: np.ones((len(obs), 1)), log)


def test_float32_rounding_is_tolerated():
    table = np.full((4, 3), 1 / 3, np.float32) + np.float32(1e-7)
    np.testing.assert_allclose(action_probabilities(lambda obs: table[obs], STATES, 3), 1 / 3, rtol=1e-12)
    assert (target_probabilities(np.full(6, np.float32(1) + np.float32(2e-7)), log_of()) == 1).all()


# ---- functions by name -----------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_policy.py").write_text(
        "import numpy as np\nclass Greedy:\n    @staticmethod\n    def chances(obs):\n"
        "        return np.tile([0.5, 0.25, 0.25], (len(obs), 1))\nchances = Greedy.chances\nnumber = 3\n"
    )
    (tmp_path / "broken_policy.py").write_text("import no_such_thing_at_all\n")
    (tmp_path / "failing_policy.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)


def test_a_function_by_name_is_found_in_the_working_directory(module):
    for name in ("my_policy:chances", "my_policy:Greedy.chances"):
        policy = find_policy(name, allow_code=True)
        assert target_probabilities(policy, log_of()).tolist() == [0.25, 0.5, 0.25, 0.25, 0.25, 0.5]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_policy:chanses", "has no 'chanses'. Did you mean 'chances'"),
        ("my_policy:Greedy.x", "has no 'x'"),
        ("my_policy:nope", r"'my_policy' has no 'nope'\.$"),  # not 'np', which it imports
        ("my_policy:number", "is int, not a function"),
        ("no_such_policy:f", "There is no module 'no_such_policy'"),
        ("broken_policy:f", "Importing 'broken_policy' for the policy failed: No module named 'no_such_thing_at_all'"),
        ("failing_policy:f", "failed: ZeroDivisionError"),
        ("my-policy:f", 'not of the form "module:function"'),
        ("my_policy:f()", 'not of the form "module:function"'),
        (":f", 'not of the form "module:function"'),
    ],
)
def test_an_invalid_function_name_is_refused(module, name, message):
    with pytest.raises(ValueError, match=message):
        find_policy(name, allow_code=True)


def test_code_runs_only_where_it_is_allowed(module, tmp_path):
    (tmp_path / "trap.py").write_text("open('ran', 'w').close()\n")
    with pytest.raises(ValueError, match=r"would run code.*Repeat it on the command line"):
        find_policy("trap:f")
    assert not (tmp_path / "ran").exists()


# ---- invalid policies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (np.log(TABLE + 0.01), "probability -2.2.* at 0, 0. Are these log-probabilities"),
        (np.log(TARGET), "log-probabilities"),
        (lambda obs: np.log(rows_of(obs) + 0.01), "log-probabilities"),
        (lambda obs, act: np.log(of_logged(obs, act)), "log-probabilities"),
        (2 * TARGET, "probability 1.4 at 0"),
        (TABLE * 0.9, "sum to 0.9 in row 0, not to 1"),
        (lambda obs: rows_of(obs)[:, :2], "sum to 0.3 in row 0"),
        (np.where(TABLE == 0.7, np.nan, TABLE), "probability nan at 0, 2"),
        (np.full(6, np.inf), "probability inf"),
        (TARGET[:5], "5 probabilities but the log has 6 steps"),
        (TABLE[:3], "State 3 has no row in the policy, whose 3 rows are states 0 to 2"),
        (np.full((4, 2), 0.5), "Step 0 took action 2, but the policy has 2 actions, 0 to 1"),
        (lambda obs: np.argmax(rows_of(obs), axis=1), r"shape \(4,\) for 4 observations.*looks like actions"),
        (lambda obs: rows_of(obs)[:2], r"shape \(2, 3\) for 4 observations"),
        (lambda obs, act: rows_of(obs), r"shape \(6, 3\) for 6 observations and actions"),
        (lambda obs: np.array(["a"] * len(obs))[:, None], "not numeric"),
        (lambda a, b, c: None, "takes 3 arguments"),
        (np.array(["a", "b"]), "not numeric"),
        (np.ones((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (np.array(0.5), r"shape \(\)"),
        (np.zeros(6), "probability 0 to every logged action"),
        (None, "policy is NoneType; give a callable"),
        ("greedy", 'neither "module:function" nor a file'),
        ("missing.npy", "There is no policy file missing.npy"),
    ],
)
def test_an_invalid_policy_is_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        ratios(policy, log_of())


def test_logs_that_do_not_fit_the_policy_are_refused():
    with pytest.raises(ValueError, match='Either give behaviour_prob, or use `values="state-action"`'):
        ratios(TABLE, log_of(behaviour_prob=None))
    with pytest.raises(ValueError, match="no actions, so their probabilities under the policy are unknown"):
        ratios(TABLE, log_of(action=None))
    with pytest.raises(ValueError, match="action -1; actions are numbered from 0"):
        ratios(TABLE, log_of(action=ACTIONS - 1))
    with pytest.raises(ValueError, match=r"not whole numbers. Give a callable"):
        ratios(TABLE, log_of(states=STATES + 0.5))
    with pytest.raises(ValueError, match="State -1 has no row"):
        ratios(TABLE, log_of(states=STATES - 1))
    with pytest.raises(ValueError, match=r"dtype complex128, which is not numeric. Number them from 0"):
        ratios(TABLE, replace(log_of(), action=np.zeros(6, complex)))
    with pytest.raises(ValueError, match="too small to divide by"):
        ratios(TABLE, replace(log_of(), behaviour_prob=np.full(6, 1e-320)))
    with pytest.raises(ValueError, match="logged action only"):
        action_probabilities(TARGET, STATES, 3)
    with pytest.raises(ValueError, match="gives 3 actions where 4 are expected"):
        action_probabilities(TABLE, STATES, 4)
    with pytest.raises(ValueError, match="give the number of actions"):
        action_probabilities(of_logged, STATES, None)


def test_files_without_probabilities_are_refused(tmp_path, monkeypatch):
    np.save(tmp_path / "pickled.npy", np.array([{}, []], object), allow_pickle=True)
    (tmp_path / "words.csv").write_text("a,b\nleft,right\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "ragged.csv").write_text("0.5,0.5\n1\n")
    np.save(tmp_path / "short.npy", TABLE)
    cut = (tmp_path / "short.npy").read_bytes()[:-20]
    (tmp_path / "short.npy").write_bytes(cut)
    for name in ("pickled.npy", "words.csv", "empty.txt", "ragged.csv", "short.npy"):
        with pytest.raises(ValueError, match="cannot be read as numbers"):
            find_policy(tmp_path / name)
    np.save(tmp_path / "large.npy", TABLE)
    np.savetxt(tmp_path / "large.csv", TABLE, delimiter=",")
    monkeypatch.setattr(target, "MAX_POLICY_BYTES", 90)
    for name in ("large.npy", "large.csv"):
        with pytest.raises(ValueError, match=r"may take .* GiB of memory"):
            find_policy(tmp_path / name)


@pytest.mark.parametrize("error", DAMAGED)
def test_a_damaged_header_of_a_policy_or_of_starts_is_refused(error, tmp_path):
    path = tmp_path / "policy.npy"
    path.write_bytes(damaged_npy(error))
    with pytest.raises(ValueError, match=r"policy file .*policy\.npy cannot be read as numbers"):
        find_policy(path)
    with pytest.raises(ValueError, match=r"The file of starts .*policy\.npy cannot be read as numbers"):
        target.read_numbers(path, "file of starts")


@given(st.lists(st.floats(0, 1e200), min_size=1, max_size=30))
def test_effective_sample_size_lies_between_one_and_all(weights):
    size = effective_sample_size(weights)
    if any(weights):
        assert 1 - 1e-9 <= size <= len(weights) + 1e-9
    else:
        assert size == 0


def test_effective_sample_size_counts_equal_weights():
    assert effective_sample_size([2, 2, 2, 0]) == pytest.approx(3)
    assert effective_sample_size([3, 1]) == pytest.approx(1.6)
    assert effective_sample_size([1e300, 1e300]) == pytest.approx(2)


def test_policies_do_not_import_scikit_learn():
    code = "import sys, valuefit.policies.policy; assert 'sklearn' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- policies that raise an error ----------------------------------------------------------------------------


def log_of_patients(gaps):
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(rng.normal(size=(200, 3)), columns=["age", "severity", "lab"])
    frame = frame.assign(action=rng.integers(0, 2, 200), reward=frame["age"], behaviour_prob=0.5)
    frame = frame.assign(terminated=np.arange(200) % 10 == 9)
    if gaps:
        frame["lab"] = frame["lab"].where(rng.random(200) < 0.8)
    return frame, vf.load(frame, columns={"obs": ["age", "severity", "lab"]}, missing="flag")


def test_a_policy_that_refuses_gaps_is_told_to_fill_them():
    frame, log = log_of_patients(gaps=True)
    X, actions = log.filling.raw(log.observations[log.now]), frame["action"]
    classifier = LogisticRegression().fit(np.nan_to_num(X), actions)
    with pytest.raises(ValueError, match=r"LogisticRegression failed with ValueError: Input X contains NaN\.") as error:
        vf.evaluate(log, policy=classifier, discount=0.9, features="identity")
    assert "drop" not in str(error.value)
    assert "fill the gaps inside of it, for example with a SimpleImputer in a Pipeline" in str(error.value)
    assert isinstance(error.value.__cause__, ValueError)
    filled = make_pipeline(SimpleImputer(), LogisticRegression()).fit(X, actions)
    assert np.isfinite(vf.evaluate(log, policy=filled, discount=0.9, features="identity").policy_value.estimate)


@pytest.mark.parametrize("actions", [False, True])
def test_a_policy_that_fails_is_told_its_columns(actions):
    _, log = log_of_patients(gaps=False)
    failing = (lambda x, a: x["severity"]) if actions else (lambda x: x["severity"])
    with pytest.raises(ValueError, match=r"failed with IndexError: .*test_policy.py, line \d+\)") as error:
        vf.evaluate(log, policy=failing, discount=0.9, features="identity")
    called = "an array of observations of shape (200, 3) with the columns 'age', 'severity', 'lab'"
    assert called in str(error.value)
    assert isinstance(error.value.__cause__, IndexError)

    def following(x, a=None):
        high = 1 / (1 + np.exp(-x[:, 1]))
        return np.stack([1 - high, high], axis=1)

    assert np.isfinite(vf.evaluate(log, policy=following, discount=0.9, features="identity").policy_value.estimate)


def test_a_classifier_of_other_columns_is_told_those_of_the_log():
    frame, log = log_of_patients(gaps=False)
    classifier = LogisticRegression().fit(frame[["age", "severity"]].to_numpy(), frame["action"])
    with pytest.raises(ValueError, match=r"X has 3 features, but .* with the columns 'age', 'severity', 'lab'\. It "):
        vf.evaluate(log, policy=classifier, discount=0.9, features="identity")


def test_features_that_fail_say_what_they_were_called_with():
    _, log = log_of_patients(gaps=False)
    with pytest.raises(ValueError, match=r"features failed with IndexError: .* of shape \(1, 3\)"):
        vf.evaluate(log, discount=0.9, features=lambda x: x["severity"])
