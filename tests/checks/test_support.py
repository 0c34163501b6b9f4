"""Checks of episodes, ratios, actions and starts; the planted faults are in test_run.py."""

import numpy as np
import pytest

import valuefit as vf
from helpers.small_mdp import SmallMDP
from valuefit.data.transitions import effective_sample_size


def checks_of(log, **settings):
    return {check.name: check for check in vf.evaluate(log, **settings).checks}


def test_checks_of_ratios_and_actions_are_made_only_off_policy():
    ratios = {"effective sample", "ratio tail", "mean ratio", "overlap"}
    assert ratios <= set(checks_of(SmallMDP(off_policy=True).log(100), discount=0.9))
    assert not ratios & set(checks_of(SmallMDP().log(100), discount=0.9))


def test_a_trace_reduces_the_effective_sample():
    log = SmallMDP(off_policy=True).log(100)
    plain, traced = (checks_of(log, discount=0.9, trace=trace)["effective sample"].statistic for trace in (0.0, 0.9))
    assert plain == pytest.approx(effective_sample_size(log.ratio))
    assert traced < plain


def test_overlap_counts_the_effective_steps_of_the_rarest_action():
    mdp = SmallMDP(off_policy=True)
    log = mdp.log(100)
    sizes = [effective_sample_size(log.ratio[log.action == one]) for one in (0, 1)]
    assert checks_of(log, discount=0.9)["overlap"].statistic == pytest.approx(min(sizes))
    log = mdp.log(100, propensities=True)
    found = checks_of(log, discount=0.9, policy=mdp.policy, values="state-action")["overlap"]
    assert found.statistic == pytest.approx(np.bincount(log.action).min())


def test_overlap_takes_actions_of_any_number_and_ratios_that_are_all_0():
    rng = np.random.default_rng(0)
    number, ends = rng.integers(0, 3, 60), np.arange(60) % 4 == 3
    columns = {"terminated": ends, "ratio": rng.uniform(0.5, 1.5, 60)}
    rows, reward = rng.normal(size=(60, 2)), rng.normal(size=60)
    small, large = (
        checks_of(vf.Transitions.from_arrays(rows, reward, action=one, **columns), features="identity")["overlap"]
        for one in (number, number * 10**15)
    )
    assert small.statistic == large.statistic > 0
    huge = vf.Transitions.from_arrays(rows, reward, action=number * 1e300, **columns)
    assert "overlap" not in checks_of(huge, features="identity")
    nothing = vf.Transitions.from_arrays(rows, reward, action=number, terminated=ends, ratio=np.zeros(60))
    assert "overlap" not in checks_of(nothing, features="identity")


def two_columns(second, starts):
    """A log whose second column of observations is `second` times noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2)) * [1.0, second]
    reward = x[:, 0] + rng.normal(size=600)
    log = vf.Transitions.from_arrays(x, reward, terminated=np.arange(600) % 10 == 9)
    return checks_of(log, features="identity", discount=0.9, starts=starts)


def test_starts_far_from_the_log_are_extrapolated():
    near, far = [[1.0, 1.0]] * 9, [[1.0, 9.0]]
    assert two_columns(1.0, near)["starts are like the log"].outcome == "pass"
    found = two_columns(1.0, near + far)["starts are like the log"]
    assert found.outcome == "warn"
    assert found.statistic == pytest.approx(0.1)


@pytest.mark.parametrize(("undetermined", "outcome"), [(1, "warn"), (10, "fail")])
def test_the_share_of_undetermined_starts_and_what_the_value_can_be(undetermined, outcome):
    starts = [[0.5, 0.0]] * (100 - undetermined) + [[0.5, 1.0]] * undetermined
    found = two_columns(0.0, starts)["value is determined"]
    assert found.outcome == outcome
    assert found.statistic == pytest.approx(undetermined / 100)
    low, high = map(float, found.message.split("it can be ")[1].split(". ")[0].split(" to "))
    rewards = two_columns(0.0, [[0.5, 0.0]])["reachable range"].message
    reach = [float(word) for word in rewards.rstrip(".").split("add up to ")[1].split(" to ")]
    width = (reach[1] - reach[0]) * undetermined / 100
    assert width < high - low < 1.5 * width + 1.5


def test_all_starts_undetermined_leave_the_reachable_range():
    found = two_columns(0.0, [[0.5, 1.0]])
    reach = found["reachable range"].message.rstrip(".").split("add up to ")[1]
    assert f"it can be {reach}" in found["value is determined"].message


def test_visited_starts_determine_the_value():
    """The second column is 0 in the log, so its weight is unknown."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2)) * [1.0, 0.0]
    log = vf.Transitions.from_arrays(x, x[:, 0] + 0.1 * rng.normal(size=600), terminated=np.ones(600))
    starts, settings = [[0.5, 1.0]], {"discount": 0.9, "features": "identity"}
    unknown = checks_of(log, starts=starts, **settings)["value is determined"]
    assert unknown.outcome == "fail"
    assert "Give starts that the log has visited." in unknown.message
    low, high = vf.evaluate(log, starts=[[0.5, 0.0]], **settings).policy_value.interval
    assert low < 0.5 < high


