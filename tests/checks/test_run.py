"""All checks together: a clean log raises nothing, and each planted fault is caught by the check meant for it."""

import re
from dataclasses import replace

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import ROOT
from helpers.small_mdp import SmallMDP
from valuefit.features import Tiles


def walk(seed=0, *, episodes=60, length=30, terminates=False, target=0.5):
    """Columns of x' = 0.7 x + 0.3 (2a - 1) + noise, whose value is linear in x; a = 1 with probability 1/2."""
    rng = np.random.default_rng(seed)
    n = episodes * length
    last = np.arange(n) % length == length - 1
    action, x, after = rng.integers(2, size=n), np.empty(n), np.empty(n)
    for t in range(n):
        x[t] = rng.normal() if t % length == 0 else after[t - 1]
        after[t] = 0.7 * x[t] + 0.3 * (2 * action[t] - 1) + 0.5 * rng.normal()
    return {
        "observation": x[:, None], "reward": x + 0.5 * action + rng.normal(size=n), "action": action,
        "episode": np.repeat(np.arange(episodes), length), "next_observation": after[:, None],
        "terminated": last & terminates, "truncated": last & (not terminates),
        "behaviour_prob": np.full(n, 0.5), "target_prob": np.where(action == 1, target, 1 - target),
    }  # fmt: skip


def linear(x):
    return np.column_stack([np.ones(len(x)), x])


def outcomes(columns, **settings):
    log = vf.Transitions.from_arrays(**columns) if isinstance(columns, dict) else columns
    evaluation = vf.evaluate(log, **{"features": linear, "discount": 0.9, **settings})
    return {check.name: check.outcome for check in evaluation.checks}


@pytest.mark.parametrize("target", [0.5, 0.7])
def test_a_clean_log_raises_nothing(target):
    assert set(outcomes(walk(target=target)).values()) <= {"pass", "skip"}


def test_a_clean_log_of_few_distinct_vectors_raises_nothing():
    rng = np.random.default_rng(0)
    state, n = rng.integers(0, 8, 3001), 3000
    columns = {
        "observation": np.eye(8)[state[:-1]],
        "next_observation": np.eye(8)[state[1:]],
        "reward": state[:-1] + rng.standard_normal(n),
        "truncated": np.arange(n) % 50 == 49,
        "episode": np.arange(n) // 50,
    }
    assert set(outcomes(columns, features="auto").values()) <= {"pass", "skip"}


def test_few_clean_logs_of_state_action_values_raise_anything():
    mdp = SmallMDP(off_policy=True)
    settings = {"features": "one-hot", "policy": mdp.policy, "values": "state-action"}
    found = [outcomes(mdp.log(100, propensities=True, seed=seed), **settings) for seed in range(20)]
    assert sum(not {*outcome.values()} <= {"pass", "skip"} for outcome in found) <= 4  # 5% of logs are expected to


def without(columns, *names):
    return {name: column for name, column in columns.items() if name not in names}


def kept(columns, mask):
    return {name: column[mask] for name, column in columns.items()}


def collinear():
    return walk(), {"features": lambda x: np.column_stack([linear(x), 2 * x])}


def nearly_collinear():
    return walk(), {"features": lambda x: np.column_stack([linear(x), x + 1e-9 * np.cos(1e3 * x)])}


def features_without_data():
    return walk(), {"features": Tiles(2, 10, low=-50, high=50)}


def as_many_features_as_steps():
    directions = 9 * np.random.default_rng(0).normal(size=(1, 50))
    return {**walk(episodes=13), "reward": np.zeros(390)}, {"features": lambda x: np.cos(x @ directions)}


def a_log_too_short():
    columns = {"observation": np.ones((3, 1)), "reward": np.ones(3), "terminated": np.arange(3) == 2}
    return columns, {"features": "identity"}


def infinite_variance():
    ratio = np.random.default_rng(0).pareto(1.2, 1800) * 0.2
    return {**without(walk(), "action", "behaviour_prob", "target_prob"), "ratio": ratio}, {}


def few_steps_of_the_policy():
    ratio = np.where(np.arange(1800) % 100 == 0, 100.0, 1e-3)
    return {**without(walk(), "action", "behaviour_prob", "target_prob"), "ratio": ratio}, {}


def an_action_that_the_log_never_takes():
    columns = walk(target=0.5)
    columns["behaviour_prob"] = np.where(columns["action"] == 1, 0.5, 1.0)  # of the log after the next line
    return kept(columns, columns["action"] == 0), {}


def a_rare_action():
    columns = walk()
    mask = (columns["action"] == 0) | (np.random.default_rng(1).random(1800) < 0.01)
    return kept(columns, mask), {"policy": lambda x: np.tile([0.2, 0.8], (len(x), 1)), "values": "state-action"}


