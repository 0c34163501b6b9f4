"""Differences of policy values: against a brute-force jackknife, their coverage, and what cannot be compared."""

import numpy as np
import pytest

import valuefit as vf
from coverage_study.difficult import sparse_table
from coverage_study.synthetic import mixed, optimal
from coverage_study.worlds import log_of, table_policy
from helpers.small_mdp import STATES, SmallMDP
from valuefit.evaluation.comparison import _comparison, _Difference, _Tails
from valuefit.inference import error_estimate
from valuefit.inference.error_estimate import ErrorEstimate

MDP = SmallMDP(off_policy=True, seed=1)
FIRST, SECOND = np.tile([0.6, 0.4], (STATES, 1)), np.tile([0.65, 0.35], (STATES, 1))
THIRD = np.tile([0.2, 0.8], (STATES, 1))


def other_rows(state):
    return np.column_stack([np.ones(len(state)), np.asarray(state, float) ** 2])


ROUTES = {
    "ratios": {"policy": FIRST},
    "state-action": {"policy": SECOND, "values": "state-action"},
    "other features": {"policy": SECOND, "features": other_rows},
    "trace and ridge": {"policy": SECOND, "trace": 0.5, "ridge": 0.1},
    "logged": {},
    "given starts": {"policy": SECOND},
}


def evaluated(log, *, policy=None, features=MDP.rows, **options):
    options = {"discount": 0.9, "solver": "lstd", "tol": 1e-12, **options}
    return vf.evaluate(log, policy=policy, features=features, **options)


@pytest.fixture(scope="module")
def log():
    return MDP.log(30, seed=0, propensities=True)


@pytest.fixture(scope="module")
def three(log):
    return [evaluated(log, policy=policy) for policy in (FIRST, SECOND, THIRD)]


@pytest.mark.parametrize("route", list(ROUTES)[1:])
def test_the_standard_error_is_the_jackknife_of_the_difference(log, route, monkeypatch):
    starts = {"starts": np.array([0, 3])} if route == "given starts" else {}

    def both(steps):
        return [evaluated(steps, **ROUTES[name], **starts) for name in ("ratios", route)]

    def difference(steps):
        a, b = both(steps)
        return a.policy_value.estimate - b.policy_value.estimate

    every = difference(log)
    changes = np.array([difference(log.select(np.setdiff1d(log.episodes, [g]))) - every for g in log.episodes])
    found = vf.compare(*both(log))
    assert found.estimate == pytest.approx(every, rel=1e-12)
    assert found.standard_error == pytest.approx(np.sqrt(29 / 30 * changes @ changes), rel=1e-8)
    assert found.method == "cr3"
    monkeypatch.setattr(error_estimate, "MATERIAL_SIZE", 0.0)
    assert vf.compare(*both(log)).bias == pytest.approx(29 * changes.mean(), rel=1e-6)


def test_a_comparison_of_one_kind_uses_the_sandwich_for_both(log):
    a, b = (evaluated(log, policy=policy, interval="cr1") for policy in (FIRST, SECOND))
    found = vf.compare(a, b)
    assert found.method == vf.compare(a, evaluated(log, policy=SECOND)).method == "cr1"
    jackknife = vf.compare(evaluated(log, policy=FIRST), evaluated(log, policy=SECOND))
    assert 0.7 < found.standard_error / jackknife.standard_error < 1


def test_exchanging_the_two_changes_the_sign(three):
    ab, ba = vf.compare(three[0], three[1]), vf.compare(three[1], three[0])
    assert ab.estimate == -ba.estimate
    assert ab.interval == pytest.approx([-ba.interval[1], -ba.interval[0]])
    assert (ab.standard_error, ab.p_value, ab.effective_episodes) == (
        ba.standard_error, ba.p_value, ba.effective_episodes,
    )  # fmt: skip


def test_the_interval_excludes_0_where_the_p_value_is_below_the_rest_of_the_level(three):
    for level in (0.5, 0.9, 0.99):
        for pair in (vf.compare(three[0], three[2], level=level), *vf.compare(three, level=level).pairs):
            assert pair.level == level
            assert (pair.interval[0] > 0 or pair.interval[1] < 0) == (pair.p_value < 1 - level)


