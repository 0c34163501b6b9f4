"""Steps as torch tensors on a device: which rows they lead between, and the traces along them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch

from valuefit.gpu.device_rows import DeviceRows, RowSums, Tensor
from valuefit.problem.arguments import StepArrays


class Members(NamedTuple):
    """Steps, or distinct rows, with what a sketch needs of them; weight: over sqrt(n)."""

    now: Tensor
    next: Tensor
    discount: Tensor
    ratio: Tensor
    keep: Tensor
    weight: Tensor


class DeviceSteps:
    """The steps of a log on a device: their rows, discounts, ratios, rewards and the traces along them.

    In a trajectory, where steps are in the order of their rows and the next row of a step follows its own (next =
    now + 1), `now` and `next` are None: there is then one step for every row, and those that are not in the log,
    such as the last observations of episodes, have ratio 0 and `live` 0. Blocks of rows are views then.
    """

    def __init__(self, steps: StepArrays, device: torch.device, *, trace: float, rows: int) -> None:
        """steps: `next` is not negative."""
        now, next, reward, discount, ratio, begins = (torch.tensor(column, device=device) for column in steps)
        self.trace, self.rows, self.count = trace, rows, len(now)
        self.now, self.next, self.begins = now, next, begins
        columns = reward, discount, ratio, torch.ones_like(ratio)
        follows = (next == now + 1) | (discount == 0)
        if bool(follows.all()) and bool((now[1:] > now[:-1]).all()):
            self.now = self.next = None
            columns = tuple(torch.zeros(rows, dtype=x.dtype, device=device).index_copy(0, now, x) for x in columns)
            self.begins = torch.ones(rows, dtype=torch.bool, device=device).index_copy(0, now, begins)
        self.reward, self.discount, self.ratio, self.live = columns

    @property
    def trajectory(self) -> bool:
        """Whether there is one step for every row, and the row after it is its next one."""
        return self.now is None

    # ---- between numbers of rows and numbers of steps ----------------------------------------------------

    def at_now(self, p: Tensor) -> Tensor:
        """p of the row of each step."""
        return p if self.trajectory else p[self.now]

    def at_next(self, p: Tensor) -> Tensor:
        """p of the next row of each step, arbitrary where the discount is 0."""
        return torch.cat([p[1:], torch.zeros_like(p[:1])]) if self.trajectory else p[self.next]

    def sum_now(self, x: Tensor) -> Tensor:
        """For every row, the sum of x over the steps from it."""
        return x if self.trajectory else self._now_sums(x)

    def sum_next(self, x: Tensor) -> Tensor:
        """For every row, the sum of x over the steps to it."""
        return torch.cat([torch.zeros_like(x[:1]), x[:-1]]) if self.trajectory else self._next_sums(x)

    @cached_property
    def _now_sums(self) -> RowSums:
        return RowSums(self.now, self.rows)

    @cached_property
    def _next_sums(self) -> RowSums:
        return RowSums(self.next, self.rows)

    @cached_property
    def visits(self) -> Tensor:
        """The number of steps with each row as `now`."""
        return self.sum_now(self.live)

    def members(self, *, cross: bool) -> Members:
        """The steps of the log, without those that are not in it, or if not `cross`, its distinct rows."""
        if cross and not self.trajectory:
            weight = self.live / self.count**0.5
            return Members(self.now, self.next, self.discount, self.ratio, self.keep_forward, weight)
        rows = self.visits.nonzero()[:, 0]
        weight = (self.visits[rows] / self.count).sqrt()
        if not self.trajectory:
            return Members(rows, rows, weight, weight, weight, weight)  # of rows the weight alone is read
        _, after = self._rows_at(rows)
        return Members(rows, after, self.discount[rows], self.ratio[rows], self.keep_forward[rows], weight)

    def difference(self, p: Tensor) -> Tensor:
        """p_now - discount * p_next of every step: v_t' theta for p = Phi theta, a number or a row of each."""
        discount = self.discount if p.ndim == 1 else self.discount[:, None]
        return torch.addcmul(self.at_now(p), discount, self.at_next(p), value=-1)

    def difference_transposed(self, x: Tensor) -> Tensor:
        """The weights of rows a with sum x_t v_t = Phi' a."""
        return self.sum_now(x) - self.sum_next(self.discount * x)

    # ---- rows of some steps ------------------------------------------------------------------------------

    def psi(self, rows: DeviceRows, chosen: slice | Tensor) -> Tensor:
        """The rows from which some steps start: consecutive ones, or those at some places."""
        return rows.read(chosen if self.trajectory else self.now[chosen])

    def psi_and_v(
        self, phi: DeviceRows, psi: DeviceRows, chosen: slice | Tensor, dtype: torch.dtype = torch.float64
    ) -> tuple[Tensor, Tensor]:
        """psi_t and v_t of some steps: consecutive ones, or those at some places."""
        if self.trajectory and isinstance(chosen, slice):
            both, count = phi.read(slice(chosen.start, chosen.stop + 1)).to(dtype), chosen.stop - chosen.start
            here, after = both[:count], both[1:] if len(both) > count else torch.cat([both[1:], both[-1:]])
        else:
            here, after = (phi.read(rows).to(dtype) for rows in self._rows_at(chosen))
        V = torch.addcmul(here, self.discount[chosen, None].to(dtype), after, value=-1)
        return here if psi is phi else self.psi(psi, chosen).to(dtype), V

    def _rows_at(self, places: Any) -> tuple[Tensor, Tensor]:
        """The rows of these steps and their next rows, which are arbitrary where the discount is 0."""
        if self.trajectory:
            return places, (places + 1).clamp_(max=self.rows - 1)
        return self.now[places], self.next[places]

    # ---- traces ------------------------------------------------------------------------------------------

    @cached_property
    def keep_forward(self) -> Tensor:
        """The factor of u_{t-1} in u_t: ratio_t * trace * discount_{t-1}, and 0 at the first step of an episode."""
        keep = self.ratio * self.trace
        keep[1:] *= self.discount[:-1]
        return keep.masked_fill(self.begins, 0.0)

    @cached_property
    def keep_backward(self) -> Tensor:
        """The factor of z_{t+1} in z_t: ratio_t * trace * discount_t, and 0 at the last step of an episode."""
        last = torch.cat([self.begins[1:], torch.ones_like(self.begins[:1])])
        return (self.ratio * self.trace * self.discount).masked_fill(last, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """y_t = ratio_t (x_t + trace * discount_{t-1} * y_{t-1}) in an episode: u_t'w for x_t = psi_t'w.

        For one number of each step, or a row of them.
        """
        weighted = (self.ratio if x.ndim == 1 else self.ratio[:, None]) * x
        return recurrence(weighted, self.keep_forward) if self.trace else weighted

    def backward(self, x: Tensor) -> Tensor:
        """z_t = ratio_t (x_t + trace * discount_t * z_{t+1}) within an episode: sum u_t x_t = sum psi_t z_t."""
        if not self.trace:
            return self.ratio * x
        return recurrence((self.ratio * x).flip(0), self.keep_backward.flip(0)).flip(0)


def recurrence(x: Tensor, keep: Tensor) -> Tensor:
    """y_t = x_t + keep_t * y_{t-1} for numbers or rows x_t, by recursive doubling as in `rows.traces.recurrence`."""
    y = x
    keep = keep[:, None] if x.ndim > 1 else keep
    span = 1
    while span < len(y) and bool(keep[span:].any()):
        y = torch.cat([y[:span], torch.addcmul(y[span:], keep[span:], y[:-span])])
        keep = torch.cat([keep[:span], keep[span:] * keep[:-span]])
        span *= 2
    return y


def trace_rows(rows: Tensor, ratio: Tensor, keep: Tensor, carried: Tensor | None) -> tuple[Tensor, Tensor]:
    """The rows u of consecutive steps from their rows psi, and the last of them, to be carried into the next steps."""
    U = ratio[:, None] * rows.double()
    if carried is not None:
        U[0] += keep[0] * carried
    U = recurrence(U, keep)
    return U, U[-1]
