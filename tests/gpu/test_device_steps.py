"""Steps on a device: rows, differences and recurrences equal plain loops, in both layouts of the rows."""

import numpy as np
import pytest
import torch

import naive
from helpers.devices import device_log
from valuefit.gpu.device_steps import DeviceSteps, recurrence
from valuefit.problem.arguments import StepArrays

LAYOUTS = ["trace", "shuffled trace"]


def array(tensor):
    return tensor.numpy()


def test_recurrence_equals_a_loop_for_numbers_and_rows():
    rng = np.random.default_rng(0)
    x, keep = rng.standard_normal((37, 3)), rng.random(37) * (rng.random(37) < 0.8)
    expected = x.copy()
    for t in range(1, 37):
        expected[t] += keep[t] * expected[t - 1]
    keep[0] = 0.0
    rows = recurrence(torch.from_numpy(x), torch.from_numpy(keep))
    np.testing.assert_allclose(array(rows), expected, rtol=1e-13)
    numbers = recurrence(torch.from_numpy(x[:, 0]), torch.from_numpy(keep))
    np.testing.assert_allclose(array(numbers), expected[:, 0], rtol=1e-13)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_trajectory_is_recognised_and_its_rows_are_not_gathered(kind):
    _, phi, _, steps = device_log(kind)
    assert steps.trajectory == (kind == "trace")
    if steps.trajectory:
        assert len(steps.ratio) == phi.shape[0]
        assert int(steps.live.sum()) == steps.count < phi.shape[0]


def test_a_step_to_another_row_than_the_next_is_no_trajectory():
    _, _, _, steps = device_log("on-policy")
    assert steps.trajectory
    columns = StepArrays(*map(np.array, ([0, 1], [1, 0], [1.0, 1.0], [0.9, 0.9], [1.0, 1.0], [True, False])))
    assert not DeviceSteps(columns, torch.device("cpu"), trace=0.0, rows=3).trajectory
    columns = columns._replace(discount=np.array([0.9, 0.0]))  # terminated: its next row does not matter
    assert DeviceSteps(columns, torch.device("cpu"), trace=0.0, rows=3).trajectory


@pytest.mark.parametrize("kind", LAYOUTS)
def test_differences_and_traces_equal_those_of_plain_loops(kind):
    log, phi, _, steps = device_log(kind)
    rng = np.random.default_rng(2)
    theta, w = rng.standard_normal((2, phi.shape[1]))
    vectors = naive.steps(log)
    U, V = np.array([step[0] for step in vectors]), np.array([step[1] for step in vectors])
    live = array(steps.live) > 0
    p, q = phi.dot(torch.from_numpy(theta)), phi.dot(torch.from_numpy(w))
    np.testing.assert_allclose(array(steps.difference(p))[live], V @ theta, rtol=1e-11, atol=1e-11)
    uw = steps.forward(steps.at_now(q))
    np.testing.assert_allclose(array(uw)[live], U @ w, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(array(phi.tdot(steps.difference_transposed(uw))), V.T @ (U @ w), rtol=1e-10)
    along = phi.tdot(steps.sum_now(steps.backward(steps.difference(p))))
    np.testing.assert_allclose(array(along), U.T @ (V @ theta), rtol=1e-10)
    np.testing.assert_array_equal(array(steps.visits), np.bincount(log.now, minlength=phi.shape[0]))


@pytest.mark.parametrize("kind", ["trace", "shuffled trace", "dual ridge trace"])
def test_rows_of_a_batch_equal_those_of_plain_loops(kind):
    log, phi, psi, steps = device_log(kind)
    vectors = naive.steps(log)
    V, places = np.array([step[1] for step in vectors]), steps.live.nonzero()[:, 0]
    chosen = np.array([5, 3, 3, len(V) - 1])
    rows, v = steps.psi_and_v(phi, psi, places[torch.from_numpy(chosen)])
    np.testing.assert_allclose(v.numpy(), V[chosen], rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(rows.numpy(), log.Psi[log.now[chosen]])
