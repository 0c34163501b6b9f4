"""Objects that are numbers are read as numbers."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import valuefit as vf


@pytest.mark.parametrize("kind", [Decimal, Fraction, float, int])
def test_objects_that_are_numbers(kind):
    rewards = [kind(k) / kind(4) if kind is not int else k for k in range(6)]
    log = vf.load({"obs": np.arange(6.0), "reward": rewards, "terminated": np.arange(6) % 3 == 2})
    np.testing.assert_array_equal(log.reward, np.array(rewards, float))
    assert log.reward[1] in (0.25, 1)
