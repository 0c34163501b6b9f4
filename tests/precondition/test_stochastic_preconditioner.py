"""The preconditioner for stochastic steps: its matrices, sampling weights and steps, finite for any log."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats as stats

import naive
import valuefit as vf
from helpers.problems import problem_of
from helpers.twins import Case, start_of
from valuefit.linalg.cholesky import jittered_cholesky
from valuefit.precondition import stochastic_preconditioner as module
from valuefit.precondition.stochastic_preconditioner import (
    FIRST_SKETCH_PASSES,
    MIN_SKETCH_ROWS,
    StochasticPreconditioner,
    first_sketch_size,
    matrices_fit,
    sketch_passes,
    sketched_preconditioner,
)

KINDS = {
    "on-policy": {},
    "ratios": {"ratio": True},
    "traces": {"trace": 0.7},
    "ridge": {"ridge": 0.3},
    "identity": {"identity": True},
    "dual features": {"k": 6},
    "all": {"ratio": True, "trace": 0.7, "ridge": 0.3, "k": 6},
}


def log_of(kind: str, n: int = 200, d: int = 4) -> naive.Log:
    return naive.random_log(np.random.default_rng(2), n=n, d=d, **KINDS[kind])


def wanted(log: naive.Log) -> tuple[np.ndarray, np.ndarray]:
    """(A'C^-1A + ridge I)^-1 and C^-1."""
    A, _, C = naive.moments(log)
    inverse = np.linalg.inv(C)
    return np.linalg.inv(A.T @ inverse @ A + log.ridge * np.eye(A.shape[1])), inverse


def off(found: np.ndarray, exact: np.ndarray) -> float:
    """How far the eigenvalues of found exact^-1 are from 1."""
    return float(np.abs(np.linalg.eigvals(found @ np.linalg.inv(exact)) - 1).max())


def walk(rows: np.ndarray, reward: np.ndarray | None = None, **settings: object) -> vf.Problem:
    n = len(rows) - 1
    reward = np.random.default_rng(1).normal(size=n) if reward is None else reward
    return vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), reward, 0.9, **settings)


@pytest.mark.parametrize("count", [200, 10_000])
@pytest.mark.parametrize("kind", KINDS)
def test_all_steps_give_the_inverse_matrices(kind: str, count: int) -> None:
    log = log_of(kind)
    chosen = sketched_preconditioner(problem_of(log), count)
    theta, w = wanted(log)
    np.testing.assert_allclose(chosen.theta, theta, rtol=1e-7, atol=1e-8 * np.abs(theta).max())
    np.testing.assert_allclose(chosen.w, w, rtol=1e-7, atol=1e-8 * np.abs(w).max())


@pytest.mark.parametrize("kind", KINDS)
def test_estimates_approach_them_as_more_steps_are_sampled(kind: str) -> None:
    log = log_of(kind, n=4000)
    problem, exact = problem_of(log), wanted(log)
    few, many = ([sketched_preconditioner(problem, count + i) for i in range(5)] for count in (60, 2000))
    for index, name in enumerate(("theta", "w")):
        before, after = (
            float(np.mean([off(getattr(metric, name), exact[index]) for metric in metrics])) for metrics in (few, many)
        )
        if name == "w" and log.identity:
            assert before < 1e-8  # C is known
            assert after < 1e-8
        else:
            assert after < 0.4 * before
            assert after < 0.35


def test_matrices_are_symmetric_and_positive_and_the_merit_is_the_squared_gradient_in_them() -> None:
    problem = problem_of(log_of("all"))
    chosen = sketched_preconditioner(problem, 40)
    for matrix in (chosen.theta, chosen.w):
        np.testing.assert_array_equal(matrix, matrix.T)
        assert np.linalg.eigvalsh(matrix)[0] > 0
    g, h = np.arange(1.0, 5.0), np.arange(1.0, 7.0)
    assert chosen.merit((g, h)) == pytest.approx(g @ chosen.theta @ g + h @ chosen.w @ h)
    assert chosen.merit((np.full(4, np.nan), h)) == np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        assert chosen.merit((np.full(4, 1e200), h)) == np.inf


def test_the_merit_of_exact_matrices_bounds_what_f_has_left_to_lose() -> None:
    """With w = C^-1 (b - A theta) and ridge 0 it is twice F(theta) - F*."""
    log = log_of("ratios")
    problem = problem_of(log)
    chosen = sketched_preconditioner(problem, problem.n)
    A, b, C = naive.moments(log)
    theta = np.ones(problem.d)
    gap = naive.objective(log, theta) - naive.objective(log, naive.minimiser(log)[0])
    assert chosen.merit(problem.B(theta, np.linalg.solve(C, b - A @ theta))) == pytest.approx(2 * gap, rel=1e-6)


