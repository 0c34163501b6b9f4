"""`evaluate`: estimates against exact values and roll-outs, text, warnings, and JSON."""

import json
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import wide_log
from helpers.small_mdp import SmallMDP
from valuefit.datasets import mountain_car
from valuefit.datasets.mdp import random_mdp
from valuefit.features import Tiles
from valuefit.inference.policy_value import PolicyValue


def within(evaluation, truth, truth_error=0.0, errors=4.0):
    """Whether the estimate is within this many standard errors of the truth, which may have an error too."""
    value = evaluation.policy_value
    return abs(value.estimate - truth) <= errors * np.hypot(value.standard_error, truth_error)


# ---- exact values and roll-outs ------------------------------------------------------------------------------


def discounted_returns(mdp, episodes, seed):
    """Mean return of roll-outs of the policy and its standard error; truncation omits a factor of at most 0.9^25."""
    log = mdp.log(episodes, seed=seed, policy=mdp.policy)
    first = np.diff(log.episode, prepend=-1) != 0
    time = np.arange(len(log)) - np.maximum.accumulate(np.where(first, np.arange(len(log)), 0))
    returns = np.bincount(log.episode, weights=log.reward * mdp.discount**time)
    return returns.mean(), returns.std() / np.sqrt(episodes)


def test_a_known_mdp_agrees_with_its_value_and_with_roll_outs():
    mdp = SmallMDP(off_policy=True, discount=0.8)
    truth = mdp.start @ mdp.value
    mean, error = discounted_returns(mdp, 20_000, seed=9)
    assert abs(mean - truth) <= 4 * error
    log = mdp.log(4000, seed=1, propensities=True)
    by_ratio = vf.evaluate(log, discount=0.8, policy=mdp.policy)
    by_pairs = vf.evaluate(log, discount=0.8, policy=mdp.policy, values="state-action")
    for evaluation in (by_ratio, by_pairs):
        assert within(evaluation, mean, error)
        assert evaluation.policy_value.standard_error < 0.1
        np.testing.assert_allclose(evaluation.value(np.arange(5)), mdp.value, atol=0.3)
    P_behaviour, _ = mdp.chain(mdp.behaviour)
    logged = np.linalg.solve(np.eye(5) - 0.8 * P_behaviour, np.sum(mdp.behaviour * mdp.reward, axis=1))
    assert within(vf.evaluate(log, discount=0.8), mdp.start @ logged)
    assert abs(mdp.start @ logged - truth) > 0.3  # the values of the two policies differ


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_intervals_of_evaluate_cover_the_truth(values):
    mdp = SmallMDP(off_policy=True)
    truth, inside = mdp.start @ mdp.value, 0
    for seed in range(80):
        log = mdp.log(60, seed=seed + 1, propensities=True)
        low, high = vf.evaluate(log, discount=mdp.discount, policy=mdp.policy, values=values).policy_value.interval
        inside += low <= truth <= high
    assert 0.87 <= inside / 80 < 1


def test_mountain_car_agrees_with_roll_outs():
    policy = mountain_car.sarsa(episodes=300)
    runs = mountain_car.rollouts(policy, 4000, 1000, np.random.default_rng(5))
    returns = np.array([-(1 - 0.99 ** len(actions)) / 0.01 for _, actions, _ in runs])
    log = policy.log(20_000, seed=2)
    evaluation = vf.evaluate(log, features=Tiles(8, 9, low=mountain_car.LOW, high=mountain_car.HIGH))
    assert within(evaluation, returns.mean(), returns.std() / np.sqrt(len(runs)), errors=2.5)
    assert evaluation.policy_value.standard_error < 2


def test_given_starts_have_no_sampling_error():
    mdp = SmallMDP()
    log = mdp.log(300)
    own = vf.evaluate(log, discount=mdp.discount)
    first = log.observations[log.now[np.diff(log.episode, prepend=-1) != 0]]
    given = vf.evaluate(log, discount=mdp.discount, starts=first)
    assert given.policy_value.estimate == pytest.approx(own.policy_value.estimate, rel=1e-12)
    assert given.policy_value.standard_error < own.policy_value.standard_error
    assert "the mean over 300 given starts" in " ".join(given.notes)
    alone = vf.evaluate(log, discount=mdp.discount, starts=[2]).policy_value
    assert alone.estimate == pytest.approx(given.value([2])[0])
    assert alone.starts == 1


def test_starts_of_a_sliced_log_are_first_steps_of_episodes_not_gaps():
    log = SmallMDP().log(50)
    gaps = log[np.arange(len(log)) % 5 != 3]
    assert gaps.begins.sum() > 50
    assert vf.evaluate(gaps, discount=0.9).policy_value.starts == len(np.unique(gaps.episode))


