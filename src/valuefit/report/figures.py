"""The figures of a report: values over states, TD errors, convergence, the data, the ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.sandwich import Sandwich
from valuefit.evaluation.text import number
from valuefit.report import svg as charts
from valuefit.report.histograms import (
    Counts,
    Means,
    binned_means,
    cell_means,
    histogram_counts,
    is_constant,
    most_explanatory,
)
from valuefit.typing import Array

MAX_SAMPLE_NUMBERS = 20_000_000  # of observations (160 MB); figures of larger logs use a random sample of steps
MAX_STATE_BARS = 50
FEATURE_BLOCK = 1000  # observations whose features are computed at a time, to bound memory
MAX_CURVE_POINTS = 300
LOG_FLOOR = 1e-300  # in place of 0 on a logarithmic axis


@dataclass(frozen=True)
class Figure:
    """A chart with title and caption; header, rows: its numbers as a table, empty for many numbers."""

    name: str
    title: str
    caption: str
    svg: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def count(value: float, noun: str) -> str:
    """The number with its noun: 1 step, 2,000 steps."""
    return f"{value:,.0f} {noun}{'s' * (value != 1)}"


# ---- values ------------------------------------------------------------------------------------------------------


def value_figures(evaluation: Evaluation) -> list[Figure]:
    """Values over the states that the log visited; none are extrapolated."""
    log = evaluation.log
    if log.has_numbered_states:
        return _state_figures(evaluation)
    width = math.prod(log.observations.shape[1:])
    steps = _sample(len(log), MAX_SAMPLE_NUMBERS // width)
    seen = np.asarray(log.observations[log.now[steps]], dtype=np.float64).reshape(len(steps), width)
    values = values_at(evaluation, steps)
    order = most_explanatory(seen, values)
    names = observation_names(log)
    distribution = _histogram(
        "value-distribution", "Values at the logged steps", values, "value", "steps",
        "The distribution of the value before each step.",
    )  # fmt: skip
    if width == 2 and len(order) == 2:
        return [_value_map(seen, values, 0, 1, names), *distribution]
    figures = [_value_map(seen, values, order[0], order[1], names)] if len(order) > 1 else []
    for index, column in enumerate(order[:2]):
        means = binned_means(
            seen[:, column], values, max_bins=25, weights=np.ones(len(values)), cluster=np.zeros(len(values), int)
        )
        figures.append(_value_along(f"value-along-{index + 1}", names[column], means))
    return figures + distribution


def values_at(evaluation: Evaluation, steps: Array) -> Array:
    """The value of the state before each of these steps."""
    log, problem = evaluation.log, evaluation.problem
    if evaluation.values == "state":
        return np.asarray(problem.phi.dot(evaluation.result.theta)[problem.now[steps]])
    parts = [steps[first : first + FEATURE_BLOCK] for first in range(0, len(steps), FEATURE_BLOCK)]
    return np.concatenate([evaluation.value(log.observations[log.now[part]]) for part in parts])


def observation_names(log: Transitions) -> list[str]:
    """The names of the numbers of an observation, or else their indices."""
    shape = log.observations.shape[1:]
    if len(log.names) == math.prod(shape):
        return list(log.names)
    if not shape:
        return ["observation"]
    return [f"observation {', '.join(map(str, index))}" for index in np.ndindex(*shape)]


def _state_figures(evaluation: Evaluation) -> list[Figure]:
    """Values of numbered states."""
    log = evaluation.log
    visits = np.bincount(log.now, minlength=len(log.observations))
    seen = np.flatnonzero(visits)
    values = np.zeros(len(visits))
    for first in range(0, len(seen), FEATURE_BLOCK):
        part = seen[first : first + FEATURE_BLOCK]
        values[part] = evaluation.value(log.observations[part])
    shown, which = seen, f"all {count(len(seen), 'state')} of the log"
    if len(seen) > MAX_STATE_BARS:
        shown = np.sort(seen[np.argsort(-visits[seen], kind="stable")[:MAX_STATE_BARS]])
        which = f"the {MAX_STATE_BARS} most visited of {count(len(seen), 'state')}"
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
    caption = "The distribution of values over the states; each state is counted once."
    name, title = "value-distribution", "Values of all states"
    return [states, *_histogram(name, title, values[seen], "value", "states", caption)]


def _value_map(seen: Array, values: Array, x_column: int, y_column: int, names: list[str]) -> Figure:
    max_bins = int(np.clip(np.sqrt(len(values) / 6), 6, 32))
    x_edges, y_edges, mean, counted = cell_means(seen[:, x_column], seen[:, y_column], values, max_bins)
    filled = mean[counted > 0]
    x, y = np.unravel_index(np.argmax(np.where(counted > 0, mean, -np.inf)), mean.shape)
    quantity = "Value" if seen.shape[1] == 2 else "Mean value"
    title = f"{quantity} over {names[x_column]} and {names[y_column]}"
    desc = (
        f"Heat map. Values range from {number(filled.min())} to {number(filled.max())}; the highest is where "
        f"{names[x_column]} is {x_edges[x]:.4g} to {x_edges[x + 1]:.4g} and {names[y_column]} is {y_edges[y]:.4g} to "
        f"{y_edges[y + 1]:.4g}. {(counted > 0).sum()} of {counted.size} cells were visited."
    )
    caption = (
        "Each cell shows the mean value of the logged observations in it. Hatched cells have no logged observations; "
        "values there would be extrapolated."
    )
    if seen.shape[1] > 2:
        caption += f" Of the {seen.shape[1]} dimensions, these two explain most of the variance of the value."
    svg = charts.heat(
        "value-map", title, desc, x_edges, y_edges, mean, counted, x_label=names[x_column], y_label=names[y_column],
        unit="value",
    )  # fmt: skip
    return Figure("value-map", title, caption, svg)


def _value_along(name: str, column: str, means: Means) -> Figure:
    title = f"Value along {column}"
    desc = f"From {number(means.mean[0])} at {number(means.x[0])} to {number(means.mean[-1])} at "
    desc += f"{number(means.x[-1])}; between {number(means.mean.min())} and {number(means.mean.max())}."
    svg = charts.line(
        name, title, desc, means.x, means.mean, low=means.low, high=means.high, x_label=column, y_label="value"
    )
    caption = "The mean value in bins with equal numbers of steps; the band contains the middle 80% of each bin."
    rows = _rows(means.x, means.mean, means.low, means.high)
    return Figure(name, title, caption, svg, (column, "mean value", "10% quantile", "90% quantile"), rows)


# ---- TD errors ---------------------------------------------------------------------------------------------------


def td_figures(evaluation: Evaluation) -> list[Figure]:
    """The distribution of the TD errors, and their mean by time step and by value."""
    errors, log = evaluation.td_errors(), evaluation.log
    figures = _histogram(
        "td-distribution", "TD errors", errors, "TD error", "steps", "reward + discount × next value − value.",
        mark=(float(np.average(errors, weights=_weights_or_none(evaluation.problem.ratio))), "mean"),
    )  # fmt: skip
    cluster = Sandwich(evaluation.problem, evaluation.result.theta, log.episode, log.cluster).cluster
    weighted, converged = bool((evaluation.problem.ratio != 1).any()), evaluation.result.status == "converged"
    value = evaluation.problem.phi.dot(evaluation.result.theta)[evaluation.problem.now]
    for name, title, x, label in (
        ("td-position", "Mean TD error by step of the episode", positions(log), "step of the episode"),
        ("td-value", "Mean TD error by value", value, "value before the step"),
    ):
        if is_constant(x):
            continue
        means = binned_means(x, errors, max_bins=20, weights=evaluation.problem.ratio, cluster=cluster)
        if len(means.mean) > 1:
            figures.append(_mean_td_error(name, title, label, means, weighted=weighted, converged=converged))
    return figures


def _mean_td_error(name: str, title: str, label: str, means: Means, *, weighted: bool, converged: bool) -> Figure:
    low, high = means.mean - 2 * means.error, means.mean + 2 * means.error
    away = int(((low > 0) | (high < 0)).sum())
    desc = f"{away} of {len(means.mean)} bins lie more than two standard errors from 0; the largest mean is "
    desc += f"{number(means.mean[np.argmax(np.abs(means.mean))])}."
    svg = charts.line(
        name,
        title,
        desc,
        means.x,
        means.mean,
        low=low,
        high=high,
        x_label=label,
        y_label="mean TD error",
        zero=True,
    )
    caption = "Where the band (two standard errors) does not contain 0, the features cannot express the value"
    caption += "." if converged else ", or the solver error is large: the solver did not converge."
    if weighted:
        caption += " Steps are weighted by their ratios."
    rows = _rows(means.x, means.mean, means.error, means.count)
    return Figure(name, title, caption, svg, (label, "mean TD error", "standard error", "steps"), rows)


def positions(log: Transitions) -> Array:
    """The number of each step within its episode, from 0."""
    first = np.append(True, log.episode[1:] != log.episode[:-1])
    steps = np.arange(len(log))
    return steps - np.maximum.accumulate(np.where(first, steps, 0))


# ---- the solver --------------------------------------------------------------------------------------------------


def convergence_figures(evaluation: Evaluation) -> list[Figure]:
    """The residual, and the gap if a reference was given, against passes; none for a solve of one epoch."""
    history = evaluation.result.history
    figures = []
    for column, title, caption in (
        ("residual", "Residual against passes", "|B(θ, w)| / |b|, which is 0 at the solution."),
        ("gap", "Gap against passes", "(F(θ) − F*) / (F(0) − F*), relative to the given reference."),
    ):
        if column not in (history.dtype.names or ()) or len(history) < 3:
            continue
        chosen = np.unique(np.linspace(0, len(history) - 1, MAX_CURVE_POINTS).astype(int))
        passes, values = history["passes"][chosen], np.maximum(history[column][chosen], LOG_FLOOR)
        desc = f"On a logarithmic scale, from {values[0]:.1e} after {passes[0]:.1f} passes to {values[-1]:.1e} after "
        desc += f"{passes[-1]:.1f}."
        svg = charts.line(column, title, desc, passes, values, x_label="passes", y_label=column, log=True)
        figures.append(Figure(column, title, caption + " One pass reads every step of the log once.", svg))
    return figures


# ---- the data ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpisodeStatistics:
    """Lengths and discounted returns of the logged episodes, and the number of them that terminated."""

    lengths: Array
    returns: Array
    terminated: int

    @classmethod
    def of(cls, log: Transitions, discount: float) -> EpisodeStatistics:
        _, code = np.unique(log.episode, return_inverse=True)
        returns = np.bincount(code, weights=log.reward * discount ** positions(log))
        return cls(np.bincount(code), returns, int(np.bincount(code, weights=log.terminated).astype(bool).sum()))


def data_figures(log: Transitions, statistics: EpisodeStatistics) -> list[Figure]:
    """Histograms of rewards, lengths and returns; constant ones are not drawn, the table lists them."""
    figures = _histogram(
        "rewards", "Rewards", log.reward, "reward", "steps", "The reward of each step.",
        mark=(float(log.reward.mean()), "mean"),
    )  # fmt: skip
    figures += _histogram(
        "lengths", "Episode lengths", statistics.lengths.astype(float), "steps", "episodes",
        "The number of steps of each episode.",
        mark=(float(statistics.lengths.mean()), "mean"),
    )  # fmt: skip
    caption = (
        "The discounted sum of the logged rewards of each episode, under the policy that generated the log and up to "
        "truncation."
    )
    return figures + _histogram(
        "returns", "Discounted returns", statistics.returns, "return", "episodes", caption,
        mark=(float(statistics.returns.mean()), "mean"),
    )  # fmt: skip


def ratio_figures(ratio: Array) -> list[Figure]:
    """A histogram of log10 of the importance ratios."""
    positive = ratio[ratio > 0]
    zero = len(ratio) - len(positive)
    caption = (
        "The probability of the logged action under the target policy divided by that under the behaviour policy, on a "
        "logarithmic scale: 0 is a ratio of 1."
    )
    if zero:
        caption += f" Not shown: {count(zero, 'step')} with ratio 0."
    if not len(positive):
        return []
    return _histogram("ratios", "Importance ratios", np.log10(positive), "log10 of the ratio", "steps", caption)


# ---- helpers -----------------------------------------------------------------------------------------------------


def _histogram(
    name: str, title: str, values: Array, label: str, unit: str, caption: str, *, mark: tuple[float, str] | None = None
) -> list[Figure]:
    """A histogram of `values`, counted in `unit` (plural); none if they are constant."""
    if is_constant(values):
        return []
    found: Counts = histogram_counts(values)
    top = int(np.argmax(found.counts))
    desc = (
        f"Histogram of {len(values):,} {unit}, from {number(values.min())} to {number(values.max())}, mean "
        f"{number(values.mean())}. Most, {found.counts[top]:,}, lie between {found.edges[top]:.4g} and "
        f"{found.edges[top + 1]:.4g}."
    )
    if found.outside:
        caption += f" The outermost bars include {count(found.outside, unit.removesuffix('s'))} outside the axis."
    svg = charts.histogram(name, title, desc, found.edges, found.counts, x_label=label, y_label=unit, mark=mark)
    rows = tuple(
        (f"{low:.4g} to {high:.4g}", f"{counted:,}")
        for low, high, counted in zip(found.edges[:-1], found.edges[1:], found.counts, strict=True)
    )
    return [Figure(name, title, caption, svg, (label, unit), rows)]


def _rows(*columns: Sequence[float] | Array) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(number(value) for value in row) for row in zip(*columns, strict=True))


def _sample(n: int, size: int) -> Array:
    """All steps, or a random sample of at least 2000, with a fixed seed."""
    size = max(size, 2000)
    steps: Any = np.arange(n) if n <= size else np.sort(np.random.default_rng(0).choice(n, size, replace=False))
    return np.asarray(steps)


def _weights_or_none(weights: Array) -> Array | None:
    """The weights, or None (equal weights) if all are 0."""
    return weights if weights.sum() > 0 else None
