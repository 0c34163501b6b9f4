"""A problem whose rows are torch tensors: everything of length n stays on their device, weights are NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from valuefit.gpu.device_factor import DeviceFactor, device_factor
from valuefit.gpu.device_moments import Sketch, cross_moment, kernels_of, second_moment, sketch
from valuefit.gpu.device_rows import DeviceRows, Tensor, require_device_memory, slices, to_array, to_tensor
from valuefit.gpu.device_steps import DeviceSteps, trace_rows
from valuefit.precondition.stochastic_preconditioner import BatchPlan
from valuefit.problem.arguments import StepArrays, check_ratio_products
from valuefit.problem.cost import Cost
from valuefit.problem.saddle_point import SaddlePoint, SketchedRows
from valuefit.typing import Array, Gradient


class DeviceProblem(SaddlePoint):
    """The saddle point over rows on a device, a GPU or the CPU as torch sees it.

    `Problem.from_rows` returns it where the rows are torch or CuPy arrays, `placement` copies a problem in memory.
    Rows are float64 or float32; products are float64. SVRG draws mini-batches; other solvers of single rows refuse it.
    """

    storage: ClassVar[str] = "device"

    def __init__(
        self,
        phi: DeviceRows,
        psi: DeviceRows | None,
        steps: StepArrays,
        *,
        trace: float,
        ridge: float,
        identity: bool,
        dead: Array,
    ) -> None:
        """From checked arguments; steps: `next` is not negative."""
        self.phi, self.psi = phi, phi if psi is None else psi
        self.n, self.d, self.k = len(steps.now), phi.shape[1], self.psi.shape[1]
        self.distinct_rows, self.sparse = phi.shape[0], False
        self.trace, self.ridge, self.identity, self.shared = trace, ridge, identity, psi is None
        self.dead, self.max_discount, self.ratio = dead, float(steps.discount.max()), steps.ratio
        self.weighted, self.float32 = bool((self.ratio != 1).any()), phi.dtype == np.float32
        self.steps = DeviceSteps(steps, phi.device, trace=trace, rows=phi.shape[0])
        if self.weighted:
            factor = self.steps.forward(torch.ones_like(self.steps.ratio))[self.steps.live > 0]
            check_ratio_products(self.ratio, to_array(factor))
        self._sampler: Sampler | None = None

    def __repr__(self) -> str:
        kind = ", ".join(sorted(self.traits))
        return f"DeviceProblem(n={self.n}, d={self.d}, rows={self.phi.shape[0]}, {self.phi.device}, {kind})"

    @cached_property
    def _starts(self) -> int:
        """The number of distinct rows that steps start from."""
        return int((self.steps.visits > 0).sum())

    @property
    def cost(self) -> Cost:
        return Cost(
            n=self.n, d=self.d, k=self.k, row=float(self.d), starts=self._starts,
            sparse=self.sparse, traced=self.trace > 0, identity=self.identity,
            square=self.ridge == 0 and self.k == self.d,
            row_bytes=float(self.phi.shape[0] * self.d * self.phi.dtype.itemsize), two_reads=not self._in_one_read,
            gpu=self.phi.device.type == "cuda",
        )  # fmt: skip

    def _tensor(self, vector: Array) -> Tensor:
        return to_tensor(vector, self.phi.device)

    # ---- products -----------------------------------------------------------------------------------------

    @cached_property
    def _kernels(self) -> Any:
        return kernels_of(self.phi, self.psi)

    @property
    def _in_one_read(self) -> bool:
        """Whether a kernel computes a product while it reads the rows once."""
        return self._kernels is not None and self.steps.trajectory and self.shared and not self.trace

    def products(self, theta: Array | None, w: Array | None, rewards: bool = True) -> tuple[Array | None, Array]:
        x, y = (None if vector is None else self._tensor(vector) for vector in (theta, w))
        reward = self.steps.reward if rewards else self._zeros
        if x is not None and self._in_one_read:
            live = self._zeros if self.identity else self.steps.live
            of_theta, of_w = self._kernels.sweep(self.phi, self.steps, x, y, reward, live)
        else:
            of_theta, of_w = self._products(x, y, reward)
        return None if of_theta is None else to_array(of_theta) / self.n, to_array(of_w) / self.n

    def _products(self, x: Tensor | None, y: Tensor | None, reward: Tensor) -> tuple[Tensor | None, Tensor]:
        """n times `products`, reading the rows twice."""
        steps = self.steps
        p, q = self._dots(x, y)
        c = steps.sum_now(steps.backward(-reward if p is None else steps.difference(p) - reward))
        if q is None:
            return None, self.psi.tdot(c)
        a = self._weights_of_v(q)
        if not self.identity:
            c = c + steps.visits * q
        if self.shared:
            both = self.phi.tdot(torch.stack([a, c], dim=1))
            return both[:, 0], both[:, 1]
        return self.phi.tdot(a), self.psi.tdot(c)

    def _dots(self, x: Tensor | None, y: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Phi x and Psi y."""
        if self.shared and x is not None and y is not None:
            both = self.phi.dot(torch.stack([x, y], dim=1))
            return both[:, 0].contiguous(), both[:, 1].contiguous()
        return None if x is None else self.phi.dot(x), None if y is None else self.psi.dot(y)

    def _weights_of_v(self, q: Tensor) -> Tensor:
        """The weights of rows a with n A'w = Phi' a, for q = Psi w."""
        return self.steps.difference_transposed(self.steps.forward(self.steps.at_now(q)))

    @cached_property
    def _zeros(self) -> Tensor:
        return torch.zeros_like(self.steps.reward)

    def At_dot(self, w: Array) -> Array:
        """A' w."""
        return to_array(self.phi.tdot(self._weights_of_v(self.psi.dot(self._tensor(w))))) / self.n

    def C_dot(self, w: Array) -> Array:
        """C w."""
        if self.identity:
            return w.copy()
        return to_array(self.psi.tdot(self.steps.visits * self.psi.dot(self._tensor(w)))) / self.n

    @cached_property
    def b(self) -> Array:
        """mean r u."""
        return to_array(self.psi.tdot(self.steps.sum_now(self.steps.backward(self.steps.reward)))) / self.n

    # ---- moments and sketches -----------------------------------------------------------------------------

    def cross_moment(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """A on the device, from products in this precision."""
        self._require_moment_memory()
        return cross_moment(self.phi, self.psi, self.steps, dtype=dtype) / self.n

    def A_in_float32(self) -> Array:
        """A from products in TF32, where the device has it, or float32."""
        return to_array(self.cross_moment(torch.float32))

    @cached_property
    def A(self) -> Array:
        """mean u v', (k, d)."""
        return to_array(self.cross_moment())

    def second_moment_on_device(self) -> Tensor:
        """mean psi psi' on the device."""
        self._require_moment_memory()
        return second_moment(self.psi, self.steps.visits) / self.n

    @cached_property
    def second_moment(self) -> Array:
        """mean psi psi', also if C is the identity."""
        return to_array(self.second_moment_on_device())

    def _sketch(self, size: int, seed: int, *, cross: bool, traces: bool = False) -> Sketch:
        return sketch(self.phi, self.psi, self.steps, size, seed=seed, cross=cross, traces=traces)

    def sketched_rows(
        self, size: int, rng: np.random.Generator, *, cross: bool, traces: bool, dtype: Any, block_rows: int
    ) -> Iterator[SketchedRows]:
        sums = self._sketch(size, int(rng.integers(1 << 31)), cross=cross, traces=traces)
        for part in slices(size, block_rows):
            psi, u = (rows[part].cpu().numpy().astype(dtype, copy=False) for rows in (sums.psi, sums.u))
            yield SketchedRows(psi, u, None if sums.v is None else sums.v[part].cpu().numpy().astype(dtype, copy=False))

    def sketched_moments(
        self, size: int, rng: np.random.Generator, *, cross: bool, traces: bool = False
    ) -> tuple[Array, Array | None]:
        C, A = self._sketch(size, int(rng.integers(1 << 31)), cross=cross, traces=traces).moments()
        return to_array(C), None if A is None else to_array(A)

    def dense_factor(self, size: int, *, cross: bool) -> DeviceFactor | None:
        if size < self.cost.starts:
            return device_factor(self, *self._sketch(size, 0, cross=cross).moments(), size=size)
        A = self.cross_moment() if cross else None
        return device_factor(self, self.second_moment_on_device(), A)

    # ---- scalars ------------------------------------------------------------------------------------------

    @cached_property
    def dual_squares(self) -> Array:
        return to_array(self.psi.column_squares(self.steps.visits)) / self.n

    def mean_squares(self, c: Array | None, y: Array) -> tuple[float, float]:
        p, q = self._dots(None if c is None else self._tensor(c), self._tensor(y))
        assert q is not None
        of_y = float(self.steps.visits @ q.square()) / self.n
        if p is None:
            return 0.0, of_y
        return float(self.steps.backward(self.steps.difference(p)).square().sum()) / self.n, of_y

    def reward_squares(self) -> tuple[float, float]:
        along = self.steps.backward(self.steps.reward)
        weighted = self.steps.ratio * self.steps.reward
        return float(along.square().sum()) / self.n, float(weighted.square().sum()) / self.n

    # ---- mini-batches -------------------------------------------------------------------------------------

    @cached_property
    def _places(self) -> Tensor:
        """The place of every step of the log in the tensors of `steps`."""
        return self.steps.live.nonzero()[:, 0]

    def squared_lengths(self, dual: Array, traced: Array | None, primal: Array) -> tuple[Array, Array, Array]:
        steps = self.steps
        of_psi = steps.at_now(self.psi.dot(self._tensor(dual)))
        u = of_psi if traced is None else steps.at_now(self.psi.dot(self._tensor(traced)))
        products = of_psi, steps.forward(u), steps.difference(self.phi.dot(self._tensor(primal)))
        of_psi, of_u, of_v = (to_array(rows.square().sum(dim=1)[self._places]) for rows in products)
        return of_psi, of_u, of_v

    def batch_steps(self, plan: BatchPlan, rng: np.random.Generator) -> Gradient:
        """`solvers.svrg.batch_steps` on the device."""
        if self._sampler is None or self._sampler.sampling is not plan.sampling:
            self._sampler = Sampler(plan.sampling, self._places)
        places, weight = self._sampler.draw(plan.draws, int(rng.integers(1 << 31)))
        P_theta, P_w = self._sampler.theta, self._sampler.w
        G_theta, G_w = map(self._tensor, plan.gradient)
        theta, w = torch.zeros_like(G_theta), torch.zeros_like(G_w)
        for part in slices(plan.draws, plan.batch):
            g_theta, g_w = self._batch_gradient(places[part], weight[part], theta, w)
            size = part.stop - part.start
            g_theta += size * (G_theta + self.ridge * theta)
            g_w += size * (G_w + w if self.identity else G_w)
            theta = theta - plan.step_theta * (P_theta @ g_theta)
            w = w - plan.step_w * (P_w @ g_w)
        return to_array(theta), to_array(w)

    def _batch_gradient(self, places: Tensor, weight: Tensor, theta: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of -weight_t v_t u_t'w and of weight_t (u_t v_t'theta + psi_t psi_t'w), of these steps.

        For C = I the last term is left out.
        """
        psi, V = self.steps.psi_and_v(self.phi, self.psi, places)
        U, weighted = (self._u[places], weight) if self.trace else (psi, weight * self.steps.ratio[places])
        u_w, of_u = U @ w, weighted * (V @ theta)
        g_theta = -(V.T @ (weighted * u_w))
        if self.identity:
            return g_theta, U.T @ of_u
        if self.trace:
            return g_theta, U.T @ of_u + psi.T @ (weight * (psi @ w))
        return g_theta, U.T @ (of_u + weight * u_w)

    @cached_property
    def _u(self) -> Tensor:
        """The rows u_t of traces, for every place of `steps`."""
        steps, count = self.steps, len(self.steps.ratio)
        require_device_memory(
            count * self.k, self.phi.device, f"SVRG with traces stores {self.n} trace rows, which",
            "Use 'lstd', 'krylov' or 'pdbg', which do not store them.",
        )  # fmt: skip
        U, carried = torch.empty((count, self.k), dtype=torch.float64, device=self.phi.device), None
        for part in slices(count, self.psi.block_size):
            rows = steps.psi(self.psi, part)
            U[part], carried = trace_rows(rows, steps.ratio[part], steps.keep_forward[part], carried)
        return U


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
