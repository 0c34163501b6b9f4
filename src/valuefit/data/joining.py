"""Logs joined to one, and cut into blocks of whole episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from valuefit.data.continuity import Continuity
from valuefit.data.transitions import Transitions
from valuefit.data.validation import are_state_numbers, episode_starts


def join_logs(logs: list[Transitions]) -> Transitions:
    """One log of the episodes of all these, numbered in order."""
    for log in logs:
        if log.observations.shape[1:] != logs[0].observations.shape[1:]:
            raise ValueError(
                f"Some parts of the log have observations of shape {logs[0].observations.shape[1:]}, others of shape "
                f"{log.observations.shape[1:]}. Give all parts observations of one shape."
            )
    observations = np.concatenate([log.observations for log in logs])
    offsets = np.cumsum([0, *(len(log.observations) for log in logs[:-1])])
    now = np.concatenate([log.now + offset for log, offset in zip(logs, offsets, strict=True)])
    next = np.concatenate(
        [np.where(log.next < 0, -1, log.next + offset) for log, offset in zip(logs, offsets, strict=True)]
    )
    if are_state_numbers(observations):
        observations, index = np.unique(observations, return_inverse=True)
        now, next = index[now], np.where(next < 0, -1, index[next])
    episodes, last = [], 0
    for log in logs:
        episodes.append(last + np.cumsum(episode_starts(log.episode)) - 1)
        last = int(episodes[-1][-1]) + 1
    for name in ("action", "behaviour_prob"):
        if len({getattr(log, name) is None for log in logs}) > 1:
            raise ValueError(f"Some parts of the log have {name}, others do not. Give all parts the same columns.")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(log, name) for log in logs])
        for name in ("reward", "terminated", "truncated", "ratio", "begins", "action", "behaviour_prob")
        if getattr(logs[0], name) is not None
    }
    continuity = sum((log.continuity for log in logs), Continuity())
    return replace(
        logs[0], continuity=continuity, observations=observations, now=now, next=next,
        episode=np.concatenate(episodes), cluster=None, episode_names=None, **joined,
    )._frozen()  # fmt: skip


def episode_blocks(log: Transitions, steps: int) -> Iterator[Transitions]:
    """Consecutive parts of a log, of whole episodes and at most this many steps, or one episode; about equally long.

    They are views of the log where its observations are in the order of its steps.
    """
    starts = np.append(np.flatnonzero(episode_starts(log.episode)), len(log))
    first, size = 0, len(log) / -(-len(log) // steps)
    for start, after in pairwise(starts.tolist()):
        if start > first and (after - first > steps or start - first >= size):
            yield log.part(first, start)
            first = start
    yield log if first == 0 else log.part(first, len(log))
