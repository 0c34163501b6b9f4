"""Cross-checks: against loops over episodes, their errors against the jackknife, and what they conclude."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import wide_log
from helpers.small_mdp import STATES, SmallMDP
from valuefit.checks import cross_checks as module
from valuefit.checks.cross_checks import CrossCheck, agreement
from valuefit.policies.episode_weights import EpisodeWeights

DISCOUNT = 0.9
MDP = SmallMDP(discount=DISCOUNT, off_policy=True, features=3)


def by_name(evaluation):
    return {entry.name: entry for entry in evaluation.cross_checks}


def evaluated(log, **settings):
    return vf.evaluate(log, **{"discount": DISCOUNT, "features": MDP.rows, "policy": MDP.policy} | settings)


def products(log):
    """The product of the ratios along each episode, by a loop."""
    ratio = MDP.policy[log.observations[log.now], log.action] / log.behaviour_prob
    found, product = np.empty(len(log)), 1.0
    for t in range(len(log)):
        product = ratio[t] * (1.0 if log.begins[t] else product)
        found[t] = product
    return found


def in_loops(log, evaluation):
    """Per-decision, self-normalised and doubly robust estimates, one step after the other."""
    product, value = products(log), evaluation.value
    state = log.observations[log.now]
    episodes = [np.flatnonzero(log.episode == label) for label in np.unique(log.episode)]
    actions = log.action if evaluation.values == "state-action" else None
    plain, robust = [], []
    for steps in episodes:
        rewards, corrected = 0.0, float(value(state[steps[:1]])[0])
        for t, step in enumerate(steps):
            after = 0.0 if log.terminated[step] else DISCOUNT * float(value(log.observations[log.next[[step]]])[0])
            before = float(value(state[[step]], None if actions is None else actions[[step]])[0])
            weight = DISCOUNT**t * product[step]
            corrected += weight * (log.reward[step] + after - before)
            rewards += weight * (log.reward[step] + (after if t == len(steps) - 1 else 0.0))
        plain.append(rewards)
        robust.append(corrected)
    normalised = 0.0
    for t in range(max(map(len, episodes)) + 1):
        above = below = 0.0
        for steps in episodes:
            last = steps[-1]
            weight = product[steps[min(t, len(steps) - 1)]]
            below += weight
            if t < len(steps):
                above += weight * log.reward[steps[t]]
            elif t == len(steps) and not log.terminated[last]:
                above += weight * float(value(log.observations[log.next[[last]]])[0])
        normalised += DISCOUNT**t * above / below
    return np.mean(plain), normalised, np.mean(robust)


NAMES = ("importance sampling", "weighted importance sampling", "doubly robust")


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_estimates_are_those_of_loops_over_episodes(values):
    log = MDP.log(60, propensities=True)
    evaluation = evaluated(log, values=values)
    found = by_name(evaluation)
    np.testing.assert_allclose([found[name].estimate for name in NAMES], in_loops(log, evaluation), rtol=1e-10)
    other = "state-action" if values == "state" else "state"
    name = "state-action values" if values == "state" else "importance ratios"
    assert found[name].estimate == pytest.approx(evaluated(log, values=other).policy_value.estimate, rel=1e-6)


def test_the_other_route_of_kernel_features_has_landmarks_of_its_own():
    rng, n = np.random.default_rng(0), 1200
    log = vf.Transitions.from_arrays(
        rng.standard_normal((n, 2)), rng.standard_normal(n), terminated=np.arange(n) % 20 == 19,
        episode=np.arange(n) // 20, action=rng.integers(0, 3, n), behaviour_prob=np.full(n, 1 / 3),
    )  # fmt: skip
    settings = {"policy": lambda x: np.tile([0.5, 0.3, 0.2], (len(x), 1)), "discount": 0.9}
    found = by_name(vf.evaluate(log, values="state-action", features="kernel:landmarks=10", **settings))
    expected = vf.evaluate(log, features="kernel:landmarks=30", **settings).policy_value.estimate
    assert found["importance ratios"].estimate == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_standard_errors_are_those_of_the_jackknife(values):
    log = MDP.log(80, propensities=True)
    found = evaluated(log, values=values).cross_checks
    assert len(found) == 4
    without = np.array([
        [entry.estimate for entry in evaluated(log[log.episode != label], values=values).cross_checks]
        for label in range(80)
    ])  # fmt: skip
    expected = np.sqrt(79 / 80 * ((without - [entry.estimate for entry in found]) ** 2).sum(axis=0))
    np.testing.assert_allclose([entry.standard_error for entry in found], expected, rtol=0.05)


def test_the_mean_return_on_policy_is_the_only_one_and_has_the_error_of_a_mean():
    mdp = SmallMDP(discount=DISCOUNT, features=3)
    log = mdp.log(200)
    log = log[~np.isin(log.episode, log.episode[log.truncated])]  # complete episodes alone
    (entry,) = vf.evaluate(log, discount=DISCOUNT, features=mdp.rows).cross_checks
    time = np.arange(len(log)) - np.maximum.accumulate(np.where(log.begins, np.arange(len(log)), 0))
    returns = np.bincount(np.unique(log.episode, return_inverse=True)[1], DISCOUNT**time * log.reward)
    assert entry.name == "mean return"
    assert entry.note == ""
    assert entry.effective_episodes == pytest.approx(len(returns))
    assert entry.estimate == pytest.approx(returns.mean())
    assert entry.standard_error == pytest.approx(returns.std(ddof=1) / np.sqrt(len(returns)))


def test_doubly_robust_is_right_where_values_or_ratios_are():
    """Wrong ratios with exact state-action values, and one constant feature with right ratios."""
    truth, found, plain = float(MDP.start @ MDP.value), {}, {}
    for seed in range(50):
        log = MDP.log(100, propensities=True, seed=seed)
        wrong = replace(log, behaviour_prob=log.behaviour_prob * np.where(log.action == 1, 1.0, 0.7))
        evaluations = {
            "values": evaluated(wrong, features="one-hot", values="state-action"),
            "ratios": evaluated(log, features=lambda s: np.ones((len(s), 1))),
        }
        for name, evaluation in evaluations.items():
            found.setdefault(name, []).append(by_name(evaluation)["doubly robust"].estimate)
            other = by_name(evaluation)["importance sampling"] if name == "values" else evaluation.policy_value
            plain.setdefault(name, []).append(other.estimate)
    for name in ("values", "ratios"):
        assert abs(np.mean(found[name]) - truth) < 3.5 * np.std(found[name]) / np.sqrt(50)
        assert abs(np.mean(plain[name]) - truth) > 3.5 * np.std(plain[name]) / np.sqrt(50)


def test_wrong_features_disagree_and_right_ones_agree():
    """One constant feature, whose fixed point is the average reward over 1 - discount."""
    log = MDP.log(2000, propensities=True)
    wrong = evaluated(log, features=lambda s: np.ones((len(s), 1)))
    assert by_name(wrong)["doubly robust"].agrees is False
    assert "differs from the estimate by" in by_name(wrong)["doubly robust"].note
    assert any("differs from other estimates" in warning for warning in wrong.warnings)
    right = evaluated(log, features="one-hot")
    for name, entry in by_name(right).items():
        weighted = name in ("importance sampling", "weighted importance sampling")
        assert entry.agrees is (None if weighted else True)
        assert ("Its errors are skewed" in entry.note) == weighted
    assert right.checks[-1].outcome == "pass"


def test_few_effective_episodes_conclude_nothing():
    policy = np.tile([0.98, 0.02], (STATES, 1))
    log = SmallMDP(discount=DISCOUNT).log(100, propensities=True, policy=np.full((STATES, 2), 0.5))
    found = by_name(evaluated(log, policy=policy, features="one-hot"))
    for name in NAMES:
        assert found[name].effective_episodes < 20
        assert not found[name].reliable
        assert found[name].agrees is None
        assert "effective episodes" in found[name].note


def test_given_starts_single_episodes_and_unknown_ratios_have_none():
    log = MDP.log(60, propensities=True)
    assert evaluated(log, starts=[0, 1]).cross_checks == ()
    stream = log[np.flatnonzero(log.episode == log.episode[0])]
    assert evaluated(stream).cross_checks == ()
    assert evaluated(replace(log, behaviour_prob=None), values="state-action").cross_checks == ()
    assert evaluated(log, starts=[0, 1]).checks[-1].outcome == "skip"


def test_gaps_end_the_episodes_of_a_sliced_log():
    """An episode is cut at its first gap, and its value there is bootstrapped."""
    log = MDP.log(60, propensities=True)
    third = np.arange(len(log)) - np.maximum.accumulate(np.where(log.begins, np.arange(len(log)), 0)) == 2
    sliced = log[~third]
    evaluation = evaluated(sliced)
    assert "up to the first gap" in evaluation.cross_checks[0].note
    kept = np.cumsum(sliced.begins)
    first = np.sort(np.unique(sliced.episode, return_index=True)[1])
    expected = in_loops(sliced[np.isin(kept, kept[first])], evaluation)
    np.testing.assert_allclose([by_name(evaluation)[name].estimate for name in NAMES], expected, rtol=1e-10)


@pytest.mark.parametrize("ratio", [1e30, 1e-30, 0.0])
def test_products_that_overflow_or_vanish_give_finite_unreliable_numbers(ratio):
    log = wide_log(ratio=np.where(np.arange(400) % 20 < 2, 1.0, ratio))
    for entry in vf.evaluate(log, features="identity", discount=DISCOUNT, ridge=0.1).cross_checks:
        assert np.isfinite([entry.estimate, entry.standard_error, entry.effective_episodes]).all()
        assert not entry.reliable


def effective(weights):
    return weights.sum() ** 2 / (weights @ weights)


def test_effective_episodes_are_those_of_the_products_step_by_step():
    log = MDP.log(40, propensities=True)
    first = np.flatnonzero(log.begins)
    ratio = MDP.policy[log.observations[log.now], log.action] / log.behaviour_prob
    product = products(log)
    episodes = [np.flatnonzero(log.episode == label) for label in range(40)]
    above = below = 0.0
    for t in range(max(map(len, episodes))):
        weights = np.array([product[steps[min(t, len(steps) - 1)]] for steps in episodes])
        running = weights[[len(steps) > t for steps in episodes]]
        share = DISCOUNT**t * len(running)
        above += share
        below += share / min(effective(weights), weights.sum(), 40 * effective(running) / len(running))
    assert EpisodeWeights(log, first, ratio, DISCOUNT).effective_episodes == pytest.approx(above / below)


def log_of_lengths(lengths, action):
    """Reward 1 a step under a coin; the observation says whether the episode has more than one step."""
    n = lengths.sum()
    return vf.Transitions.from_arrays(
        observation=np.repeat(lengths > 1, lengths).astype(int),
        reward=np.ones(n),
        terminated=np.isin(np.arange(n), np.cumsum(lengths) - 1),
        episode=np.repeat(np.arange(len(lengths)), lengths),
        action=action,
        behaviour_prob=np.full(n, 0.5),
    )


def test_short_episodes_do_not_hide_the_products_of_long_ones():
    # Half of the episodes have one step and products near 1; those of the others, on whose rewards the value rests,
    # spread over orders of magnitude.
    lengths = np.repeat([1, 60], 100)
    log = log_of_lengths(lengths, np.random.default_rng(0).integers(0, 2, lengths.sum()))
    found = by_name(vf.evaluate(log, policy=np.tile([0.2, 0.8], (2, 1)), discount=0.97))
    for name in ("importance sampling", "weighted importance sampling", "doubly robust"):
        assert not found[name].reliable


def test_episodes_that_left_the_policy_do_not_make_the_others_unreliable():
    # The policy stops at once; only episodes that do not follow it, of weight 0, go on.
    lengths = np.tile([1, 5], 100)
    log = log_of_lengths(lengths, np.repeat(lengths == 1, lengths).astype(int))
    found = by_name(vf.evaluate(log, policy=np.tile([0.0, 1.0], (2, 1)), discount=0.9))["weighted importance sampling"]
    assert found.estimate == pytest.approx(1.0)
    assert found.effective_episodes == pytest.approx(100)


def test_the_sentence_names_what_differs():
    def entry(name, agrees):
        return CrossCheck(name, 1.5, 0.1, 50.0, agrees is not None, agrees, "")

    assert agreement([], "state").outcome == "skip"
    assert agreement([entry("a", None), entry("b", True)], "state").outcome == "pass"
    check = agreement([entry("doubly robust", False), entry("b", True)], "state")
    assert check.outcome == "warn"
    assert "doubly robust (1.5)" in check.message


def of_size(problem, n, d):
    """The problem as the cost model sees it, with another size."""
    sized = replace(problem.cost, n=n, d=d, k=d, row=d, starts=n, row_bytes=8.0 * n * d)
    return SimpleNamespace(cost=sized, n=n, d=d, k=d, sparse=False, trace=0.0, identity=False)


@pytest.mark.parametrize(
    ("n", "d", "width", "low", "high"),
    [(5_000, 50, 50, 1, 1), (20_000, 1000, 1000, 0.15, 0.2), (10**5, 200, 200, 0.15, 0.2), (10**5, 200, 2000, 0, 0.02)],
)
def test_the_other_route_costs_a_fifth_of_the_answer(n, d, width, low, high):
    problem = vf.Problem(MDP.log(5, propensities=True), MDP.rows, discount=DISCOUNT)
    fit = SimpleNamespace(problem=of_size(problem, n, d), features=SimpleNamespace(columns=d))
    assert low <= module._affordable_share(fit, width) <= high


@pytest.mark.parametrize(("values", "other"), [("state", "state-action"), ("state-action", "state")])
def test_the_other_route_takes_a_share_of_the_episodes_and_has_their_errors(values, other, monkeypatch):
    log = MDP.log(200, propensities=True)
    monkeypatch.setattr(module, "_affordable_share", lambda fit, width: 0.25)
    evaluation = evaluated(log, values=values)
    entry = by_name(evaluation)[module.ROUTES[other]]
    chosen = np.random.default_rng(evaluation.fit.seed).choice(200, 50, replace=False)
    expected = evaluated(log.select(np.unique(log.episode)[chosen]), values=other).policy_value
    assert entry.estimate == pytest.approx(expected.estimate, rel=1e-6)
    assert entry.standard_error == pytest.approx(expected.standard_error, rel=1e-6)
    assert entry.note == "It was computed from 50 of 200 episodes, which takes less time."
    assert entry.agrees


@pytest.mark.parametrize(("values", "other"), [("state", "state-action"), ("state-action", "state")])
def test_a_note_says_that_the_other_route_was_left_out(values, other, monkeypatch):
    log = MDP.log(60, propensities=True)
    notes, entries = evaluated(log, values=values).notes, by_name(evaluated(log, values=values))
    monkeypatch.setattr(module, "_affordable_share", lambda fit, width: 0.1)
    found = evaluated(log, values=values)
    route = {"state": "importance ratios", "state-action": "state-action values"}[other]
    assert set(entries) - set(by_name(found)) == {route}
    assert found.notes == [
        *notes,
        f"The cross-check by {route} was left out, because it would take too long for this log. Evaluate with "
        f'`values="{other}"` to see its estimate.',
    ]
    on_policy = evaluated(MDP.log(60), policy=None)
    assert not any("left out" in note for note in on_policy.notes)


def test_they_are_in_files_summaries_and_reports(tmp_path):
    log = MDP.log(100, propensities=True)
    evaluation = evaluated(log, policy=np.tile([0.98, 0.02], (STATES, 1)), features="one-hot")
    assert not all(entry.reliable for entry in evaluation.cross_checks)
    assert vf.Evaluation.load(evaluation.save(tmp_path / "a.npz")).cross_checks == evaluation.cross_checks
    assert [entry["name"] for entry in evaluation.to_dict()["cross_checks"]][:3] == list(NAMES)
    assert "(doubly robust)" in evaluation.summary()
    assert 'class="unreliable"><th scope="row">doubly robust' in evaluation.report(tmp_path / "a.html").read_text()