def test_features_that_depend_on_others_in_all_states_may_be_left_out():
    """The second column is twice the first one, but was not filled in for the given starts."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 1)) * [1.0, 2.0]
    log = vf.Transitions.from_arrays(x, x[:, 0] + 0.1 * rng.normal(size=600), terminated=np.ones(600))
    settings = {"discount": 0.9, "starts": [[0.5, 0.0]]}
    unknown = checks_of(log, features="identity", **settings)["value is determined"]
    assert unknown.outcome == "fail"
    assert "Leave out features that depend on others, but only if they do so in all states" in unknown.message
    low, high = vf.evaluate(log, features=lambda x: x[:, :1], **settings).policy_value.interval
    assert low < 0.5 < high


def treatments(doctor, episodes=100, length=10):
    """Treatment is worth sin(3x) at once; x is noise. doctor: whether he treats at each x."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(episodes, length + 1))
    now, after = x[:, :-1].ravel(), x[:, 1:].ravel()
    action = doctor(now, rng).astype(int)
    reward = np.where(action, np.sin(3 * now), 0.0) + 0.1 * rng.normal(size=len(now))
    return vf.Transitions.from_arrays(
        now[:, None], reward, action=action, next_observation=after[:, None],
        episode=np.repeat(range(episodes), length), truncated=np.arange(len(now)) % length == length - 1,
    )  # fmt: skip


def test_a_value_without_overlap_needs_another_log_not_fewer_features():
    def policy(x):
        return np.column_stack([x[:, 0] <= -0.5, x[:, 0] > -0.5]).astype(float)

    x = np.random.default_rng(1).normal(size=10**6)
    truth = np.where(x > -0.5, np.sin(3 * x), 0.0).mean() / (1 - 0.5)
    settings = {"policy": policy, "values": "state-action", "discount": 0.5}
    without = treatments(lambda x, rng: x > 0)
    check = checks_of(without, features="auto", **settings)["value is determined"]
    assert check.outcome == "fail"
    assert "Use a log of more episodes or of a policy that is closer to the evaluated one" in check.message
    assert "features" not in check.message.lower()
    fewer = vf.evaluate(without, features="polynomial:degree=1", **settings).policy_value
    assert fewer.interval[0] > truth  # extrapolated
    closer = vf.evaluate(treatments(lambda x, rng: rng.random(len(x)) < 0.5), features="auto", **settings)
    low, high = closer.policy_value.interval
    assert closer.verdict.level == "sound"
    assert low < truth < high


def test_the_share_of_undetermined_starts_is_never_0_and_their_range_no_point():
    """One of 3,000 starts, which is not among those that are sampled."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2)) * [1.0, 0.0]
    log = vf.Transitions.from_arrays(x, x[:, 0] + rng.normal(size=600), terminated=np.arange(600) % 10 == 9)
    starts = np.tile([0.5, 0.0], (3000, 1))
    starts[1] = 0.5, 1000.0
    check = checks_of(log, features="identity", discount=0.9, starts=starts)["value is determined"]
    assert (check.outcome, check.statistic) == ("warn", pytest.approx(1 / 3000))
    assert "at 0.033% of the starts" in check.message
    low, high = check.message.split("it can be ")[1].split(". ")[0].split(" to ")
    assert float(low) < float(high)
    nothing = vf.Transitions.from_arrays(x, np.zeros(600), terminated=np.arange(600) % 10 == 9)
    assert "it can be" not in checks_of(nothing, features="identity", starts=starts)["value is determined"].message


def test_a_log_that_takes_the_actions_of_the_policy_determines_values_at_its_starts():
    """All episodes start at 3, where only the second log takes action 1, the policy's; rewards are x times action."""

    def evaluate(actions):
        rng = np.random.default_rng(0)
        start = np.arange(1200) % 2 == 0
        x = np.where(start, 3.0, rng.uniform(-1, 1, 1200))
        action = np.where(start & ~actions, 0, rng.integers(0, 2, 1200))
        log = vf.Transitions.from_arrays(
            x[:, None], x * action + rng.normal(size=1200), action=action, terminated=~start
        )
        return vf.evaluate(
            log, policy=lambda x: np.tile([0.0, 1.0], (len(x), 1)), values="state-action", discount=0.5,
            features=lambda x: np.column_stack([np.ones(len(x)), x]),
        )  # fmt: skip

    poor, better = evaluate(False), evaluate(True)
    outcomes = [{check.name: check for check in found.checks}["starts are like the log"] for found in (poor, better)]
    assert [check.outcome for check in outcomes] == ["warn", "pass"]
    assert "Use a log of more episodes or of a policy that is closer" in outcomes[0].message
    assert "Give starts" not in outcomes[0].message
    low, high = better.policy_value.interval
    assert low < 3 < high


