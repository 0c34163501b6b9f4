"""Problem: products, moments and rows equal the naive ones in every storage, and no n x d array is allocated."""

import tracemalloc
from contextlib import contextmanager
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sparse

import naive
import valuefit as vf
from helpers.problems import STORAGES, problem_of
from valuefit.rows import compile


def stored(log, storage):
    """The naive log with its rows rounded to the precision of this storage."""
    if storage != "float32":
        return log
    Phi, Psi = (rows.astype(np.float32).astype(np.float64) for rows in (log.Phi, log.Psi))
    return log._replace(Phi=Phi, Psi=Psi)


def thinned(log, share=0.5, seed=9):
    """The same log with about this fraction of zeros in its rows, for CSR storage."""
    zeros = np.random.default_rng(seed).random(log.Psi.shape) < share
    zeros[:, 0] = False
    d = log.Phi.shape[1]
    return log._replace(Phi=np.where(zeros[:, :d], 0.0, log.Phi), Psi=np.where(zeros, 0.0, log.Psi))


def close(fast, slow, rtol=1e-12):
    np.testing.assert_allclose(fast, slow, rtol=rtol, atol=rtol * max(1.0, np.abs(slow).max(initial=0)))


# ---- features ------------------------------------------------------------------------------------

LOG = vf.Transitions.from_arrays(
    np.arange(12.0).reshape(6, 2),
    np.ones(6),
    terminated=[0, 0, 1, 0, 0, 1],
)


class Recorder:
    """A transformer that records the observations it is called with."""

    def __init__(self):
        self.calls = []

    def fit_transform(self, observations):
        self.calls.append(observations)
        return np.column_stack([np.ones(len(observations)), observations])


