"""CR3 and CR1: against a brute-force jackknife, and coverage where episodes have unequal weight."""

import numpy as np
import pytest

import naive
import valuefit as vf
from helpers.errors import errors_of, moved
from helpers.problems import problem_of
from helpers.small_log import VARIANTS, small_log
from valuefit.inference.adjoints import AdjointMethod
from valuefit.inference.clusters import autocorrelation_time, cut
from valuefit.inference.error_estimate import ErrorEstimate, LinearFunction, error_of_parts
from valuefit.inference.errors import over_suitable_clusters
from valuefit.linalg import scaled_lu
from valuefit.rows.storage import Rows


def jackknife(log):
    """Standard error and bias of the mean value over the starts, by leaving out episodes."""
    labels = np.unique(log.episode)
    first = np.array([np.flatnonzero(log.episode == label)[0] for label in labels])

    def value(kept):
        terms = [naive.matrices(log, step) for step, own in zip(naive.steps(log), kept, strict=True) if own]
        A, b, C = (sum(parts) / len(terms) for parts in zip(*terms, strict=True))
        inverse = np.linalg.inv(C)
        theta = np.linalg.solve(A.T @ inverse @ A + log.ridge * np.eye(A.shape[1]), A.T @ inverse @ b)
        return log.Phi[log.now[first[kept[first]]]].mean(axis=0) @ theta

    every = value(np.ones(len(log.now), bool))
    changes = np.array([value(log.episode != label) - every for label in labels])
    count = len(labels)
    return np.sqrt((count - 1) / count * changes @ changes), (count - 1) * changes.mean()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "+".join(variant) or "plain")
def test_cr3_is_the_jackknife_by_episode(variant):
    log = small_log(**variant)
    problem = problem_of(log)
    errors = errors_of(problem, vf.solve(problem, "lstd", tol=1e-20).theta, log.episode)
    first = np.flatnonzero(np.diff(log.episode, prepend=-1))
    rows = log.Phi[log.now[first]]
    found = errors.error(LinearFunction(rows.mean(axis=0), rows, first))
    standard_error, bias = jackknife(log)
    assert found.standard_error == pytest.approx(standard_error, rel=1e-8)
    assert found.bias == pytest.approx(bias, rel=1e-6, abs=1e-8 * standard_error)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_features_without_data_leave_the_equations_of_the_others_to_a_factorisation(unit, monkeypatch):
    log = small_log(trace=0.3, off_policy=True)
    Phi = unit * np.insert(log.Phi, [0, 2], 0.0, axis=1)
    Phi[np.setdiff1d(log.next[log.next >= 0], log.now), 0] = unit  # it has values in next rows
    problem = problem_of(log._replace(Phi=Phi, Psi=Phi))
    result = vf.solve(problem, "lstd")
    assert "rank" not in result.message
    assert problem.dead.tolist() == [0, 3]
    function = LinearFunction(unit * np.array([0.0, 1.0, -0.5, 0.0, 0.3]))
    errors = errors_of(problem, result.theta, log.episode)
    found = errors.error(function)
    assert errors.equations.solver.method is AdjointMethod.LU
    monkeypatch.setattr(scaled_lu, "MIN_RECIPROCAL_CONDITION", 2.0)
    other = errors_of(problem, result.theta, log.episode)
    expected = other.error(function)
    assert other.equations.solver.method is AdjointMethod.PSEUDO_INVERSE
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-8)
    assert found.effective_clusters == pytest.approx(expected.effective_clusters, rel=1e-8)
    without = vf.solve(problem_of(log), "lstd").theta / unit
    np.testing.assert_allclose(result.theta, np.insert(without, [0, 2], 0.0), rtol=1e-8)


