"""Random mini-batches of steps on a device: which are drawn, and their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from valuefit.gpu.device_moments import blocks_of, trace_rows
from valuefit.gpu.device_rows import DeviceRows, DeviceSteps, Tensor, to_tensor


class Sampler:
    """The weights of steps and the matrices of a preconditioner of SVRG, on a device.

    sampling: where they come from (`StochasticPreconditioner`). theta, w: its matrices.
    """

    def __init__(self, sampling: Any, places: Tensor) -> None:
        """places: of every step in the tensors of `DeviceSteps`."""
        self.sampling, self._places = sampling, places
        self.theta, self.w, self._weight = (
            to_tensor(np.asarray(x), places.device) for x in (sampling.theta, sampling.w, sampling.weight)
        )
        self._cumulative = (1 / self._weight).cumsum(0)

    def draw(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Places and weights of `count` steps, drawn as by `StochasticPreconditioner.draw`: stratified, shuffled."""
        device = self._places.device
        rng = torch.Generator(device).manual_seed(seed)
        within = torch.rand(count, generator=rng, dtype=torch.float64, device=device)
        at = (torch.arange(count, device=device) + within) * (float(self._cumulative[-1]) / count)
        steps = torch.searchsorted(self._cumulative, at, right=True).clamp_(max=len(self._places) - 1)
        steps = steps[torch.randperm(count, generator=rng, device=device)]
        return self._places[steps], self._weight[steps]


def batch_rows(phi: DeviceRows, psi: DeviceRows, steps: DeviceSteps, places: Tensor) -> tuple[Tensor, Tensor]:
    """v_t and psi_t of the steps at these places, in float64."""
    now = places if steps.now is None else steps.now[places]
    after = (places + 1).clamp_(max=phi.shape[0] - 1) if steps.next is None else steps.next[places]
    here = phi.take(now).double()
    V = torch.addcmul(here, steps.discount[places, None], phi.take(after).double(), value=-1)
    return V, here if psi is phi else psi.take(now).double()


def trace_matrix(psi: DeviceRows, steps: DeviceSteps) -> Tensor:
    """u_t of every place, (places, k)."""
    count, carried = len(steps.ratio), None
    U = torch.empty((count, psi.shape[1]), dtype=torch.float64, device=psi.device)
    for part in blocks_of(count, psi.block_size):
        rows = psi.span(part.start, part.stop) if steps.trajectory else psi.take(steps.now[part])
        U[part], carried = trace_rows(rows, steps.ratio[part], steps.keep_forward[part], carried)
    return U
