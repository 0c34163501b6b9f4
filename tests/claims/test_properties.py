"""For random logs, the fast code agrees with the naive twin and returns only finite numbers."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
import valuefit as vf
from helpers.problems import STORAGES, logs, problem_of, without_dead

STATUSES = {"converged", "budget", "diverged", "singular", "interrupted"}


def transitions_of(log):
    """The same steps as Transitions, with the feature rows as observations."""
    continues = log.next >= 0
    return vf.Transitions.from_arrays(
        log.Phi[log.now],
        log.reward,
        next_observation=np.where(continues[:, None], log.Phi[log.next], 0.0),
        terminated=~continues,
        episode=log.episode,
        ratio=log.ratio,
    )


def close(fast, slow):
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-9 * max(1.0, np.abs(slow).max(initial=0)))


storages = st.sampled_from(sorted(STORAGES))


@settings(max_examples=60)
@given(logs(), storages, st.integers(0, 99))
def test_products_moments_and_rows_equal_the_naive_ones(log, storage, seed):
    problem, log = problem_of(log, storage), without_dead(log)
    rng = np.random.default_rng(seed)
    theta, w = rng.normal(size=problem.d), rng.normal(size=problem.k)
    A, b, C = naive.moments(log)
    for fast, slow in zip(problem.B(theta, w), naive.B(log, theta, w), strict=True):
        close(fast, slow)
    close(problem.residual(theta), b - A @ theta)
    close(problem.A_dot(theta), A @ theta)
    close(problem.At_dot(w), A.T @ w)
    close(problem.C_dot(w), C @ w)
    for fast, slow in zip(problem.moments(), (A, b, C), strict=True):
        close(fast, slow)
    steps = naive.steps(log)
    close(problem.u_squared, [u @ u for u, _, _, _ in steps])
    close(problem.v_squared, [v @ v for _, v, _, _ in steps])
    _, _, _, row, factor = problem.steps(np.arange(problem.n))
    close([factor[t] * problem.u.dot(w)[row[t]] for t in range(problem.n)], [u @ w for u, _, _, _ in steps])
    assert (problem.u_squared_bound >= problem.u_squared * (1 - 1e-9)).all()


@settings(max_examples=60)
@given(logs(), storages)
def test_lstd_reaches_the_naive_minimum_with_finite_weights(log, storage):
    result = vf.solve(problem_of(log, storage), "lstd")
    log = without_dead(log)
    best, start = naive.objective(log, naive.minimiser(log)[0]), naive.objective(log, np.zeros(log.Phi.shape[1]))
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.w).all()
    assert result.status in ("converged", "singular")
    assert naive.objective(log, result.theta) <= best + 1e-8 * (start - best) + 1e-12 * max(1.0, start)
    close(result.objective, naive.objective(log, result.theta))


@settings(max_examples=60)
@given(logs(), storages, st.sampled_from(["svrg", "saga", "pdbg"]), st.integers(0, 3))
def test_default_settings_return_finite_numbers(log, storage, solver, seed):
    problem = problem_of(log, storage)
    result = vf.solve(problem, solver, max_passes=30, seed=seed)
    assert result.status in STATUSES
    assert result.message
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.w).all()
    assert np.isfinite([*result.history["residual"], result.residual, result.passes]).all()
    assert result.objective is None or np.isfinite(result.objective)
    log = without_dead(log)
    F, start = naive.objective(log, result.theta), naive.objective(log, np.zeros(problem.d))
    best = naive.objective(log, naive.minimiser(log)[0])
    assert np.isfinite(F)
    if result.status == "converged":
        assert F - best <= 1.01 * result.tol * (start - best) + 1e-12 * max(1.0, start)


@settings(max_examples=60)
@given(logs(dual=False))
def test_a_full_slice_has_the_moments_of_the_log(log):
    transitions = transitions_of(log)
    one, other = (vf.Problem(part, discount=0.9, trace=log.trace) for part in (transitions, transitions[:]))
    for left, right in zip(one.moments(), other.moments(), strict=True):
        np.testing.assert_array_equal(left, right)
    slow = naive.moments(without_dead(log._replace(discount=np.where(log.next < 0, 0.0, 0.9))))
    for left, right in zip(one.moments()[:2], slow[:2], strict=True):
        close(left, right)


@settings(max_examples=60)
@given(logs(dual=False))
def test_the_concatenated_episodes_equal_the_log(log):
    transitions = transitions_of(log)
    parts = [transitions.select(episode) for episode in transitions.episodes]
    for name in ("reward", "terminated", "truncated", "episode", "ratio", "begins", "now", "next"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(transitions, name))


@settings(max_examples=40)
@given(logs(), st.sampled_from(vf.solvers.names()), st.booleans())
def test_a_result_comes_back_from_its_file_bit_for_bit(tmp_path_factory, log, solver, referenced):
    if solver not in ("lstd", "pdbg", "svrg", "saga", "gtd2", "recursive-lstd"):
        log = log._replace(Psi=log.Phi, ridge=0.0)
    problem = problem_of(log)
    reference = vf.solve(problem, "lstd") if referenced else None
    result = vf.solve(problem, solver, max_passes=8, reference=reference)
    path = tmp_path_factory.mktemp("results") / "result.npz"
    loaded = vf.Result.load(result.save(path))
    for field in dataclasses.fields(result):
        before, after = getattr(result, field.name), getattr(loaded, field.name)
        if isinstance(before, np.ndarray):
            assert before.dtype == after.dtype
            assert before.shape == after.shape
            assert before.tobytes() == after.tobytes(), field.name
        else:
            assert type(before) is type(after), field.name
            assert before == after, field.name


@settings(max_examples=40)
@given(logs(dual=False), st.data(), st.sampled_from(["svrg", "saga", "pdbg", "lstd"]))
def test_a_solve_can_start_from_the_result_of_a_shorter_log(log, data, solver):
    transitions = transitions_of(log)
    earlier = transitions[: data.draw(st.integers(1, len(transitions)))]
    options = {"discount": 0.9, "trace": log.trace, "ridge": log.ridge}
    before = vf.solve(vf.Problem(earlier, **options), "lstd")
    starts = []
    problem = vf.Problem(transitions, **options)
    result = vf.solve(
        problem, solver, init=before, max_passes=20, callback=lambda progress: starts.append(progress.theta)
    )
    alive = np.setdiff1d(np.arange(problem.d), problem.dead)
    assert np.isfinite(result.theta).all()
    assert result.status in STATUSES
    if solver != "lstd":  # a direct method ignores the start
        np.testing.assert_array_equal(starts[0][alive], before.theta[alive])
