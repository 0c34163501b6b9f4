"""Sources of the user's own, which give a log in parts; episodes continue from part to part by their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from valuefit.data.assemble import drop_incomplete, incomplete_steps
from valuefit.data.shards import Shard, compact, join_logs
from valuefit.data.transitions import Transitions
from valuefit.data.validation import episode_starts
from valuefit.messages import said, shown


@runtime_checkable
class DataIterator(Protocol):
    """A source of the user's own, which is read from its beginning in every pass."""

    def reset(self) -> Any:
        """Begin again; what is returned is ignored."""

    def next(self) -> Any:
        """The next steps, as a log or a table; None after the last."""


@dataclass(frozen=True, eq=False)
class _Loaded:
    log: Transitions

    def read(self) -> Transitions:
        return self.log


@dataclass(eq=False)
class IteratedShards:
    """The shards of a `DataIterator`, one after the other.

    as_log: makes a log of what it returns, incomplete steps included, and says whether a column numbers its episodes.
    continued, cut: how many parts, in the last pass, begin within an episode, and end with one that has no id and no
    end.
    """

    source: DataIterator
    as_log: Callable[[Any], tuple[Transitions, bool]]
    continued: int = 0
    cut: int = 0

    def __iter__(self) -> Iterator[Shard]:
        complete = False
        for logs in self._groups():
            log = _joined(logs)
            if not incomplete_steps(log).all():
                complete = True
                yield _Loaded(drop_incomplete(log))
        if not complete:
            raise ValueError("No step is left: none terminated and none has a next observation. Add next_obs columns.")

    def _groups(self) -> Iterator[list[Transitions]]:
        """Logs, each of which continues the last episode of the one before in its list."""
        self.continued = self.cut = 0
        group: list[Transitions] = []
        for number, (log, ids) in enumerate(self._logs()):
            if group and ids and _continues(group[-1], log, number):
                self.continued += 1
                last = group.pop()
                start = int(np.flatnonzero(episode_starts(last.episode))[-1])
                if start > 0:
                    yield [*group, compact(last[:start])]
                    group, last = [], compact(last[start:])
                group += [last, log]
            else:
                if group:
                    yield group
                group = [log]
        yield group

    def _logs(self) -> Iterator[tuple[Transitions, bool]]:
        self.source.reset()
        number, first = 0, None
        while (item := self.source.next()) is not None:
            try:
                log, ids = self.as_log(item)
                first = _check_meaning(log, first)
            except ValueError as error:
                raise ValueError(f"In part {number} of the iterator: {said(error)}") from error
            if not ids and _is_open(log):
                self.cut += 1
                log = replace(log, truncated=np.append(log.truncated[:-1], True))._frozen()
            yield log, ids
            number += 1
        if not number:
            raise ValueError("The iterator has no parts: next() returned None at once. Give at least one episode.")

    def notes(self) -> list[str]:
        """Where episodes were joined or cut in the last pass."""
        notes = []
        if self.continued:
            notes.append(
                f"At {self.continued} places an episode continues in the next part of the iterator, which begins with "
                "the same id: it is one episode. If it is another, mark the last step before it as truncated."
            )
        if self.cut:
            notes.append(
                "No column numbers the episodes, so the episode at the end of a part of the iterator is treated as "
                f"truncated there ({self.cut} parts). If episodes continue in the next part, add a column episode."
            )
        return notes


def _is_open(log: Transitions) -> bool:
    """Whether the last step is the last of an episode by no flag."""
    return not (log.terminated[-1] or log.truncated[-1])


def _continues(before: Transitions, log: Transitions, number: int) -> bool:
    """Whether the first step of a part, of this number, continues the last episode of the part before.

    It does if that is open and has the same id. Raises ValueError if the step before has another next observation,
    because ids that begin again in every part are those of two episodes.
    """
    if not _is_open(before) or _id(before, -1) != _id(log, 0):
        return False
    after, first = before.next[-1], log.observations[log.now[0]]
    if after >= 0 and not np.array_equal(before.observations[after], first):
        raise ValueError(
            f"Part {number} of the iterator begins with episode {shown(_id(log, 0))}, with which part {number - 1} "
            "ended, but not with the observation that came next there. If that episode ended, mark its last step as "
            "terminated or truncated; if it continues, return whole episodes."
        )
    return True


def _id(log: Transitions, step: int) -> Any:
    """The id of the episode of a step, by its name if it has one."""
    return log.episode[step] if log.episode_names is None else log.episode_names[log.episode[step]]


def _check_meaning(log: Transitions, first: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """What observations are in the first part; raises ValueError if they are something else in this one."""
    own = log.has_numbered_states, [] if log.state_names is None else log.state_names.tolist(), log.names
    kind, states, names = first or own
    if own[:2] != (kind, states) or (names and own[2] and own[2] != names):
        raise ValueError(
            "Its states or the entries of its observations have other names or types than those of part 0. Number "
            "states and categories alike in all parts: in parts text is not numbered."
        )
    return kind, states, names


def _joined(logs: list[Transitions]) -> Transitions:
    """One log of logs, each of which continues the last episode of the one before."""
    if len(logs) == 1:
        return logs[0]
    log, seams = join_logs(logs), np.cumsum([len(one) for one in logs[:-1]])
    begins, next, starts = log.begins.copy(), log.next.copy(), episode_starts(log.episode)
    begins[seams] = starts[seams] = False
    without = seams[incomplete_steps(log)[seams - 1]]
    next[without - 1] = log.now[without]
    return replace(log, begins=begins, next=next, episode=np.cumsum(starts) - 1)._frozen()
