"""`select`: the choice, the two halves, the filter by checks, the verdict, text, refusals."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import valuefit as vf
from helpers import missing_pair
from helpers.small_mdp import STATES, SmallMDP
from valuefit.checks.numerics import small_sample_bias
from valuefit.evaluation import selection
from valuefit.evaluation.criterion import Score
from valuefit.evaluation.scoring import Scored
from valuefit.evaluation.selection import ALL_REJECTED, SAME_EPISODES, preference
from valuefit.inference.error_estimate import ErrorEstimate
from valuefit.inference.policy_value import with_errors

MDP = SmallMDP(off_policy=True, seed=1)
POLICY = np.tile([0.7, 0.3], (STATES, 1))
LOG = MDP.log(60, propensities=True)


def constant(states):
    return np.ones((len(np.asarray(states).ravel()), 1))


CANDIDATES = [{"features": constant}, {"features": "one-hot"}, {"features": "one-hot", "ridge": 10.0}]


@pytest.fixture(scope="module")
def found():
    return vf.select(LOG, CANDIDATES, policy=POLICY, discount=0.9)


def test_the_value_is_the_mean_of_two_halves_that_share_no_episode(found):
    one, two = found.evaluations
    assert not set(one.log.episode) & set(two.log.episode)
    assert set(one.log.episode) | set(two.log.episode) == set(LOG.episode)
    value, parts = found.policy_value, [one.policy_value, two.policy_value]
    assert value.estimate == pytest.approx((parts[0].estimate + parts[1].estimate) / 2)
    variances = np.array([part.standard_error**2 for part in parts])
    freedom = np.array([part.effective_episodes - 1 for part in parts])
    assert value.standard_error == pytest.approx(np.sqrt(variances.sum()) / 2)
    degrees = variances.sum() ** 2 / (variances**2 / freedom).sum()
    assert value.effective_episodes == pytest.approx(degrees + 1)
    half_width = stats.t.ppf(0.975, degrees) * value.standard_error + np.mean([part.solver_error for part in parts])
    np.testing.assert_allclose(value.interval, [value.estimate - half_width, value.estimate + half_width])
    assert value.starts == 60
    assert value.effective_sample_size == pytest.approx(sum(part.effective_sample_size for part in parts))


def test_the_interval_allows_for_pairs_without_data():
    log = missing_pair.moves(np.random.default_rng(0))
    selection = vf.select(
        log, [{"features": "one-hot"}], policy=missing_pair.POLICY, values="state-action", discount=0.9, folds=2
    )
    value = selection.policy_value
    assert abs(value.estimate - missing_pair.true_value(log)) > 1
    assert value.interval[0] <= missing_pair.true_value(log) <= value.interval[1]
    parts = [evaluation.policy_value.unseen for evaluation in selection.evaluations]
    np.testing.assert_allclose(value.unseen, np.mean(parts, axis=0))
    assert f"The interval is longer by {-value.unseen[0]:.3g} below" in " ".join(selection.summary().split())


def test_the_interval_allows_for_a_bias_that_is_small_in_each_half_alone():
    """Of 0.4 standard errors of a half, which are 0.57 of the mean of two."""

    def half(bias):
        value = with_errors(5.0, 10, ErrorEstimate(1.0, 40.0, bias=bias), 0.95, None, "cr3")
        check = small_sample_bias(
            SimpleNamespace(theta=np.ones(1), dead=()), value, ErrorEstimate(1.0, 40.0, bias=bias)
        )
        return SimpleNamespace(policy_value=value, checks=(check,))

    assert half(0.4).policy_value.bias == 0
    plain, biased = (selection._mean_value([half(bias), half(bias)]) for bias in (0.0, 0.4))
    assert biased.bias == pytest.approx(0.4)
    assert biased.interval == pytest.approx((plain.interval[0] - 0.4, plain.interval[1]))
    low, high = biased.interval_at(0.8)
    assert 5.0 - low == pytest.approx(high - 5.0 + 0.4)


def test_each_choice_is_evaluated_on_the_other_half(found):
    for half, evaluation in enumerate(found.evaluations):
        again = vf.evaluate(
            LOG.select(np.unique(evaluation.log.episode)), policy=POLICY, discount=0.9, **found.best[half]
        )
        assert again.policy_value == evaluation.policy_value
    # the other half has other data, so the value without the exchange would differ
    assert found.evaluations[0].policy_value.estimate != found.evaluations[1].policy_value.estimate


def test_the_right_features_are_chosen_and_the_table_says_what_was_tried(found):
    assert [settings["features"] for settings in found.best] == ["one-hot", "one-hot"]
    assert [settings["ridge"] for settings in found.best] == [0.0, 0.0]
    assert len(found.table) == 6
    for half in (1, 2):
        rows = [row for row in found.table if row["half"] == half]
        assert [row["weights"] for row in rows] == [1, STATES, STATES]
        assert [row["chosen"] for row in rows] == [False, True, False]
        assert [row["verdict"] is None for row in rows] == [True, False, True]
        assert min(rows, key=lambda row: row["criterion"])["chosen"]
        assert all(row["standard_error"] > 0 for row in rows)
    assert found.criterion == "squared mean TD error given the observation"


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_policies_by_step_and_state_action_values(values):
    log = MDP.log(160, propensities=True)
    policy = POLICY if values == "state-action" else POLICY[log.observations[log.now], log.action]
    found = vf.select(log, CANDIDATES[:2], policy=policy, values=values, discount=0.9)
    assert [settings["features"] for settings in found.best] == ["one-hot", "one-hot"]
    expected = vf.evaluate(log, features="one-hot", policy=POLICY, values=values, discount=0.9).policy_value
    assert abs(found.policy_value.estimate - expected.estimate) < 2 * expected.standard_error


def test_returns_are_compared_on_policy():
    found = vf.select(SmallMDP().log(40), CANDIDATES[:2], discount=0.9)
    assert found.criterion == "squared mean difference of value and return given the observation"


def test_on_one_log_the_verdict_is_at_most_caution():
    found = vf.select(LOG, CANDIDATES, policy=POLICY, discount=0.9, cross_fit=False)
    (evaluation,) = found.evaluations
    assert found.policy_value == evaluation.policy_value
    assert len(evaluation.log) == len(LOG)
    assert found.verdict.level == "caution"
    assert SAME_EPISODES in found.verdict.reasons
    assert "evaluated on the same log" in " ".join(found.summary().split())


# ---- the filter --------------------------------------------------------------------------------------------------


def with_verdicts(monkeypatch, levels):
    """Make `evaluate` give these verdicts by number of features, with the reason of its level."""
    original = selection.evaluate

    def evaluate(log, **settings):
        made = original(log, **settings)
        level = levels[made.problem.d]
        verdict = vf.Evaluation.verdict.fget(made).__class__(level, () if level == "sound" else (f"because {level}",))
        return SimpleNamespace(**{**vars(made), "verdict": verdict, "policy_value": made.policy_value})

    monkeypatch.setattr(selection, "evaluate", evaluate)


def test_a_rejected_candidate_is_not_chosen(monkeypatch):
    with_verdicts(monkeypatch, {1: "caution", STATES: "do not use"})
    found = vf.select(LOG, CANDIDATES[:2], policy=POLICY, discount=0.9)
    assert [settings["features"] for settings in found.best] == [constant, constant]
    assert [row["verdict"] for row in found.table] == ["caution", "do not use"] * 2
    assert found.verdict.level == "caution"
    assert found.verdict.reasons == ("because caution",)  # of both halves, once


def test_if_all_are_rejected_the_selection_says_so(monkeypatch):
    with_verdicts(monkeypatch, {1: "do not use", STATES: "do not use"})
    found = vf.select(LOG, CANDIDATES[:2], policy=POLICY, discount=0.9)
    assert [settings["features"] for settings in found.best] == ["one-hot", "one-hot"]
    assert found.verdict.level == "do not use"
    assert found.verdict.reasons == (ALL_REJECTED, "because do not use")


def test_the_order_of_preference():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=50)
    scored = [
        Scored(Score(1.0, 0.01 * noise), 30, 0.0),
        Scored(Score(1.01, 0.01 * noise + 0.01 * rng.normal(size=50)), 10, 0.0),  # within one standard error
        Scored(Score(1.2, 0.01 * noise + 1e-4), 2, 0.0),
        Scored(Score(np.inf, np.zeros(0)), 1, 0.0),  # diverged
    ]
    assert preference(scored, "best") == [0, 1, 2, 3]
    assert preference(scored, "one-standard-error") == [1, 0, 2, 3]


# ---- candidates that are nearly singular where they are estimated ------------------------------------------------


def growing(states):
    """With discount 0.9, steps 0 -> 1 and 1 -> 1 add -1.7 and 0.9 to A: it is nearly 0 if a third are steps 0 -> 1."""
    return np.where(np.ravel(states) == 0, 1.0, 3.0)[:, None]


TRUE_VALUES = np.array([2.0, 6.0])  # which both candidates can express
COMPETING = [{"features": growing}, {"features": "one-hot"}]


@pytest.fixture
def uneven(monkeypatch):
    """Even episodes have few steps 0 -> 1, which one-hot features need. Odd ones have one in three; they are half 2."""
    monkeypatch.setattr(selection, "groups_of", lambda log, count, rng: log.episode % count)
    number = np.arange(80)
    episode = np.repeat(number, np.where(number % 2 == 1, 3, 1 + (number % 8 == 0)))
    begins = np.append(True, np.diff(episode) > 0)
    state = np.where(begins & ((episode % 2 == 1) | (episode % 8 == 0)), 0, 1)
    noise = np.random.default_rng(0).normal(size=len(state))
    return vf.Transitions.from_arrays(
        state,
        TRUE_VALUES[state] - 0.9 * TRUE_VALUES[1] + noise,
        next_observation=np.ones_like(state),
        episode=episode,
        terminated=np.zeros(len(state), bool),
        truncated=np.append(begins[1:], True),
    )


def test_a_candidate_that_is_nearly_singular_on_the_other_half_is_passed_over(uneven):
    found = vf.select(uneven, COMPETING, discount=0.9)
    first, second = found.table[:2]
    assert first["criterion"] < second["criterion"]
    assert [(row["verdict"], row["stable"], row["chosen"]) for row in (first, second)] == [
        ("caution", False, False),
        ("caution", True, True),
    ]
    other = found.evaluations[0]
    plain_minimum = vf.evaluate(other.log, features=growing, discount=0.9)
    errors = [abs(one.policy_value.estimate - TRUE_VALUES[0]) for one in (other, plain_minimum)]
    assert errors[1] > 5 * errors[0]
    lines = found.summary().splitlines()
    assert next(line for line in lines if line.startswith("  growing")).endswith("unstable")
    assert "Unstable: the equations are nearly singular" in " ".join(lines)


def test_rewards_of_the_other_half_do_not_change_the_choice(uneven):
    first = vf.select(uneven, COMPETING, discount=0.9)
    rng = np.random.default_rng(0)
    reward = np.where(uneven.episode % 2 == 1, 100 * rng.normal(size=len(uneven)), uneven.reward)
    second = vf.select(replace(uneven, reward=reward), COMPETING, discount=0.9)
    assert first.policy_value != second.policy_value
    for one, other in zip(first.table[:2], second.table[:2], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_the_first_candidate_is_chosen_if_none_is_stable(uneven):
    found = vf.select(uneven, COMPETING[:1], discount=0.9)
    assert [row["stable"] for row in found.table] == [False, True]
    assert found.table[0]["chosen"]
    assert any("smallest singular value" in reason for reason in found.verdict.reasons)


def test_without_two_halves_the_log_itself_decides(uneven):
    odd = uneven.select(np.unique(uneven.episode[uneven.episode % 2 == 1]))
    exact = TRUE_VALUES[odd.observations[odd.now].ravel()] - 0.9 * TRUE_VALUES[1]
    quiet = replace(odd, reward=exact + 0.03 * (odd.reward - exact))
    found = vf.select(quiet, [{"features": growing}, {"features": constant}], discount=0.9, cross_fit=False)
    assert found.table[0]["criterion"] < found.table[1]["criterion"]
    assert [row["stable"] for row in found.table] == [False, True]
    assert found.policy_value == vf.evaluate(quiet, features=constant, discount=0.9).policy_value


def test_the_one_standard_error_rule_asks_for_stability_too(uneven):
    found = vf.select(uneven, COMPETING, discount=0.9, rule="one-standard-error")
    assert found.best[0]["features"] == "one-hot"


# ---- output ------------------------------------------------------------------------------------------------------


def test_text_and_json(found):
    facts = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert facts["chosen"] == ["one-hot", "one-hot"]
    assert facts["table"][2]["settings"] == "one-hot, ridge 10"
    assert facts["verdict"]["level"] == found.verdict.level
    text = found.summary()
    assert max(map(len, text.splitlines())) <= 80
    assert "covers the mean of two fixed points" in " ".join(text.split())
    assert text.count("> one-hot") == 2
    assert repr(found).startswith(f"Selection({found.verdict.level}: PolicyValue(")
    assert repr(found).endswith("chosen one-hot)")


def test_progress_resuming_and_threads_do_not_change_the_result(found, tmp_path, capsys):
    seen, arguments = [], {"policy": POLICY, "discount": 0.9, "save": tmp_path / "scores.json"}
    again = vf.select(LOG, CANDIDATES, callback=seen.append, jobs=2, progress=True, **arguments)
    assert again.policy_value == found.policy_value
    assert [(made.done, made.total) for made in seen] == [(k, 6) for k in range(1, 7)]
    assert {made.candidate for made in seen} == {"constant", "one-hot", "one-hot, ridge 10"}
    resumed = vf.select(LOG, CANDIDATES, **arguments)
    assert resumed.policy_value == found.policy_value
    assert all(row["seconds"] == 0 for row in resumed.table)
    capsys.readouterr()


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"folds": 1}, "folds is 1; it must be a whole number, 2 or more"),
        ({"folds": 20}, "20 folds need 80 episodes .* and the log has 60. Use fewer folds"),
        ({"jobs": 0}, "jobs is 0; it must be a whole number, 1 or more"),
        ({"rule": "simplest"}, "rule is 'simplest'; it must be one of 'best', 'one-standard-error'"),
        ({"values": "action"}, "values is 'action'; it must be one of 'state', 'state-action'"),
        ({"discount": 2}, "discount is 2; it must lie between 0 and 1"),
        ({"level": 95}, "level is 95; it must be between 0 and 1"),
        ({"seed": -1}, "seed is -1; it must be a whole number"),
        ({"values": "state-action"}, "State-action values need a target policy"),
        ({"cross_fit": np.zeros(2)}, r"cross_fit is array.*; it must be True or False"),
        ({"progress": "yes"}, "progress is 'yes'; it must be True or False"),
        ({"callback": 3}, "callback is 3; it must be a function of a SelectionProgress"),
        ({"policy": POLICY[:, 0]}, "has 5 probabilities but the log has"),
    ],
)
def test_wrong_arguments_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        vf.select(LOG, CANDIDATES[:1], **changed)


def test_state_action_values_of_a_log_without_actions_are_refused():
    with pytest.raises(ValueError, match="The log has no actions"):
        vf.select(replace(LOG, action=None), CANDIDATES[:1], policy=POLICY, values="state-action")


def test_probabilities_of_another_number_of_steps_are_refused():
    with pytest.raises(ValueError, match="has 3 probabilities but the log has"):
        vf.select(LOG, CANDIDATES, policy=np.full(3, 0.5), discount=0.9)


def test_a_criterion_that_is_far_below_zero_by_chance_does_not_win():
    rng = np.random.default_rng(0)
    parts = rng.normal(size=50)

    def scored(value: float, error: float) -> Scored:
        return Scored(Score(value, error * parts / np.linalg.norm(parts)), 1, 0.0)

    overfitted, good, poor = scored(-8578.0, 11524.0), scored(0.4, 0.2), scored(3.0, 1.0)
    assert preference([overfitted, good, poor], "best") == [1, 2, 0]
    assert preference([scored(-0.1, 0.3), good, poor], "best") == [0, 1, 2]  # as well known as the others
    assert preference([overfitted], "best") == [0]
