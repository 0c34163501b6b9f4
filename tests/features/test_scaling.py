"""Multi-indices in their order, against a sorted list of all of them."""

import itertools

import numpy as np
import pytest

from valuefit.features.scaling import lowest_indices


def sorted_indices(dimensions, *, each, total, power):
    """All multi-indices: by size, then fewer nonzero entries, then the sequence of their dimensions."""
    every = [c for c in itertools.product(range(each + 1), repeat=dimensions) if sum(c) <= total]

    def order(c):
        sequence = [k for k, entry in enumerate(c) for _ in range(entry)]
        return sum(entry**power for entry in c), np.count_nonzero(c), sequence

    return sorted(every, key=order)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("dimensions", "each"), [(0, 3), (1, 0), (1, 9), (2, 6), (3, 4), (5, 2)])
def test_the_lowest_indices_are_the_first_of_all(dimensions, each, power, monkeypatch):
    monkeypatch.setattr("valuefit.features.scaling.MIN_DROPPED_INDICES", 3)
    total = each * dimensions if power == 2 else each
    every = sorted_indices(dimensions, each=each, total=total, power=power)
    for count in (1, 2, 7, 40, len(every), len(every) + 5):
        found = lowest_indices(dimensions, count, each=each, total=total, power=power)
        assert found.tolist() == [list(c) for c in every[:count]]


def test_many_indices_in_few_and_in_many_dimensions_are_listed():
    assert lowest_indices(1, 20_000, each=10**9, total=10**9, power=2)[-1] == 19_999
    assert lowest_indices(4096, 2000, each=2, total=2, power=1).sum() == 1999
