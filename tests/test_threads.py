"""Passes in parts on one or several threads: the sums are equal to the bit, and parts run concurrently."""

import os
import subprocess
import sys
import threading
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import valuefit as vf
from valuefit import threads
from valuefit.rows import compile


def on_threads(count):
    """Pretend that the machine has this many cores."""
    return patch.object(threads, "_cores", lambda: count)


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    """Small problems use NumPy otherwise, which does not divide them into parts."""
    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0):
        yield


def products(problem, theta, w):
    return np.concatenate([*problem.B(theta, w), problem.residual(theta), problem.At_dot(w), problem.C_dot(w)])


@settings(max_examples=60)
@given(data=st.data())
def test_products_do_not_depend_on_threads_and_parts(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    m, d, n = (data.draw(st.integers(1, most)) for most in (400, 40, 500))
    now = rng.integers(0, m, n)
    next = now + 1 if data.draw(st.booleans()) else rng.integers(0, m, n)
    next[(next >= m) | (rng.random(n) < 0.1)] = -1
    rows = rng.normal(size=(m, d)) * (rng.random((m, d)) < 0.5)
    storage = data.draw(st.sampled_from([np.asarray, np.float32, sparse.csr_array]))
    dual = data.draw(st.booleans())

    def problem():
        return vf.Problem.from_rows(
            storage(rows), now, next, reward, 0.9, ratio, episode, trace=trace,
            dual_rows=storage(np.hstack([rows, rows[:, :1] ** 2])) if dual else None,
        )  # fmt: skip

    reward, ratio, episode = rng.normal(size=n), rng.exponential(size=n), np.sort(rng.integers(0, 4, n))
    trace = data.draw(st.sampled_from([0.0, 0.6]))
    theta, w = rng.normal(size=d), rng.normal(size=d + dual)
    whole = products(problem(), theta, w)
    with patch.object(threads, "PART_BYTES", data.draw(st.sampled_from([16, 400, 5000]))):
        found = []
        for count in (1, 2, 3):
            with on_threads(count):
                found.append(products(problem(), theta, w))
    np.testing.assert_allclose(found[0], whole, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_parts_run_at_the_same_time():
    barrier = threading.Barrier(2, timeout=30)  # breaks unless two threads wait at the same time
    with on_threads(2):
        threads.share_out(lambda _: barrier.wait() and None, 4)


def test_with_one_thread_the_caller_runs_the_parts():
    seen = []
    with on_threads(2), threads.limit_threads(1):
        assert threads.thread_count() == 1
        threads.share_out(lambda part: seen.append((part, threading.current_thread())), 3)
    assert seen == [(part, threading.current_thread()) for part in range(3)]
    with on_threads(2):
        assert threads.thread_count() == 2


def test_small_rows_stay_in_one_part():
    assert threads.parts_of(1000) == 1
    assert threads.parts_of(2 * threads.PART_BYTES) == 2
    assert threads.parts_of(1 << 40) == threads.PARTS


def test_the_parts_after_a_failed_one_are_not_begun():
    begun = []

    def work(part):
        begun.append(part)
        raise KeyboardInterrupt

    with on_threads(2), pytest.raises(KeyboardInterrupt):
        threads.share_out(work, 100)
    assert len(begun) <= 2


def test_an_exception_in_a_part_is_raised():
    def work(part):
        if part == 2:
            raise ValueError("part 2 failed")

    with on_threads(2), pytest.raises(ValueError, match="part 2 failed"):
        threads.share_out(work, 4)


def test_a_forked_process_creates_its_own_threads():
    script = """
import os, sys, warnings
warnings.simplefilter("ignore")
from valuefit import threads
threads.share_out(lambda part: None, 4)
child = os.fork()
if child == 0:
    threads.share_out(lambda part: None, 4)
    os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "2"}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, check=False).returncode == 7


def blas_threads():
    return [library.get_num_threads() for library in threads._blas()]


def test_blas_has_its_threads_back_when_the_last_of_several_users_has_left():
    before = blas_threads()
    first, second = threads.one_blas_thread(), threads.one_blas_thread()
    with threads.limit_threads(3):
        inside = blas_threads()
        first.__enter__()
        second.__enter__()
        assert set(blas_threads()) == {1}
        first.__exit__(None, None, None)  # as another thread would: the contexts need not nest
        assert set(blas_threads()) == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == inside
    assert blas_threads() == before


@pytest.mark.parametrize(("most", "expected"), [(400, {1}), (1, {3})])
def test_a_solve_of_few_features_uses_one_blas_thread(most, expected):
    """Threads of BLAS spin after a product, and would take the cores from passes over rows."""
    rng = np.random.default_rng(0)
    problem = vf.Problem.from_rows(rng.normal(size=(51, 2)), range(50), range(1, 51), rng.normal(size=50), 0.9)
    seen = set()
    with threadpool_limits(3), patch.object(threads, "ONE_BLAS_THREAD", most):
        before = blas_threads()
        vf.solve(problem, "krylov", tol=0, max_passes=20, callback=lambda _: seen.update(blas_threads()))
        assert blas_threads() == before
    assert seen == expected
