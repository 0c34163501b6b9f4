"""Products that read the rows once equal the same sums in plain loops."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import valuefit as vf
from valuefit.rows import compile
from valuefit.rows.products import CACHED_BLOCKS, schedule
from valuefit.threads import PART_BYTES


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    """Use compiled loops, which small problems do not use by default."""
    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0):
        yield


def plain_sums(problem, theta, w):
    """A'w and A theta - b + C w, step by step."""
    rows = problem.phi.matrix.astype(float)
    Atw, rest = np.zeros(problem.d), np.zeros(problem.d)
    for t in range(problem.n):
        now = rows[problem.now[t]]
        v = now - problem.discount[t] * rows[problem.next[t]]
        u = problem.ratio[t] * now
        Atw += v * (u @ w) / problem.n
        rest += u * (v @ theta - problem.reward[t]) / problem.n
        rest += (w if problem.identity else now * (now @ w)) / problem.n
    return Atw, rest


@settings(max_examples=60)
@given(data=st.data())
def test_sweeps_equal_the_plain_sums(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    m, d, n = (data.draw(st.integers(1, most)) for most in (300, 5, 400))
    kind = data.draw(st.sampled_from(["trajectory", "anywhere", "backwards"]))
    now = rng.integers(0, m, n)
    next = {"anywhere": rng.integers(0, m, n), "trajectory": now + 1, "backwards": now - 1}[kind]
    next[(next >= m) | (rng.random(n) < 0.1)] = -1
    dtype = data.draw(st.sampled_from([np.float64, np.float32]))
    problem = vf.Problem.from_rows(
        rng.normal(size=(m, d)).astype(dtype), now, next, rng.normal(size=n), 0.9, rng.exponential(size=n),
        ridge=data.draw(st.sampled_from([0.0, 0.3])), metric=data.draw(st.sampled_from(["C", "identity"])),
    )  # fmt: skip
    theta, w = rng.normal(size=(2, d))
    Atw, rest = plain_sums(problem, theta, w)
    of_theta, of_w = problem.B(theta, w)
    np.testing.assert_allclose(of_theta, problem.ridge * theta - Atw, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(of_w, rest, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        -problem.residual(theta), plain_sums(problem, theta, np.zeros(d))[1], rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("parts", [1, 2, 9])
@pytest.mark.parametrize("far", [False, True])
def test_every_row_is_added_once_and_after_its_neighbours(far, parts):
    rng = np.random.default_rng(0)
    m = 1000
    now = np.arange(m - 1)
    next = rng.permutation(m)[: m - 1] if far else now + 1
    plan = schedule(now, next, m, row_bytes=1.1 * parts * PART_BYTES / m)
    assert plan.parts == parts
    assert sorted(plan.ready) == list(range(m))
    for g in range(plan.blocks):
        first = g // plan.span * plan.span * plan.block  # first row of the part
        read = min((g + 1) * plan.block, m)
        for i in plan.ready[plan.ready_starts[g] : plan.ready_starts[g + 1]]:
            steps = plan.order[plan.starts[i] : plan.starts[i + 1]]
            back = plan.back_order[plan.back_starts[i] : plan.back_starts[i + 1]]
            assert first <= min(i, *next[steps], *now[back])
            assert max(i, *next[steps], *now[back], 0) < read
            assert read - i <= (CACHED_BLOCKS + 1) * plan.block  # still in cache
    late = len(plan.ready) - plan.ready_starts[plan.blocks]
    assert late > 300 if far else late == 2 * (plan.parts - 1)
