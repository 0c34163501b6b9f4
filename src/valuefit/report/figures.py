"""The figures of a report: values over states, TD errors, convergence, the data, the ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import episode_starts, step_numbers
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.text import number
from valuefit.inference.bands import Band
from valuefit.inference.policy_value import value_rows
from valuefit.report import svg as charts
from valuefit.report.histograms import (
    Cells,
    Counts,
    Means,
    binned_means,
    cells,
    histogram_counts,
    is_constant,
    most_explanatory,
    quantile_bins,
)
from valuefit.rows.storage import Rows
from valuefit.typing import Array

VALUE_BINS = 25  # of a curve of values, at most


@dataclass(frozen=True)
class Figure:
    """A chart with title and caption; header, rows: its numbers as a table, empty for many numbers."""

    name: str
    title: str
    caption: str
    svg: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def counted(value: float, noun: str) -> str:
    """The number with its noun: 1 step, 2,000 steps."""
    return f"{value:,.0f} {noun}{'s' * (value != 1)}"


# ---- values ------------------------------------------------------------------------------------------------------


def value_figures(evaluation: Evaluation) -> list[Figure]:
    """Values over the states that the log visited; none are extrapolated."""
    log = evaluation.log
    if log.has_numbered_states:
        return _state_figures(evaluation)
    width = math.prod(log.observations.shape[1:])
    steps = _sampled_steps(len(log), 20_000_000 // width)  # 160 MB of observations
    seen = np.asarray(log.observations[log.now[steps]], dtype=np.float64).reshape(len(steps), width)
    values = values_at(evaluation, steps)
    order = most_explanatory(seen, values)
    names = observation_names(log)
    distribution = _histogram(
        "value-distribution", "Values at the logged steps", values, "value", "steps",
        "The distribution of the value before each step.",
    )  # fmt: skip
    figures = []
    if len(order) > 1:
        axes = (0, 1) if width == 2 else (order[0], order[1])
        figures += _value_maps(evaluation, steps, seen, values, axes)
    if width != 2 or len(order) < 2:
        for index, column in enumerate(order[:2]):
            name, alone = f"value-along-{index + 1}", len(order) == 1
            figures.append(_value_along(evaluation, steps, seen[:, column], values, name, names[column], alone=alone))
    return figures + distribution


def values_at(evaluation: Evaluation, steps: Array) -> Array:
    """The value of the state before each of these steps."""
    log, problem = evaluation.log, evaluation.problem
    if evaluation.values == "state":
        return np.asarray(problem.phi.dot(evaluation.result.theta)[problem.now[steps]])
    return np.concatenate([evaluation.value(log.observations[log.now[steps[part]]]) for part in _blocks(len(steps))])


def mean_intervals(evaluation: Evaluation, steps: Array, group: Array, groups: int) -> Band | None:
    """Intervals of the mean value before the steps of each group, -1 for none; None where there are no intervals."""
    problem, log = evaluation.problem, evaluation.log
    if not has_intervals(evaluation):
        return None
    steps, group = steps[group >= 0], group[group >= 0]
    share = 1 / np.bincount(group, minlength=groups)[group]
    rows = np.zeros((groups, problem.d))
    if evaluation.values == "state":
        rows += problem.phi.group_sums(problem.now[steps], share, group, groups)
    else:
        for part in _blocks(len(steps)):
            seen = log.observations[log.now[steps[part]]]
            by_step = Rows(value_rows(evaluation.features, evaluation.values, evaluation.policy, problem.d, seen))
            rows += by_step.group_sums(np.arange(len(seen)), share[part], group[part], groups)
    return evaluation.band(rows, level=evaluation.policy_value.level)


def has_intervals(evaluation: Evaluation) -> bool:
    """Whether single values have intervals."""
    return not (evaluation.sampled and evaluation.fit.sums is None) and evaluation.errors.has_row_intervals


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
    for part in _blocks(len(seen)):
        values[seen[part]] = evaluation.value(log.observations[seen[part]])
    shown, which = seen, f"all {counted(len(seen), 'state')} of the log"
    if len(seen) > 50:
        shown = np.sort(seen[np.argsort(-visits[seen], kind="stable")[:50]])
        which = f"the 50 most visited of {counted(len(seen), 'state')}"
    states = _state_bars(evaluation, log.observations[shown], values[shown], visits[shown], which)
    if len(seen) <= 8:
        return [states]
    caption = "The distribution of values over the states; each state is counted once."
    name, title = "value-distribution", "Values of all states"
    return [states, *_histogram(name, title, values[seen], "value", "states", caption)]


def _state_bars(evaluation: Evaluation, states: Array, values: Array, visits: Array, which: str) -> Figure:
    """The value of each state with its interval."""
    names, level = evaluation.log.names, f"{100 * evaluation.policy_value.level:g}%"
    columns = [[str(state) for state in states.tolist()], [*map(number, values)], [f"{each:,}" for each in visits]]
    header, caption, intervals = ["state", "value", "visits"], f"For {which}.", None
    tips = [f"state {label}: {value} ({visited} steps)" for label, value, visited in zip(*columns, strict=True)]
    if has_intervals(evaluation):
        intervals = evaluation.value_interval(states, level=evaluation.policy_value.level)
        header += [f"{level} interval from", "to"]
        columns += [[*map(number, ends)] for ends in intervals.T]
        caption += f" Error bars are the {level} intervals of single states."
        if not np.isfinite(intervals).all():
            caption += " Where there is none, the log, or all but one episode, does not determine the value."
    best, worst = np.argmax(values), np.argmin(values)
    desc = (
        f"Bars of {which}. The highest is state {states[best]} with {number(values[best])}, the lowest state "
        f"{states[worst]} with {number(values[worst])}."
    )
    title = "Value of each state"
    svg = charts.bars(
        "value-states", title, desc, columns[0], values, x_label=names[0] if len(names) == 1 else "state",
        y_label="value", tips=tips, intervals=intervals,
    )  # fmt: skip
    return Figure("value-states", title, caption, svg, tuple(header), tuple(zip(*columns, strict=True)))


def _value_maps(
    evaluation: Evaluation, steps: Array, seen: Array, values: Array, axes: tuple[int, int]
) -> list[Figure]:
    """The mean value in each cell of two columns of the observations, and its standard error."""
    names = observation_names(evaluation.log)
    x_label, y_label = names[axes[0]], names[axes[1]]
    grid = cells(seen[:, axes[0]], seen[:, axes[1]], int(np.clip(np.sqrt(len(values) / 6), 6, 32)))
    quantity = "value" if seen.shape[1] == 2 else "mean value"
    caption = (
        "Each cell shows the mean value of the logged observations in it. Hatched cells have no logged observations; "
        "values there would be extrapolated."
    )
    if seen.shape[1] > 2:
        caption += f" Of the {seen.shape[1]} dimensions, these two explain most of the variance of the value."
    title = f"{quantity.capitalize()} over {x_label} and {y_label}"
    figures = [_heat_map("value-map", title, caption, "value", grid, grid.means(values), x_label, y_label)]
    band = mean_intervals(evaluation, steps, grid.cell, grid.counts.size)
    if band is not None:
        error = band.standard_errors.reshape(grid.counts.shape)
        known = replace(grid, counts=np.where(np.isfinite(error), grid.counts, 0))
        if known.counts.any() and error[known.counts > 0].any():
            title = f"Standard error of the {quantity} over {x_label} and {y_label}"
            caption = "The sampling error of each cell of the map before: where it is large, the map says little."
            if (known.counts < grid.counts).any():
                caption += (
                    " Of visited cells that are hatched here, the log, or all but one episode, does not determine"
                )
                caption += " the value."
            figures.append(_heat_map("value-error-map", title, caption, "error", known, error, x_label, y_label))
    return figures


def _heat_map(
    name: str, title: str, caption: str, unit: str, grid: Cells, shown: Array, x_label: str, y_label: str
) -> Figure:
    """A heat map of numbers in cells (x, y); cells without counts are hatched."""
    visited = grid.counts > 0
    x, y = np.unravel_index(np.argmax(np.where(visited, shown, -np.inf)), shown.shape)
    desc = (
        f"Heat map from {number(shown[visited].min())} to {number(shown[visited].max())}; the highest is where "
        f"{x_label} is {grid.x_edges[x]:.4g} to {grid.x_edges[x + 1]:.4g} and {y_label} is {grid.y_edges[y]:.4g} to "
        f"{grid.y_edges[y + 1]:.4g}. {visited.sum()} of {visited.size} cells are shown."
    )
    svg = charts.heat(
        name, title, desc, grid.x_edges, grid.y_edges, shown, grid.counts, x_label=x_label, y_label=y_label, unit=unit
    )
    return Figure(name, title, caption, svg)


def _value_along(
    evaluation: Evaluation, steps: Array, x: Array, values: Array, name: str, column: str, *, alone: bool
) -> Figure:
    """Mean values in bins of x; alone: x is the only number that varies, so that the band can be that of the error."""
    bin_of, bins = quantile_bins(x, VALUE_BINS)
    means = binned_means(
        x, values, max_bins=VALUE_BINS, weights=np.ones(len(values)), cluster=np.zeros(len(values), int)
    )
    low, high, ends = means.low, means.high, ("10% quantile", "90% quantile")
    caption = "The mean value in bins with equal numbers of steps; the band contains the middle 80% of each bin."
    band = mean_intervals(evaluation, steps, bin_of, bins) if alone else None
    if band is not None and np.isfinite(band.intervals).all():
        level = f"{100 * evaluation.policy_value.level:g}%"
        (low, high), ends = band.intervals.T, (f"{level} interval from", "to")
        caption = f"The mean value in bins with equal numbers of steps; the band is the {level} interval of each bin."
    title = f"Value along {column}"
    desc = f"From {number(means.mean[0])} at {number(means.x[0])} to {number(means.mean[-1])} at "
    desc += f"{number(means.x[-1])}; between {number(means.mean.min())} and {number(means.mean.max())}."
    svg = charts.line(name, title, desc, means.x, means.mean, low=low, high=high, x_label=column, y_label="value")
    return Figure(name, title, caption, svg, (column, "mean value", *ends), _table_rows(means.x, means.mean, low, high))


# ---- TD errors ---------------------------------------------------------------------------------------------------


def td_figures(evaluation: Evaluation) -> list[Figure]:
    """The distribution of the TD errors, and their mean by time step and by value."""
    errors, log, ratio = evaluation.td_errors(), evaluation.log, evaluation.problem.ratio
    mean = float(np.average(errors, weights=ratio if ratio.sum() > 0 else None))
    figures = _histogram(
        "td-distribution", "TD errors", errors, "TD error", "steps", "reward + discount × next value − value.",
        mark=(mean, "mean"),
    )  # fmt: skip
    cluster = evaluation.fit.shard.clusters.of_step
    weighted, converged = bool((ratio != 1).any()), evaluation.result.status == "converged"
    value = evaluation.problem.phi.dot(evaluation.result.theta)[evaluation.problem.now]
    for name, title, x, label in (
        ("td-position", "Mean TD error by step of the episode", positions(log), "step of the episode"),
        ("td-value", "Mean TD error by value", value, "value before the step"),
    ):
        if is_constant(x):
            continue
        means = binned_means(x, errors, max_bins=20, weights=ratio, cluster=cluster)
        if len(means.mean) > 1:
            figures.append(_mean_td_error(name, title, label, means, weighted=weighted, converged=converged))
    return figures


def _mean_td_error(name: str, title: str, label: str, means: Means, *, weighted: bool, converged: bool) -> Figure:
    low, high = means.mean - 2 * means.error, means.mean + 2 * means.error
    away = int(((low > 0) | (high < 0)).sum())
    desc = f"{away} of {len(means.mean)} bins lie more than two standard errors from 0; the largest mean is "
    desc += f"{number(means.mean[np.argmax(np.abs(means.mean))])}."
    svg = charts.line(
        name, title, desc, means.x, means.mean, low=low, high=high, x_label=label, y_label="mean TD error", zero=True
    )
    caption = "Where the band (two standard errors) does not contain 0, the features cannot express the value"
    caption += "." if converged else ", or the solver error is large: the solver did not converge."
    if weighted:
        caption += " Steps are weighted by their ratios."
    rows = _table_rows(means.x, means.mean, means.error, means.count)
    return Figure(name, title, caption, svg, (label, "mean TD error", "standard error", "steps"), rows)


def positions(log: Transitions) -> Array:
    """The number of each step within its episode, from 0."""
    return step_numbers(episode_starts(log.episode))


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
        chosen = np.unique(np.linspace(0, len(history) - 1, 300).astype(int))
        passes, values = history["passes"][chosen], np.maximum(history[column][chosen], 1e-300)  # the axis has no 0
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
        caption += f" Not shown: {counted(zero, 'step')} with ratio 0."
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
    bins: Counts = histogram_counts(values)
    top = int(np.argmax(bins.counts))
    desc = (
        f"Histogram of {len(values):,} {unit}, from {number(values.min())} to {number(values.max())}, mean "
        f"{number(values.mean())}. Most, {bins.counts[top]:,}, lie between {bins.edges[top]:.4g} and "
        f"{bins.edges[top + 1]:.4g}."
    )
    if bins.outside:
        caption += f" The outermost bars include {counted(bins.outside, unit.removesuffix('s'))} outside the axis."
    svg = charts.histogram(name, title, desc, bins.edges, bins.counts, x_label=label, y_label=unit, mark=mark)
    rows = tuple(
        (f"{low:.4g} to {high:.4g}", f"{counted:,}")
        for low, high, counted in zip(bins.edges[:-1], bins.edges[1:], bins.counts, strict=True)
    )
    return [Figure(name, title, caption, svg, (label, unit), rows)]


def _table_rows(*columns: Sequence[float] | Array) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(number(value) for value in row) for row in zip(*columns, strict=True))


def _blocks(count: int) -> list[slice]:
    """Slices of 1,000 observations, whose features are computed at a time, to bound memory."""
    return [slice(first, first + 1000) for first in range(0, count, 1000)]


def _sampled_steps(n: int, size: int) -> Array:
    """All steps, or a random sample of at least 2000, with a fixed seed."""
    size = max(size, 2000)
    return np.arange(n) if n <= size else np.sort(np.random.default_rng(0).choice(n, size, replace=False))
