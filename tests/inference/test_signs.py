from __future__ import annotations

import numpy as np
import pytest

from valuefit.inference.signs import BLOCK_SIGNS, random_signs


@pytest.mark.parametrize("width", [1, 3, 1000, 2 * BLOCK_SIGNS])
def test_rows_do_not_depend_on_the_range_that_is_asked_for(width: int) -> None:
    rows = max(1, BLOCK_SIGNS // width)
    whole = random_signs((4,), 0, 2 * rows + 3, width)
    for first, stop in ((0, 1), (rows - 1, rows + 1), (rows, 2 * rows), (1, 2 * rows + 3)):
        np.testing.assert_array_equal(random_signs((4,), first, stop, width), whole[first:stop])
    np.testing.assert_array_equal(random_signs((4,), rows, rows, width), whole[:0])


def test_signs_are_random_and_differ_by_key() -> None:
    one, other = random_signs((0, 0), 0, 200_000)[:, 0], random_signs((0, 1), 0, 200_000)[:, 0]
    assert set(one) == {-1.0, 1.0}
    for product in (one, other, one * other, one[1:] * one[:-1], one[BLOCK_SIGNS:] * one[:-BLOCK_SIGNS]):
        assert abs(product.mean()) < 4 / np.sqrt(len(product))
