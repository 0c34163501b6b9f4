"""Charts: bins compared with plain loops, marks with the values that they show."""

import re
from itertools import pairwise
from unittest.mock import patch
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import valuefit as vf
from helpers.pages import KINDS
from valuefit.inference.error_estimate import LinearFunction
from valuefit.report import figures
from valuefit.report import svg as charts
from valuefit.report.histograms import (
    bin_edges,
    binned_means,
    cells,
    explained_variance,
    histogram_counts,
    most_explanatory,
    quantile_bins,
)

numbers = st.floats(-1e12, 1e12, allow_subnormal=False) | st.integers(-50, 50).map(float) | st.sampled_from([0.0, 1e-9])
columns = st.lists(numbers, min_size=1, max_size=60).map(np.array)


# ---- bins --------------------------------------------------------------------------------------------------------


@given(columns)
def test_every_value_is_counted_once(values):
    found = histogram_counts(values)
    assert found.counts.sum() == len(values)
    assert (np.diff(found.edges) > 0).all()
    assert len(found.counts) <= 38
    outside = sum(not found.edges[0] <= value <= found.edges[-1] for value in values)
    assert found.outside == outside
    if not outside:
        inside = [sum(low <= value < high for value in values) for low, high in pairwise(found.edges)]
        inside[-1] += int((values == found.edges[-1]).sum())
        assert found.counts.tolist() == inside


def test_bins_of_whole_numbers_contain_equally_many():
    assert bin_edges(np.array([0.0, 1.0, 1.0, 3.0])).tolist() == [-0.5, 0.5, 1.5, 2.5, 3.5]
    edges = bin_edges(np.arange(1000.0))
    assert set(np.diff(edges).tolist()) == {28.0}
    assert edges[0] == -0.5


def test_outliers_do_not_widen_the_bins():
    values = np.append(np.random.default_rng(0).normal(size=5000), [1e9, -1e9])
    found = histogram_counts(values)
    assert found.edges[-1] < 5
    assert found.outside >= 2
    assert found.counts.max() < 2000


@given(columns, st.integers(1, 12))
def test_quantile_bins_are_ordered_and_keep_equal_values_together(values, max_bins):
    bin_of, bins = quantile_bins(values, max_bins)
    assert set(bin_of.tolist()) == set(range(bins))
    assert bins <= max_bins
    order = np.argsort(values, kind="stable")
    assert (np.diff(bin_of[order]) >= 0).all()
    for value in set(values.tolist()):
        assert len(set(bin_of[values == value].tolist())) == 1


def test_binned_means_match_plain_loops():
    rng = np.random.default_rng(1)
    x, values, weights = rng.normal(size=300), rng.normal(size=300), rng.gamma(1, 1, 300)
    cluster = np.repeat(np.arange(30), 10)
    means = binned_means(x, values, max_bins=4, weights=weights, cluster=cluster)
    bin_of, bins = quantile_bins(x, 4)
    assert bins == 4
    for b in range(4):
        inside = [t for t in range(300) if bin_of[t] == b]
        total = sum(weights[t] for t in inside)
        mean = sum(weights[t] * values[t] for t in inside) / total
        sums = {}
        for t in inside:
            sums[cluster[t]] = sums.get(cluster[t], 0.0) + weights[t] * (values[t] - mean) / total
        error = np.sqrt(len(sums) / (len(sums) - 1) * sum(s * s for s in sums.values()))
        assert means.mean[b] == pytest.approx(mean)
        assert means.error[b] == pytest.approx(error)
        assert means.count[b] == len(inside)
        assert means.x[b] == pytest.approx(np.mean([x[t] for t in inside]))


def test_bins_with_zero_weight_are_left_out():
    x = np.repeat([0.0, 1.0], 10)
    means = binned_means(x, x, max_bins=2, weights=1 - x, cluster=np.arange(20))
    assert means.x.tolist() == [0.0]


def test_columns_are_sorted_by_explained_variance():
    rng = np.random.default_rng(2)
    columns = rng.normal(size=(2000, 6))
    columns[:, 4] = 1.0  # constant
    values = np.cos(3 * columns[:, 2]) + 0.3 * columns[:, 5]  # column 2 is uncorrelated, but explains most
    assert most_explanatory(columns, values)[:2] == [2, 5]
    assert 4 not in most_explanatory(columns, values)
    assert most_explanatory(columns, values * 1e200)[:2] == [2, 5]
    assert explained_variance(columns[:, 2], columns[:, 2]) > 0.95
    assert explained_variance(columns[:, 2], columns[:, 5]) < 0.05
    wide = rng.normal(size=(500, 400))
    assert most_explanatory(wide, wide[:, 77] + 0.5 * wide[:, 301])[:2] == [77, 301]


