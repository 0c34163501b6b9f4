"""Charts: bins compared with plain loops, marks with the values that they show."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import valuefit as vf
from helpers.pages import KINDS
from valuefit.report import figures
from valuefit.report import svg as charts
from valuefit.report.histograms import (
    bin_edges,
    binned_means,
    cell_means,
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
    x_edges, y_edges, mean, count = cell_means(x, y, values, 5)
    assert count.sum() == 200
    for i in range(len(x_edges) - 1):
        for j in range(len(y_edges) - 1):
            inside = [
                values[t] for t in range(200)
                if x_edges[i] <= x[t] < x_edges[i + 1] and y_edges[j] <= y[t] < y_edges[j + 1]
            ]  # fmt: skip
            assert count[i, j] == len(inside)
            assert mean[i, j] == pytest.approx(np.mean(inside) if inside else 0.0)


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
