"""Other traces (checks="all"), and the change by finer features: against evaluations with them."""

from unittest.mock import patch

import numpy as np
import pytest

import valuefit as vf
from helpers.fits import fit_of
from helpers.small_mdp import SmallMDP
from valuefit.checks import alternatives
from valuefit.checks.alternatives import finer_change, finer_features, richer_features
from valuefit.datasets.example import example_log
from valuefit.inference.errors import Errors


def checks_of(log, **settings):
    return {check.name: check for check in vf.evaluate(log, **{"discount": 0.9, "checks": "all", **settings}).checks}


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_traces_are_solved_again(values):
    mdp = SmallMDP(off_policy=True)
    log = mdp.log(100, propensities=True)
    settings = {"policy": mdp.policy, "values": values}
    found = checks_of(log, **settings)
    plain = vf.evaluate(log, discount=0.9, **settings).policy_value
    assert "trace 0" not in found
    for trace in (0.5, 0.9):
        other = vf.evaluate(log, discount=0.9, trace=trace, tol=1e-12, **settings).policy_value
        change = (other.estimate - plain.estimate) / plain.standard_error
        assert found[f"trace {trace:g}"].size == pytest.approx(abs(change), rel=1e-4, abs=1e-6)
        assert found[f"trace {trace:g}"].outcome == "pass"
        assert found[f"trace {trace:g}"].p_value > 0.01


def test_the_trace_test_has_its_size():
    mdp = SmallMDP()
    p = [checks_of(mdp.log(40, seed=seed))["trace 0.9"].p_value for seed in range(60)]
    assert 0.2 < np.mean(np.array(p) < 0.5) < 0.8
    assert np.mean(np.array(p) < 0.05) < 0.2


def test_a_trace_that_moves_the_value_warns():
    """A timer that the observations do not contain: rewards come two steps after the start."""
    rng = np.random.default_rng(0)
    n, length = 6000, 4
    time = np.arange(n) % length
    start = rng.normal(size=n // length).repeat(length)
    x = np.where(time == 0, start, rng.normal(size=n))[:, None]
    log = vf.Transitions.from_arrays(
        x, np.where(time == 2, 5 * start, 0.0) + 0.1 * rng.normal(size=n), terminated=time == length - 1
    )
    found = checks_of(log, features=lambda x: np.column_stack([np.ones(len(x)), x]), starts=[[1.0]])
    assert found["trace 0.9"].outcome == "warn"
    assert "more than its sampling error" in found["trace 0.9"].message


def test_standard_checks_solve_nothing_again():
    found = checks_of(SmallMDP().log(30), checks="standard")
    assert not {"trace 0.5", "trace 0.9"} & set(found)
    with pytest.raises(ValueError, match="it must be one of 'standard', 'all'"):
        checks_of(SmallMDP().log(30), checks="some")


# ---- finer features ----

LOG = example_log()
LOG = LOG[LOG.episode < 20]


@pytest.mark.parametrize(("features", "expected"), [
    ("kernel:landmarks=20", "kernel:landmarks=40"),
    ("polynomial:degree=2", f"kernel:landmarks={2 * (len(LOG) // 20)}"),
])  # fmt: skip
def test_it_is_the_difference_from_an_evaluation_with_the_features_that_it_names(features, expected):
    fit = fit_of(LOG, features=features)
    change = finer_change(fit)
    other = fit_of(LOG, features=expected)
    parts = [
        Errors.in_memory(each.errors.equations, each.errors.whole.shard, "cr1").parts([each.starts])[0]
        for each in (fit, other)
    ]
    assert change.setting == f'`features="{expected}"`'
    assert change.value == pytest.approx(other.value.estimate - fit.value.estimate, rel=1e-5)
    assert change.standard_error == pytest.approx(np.linalg.norm(parts[1] - parts[0]), rel=1e-5)


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
    with patch.object(alternatives, "MAX_AUTO_OPERATIONS", 1.0):
        assert finer_change(fit) is None
    with patch.object(alternatives, "fits", lambda count: False):
        assert finer_change(fit) is None
    assert finer_change(fit_of(LOG, features="kernel:landmarks=20", starts=np.array([[-0.5, 0.0]]))) is None
