"""The log of transitions, with each observation stored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from valuefit.data.continuity import Continuity, continuity_of
from valuefit.data.exact import concatenate
from valuefit.data.gaps import MISSING, Filling, fill_arrays, gaps_error, has_gaps, numbered_columns, with_nan
from valuefit.data.labels import as_text, find_names, is_text, number_names, refuse_numbers_as_text, refuse_text_entries
from valuefit.data.validation import (
    PROBABILITY_TOL,
    are_state_numbers,
    array_of,
    check_observations,
    first_row,
    flags,
    last_steps,
    numbers,
    one_of,
    run_starts,
)
from valuefit.messages import RowError, shown
from valuefit.typing import Array


@dataclass(frozen=True, eq=False)
class Transitions:
    """An immutable log of steps, each a pair of row indices into the stored observations.

    `now[t]` and `next[t]` are rows of `observations`; `next[t] = -1` where the episode terminated.
    `terminated` stops the bootstrap, `truncated` does not. `begins[t]` is True where step t does not
    continue step t-1, so that the eligibility trace restarts there. Build it with
    `Transitions.from_arrays`; slice it by step (`log[10:20]`, `log[mask]`, `log[indices]`),
    by episode (`log.select([3, 5])`), or divide it (`valuefit.split(log)`). Columns are copied;
    observations are copied only where necessary.
    `notes` list what a reader assumed, `warnings` what is probably wrong in the source, `source` is the
    file or object the log was read from, and `names` are the names of the entries of an observation, where known. If
    the source names states, episodes or actions by text, `state_names`, `episode_names` and `action_names` list the
    names in sorted order: entry k is the name of state, episode or action k. `cluster` numbers the group that the
    episode of each step belongs to (a patient, a user), where episodes of one group are dependent; standard errors
    then treat groups, not episodes, as independent.
    `filling` says how gaps in the observations were filled (None: there were none); `continuity` counts the steps of
    the source that are not consecutive, or were left out. Selections of steps keep both.
    """

    observations: Array
    now: Array
    next: Array
    reward: Array
    terminated: Array
    truncated: Array
    episode: Array
    ratio: Array
    begins: Array
    action: Array | None = None
    behaviour_prob: Array | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    names: tuple[str, ...] = ()
    state_names: Array | None = None
    episode_names: Array | None = None
    warnings: tuple[str, ...] = ()
    cluster: Array | None = None
    action_names: Array | None = None
    filling: Filling | None = None
    continuity: Continuity = field(default_factory=Continuity)

    @classmethod
    def from_arrays(
        cls,
        observation: Any,
        reward: Any,
        *,
        terminated: Any = None,
        truncated: Any = None,
        episode: Any = None,
        action: Any = None,
        next_observation: Any = None,
        behaviour_prob: Any = None,
        target_prob: Any = None,
        ratio: Any = None,
        cluster: Any = None,
        missing: str = "refuse",
    ) -> Transitions:
        """A log from one array per column, one entry per step; the steps of an episode are contiguous and in order.

        `observation` is (n, ...) floats, or (n,) integers that label states. Without `next_observation`
        the observation of the following step is used. Without `episode`, an episode ends at each
        `terminated` or `truncated`. Importance ratios are `ratio`, or
        `target_prob / behaviour_prob` of the logged action; without either the log is on-policy.
        `behaviour_prob` alone is kept for a target policy given later. `action` is numbers, or text, which is numbered
        in sorted order (`action_names`). `cluster` are ids (numbers or text) of groups of
        episodes that depend on each other.
        `missing="flag"` fills gaps (NaN, None, masked) in observations, as in `valuefit.load`; other columns have none.
        """
        one_of("missing", missing, MISSING)
        unknown, filling = None, None
        if missing == "flag":
            observation, after = with_nan(observation), None if next_observation is None else with_nan(next_observation)
            observation, next_observation, unknown, filling = fill_arrays(
                observation, after, numbered_columns(observation)
            )
        observation = _checked_rows(observation)
        n = len(observation)
        if n == 0:
            raise ValueError("The log is empty: give at least one step.")
        reward = numbers("reward", reward, length=n)
        terminated, truncated = flags("terminated", terminated, n), flags("truncated", truncated, n)
        if episode is None:
            ended = terminated | truncated
            episode = np.concatenate(([0], np.cumsum(ended[:-1])))
        episode = numbers("episode", episode, length=n, dtype=np.int64)
        begins = run_starts(episode)
        last = last_steps(begins)
        if (step := first_row((terminated | truncated) & ~last)) is not None:
            raise RowError(
                "", step, f" is marked as terminated or truncated, but episode {episode[step]} continues after it. "
                "Give the steps that follow another episode number.", "Step",
            )  # fmt: skip
        if unknown is not None and (step := first_row(unknown & ~terminated)) is not None:
            raise RowError(
                "next_observation is missing as a whole at", step, ". Give it, or leave next_observation out: the "
                "observation of the following step is then used.", "step",
            )  # fmt: skip
        rows, now, next = _share_rows(observation, next_observation, terminated, last, episode)
        actions, action_names = (None, None) if action is None else _numbered_actions(action, n)
        discrete = actions is not None and actions.dtype.kind != "f"
        behaviour_prob = _probabilities("behaviour_prob", behaviour_prob, n, discrete=discrete)
        target_prob = _probabilities("target_prob", target_prob, n, discrete=discrete)
        log = cls(
            observations=rows,
            now=now,
            next=next,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            episode=episode,
            action=actions,
            ratio=_importance_ratios(ratio, behaviour_prob, target_prob, n),
            begins=begins,
            behaviour_prob=behaviour_prob,
            cluster=None if cluster is None else cluster_numbers(cluster, episode),
            action_names=action_names,
            filling=filling,
            notes=() if filling is None else (filling.sentence(),),
        )
        return replace(log, continuity=continuity_of(log, None, next_logged=next_observation is not None))._frozen()

    def _frozen(self) -> Transitions:
        """Return this log with read-only arrays."""
        for name, column in list(vars(self).items()):
            if isinstance(column, np.ndarray):
                view = column.view()  # the caller's array stays writeable
                view.flags.writeable = False
                object.__setattr__(self, name, view)
        return self

    def __len__(self) -> int:
        return len(self.now)

    @property
    def has_numbered_states(self) -> bool:
        """Whether observations are integer state labels rather than vectors."""
        return are_state_numbers(self.observations)

    @property
    def indicators(self) -> int:
        """How many numbers of an observation say where others were missing."""
        return 0 if self.filling is None else len(self.filling.gaps)

    @property
    def effective_share(self) -> float:
        """The share of the steps that count, by their ratios: `effective_sample_size` over the number of steps."""
        return effective_sample_size(self.ratio) / len(self)

    @property
    def shape(self) -> tuple[int]:
        """(steps,), which scikit-learn requires of data that it slices."""
        return (len(self),)

    def __repr__(self) -> str:
        episodes = len(np.unique(self.episode))
        policy = "off-policy" if (self.ratio != 1).any() else "on-policy"
        return (
            f"Transitions({len(self)} steps, {episodes} episodes, observations {self.observations.shape[1:]}, {policy})"
        )

    def __getitem__(self, steps: Any) -> Transitions:
        """The chosen steps. The eligibility trace restarts where a chosen step does not follow the previous one."""
        consecutive = isinstance(steps, slice) and steps.step in (None, 1)
        try:
            chosen: Any = steps if consecutive else np.atleast_1d(np.arange(len(self))[steps])
            begins = np.array(self.begins[chosen])
            if begins.ndim != 1:
                raise ValueError("they must be a slice, a mask or a list of numbers")
        except (IndexError, TypeError, ValueError) as error:
            if isinstance(steps, int | np.integer):  # Python ends a loop over the log by an IndexError
                raise IndexError(f"There is no step {shown(steps)} in a log of {len(self)} steps.") from None
            raise ValueError(f"These steps cannot be selected from a log of {len(self)} steps: {error}.") from None
        if len(begins) == 0:
            raise ValueError("No steps are left: the selection is empty.")
        begins[0] = True
        if not consecutive:
            begins[1:] |= np.diff(chosen) != 1
        index: Any = steps if isinstance(steps, slice) else chosen  # columns of a slice are views
        columns: dict[str, Any] = {
            name: getattr(self, name)[index]
            for name in ("now", "next", "reward", "terminated", "truncated", "episode", "ratio")
        }
        for name in ("action", "behaviour_prob", "cluster"):
            column = getattr(self, name)
            columns[name] = None if column is None else column[index]
        return replace(self, **columns, begins=begins)._frozen()

    def used_observations(self) -> tuple[Array, Array, Array]:
        """The rows of `observations` that steps use, ascending, and `now` and `next` as places among them."""
        if len(self) == len(self.observations) and self.now[0] == 0 and (np.diff(self.now) == 1).all():
            return self.now, self.now, self.next
        goes_on = self.next >= 0
        if len(self.observations) > 8 * len(self):  # a few steps of a long log
            rows = np.unique(np.concatenate([self.now, self.next[goes_on]]))
            return rows, np.searchsorted(rows, self.now), np.where(goes_on, np.searchsorted(rows, self.next), -1)
        used = np.zeros(len(self.observations), bool)
        used[self.now] = True
        used[self.next[goes_on]] = True
        if used.all():
            return np.arange(len(used)), self.now, self.next
        place = np.cumsum(used) - 1
        return np.flatnonzero(used), place[self.now], np.where(goes_on, place[self.next], -1)

    def compact(self) -> Transitions:
        """The log with the observations that its steps use, copied."""
        used, now, next = self.used_observations()
        return replace(self, observations=self.observations[used], now=now, next=next)._frozen()

    def part(self, start: int, stop: int) -> Transitions:
        """The steps from `start` to `stop`, with a view of the observations from the first to the last that they use.

        Where they use few of these, they have a copy of their own.
        """
        steps = self[start:stop]
        rows, now, next = used_rows(steps.now, steps.next)
        return replace(steps, observations=self.observations[rows], now=now, next=next)._frozen()

    @property
    def episodes(self) -> Array:
        """Episode ids, in the order of the log."""
        ids, first = np.unique(self.episode, return_index=True)
        return ids[np.argsort(first)]

    def as_stored(self, observations: Any) -> Any:
        """Observations as the log stores them: names of states as numbers, gaps filled; anything else unchanged."""
        if self.state_names is None and not self.has_numbered_states:
            refuse_text_entries(observations, self.names)
        if self.filling is not None:
            return self.filling.fill(observations)
        return find_names(observations, self.state_names, "state")

    def number_actions(self, actions: Any) -> Any:
        """Names of actions as their numbers; anything else, also None, unchanged."""
        return None if actions is None else find_names(actions, self.action_names, "action")

    def select(self, episodes: int | str | Sequence[int] | Sequence[str] | Array) -> Transitions:
        """All steps of these episodes, by number or name, in the order of the log."""
        wanted = np.atleast_1d(array_of("episodes", find_names(episodes, self.episode_names, "episode")))
        if wanted.dtype.kind not in "biuf":
            raise ValueError(f"episodes has dtype {wanted.dtype}; give numbers or names of episodes.")
        missing = np.setdiff1d(wanted, self.episode)
        if len(missing):
            raise ValueError(f"There is no episode {shown(missing[0])} in this log.")
        return self[np.isin(self.episode, wanted)]


def check_log(what: str, log: Any) -> None:
    """Raise ValueError if the argument of `what` is not a log in memory."""
    if not isinstance(log, Transitions):
        raise ValueError(f"{what} takes a Transitions, not {type(log).__name__}: load the log, or part of it, first.")


def effective_sample_size(weights: Any) -> float:
    """(sum w)^2 / sum w^2: the number of equally weighted steps with the same variance; 0 if all weights are 0."""
    weights = numbers("weights", weights)
    largest = np.abs(weights).max(initial=0.0)
    if largest == 0:
        return 0.0
    weights = weights / largest  # squares of very large or small ratios would overflow or underflow
    return float(weights.sum() ** 2 / np.square(weights).sum())  # without BLAS, whose idle threads spin


def rounded_ratios(ratio: Array) -> Array:
    """Importance ratios, exactly 1 where they are 1 up to rounding: the probabilities of one policy may have been
    computed twice, or rounded to float32."""
    return np.where(np.abs(ratio - 1) <= PROBABILITY_TOL, 1.0, ratio)


def used_rows(now: Array, next: Array) -> tuple[slice | Array, Array, Array]:
    """The rows that steps use, or all between them if those are at most two for each step; now and next among them."""
    low = int(now.min())
    if (next[next < low] >= 0).any():  # few are so small, but those that terminated
        low = int(next[next >= 0].min())
    high = int(max(now.max(), next.max())) + 1
    if high - low <= 2 * len(now):
        after = next - low
        return slice(low, high), now - low, np.maximum(after, -1, out=after)
    rows = np.unique(np.concatenate([now, next[next >= 0]]))
    return rows, np.searchsorted(rows, now), np.where(next < 0, -1, np.searchsorted(rows, next))


def cluster_numbers(cluster: Any, episode: Array) -> Array:
    """Ids of groups of episodes, one for each step, as numbers (n,); raises ValueError if they divide an episode."""
    ids = array_of("cluster", cluster)
    if is_text(ids):
        texts = as_text(ids, "cluster")
        if None in texts:
            raise RowError("cluster is missing at", texts.index(None), ". Give every step a cluster.", "step")
        ids = number_names([texts])[1][0]
    ids = numbers("cluster", ids, length=len(episode), dtype=np.int64)
    divided = (episode[1:] == episode[:-1]) & (ids[1:] != ids[:-1])
    if (step := first_row(divided)) is not None:
        raise RowError(
            f"Episode {episode[step]} belongs to two clusters: another begins at", step + 1, ". A cluster is a group "
            "of whole episodes: give all steps of an episode the same one, or ignore the column with "
            "`columns={'cluster': None}`.", "step",
        )  # fmt: skip
    return ids


def _share_rows(
    observation: Array, next_observation: Any, terminated: Array, last: Array, episode: Array
) -> tuple[Array, Array, Array]:
    """Rows, now, next: the next observation of a step shares the row of the following step where they are equal."""
    n = len(observation)
    if next_observation is None:
        if (step := first_row(last & ~terminated)) is not None:
            raise RowError(
                f"Episode {episode[step]} ends at", step, " without terminating, but its next observation is missing. "
                "Give next_observation, or leave that last step out.", "step",
            )  # fmt: skip
        now = np.arange(n)
        rows, next = observation, np.where(last, -1, now + 1)
    else:
        # the next observation of a terminated step is never used, so it may be padding
        after = array_of("next_observation", next_observation, needed=~terminated, place="in row")
        shape = after.shape
        if shape != observation.shape:
            raise ValueError(
                f"next_observation has shape {shape} but observation has {observation.shape}. They must be equal."
            )
        after = check_observations("next_observation", after, ~terminated)
        shared = np.zeros(n, bool)
        equal = after[:-1] == observation[1:]
        shared[:-1] = equal.all(axis=tuple(range(1, equal.ndim))) & ~last[:-1]
        separate = ~shared & ~terminated
        next = np.full(n, -1)
        next[shared] = np.flatnonzero(shared) + 1
        next[separate] = n + np.arange(separate.sum())
        now, rows = np.arange(n), concatenate([observation, after[separate]], "observation")
    if are_state_numbers(rows):  # one row per state, not per visit
        rows, index = np.unique(rows, return_inverse=True)
        now, next = index[now], np.where(next < 0, -1, index[next])
    return rows, now.astype(np.int64), next.astype(np.int64)


def _checked_rows(observation: Any) -> Array:
    """Finite observations; where some are missing, the error counts them by column."""
    try:
        return check_observations("observation", observation)
    except RowError:
        if not has_gaps(observation):
            raise
        observation = with_nan(observation)
        raise gaps_error(observation, numbered_columns(observation)) from None


def _numbered_actions(action: Any, n: int) -> tuple[Array, Array | None]:
    """Actions as numbers, and their names if they are text."""
    values = array_of("action", action)
    if values.shape[:1] != (n,) or values.dtype.kind not in "biufOSUT":
        raise ValueError(
            f"action must be numbers or text, one entry per step; the log has {n} steps, action has shape "
            f"{values.shape} and dtype {values.dtype}."
        )
    if is_text(values):
        texts = as_text(values, "action")
        if None in texts:
            raise RowError("action is missing at", texts.index(None), ". Give every step an action.", "step")
        refuse_numbers_as_text(texts, "action", "step {}".format, names=True)
        names, (codes,) = number_names([texts])
        return codes, names
    return (check_observations("action", values) if values.dtype.kind == "f" else values), None


def _probabilities(name: str, values: Any, n: int, *, discrete: bool) -> Array | None:
    """Probabilities of the logged actions, at most 1 if these are `discrete`; else they may be densities."""
    if values is None:
        return None
    given = numbers(name, values, length=n)
    if name == "behaviour_prob" and (step := first_row(given <= 0)) is not None:
        raise RowError(
            f"behaviour_prob is {given[step]} at", step, ", but that action was taken. Probabilities of logged "
            "actions must be positive (if these are log-probabilities, take exp first).", "step",
        )  # fmt: skip
    if discrete and (step := first_row(given > 1 + PROBABILITY_TOL)) is not None:
        raise RowError(
            f"{name} is {given[step]} at", step, ", but probabilities are at most 1. Divide percentages by 100; "
            "densities may exceed 1, and their actions are floating-point numbers, not whole numbers or text.", "step",
        )  # fmt: skip
    return given


def _importance_ratios(ratio: Any, behaviour_prob: Array | None, target_prob: Array | None, n: int) -> Array:
    if ratio is not None:
        if target_prob is not None:
            raise ValueError("Give either ratio or the two probabilities, not both.")
        values = numbers("ratio", ratio, length=n)
    elif target_prob is None:
        return np.ones(n)
    elif behaviour_prob is None:
        raise ValueError(
            "target_prob needs behaviour_prob, the probability with which the logged action was chosen (or give "
            "ratio itself)."
        )
    else:
        with np.errstate(over="ignore"):
            values = target_prob / behaviour_prob
    if (step := first_row(~np.isfinite(values))) is not None:
        what = f"target_prob / behaviour_prob is {values[step]} at"
        raise RowError(what, step, ": behaviour_prob is too small.", "step")
    if (step := first_row(values < 0)) is not None:
        raise RowError(f"ratio is {values[step]} at", step, ". Importance ratios cannot be negative.", "step")
    return rounded_ratios(values)