def test_clusters_and_errors_of_a_number_read_the_rows_once(monkeypatch):
    log, widths, read = small_log(), [], Rows.matmul
    problem, theta = problem_of(log), naive.minimiser(log)[0]
    function, other = LinearFunction(np.ones(3)), LinearFunction(np.arange(3.0))
    expected = [errors_of(problem, theta, log.episode, "cr1").error(one).standard_error for one in (function, other)]
    monkeypatch.setattr(Rows, "matmul", lambda rows, X: widths.append(X.shape[1]) or read(rows, X))
    (errors,) = over_suitable_clusters([errors_of(problem, theta, log.episode, "cr1")], [function])
    assert errors.error(function).standard_error == pytest.approx(expected[0], rel=1e-12)
    assert widths == [2]  # of the adjoint, with the values
    assert errors.error(other).standard_error == pytest.approx(expected[1], rel=1e-12)
    assert errors.error(function).standard_error == pytest.approx(expected[0], rel=1e-12)
    assert widths == [2, 1, 1]
    twice = errors_of(problem, 2 * theta, log.episode, "cr1").error(function).standard_error
    assert moved(errors, 2 * theta).error(function).standard_error == pytest.approx(twice, rel=1e-12)


def test_cr1_and_cr3_agree_on_many_episodes():
    rng = np.random.default_rng(0)
    rows, episode = rng.normal(size=(20001, 3)), np.repeat(np.arange(2000), 10)
    problem = vf.Problem.from_rows(
        rows, np.arange(20000), np.arange(1, 20001), rng.normal(size=20000), 0.9, None, episode
    )
    theta, first = vf.solve(problem, "lstd").theta, np.arange(0, 20000, 10)
    function = LinearFunction(rows[first].mean(axis=0), rows[first], first)
    cr1, cr3 = (errors_of(problem, theta, episode, kind).error(function).standard_error for kind in ("cr1", "cr3"))
    assert cr1 < cr3 < 1.02 * cr1


@pytest.mark.parametrize("events", [2, 8, 50])
def test_the_skewness_counts_rare_events(events):
    parts = np.zeros(10_000)
    parts[:events] = 3.0
    error = error_of_parts(parts - parts.mean(), 10_000.0, 0.0, undetermined=False)
    assert error.skewness**-2 == pytest.approx(events, rel=0.02)
    assert error_of_parts(-parts, 10_000.0, 0.0, undetermined=False).skewness < 0


def test_parts_that_are_all_zero_have_no_skewness_and_no_bias():
    error = error_of_parts(np.zeros(5), 5.0, 0.0, undetermined=False)
    assert (error.standard_error, error.skewness, error.bias, error.one_cluster) == (0, 0, 0, False)


def test_equal_episodes_all_count_and_unequal_ones_less():
    rng = np.random.default_rng(0)
    for lengths, low, high in ((np.full(100, 20), 90, 100), (np.array([2000] + [10] * 99), 1, 4)):
        n, episode = lengths.sum(), np.repeat(np.arange(100), lengths)
        rows = rng.normal(size=(n + 1, 2))
        problem = vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), rng.normal(size=n), 0.5, None, episode)
        errors = errors_of(problem, vf.solve(problem, "lstd").theta, episode, "cr1")
        error = errors.error(LinearFunction(np.ones(2)))
        assert low <= error.effective_clusters <= high


def test_a_value_that_rests_on_one_episode_is_told():
    """A state that one episode alone visits, and starts there and elsewhere."""
    rng = np.random.default_rng(0)
    state, episode = np.tile([0, 1], 30), np.repeat(np.arange(30), 2)
    state[-2:] = 2
    rows = np.eye(3)[state]
    problem = vf.Problem.from_rows(rows, np.arange(60), np.full(60, -1), rng.normal(size=60), 0.9, None, episode)
    errors = errors_of(problem, vf.solve(problem, "lstd").theta, episode)
    known, alone = (errors.error(LinearFunction(row)) for row in (np.eye(3)[0], np.array([0.9, 0.0, 0.1])))
    assert not known.one_cluster
    assert alone.one_cluster


