"""NumPy, used for small problems, and the compiled loops for large ones agree up to rounding; numba loads lazily."""

import subprocess
import sys
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import valuefit as vf
from valuefit.rows import compile
from valuefit.rows.traces import keep_backward, keep_forward, recurrence, trace_backward, trace_forward


def numpy_only():
    return patch.object(compile, "MIN_COMPILED_NUMBERS", np.inf)


def kernels_only():
    return patch.object(compile, "MIN_COMPILED_NUMBERS", 0)


@settings(max_examples=60)
@given(data=st.data())
def test_products_and_moments_agree(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    m, d, n = (data.draw(st.integers(1, most)) for most in (80, 12, 100))
    kind = data.draw(st.sampled_from(["trajectory", "anywhere", "few rows"]))
    now = np.arange(n) % m if kind == "trajectory" else rng.integers(0, max(1, m // 8 if kind == "few rows" else m), n)
    next = now + 1 if kind == "trajectory" else rng.integers(0, m, n)
    next[(next >= m) | (rng.random(n) < 0.1)] = -1
    rows = rng.normal(size=(m, d)) * (rng.random((m, d)) < 0.7)
    storage = data.draw(st.sampled_from([np.asarray, np.float32, sparse.csr_array]))
    dual = data.draw(st.booleans())
    trace, metric = data.draw(st.sampled_from([0.0, 0.6, 1.0])), data.draw(st.sampled_from(["C", "identity"]))
    reward, ratio, episode = rng.normal(size=n), rng.exponential(size=n), np.sort(rng.integers(0, 4, n))
    theta, w, a = rng.normal(size=d), rng.normal(size=d + dual), rng.normal(size=(2, m))
    found = []
    for implementation in (numpy_only, kernels_only):
        with implementation():
            problem = vf.Problem.from_rows(
                storage(rows), now, next, reward, 0.9, ratio, episode,
                trace=trace, metric=metric, dual_rows=storage(np.hstack([rows, rows[:, :1] ** 2])) if dual else None,
            )  # fmt: skip
            numbers = [*problem.B(theta, w), problem.residual(theta), problem.At_dot(w), problem.C_dot(w)]
            numbers += [problem.A, problem.b, problem.C, problem.u_squared_bound]
            numbers += [*problem.phi.dot2(theta, theta), *problem.phi.tdot2(*a), problem.phi.tdot(a[0])]
            found.append([np.array(part, np.float64) for part in numbers])
    for with_numpy, with_kernels in zip(*found, strict=True):
        scale = 1 + np.abs(with_kernels).max(initial=0.0)
        np.testing.assert_allclose(with_numpy, with_kernels, rtol=1e-9, atol=1e-11 * scale)


@settings(max_examples=60)
@given(n=st.integers(1, 300), trace=st.floats(0.01, 1), seed=st.integers(0, 2**32 - 1), episode_rate=st.floats(0, 1))
def test_the_recurrence_by_doubling_equals_the_recurrence_step_by_step(n, trace, seed, episode_rate):
    rng = np.random.default_rng(seed)
    begins = rng.random(n) < episode_rate
    begins[0] = True
    x, ratio = rng.normal(size=n), rng.exponential(size=n)
    discount = np.where(rng.random(n) < 0.1, 0.0, 0.95)
    log = discount, ratio, begins, trace
    size = trace_forward(np.abs(x), *log).max() + trace_backward(np.abs(x), *log).max()
    forward = recurrence(ratio * x, keep_forward(*log))
    backward = recurrence((ratio * x)[::-1], keep_backward(*log)[::-1])[::-1]
    np.testing.assert_allclose(forward, trace_forward(x, *log), rtol=1e-10, atol=1e-12 * size)
    np.testing.assert_allclose(backward, trace_backward(x, *log), rtol=1e-10, atol=1e-12 * size)
    both = np.column_stack([x, -2 * x])
    by_rows = recurrence(ratio[:, None] * both, keep_forward(*log))
    np.testing.assert_allclose(by_rows, np.column_stack([forward, -2 * forward]), rtol=1e-12, atol=1e-14 * size)


IMPORTED_SLOW_LIBRARIES = "{'numba', 'pandas', 'sklearn', 'scipy.stats', 'scipy.optimize'} & set(sys.modules)"


@pytest.mark.parametrize("options", [[], ["--trace", "0.5"], ["--features", "tiles"]])
def test_a_small_evaluation_imports_no_slow_library(tmp_path, options):
    log = tmp_path / "log.csv"
    rng = np.random.default_rng(0)
    lines = [f"{t // 20},{rng.normal():.4f},{rng.normal():.4f},{int(t % 20 == 19)}" for t in range(200)]
    log.write_text("\n".join(["episode,obs_0,reward,terminated", *lines]) + "\n")
    settings = {name.strip("-"): value for name, value in zip(options[::2], options[1::2], strict=True)}
    keywords = {name: float(value) if name == "trace" else value for name, value in settings.items()}
    python = f"import valuefit; valuefit.evaluate({str(log)!r}, discount=0.9, **{keywords!r})"
    arguments = ["evaluate", str(log), "--discount", "0.9", *options]
    command = f"from valuefit.cli.main import main\ntry:\n    main({arguments!r})\nexcept SystemExit as end:\n"
    command += "    assert not end.code, end.code"
    for code in (python, command):
        script = f"import sys\n{code}\nslow = {IMPORTED_SLOW_LIBRARIES}\nassert not slow, slow"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
