"""What of an evaluation is drawn: values over states, TD errors, the way of the solver, the data, the ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.sandwich import Sandwich
from valuefit.report import svg as charts
from valuefit.report.histograms import Counts, Means, cells, counts_of, is_constant, means_of, strongest
from valuefit.typing import Array

MOST_NUMBERS = 20_000_000  # of observations that are looked at; of more, steps drawn at random
MOST_STATES = 50  # that have a bar each
BLOCK = 1000  # observations whose features are made at a time
POINTS = 300  # of a convergence curve
FLOOR = 1e-300  # a residual of 0 has no logarithm


@dataclass(frozen=True)
class Figure:
    """One chart and its words; the numbers behind it in rows, where they are few enough to be read."""

    name: str
    title: str
    caption: str
    svg: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def number(value: float) -> str:
    return f"{value:.5g}"


def count(value: float, what: str) -> str:
    return f"{value:,.0f} {what}{'s' * (value != 1)}"


# ---- values ------------------------------------------------------------------------------------------------------


def value_figures(evaluation: Evaluation) -> list[Figure]:
    """Values over the states that the log visited, never where it was not."""
    log = evaluation.log
    if log.has_numbered_states:
        return _of_states(evaluation)
    width = math.prod(log.observations.shape[1:])
    steps = _sample(len(log), MOST_NUMBERS // width)
    seen = np.asarray(log.observations[log.now[steps]], dtype=np.float64).reshape(len(steps), width)
    values = values_at(evaluation, steps)
    order = strongest(seen, values)
    names = observation_names(log)
    spread = _histogram(
        "value-spread", "Values at the logged steps", values, "value", "steps",
        "How the value before each step is spread over the log.",
    )  # fmt: skip
    if width == 2 and len(order) == 2:
        return [_map(seen, values, 0, 1, names), *spread]
    figures = [_map(seen, values, order[0], order[1], names)] if len(order) > 1 else []
    for place, column in enumerate(order[:2]):
        means = means_of(
            seen[:, column], values, most=25, weights=np.ones(len(values)), cluster=np.zeros(len(values), int)
        )
        figures.append(_along(f"value-along-{place + 1}", names[column], means))
    return figures + spread


def values_at(evaluation: Evaluation, steps: Array) -> Array:
    """The value of the state before each of these steps."""
    log, problem = evaluation.log, evaluation.problem
    if evaluation.values == "state":
        return np.asarray(problem.phi.dot(evaluation.result.theta)[problem.now[steps]])
    parts = [steps[first : first + BLOCK] for first in range(0, len(steps), BLOCK)]
    return np.concatenate([evaluation.value(log.observations[log.now[part]]) for part in parts])


def observation_names(log: Transitions) -> list[str]:
    """What the numbers of an observation are called, else their places."""
    shape = log.observations.shape[1:]
    if len(log.names) == math.prod(shape):
        return list(log.names)
    if not shape:
        return ["observation"]
    return [f"observation {', '.join(map(str, place))}" for place in np.ndindex(*shape)]


def _of_states(evaluation: Evaluation) -> list[Figure]:
    log = evaluation.log
    visits = np.bincount(log.now, minlength=len(log.observations))
    seen = np.flatnonzero(visits)
    values = np.zeros(len(visits))
    for first in range(0, len(seen), BLOCK):
        part = seen[first : first + BLOCK]
        values[part] = evaluation.value(log.observations[part])
    shown, which = seen, f"all {count(len(seen), 'state')} of the log"
    if len(seen) > MOST_STATES:
        shown = np.sort(seen[np.argsort(-visits[seen], kind="stable")[:MOST_STATES]])
        which = f"the {MOST_STATES} most visited of {count(len(seen), 'state')}"
    labels = [str(state) for state in log.observations[shown].tolist()]
    rows = tuple(
        (label, number(values[state]), f"{visits[state]:,}") for label, state in zip(labels, shown, strict=True)
    )
    best, worst = shown[np.argmax(values[shown])], shown[np.argmin(values[shown])]
    desc = (
        f"Bars of {which}. The highest is state {log.observations[best]} with {number(values[best])}, the lowest "
        f"state {log.observations[worst]} with {number(values[worst])}."
    )
    title, axis = "Value of each state", (log.names[0] if len(log.names) == 1 else "state")
    svg = charts.bars(
        "value-states", title, desc, labels, values[shown], x_label=axis, y_label="value",
        tips=[f"state {label}: {value} ({visited} steps)" for label, value, visited in rows],
    )  # fmt: skip
    states = Figure("value-states", title, f"For {which}.", svg, ("state", "value", "visits"), rows)
    if len(seen) <= 8:
        return [states]
    words = "How values are spread over the states, each counted once."
    return [states, *_histogram("value-spread", "Values of all states", values[seen], "value", "states", words)]


def _map(seen: Array, values: Array, across: int, up: int, names: list[str]) -> Figure:
    most = int(np.clip(np.sqrt(len(values) / 6), 6, 32))
    x_edges, y_edges, mean, counted = cells(seen[:, across], seen[:, up], values, most)
    filled = mean[counted > 0]
    x, y = np.unravel_index(np.argmax(np.where(counted > 0, mean, -np.inf)), mean.shape)
    what = "Value" if seen.shape[1] == 2 else "Mean value"
    title = f"{what} over {names[across]} and {names[up]}"
    desc = (
        f"Heat map. Values go from {number(filled.min())} to {number(filled.max())}, highest where {names[across]} is "
        f"{x_edges[x]:.4g} to {x_edges[x + 1]:.4g} and {names[up]} is {y_edges[y]:.4g} to {y_edges[y + 1]:.4g}. "
        f"{(counted > 0).sum()} of {counted.size} cells were visited."
    )
    caption = (
        "Each cell shows the mean value of the logged observations in it. Hatched: the log was never there, and a "
        "value would be extrapolated."
    )
    if seen.shape[1] > 2:
        caption += f" Of {seen.shape[1]} dimensions, these two tell most about the value."
    svg = charts.heat(
        "value-map", title, desc, x_edges, y_edges, mean, counted, x_label=names[across], y_label=names[up],
        unit="value",
    )  # fmt: skip
    return Figure("value-map", title, caption, svg)


def _along(slug: str, name: str, means: Means) -> Figure:
    title = f"Value along {name}"
    desc = f"From {number(means.mean[0])} at {number(means.place[0])} to {number(means.mean[-1])} at "
    desc += f"{number(means.place[-1])}; between {number(means.mean.min())} and {number(means.mean.max())}."
    svg = charts.line(
        slug, title, desc, means.place, means.mean, low=means.low, high=means.high, x_label=name, y_label="value"
    )
    caption = "The mean value in bins of equally many steps; the band holds the middle 80% of each."
    rows = _rows(means.place, means.mean, means.low, means.high)
    return Figure(slug, title, caption, svg, (name, "mean value", "10% point", "90% point"), rows)


# ---- TD errors ---------------------------------------------------------------------------------------------------


def td_figures(evaluation: Evaluation) -> list[Figure]:
    """The spread of the TD errors, and where their mean departs from 0."""
    errors, log = evaluation.td_errors(), evaluation.log
    figures = _histogram(
        "td-spread", "TD errors", errors, "TD error", "steps", "reward + discount × value after − value before.",
        mark=(float(np.average(errors, weights=_usable(evaluation.problem.ratio))), "mean"),
    )  # fmt: skip
    cluster = Sandwich(evaluation.problem, evaluation.result.theta, log.episode).cluster
    weighed, converged = bool((evaluation.problem.ratio != 1).any()), evaluation.result.status == "converged"
    before = evaluation.problem.phi.dot(evaluation.result.theta)[evaluation.problem.now]
    for slug, title, along, label in (
        ("td-position", "Mean TD error by step of the episode", positions(log), "step of the episode"),
        ("td-value", "Mean TD error by value", before, "value before the step"),
    ):
        if is_constant(along):
            continue
        means = means_of(along, errors, most=20, weights=evaluation.problem.ratio, cluster=cluster)
        if len(means.mean) > 1:
            figures.append(_departure(slug, title, label, means, weighed=weighed, converged=converged))
    return figures


def _departure(slug: str, title: str, label: str, means: Means, *, weighed: bool, converged: bool) -> Figure:
    low, high = means.mean - 2 * means.error, means.mean + 2 * means.error
    away = int(((low > 0) | (high < 0)).sum())
    desc = f"{away} of {len(means.mean)} bins lie more than two standard errors from 0; the largest mean is "
    desc += f"{number(means.mean[np.argmax(np.abs(means.mean))])}."
    svg = charts.line(
        slug,
        title,
        desc,
        means.place,
        means.mean,
        low=low,
        high=high,
        x_label=label,
        y_label="mean TD error",
        zero=True,
    )
    caption = "Where the band (two standard errors) keeps away from 0, the features cannot express the value"
    caption += "." if converged else ", or the solver is not there yet: it did not converge."
    if weighed:
        caption += " Steps are weighed by their ratios."
    rows = _rows(means.place, means.mean, means.error, means.count)
    return Figure(slug, title, caption, svg, (label, "mean TD error", "standard error", "steps"), rows)


def positions(log: Transitions) -> Array:
    """The place of each step in its episode, from 0."""
    first = np.append(True, log.episode[1:] != log.episode[:-1])
    steps = np.arange(len(log))
    return steps - np.maximum.accumulate(np.where(first, steps, 0))


# ---- the solver --------------------------------------------------------------------------------------------------


def convergence_figures(evaluation: Evaluation) -> list[Figure]:
    """Residual, or the gap where it is known, against passes; nothing for a method that solves at once."""
    history = evaluation.result.history
    figures = []
    for column, title, words in (
        ("residual", "Residual against passes", "|B(θ, w)| / |b|, which is 0 at the solution."),
        ("gap", "Gap against passes", "(F(θ) − F*) / (F(0) − F*), against the reference that was given."),
    ):
        if column not in (history.dtype.names or ()) or len(history) < 3:
            continue
        chosen = np.unique(np.linspace(0, len(history) - 1, POINTS).astype(int))
        passes, values = history["passes"][chosen], np.maximum(history[column][chosen], FLOOR)
        desc = f"On a logarithmic scale, from {values[0]:.1e} after {passes[0]:.1f} passes to {values[-1]:.1e} after "
        desc += f"{passes[-1]:.1f}."
        svg = charts.line(column, title, desc, passes, values, x_label="passes", y_label=column, log=True)
        figures.append(Figure(column, title, words + " A pass touches every step of the log once.", svg))
    return figures


# ---- the data ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overview:
    """The log by episode: lengths, discounted returns as logged, and how many terminated."""

    lengths: Array
    returns: Array
    terminated: int

    @classmethod
    def of(cls, log: Transitions, discount: float) -> Overview:
        _, code = np.unique(log.episode, return_inverse=True)
        returns = np.bincount(code, weights=log.reward * discount ** positions(log))
        return cls(np.bincount(code), returns, int(np.bincount(code, weights=log.terminated).astype(bool).sum()))


def data_figures(log: Transitions, overview: Overview) -> list[Figure]:
    """Rewards, lengths and returns; what never changes is told in the table and not drawn."""
    figures = _histogram(
        "rewards", "Rewards", log.reward, "reward", "steps", "The reward of each step.",
        mark=(float(log.reward.mean()), "mean"),
    )  # fmt: skip
    figures += _histogram(
        "lengths", "Episode lengths", overview.lengths.astype(float), "steps", "episodes", "The steps of each episode.",
        mark=(float(overview.lengths.mean()), "mean"),
    )  # fmt: skip
    words = "What each episode collected, discounted, as logged: of the policy that acted, and until it was cut."
    return figures + _histogram(
        "returns", "Discounted returns", overview.returns, "return", "episodes", words,
        mark=(float(overview.returns.mean()), "mean"),
    )  # fmt: skip


def ratio_figures(ratio: Array) -> list[Figure]:
    """The spread of the importance ratios, by powers of ten."""
    positive = ratio[ratio > 0]
    zero = len(ratio) - len(positive)
    words = "Target probability over behaviour probability of the logged action; at 0 (a ratio of 1) they agree."
    if zero:
        words += f" {count(zero, 'step')} with ratio 0 not drawn."
    if not len(positive):
        return []
    return _histogram("ratios", "Importance ratios", np.log10(positive), "log10 of the ratio", "steps", words)


# ---- parts -------------------------------------------------------------------------------------------------------


def _histogram(
    slug: str, title: str, values: Array, label: str, what: str, words: str, *, mark: tuple[float, str] | None = None
) -> list[Figure]:
    if is_constant(values):
        return []
    found: Counts = counts_of(values)
    top = int(np.argmax(found.counts))
    desc = (
        f"Histogram of {len(values):,} {what}, from {number(values.min())} to {number(values.max())}, mean "
        f"{number(values.mean())}. Most, {found.counts[top]:,}, lie between {found.edges[top]:.4g} and "
        f"{found.edges[top + 1]:.4g}."
    )
    if found.outside:
        words += f" The outermost bars hold {count(found.outside, what.removesuffix('s'))} beyond them."
    svg = charts.histogram(slug, title, desc, found.edges, found.counts, x_label=label, y_label=what, mark=mark)
    rows = tuple(
        (f"{low:.4g} to {high:.4g}", f"{counted:,}")
        for low, high, counted in zip(found.edges[:-1], found.edges[1:], found.counts, strict=True)
    )
    return [Figure(slug, title, words, svg, (label, what), rows)]


def _rows(*columns: Sequence[float] | Array) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(number(value) for value in row) for row in zip(*columns, strict=True))


def _sample(n: int, most: int) -> Array:
    """All steps, or a random choice of them, always the same."""
    most = max(most, 2000)
    steps: Any = np.arange(n) if n <= most else np.sort(np.random.default_rng(0).choice(n, most, replace=False))
    return np.asarray(steps)


def _usable(weights: Array) -> Array | None:
    return weights if weights.sum() > 0 else None
