"""The change of the policy value by finer features: against an evaluation with them."""

from unittest.mock import patch

import numpy as np
import pytest

from helpers.fits import fit_of
from helpers.small_mdp import SmallMDP
from valuefit.checks import finer
from valuefit.checks.finer import finer_change, finer_features, richer_features
from valuefit.datasets.example import example_log
from valuefit.inference.errors import Errors

LOG = example_log()
LOG = LOG[LOG.episode < 20]


def parts(fit):
    return Errors.in_memory(fit.errors.equations, fit.errors.whole.shard, "cr1").parts([fit.starts])[0]


@pytest.mark.parametrize(("features", "expected"), [
    ("kernel:landmarks=20", "kernel:landmarks=40"),
    ("polynomial:degree=2", f"kernel:landmarks={2 * (len(LOG) // 20)}"),
])  # fmt: skip
def test_it_is_the_difference_from_an_evaluation_with_the_features_that_it_names(features, expected):
    fit = fit_of(LOG, features=features)
    change = finer_change(fit)
    other = fit_of(LOG, features=expected)
    assert change.features == expected
    assert change.value == pytest.approx(other.value.estimate - fit.value.estimate, rel=1e-5)
    assert change.standard_error == pytest.approx(np.linalg.norm(parts(other) - parts(fit)), rel=1e-5)


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_numbered_states_get_one_feature_each(values):
    mdp = SmallMDP(off_policy=True, features=2)
    settings = {"discount": 0.9, "policy": mdp.policy, "values": values}
    fit, full = (fit_of(mdp.log(100, propensities=True), features=each, **settings) for each in (mdp.rows, "one-hot"))
    assert finer_features(fit) == "one-hot"
    assert richer_features(fit) == "auto"
    assert finer_change(fit).value == pytest.approx(full.value.estimate - fit.value.estimate, rel=1e-6)


def test_it_is_not_computed_where_it_is_expensive_or_starts_are_given():
    fit = fit_of(LOG, features="kernel:landmarks=20")
    with patch.object(finer, "MAX_AUTO_OPERATIONS", 1.0):
        assert finer_change(fit) is None
    with patch.object(finer, "fits", lambda count: False):
        assert finer_change(fit) is None
    assert finer_change(fit_of(LOG, features="kernel:landmarks=20", starts=np.array([[-0.5, 0.0]]))) is None
