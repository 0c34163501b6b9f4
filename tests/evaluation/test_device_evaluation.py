"""evaluate(device=...): the estimate, interval, checks and verdict are those computed in memory."""

import numpy as np
import pytest
import torch

import valuefit as vf
from valuefit.datasets.example import example_log

SETTINGS = {
    "default": {},
    "penalty": {"penalty": 0.01},
    "trace and ridge": {"trace": 0.5, "ridge": 0.01},
    "krylov": {"solver": "krylov", "tol": 1e-10},
    "bootstrap": {"interval": "bootstrap"},
}


@pytest.fixture(scope="module")
def log():
    assert torch.get_default_dtype() == torch.float32  # products must not depend on it
    return example_log()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_evaluation_is_that_in_memory(name, log):
    settings = {"features": "kernel:landmarks=40", **SETTINGS[name]}
    found, expected = (vf.evaluate(log, device=device, **settings) for device in ("cpu", None))
    assert found.result.status == expected.result.status == "converged"
    error = expected.policy_value.standard_error
    assert abs(found.policy_value.estimate - expected.policy_value.estimate) <= 1e-3 * error
    np.testing.assert_allclose(
        found.policy_value.interval, expected.policy_value.interval, rtol=1e-3, atol=1e-3 * error
    )
    assert found.verdict.level == expected.verdict.level
    assert [check.name for check in found.checks] == [check.name for check in expected.checks]


def test_sparse_features_are_refused(log):
    with pytest.raises(ValueError, match="Sparse rows are not supported on a device"):
        vf.evaluate(log, features="tiles", device="cpu")


def test_a_solver_of_single_rows_is_refused(log):
    with pytest.raises(ValueError, match="device"):
        vf.evaluate(log, features="fourier:order=3", device="cpu", solver="saga")
