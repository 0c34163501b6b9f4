"""Weighted, preconditioned mini-batch updates equal those of the naive twins, update by update."""

from __future__ import annotations

import numpy as np
import pytest

import naive
from helpers.batches import CASES, STEPS, Setting, kernel_with
from helpers.twins import apart

BATCHES = (1, 3, 1000)  # 1000: more than the number of draws


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_every_update_equals_that_of_the_twin(name: str, case: str, batch: int) -> None:
    assert Setting(CASES[case]).apart(name, batch) <= 1e-10


@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_updates_equal_the_twin_with_a_preconditioner_from_a_few_sampled_steps(name: str) -> None:
    setting = Setting(CASES["all but identity"], count=9)
    assert setting.weight.std() > 0.01
    assert setting.apart(name, 3) <= 1e-10


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_batches_of_one_without_preconditioner_and_weights_equal_the_plain_method(name: str, case: str) -> None:
    setting = Setting(CASES[case], plain=True)
    for count in (1, 2, len(setting.draws)):
        alone = setting.fast(name, count, None)
        assert apart(setting.fast(name, count, 1)[: len(alone)], alone) <= 1e-10


def test_a_row_drawn_three_times_in_a_batch_of_saga_counts_once() -> None:
    setting = Setting(CASES["ratios"])
    first, t = 2, 7
    setting.draws = np.array([first, first, first, t, t, t])  # the first batch moves the iterate
    theta, w, mean_theta, mean_w, *_ = setting.fast("saga", 3, 3)
    step = naive.steps(setting.log)[t]
    after, before = naive.row_part(setting.log, step, theta, w), naive.row_part(setting.log, step, *setting.start)
    direction = [
        3 * mean + setting.weight[t] * (h - g) for mean, h, g in zip((mean_theta, mean_w), after, before, strict=True)
    ]
    assert np.abs(after[0] - before[0]).max() > 1e-2
    expected = theta - STEPS[0] * setting.theta @ direction[0], w - STEPS[1] * setting.w @ direction[1]
    assert apart(setting.fast("saga", 6, 3)[:2], expected) <= 1e-10


# ---- injected faults: the comparison above must detect each of them -----------------------------------------

FAULTS = {
    "svrg": {
        "weights ignored": ("weight[j] * ", ""),
        "ridge forgotten": ("step.ridge * theta[c]", "0.0"),
        "ridge once per batch": (
            "count * (G_theta[c] + step.ridge * theta[c])",
            "count * G_theta[c] + step.ridge * theta[c]",
        ),
        "snapshot gradient once per batch": ("count = stop - start", "count = 1"),
        "preconditioner of w left out": ("times(P_w, g_w)", "g_w"),
        "preconditioner of theta left out": ("times(P_theta, g_theta)", "g_theta"),
        "w left out where C = I": ("(w[c] if step.identity else 0.0)", "0.0"),
        "sums not reset": ("g_theta[:] = 0.0", "pass"),
        "ratio left out": ("weight[j] * u_factor * u_w", "weight[j] * u_w"),
        "u used for psi": ("dot(psi, now, w) if step.traced else u_w", "u_w"),
        "last batch dropped": ("start < total", "start + batch <= total"),
    },
    "saga": {
        "weights ignored": ("weight[j] * ", ""),
        "weights also in the mean of the table": ("-change_u, c_theta", "-weight[j] * change_u, c_theta"),
        "ridge forgotten": ("step.ridge * theta[c]", "0.0"),
        "mean of the table not updated": ("B_theta[c] += c_theta[c] / n", "pass"),
        "mean of w not updated": ("B_w[c] += c_w[c] / n", "pass"),
        "mean updated before it is used": ("g_w[c] += count * (B_w[c] +", "g_w[c] += count * (B_w[c] + c_w[c] / n +"),
        "table not updated": ("table[t, 0], table[t, 1] = v_theta, psi_w", "pass"),
        "scalar of the trace row not updated": ("table[t, 2] = u_w", "pass"),
        "mean once per batch": ("count = stop - start", "count = 1"),
        "preconditioner of theta left out": ("times(P_theta, g_theta)", "g_theta"),
        "w left out where C = I": ("(w[c] if step.identity else 0.0)", "0.0"),
        "C instead of I": ("if step.identity:", "if False:"),
        "changes not reset": ("c_w[:] = 0.0", "pass"),
    },
}


def largest_difference(name: str, kernel: object) -> float:
    """The largest difference between kernel and twin over three cases."""
    with np.errstate(over="ignore", invalid="ignore"):
        return max(Setting(CASES[case]).apart(name, 3, kernel) for case in ("all but identity", "all", "ratios"))


@pytest.mark.parametrize("name", FAULTS)
def test_the_kernel_in_plain_python_equals_the_twin(name: str) -> None:
    assert largest_difference(name, kernel_with(name)) <= 1e-10


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name in FAULTS for fault in FAULTS[name]])
def test_an_injected_fault_is_detected(name: str, fault: str) -> None:
    assert not largest_difference(name, kernel_with(name, *FAULTS[name][fault])) <= 1e-4
