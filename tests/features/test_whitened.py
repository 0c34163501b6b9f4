"""Whitened features: a mean of zero, unit covariance, a constant in front, and dependent columns left out."""

from unittest.mock import patch

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import wide_log
from valuefit.features import whitened
from valuefit.features.registry import make
from valuefit.features.whitened import whiten


def steps_of(features, log):
    return features.transform(log.observations)[log.now]


@pytest.mark.parametrize("features", ["fourier:order=3", "tiles:tilings=2,bins=3", "polynomial:degree=2"])
def test_over_the_log_columns_have_mean_zero_and_unit_covariance(features):
    log = wide_log()
    found = whiten(make(features, log)[0], log, constant=7.0)
    rows = steps_of(found, log)
    np.testing.assert_array_equal(rows[:, 0], 7.0)
    np.testing.assert_allclose(rows[:, 1:].mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(np.cov(rows[:, 1:].T, bias=True), np.eye(rows.shape[1] - 1), atol=1e-6)


def test_dependent_and_constant_columns_are_left_out():
    log = wide_log()

    def rows(x):
        return np.column_stack([np.full(len(x), 1e6), x, x @ [1.0, -2.0] + 1e6, 1e-9 * x[:, 0] ** 2])

    found = whiten(make(rows, log)[0], log, constant=1.0)
    assert found.columns == 1 + 3
    assert "3 independent columns" in found.sentence
    span = steps_of(found, log)
    fitted = span @ np.linalg.lstsq(span, rows(log.observations)[log.now], rcond=None)[0]
    np.testing.assert_allclose(fitted, rows(log.observations)[log.now], rtol=1e-9, atol=1e-12)


def test_the_span_is_that_of_the_features_and_a_constant():
    log = vf.Transitions.from_arrays(np.arange(30) % 5, np.ones(30), terminated=np.arange(30) % 10 == 9)
    found = whiten(make("one-hot", log)[0], log, constant=1.0)
    assert found.columns == 5
    assert np.linalg.matrix_rank(steps_of(found, log)) == 5


def test_the_chosen_columns_give_the_same_rows_again():
    log = wide_log()
    features = make("tiles:tilings=2,bins=3", log)[0]
    once = whiten(features, log, constant=2.0)
    again = whiten(features, log, constant=2.0, kept=once.transformer.kept.tolist())
    np.testing.assert_allclose(steps_of(again, log), steps_of(once, log), rtol=1e-9, atol=1e-9)


def test_features_that_are_all_constant_leave_a_constant():
    log = wide_log()
    found = whiten(make(lambda x: np.ones((len(x), 2)), log)[0], log, constant=3.0)
    np.testing.assert_array_equal(steps_of(found, log), np.full((len(log), 1), 3.0))


def test_what_does_not_fit_into_memory_is_refused():
    log = wide_log()
    features = make("tiles", log)[0]
    with (
        patch.object(whitened, "fits", return_value=False),
        pytest.raises(ValueError, match=r"dense, which for \d+ observations do not fit .* Use fewer features"),
    ):
        whiten(features, log, constant=1.0)
