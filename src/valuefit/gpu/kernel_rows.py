"""Kernel features that are computed on a device as they are read, so that n x landmarks numbers are never stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from valuefit.features.kernel import KERNELS, SCALE_RATIO, Kernel
from valuefit.gpu.device_moments import kernels_on
from valuefit.gpu.device_rows import DeviceRows, Tensor, slices, to_tensor
from valuefit.typing import Array


class KernelRows(DeviceRows):
    """The rows that a fitted `Kernel` gives for observations (m, dimensions): a constant and L^-1 k(x, landmarks).

    Stored are the coordinates of the observations, extended so that one product with those of the landmarks gives
    squared distances: |x - z|^2 = (-2 x, |x|^2, 1)'(z, 1, |z|^2). In products with vectors L^-1 is applied to these.
    """

    def __init__(self, kernel: Kernel, observations: Array, device: Any) -> None:
        kernel.get_feature_names_out()  # refuses one that is not fitted
        arrays = kernel.coordinates(observations), kernel.scaled_landmarks_, kernel.factor_
        x, z, factor = (to_tensor(array, device) for array in arrays)
        functions = kernel.column_functions(observations), kernel.landmark_functions_
        self._functions = [to_tensor(array, device) for array in functions]
        self._points = torch.cat([-2 * x, x.square().sum(1, keepdim=True), torch.ones_like(x[:, :1])], dim=1)
        self._landmarks = torch.cat([z, torch.ones_like(z[:, :1]), z.square().sum(1, keepdim=True)], dim=1).T
        self._L = torch.block_diag(torch.ones_like(factor[:1, :1]), factor)
        self._kind, self._scales, self._additive = KERNELS.index(kernel.kernel), kernel.scales_, kernel.additive_
        self.shape = len(x), 1 + len(z)
        self.device, self.dtype = x.device, np.dtype(np.float64)

    def _values(self, rows: slice | Tensor) -> Tensor:
        """A constant and k(x, landmarks) of these rows, (rows, 1 + landmarks)."""
        points = self._points[rows]
        out = torch.ones((len(points), self.shape[1]), dtype=torch.float64, device=self.device)
        values = out[:, 1:]
        values.copy_(points @ self._landmarks)
        compiled = kernels_on(self.device)
        evaluate = kernel_values if compiled is None else compiled.kernel_values
        evaluate(values, self._kind, self._scales, SCALE_RATIO)
        if self._additive:
            of_rows, of_landmarks = self._functions
            values.mul_(1 - self._additive).addmm_(of_rows[rows], of_landmarks.T)
        return out

    def read(self, chosen: slice | Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self._L.T, self._values(chosen), upper=True, left=False)

    def dot(self, X: Tensor) -> Tensor:
        inside = torch.linalg.solve_triangular(self._L.T, X.reshape(self.shape[1], -1), upper=True)
        products = [self._values(part) @ inside for part in slices(self.shape[0], self.block_size)]
        return torch.cat(products).reshape(self.shape[0], *X.shape[1:])

    def tdot(self, A: Tensor) -> Tensor:
        columns = A.reshape(self.shape[0], -1)
        total = sum(self._values(part).T @ columns[part] for part in slices(self.shape[0], self.block_size))
        return torch.linalg.solve_triangular(self._L, total, upper=False).reshape(self.shape[1], *A.shape[1:])


def kernel_values(squares: Tensor, kind: int, scales: int, scale_ratio: float) -> None:
    """Replace squared distances by the mean over length scales of this kernel of `KERNELS`, the shortest being 1."""
    squares.clamp_(min=0.0)
    name = KERNELS[kind]
    distance = squares if name == "gaussian" else squares.sqrt()
    total = torch.zeros_like(squares)
    for scale in range(scales):
        if name == "gaussian":
            total += torch.exp(distance * (-0.5 / scale_ratio ** (2 * scale)))
        elif name == "laplace":
            total += torch.exp(distance * (-1 / scale_ratio**scale))
        else:
            scaled = distance * (5.0**0.5 / scale_ratio**scale)
            total += torch.exp(-scaled) * (1 + scaled + scaled.square() / 3)
    torch.div(total, scales, out=squares)
