"""Rows and steps on a device: products and recurrences equal plain loops, in both layouts of the rows."""

import numpy as np
import pytest
import torch

import naive
from helpers.devices import device_log
from valuefit.gpu import device_rows as device
from valuefit.gpu.device_rows import RowSums, TensorRows, recurrence

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


@pytest.mark.parametrize("index", [[0, 0, 2, 2, 2, 5], [5, 0, 2, 0, 2, 2], [3]])
def test_sums_by_row_equal_bincount(index):
    values = np.random.default_rng(1).standard_normal(len(index))
    found = RowSums(torch.tensor(index), 6)(torch.from_numpy(values))
    np.testing.assert_allclose(array(found), np.bincount(index, values, 6), rtol=1e-14)


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
    columns = [torch.tensor(column) for column in ([0, 1], [1, 0], [1.0, 1.0], [0.9, 0.9], [1.0, 1.0], [True, False])]
    assert not device.DeviceSteps(columns, 0.0, 3).trajectory
    columns[3] = torch.tensor([0.9, 0.0])  # terminated: its next row does not matter
    assert device.DeviceSteps(columns, 0.0, 3).trajectory


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


def test_products_of_float32_rows_are_those_of_the_stored_numbers_in_float64(monkeypatch):
    monkeypatch.setattr(device, "CPU_BLOCK_BYTES", 8 * 5 * 7)  # blocks of 7 rows
    matrix = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    rows, exact = TensorRows(matrix), matrix.double().numpy()
    x, a = np.random.default_rng(3).standard_normal(5), np.random.default_rng(4).standard_normal(50)
    np.testing.assert_allclose(array(rows.dot(torch.from_numpy(x))), exact @ x, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(array(rows.tdot(torch.from_numpy(a))), exact.T @ a, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(array(rows.column_squares(torch.from_numpy(a))), a @ exact**2, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.eye(3).to_sparse(), "features are a sparse tensor, which a problem on a device does not take"),
        (torch.zeros(3), "features must be a matrix, one row per observation; the shape is \\(3,\\)"),
        (torch.zeros(3, 2, dtype=torch.complex64), "which is not numeric"),
        (torch.tensor([[1.0], [float("nan")]]), "features are NaN or infinite in row 1"),
        (torch.tensor([[1e200]], dtype=torch.float64), "leave the range of float64"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        TensorRows(matrix)