@pytest.mark.parametrize(
    ("bias", "unseen", "expected"),
    [
        (0.4, (0.0, 0.0), (0.0, 0.0)),  # below half a standard error
        (0.6, (0.0, 0.0), (-0.6, 0.0)),
        (-0.6, (0.0, 0.0), (0.0, 0.6)),
        (0.6, (-0.2, 0.3), (-0.8, 0.3)),
    ],
)
def test_the_interval_is_longer_by_bias_and_unseen_pairs_and_so_is_what_the_p_value_asks_for(bias, unseen, expected):
    for correlation in (np.eye(1), np.full((3, 3), 0.5) + 0.5 * np.eye(3)):
        tails, plain = _Tails.of(correlation, 0.9), ErrorEstimate(1.0, 12.0, solver_error=0.1)
        half = plain.half_width(tails.tail)
        for estimate in (-5.0, -2.0, *np.linspace(1.5, 3.5, 21)):
            error = ErrorEstimate(1.0, 12.0, solver_error=0.1, bias=bias)
            found = _comparison(("a", "b"), _Difference(estimate, error, 0.0, unseen), tails, "cr3")
            assert found.interval == pytest.approx((estimate - half + expected[0], estimate + half + expected[1]))
            assert (found.interval[0] > 0 or found.interval[1] < 0) == (found.p_value < 1 - 0.9)
            assert len(found.notes) == (expected != (0, 0)) + (unseen != (0, 0)) * (bias > 0.5)


def test_intervals_are_finite_at_extreme_levels(three):
    widths = []
    for level in (1e-9, 0.5, 1 - 1e-12, 1 - 2**-53):
        for pair in (vf.compare(three[0], three[1], level=level), vf.compare(three[0], three[0], level=level)):
            assert np.isfinite(pair.interval).all()
        widths.append(np.ptp(vf.compare(three[:2], level=level).pairs[0].interval))
    assert widths == sorted(widths)


def test_an_evaluation_does_not_differ_from_itself(three):
    found = vf.compare(three[0], three[0])
    assert (found.estimate, found.standard_error, found.p_value) == (0.0, 0.0, 1.0)
    assert found.interval == pytest.approx((0, 0), abs=1e-7)


def test_rounding_is_no_difference(log):
    def rotated(state):
        return MDP.rows(state) @ np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0], [1.0, 0.0, 1.0]])

    found = vf.compare(evaluated(log, policy=FIRST), evaluated(log, policy=FIRST, features=rotated))
    assert 0 < abs(found.estimate) < 1e-11
    assert found.p_value == 1


def test_a_solver_that_stopped_early_widens_the_interval(log):
    exact = evaluated(log, policy=FIRST)
    early = evaluated(log, policy=FIRST, solver="svrg", tol=1e-20, max_passes=3)
    found = vf.compare(exact, early)
    assert abs(found.estimate) == pytest.approx(early.policy_value.solver_error, rel=1e-3)
    assert found.interval[0] <= 0 <= found.interval[1]
    assert found.p_value == 1


