"""Products of importance ratios along episodes, discounted: what importance sampling weights rewards by."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.policies.importance import log_products
from valuefit.typing import Array

MAX_LOG_PRODUCT = 138.0  # products of ratios above e^138 = 1e60 are cut off there, so that squares stay finite


class EpisodeWeights:
    """discount^t ratio_0 ... ratio_t of the steps of each episode, up to its first gap.

    steps: indices of the steps that are used, in order: in a sliced log, those before the first gap of an episode.
    episode: the number of the episode of each, counted from 0 in the order of the log. time: t, from 0.
    last: for each episode, the position of its last step in `steps`. weights: (len(steps),).
    """

    def __init__(self, log: Transitions, first: Array, ratio: Array, discount: float) -> None:
        run = np.cumsum(log.begins)
        self.steps: Array = np.flatnonzero(np.isin(run, run[first]))
        position = np.searchsorted(self.steps, first)
        self.count = len(first)
        self.lengths: Array = np.diff(np.append(position, len(self.steps)))
        self.episode: Array = np.repeat(np.arange(self.count), self.lengths)
        self.time: Array = np.arange(len(self.steps)) - position[self.episode]
        self.last: Array = position + self.lengths - 1
        self.discount = discount
        self.has_gaps = len(self.steps) < len(log)
        product = log_products(ratio, log.begins)[self.steps]
        self.overflows = bool((product > MAX_LOG_PRODUCT).any())
        self.log_product: Array = np.minimum(product, MAX_LOG_PRODUCT)
        self.weights: Array = discount**self.time * np.exp(self.log_product)

    def sums(self, values: Array) -> Array:
        """The sum of one value per step over each episode, (episodes,)."""
        return np.bincount(self.episode, values, self.count)

    @cached_property
    def log_totals(self) -> Array:
        """log sum of the products over all episodes at t = 0, 1, ..., (longest + 1,); an ended one keeps its last."""
        return np.asarray(np.logaddexp(self._log_running(1.0), self._log_ended(1.0)))

    def following(self, terminated: Array) -> Array:
        """The effective number of episodes that act like the policy for 1, 2, ... steps, (longest,).

        (sum of products)^2 / sum of their squares. An episode that terminated before keeps its product, one that was
        cut before no longer counts. terminated: whether each episode did, (episodes,).
        """
        total, squares = (
            np.logaddexp(self._log_running(power), self._log_ended(power, terminated))[:-1] for power in (1.0, 2.0)
        )
        with np.errstate(invalid="ignore"):  # 0 / 0 where no episode is left
            return np.where(np.isneginf(total), 0.0, np.exp(2 * total - squares))

    def _log_running(self, power: float) -> Array:
        """log sum of the products, to this power, of the episodes that have a step at t = 0, 1, ..., (longest + 1,)."""
        return _log_sums(self.time, power * self.log_product, int(self.lengths.max()) + 1)

    def _log_ended(self, power: float, chosen: Any = slice(None)) -> Array:
        """Log-sum of the final products, to this power, of the chosen episodes that have ended before each step."""
        size = int(self.lengths.max()) + 1
        final = power * self.log_product[self.last[chosen]]
        return np.asarray(np.logaddexp.accumulate(_log_sums(self.lengths[chosen], final, size)))

    @property
    def effective_episodes(self) -> float:
        """The effective number of episodes, (sum of products)^2 / sum of their squares, as a mean over steps.

        Or, where that is less: the sum of products, which is the number of episodes on average, so a small one misses
        the episodes that matter; or the number of episodes times the effective share of those that are still running,
        because rewards come from these, and the products of many short episodes hide how few of them count. The mean is
        harmonic, with weights discount^t: an estimate is as imprecise as its steps with few effective episodes.
        """
        if self.overflows:  # products that were cut off look more equal than they are
            return 1.0
        count = np.bincount(self.time)
        share = self.discount ** np.arange(len(count)) * count
        running, running_squares, ended_squares, totals = (
            logs[: len(count)]
            for logs in (self._log_running(1.0), self._log_running(2.0), self._log_ended(2.0), self.log_totals)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            of_all = np.maximum(np.logaddexp(running_squares, ended_squares) - 2 * totals, -totals)
            of_running = np.log(count / self.count) + running_squares - 2 * running
            of_running[np.isneginf(running)] = -np.inf  # under the policy all have ended
            inverse = np.exp(np.maximum(of_all, of_running))
        if not np.isfinite(inverse[share > 0]).all():  # no episode follows the policy beyond some step
            return 0.0
        return float(share.sum() / (share @ np.where(share > 0, inverse, 0.0)))

    def self_normalised(self, reward: Array, final: Array) -> tuple[float, Array, Array]:
        """The weighted per-decision estimate, its influence by episode, (episodes,), and the weights of `final`.

        sum_t discount^t m_t, where m_t is the mean of the rewards at t, weighted by the products; an ended episode
        has reward 0 and keeps its product. reward: of each step. final: the value with which each episode ends.
        """
        totals = self.log_totals
        counts = totals > -400.0  # steps whose products sum to less than e^-400 have no weight
        scale = np.where(counts, totals, np.inf)
        power = self.discount ** np.arange(len(totals))
        share = np.exp(self.log_product - scale[self.time])
        last = self.log_product[self.last]
        final_share = np.exp(last - scale[self.lengths])
        means = np.bincount(self.time, share * reward, len(totals))
        means = means + np.bincount(self.lengths, final_share * final, len(totals))
        later = np.cumsum((power * means * np.exp(-scale))[::-1])[::-1]  # of the steps after the end of an episode
        own = self.sums(power[self.time] * share * (reward - means[self.time]))
        final_weight = power[self.lengths] * final_share
        influence = own + final_weight * final - np.exp(last) * later[self.lengths]
        return float(power @ means), influence, final_weight


def _log_sums(group: Array, logs: Array, size: int) -> Array:
    """log of the sum of exp(logs) in each of `size` groups; -inf for an empty sum."""
    largest = np.full(size, -np.inf)
    np.maximum.at(largest, group, logs)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.bincount(group, np.exp(logs - shift[group]), size)) + shift)