def test_cell_means_match_plain_loops():
    rng = np.random.default_rng(3)
    x, y, values = rng.uniform(size=200), rng.uniform(size=200), rng.normal(size=200)
    grid = cells(x, y, 5)
    x_edges, y_edges, mean, count = grid.x_edges, grid.y_edges, grid.means(values), grid.counts
    assert count.sum() == 200
    for i in range(len(x_edges) - 1):
        for j in range(len(y_edges) - 1):
            inside = [
                values[t] for t in range(200)
                if x_edges[i] <= x[t] < x_edges[i + 1] and y_edges[j] <= y[t] < y_edges[j + 1]
            ]  # fmt: skip
            assert count[i, j] == len(inside)
            assert mean[i, j] == pytest.approx(np.mean(inside) if inside else 0.0)


def test_points_outside_the_edges_are_in_no_cell():
    x = np.append(np.random.default_rng(0).normal(size=5000), [1e9, -1e9])
    grid = cells(x, np.zeros(len(x)), 8)
    assert grid.cell[-2:].tolist() == [-1, -1]
    assert grid.counts.sum() == (grid.cell >= 0).sum() >= 4900
    whole = cells(np.array([0.0, 1.0, 2.0, 2.0]), np.array([0.0, 0.0, 1.0, 1.0]), 8)
    assert whole.counts.tolist() == [[1, 0], [1, 0], [0, 2]]


# ---- axes --------------------------------------------------------------------------------------------------------


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
@example(98769.0, 1363.0)  # 100000 and 100200 were both labelled 1e5
def test_ticks_are_round_numbers_within_the_range(low, width):
    low, high = charts.widened(low, low + width)
    ticks, step = charts.nice_ticks(low, high)
    assert 3 <= len(ticks) <= 8
    assert f"{step:.1e}"[:3] in ("1.0", "2.0", "5.0")
    assert all(low - 1e-6 * step <= tick <= high + 1e-6 * step for tick in ticks)
    assert len({charts.tick_text(tick, step) for tick in ticks}) == len(ticks) or width < 1e-9 * abs(low)


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [(0.0, 0.5, "0"), (0.5, 0.5, "0.5"), (-20.0, 20.0, "-20"), (0.04, 0.02, "0.04"), (2e5, 1e5, "2e5"),
     (1.5e-5, 5e-6, "1.5e-5"), (1000.0, 500.0, "1000"), (0.2 + 0.1, 0.1, "0.3"), (-72.5, 0, "-72.5")],
)  # fmt: skip
def test_tick_labels(value, step, text):
    assert charts.tick_text(value, step) == text


def test_scales_are_linear_or_logarithmic():
    scale = charts.Scale(0.0, 10.0, 100.0, 200.0)
    assert [scale(0), scale(5), scale(10), scale(11)] == [100, 150, 200, 200]
    log = charts.Scale(1e-8, 1.0, 0.0, 80.0, log=True)
    assert [log(1e-8), log(1e-4), log(1.0)] == [0, 40, 80]
    assert [text for _, text in log.ticks()] == ["1e-8", "1e-6", "1e-4", "1e-2", "1e0"]


# ---- marks -------------------------------------------------------------------------------------------------------


def rects(svg, kind):
    return [mark for mark in ElementTree.fromstring(svg).iter("rect") if re.fullmatch(kind, mark.get("class", ""))]


def test_bar_heights_are_proportional_to_counts():
    svg = charts.histogram("h", "t", "d", np.arange(5.0), np.array([10, 0, 40, 20]), x_label="x", y_label="y")
    heights = [float(mark.get("height")) for mark in rects(svg, "bar")]
    assert heights == pytest.approx([heights[1] / 4, heights[1], heights[1] / 2], abs=0.02)
    assert [mark[0].text for mark in rects(svg, "bar")] == ["0 to 1: 10", "2 to 3: 40", "3 to 4: 20"]


def test_bars_of_states_go_up_and_down():
    evaluation = KINDS["one-hot"]()
    figure = figures.value_figures(evaluation)[0]
    values = evaluation.value(np.arange(5))
    marks = rects(figure.svg, "bar")
    zero = next(float(m.get("y1")) for m in ElementTree.fromstring(figure.svg).iter("line") if m.get("class") == "zero")
    assert [float(row[1]) for row in figure.rows] == pytest.approx(values, rel=1e-4)
    assert sum(int(row[2].replace(",", "")) for row in figure.rows) == len(evaluation.log)
    scale = max(float(mark.get("height")) for mark in marks) / np.abs(values).max()
    for mark, value in zip(marks, values, strict=True):
        assert float(mark.get("height")) == pytest.approx(abs(value) * scale, abs=1.0)
        assert (float(mark.get("y")) < zero - 0.5) == (value > 0)