def test_td_errors_are_those_of_the_values():
    mdp = SmallMDP()
    log = mdp.log(30)
    evaluation = vf.evaluate(log, discount=0.9, trace=0.5, ridge=0.1)
    after = np.where(log.terminated, 0, 0.9 * evaluation.value(log.observations[np.maximum(log.next, 0)]))
    expected = log.reward + after - evaluation.value(log.observations[log.now])
    np.testing.assert_allclose(evaluation.td_errors(), expected, atol=1e-12)


def test_values_of_actions_average_to_values_of_states():
    mdp = SmallMDP(off_policy=True)
    evaluation = vf.evaluate(mdp.log(200), discount=0.9, policy=mdp.policy, values="state-action")
    states = np.repeat(np.arange(5), 2)
    pairs = evaluation.value(states, np.tile([0, 1], 5)).reshape(5, 2)
    np.testing.assert_allclose(np.sum(pairs * mdp.policy, axis=1), evaluation.value(np.arange(5)), rtol=1e-12)
    assert evaluation.problem.d == 10
    assert evaluation.policy_value.effective_sample_size is None


# ---- text and JSON -------------------------------------------------------------------------------------------


def test_the_summary_contains_estimate_settings_and_notes():
    mdp = SmallMDP(off_policy=True)
    evaluation = vf.evaluate(mdp.log(100), discount=0.9, trace=0.25, ridge=1e-5)
    text = evaluation.summary()
    value = evaluation.policy_value
    for part in (
        "Policy evaluation", "policy value", f"{value.estimate:.5g}", f"{value.standard_error:.5g}",
        f"{value.interval[0]:.5g}", f"{value.interval[1]:.5g}", "[95%", "Effective sample:", "lstd", "converged",
        "Steps:", str(len(evaluation.log)), "Episodes:", "100", "Features:", "Discount:", "0.9", "Trace:", "0.25",
        "Ridge:", "1e-05", "Passes:", "weight of 4", "covers the fixed point", "true value is not covered", "Notes:",
    ):  # fmt: skip
        assert part in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii()
    assert text.splitlines()[2].startswith("Verdict: sound (all ")
    assert "\npass: solver, value is determined, reachable range" in text
    assert "\n" not in repr(evaluation)
    assert repr(evaluation).startswith(f"Evaluation(sound: PolicyValue({value.estimate:.5g}, standard error ")
    many = vf.evaluate(wide_log(), features=Tiles(4, 3))
    assert "weight of" not in many.summary()
    assert many.to_dict()["weights"] is None


def test_weights_have_the_errors_of_the_sandwich():
    log = wide_log()
    evaluation = vf.evaluate(log, features="identity")
    given = vf.evaluate(log, features="identity", starts=np.array([[0.0, 1.0]])).policy_value
    assert evaluation.weights[1]["estimate"] == pytest.approx(given.estimate)
    assert evaluation.weights[1]["standard_error"] == pytest.approx(given.standard_error)


def test_facts_are_json_without_nan():
    evaluation = vf.evaluate(wide_log(), discount=0.9)
    facts = evaluation.to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["policy_value"]["interval"] == list(evaluation.policy_value.interval)
    odd = replace(evaluation, policy_value=PolicyValue(np.float64(1.0), float("nan"), None, 0.95, 3, np.inf))
    assert odd.to_dict()["policy_value"] == {
        "estimate": 1.0, "standard_error": None, "interval": None, "level": 0.95, "starts": 3,
        "effective_sample_size": None, "solver_error": None, "effective_episodes": None, "method": "cr3",
        "bias": 0.0, "unseen": [0.0, 0.0], "possible": None,
    }  # fmt: skip
    assert "unknown" in odd.summary()


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({}, {}, "On-policy: this is the value of the policy that generated the log."),
        ({"behaviour_prob": np.full(400, 0.5)}, {}, "no target policy was given: it is treated as on-policy"),
        ({"ratio": np.linspace(0.5, 1.5, 400)}, {}, "Off-policy: steps are weighted by the ratios of the log."),
        (
            {"behaviour_prob": np.full(400, 0.5), "action": np.arange(400) % 2},
            {"policy": np.linspace(0.4, 0.6, 400)},
            "under the policy / behaviour_prob",
        ),
        (
            {"action": np.arange(400) % 2},
            {"policy": lambda states: np.full((len(states), 2), 0.5), "values": "state-action"},
            "Off-policy by state-action values",
        ),
    ],
)
def test_a_note_explains_which_policy_is_evaluated(columns, settings, message):
    assert any(message in note for note in vf.evaluate(wide_log(**columns), features="identity", **settings).notes)


