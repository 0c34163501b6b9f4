"""Policies whose columns have labels are matched to the actions of the log by name, or refused with both lists."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import valuefit as vf
from helpers.streamed import KINDS, in_shards, log_with_actions, with_text_actions
from valuefit.data import shards
from valuefit.policies.importance import ratios, target_probabilities

DOSES = np.array(["none", "low", "high"])  # actions 0, 1, 2 by number; by name their order is high, low, none
SETTINGS = {"discount": 0.9, "features": "fourier:order=2"}


def dose_log(*, text, steps=20, episodes=150, seed=0):
    """Patients whose severity falls with the dose; actions are names, or numbers 0, 1, 2."""
    rng = np.random.default_rng(seed)
    severity, columns = rng.normal(1, 0.5, episodes), []
    for step in range(steps):
        dose = rng.integers(0, 3, episodes)
        after = 0.9 * severity - 0.2 * dose + 0.1 * rng.normal(size=episodes)
        columns.append((np.arange(episodes), np.full(episodes, step), severity, dose, -severity - 0.1 * dose, after))
        severity = after
    episode, step, now, dose, reward, after = map(np.concatenate, zip(*columns, strict=True))
    order = np.lexsort((step, episode))
    return vf.Transitions.from_arrays(
        now[order][:, None], reward[order], episode=episode[order], next_observation=after[order][:, None],
        action=(DOSES[dose] if text else dose)[order], behaviour_prob=np.full(len(dose), 1 / 3),
    )  # fmt: skip


NUMBERED, NAMED = dose_log(text=False), dose_log(text=True)
RNG = np.random.default_rng(1)
SEEN = RNG.normal(0, 1, (2000, 1))
GIVEN = np.clip((SEEN[:, 0] + 0.5 * RNG.normal(size=2000) + 0.5).astype(int), 0, 2)  # more to the severe
BY_NUMBER = LogisticRegression().fit(SEEN, GIVEN)
BY_NAME = LogisticRegression().fit(SEEN, DOSES[GIVEN])


def by_number(observations):
    """The probabilities of none, low and high."""
    return BY_NUMBER.predict_proba(observations)


def as_mapping(observations):
    return dict(zip(DOSES, by_number(observations).T, strict=True))


def in_order(observations):
    return by_number(observations)[:, ::-1]  # high, low, none


def of_taken(observations, actions):
    column = {dose: number for number, dose in enumerate(DOSES)}
    return by_number(observations)[np.arange(len(actions)), [column[str(action)] for action in actions]]


NAMED_POLICIES = {
    "classifier": BY_NAME,
    "predict_proba": BY_NAME.predict_proba,
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()).fit(SEEN, DOSES[GIVEN]),
    "mapping": as_mapping,
    "pandas": lambda observations: pd.DataFrame(as_mapping(observations)),
    "in order": in_order,
    "of taken": of_taken,
}


@pytest.mark.parametrize("values", ["state", "state-action"])
@pytest.mark.parametrize("kind", NAMED_POLICIES)
def test_a_policy_with_names_has_the_value_of_the_one_with_numbers(kind, values):
    expected = vf.evaluate(NUMBERED, policy=by_number, values=values, **SETTINGS)
    named = vf.evaluate(NAMED, policy=NAMED_POLICIES[kind], values=values, **SETTINGS)
    tolerance = 0.02 if kind == "pipeline" else 1e-6  # its penalty is that of scaled observations
    assert named.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=tolerance)
    assert named.policy_value.standard_error == pytest.approx(expected.policy_value.standard_error, rel=5 * tolerance)


def test_text_labels_are_refused_where_the_log_has_numbers_and_the_advice_gives_the_right_value():
    """Its columns are in the order high, low, none; by position they would be taken for none, low, high."""
    with pytest.raises(ValueError, match=r"knows the actions 'high', 'low', 'none'; the log has 0, 1, 2\. Give both"):
        vf.evaluate(NUMBERED, policy=BY_NAME, **SETTINGS)
    expected = vf.evaluate(NUMBERED, policy=by_number, **SETTINGS).policy_value.estimate
    text = vf.Transitions.from_arrays(
        NUMBERED.observations[NUMBERED.now], NUMBERED.reward, episode=NUMBERED.episode,
        next_observation=NUMBERED.observations[NUMBERED.next], action=DOSES[NUMBERED.action],
        behaviour_prob=NUMBERED.behaviour_prob,
    )  # fmt: skip
    same_labels = vf.evaluate(text, policy=BY_NAME, **SETTINGS)
    without = vf.evaluate(NUMBERED, policy=lambda s: BY_NAME.predict_proba(s)[:, [2, 1, 0]], **SETTINGS)
    for evaluation in (same_labels, without):
        assert evaluation.policy_value.estimate == pytest.approx(expected, rel=1e-6)
    wrong = vf.evaluate(NUMBERED, policy=lambda s: BY_NAME.predict_proba(s), **SETTINGS).policy_value.estimate
    assert abs(wrong / expected - 1) > 0.05  # what a match by position gives


@pytest.mark.parametrize(
    ("log", "policy", "message"),
    [
        (NAMED, BY_NUMBER, r"LogisticRegression knows the actions 0, 1, 2; the log has 'high', 'low', 'none'"),
        (NAMED, lambda s: {"High": by_number(s)[:, 2], "low": by_number(s)[:, 1], "none": by_number(s)[:, 0]},
         r"knows the actions 'High', 'low', 'none'; the log has 'high', 'low', 'none'"),
        (NAMED, lambda s: by_number(s)[:, :2], r"of 2 actions, without their names; the log has 3: 'high', 'low', 'no"),
        (NAMED, lambda s: np.full((len(s), 4), 0.25), r"of 4 actions, without their names; the log has 3.*a mapping"),
        (NUMBERED, lambda s: pd.DataFrame(as_mapping(s)), r"knows the actions 'none', 'low', 'high'; the log has 0, 1"),
        (NUMBERED, lambda s: np.full((len(s), 2), 0.5), r"has 2 actions, 0 to 1; the log has 0, 1, 2"),
        (NUMBERED, {"none": 1.0}, r"The policy knows the actions 'none'; the log has 0, 1, 2"),
        (NUMBERED, {0: 0.5, 1: 0.2, 2: 0.2, 5: 0.1}, r"knows the actions 0, 1, 2, 5; the log has 0, 1, 2"),
        (NAMED, {"none": "x"}, r"'none' of The policy.*dtype|not numeric"),
        (NAMED, {("none", 1): 1.0}, r"probabilities of \['none', 1\], but an action is one number or one text"),
        (NAMED, DecisionTreeClassifier().fit(SEEN, np.column_stack([GIVEN, GIVEN])), "predicts several outputs"),
        (NAMED, lambda s: {"none": np.ones(len(s)), "low": np.zeros(3)}, "one number for each observation, for each"),
        (NAMED, {}, "for each of its actions"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("values", ["state", "state-action"])
def test_other_labels_are_refused_with_both_lists(log, policy, message, values):
    with pytest.raises(ValueError, match=message):
        vf.evaluate(log, policy=policy, values=values, **SETTINGS)


@pytest.mark.parametrize("log", [NUMBERED, NAMED], ids=["numbers", "names"])
def test_an_action_that_the_policy_does_not_know_has_probability_0_and_a_note_says_so(log):
    labels = DOSES if log is NAMED else np.arange(3)
    partial_knowledge = LogisticRegression().fit(SEEN, labels[np.where(GIVEN == 1, 2, GIVEN)])
    middle = labels[1]
    np.testing.assert_array_equal(ratios(partial_knowledge, log) == 0, log.action == 1)
    evaluation = vf.evaluate(log, policy=partial_knowledge, **SETTINGS)
    note = f"LogisticRegression does not know {middle.item()!r}: its probability of these actions is 0."
    assert note in evaluation.notes

    def in_three_columns(observations):
        return np.insert(partial_knowledge.predict_proba(observations)[:, :: 1 if log is NUMBERED else -1], 1, 0, 1)

    expected = vf.evaluate(NUMBERED, policy=in_three_columns, **SETTINGS)
    assert evaluation.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-9)


def test_an_action_that_the_log_lacks_is_refused_by_name_where_its_value_is_needed():
    policy = {"none": 0.2, "low": 0.3, "high": 0.4, "very high": 0.1}
    with pytest.raises(ValueError, match=r"takes action 'very high' with probability 0\.1 on average, but the"):
        vf.evaluate(NAMED, policy=policy, values="state-action", **SETTINGS)
    rarely = {"none": 0.3, "low": 0.3, "high": 0.395, "very high": 0.005}
    vf.evaluate(NAMED, policy=rarely, values="state-action", **SETTINGS)  # at most 1% is allowed


@pytest.mark.parametrize(
    "labels", [np.array([False, True]), [0.0, 1.0], [np.int8(0), 1], np.array([True, False])], ids=str
)
def test_boolean_and_whole_labels_are_numbers(labels):
    log = log_with_actions(20)
    policy = dict(zip(labels, [0.3, 0.7], strict=True))
    column = {int(label): probability for label, probability in policy.items()}
    expected = np.array([column[action] for action in log.action.tolist()])
    np.testing.assert_array_equal(target_probabilities(policy, log), expected)
    classes = np.where(log.action == 1, True, False)
    booleans = replace(log, action=classes)._frozen()
    np.testing.assert_array_equal(target_probabilities(policy, booleans), expected)


@pytest.mark.parametrize("kind", ["text", "bytes", "objects", "pandas", "categories"])
def test_text_of_every_kind_names_actions(kind):
    given = {
        "text": DOSES[NUMBERED.action], "bytes": np.array([b"none", b"low", b"high"])[NUMBERED.action],
        "objects": DOSES[NUMBERED.action].astype(object), "pandas": pd.Series(DOSES[NUMBERED.action]),
        "categories": pd.Series(DOSES[NUMBERED.action], dtype="category"),
    }[kind]  # fmt: skip
    log = vf.Transitions.from_arrays(
        NUMBERED.observations[NUMBERED.now], NUMBERED.reward, episode=NUMBERED.episode,
        next_observation=NUMBERED.observations[NUMBERED.next], action=given, behaviour_prob=NUMBERED.behaviour_prob,
    )  # fmt: skip
    assert log.action_names.tolist() == ["high", "low", "none"]
    np.testing.assert_array_equal(log.action, 2 - NUMBERED.action)
    np.testing.assert_array_equal(ratios(BY_NAME, log), ratios(BY_NAME, NAMED))


def test_tables_and_mappings_over_states_are_matched_by_name(tmp_path):
    rng = np.random.default_rng(0)
    states, action = rng.integers(0, 4, 400), rng.integers(0, 3, 400)
    table = rng.dirichlet([1, 1, 1], 4)  # none, low, high
    columns = {
        "reward": rng.normal(size=400),
        "terminated": np.arange(400) % 10 == 9,
        "behaviour_prob": np.full(400, 1 / 3),
    }
    log = vf.Transitions.from_arrays(states, action=DOSES[action], **columns)
    expected = table[states, action]
    pd.DataFrame(table, columns=DOSES).to_csv(tmp_path / "table.csv", index=False)
    np.savetxt(tmp_path / "bare.csv", table[:, ::-1], delimiter=",")  # in the order of the names
    forms = [
        dict(zip(DOSES, table.T, strict=True)), pd.DataFrame(table, columns=DOSES), table[:, ::-1],
        tmp_path / "table.csv", tmp_path / "bare.csv",
    ]  # fmt: skip
    for policy in forms:
        np.testing.assert_allclose(target_probabilities(policy, log), expected, rtol=1e-9)
    with pytest.raises(ValueError, match=r"table\.csv knows the actions 'none', 'low', 'high'; the log has 0, 1, 2"):
        target_probabilities(tmp_path / "table.csv", vf.Transitions.from_arrays(states, action=action, **columns))
    settings = {"values": "state-action", "discount": 0.9}
    evaluation = vf.evaluate(log, policy=forms[0], **settings)
    loaded = vf.Evaluation.load(evaluation.save(tmp_path / "evaluation.npz"))
    assert loaded.policy.table.shape == (4, 3)
    np.testing.assert_array_equal(loaded.value([0, 1], ["low", "none"]), evaluation.value([0, 1], [1, 2]))
    by_number = vf.evaluate(vf.Transitions.from_arrays(states, action=action, **columns), policy=table, **settings)
    np.testing.assert_allclose(loaded.value([0, 1], ["low", "none"]), by_number.value([0, 1], [1, 0]), rtol=1e-9)
    odds = [1.0, 1.5]
    np.testing.assert_allclose(loaded.sensitivity(odds).lower, by_number.sensitivity(odds).lower, rtol=1e-9)


def test_a_saved_evaluation_keeps_the_labels_of_actions_that_the_log_lacks(tmp_path):
    log = vf.Transitions.from_arrays(
        [0, 1] * 50, np.arange(100.0), action=["b", "a"] * 50, terminated=[0, 0, 0, 1] * 25
    )
    policy = {"b": [0.5, 0.995], "a": [0.495, 0.0], "c": [0.005, 0.005]}
    evaluation = vf.evaluate(log, policy=policy, values="state-action", discount=0.5)
    loaded = vf.Evaluation.load(evaluation.save(tmp_path / "evaluation.npz"))
    assert loaded.policy.labels == ("a", "b", "c")
    np.testing.assert_array_equal(loaded.value([0, 1]), evaluation.value([0, 1]))


def test_names_of_actions_are_in_checks_notes_json_summary_and_report(tmp_path):
    log = NAMED[np.isin(np.arange(len(NAMED)), np.flatnonzero(NAMED.action == 0)[10:], invert=True)]  # few "high"
    policy = {"none": 0.2, "low": 0.2, "high": 0.6}
    evaluation = vf.evaluate(log, policy=policy, values="state-action", **SETTINGS)
    overlap = next(check for check in evaluation.checks if check.name == "overlap")
    assert "10 of action 'high'" in overlap.message
    facts = evaluation.to_dict()
    assert facts["actions"] == ["high", "low", "none"]
    listed = "The actions are, in the order of columns without names: 'high', 'low', 'none'."
    assert listed in facts["notes"]
    assert listed in " ".join(evaluation.summary().split())
    page = evaluation.report(tmp_path / "report.html").read_text()
    assert "action &#39;high&#39;" in page


def test_values_of_actions_by_name_are_those_by_number():
    evaluation = vf.evaluate(NAMED, policy=BY_NAME, values="state-action", **SETTINGS)
    np.testing.assert_array_equal(
        evaluation.value([[0.0], [1.0]], ["none", "low"]), evaluation.value([[0.0], [1.0]], [2, 1])
    )
    with pytest.raises(ValueError, match="There is no action 'medium' in this log"):
        evaluation.value([[0.0]], ["medium"])
    numbered = vf.evaluate(NUMBERED, policy=by_number, values="state-action", **SETTINGS)
    with pytest.raises(ValueError, match="The log numbers its actions and has no names for them"):
        numbered.value([[0.0]], ["low"])


@pytest.mark.parametrize("values", ["state", "state-action"])
@pytest.mark.parametrize("kind", [*(kind for kind in KINDS if kind != "minari"), "files"])
def test_text_actions_are_numbered_alike_in_all_shards(kind, values, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)
    log = with_text_actions(log_with_actions(), {0: "wait", 1: "push"}, rare="hit")  # "hit" in the last shards alone
    policy = {"wait": 0.5, "push": 0.3, "hit": 0.2}
    sharded = in_shards(log, tmp_path, kind)
    assert len(sharded.shards) >= 5
    settings = {**SETTINGS, "policy": policy, "values": values}
    expected, evaluation = vf.evaluate(log, tol=1e-12, **settings), vf.evaluate(sharded, **settings)
    assert evaluation.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-8)
    assert evaluation.policy_value.interval == pytest.approx(expected.policy_value.interval, rel=1e-7)
    assert evaluation.log.action_names.tolist() == ["hit", "push", "wait"]
    for shard in sharded.shards:
        assert shard.read().action_names.tolist() == ["hit", "push", "wait"]
    with pytest.raises(ValueError, match=r"knows the actions 'left', 'right'; the log has 'hit', 'push', 'wait'"):
        vf.evaluate(sharded, **{**settings, "policy": {"left": 0.5, "right": 0.5}})


def test_select_and_compare_take_names():
    table = {"features": ["fourier:order=1", "fourier:order=2"]}
    named = vf.select(NAMED, table, policy=BY_NAME, values="state-action", discount=0.9)
    numbered = vf.select(NUMBERED, table, policy=by_number, values="state-action", discount=0.9)
    assert named.policy_value.estimate == pytest.approx(numbered.policy_value.estimate, rel=1e-6)
    evaluations = [vf.evaluate(NAMED, policy=one, **SETTINGS) for one in (BY_NAME, {"none": 1.0})]
    numbers = [vf.evaluate(NUMBERED, policy=one, **SETTINGS) for one in (by_number, {0: 1.0})]
    assert vf.compare(*evaluations).estimate == pytest.approx(vf.compare(*numbers).estimate, rel=1e-6)


def test_a_function_of_a_classifier_by_keyword_still_works():
    """A partial has no classes, so its columns are taken in the order of the log's actions."""
    np.testing.assert_allclose(ratios(partial(BY_NAME.predict_proba), NAMED), ratios(BY_NAME, NAMED))