def coverage(lengths, logs, kind, seed=0):
    """Of the fixed point of a linear process with an effect of each episode, by intervals of this kind."""
    inside = 0
    for replication in range(logs):
        rng = np.random.default_rng((seed, replication))
        steps = np.asarray(lengths(rng))
        episode, n = np.repeat(np.arange(len(steps)), steps), int(steps.sum())
        reward = 1.0 + rng.normal(size=n) + rng.normal(size=len(steps))[episode]
        problem = vf.Problem.from_rows(
            np.ones((n + 1, 1)), np.arange(n), np.arange(1, n + 1), reward, 0.5, None, episode
        )
        errors = errors_of(problem, vf.solve(problem, "lstd").theta, episode, "cr3" if kind == "cr3" else "cr1")
        function = LinearFunction(np.ones(1))
        if kind == "cr3":
            (errors,) = over_suitable_clusters([errors], [function])
        error = errors.error(function)
        if kind == "old":
            error = ErrorEstimate(error.standard_error, len(steps))
        low, high = error.interval(float(errors.equations.theta[0]), 0.95)
        inside += low <= 2.0 <= high
    return inside / logs


def test_episodes_of_unequal_length_are_covered():
    def lengths(rng):
        return np.round(np.exp(rng.uniform(np.log(2), np.log(300), 30))).astype(int)

    assert coverage(lengths, 300, "cr3") >= 0.90
    assert coverage(lengths, 300, "old") < 0.90


def test_a_dominating_episode_is_cut_into_blocks():
    rng = np.random.default_rng(0)
    episode = np.repeat(np.arange(31), [3000] + [3] * 30)
    n = len(episode)
    problem = vf.Problem.from_rows(
        np.ones((n + 1, 1)), np.arange(n), np.arange(1, n + 1), rng.normal(size=n), 0.5, None, episode
    )
    errors = errors_of(problem, vf.solve(problem, "lstd").theta, episode)
    function = LinearFunction(np.ones(1))
    assert errors.error(function).effective_clusters < 1.2
    assert over_suitable_clusters([errors], [function])[0].error(function).effective_clusters > 40


def test_one_long_stream_is_cut_by_the_autocorrelation_of_its_values():
    rng = np.random.default_rng(0)
    x = np.zeros(2001)
    for t in range(2000):
        x[t + 1] = 0.9 * x[t] + rng.normal()
    rows = np.column_stack([x, np.ones(2001)])
    problem = vf.Problem.from_rows(rows, np.arange(2000), np.arange(1, 2001), x[1:], 0.5)
    errors = errors_of(problem, vf.solve(problem, "lstd").theta, np.zeros(2000))
    time = autocorrelation_time((rows @ errors.equations.theta)[:-1], np.zeros(2000))
    assert time == pytest.approx(19, rel=0.2)
    (found,) = over_suitable_clusters([errors], [LinearFunction(np.ones(2))])
    assert found.shards.clusters == pytest.approx(2000 / (5 * time), abs=1)
    assert found.whole.clusters.blocks


def test_long_clusters_are_cut_into_blocks_of_about_equal_length():
    cluster = np.repeat([0, 1, 2], [3, 100, 40])
    found = cut(cluster, 20)
    assert np.bincount(found).tolist() == [3, 20, 20, 20, 20, 20, 20, 20]
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("kind", ["cr3", "cr1"])
def test_parts_have_the_norm_of_the_standard_error_and_are_unknown_where_the_value_is(kind):
    log = small_log(trace=0.3)
    problem = problem_of(log._replace(Phi=log.Phi @ np.eye(3, 4), Psi=log.Phi @ np.eye(3, 4)))
    errors = errors_of(problem, vf.solve(problem, "lstd").theta, log.episode, kind)
    functions = [LinearFunction(c) for c in np.eye(4)[[0, 3, 1]]]
    found = errors.parts(functions)
    assert [part is None for part in found] == [False, True, False]
    for part, function in zip(found[::2], functions[::2], strict=True):
        assert np.linalg.norm(part) == pytest.approx(errors.error(function).standard_error)