def test_more_episodes_like_it_take_a_value_off_one_episode():
    """Every hundredth episode, of one step, pays 100; the mean reward is 1."""

    def evaluate(episodes):
        reward = np.random.default_rng(0).normal(size=episodes)
        reward[::100] += 100.0
        log = vf.Transitions.from_arrays(np.zeros(episodes, int), reward, terminated=np.ones(episodes, bool))
        return vf.evaluate(log, discount=0.9)

    one, many = evaluate(100), evaluate(10_000)
    checks = [{check.name: check for check in found.checks}["one episode"] for found in (one, many)]
    assert [check.outcome for check in checks] == ["warn", "pass"]
    assert checks[0].message.endswith("Add episodes like it.")
    low, high = many.policy_value.interval
    assert low < 1 < high


@pytest.mark.parametrize("seed", range(5))
def test_unequal_clean_episodes_do_not_rest_on_one(seed):
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(np.log(2), np.log(300), 30)).astype(int)
    x = rng.normal(size=(lengths.sum(), 1))
    episode = np.repeat(np.arange(30), lengths)
    last = np.diff(episode, append=-1) != 0
    reward = x[:, 0] + rng.normal(size=30)[episode] + rng.normal(size=len(x))
    log = vf.Transitions.from_arrays(x, reward, truncated=last, next_observation=rng.permutation(x), episode=episode)
    assert checks_of(log, discount=0.9, features=lambda x: np.column_stack([np.ones(len(x)), x]))[
        "one episode"
    ].outcome == "pass"  # fmt: skip


def log_without_a_bad_action(rng, episodes=300, length=20):
    """State 1 is rare and bad, and its action 1 was never logged; and the target policy, a coin."""
    n = episodes * length
    state = (rng.random(n) < 0.02).astype(int)
    state[::length] = 0
    first = np.arange(n) % length == 0
    following = np.where(np.roll(first, -1), 0, np.roll(state, -1))
    return vf.Transitions.from_arrays(
        observation=state,
        reward=np.where(state == 1, -20.0, 0.1) + 0.1 * rng.standard_normal(n),
        truncated=np.arange(n) % length == length - 1,
        episode=np.arange(n) // length,
        action=np.where(state == 1, 0, rng.integers(0, 2, n)),
        next_observation=following,
    ), np.full((2, 2), 0.5)


def test_pairs_without_data_are_weighed_by_what_they_add_to_the_policy_value():
    log, policy = log_without_a_bad_action(np.random.default_rng(0))
    evaluation = vf.evaluate(log, policy=policy, discount=0.9, values="state-action")
    found = {check.name: check for check in evaluation.checks}["unseen actions"]
    assert found.statistic < 0.05
    assert found.outcome == "warn"
    # the same by a table in which the pair without data has the smallest or the largest value of the others
    now, action, after = log.observations[log.now], log.action, log.observations[log.next]
    pairs = [(0, 0), (0, 1), (1, 0)]
    here = [(now == s) & (action == a) for s, a in pairs]
    A, b, unseen = np.eye(3), np.zeros(3), np.zeros(3)
    for row, steps in enumerate(here):
        bad = 0.9 * np.mean(after[steps] == 1)
        A[row] -= [0.5 * (0.9 - bad), 0.5 * (0.9 - bad), 0.5 * bad]
        b[row], unseen[row] = log.reward[steps].mean(), 0.5 * bad
    q = np.linalg.solve(A, b)
    assert evaluation.policy_value.estimate == pytest.approx(q[:2].mean())
    changes = [np.linalg.solve(A, unseen * x)[:2].mean() for x in (q.min(), q.max())]
    assert found.size == pytest.approx(np.abs(changes).max() / evaluation.policy_value.standard_error)
    assert f"could change by {min(*changes, 0):.2g} to {max(*changes, 0):.2g} " in found.message
    assert evaluation.policy_value.unseen == pytest.approx((min(*changes, 0), max(*changes, 0)))


def test_pairs_without_data_that_hardly_matter_are_no_warning():
    log, policy = log_without_a_bad_action(np.random.default_rng(0))
    policy = np.array([[0.5, 0.5], [0.999, 0.001]])
    found = checks_of(log, policy=policy, discount=0.9, values="state-action")["unseen actions"]
    assert found.outcome == "pass"
    assert 0 < found.size < 0.5