def test_a_transformer_and_a_callable_give_the_same_problem():
    by_transformer = vf.Problem(LOG, Recorder(), discount=0.9)
    by_callable = vf.Problem(LOG, Recorder().fit_transform, discount=0.9)
    for one, other in zip(by_transformer.moments(), by_callable.moments(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert by_transformer.d == 3


def test_without_features_the_observations_are_the_features():
    np.testing.assert_array_equal(vf.Problem(LOG).phi.matrix, LOG.observations)
    images = vf.Transitions.from_arrays(np.ones((4, 2, 3)), np.ones(4), terminated=[0, 0, 0, 1])
    assert vf.Problem(images).d == 6


def test_without_features_states_by_index_become_one_hot_columns():
    log = vf.Transitions.from_arrays([4, 9, 4, 6], np.ones(4), terminated=[0, 0, 0, 1])
    problem = vf.Problem(log, discount=0.5)
    assert problem.d == 10  # a column for every state number, so that columns agree between logs
    seen = np.ix_([4, 6, 9], [4, 6, 9])
    A, b, C = problem.A[seen], problem.b[[4, 6, 9]], problem.C[seen]
    np.testing.assert_allclose(C, np.diag([0.5, 0.25, 0.25]))
    np.testing.assert_allclose(A, [[0.5, -0.125, -0.125], [0, 0.25, 0], [-0.125, 0, 0.25]])
    np.testing.assert_allclose(b, [0.5, 0.25, 0.25])


@pytest.mark.parametrize("piece", [slice(None), slice(0, 2), slice(3, 6)])
def test_features_are_called_once_with_the_distinct_observations_in_use(piece):
    features = Recorder()
    log = LOG[piece]
    problem = vf.Problem(log, features, discount=0.9)
    problem.moments()
    vf.solve(problem, "svrg", max_passes=4)
    (observations,) = features.calls
    used = np.union1d(log.now, log.next[log.next >= 0])
    np.testing.assert_array_equal(observations, log.observations[used])


def test_features_are_called_once_for_each_state_however_often_it_was_visited():
    states = np.random.default_rng(0).integers(5, size=300)
    features, dual = Recorder(), Recorder()
    log = vf.Transitions.from_arrays(states[:-1], np.ones(299), next_observation=states[1:])
    vf.Problem(log, features, dual_features=dual)
    np.testing.assert_array_equal(features.calls, [[0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(dual.calls, [[0, 1, 2, 3, 4]])


def test_a_log_and_its_rows_make_the_same_problem():
    log = naive.random_log(np.random.default_rng(0), n=30, d=3, k=5, ratio=True, trace=0.4, ridge=0.1)
    log = log._replace(discount=np.where(log.next < 0, 0.0, 0.9))
    after = np.where((log.next < 0)[:, None], 0.0, log.Psi[log.next])
    transitions = vf.Transitions.from_arrays(
        log.Psi[log.now],
        log.reward,
        next_observation=after,
        terminated=log.next < 0,
        episode=log.episode,
        ratio=log.ratio,
    )
    problem = vf.Problem(transitions, lambda x: x[:, :3], discount=0.9, trace=0.4, ridge=0.1, dual_features=lambda x: x)
    for fast, slow in zip(problem.moments(), naive.moments(log), strict=True):
        close(fast, slow)


def test_a_scalar_discount_applies_to_every_step_and_next_minus_one_ends_an_episode():
    Phi = np.random.default_rng(0).normal(size=(4, 2))
    one = vf.Problem.from_rows(Phi, [0, 1, 2], [1, -1, 3], [1.0, 2.0, 3.0], 0.9, trace=0.5)
    other = vf.Problem.from_rows(Phi, [0, 1, 2], [1, 0, 3], [1.0, 2.0, 3.0], [0.9, 0.0, 0.9], trace=0.5)
    for left, right in zip(one.moments(), other.moments(), strict=True):
        np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(one.discount, [0.9, 0.0, 0.9])


def test_repr_shows_size_and_traits():
    log = naive.random_log(np.random.default_rng(0), n=30, d=3, ratio=True, trace=0.4, states=7)
    assert repr(problem_of(log, "csr")) == "Problem(n=30, d=3, distinct rows=7, ratio, sparse, trace)"
    assert repr(vf.Problem(LOG)) == "Problem(n=6, d=2, distinct rows=6, on-policy)"


# ---- products and moments ------------------------------------------------------------------------

KINDS = list(product([False, True], [0.0, 0.7], [0.0, 0.1], [3, 5], [False, True]))
every_kind = pytest.mark.parametrize(("ratio", "trace", "ridge", "k", "identity"), KINDS)
every_storage = pytest.mark.parametrize("storage", STORAGES)


def problem_and_log(storage, ratio, trace, ridge, k, identity, states=None):
    rng = np.random.default_rng(17)
    log = naive.random_log(rng, n=35, d=3, k=k, ratio=ratio, trace=trace, ridge=ridge, states=states)
    log = thinned(log._replace(identity=identity))
    return problem_of(log, storage), stored(log, storage)


@every_storage
@every_kind
def test_products_and_moments_equal_the_naive_ones(storage, ratio, trace, ridge, k, identity):
    problem, log = problem_and_log(storage, ratio, trace, ridge, k, identity)
    rng = np.random.default_rng(1)
    theta, w = rng.normal(size=3), rng.normal(size=k)
    A, b, C = naive.moments(log)
    for fast, slow in zip(problem.B(theta, w), naive.B(log, theta, w), strict=True):
        close(fast, slow)
    close(problem.residual(theta), b - A @ theta)
    close(problem.A_dot(theta), A @ theta)
    close(problem.At_dot(w), A.T @ w)
    close(problem.C_dot(w), C @ w)
    close(problem.b, b)
    close(problem.mean_psi, np.mean([psi for _, _, psi, _ in naive.steps(log)], axis=0))
    for fast, slow in zip(problem.moments(), (A, b, C), strict=True):
        close(fast, slow)


@every_storage
@every_kind
def test_rows_of_single_steps_equal_the_naive_ones(storage, ratio, trace, ridge, k, identity):
    problem, log = problem_and_log(storage, ratio, trace, ridge, k, identity)
    steps = naive.steps(log)
    order = np.random.default_rng(2).integers(35, size=50)
    now, after, discount, u_row, u_factor = problem.steps(order)
    U = problem.u.take(u_row)
    U = (U.toarray() if problem.u.sparse else U) * u_factor[:, None]
    phi = problem.phi.take(np.arange(problem.phi.shape[0]))
    phi = phi.toarray() if problem.phi.sparse else phi
    close(U, [steps[t][0] for t in order])
    close(phi[now] - discount[:, None] * phi[after], [steps[t][1] for t in order])
    close(problem.u_squared, [u @ u for u, _, _, _ in steps])
    close(problem.v_squared, [v @ v for _, v, _, _ in steps])
    close(problem.psi_squared, [psi @ psi for _, _, psi, _ in steps])
    assert (problem.u_squared_bound >= problem.u_squared * (1 - 1e-12)).all()
    if trace == 0:
        close(problem.u_squared_bound, problem.u_squared)


@every_storage
@pytest.mark.parametrize("trace", [0.0, 0.7])
def test_moments_are_the_same_for_distinct_and_repeated_rows(storage, trace):
    log = naive.random_log(np.random.default_rng(3), n=200, d=4, k=6, ratio=True, trace=trace, states=7)
    n = len(log.now)
    after = np.where(log.next < 0, 0, log.next)
    repeated = log._replace(
        Phi=np.vstack([log.Phi[log.now], log.Phi[after]]),
        Psi=np.vstack([log.Psi[log.now], log.Psi[after]]),
        now=np.arange(n),
        next=np.where(log.next < 0, -1, n + np.arange(n)),
    )
    few, many = problem_of(log, storage), problem_of(repeated, storage)
    assert (few.phi.shape[0], many.phi.shape[0]) == (7, 400)
    expected = naive.moments(stored(log, storage))
    for one, other, slow in zip(few.moments(), many.moments(), expected, strict=True):
        close(one, slow)
        close(other, slow)


@every_storage
@pytest.mark.parametrize("trace", [0.0, 0.7])
@pytest.mark.parametrize("states", [None, 4])
def test_moments_in_small_blocks_equal_the_naive_ones(storage, trace, states, monkeypatch):
    for constant in ("linalg.moments.PRODUCT_BYTES", "rows.storage.TEMPORARY_BYTES"):
        monkeypatch.setattr(f"valuefit.{constant}", 600)  # blocks of a few steps each
    monkeypatch.setattr("valuefit.linalg.moments.MIN_PRODUCT_ROWS", 2)
    problem, log = problem_and_log(storage, True, trace, 0.0, 5, False, states)
    for fast, slow in zip(problem.moments(), naive.moments(log), strict=True):
        close(fast, slow)
    close(problem.v_squared, [v @ v for _, v, _, _ in naive.steps(log)])
    close(problem.u_squared, [u @ u for u, _, _, _ in naive.steps(log)])
    close(problem.psi.column_squares(problem.visits), sum(psi**2 for _, _, psi, _ in naive.steps(log)))


@pytest.mark.parametrize(("share", "is_sparse"), [(0.95, True), (0.1, False)])
def test_trace_rows_are_stored_sparse_only_if_they_have_many_zeros(share, is_sparse):
    log = naive.random_log(np.random.default_rng(4), n=80, d=30, ratio=True, trace=0.8)
    log = thinned(log, share)
    problem = problem_of(log, "csr")
    assert problem.u.sparse is is_sparse
    U = problem.u.take(np.arange(80))
    close(U.toarray() if is_sparse else U, [u for u, _, _, _ in naive.steps(log)])


def test_csr_rows_of_float32_are_squared_in_float64():
    rows = sparse.csr_array(np.array([[1e30, 0.0], [1 / 3, 1e-30]], np.float32))
    problem = vf.Problem.from_rows(rows, [0, 1], [1, -1], [1.0, 1.0], 0.5)
    expected = (rows.toarray().astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_allclose(problem.psi_squared, expected, rtol=1e-14)
    np.testing.assert_allclose(problem.C[0, 0], expected[0] / 2, rtol=1e-6)


def test_the_given_csr_matrix_is_not_changed():
    data, indices, indptr = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2, 0, 0, 1]), np.array([0, 3, 4])
    given = sparse.csr_array((data, indices, indptr), shape=(2, 3))  # unsorted, with a duplicate entry
    problem = vf.Problem.from_rows(given, [0], [1], [1.0], 0.9)
    np.testing.assert_allclose(problem.C, np.outer([5, 0, 1], [5, 0, 1]))
    np.testing.assert_array_equal(given.data, [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(given.indices, [2, 0, 0, 1])
    np.testing.assert_array_equal(given.indptr, [0, 3, 4])


@pytest.mark.parametrize("storage", ["dense", "csr", "float32"])
def test_read_only_rows_are_accepted(storage):
    log = naive.random_log(np.random.default_rng(5), n=30, d=3, trace=0.5)
    rows = STORAGES[storage](log.Phi)
    for part in (rows.data, rows.indices, rows.indptr) if storage == "csr" else (rows,):
        part.flags.writeable = False
    arguments = (log.now, log.next, log.reward, log.discount, log.ratio, log.episode)
    problem = vf.Problem.from_rows(rows, *arguments, trace=0.5)
    close(problem.moments().A, naive.moments(stored(log, storage))[0])
    assert vf.solve(problem, "saga", max_passes=20).passes <= 21


# ---- features without data -----------------------------------------------------------------------


def with_dead_columns():
    """Columns 1 and 4 are zero in every `now` row; column 1 is nonzero in some `next` row."""
    log = naive.random_log(np.random.default_rng(6), n=40, d=5, ratio=True)
    Phi = log.Phi.copy()
    Phi[np.ix_(np.unique(log.now), [1, 4])] = 0.0
    Phi[:, 4] = 0.0
    assert Phi[log.next[log.next >= 0], 1].any()
    return log._replace(Phi=Phi, Psi=Phi)


@every_storage
@pytest.mark.parametrize("solver", vf.solvers.names())
def test_a_feature_without_data_has_weight_0_and_is_named(solver, storage):
    problem = problem_of(with_dead_columns(), storage)
    start = (np.full(5, 0.1), np.full(5, 0.1))
    result = vf.solve(problem, solver, max_passes=20, init=start)
    assert result.dead == (1, 4)
    np.testing.assert_array_equal(result.theta[[1, 4]], 0.0)
    assert result.theta[[0, 2, 3]].all()
    assert "2 features (1, 4)" in result.message


@every_storage
def test_lstd_equals_the_naive_minimiser_where_features_have_no_data(storage):
    log = with_dead_columns()
    result = vf.solve(problem_of(log, storage), "lstd")
    theta, _ = naive.minimiser(stored(log, storage))
    np.testing.assert_allclose(result.theta, theta, rtol=1e-9, atol=1e-11)
    assert result.status == "converged"


@every_storage
@pytest.mark.parametrize("shape", [(3, 2), (3, 6)])
@pytest.mark.parametrize("solver", vf.solvers.names())
def test_features_that_are_zero_everywhere_give_weights_of_0(solver, shape, storage):
    rows = STORAGES[storage](np.zeros(shape))
    problem = vf.Problem.from_rows(rows, [0, 1], [1, -1], [1.0, 2.0], 0.9)
    result = vf.solve(problem, solver, max_passes=30)
    np.testing.assert_array_equal(result.theta, 0.0)
    assert result.dead == tuple(range(shape[1]))
    assert result.status == "converged"


# ---- singular C ----------------------------------------------------------------------------------


def duplicated(trace=0.0, identity=False):
    """Column 3 is column 1 and column 4 is column 1 minus column 2: rank 3 of 5."""
    log = naive.random_log(np.random.default_rng(7), n=60, d=3, ratio=not identity, trace=trace)
    Phi = np.column_stack([log.Phi, log.Phi[:, 1], log.Phi[:, 1] - log.Phi[:, 2]])
    return log._replace(Phi=Phi, Psi=Phi, identity=identity)


def short(trace=0.0):
    """More features than steps: rank 4 of 7."""
    return naive.random_log(np.random.default_rng(8), n=4, d=7, trace=trace)


SINGULAR = {
    "duplicate columns": (duplicated(), 3),
    "duplicate columns, trace": (duplicated(trace=0.5), 3),
    "duplicate columns, identity": (duplicated(identity=True), 3),
    "more features than steps": (short(), 4),
    "more features than steps, trace": (short(trace=0.5), 4),
}
singular = pytest.mark.parametrize(("log", "rank"), SINGULAR.values(), ids=SINGULAR.keys())


@every_storage
@singular
def test_lstd_gives_the_minimum_norm_minimiser_and_reports_the_rank(log, rank, storage):
    log = stored(log, storage)
    result = vf.solve(problem_of(log, storage), "lstd")
    theta, w = naive.minimiser(log)
    np.testing.assert_allclose(result.theta, theta, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(result.w, w, atol=1e-7)
    assert f"rank {rank} of {log.Phi.shape[1]}" in result.message
    assert result.status == "converged"


@singular
@pytest.mark.parametrize("solver", ["pdbg", "recursive-lstd"])
def test_pdbg_and_recursive_lstd_find_the_minimum_norm_minimiser(log, rank, solver):
    problem = problem_of(log)
    if solver == "pdbg":  # given steps: preconditioned ones leave the span of the rows
        step_theta, step_w = vf.solvers.PDBG().auto_steps(problem)
        solver = vf.solvers.PDBG(step_theta=step_theta, step_w=step_w)
    result = vf.solve(problem, solver, tol=1e-12, max_passes=50_000)
    theta, _ = naive.minimiser(log)
    np.testing.assert_allclose(result.theta, theta, atol=1e-4 * np.abs(theta).max())
    assert result.status == "converged"


@singular
@pytest.mark.parametrize("solver", ["svrg", "saga"])
def test_svrg_and_saga_find_a_minimiser(log, rank, solver):
    result = vf.solve(problem_of(log), solver, tol=1e-8, max_passes=30_000)
    best = naive.objective(log, naive.minimiser(log)[0])
    start = naive.objective(log, np.zeros(log.Phi.shape[1]))
    assert result.status == "converged"
    assert naive.objective(log, result.theta) - best <= 2e-8 * (start - best) + 1e-12


@singular
def test_a_ridge_makes_the_minimiser_unique_and_solvers_agree(log, rank):
    log = log._replace(ridge=0.05)
    theta, _ = naive.minimiser(log)
    for solver in ("lstd", "recursive-lstd", "pdbg", "svrg", "saga"):
        result = vf.solve(problem_of(log), solver, tol=1e-13, max_passes=20_000)
        np.testing.assert_allclose(result.theta, theta, atol=1e-5 * np.abs(theta).max(), err_msg=solver)


# ---- memory --------------------------------------------------------------------------------------

MB = 1 << 20


@contextmanager
def peak_below(limit):
    """Fail if NumPy allocates more than `limit` bytes at once inside the block."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit, f"peak {peak / MB:.1f} MB"


@pytest.fixture(scope="module")
def trajectories():
    """64 MB of rows: 40 episodes of 1000 steps, 200 features."""
    rng = np.random.default_rng(10)
    Phi = rng.normal(size=(40 * 1001, 200))
    place = np.arange(40 * 1001).reshape(40, 1001)
    now, after = place[:, :-1].ravel(), place[:, 1:].ravel()
    return Phi, now, after, rng.normal(size=40_000), np.repeat(np.arange(40), 1000)


def compile_kernels(small):
    """Compile in advance, so that the memory of the compiler is not measured."""
    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0):
        small.B(np.ones(200), np.ones(200))
        small.residual(np.ones(200))
        small.At_dot(np.ones(200))
        small.moments()


@pytest.mark.parametrize("trace", [0.0, 0.5])
def test_batch_products_and_moments_allocate_no_array_of_n_by_d(trajectories, trace):
    Phi, now, after, reward, episode = trajectories
    compile_kernels(vf.Problem.from_rows(Phi[:50], [0, 1], [1, 2], [1.0, 1.0], 0.9, trace=trace))
    with peak_below(12 * MB):  # arrays of length n, and blocks of 8 MB for the search for NaN
        problem = vf.Problem.from_rows(Phi, now, after, reward, 0.9, episode=episode, trace=trace)
    theta = np.ones(200)
    with peak_below(5 * MB):
        problem.B(theta, theta)
        problem.residual(theta)
        problem.At_dot(theta)
        problem.C_dot(theta)
    with peak_below(32 * MB):
        problem.moments()
    with peak_below(32 * MB):
        problem.v_squared, problem.u_squared_bound  # noqa: B018


def test_the_moments_of_many_steps_are_right(trajectories):
    Phi, now, after, reward, episode = trajectories
    A, b, C = vf.Problem.from_rows(Phi, now, after, reward, 0.9, episode=episode).moments()
    np.testing.assert_allclose(A, Phi[now].T @ (Phi[now] - 0.9 * Phi[after]) / 40_000, atol=1e-11)
    np.testing.assert_allclose(b, Phi[now].T @ reward / 40_000, atol=1e-11)
    np.testing.assert_allclose(C, Phi[now].T @ Phi[now] / 40_000, atol=1e-11)


@pytest.mark.parametrize("order", ["ascending", "shuffled", "repeated"])
def test_a_part_sums_its_rows_with_the_moments(trajectories, order):
    Phi, now, after, reward, _ = trajectories
    steps = {"ascending": slice(None), "shuffled": np.random.default_rng(0).permutation(len(now))}.get(order)
    now, after = (now[steps], after[steps]) if order != "repeated" else (now % 9, after % 9)
    problem = vf.Problem.from_rows(Phi, now, after, reward, 0.9, part=True)
    problem.moments()
    assert ("mean_psi" in vars(problem)) == (order != "repeated")
    np.testing.assert_allclose(problem.mean_psi, Phi[now].mean(axis=0), atol=1e-12)


def test_float32_rows_are_not_copied(trajectories):
    Phi, now, after, reward, episode = trajectories
    Phi = Phi.astype(np.float32)
    compile_kernels(vf.Problem.from_rows(Phi[:50], [0, 1], [1, 2], [1.0, 1.0], 0.9))
    with peak_below(12 * MB):
        problem = vf.Problem.from_rows(Phi, now, after, reward, 0.9, episode=episode)
        problem.B(np.ones(200), np.ones(200))
    assert np.shares_memory(problem.phi.matrix, Phi)
    with peak_below(32 * MB):
        problem.moments()
        problem.v_squared, problem.psi_squared  # noqa: B018


@pytest.fixture
def wide():
    """20 steps, 40 features: moments of 26 kB and trace rows of 6 kB."""
    return problem_of(naive.random_log(np.random.default_rng(11), n=20, d=40, trace=0.5))


def limit_memory(monkeypatch, limit):
    monkeypatch.setattr("valuefit.memory.memory_limit", lambda: limit)
    monkeypatch.setattr("valuefit.engine.certificate.memory_limit", lambda: limit)


@pytest.mark.parametrize("solver", ["lstd", "recursive-lstd", "ilstd"])
def test_matrices_that_do_not_fit_are_refused_naming_solvers_without_them(wide, monkeypatch, solver):
    limit_memory(monkeypatch, 8000)
    with pytest.raises(MemoryError, match=r"GiB, more than half of this machine's memory.*'svrg' or 'saga'"):
        vf.solve(wide, solver)


@pytest.mark.parametrize("solver", ["svrg", "saga"])
def test_solvers_that_need_no_matrix_run_where_the_moments_do_not_fit(wide, monkeypatch, solver):
    limit_memory(monkeypatch, 8000)
    with pytest.raises(MemoryError):
        wide.moments()
    assert vf.solve(wide, solver, max_passes=30).residual < 1


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("solver", ["svrg", "saga", "gtd2"])
def test_trace_rows_that_do_not_fit_are_refused_naming_solvers_without_them(solver, storage, monkeypatch):
    log = thinned(naive.random_log(np.random.default_rng(12), n=400, d=12, trace=0.5), 0.9)
    limit_memory(monkeypatch, 8000)
    with pytest.raises(MemoryError, match=r"400 trace rows, which would take.*'lstd' and 'pdbg' do not store them"):
        vf.solve(problem_of(log, storage), solver)
    for able in ("lstd", "pdbg"):
        assert vf.solve(problem_of(log, storage), able, max_passes=30).residual < 1