def test_the_value_map_shows_the_mean_values_of_visited_cells():
    evaluation = KINDS["car"]()
    log = evaluation.log
    figure = figures.value_figures(evaluation)[0]
    marks = [mark for mark in rects(figure.svg, r"h\d+") if len(mark)]
    values, seen = evaluation.value(log.observations[log.now]), log.observations[log.now]
    total = 0
    pattern = r"(\S+) to (\S+), (\S+) to (\S+): (\S+) \(([\d,]+) steps\)"
    levels = []
    for mark in marks:
        x0, x1, y0, y1, value, steps = (
            float(part.replace(",", "")) for part in re.fullmatch(pattern, mark[0].text).groups()
        )
        inside = (seen[:, 0] >= x0) & (seen[:, 0] < x1) & (seen[:, 1] >= y0) & (seen[:, 1] < y1)
        assert inside.sum() == steps
        assert value == pytest.approx(values[inside].mean(), rel=1e-3, abs=1e-3)
        total += steps
        levels.append((value, int(mark.get("class")[1:])))
    assert total == len(log)
    levels.sort()
    assert all(after[1] >= before[1] for before, after in pairwise(levels))
    assert (levels[0][1], levels[-1][1]) == (0, charts.HEAT_COLOURS - 1)


def cell_numbers(figure):
    """Number and steps of each cell of a heat map, by the edges of the cell."""
    found = {}
    for mark in rects(figure.svg, r"h\d+"):
        if len(mark):
            edges, value, steps = re.fullmatch(r"(.*): (\S+) \((\S+) steps\)", mark[0].text).groups()
            found[edges] = float(value), int(steps.replace(",", ""))
    return found


def test_the_map_of_standard_errors_shows_those_of_the_cell_means():
    """Against the sandwich of one number, the mean row of the cell."""
    evaluation = KINDS["car"]()
    log, problem = evaluation.log, evaluation.problem
    value_map, error_map = figures.value_figures(evaluation)[:2]
    assert (value_map.name, error_map.name) == ("value-map", "value-error-map")
    values, errors = cell_numbers(value_map), cell_numbers(error_map)
    assert errors.keys() <= values.keys()
    assert len(errors) > 0.9 * len(values)
    seen = log.observations[log.now]
    for edges in list(errors)[::40]:
        x0, x1, y0, y1 = map(float, re.fullmatch(r"(\S+) to (\S+), (\S+) to (\S+)", edges).groups())
        inside = (seen[:, 0] >= x0) & (seen[:, 0] < x1) & (seen[:, 1] >= y0) & (seen[:, 1] < y1)
        row = problem.phi.take(problem.now[inside]).mean(axis=0)
        expected = evaluation.errors.error(LinearFunction(row)).standard_error
        assert errors[edges] == (pytest.approx(expected, rel=1e-3), inside.sum())


def test_cells_that_the_log_does_not_determine_are_hatched_in_the_map_of_errors():
    """Episodes begin in a corner, which has a feature of its own, with actions that the policy never takes."""
    rng = np.random.default_rng(0)
    begins, ends = np.arange(3000) % 10 == 0, np.arange(3000) % 10 == 9
    x = np.where(begins[:, None], rng.uniform(0.75, 1, (3000, 2)), rng.uniform(0, 0.7, (3000, 2)))

    def rows(observations):
        corner = (observations > 0.75).all(axis=1)
        return np.column_stack([np.where(corner[:, None], 0, np.insert(observations, 0, 1, axis=1)), corner])

    reward = x[:, 0] + rng.normal(size=3000)
    log = vf.Transitions.from_arrays(x, reward, terminated=ends, ratio=np.where(begins, 0.0, 1.0))
    value_map, error_map = figures.value_figures(vf.evaluate(log, features=rows, discount=0.5))[:2]
    values, errors = cell_numbers(value_map), cell_numbers(error_map)
    missing = sum(steps for _, steps in values.values()) - sum(steps for _, steps in errors.values())
    assert missing == begins.sum()
    assert "Of visited cells that are hatched here" in error_map.caption