def an_action_that_one_state_never_takes():
    state = np.arange(400) % 4
    action = np.where(state == 0, np.arange(400) // 4 % 2, 0)
    columns = {"observation": state, "reward": np.ones(400), "terminated": np.arange(400) % 20 == 19, "action": action}
    return columns, {"features": "one-hot", "policy": np.full((4, 2), 0.5), "values": "state-action"}


def a_leaked_bootstrap():
    """Terminations recorded as truncations, with the observation after the reset."""
    columns = walk()
    first = columns["observation"][::30] + 5.0
    columns["observation"] = columns["observation"].copy()
    columns["observation"][::30] = first
    columns["next_observation"][29:-1:30] = first[1:]
    return columns, {}


def negative_logarithms():
    columns = walk(target=0.7)
    columns["behaviour_prob"] = -np.log(columns["behaviour_prob"])  # at most 1 here
    return columns, {}


def a_time_limit():
    return walk(terminates=True), {}


def few_episodes():
    return walk(episodes=10), {}


def a_dominating_episode():
    columns = walk()
    columns["reward"][:30] *= 1000
    return columns, {}


def a_long_episode():
    columns = walk()
    columns["episode"] = np.maximum(columns["episode"], 50)
    columns["truncated"] = np.diff(columns["episode"], append=-1) != 0
    return columns, {}


def impossible_values():
    """+1 a step until termination, and features that cannot express how soon it comes."""
    length = np.random.default_rng(0).geometric(0.02, 80)
    last = np.cumsum(length) - 1
    time = np.concatenate([np.arange(steps) for steps in length])[:, None] / 50
    columns = {"observation": time, "reward": np.ones(len(time)), "terminated": np.isin(np.arange(len(time)), last)}
    return columns, {"features": lambda x: 1 + x, "discount": 0.9, "starts": [[-3.0]]}


def swapped_probabilities():
    """The behaviour policy moves right with 0.7 and the target with 0.3, and the log says the opposite."""
    columns = walk(target=0.5)
    columns = kept(columns, np.random.default_rng(2).random(1800) < np.where(columns["action"] == 1, 0.9, 0.4))
    columns["behaviour_prob"] = np.where(columns["action"] == 1, 0.3, 0.7)
    columns["target_prob"] = np.where(columns["action"] == 1, 0.7, 0.3)
    return columns, {}


def rewards_of_the_step_before():
    columns = walk()
    return {**columns, "reward": np.roll(columns["reward"], 1)}, {}


def rewards_of_the_step_after():
    columns = walk(target=0.7)
    return {**columns, "reward": np.roll(columns["reward"], -1)}, {}


def rewards_of_the_step_after_and_values_of_actions():
    policy = {"policy": lambda x: np.tile([0.3, 0.7], (len(x), 1)), "values": "state-action"}
    return without(rewards_of_the_step_after()[0], "target_prob"), policy


def a_unit_change_half_way():
    columns = walk()
    return {**columns, "reward": np.where(np.arange(1800) < 900, 1, 3) * columns["reward"]}, {}


def other_observations_half_way():
    columns = walk()
    for name in ("observation", "next_observation"):
        columns[name] = np.where(np.arange(1800) < 900, 1, 3)[:, None] * columns[name]
    return columns, {}


def a_drift():
    columns = walk()
    return {**columns, "reward": columns["reward"] + 2 * np.arange(1800) / 1800}, {}


def features_that_are_too_few():
    columns = walk()
    return {**columns, "reward": columns["reward"] + columns["observation"][:, 0] ** 2}, {}


def a_hidden_timer():
    """A reward that depends on the number of the step, which the observation does not contain."""
    columns = walk()
    return {**columns, "reward": columns["reward"] + 3.0 * (np.arange(1800) % 30 < 10)}, {}


def rare_rewards():
    """100 in four of 60 episodes."""
    columns = walk()
    columns["reward"][[10, 400, 900, 1300]] += 100.0
    return columns, {}


def a_strong_ridge():
    return walk(), {"ridge": 0.1}


FAULTS = {
    a_strong_ridge: ["ridge"],
    rare_rewards: ["skewness"],
    swapped_probabilities: ["ratios are right"],
    rewards_of_the_step_before: ["observations are Markov"],
    rewards_of_the_step_after: ["rewards precede actions"],
    rewards_of_the_step_after_and_values_of_actions: ["rewards precede actions"],
    a_unit_change_half_way: ["stability"],
    other_observations_half_way: ["stability"],
    a_drift: ["stability"],
    a_hidden_timer: ["observations are Markov", "returns"],
    features_that_are_too_few: ["features suffice"],
    collinear: ["conditioning"],
    nearly_collinear: ["conditioning"],
    features_without_data: ["conditioning"],
    as_many_features_as_steps: ["standard error"],
    a_log_too_short: ["standard error"],
    infinite_variance: ["ratio tail"],
    few_steps_of_the_policy: ["effective sample", "ratio tail"],
    an_action_that_the_log_never_takes: ["mean ratio"],
    a_rare_action: ["overlap"],
    an_action_that_one_state_never_takes: ["unseen actions"],
    a_leaked_bootstrap: ["resets"],
    negative_logarithms: ["mean ratio"],
    a_time_limit: ["time limit"],
    few_episodes: ["effective episodes"],
    a_dominating_episode: ["one episode"],
    a_long_episode: ["effective episodes"],
    impossible_values: ["reachable range"],
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_caught_by_its_checks(fault):
    columns, settings = fault()
    outcome = outcomes(columns, **settings)
    assert {name: outcome[name] for name in FAULTS[fault] if outcome[name] not in ("warn", "fail")} == {}


def test_every_check_has_its_row_in_the_documentation():
    """Those that run for ratios and for state-action values; checks="all" has a paragraph."""
    rows = re.findall(r"^\| ([a-zA-Z -]+) \|", (ROOT / "docs" / "report.md").read_text(), re.M)
    table = {"features": "one-hot", "policy": SmallMDP(off_policy=True).policy, "values": "state-action"}
    by_actions = outcomes(SmallMDP(off_policy=True).log(50), **table)
    run = [outcomes(walk(target=0.7)), by_actions]
    assert {name for found in run for name in found} | {name for names in FAULTS.values() for name in names} <= set(
        rows
    )


@pytest.mark.parametrize("clean", [{}, {"solver": "pdbg"}, {"checks": "all"}])
def test_every_check_has_a_number(clean):
    log = vf.Transitions.from_arrays(**walk(target=0.7))
    found = vf.evaluate(log, **{"features": linear, "discount": 0.9, **clean}).checks
    without = [check.name for check in found if check.statistic is check.p_value is check.size is None]
    assert set(without) <= {check.name for check in found if check.outcome == "skip"}


def test_logarithms_of_probabilities_are_refused():
    columns = walk()
    columns["behaviour_prob"] = np.log(columns["behaviour_prob"])
    with pytest.raises(ValueError, match="if these are log-probabilities, take exp first"):
        vf.Transitions.from_arrays(**columns)


def test_reasons_are_failures_first_in_the_order_of_the_checks():
    columns, settings = impossible_values()
    columns["reward"] = columns["reward"] + 0.01 * np.random.default_rng(0).normal(size=len(columns["reward"]))
    evaluation = vf.evaluate(vf.Transitions.from_arrays(**columns), **settings)
    assert evaluation.verdict.level == "do not use"
    assert "is impossible: rewards " in evaluation.verdict.reasons[0]
    failed = [check.outcome for check in evaluation.checks].count("fail")
    messages = {check.message: check.outcome for check in evaluation.checks}
    assert [messages[reason] for reason in evaluation.verdict.reasons][:failed] == ["fail"] * failed


def test_a_reader_may_name_the_time_limit():
    log = vf.Transitions.from_arrays(**walk())
    found = vf.evaluate(replace(log, warnings=("It looks like a time limit.",)), features=linear, discount=0.9)
    assert found.verdict.level == "caution"
    assert found.verdict.reasons == ("It looks like a time limit.",)


# ---- what messages advise -----------------------------------------------------------------------------------------


def by_name(evaluation):
    return {check.name: check for check in evaluation.checks}


def covers(evaluation, value):
    low, high = evaluation.policy_value.interval
    return low <= value <= high


def test_a_late_reward_is_asked_for_first_and_the_aligned_one_is_right():
    columns = walk()
    late = vf.Transitions.from_arrays(**{**columns, "reward": np.roll(columns["reward"], 1)})
    settings = {"features": linear, "discount": 0.9}
    message = by_name(vf.evaluate(late, **settings))["observations are Markov"].message
    assert message.index("Check first that rewards and steps are aligned") < message.index("earlier observations")
    found = vf.evaluate(vf.Transitions.from_arrays(**columns), **settings)
    assert found.verdict.level == "sound"
    assert covers(found, 2.5)


def test_state_action_values_without_wrong_probabilities_are_right():
    """The value is 1.5 for the treatments and -0.4 (10 - 1 / 0.37) for the drift of x by -0.12 a step."""
    columns = walk()
    columns["behaviour_prob"] = np.where(columns["action"] == 1, 0.9, 0.1)  # 0.5 in truth
    del columns["target_prob"]
    settings = {
        "features": linear, "discount": 0.9, "values": "state-action",
        "policy": lambda x: np.tile([0.7, 0.3], (len(x), 1)),
    }  # fmt: skip
    wrong = vf.evaluate(vf.Transitions.from_arrays(**columns), **settings)
    told = [one for one in wrong.checks if one.outcome == "warn" and "leave it out" in one.message]
    assert {one.name for one in told} >= {"cross-checks"}
    del columns["behaviour_prob"]
    found = vf.evaluate(vf.Transitions.from_arrays(**columns), **settings)
    assert found.verdict.level == "sound"
    assert covers(found, 1.5 - 0.4 * (10 - 1 / 0.37))


def test_wrong_probabilities_are_rejected_with_the_chance_of_a_right_log_and_right_ones_pass():
    columns = walk(target=0.7)
    settings = {"features": linear, "discount": 0.9}
    right = by_name(vf.evaluate(vf.Transitions.from_arrays(**columns), **settings))["ratios are right"]
    columns["behaviour_prob"] = np.where(columns["action"] == 1, 0.45, 0.55)
    wrong = by_name(vf.evaluate(vf.Transitions.from_arrays(**columns), **settings))["ratios are right"]
    assert (right.outcome, wrong.outcome) == ("pass", "warn")
    assert "by chance in at most 1 of 20 logs" in wrong.message
