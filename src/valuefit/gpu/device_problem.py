"""A problem whose rows are torch tensors: everything of length n stays on their device, weights are NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from valuefit.gpu.device_batches import Sampler, batch_rows, trace_matrix
from valuefit.gpu.device_moments import Sketch, blocks_of, cross_moment, kernels_of, second_moment, sketch
from valuefit.gpu.device_rows import DeviceRows, DeviceSteps, Tensor, require_device_memory, to_array, to_tensor
from valuefit.precondition.stochastic_preconditioner import BatchPlan
from valuefit.problem.arguments import check_ratio_products
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
        now: Array,
        next: Array,
        reward: Array,
        discount: Array,
        ratio: Array,
        begins: Array,
        *,
        trace: float,
        ridge: float,
        identity: bool,
        dead: Array,
    ) -> None:
        """From checked arguments; next: not negative."""
        device = phi.device
        self.phi, self.psi = phi, phi if psi is None else psi
        self.n, self.d, self.k = len(now), phi.shape[1], self.psi.shape[1]
        self.distinct_rows, self.sparse = phi.shape[0], False
        self.trace, self.ridge, self.identity, self.shared = trace, ridge, identity, psi is None
        self.dead, self.max_discount = dead, float(discount.max())
        self.weighted, self.float32 = bool((ratio != 1).any()), phi.dtype == np.float32
        self.ratio, self._begins = ratio, begins
        columns = [torch.tensor(column, device=device) for column in (now, next, reward, discount, ratio, begins)]
        self.steps = DeviceSteps(columns, trace, phi.shape[0])
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
            n=self.n,
            d=self.d,
            k=self.k,
            row=float(self.d),
            starts=self._starts,
            sparse=self.sparse,
            traced=self.trace > 0,
            identity=self.identity,
            square=self.ridge == 0 and self.k == self.d,
            row_bytes=float(self.phi.row_bytes * self.phi.shape[0]),
            two_reads=not self._in_one_read,
            gpu=self.phi.device.type == "cuda",
        )

    def check_ratios(self, ratio: Array) -> None:
        """Refuse ratios whose products with features would leave the range of float64."""
        if self.weighted:
            factor = self.steps.forward(torch.ones_like(self.steps.ratio))[self.steps.live > 0]
            check_ratio_products(ratio, to_array(factor))

    # ---- products -----------------------------------------------------------------------------------------

    @cached_property
    def _kernels(self) -> Any:
        return kernels_of(self.phi, self.psi)

    @property
    def _in_one_read(self) -> bool:
        """Whether a kernel computes a product while it reads the rows once."""
        return self._kernels is not None and self.steps.trajectory and self.shared and not self.trace

    def products(self, theta: Array | None, w: Array | None, rewards: bool = True) -> tuple[Array | None, Array]:
        x, y = (None if vector is None else to_tensor(vector, self.phi.device) for vector in (theta, w))
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
        td = -reward if p is None else steps.difference(p) - reward
        c = steps.sum_now(steps.backward(td))
        if q is None:
            return None, self.psi.tdot(c)
        a = steps.difference_transposed(steps.forward(steps.at_now(q)))
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

    @cached_property
    def _zeros(self) -> Tensor:
        return torch.zeros_like(self.steps.reward)

    def At_dot(self, w: Array) -> Array:
        """A' w."""
        q = self.psi.dot(to_tensor(w, self.phi.device))
        a = self.steps.difference_transposed(self.steps.forward(self.steps.at_now(q)))
        return to_array(self.phi.tdot(a)) / self.n

    def C_dot(self, w: Array) -> Array:
        """C w."""
        if self.identity:
            return w.copy()
        return to_array(self.psi.tdot(self.steps.visits * self.psi.dot(to_tensor(w, self.phi.device)))) / self.n

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

    def sketch(self, size: int, seed: int, *, cross: bool, traces: bool = False) -> Sketch:
        """`linalg.device.sketch` of this log."""
        return sketch(self.phi, self.psi, self.steps, size, seed=seed, cross=cross, traces=traces)

    def sketched_rows(
        self, size: int, rng: np.random.Generator, *, cross: bool, traces: bool, dtype: Any, block_rows: int
    ) -> Iterator[SketchedRows]:
        sums = self.sketch(size, int(rng.integers(1 << 31)), cross=cross, traces=traces)
        for start in range(0, size, block_rows):
            psi, u = (_block(rows, start, block_rows, dtype) for rows in (sums.psi, sums.u))
            yield SketchedRows(psi, u, None if sums.v is None else _block(sums.v, start, block_rows, dtype))

    # ---- scalars ------------------------------------------------------------------------------------------

    @cached_property
    def dual_squares(self) -> Array:
        return to_array(self.psi.column_squares(self.steps.visits)) / self.n

    def mean_squares(self, c: Array | None, y: Array) -> tuple[float, float]:
        x = None if c is None else to_tensor(c, self.phi.device)
        p, q = self._dots(x, to_tensor(y, self.phi.device))
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
        """`Problem.squared_lengths`."""
        steps, places = self.steps, self._places
        of_psi = steps.at_now(self.psi.dot(to_tensor(dual, self.phi.device)))
        u = of_psi if traced is None else steps.at_now(self.psi.dot(to_tensor(traced, self.phi.device)))
        of_v = steps.difference(self.phi.dot(to_tensor(primal, self.phi.device)))
        found = (rows.square().sum(dim=1)[places] for rows in (of_psi, steps.forward(u), of_v))
        of_psi, of_u, of_v = map(to_array, found)
        return of_psi, of_u, of_v

    def batch_steps(self, plan: BatchPlan, rng: np.random.Generator) -> Gradient:
        """`solvers.svrg.batch_steps` on the device."""
        if self._sampler is None or self._sampler.sampling is not plan.sampling:
            self._sampler = Sampler(plan.sampling, self._places)
        places, weight = self._sampler.draw(plan.draws, int(rng.integers(1 << 31)))
        P_theta, P_w = self._sampler.theta, self._sampler.w
        G_theta, G_w = (to_tensor(part, self.phi.device) for part in plan.gradient)
        theta, w = torch.zeros_like(G_theta), torch.zeros_like(G_w)
        for part in blocks_of(plan.draws, plan.batch):
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
        V, psi = batch_rows(self.phi, self.psi, self.steps, places)
        U, weighted = psi, weight * self.steps.ratio[places]
        if self.trace:
            U, weighted = self._u[places], weight
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
        require_device_memory(
            len(self.steps.ratio) * self.k, self.phi.device, f"SVRG with traces stores {self.n} trace rows, which",
            "Use 'lstd', 'krylov' or 'pdbg', which do not store them.",
        )  # fmt: skip
        return trace_matrix(self.psi, self.steps)


def sketched_moments(
    problem: DeviceProblem, size: int, rng: np.random.Generator, *, cross: bool, traces: bool
) -> tuple[Array, Array | None]:
    """mean psi psi' and A of sketched rows, multiplied on the device."""
    C, A = problem.sketch(size, int(rng.integers(1 << 31)), cross=cross, traces=traces).moments()
    return to_array(C), None if A is None else to_array(A)


def _block(rows: Tensor, start: int, count: int, dtype: Any) -> Array:
    return np.asarray(rows[start : start + count].cpu().numpy(), dtype=dtype)
