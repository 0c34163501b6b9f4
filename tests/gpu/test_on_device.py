"""Problems in memory that are copied to a device."""

import numpy as np
import pytest
import torch

import valuefit as vf
from helpers.devices import both
from valuefit.gpu import device_rows
from valuefit.gpu.on_device import Placement
from valuefit.gpu.placement import placement


def close(found, expected, rtol=1e-8):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


def test_without_a_device_a_problem_stays_where_it_is():
    memory, _ = both("ridge")
    with placement(None) as place:
        assert place(memory) is memory


def test_a_problem_in_memory_is_moved_to_a_device():
    memory, _ = both("dual ridge trace")
    device = Placement("cpu")(memory)
    assert repr(device) == "DeviceProblem(n=600, d=8, rows=612, cpu, device, more dual features, ridge, trace)"
    close(vf.solve(device, "lstd").theta, vf.solve(memory, "lstd").theta, rtol=1e-8)
    assert device.phi.matrix.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "device is 'gpu'; it must be \"cuda\""),
        (3.5, 'device is 3.5; it must be "cuda"'),
        ("mps", "others do not compute in float64"),
        ("cuda:99", "device is 'cuda:99', but torch finds [0-9]+ GPUs"),
    ],
)
def test_devices_that_are_not_there_are_refused(device, message):
    with pytest.raises(ValueError, match=message):
        Placement(device)


@pytest.mark.parametrize("solver", ["lstd", "krylov", "pdbg"])
@pytest.mark.parametrize("kind", ["on-policy", "shuffled trace", "dual", "float32"])
def test_rows_beyond_the_memory_of_the_device_are_streamed(kind, solver, monkeypatch):
    monkeypatch.setattr(device_rows, "CPU_BLOCK_BYTES", 8 * 8 * 100)  # blocks of 100 rows
    memory, _ = both(kind)
    expected, _ = both(kind)
    memory.phi.matrix.flags.writeable = False
    device = Placement("cpu", memory.phi.matrix.nbytes - 1)(memory)
    assert isinstance(device.phi, device_rows.StreamedRows)
    found = vf.solve(device, solver, tol=1e-10)
    assert found.status == "converged"
    best = vf.solve(expected, "lstd").theta
    close(found.theta, best, rtol=1e-8 if solver == "lstd" else 1e-3)


def test_rows_within_the_memory_of_the_device_are_copied():
    memory, _ = both("on-policy")
    device = Placement("cpu", memory.phi.matrix.nbytes)(memory)
    assert isinstance(device.phi, device_rows.TensorRows)


def test_the_memory_of_a_device_is_a_number_of_bytes_and_needs_a_device():
    with pytest.raises(ValueError, match="device_memory is 0; it must be a number of bytes"):
        Placement("cpu", 0)
    with pytest.raises(ValueError, match="device_memory is given without a device"):
        placement(None, 1 << 30)


def test_problems_over_the_same_rows_share_their_copy_and_get_its_moments():
    memory, _ = both("ridge")
    place = Placement("cpu")
    first = place(memory)
    assert memory.__dict__["A"] is first.A
    second = place(memory.proximal(np.ones(memory.d), 0.1)[0])
    assert second.phi is first.phi
    expected, _ = both("ridge")
    moved, _ = expected.proximal(np.ones(memory.d), 0.1)
    close(vf.solve(second, "lstd").theta, vf.solve(moved, "lstd").theta, rtol=1e-8)


@pytest.mark.parametrize("kind", ["shuffled", "float32"])
def test_rows_in_memory_are_multiplied_on_the_device_until_the_context_ends(kind):
    memory, _ = both(kind)
    rows, rng = memory.phi, np.random.default_rng(0)
    X, A = rng.standard_normal((rows.shape[1], 6)), rng.standard_normal((rows.shape[0], 2))
    arguments = memory.now, memory.reward, np.arange(memory.n) % 7, 7

    def products():
        both_ways = [*rows.dot2(*X[:, :2].T), *rows.tdot2(*A.T)]
        return [rows.dot(X[:, 0]), rows.matmul(X), rows.tdot(A[:, 0]), rows.group_sums(*arguments), *both_ways]

    expected = products()
    with Placement("cpu") as place:
        place(memory)
        matrix, rows.matrix = rows.matrix, None  # so that nothing in memory can be read
        for found, other in zip(products(), expected, strict=True):
            close(found, other, rtol=1e-12)
        rows.matrix = matrix
    assert rows.on_device is None
    assert not place._copies


def test_rows_beyond_the_memory_of_the_device_are_multiplied_in_memory():
    memory, _ = both("on-policy")
    with Placement("cpu", 1000) as place:
        place(memory)
        assert memory.phi.on_device is None


def test_sparse_features_are_refused_and_are_right_without_the_device():
    log = vf.datasets.random_walk_log(100)
    settings = {"features": "one-hot", "discount": 0.9}
    with pytest.raises(ValueError, match=r"^Sparse features, such as tiles and one-hot ones, .* Leave out device\.$"):
        vf.evaluate(log, device="cpu", **settings)
    assert vf.evaluate(log, **settings).policy_value.standard_error > 0