# ---- drawing rows ------------------------------------------------------------------------------------------


def uneven(kind: str, n: int = 60) -> tuple[naive.Log, vf.Problem, StochasticPreconditioner]:
    log = log_of(kind, n=n)
    log = log._replace(Phi=log.Phi * np.random.default_rng(0).lognormal(0, 1, (len(log.Phi), 1)))
    log = log._replace(Psi=np.hstack([log.Phi, log.Psi[:, 4:]]))
    problem = problem_of(log)
    return log, problem, sketched_preconditioner(problem, problem.n)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_drawn_as_their_weights_say(kind: str) -> None:
    _, problem, chosen = uneven(kind)
    chance = 1 / (problem.n * chosen.weight)
    assert chance.sum() == pytest.approx(1, rel=1e-12)
    assert (chance * chosen.weight).sum() == pytest.approx(1, rel=1e-12)
    assert chosen.weight.max() <= 2  # half of the draws are uniform
    assert chance.max() > 3 * chance.min()
    draws = chosen.draw(np.random.default_rng(3), 50_000)
    seen = np.bincount(draws, minlength=problem.n)
    assert stats.chisquare(seen, 50_000 * chance).pvalue > 1e-3
    assert stats.chisquare(seen).pvalue < 1e-12  # uniform they are not, so the test can fail
    assert chosen.weight[draws].mean() == pytest.approx(1, abs=0.02)
    assert np.abs(seen - 50_000 * chance).max() < 2  # none is drawn more or less often than its due
    assert stats.spearmanr(draws[1:], draws[:-1]).pvalue > 1e-3  # but in no order


@pytest.mark.parametrize("kind", ["on-policy", "all"])
def test_weighted_gradients_of_drawn_rows_have_the_full_gradient_as_their_mean(kind: str) -> None:
    log, problem, chosen = uneven(kind)
    theta, w = start_of(log)
    rows = np.array([np.concatenate(naive.B_t(log, step, theta, w)) for step in naive.steps(log)])
    full = np.concatenate(problem.B(theta, w))
    weighted = chosen.weight[:, None] * rows
    chance = 1 / (problem.n * chosen.weight)
    np.testing.assert_allclose(chance @ weighted, full, rtol=1e-9, atol=1e-12)
    draws = chosen.draw(np.random.default_rng(4), 200_000)
    error = weighted[draws].std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(weighted[draws].mean(axis=0) - full) < 5 * error).all()
    assert (np.abs(rows[draws].mean(axis=0) - full) > 5 * error).any()  # without weights it is another


@pytest.mark.parametrize("place", [0.0, 1 - 2**-53])
def test_the_ends_of_the_range_are_rows_too(place: float) -> None:
    class Fixed:
        def random(self, count: int) -> np.ndarray:
            return np.full(count, place)

        def permutation(self, steps: np.ndarray) -> np.ndarray:
            return steps

    _, problem, chosen = uneven("on-policy")
    assert chosen.draw(Fixed(), 1).tolist() == [0 if place == 0 else problem.n - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_of_rows_are_right_to_a_third(kind: str) -> None:
    log = log_of(kind)
    problem = problem_of(log)
    chosen = sketched_preconditioner(problem, problem.n)
    L, R = np.linalg.cholesky(chosen.w).T, np.linalg.cholesky(chosen.theta).T

    def estimated(seed: int) -> tuple[np.ndarray, ...]:
        return problem.squared_lengths(*module._projections(problem, L, R, np.random.default_rng(seed)))

    found, one = np.mean([estimated(seed) for seed in range(40)], axis=0), estimated(0)
    exact = np.array([
        [psi @ chosen.w @ psi, u @ chosen.w @ u, v @ chosen.theta @ v] for u, v, psi, _ in naive.steps(log)
    ]).T  # fmt: skip
    for mean, single, true in zip(found, one, exact, strict=True):
        assert np.allclose(mean, true, rtol=0.35)
        ratio = single[true > 0] / true[true > 0]
        assert ((ratio > 0.15) & (ratio < 3)).all()


# ---- whatever the log --------------------------------------------------------------------------------------


def rows_of(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(41, 4))
    return {
        "equal columns": np.hstack([rows, rows[:, :2]]),
        "a sum of others": np.hstack([rows, rows.sum(axis=1, keepdims=True)]),
        "one step": rows[:2],
        "more features than steps": rng.normal(size=(9, 20)),
        "all zero": np.zeros((41, 3)),
        "one column zero": rows * [1.0, 0.0, 1.0, 1.0],
        "scales from 1e-6 to 1e6": rows * 10.0 ** np.array([-6, -2, 2, 6]),
        "scales of rows": rows * 10.0 ** rng.uniform(-6, 6, (41, 1)),
        "tiny": 1e-28 * rows,
        "huge": 1e28 * rows,
        "constant": np.ones((41, 2)),
    }[kind]


EXTREME = ["equal columns", "a sum of others", "one step", "more features than steps", "all zero", "one column zero",
           "scales from 1e-6 to 1e6", "scales of rows", "tiny", "huge", "constant"]  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"trace": 0.9}, {"ridge": 0.1}, {"metric": "identity"}], ids=str)