def test_heat_map_cells_lie_between_their_edges():
    values, counts = np.array([[1.0, 2.0], [3.0, 0.0]]), np.array([[5, 6], [7, 0]])
    svg = charts.heat(
        "m", "t", "d", np.array([0.0, 1.0, 4.0]), np.array([0.0, 2.0, 4.0]), values, counts, x_label="x", y_label="y",
        unit="value",
    )  # fmt: skip
    (ground,) = rects(svg, "ground")
    left, top, width, height = (float(ground.get(key)) for key in ("x", "y", "width", "height"))
    marks = {mark[0].text: mark for mark in rects(svg, r"h\d+") if len(mark)}
    expected = {  # left, right, top and bottom as shares of the plot area
        "0 to 1, 0 to 2: 1 (5 steps)": (0, 0.25, 0.5, 1),
        "0 to 1, 2 to 4: 2 (6 steps)": (0, 0.25, 0, 0.5),
        "1 to 4, 0 to 2: 3 (7 steps)": (0.25, 1, 0.5, 1),
    }
    assert marks.keys() == expected.keys()
    for text, (x0, x1, y0, y1) in expected.items():
        x, y, cell_width, cell_height = (float(marks[text].get(key)) for key in ("x", "y", "width", "height"))
        assert [x, x + cell_width] == pytest.approx([left + x0 * width, left + x1 * width], abs=0.5)
        assert [y, y + cell_height] == pytest.approx([top + y0 * height, top + y1 * height], abs=0.5)


def test_lines_and_bands_go_through_their_points():
    x, y = np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 2.0])
    svg = ElementTree.fromstring(
        charts.line("l", "t", "d", x, y, x_label="x", y_label="y", low=y - 1, high=y + 1, zero=True)
    )
    line = [tuple(map(float, pair.split(","))) for pair in svg.find("polyline").get("points").split()]
    band = [tuple(map(float, pair.split(","))) for pair in svg.find("polygon").get("points").split()]
    unit = (line[0][1] - line[1][1]) / 2  # one unit of y, in pixels
    assert line[1][0] - line[0][0] == pytest.approx(line[2][0] - line[1][0], abs=0.1)
    assert line[2][1] == pytest.approx(line[1][1] + unit, abs=0.1)
    assert [y for _, y in band] == pytest.approx(
        [line[k][1] - unit for k in range(3)] + [line[k][1] + unit for k in (2, 1, 0)], abs=0.1
    )
    zero = next(float(mark.get("y1")) for mark in svg.iter("line") if mark.get("class") == "zero")
    assert zero == pytest.approx(line[0][1] + unit, abs=0.1)


def test_one_dimension_has_a_band_of_intervals():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=2000)
    log = vf.Transitions.from_arrays(x[:, None], x + rng.normal(size=2000), terminated=np.arange(2000) % 10 == 9)
    evaluation = vf.evaluate(log, features="polynomial:degree=2", discount=0.5, level=0.9)
    along = figures.value_figures(evaluation)[0]
    assert along.header == ("observation 0", "mean value", "90% interval from", "to")
    assert "the band is the 90% interval of each bin" in along.caption
    bin_of, bins = quantile_bins(x, figures.VALUE_BINS)
    assert bins == len(along.rows)
    for number in (0, 11, 24):
        at = np.quantile(x[bin_of == number], [0.0, 1.0])[:, None]  # values are nearly linear within a bin
        expected = evaluation.value_interval(at, level=0.9).mean(axis=0)
        assert [float(text) for text in along.rows[number][2:]] == pytest.approx(expected, rel=0.01, abs=0.003)


def test_states_have_error_bars_where_the_log_determines_their_values():
    evaluation = KINDS["one-hot"]()
    figure = figures.value_figures(evaluation)[0]
    expected = evaluation.value_interval(np.arange(5))
    assert figure.header == ("state", "value", "visits", "95% interval from", "to")
    assert [[float(text) for text in row[3:]] for row in figure.rows] == pytest.approx(expected, rel=1e-4)
    svg = charts.bars(
        "b", "t", "d", ["a", "b"], np.array([1.0, 2.0]), x_label="x", y_label="y", tips=["", ""],
        intervals=np.array([[0.0, 3.0], [-np.inf, np.inf]]),
    )  # fmt: skip
    lines = ElementTree.fromstring(svg).iter("line")
    (error_bar,) = [line for line in lines if line.get("class") == "error-bar"]
    (bar, _), bottom = rects(svg, "bar"), float(error_bar.get("y1"))
    assert bottom - float(error_bar.get("y2")) == pytest.approx(3 * float(bar.get("height")), abs=0.1)
    assert bottom == pytest.approx(float(bar.get("y")) + float(bar.get("height")), abs=0.1)