def test_matrices_of_several(three):
    found = vf.compare(dict(zip("abc", three, strict=True)))
    pairs = [vf.compare(three[i], three[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert found.names == ("a", "b", "c")
    assert [pair.names for pair in found.pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    upper = np.triu_indices(3, 1)
    np.testing.assert_allclose(found.estimate[upper], [pair.estimate for pair in pairs])
    np.testing.assert_allclose(found.estimate, -found.estimate.T)
    np.testing.assert_allclose(found.standard_error[upper], [pair.standard_error for pair in pairs])
    np.testing.assert_allclose(found.standard_error, found.standard_error.T)
    assert (np.diag(found.p_value) == 1).all()
    np.testing.assert_allclose(found.interval[..., 0], -found.interval[..., 1].T)
    for together, alone in zip(found.pairs, pairs, strict=True):
        assert together.interval[0] < alone.interval[0] < alone.interval[1] < together.interval[1]
        assert alone.p_value <= together.p_value <= 3 * alone.p_value
    assert found.to_dict()["differences"][2]["names"] == ["b", "c"]
    assert repr(found).count("\n") == 2


def test_a_list_of_two_is_one_comparison(three):
    assert vf.compare(three[:2]).pairs[0] == vf.compare(*three[:2])


def one_hot(state):
    return np.eye(STATES)[state]


@pytest.mark.parametrize("logs", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_intervals_cover_the_differences(logs):
    """Of three policies by one-hot states, so that fixed points are the exact values."""
    policies, exact = (FIRST, SECOND, THIRD), []
    for policy in policies:
        P, r = MDP.chain(policy)
        exact.append(float(MDP.start @ np.linalg.solve(np.eye(STATES) - 0.9 * P, r)))
    truth = np.subtract.outer(exact, exact)
    alone, together, ratio = 0, 0, []
    for seed in range(logs):
        steps = MDP.log(60, seed=seed, propensities=True)
        three = [vf.evaluate(steps, policy=policy, features=one_hot, discount=0.9) for policy in policies]
        low, high = vf.compare(three[0], three[2]).interval
        alone += low <= truth[0, 2] <= high
        found = vf.compare(three)
        together += ((found.interval[..., 0] <= truth) & (truth <= found.interval[..., 1])).all()
        unpaired = np.hypot(*(one.policy_value.standard_error for one in three[:2]))
        ratio.append(found.standard_error[0, 1] / unpaired)
    for covered in (alone, together):  # the binomial standard error of 60 logs is 2.8%, of 1000 logs 0.7%
        assert 0.95 - 4 * np.sqrt(0.0475 / logs) <= covered / logs <= 1
    assert np.median(ratio) < 0.2  # policies .60 and .65


@pytest.mark.parametrize(
    ("values", "episodes", "logs"),
    [("state", 200, 3), ("state-action", 200, 6), pytest.param("state", 200, 20, marks=pytest.mark.slow)],
)
def test_intervals_cover_the_differences_of_many_states(values, episodes, logs):
    """One-hot features with few steps each: ratios bias the values, and some states and actions have no data."""
    table = sparse_table()
    good = optimal(table, 0.9)
    policies, covered = [mixed(good, share) for share in (0.5, 0.9)], 0
    behaviour = table_policy(policies[1])
    for seed in range(logs):
        steps = log_of(table, behaviour, episodes, 60, np.random.default_rng(seed))
        starts, options = np.arange(table.states), {}
        if values == "state-action":
            state = steps.observations[steps.now].ravel()
            starts = np.intersect1d(*(state[steps.action == action] for action in (0, 1)))
            options = {"values": values, "starts": starts}
        exact = [state_values(table, policy)[starts].mean() for policy in policies]
        both = [vf.evaluate(steps, policy=table_policy(one), discount=0.9, **options) for one in policies]
        found = vf.compare(*both)
        covered += found.interval[0] <= exact[0] - exact[1] <= found.interval[1]
    assert covered >= 0.8 * logs


def state_values(table, policy):
    moved = (policy[:, :, None] * table.transition()).sum(axis=1)
    return np.linalg.solve(np.eye(table.states) - 0.9 * moved, (policy * table.mean_reward()).sum(axis=1))


def test_saved_evaluations_are_compared(log, tmp_path):
    given = np.array([0, 1, 1])
    a = evaluated(log, policy=FIRST, features="one-hot", starts=given)
    b = evaluated(log, policy=SECOND, features="one-hot", starts=given, values="state-action")
    loaded = [vf.Evaluation.load(one.save(tmp_path / f"{i}.npz")) for i, one in enumerate((a, b))]
    expected = vf.compare(a, b)
    for found in (vf.compare(*loaded), vf.compare(a, loaded[1])):
        assert found.estimate == pytest.approx(expected.estimate, rel=1e-12)
        assert found.interval == pytest.approx(expected.interval, rel=1e-9)
        assert found.p_value == pytest.approx(expected.p_value, rel=1e-9)


def test_one_stream_is_compared_by_blocks():
    rng = np.random.default_rng(0)
    stream = vf.Transitions.from_arrays(
        rng.integers(0, 3, 901)[:-1], rng.normal(size=900), truncated=np.arange(900) == 899,
        next_observation=rng.integers(0, 3, 900), action=rng.integers(0, 2, 900), behaviour_prob=np.full(900, 0.5),
    )  # fmt: skip
    a, b = (vf.evaluate(stream, policy=np.tile([p, 1 - p], (3, 1)), discount=0.5) for p in (0.4, 0.6))
    found = vf.compare(a, b)
    assert 8 <= found.effective_episodes <= 30
    assert found.standard_error > 0


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("logs", lambda log: evaluated(MDP.log(30, seed=1, propensities=True), policy=FIRST)),
        ("logs", lambda log: evaluated(log[: len(log) - 1], policy=FIRST)),
        ("starts", lambda log: evaluated(log, policy=FIRST, starts=np.array([0, 1]))),
        ("discounts", lambda log: evaluated(log, policy=FIRST, discount=0.8)),
    ],
)
def test_what_differs_is_refused(log, three, what, change):
    with pytest.raises(ValueError, match=f"different {what}, so their difference would not be that of the policies"):
        vf.compare(three[0], change(log))


def test_wrong_arguments_are_refused(three):
    for arguments in ((three[0],), ([three[0]],), (three[0], 3), (three[0].policy_value, three[1])):
        with pytest.raises(ValueError, match=r"compare takes two evaluations, compare\(a, b\), or a list"):
            vf.compare(*arguments)
    with pytest.raises(ValueError, match="level is 95; it must be between 0 and 1"):
        vf.compare(*three[:2], level=95)


def test_a_value_without_standard_error_is_refused():
    log = vf.Transitions.from_arrays(np.zeros(5, int), np.ones(5), terminated=np.arange(5) == 4)
    evaluation = vf.evaluate(log, discount=0.9)
    with pytest.raises(ValueError, match=r"value of logged policy \(1\) has no standard error.* One episode of 5"):
        vf.compare(evaluation, evaluation)


def test_a_value_that_the_data_do_not_determine_is_refused_by_name_with_a_remedy():
    """Every step pays the number of its state; state 2, which only the better log visits, is followed by itself."""

    def value(state, start):
        steps = vf.Transitions.from_arrays(
            state, state.astype(float), next_observation=np.minimum(2 * state, 2), truncated=state != 0,
            episode=np.arange(60) // 2,
        )  # fmt: skip
        return vf.evaluate(steps, features="one-hot", discount=0.9, starts=np.array([start]))

    without, better = np.arange(60) % 2, np.where(np.arange(60) < 40, np.arange(60) % 2, 2 * (np.arange(60) % 2))
    unknown = value(without, 2)
    with pytest.raises(ValueError, match=r"value of new has no standard error, so .* give some that the log has vis"):
        vf.compare({"new": unknown, "old": unknown})
    for known, truth in ((value(without, 0), 0.0), (value(better, 2), 20.0)):
        assert known.policy_value.estimate == pytest.approx(truth)
        assert vf.compare(known, known).estimate == 0


def test_policies_without_a_name_are_numbered_by_their_place(three, log):
    def named(observations):
        return np.tile([0.6, 0.4], (len(observations), 1))

    nameless = evaluated(log, policy=lambda observations: np.tile([0.6, 0.4], (len(observations), 1)))
    found = vf.compare([nameless, evaluated(log, policy=named), nameless, three[1]])
    assert found.names == ("policy 1", "named", "policy 3", "policy 4")


def test_control_characters_of_names_are_not_printed(three):
    compared = vf.compare({"\x1b[31mred": three[0], "two\nlines\x07": three[1]})
    for text in (compared.summary().replace("\n", ""), repr(compared)):
        assert text.isprintable()
    assert "?[31mred - two?lines?" in compared.summary()