@pytest.mark.parametrize("kind", EXTREME)
def test_every_log_has_finite_matrices_weights_and_steps(kind: str, settings: dict) -> None:
    problem = walk(rows_of(kind), **settings)
    for count in (1, 5, problem.n):
        chosen = sketched_preconditioner(problem, count)
        for array in (chosen.theta, chosen.w, chosen.weight, np.array(chosen.steps)):
            assert np.isfinite(array).all(), count
        for matrix in (chosen.theta, chosen.w):
            assert (np.diag(matrix) > 0).all()
        assert (chosen.weight > 0).all()
        assert min(chosen.steps) > 0
        assert np.mean(1 / chosen.weight) == pytest.approx(1)


def test_a_sample_is_the_same_in_any_unit() -> None:
    """From one end of the range that is allowed to the other."""
    rows = np.random.default_rng(0).lognormal(0, 2, (41, 2))
    one = sketched_preconditioner(walk(rows), 9)
    for unit in (2.0**-90, 2.0**90):
        other = sketched_preconditioner(walk(unit * rows), 9)
        np.testing.assert_allclose(other.weight, one.weight, rtol=1e-9)
        np.testing.assert_allclose(other.theta * unit**2, one.theta, rtol=1e-9)


def test_rewards_play_no_part() -> None:
    rows = rows_of("scales of rows")
    for count in (7, 40):
        one, other = (sketched_preconditioner(walk(rows, reward), count) for reward in (None, np.zeros(40)))
        np.testing.assert_array_equal(one.theta, other.theta)
        np.testing.assert_array_equal(one.weight, other.weight)


def test_the_scale_of_a_feature_is_taken_out() -> None:
    """Columns in other units: the matrices follow, weights and steps stay."""
    rows = np.random.default_rng(0).normal(size=(101, 4))
    scale = np.array([1e-3, 1.0, 1e3, 7.0])
    one, other = sketched_preconditioner(walk(rows), 100), sketched_preconditioner(walk(rows * scale), 100)
    np.testing.assert_allclose(other.theta * np.outer(scale, scale), one.theta, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(other.w * np.outer(scale, scale), one.w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(other.weight, one.weight, rtol=1e-5)
    np.testing.assert_allclose(other.steps, one.steps, rtol=1e-5)


def test_products_that_overflow_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"range of numbers.*Rescale"):
        jittered_cholesky(np.full((2, 2), np.inf))


# ---- what it costs -----------------------------------------------------------------------------------------


def test_the_first_sample_costs_a_few_passes_or_is_everything() -> None:
    cheap = walk(np.random.default_rng(0).normal(size=(2001, 5)))
    assert first_sketch_size(cheap) == cheap.n
    costly = walk(np.random.default_rng(0).normal(size=(2001, 200)))
    count = first_sketch_size(costly)
    assert MIN_SKETCH_ROWS * costly.k <= count < costly.n
    each = costly.cost.flops(2 * costly.k * costly.d + costly.k**2)
    assert count * each <= FIRST_SKETCH_PASSES or count == MIN_SKETCH_ROWS * costly.k


@pytest.mark.parametrize("settings", [{}, {"metric": "identity"}], ids=str)
def test_a_larger_sample_costs_more(settings: dict) -> None:
    problem = walk(np.random.default_rng(0).normal(size=(2001, 60)), **settings)
    costs = [sketch_passes(problem, count) for count in (10, 100, 1000, 1999)]
    assert (np.diff(costs) > 0).all()
    assert sketched_preconditioner(problem, 100).cost == costs[1]
    assert sketch_passes(problem, problem.n) == sketch_passes(problem, 10 * problem.n) > problem.cost.moments


def test_matrices_that_exceed_memory_or_have_too_few_steps_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Case().log()
    assert matrices_fit(problem_of(log))
    assert not matrices_fit(walk(np.random.default_rng(0).normal(size=(40, 20))))
    monkeypatch.setattr("valuefit.memory.memory_limit", lambda: 64 * 36 - 1)
    assert not matrices_fit(problem_of(log))
