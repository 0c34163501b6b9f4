"""Updates of several rows at once, weighted and in a metric, step by step against the naive twins."""

from __future__ import annotations

import numpy as np
import pytest

import naive
from helpers.batches import CASES, STEPS, Setting, kernel_with
from helpers.twins import apart

BATCHES = (1, 3, 1000)  # 1000: more than there are draws


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_every_update_equals_that_of_the_twin(name: str, case: str, batch: int) -> None:
    assert Setting(CASES[case]).apart(name, batch) <= 1e-10


@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_so_it_does_with_the_metric_of_a_few_sampled_steps(name: str) -> None:
    setting = Setting(CASES["all but identity"], count=9)
    assert setting.weight.std() > 0.01
    assert setting.apart(name, 3) <= 1e-10


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_single_rows_without_metric_and_weights_are_the_plain_method(name: str, case: str) -> None:
    setting = Setting(CASES[case], plain=True)
    for count in (1, 2, len(setting.draws)):
        alone = setting.fast(name, count, None)
        assert apart(setting.fast(name, count, 1)[: len(alone)], alone) <= 1e-10


def test_a_row_drawn_three_times_in_a_batch_of_saga_counts_once() -> None:
    setting = Setting(CASES["ratios"])
    other, t = 2, 7
    setting.draws = np.array([other, other, other, t, t, t])  # the first batch moves the iterate
    theta, w, mean_theta, mean_w, *_ = setting.fast("saga", 3, 3)
    step = naive.steps(setting.log)[t]
    after, before = naive.row_part(setting.log, step, theta, w), naive.row_part(setting.log, step, *setting.start)
    by = [
        3 * mean + setting.weight[t] * (h - g) for mean, h, g in zip((mean_theta, mean_w), after, before, strict=True)
    ]
    assert np.abs(after[0] - before[0]).max() > 1e-2
    expected = theta - STEPS[0] * setting.theta @ by[0], w - STEPS[1] * setting.w @ by[1]
    assert apart(setting.fast("saga", 6, 3)[:2], expected) <= 1e-10


# ---- faults that were planted: the comparison above must see every one -------------------------------------

FAULTS = {
    "svrg": {
        "weights ignored": ("weight[j] * ", ""),
        "ridge forgotten": ("step.ridge * theta[c]", "0.0"),
        "ridge once a batch": (
            "count * (G_theta[c] + step.ridge * theta[c])",
            "count * G_theta[c] + step.ridge * theta[c]",
        ),
        "snapshot's gradient once a batch": ("count = stop - start", "count = 1"),
        "metric of w left out": ("times(P_w, g_w)", "g_w"),
        "metric of theta left out": ("times(P_theta, g_theta)", "g_theta"),
        "w left out where C = I": ("(w[c] if step.identity else 0.0)", "0.0"),
        "sums not emptied": ("g_theta[:] = 0.0", "pass"),
        "ratio left out": ("weight[j] * u_factor * u_w", "weight[j] * u_w"),
        "psi and u confused": ("dot(psi, now, w) if traced else u_w", "u_w"),
        "last batch dropped": ("start < total", "start + batch <= total"),
    },
    "saga": {
        "weights ignored": ("weight[j] * ", ""),
        "weights also in the table's mean": ("-change_u, c_theta", "-weight[j] * change_u, c_theta"),
        "ridge forgotten": ("step.ridge * theta[c]", "0.0"),
        "table's mean not updated": ("B_theta[c] += c_theta[c] / n", "pass"),
        "mean of w not updated": ("B_w[c] += c_w[c] / n", "pass"),
        "mean before it is used": ("g_w[c] += count * (B_w[c] +", "g_w[c] += count * (B_w[c] + c_w[c] / n +"),
        "table not written": ("table[t, 0], table[t, 1] = v_theta, psi_w", "pass"),
        "trace's scalar not written": ("table[t, 2] = u_w", "pass"),
        "mean once a batch": ("count = stop - start", "count = 1"),
        "metric of theta left out": ("times(P_theta, g_theta)", "g_theta"),
        "w left out where C = I": ("(w[c] if step.identity else 0.0)", "0.0"),
        "C in place of I": ("if step.identity:", "if False:"),
        "changes not emptied": ("c_w[:] = 0.0", "pass"),
    },
}


def worst(name: str, kernel: object) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return max(Setting(CASES[case]).apart(name, 3, kernel) for case in ("all but identity", "all", "ratios"))


@pytest.mark.parametrize("name", FAULTS)
def test_the_kernel_in_plain_python_has_no_fault(name: str) -> None:
    assert worst(name, kernel_with(name)) <= 1e-10


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name in FAULTS for fault in FAULTS[name]])
def test_a_planted_fault_is_seen(name: str, fault: str) -> None:
    assert not worst(name, kernel_with(name, *FAULTS[name][fault])) <= 1e-4
