"""Candidates of `select`: lists and grids, groups with the same features, words, refusals."""

import numpy as np
import pytest

from valuefit.evaluation.candidates import by_features, candidates_of, described
from valuefit.features import Tiles


def test_a_grid_gives_all_combinations_and_missing_settings_their_defaults():
    found = candidates_of({"features": ["kernel", "auto"], "ridge": [0.0, 0.1]})
    assert [(one["features"], one["ridge"], one["trace"]) for one in found] == [
        ("kernel", 0.0, 0.0), ("kernel", 0.1, 0.0), ("auto", 0.0, 0.0), ("auto", 0.1, 0.0),
    ]  # fmt: skip
    assert candidates_of([{"trace": 0.5}]) == [{"features": "auto", "trace": 0.5, "ridge": 0.0}]


def test_candidates_with_the_same_features_are_together_in_the_order_of_traces_and_ridges():
    tiles, unhashable = Tiles(), ([0],)
    given = candidates_of([
        {"features": "kernel", "ridge": 0.1}, {"features": tiles}, {"features": "kernel", "trace": 0.5},
        {"features": "kernel"}, {"features": Tiles()}, {"features": tiles, "ridge": 0.2},
        {"features": unhashable},
    ])  # fmt: skip
    assert by_features(given) == [[3, 0, 2], [1, 5], [4], [6]]


def test_words():
    def squares(observations):
        return np.asarray(observations) ** 2

    given = candidates_of([
        {"features": "kernel:landmarks=5"}, {"features": squares, "trace": 0.5, "ridge": 1e-3}, {"features": Tiles(2)},
    ])  # fmt: skip
    assert described(given[0]) == "kernel:landmarks=5"
    assert described(given[1]) == "squares, trace 0.5, ridge 0.001"
    assert described(given[2]).startswith("Tiles(")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "give a list of settings"),
        ("kernel", "candidates is 'kernel'; give a list of settings"),
        ({"features": "kernel"}, "The grid has 'kernel' for 'features'; give a list of values"),
        ({"ridge": []}, "give a list of values for each setting"),
        (["kernel"], "A candidate is 'kernel'; give a dict of settings"),
        ([{"trace": 2}], "trace is 2; it must lie between 0 and 1"),
        ([{"ridge": [0.1]}], r"ridge is \[0.1\]; it must be a finite number"),
        ([{"solver": "lstd"}], "A candidate sets 'solver'; candidates differ in features, trace, ridge"),
    ],
)
def test_refusals(given, message):
    with pytest.raises(ValueError, match=message):
        candidates_of(given)
