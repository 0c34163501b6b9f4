"""C of sketched rows multiplied in float32: close to float64, checked afterwards, and refused where it would decide."""

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import chain, cosines
from valuefit.precondition import factor as module
from valuefit.problem.exact import Exact


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Small problems would not try it."""
    monkeypatch.setattr(module, "MIN_FLOAT32_PASSES", 0.0)


def both(problem, size):
    return [module.sketch(problem, size=size, cross=False, allow_float32=allow) for allow in (True, False)]


def even(columns, n=900):
    rng = np.random.default_rng(0)
    return chain(rng.standard_normal((n + 1, len(columns))) * columns, rng.standard_normal(n))


def test_it_is_the_sketch_of_float64_but_for_rounding():
    single, double = both(even(np.logspace(-6, 6, 12)), 60)
    assert single.rows is not None
    assert single.rows.dtype == np.float32
    assert double.rows is None
    lengths = np.sqrt(np.diag(double.C))
    np.testing.assert_allclose(single.C / np.outer(lengths, lengths), double.C / np.outer(lengths, lengths), atol=1e-6)
    assert (single.excess, single.likely) == (double.excess, double.likely)
    assert not np.array_equal(single.C, double.C)


def test_half_the_passes_are_counted():
    problem = even(np.ones(12))
    single, double = both(problem, 60)
    assert double.passes - single.passes == pytest.approx(problem.cost.flops(60 * 12**2 / 2))


@pytest.mark.parametrize("spread", [3.0, 0.7])
def test_the_factor_is_bounded_by_C_as_it_says(spread):
    problem = cosines(1200, 15, spread=spread)
    factor = module.factorise(problem, module.sketch(problem, size=60, cross=False))
    L = np.zeros((15, 15))
    L[factor.kept] = factor.L
    slack = factor.excess * problem.C - L @ L.T
    assert np.linalg.eigvalsh(slack)[0] >= -1e-12 * np.abs(problem.C).max()


def test_columns_too_near_to_dependent_are_multiplied_again_in_float64():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((901, 5))
    problem = chain(np.column_stack([x, x[:, 0] + 1e-4 * rng.standard_normal(901)]), rng.standard_normal(900))
    single, double = both(problem, 60)
    found, expected = (module.factorise(problem, moments) for moments in (single, double))
    assert found.L.tobytes() == expected.L.tobytes()
    assert (found.excess, found.clear) == (expected.excess, expected.clear)
    assert found.passes > expected.passes + single.passes  # what was in vain counts too


@pytest.mark.parametrize("length", [1e-30, 0.0, 1e30])
def test_columns_outside_the_range_of_float32_are_not_lost(length):
    problem = even(np.array([1.0, 1.0, length, 1.0]))
    single, double = both(problem, 40)
    assert single.rows is None
    assert single.C.tobytes() == double.C.tobytes()


def test_a_wrong_product_is_noticed():
    """A fault planted in one entry of C, a thousandth of what its columns share, where they are nearly dependent."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((901, 5))
    problem = chain(np.column_stack([x, x[:, 0] + 0.1 * rng.standard_normal(901)]), rng.standard_normal(900))
    single, double = both(problem, 60)
    assert module.factorise(problem, single).L.tobytes() != module.factorise(problem, double).L.tobytes()
    C = single.C.copy()
    C[0, 5] *= 0.999
    C[5, 0] *= 0.999
    found = module.factorise(problem, single._replace(C=C))
    assert found.L.tobytes() == module.factorise(problem, double).L.tobytes()


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_rounding_is_measured(size):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 30)) / 20
    fault = rng.standard_normal((30, 30))
    E = size * 0.1 * (fault + fault.T) / 30
    L = np.linalg.cholesky(X.T @ X + E)
    true = np.abs(np.linalg.eigvalsh(np.linalg.solve(L, np.linalg.solve(L, E).T))).max()
    assert 0.3 * true <= module.rounding(L, X) <= true * (1 + 1e-9)
    exact = np.linalg.cholesky(X.T @ X)
    assert module.rounding(exact, X) <= 1e-12


@pytest.mark.parametrize("spread", [2.0, 0.5])
def test_the_gap_is_what_krylov_says(monkeypatch, spread):
    monkeypatch.setattr(module, "plan", lambda problem, growth=1.0: (int(growth * 4 * problem.k), False))
    monkeypatch.setattr("valuefit.precondition.preconditioner.plan", module.plan)
    problem = cosines(3000, 40, spread=spread)
    result = vf.solve(problem, "krylov", tol=1e-8)
    assert result.status == "converged"
    assert Exact(problem).gap(result.theta) <= result.gap <= 1e-8
