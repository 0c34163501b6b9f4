"""evaluate(device=...): the estimate, interval, checks and verdict are those computed in memory."""

import numpy as np
import pytest
import torch

import valuefit as vf
from valuefit.datasets.example import example_log
from valuefit.gpu.device_rows import HostProducts

SETTINGS = {
    "trace and ridge": {"trace": 0.5, "ridge": 0.01},
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


def long_log(steps=20_000, length=40):
    rng = np.random.default_rng(0)
    observations = np.cumsum(rng.standard_normal((steps, 2)), axis=0) % 7
    last = np.arange(steps) % length == length - 1
    return vf.Transitions.from_arrays(
        observations, np.sin(observations[:, 0]) + rng.standard_normal(steps), terminated=last
    )


@pytest.mark.parametrize(
    "settings",
    [{}, {"interval": "cr1"}, {"trace": 0.5}, {"ridge": 0.01}],
    ids=["cr3", "cr1", "trace", "ridge"],
)
def test_standard_errors_are_computed_with_the_rows_on_the_device(settings, monkeypatch):
    arguments = {"features": "kernel:landmarks=60", "solver": "lstd", "level": 0.9, **settings}
    log = long_log()
    expected = vf.evaluate(log, **arguments)
    assert expected.problem.large
    calls = []
    for name in ("dot", "group_dots"):
        method = getattr(HostProducts, name)
        monkeypatch.setattr(
            HostProducts, name, lambda *args, name=name, method=method: calls.append(name) or method(*args)
        )
    found = vf.evaluate(log, device="cpu", **arguments)
    assert {"dot"} | ({"group_dots"} if settings.get("interval") != "cr1" else set()) <= set(calls)
    for name in ("estimate", "standard_error", "effective_episodes"):
        np.testing.assert_allclose(
            getattr(found.policy_value, name), getattr(expected.policy_value, name), rtol=1e-8, err_msg=name
        )
    assert found.problem.phi.on_device is None  # the memory of the device is free again
    assert found.verdict.level == expected.verdict.level