def rows_in_order(observations):
    """As `in_order`, from a function that hides the names of its classifier."""
    return BY_NAME.predict_proba(observations)


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_columns_without_names_warn_with_the_order_and_the_advice_gives_the_right_value(values):
    settings = {**SETTINGS, "values": values}
    expected = vf.evaluate(NUMBERED, policy=by_number, **settings).policy_value
    wrong = vf.evaluate(NAMED, policy=by_number, **settings)  # in the order of the doses, not of their names
    check = {check.name: check for check in wrong.checks}["order of actions"]
    assert (check.outcome, check.statistic) == ("warn", 3)
    assert "taken in the sorted order of the actions: 'high', 'low', 'none'." in check.message
    assert abs(wrong.policy_value.estimate - expected.estimate) > 3 * expected.standard_error
    assert "order of actions" not in {
        check.name for check in vf.evaluate(NUMBERED, policy=by_number, **settings).checks
    }
    for policy in (as_mapping, NAMED_POLICIES["pandas"]):
        named = vf.evaluate(NAMED, policy=policy, **settings)
        assert {check.name: check.outcome for check in named.checks}["order of actions"] == "pass"
        assert named.policy_value.estimate == pytest.approx(expected.estimate)
    hidden, itself = (vf.evaluate(NAMED, policy=policy, **settings) for policy in (rows_in_order, BY_NAME))
    found = [{check.name: check.outcome for check in one.checks}["order of actions"] for one in (hidden, itself)]
    assert found == ["warn", "pass"]


def test_tables_without_names_warn_and_functions_of_the_actions_do_not():
    names, table = np.array(["treat", "wait"]), np.array([[0.2, 0.8], [0.6, 0.4]])
    rng = np.random.default_rng(0)
    state, action = rng.integers(0, 2, 400), rng.integers(0, 2, 400)
    log = vf.Transitions.from_arrays(
        state, state + action + rng.normal(size=400), action=names[action], behaviour_prob=np.full(400, 0.5),
        terminated=np.arange(400) % 4 == 3,
    )  # fmt: skip
    policies = {
        "warn": table, "pass": dict(zip(names, table.T, strict=True)),
        None: lambda states, actions: table[states, (actions == "wait").astype(int)],
    }  # fmt: skip
    for outcome, policy in policies.items():
        found = vf.evaluate(log, policy=policy, discount=0.5)
        assert {check.name: check.outcome for check in found.checks}.get("order of actions") == outcome
