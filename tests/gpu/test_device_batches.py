"""Mini-batches on a device: draws have the probabilities asked for, rows and traces are those of plain loops."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import naive
from helpers.devices import device_log
from valuefit.gpu import device_rows as device
from valuefit.gpu.device_batches import Sampler, batch_rows, trace_matrix


def test_steps_are_drawn_with_their_probabilities_and_the_same_for_the_same_seed():
    weight = np.array([0.5, 1.0, 2.0, 2.0])
    places = torch.tensor([0, 2, 3, 5])
    sampler = Sampler(SimpleNamespace(theta=np.eye(2), w=np.eye(2), weight=weight), places)
    drawn, weights = sampler.draw(80_000, seed=3)
    expected = 80_000 / weight / (1 / weight).sum()
    counts = torch.bincount(drawn, minlength=6)[places].numpy()
    np.testing.assert_allclose(counts, expected, atol=1)  # stratified
    np.testing.assert_array_equal(weights.numpy(), weight[np.searchsorted(places.numpy(), drawn.numpy())])
    assert (drawn[1:] < drawn[:-1]).any()
    assert torch.equal(sampler.draw(80_000, seed=3)[0], drawn)
    assert not torch.equal(sampler.draw(80_000, seed=4)[0], drawn)


@pytest.mark.parametrize("kind", ["trace", "shuffled trace", "dual ridge trace"])
def test_rows_of_a_batch_and_of_traces_equal_those_of_plain_loops(kind, monkeypatch):
    monkeypatch.setattr(device, "CPU_BLOCK_BYTES", 8 * 8 * 100)  # blocks of at most 100 rows
    log, phi, psi, steps = device_log(kind)
    vectors = naive.steps(log)
    U, V = np.array([step[0] for step in vectors]), np.array([step[1] for step in vectors])
    places = steps.live.nonzero()[:, 0]
    np.testing.assert_allclose(trace_matrix(psi, steps)[places].numpy(), U, rtol=1e-11, atol=1e-12)
    chosen = np.array([5, 3, 3, len(V) - 1])
    v, rows = batch_rows(phi, psi, steps, places[torch.from_numpy(chosen)])
    np.testing.assert_allclose(v.numpy(), V[chosen], rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(rows.numpy(), log.Psi[log.now[chosen]])
