"""Quantiles of Student's t, also far out in the tails."""

import numpy as np
import pytest
from scipy import stats

from valuefit.inference.student import t_quantile


@pytest.mark.parametrize("tail", [0.5, 0.025, 1e-9, 2**-54, 1 - 1e-9])
@pytest.mark.parametrize("freedom", [1.0, 2.5, 1000.0])
def test_quantiles_are_those_of_scipy(freedom, tail):
    assert t_quantile(freedom, tail) == pytest.approx(stats.t.isf(tail, freedom), abs=1e-12)


def test_a_tail_that_rounds_to_1_has_a_finite_quantile():
    assert np.isfinite(t_quantile(np.array([1.0, 9.0]), 1.0)).all()
