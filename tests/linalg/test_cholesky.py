"""Cholesky factors with jitter and with pivots, against dense algebra."""

import numpy as np
import pytest

from valuefit.linalg.cholesky import jittered_cholesky, pivoted_cholesky, scaled_cholesky


def gram(rows, columns, seed=0):
    X = np.random.default_rng(seed).standard_normal((rows, columns))
    return X.T @ X


def test_a_definite_matrix_gets_no_jitter():
    S = gram(20, 5)
    np.testing.assert_allclose(jittered_cholesky(S), np.linalg.cholesky(S), rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e150])
def test_singular_and_slightly_indefinite_matrices_get_little(scale):
    S = gram(3, 6)
    S -= 1e-13 * np.eye(6)
    lower = jittered_cholesky(scale * S)
    np.testing.assert_allclose(lower @ lower.T / scale, S, atol=1e-9 * np.abs(S).max())


def test_zero_rows_get_a_positive_pivot():
    S = gram(9, 4)
    S[2], S[:, 2] = 0.0, 0.0
    assert np.diag(jittered_cholesky(S)).min() > 0
    assert np.array_equal(jittered_cholesky(np.zeros((2, 2))) > 0, np.eye(2, dtype=bool))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_is_refused_with_a_sentence(value):
    with pytest.raises(ValueError, match=r"range of numbers.*Rescale"):
        jittered_cholesky(np.full((2, 2), value))


@pytest.mark.parametrize("rank", [0, 1, 3, 6])
def test_pivots_find_the_rank(rank):
    S = gram(rank, 6)
    size = np.sqrt(np.where(np.diag(S) > 0, np.diag(S), 1.0))
    S /= np.outer(size, size)
    lower, order, found, pivoted = pivoted_cholesky(S, zero=1e-13)
    assert (found, pivoted) == (rank, rank < 6)
    assert not lower[:, found:].any()
    np.testing.assert_allclose(lower @ lower.T, S[np.ix_(order, order)], atol=1e-12)


@pytest.mark.parametrize("units", [1.0, 1e-7])
def test_a_scaled_factor_inverts_what_is_left_without_zero_columns(units):
    S = gram(20, 5)
    S[1], S[:, 1] = 0.0, 0.0
    S *= np.outer([units, 1, 1, 1, 1], [units, 1, 1, 1, 1])
    factor = scaled_cholesky(S)
    kept, rows = [0, 2, 3, 4], np.random.default_rng(1).standard_normal((7, 5))
    expected = np.einsum("ij,jk,ik->i", rows[:, kept], np.linalg.inv(S[np.ix_(kept, kept)]), rows[:, kept])
    np.testing.assert_allclose(factor.inverse_forms(rows), expected, rtol=1e-9)
    size = np.sqrt(np.diag(S)[kept])
    assert factor.condition == pytest.approx(np.linalg.cond(S[np.ix_(kept, kept)] / np.outer(size, size), 1), rel=0.5)


def test_dependent_columns_have_no_scaled_factor():
    assert scaled_cholesky(gram(3, 6)) is None
    assert scaled_cholesky(np.zeros((3, 3))) is None