def test_notes_name_features_solver_and_standard_error():
    evaluation = vf.evaluate(wide_log(), features=Tiles(2, 3))
    assert any("2 tilings of 3 x 3 tiles" in note for note in evaluation.notes)
    assert any("Solved with lstd" in note for note in evaluation.notes)
    assert any("standard error is the jackknife (CR3) over 20 episodes, which count as" in n for n in evaluation.notes)


# ---- warnings ------------------------------------------------------------------------------------------------


def test_a_reliable_evaluation_has_no_warnings():
    assert vf.evaluate(SmallMDP(off_policy=True).log(300), discount=0.9).warnings == []


@pytest.mark.parametrize("features", ["one-hot", "identity", "auto"])
def test_a_log_without_A_has_the_value_0_of_smallest_norm_and_no_standard_error(features):
    """One step of Baird's star, with an action that the target never takes."""
    log = vf.datasets.baird_log(1)
    assert not vf.Problem(log, discount=0.9).moments()[0].any()
    with warnings.catch_warnings(), np.errstate(divide="raise", invalid="raise"):
        warnings.simplefilter("error")
        done = vf.evaluate(log, features=features, discount=0.9)
    assert done.policy_value.estimate == 0
    assert done.policy_value.standard_error is None
    assert done.verdict.level != "sound"


def test_a_single_episode_is_cut_into_blocks():
    log = random_mdp(20, 3, 5).log(2000)
    evaluation = vf.evaluate(log, discount=0.9)
    text = "The log is one episode, so its standard error is computed from 44 consecutive blocks"
    assert text in evaluation.warnings[0]
    assert evaluation.policy_value.standard_error > 0
    assert "over 44 blocks of steps" in " ".join(evaluation.notes)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_log_too_short_for_standard_errors_has_none(steps):
    log = vf.Transitions.from_arrays(np.ones((steps, 1)), np.ones(steps), terminated=np.arange(steps) == steps - 1)
    evaluation = vf.evaluate(log, features="identity")
    assert evaluation.policy_value.standard_error is None
    assert evaluation.policy_value.interval is None
    assert f"There is no standard error. One episode of {steps} steps is too short" in " ".join(evaluation.warnings)
    assert "standard error unknown" in repr(evaluation)
    assert "unknown" in evaluation.summary()


# ---- wrong input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"values": "action"}, "values is 'action'; it must be one of 'state', 'state-action'"),
        ({"starts": np.zeros((0, 2))}, "starts is empty"),
        ({"starts": np.zeros((3, 5))}, "fitted on observations of shape"),
        ({"starts": [[np.nan, 0.0]]}, "NaN or infinite"),
        ({"values": "state-action"}, "The log has no actions|need a target policy"),
        ({"policy": np.full(400, 0.5)}, 'Either give behaviour_prob, or use `values="state-action"`'),
        ({"features": "tyles"}, "did you mean 'tiles'"),
        ({"solver": "sgaa"}, "Did you mean 'saga'"),
        ({"columns": {"reward": "r"}}, "columns applies to files and tables"),
        ({"discount": 1.5}, "discount is 1.5; it must lie between 0 and 1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        vf.evaluate(wide_log(), **settings)


@pytest.mark.parametrize("observation", [1e100, 1.7e308])
def test_observations_whose_values_could_overflow_are_refused(observation):
    rng = np.random.default_rng(0)
    X, y, ends = rng.normal(size=(20, 2)), rng.normal(size=20), np.arange(20) % 4 == 3
    evaluation = vf.evaluate({"obs": X, "reward": y, "terminated": ends}, features="identity", discount=0.9)
    estimator = vf.PolicyEvaluator("identity", discount=0.9).fit(X, y, terminated=ends)
    for function in (evaluation.value, evaluation.value_interval, estimator.predict):
        with pytest.raises(ValueError, match=r"Features of the observations reach .* Rescale them"):
            function(np.full((2, 2), observation))
        assert np.isfinite(function(np.full((2, 2), 1e-100))).all()


def test_values_of_actions_need_state_action_values():
    with pytest.raises(ValueError, match="These are state values, which take no actions"):
        vf.evaluate(wide_log()).value(np.zeros((1, 2)), [0])


def test_a_file_may_be_given_as_the_log(tmp_path):
    log = SmallMDP().log(40)
    expected = vf.evaluate(log, discount=0.9).policy_value
    path = vf.save(log, tmp_path / "log.npz")
    assert vf.evaluate(str(path), discount=0.9).policy_value == expected


def test_import_of_valuefit_stays_light():
    code = "import valuefit, sys; assert not {'numpy', 'sklearn', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