def test_without_direct_solution_or_episodes_there_are_no_intervals():
    assert "value-error-map" not in [figure.name for figure in figures.value_figures(KINDS["tiny"]())]
    evaluation = KINDS["car"]()
    with patch.object(type(evaluation.errors), "has_row_intervals", False):
        names = [figure.name for figure in figures.value_figures(evaluation)]
        assert names == ["value-map", "value-distribution"]
        assert figures.value_figures(KINDS["one-hot"]())[0].header == ("state", "value", "visits")


def test_figures_of_state_action_values_show_state_values():
    evaluation = KINDS["pairs"]()
    figure = figures.value_figures(evaluation)[0]
    assert [float(row[1]) for row in figure.rows] == pytest.approx(evaluation.value(np.arange(5)), rel=1e-4)
    log = vf.Transitions.from_arrays(
        np.random.default_rng(0).normal(size=(3000, 2)), np.ones(3000), terminated=np.arange(3000) % 10 == 9,
        action=np.arange(3000) % 2,
    )  # fmt: skip
    evaluation = vf.evaluate(
        log, features="polynomial:degree=1", discount=0.5, values="state-action",
        policy=lambda rows: np.column_stack([rows[:, 0] > 0, rows[:, 0] <= 0]).astype(float),
    )  # fmt: skip
    steps = np.arange(0, 3000, 7)
    np.testing.assert_allclose(figures.values_at(evaluation, steps), evaluation.value(log.observations[log.now[steps]]))
    one = np.where(np.arange(3000) == 1234, 0, -1)
    band = figures.mean_intervals(evaluation, np.arange(3000), one, 1)
    np.testing.assert_allclose(band.intervals, evaluation.value_interval(log.observations[log.now[[1234]]]))
    group = np.arange(3000) % 3
    band = figures.mean_intervals(evaluation, np.arange(3000), group, 3)
    middle = [evaluation.value(log.observations[log.now[group == number]]).mean() for number in range(3)]
    np.testing.assert_allclose(band.intervals.mean(axis=1), middle)


def test_mean_td_errors_show_that_the_features_are_insufficient():
    """A constant feature cannot express the values of two states with different rewards."""
    state = np.arange(2000) % 2
    log = vf.Transitions.from_arrays(
        np.column_stack([np.ones(2000), state.astype(float)]), state.astype(float), terminated=np.arange(2000) % 2 == 1
    )
    evaluation = vf.evaluate(log, features=lambda rows: rows[:, :1], discount=0.5)
    by_name = {figure.name: figure for figure in figures.td_figures(evaluation)}
    by_step = [float(row[1]) for row in by_name["td-position"].rows]
    assert by_step == pytest.approx([evaluation.td_errors()[0], evaluation.td_errors()[1]], rel=1e-4)
    assert "2 of 2 bins lie more than two standard errors from 0" in by_name["td-position"].svg
    assert "td-value" not in by_name  # all values are equal


def test_charts_of_very_large_and_very_small_numbers():
    for size in (1e-30, 1e30):
        rng = np.random.default_rng(0)
        log = vf.Transitions.from_arrays(
            rng.normal(size=(400, 3)), size * rng.normal(size=400), terminated=np.arange(400) % 20 == 19
        )
        evaluation = vf.evaluate(log, features="identity", discount=0.5, starts=rng.normal(size=(3, 3)))
        for figure in (*figures.value_figures(evaluation), *figures.td_figures(evaluation)):
            assert "nan" not in figure.svg
            ElementTree.fromstring(figure.svg)


def test_the_convergence_curve_ends_at_the_last_residual():
    evaluation = KINDS["stopped"]()
    (figure,) = figures.convergence_figures(evaluation)
    history = evaluation.result.history
    assert f"to {history['residual'][-1]:.1e} after {history['passes'][-1]:.1f}." in figure.svg
    assert figures.convergence_figures(KINDS["car"]()) == []


def test_returns_and_lengths_match_plain_loops():
    log = KINDS["one-hot"]().log
    statistics = figures.EpisodeStatistics.of(log, 0.9)
    for index, episode in enumerate(log.episodes[:20]):
        part = log.select(episode)
        assert statistics.lengths[index] == len(part)
        assert statistics.returns[index] == pytest.approx(sum(r * 0.9**t for t, r in enumerate(part.reward)))
    assert statistics.terminated == sum(log.select(episode).terminated.any() for episode in log.episodes)


def test_zero_ratios_are_counted_in_the_caption():
    (figure,) = figures.ratio_figures(np.array([0.0, 0.0, 0.1, 1.0, 10.0]))
    assert "Not shown: 2 steps with ratio 0." in figure.caption
    assert sum(int(row[1]) for row in figure.rows) == 3
    assert figures.ratio_figures(np.zeros(3)) == []
