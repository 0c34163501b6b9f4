"""The empirical MSPBE of a log as a saddle-point problem over feature rows, each stored once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse as sparse

from valuefit.data.transitions import Transitions, check_log
from valuefit.data.validation import whole_number
from valuefit.extras import need
from valuefit.features.featurise import featurise
from valuefit.linalg.moments import count_product, pieces, second_moment, trace_product
from valuefit.linalg.sketch import count_sketch, sketch_rows, sketch_steps
from valuefit.memory import require_memory
from valuefit.problem.arguments import (
    StepArrays,
    check_ratio_products,
    check_steps,
    columns_without_data,
    dual_rows_of,
    fraction,
    is_device_array,
    refuse_infinite_sums,
    rows_of,
    settings_of,
    step_arrays,
    tile_rows,
    trace_rows,
)
from valuefit.problem.cost import Cost
from valuefit.problem.saddle_point import MomentArrays, SaddlePoint, SketchedRows
from valuefit.rows.compile import worth_compiling
from valuefit.rows.draws import Draws, RowSets
from valuefit.rows.products import Schedule, StepColumns, schedule, step_sweep, sweep, sweep_both
from valuefit.rows.storage import Rows
from valuefit.rows.traces import backward, batch_weights, forward, trace_row_sizes, trace_rows_dense, trace_rows_sparse
from valuefit.typing import Array


class Problem(SaddlePoint):
    """min over theta of 1/2 |A theta - b|^2 in the metric C^-1, plus ridge/2 |theta|^2.

    With `v_t = phi_t - discount_t phi'_t` and `u_t = ratio_t (psi_t + trace * discount_{t-1} u_{t-1})`,
    u_{t-1} = 0 at the start of an episode: `A = mean u v'`, `b = mean r u`, `C = mean psi psi'`.
    `psi` is `phi` (MSPBE) unless `dual_features` is given; `metric="identity"` sets C = I (NEU). C^-1 means the
    pseudo-inverse, its rank found with features scaled to equal length. A feature that is zero in every `now` row has
    no data: its weight is 0, and `dead` lists it.
    No array of n x d is allocated, except the trace rows `u`.

    log: the transitions. features: callable or scikit-learn transformer, applied once to the distinct
    observations; None: the observations themselves (one-hot columns for integer states).
    discount: in [0, 1]. trace: lambda, in [0, 1]. ridge: at least 0. part: whether the log is a part of a longer one,
    so that a feature without data here has some elsewhere.
    """

    def __init__(
        self,
        log: Transitions,
        features: Any = None,
        *,
        discount: float = 0.99,
        trace: float = 0.0,
        ridge: float = 0.0,
        dual_features: Any = None,
        metric: str = "C",
        part: bool = False,
    ) -> None:
        check_log("Problem", log)
        discount = fraction("discount", discount)
        refuse_infinite_sums(discount == 1 and not part and not log.terminated.any(), "mark the terminated steps")
        used, now, next = log.used_observations()
        rows = rows_of(featurise(log.observations, used, features, "features"), "features")
        dual_rows = None
        if dual_features is not None:
            dual_rows = rows_of(featurise(log.observations, used, dual_features, "dual_features"), "dual_features")
        per_step = np.where(log.terminated, 0.0, discount)
        steps = StepArrays(now, next, log.reward, per_step, log.ratio, log.begins)
        self._set_up(rows, dual_rows, steps, trace=trace, ridge=ridge, metric=metric, part=part)

    @classmethod
    def from_rows(
        cls,
        Phi: Any,
        now: Any,
        next: Any,
        reward: Any,
        discount: Any,
        ratio: Any = None,
        episode: Any = None,
        *,
        trace: float = 0.0,
        ridge: float = 0.0,
        dual_rows: Any = None,
        metric: str = "C",
        part: bool = False,
        columns: int | None = None,
    ) -> Any:
        """A problem from feature rows `Phi (m, d)` and the row indices `now` and `next` of each step.

        `next[t] = -1` or `discount[t] = 0`: the episode terminated at step t. `discount`, `ratio` (1 if None)
        and `episode` (one episode if None) have one entry per step; a scalar discount applies to all steps.
        `dual_rows (m, k)`: rows of the dual features, k >= d. A torch tensor or a CuPy array as `Phi` gives a
        `DeviceProblem`, which computes where the rows are. columns: the number of features d of tile-coded rows; `Phi`
        (m, active) then holds the columns of the ones in each row, and -1 for none.
        """
        options: dict[str, Any] = {"trace": trace, "ridge": ridge, "metric": metric}
        columns = None if columns is None else whole_number("columns", columns, "it must be 1 or more", low=1)
        if is_device_array(Phi):
            if columns is not None:
                raise ValueError(
                    "Rows on a device are dense, so `columns` does not apply. Give tile-coded rows as a NumPy array."
                )
            device = import_module("valuefit.gpu.on_device")
            return device.from_device_rows(
                Phi, now, next, reward, discount, ratio, episode, dual_rows=dual_rows, **options
            )
        rows = rows_of(Phi if columns is None else tile_rows(Phi, columns), "features")
        arrays = step_arrays(now, next, reward, discount, ratio, episode, rows=rows.shape[0], part=part)
        dual = None if dual_rows is None else rows_of(dual_rows, "dual_rows")
        problem = cls.__new__(cls)
        problem._set_up(rows, dual, arrays, part=part, **options)
        return problem

    @classmethod
    def from_kernel(
        cls,
        log: Transitions,
        kernel: Any,
        *,
        device: Any = "cuda",
        discount: float = 0.99,
        trace: float = 0.0,
        ridge: float = 0.0,
    ) -> Any:
        """A `DeviceProblem` whose feature rows are computed on the device whenever they are read, and never stored.

        kernel: a fitted `valuefit.features.Kernel`; fit it on a sample of the observations. For logs whose rows,
        steps times landmarks, do not fit into the memory of the device. Needs torch (extra `gpu`).
        """
        need("torch", "gpu", "Problem.from_kernel")
        module = import_module("valuefit.gpu.on_device")
        return module.kernel_problem(log, kernel, device, discount=discount, trace=trace, ridge=ridge)

    def _set_up(
        self, phi: Rows, psi: Rows | None, steps: StepArrays, *, trace: float, ridge: float, metric: str, part: bool
    ) -> None:
        check_steps(steps)
        self.trace, self.ridge, self.identity = settings_of(trace, ridge, metric)
        now, next, self.reward, self.discount, self.ratio, self.begins = steps
        self.part, self.weighted, self.float32 = part, bool((self.ratio != 1).any()), phi.dtype == np.float32
        psi = None if psi is None else dual_rows_of(psi, phi)
        dead = np.zeros(phi.shape[1], bool) if part else columns_without_data(phi, now)
        phi = phi.without(dead)
        self.phi, self.psi = phi, phi if psi is None else psi
        self.shared, self.sparse, self.distinct_rows = psi is None, phi.sparse, phi.shape[0]
        self.dead: Array = np.flatnonzero(dead)
        self.n, self.d, self.k = len(now), phi.shape[1], self.psi.shape[1]
        self.now = np.ascontiguousarray(now, np.int64)
        # A terminated step has discount 0, so its next row is arbitrary: its own row needs no branch in the kernels.
        self.next = np.ascontiguousarray(np.where(next < 0, now, next), np.int64)
        self.max_discount = float(self.discount.max())
        if self.weighted:
            with np.errstate(over="ignore", invalid="ignore"):
                check_ratio_products(self.ratio, self.forward(np.ones(self.n)))

    def without_columns(self, columns: Array) -> Problem:
        """Return the problem with these features, by number, set to zero; self if they are zero already."""
        unused = np.zeros(self.d, bool)
        unused[columns] = True
        phi = self.phi.without(unused)
        if phi is self.phi:
            return self
        other = Problem.__new__(Problem)
        steps = StepArrays(self.now, self.next, self.reward, self.discount, self.ratio, self.begins)
        settings: dict[str, Any] = {
            "trace": self.trace,
            "ridge": self.ridge,
            "metric": "identity" if self.identity else "C",
        }
        other._set_up(phi, None if self.shared else self.psi, steps, **settings, part=self.part)
        return other

    def __repr__(self) -> str:
        kind = ", ".join(sorted(self.traits)) or "on-policy"
        return f"Problem(n={self.n}, d={self.d}, distinct rows={self.phi.shape[0]}, {kind})"

    # ---- full-batch products: one pass each -------------------------------------------------------------

    def products(self, theta: Array | None, w: Array | None, rewards: bool = True) -> tuple[Array | None, Array]:
        shared, reward = self.shared, self.reward if rewards else self._no_reward
        if shared and theta is not None and not (self.trace or self.phi.sparse) and self.large:
            return self._sweep(theta, w, reward)
        if shared and theta is not None and w is not None:
            p, q = self.phi.dot2(theta, w)
        else:
            p = np.zeros(self.phi.shape[0]) if theta is None else self.phi.dot(theta)
            q = np.zeros(self.psi.shape[0]) if w is None else self.psi.dot(w)
        a, c = self._batch_weights(reward, p, q)
        if w is None:
            return None, self.psi.tdot(c) / self.n
        if not self.identity:
            c += self.visits * q
        Atw, rest = self.phi.tdot2(a, c) if shared else (self.phi.tdot(a), self.psi.tdot(c))
        return Atw / self.n, rest / self.n

    def _batch_weights(self, reward: Array, p: Array, q: Array) -> tuple[Array, Array]:
        """`batch_weights` of this log."""
        if self.large:
            log = self.now, self.next, self.discount, self.ratio, self.begins, self.trace
            a, c = batch_weights(*log, reward, p, q)
            return a, c
        uw = self.forward(q[self.now])
        a = np.bincount(self.now, uw, len(p)) - np.bincount(self.next, self.discount * uw, len(p))
        td = p[self.now] - self.discount * p[self.next] - reward
        return a, np.bincount(self.now, self.backward(td), len(q))

    def forward(self, x: Array) -> Array:
        """y_t = ratio_t (x_t + trace * discount_{t-1} * y_{t-1}) in an episode: u_t'w for x_t = psi_t'w."""
        return forward(x, self.discount, self.ratio, self.begins, self.trace, large=self.large)

    def backward(self, x: Array) -> Array:
        """z_t = ratio_t (x_t + trace * discount_t * z_{t+1}) within an episode: sum u_t x_t = sum psi_t z_t."""
        return backward(x, self.discount, self.ratio, self.begins, self.trace, large=self.large)

    def differences(self, theta: Array) -> Array:
        """v_t'theta of every step."""
        p = self.phi.dot(theta)
        return np.asarray(p[self.now] - self.discount * p[self.next])

    def td_errors(self, theta: Array) -> Array:
        """r_t - v_t'theta of every step."""
        return self.reward - self.differences(theta)

    @property
    def large(self) -> bool:
        """Whether passes over this log use compiled loops."""
        return worth_compiling(len(self.now) * self.phi.stored / self.phi.shape[0])

    def _sweep(self, theta: Array, w: Array | None, reward: Array) -> tuple[Array | None, Array]:
        """`products` for dense rows without traces, reading the rows once."""
        steps = StepColumns(self.now, self.next, self.discount, self.ratio, reward)
        rows = self.phi.matrix
        if w is None and self._chained:
            return None, step_sweep(rows, steps, theta) / self.n
        if w is None:
            return None, sweep(rows, self._schedule, steps, theta) / self.n
        both = sweep_both(rows, self._schedule, steps, theta, w, identity=self.identity)
        return both[0] / self.n, both[1] / self.n

    @cached_property
    def _chained(self) -> bool:
        """Whether most steps have now[t] = next[t - 1] and few rows repeat."""
        follows = np.count_nonzero(self.now[1:] == self.next[:-1])
        return bool(2 * follows >= self.n and self.n <= 2 * self.phi.shape[0])

    @cached_property
    def _schedule(self) -> Schedule:
        row_bytes = self.d * self.phi.dtype.itemsize
        return schedule(self.now, self.next, self.phi.shape[0], row_bytes)

    def At_dot(self, w: Array) -> Array:
        """A' w."""
        a, _ = self._batch_weights(self._no_reward, np.zeros(self.phi.shape[0]), self.psi.dot(w))
        return self.phi.tdot(a) / self.n

    def C_dot(self, w: Array) -> Array:
        """C w."""
        return w.copy() if self.identity else self.psi.gram_dot(self.visits, w) / self.n

    @cached_property
    def b(self) -> Array:
        """mean r u."""
        return self._mean_ru()

    def _mean_ru(self) -> Array:
        weights = np.bincount(self.now, self.backward(self.reward), self.psi.shape[0])
        return self.psi.tdot(weights) / self.n

    @cached_property
    def mean_psi(self) -> Array:
        """mean psi, (k,)."""
        return self.psi.tdot(self.visits) / self.n

    @cached_property
    def visits(self) -> Array:
        """The number of steps with each row as `now`."""
        return np.bincount(self.now, minlength=self.phi.shape[0]).astype(np.float64)

    @cached_property
    def _no_reward(self) -> Array:
        return np.zeros_like(self.reward)

    # ---- moments ----------------------------------------------------------------------------------------

    @cached_property
    def A(self) -> Array:
        """mean u v', (k, d)."""
        return self._form_A(second=False)

    def moments(self) -> MomentArrays:
        """A, b and C; C is formed in the same pass as A if that is not known yet."""
        if "A" not in vars(self):
            self.A = self._form_A(second=not self.identity)
        return super().moments()

    def _form_A(self, *, second: bool) -> Array:
        """A, with b and, if `second`, C where these cost no further pass."""
        self._require_moment_memory()
        rows = self.psi, self.phi, self.now, self.next, self.discount, self.ratio
        if self.trace:
            return trace_product(*rows, self.begins, self.trace) / self.n
        weights = [self.ratio * self.reward, *([np.ones(self.n)] if self.part else [])]
        A, sums, C = count_product(*rows, weights, second=second)
        known = C, *(() if sums is None else sums)
        for name, total in zip(("second_moment", "b", "mean_psi"), known, strict=False):
            if total is not None and name not in vars(self):
                setattr(self, name, total / self.n)
        return A / self.n

    @cached_property
    def second_moment(self) -> Array:
        return second_moment(self.psi, self.visits) / self.n

    @cached_property
    def dual_squares(self) -> Array:
        return self.psi.column_squares(self.visits) / self.n

    def use_moments_of(self, other: SaddlePoint) -> None:
        """Take the moments from the same problem on a device, where they cost less."""
        self.A, self.b, self.second_moment = other.A, other.b, other.second_moment

    # ---- other full passes --------------------------------------------------------------------------------

    def mean_squares(self, c: Array | None, y: Array) -> tuple[float, float]:
        if c is None:
            p, q = None, self.psi.dot(y)
        else:
            p, q = self.phi.dot2(c, y) if self.shared else (self.phi.dot(c), self.psi.dot(y))
        of_y = float(self.visits @ q**2) / self.n
        if p is None:
            return 0.0, of_y
        return float(np.mean(self.backward(p[self.now] - self.discount * p[self.next]) ** 2)), of_y

    def row_sizes(self) -> tuple[float, float, float] | None:
        if self.trace or self.float32:
            return None
        n, ratio = self.n, float(self.ratio.max())
        starts, ends = self.visits.max(), np.bincount(self.next).max()
        v = np.sqrt(self.phi.squared_norm / n) * (np.sqrt(starts) + self.max_discount * np.sqrt(ends))
        reward = ratio * np.sqrt(self.reward @ self.reward / n)
        return float(np.sqrt(starts * self.psi.squared_norm / n)), float(ratio * v), float(reward)

    def reward_squares(self) -> tuple[float, float]:
        along, weighted = self.backward(self.reward), self.ratio * self.reward
        return float(along @ along) / self.n, float(weighted @ weighted) / self.n

    def sketched_rows(
        self, size: int, rng: np.random.Generator, *, cross: bool, traces: bool, dtype: Any, block_rows: int
    ) -> Iterator[SketchedRows]:
        """If not `cross`, the distinct rows are sketched, weighted by their visits."""
        n, k, d = self.n, self.k, self.d
        traces = traces and self.trace > 0
        members = np.arange(n) if cross else np.flatnonzero(self.visits)
        weight = np.full(n, 1 / np.sqrt(n)) if cross else np.sqrt(self.visits[members] / n)
        ratio = np.ones(n) if traces else self.ratio  # rows of traces include the ratio
        row_bytes = self.psi.dtype.itemsize * self.psi.stored / self.psi.shape[0]
        sketch = count_sketch(len(members), size, rng, row_bytes=row_bytes, sum_bytes=8 * (k + d if cross else k))
        groups = max(1, block_rows // sketch.together)
        most = min(groups * sketch.together, size)
        X, V = np.empty((most, k), dtype), np.empty((most, d) if cross else (0, 0), dtype)
        U = np.empty((most, k), dtype) if traces else X
        for group in range(0, sketch.groups, groups):
            stop = min(group + groups, sketch.groups)
            rows = sketch.sums(group, stop)
            X[:rows] = 0.0
            if not cross:
                sketch_rows(self.psi.kernel, members, weight, sketch, group, stop, X[:rows])
                yield SketchedRows(X[:rows], X[:rows], None)
                continue
            V[:rows] = 0.0
            sketch_steps(
                self.phi.kernel, self.psi.kernel, self.shared, self.now, self.next, self.discount, ratio,
                1 / np.sqrt(n), sketch, group, stop, X[:rows], V[:rows],
            )  # fmt: skip
            if traces:
                U[:rows] = 0.0
                sketch_rows(self.u.kernel, members, weight, sketch, group, stop, U[:rows])
            yield SketchedRows(X[:rows], U[:rows], V[:rows])

    @cached_property
    def starts(self) -> int:
        """The number of distinct rows that steps start from."""
        return int((self.visits > 0).sum())

    @property
    def cost(self) -> Cost:
        return Cost(
            n=self.n, d=self.d, k=self.k, row=self.phi.stored / self.phi.shape[0],
            starts=self.starts, sparse=self.phi.sparse and self.phi.ranges is None, traced=self.trace > 0,
            identity=self.identity, ranges=self.phi.ranges is not None,
            square=self.ridge == 0 and self.k == self.d, row_bytes=float(self.phi.dtype.itemsize * self.phi.stored),
            two_reads=self.trace > 0 or not self.shared,
        )  # fmt: skip

    def proximal(self, y: Array, weight: float) -> tuple[Problem, Array]:
        """The problem with weight/2 |theta - y|^2 added, in delta = theta - shift, and the shift.

        With shift = weight y / (ridge + weight) it is, up to a constant, a problem over the same rows with ridge
        ridge + weight and rewards r_t - v_t' shift. Costs half a pass.
        """
        shift = weight / (self.ridge + weight) * y
        other = self.with_ridge(self.ridge + weight)
        other.reward = self.td_errors(shift)
        other.b = other._mean_ru()
        return other, shift

    # ---- rows of single steps, for stochastic solvers ---------------------------------------------------

    @cached_property
    def u(self) -> Rows:
        """The rows of u: the rows of psi (to be multiplied by ratio_t) without traces, else one row per step."""
        if not self.trace:
            return self.psi
        n = len(self.now)  # of a part, whose sums are divided by the `n` of its log
        if self.psi.sparse:
            _, indices, indptr = self.psi.kernel
            sizes = trace_row_sizes(indices, indptr, self.now, self.begins, self.k)
            if 3 * sizes.sum() < 2 * n * self.k:  # a CSR entry takes 12 bytes, a dense entry 8
                starts = np.concatenate([[0], np.cumsum(sizes)])
                self._require_trace_memory(2 * int(starts[-1]))
                values, columns = trace_rows_sparse(
                    self.psi.kernel, self.now, self.discount, self.ratio, self.begins, self.trace, self.k, starts
                )
                return trace_rows(sparse.csr_array((values, columns, starts), shape=(n, self.k)))
        self._require_trace_memory(n * self.k)
        steps = self.now, self.discount, self.ratio, self.begins, self.trace
        return trace_rows(trace_rows_dense(self.psi.kernel, *steps, self.k))

    def _require_trace_memory(self, count: int) -> None:
        what = f"A stochastic solver with traces stores {self.n} trace rows, which"
        require_memory(count, what, "Use a batch solver: 'lstd' and 'pdbg' do not store them.")

    @property
    def row_sets(self) -> RowSets:
        """The rows of phi, psi and u as kernel arguments."""
        return RowSets(self.phi.kernel, self.psi.kernel, self.u.kernel)

    def steps(self, t: Array) -> Draws:
        """The data of these steps, in this order."""
        if self.trace:
            return Draws(self.now[t], self.next[t], self.discount[t], t, np.ones(len(t)))
        now = self.now[t]
        return Draws(now, self.next[t], self.discount[t], now, self.ratio[t])

    @cached_property
    def u_squared(self) -> Array:
        """|u_t|^2 of every step."""
        return self.u.squared_norms() if self.trace else self.ratio**2 * self.psi_squared

    @cached_property
    def u_squared_bound(self) -> Array:
        """An upper bound of |u_t|^2, computed without trace rows."""
        return self.forward(np.sqrt(self.psi_squared)) ** 2

    @cached_property
    def v_squared(self) -> Array:
        """|v_t|^2 of every step."""
        out = np.empty(self.n)
        for steps in pieces(np.arange(self.n), 2 * self.d if not self.phi.sparse else 1):
            now, after = self.phi.take(self.now[steps]), self.phi.take(self.next[steps])
            weight = self.discount[steps]
            if self.phi.sparse:
                v = now - sparse.diags_array(weight) @ after
                out[steps] = np.asarray(v.power(2).sum(axis=1)).ravel()
            else:
                v = now - weight[:, None] * after
                out[steps] = np.einsum("ij,ij->i", v, v)
        return out

    def squared_lengths(self, dual: Array, traced: Array | None, primal: Array) -> tuple[Array, Array, Array]:
        """|dual'psi_t|^2, |traced'u_t|^2 and |primal'v_t|^2 of every step, for matrices of a few columns.

        traced: None without traces, where u_t is ratio_t psi_t and `dual` is taken.
        """
        of_psi, P = (self.psi.matmul(dual) ** 2).sum(axis=1)[self.now], self.phi.matmul(primal)
        of_u = self.ratio**2 * of_psi if traced is None else (self.u.matmul(traced) ** 2).sum(axis=1)
        return of_psi, of_u, ((P[self.now] - self.discount[:, None] * P[self.next]) ** 2).sum(axis=1)

    @cached_property
    def psi_squared(self) -> Array:
        """|psi_t|^2 of every step."""
        return self.psi.squared_norms()[self.now]
