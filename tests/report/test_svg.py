"""What charts show is what the numbers say: bins against plain loops, marks against the values behind them."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import valuefit as vf
from helpers.pages import KINDS
from valuefit.report import figures as views
from valuefit.report import svg as charts
from valuefit.report.histograms import cells, counts_of, edges_of, means_of, share_of, strength, strongest

numbers = st.floats(-1e12, 1e12, allow_subnormal=False) | st.integers(-50, 50).map(float) | st.sampled_from([0.0, 1e-9])
columns = st.lists(numbers, min_size=1, max_size=60).map(np.array)


# ---- bins --------------------------------------------------------------------------------------------------------


@given(columns)
def test_every_value_is_counted_once(values):
    found = counts_of(values)
    assert found.counts.sum() == len(values)
    assert (np.diff(found.edges) > 0).all()
    assert len(found.counts) <= 38
    outside = sum(not found.edges[0] <= value <= found.edges[-1] for value in values)
    assert found.outside == outside
    if not outside:
        inside = [sum(low <= value < high for value in values) for low, high in pairwise(found.edges)]
        inside[-1] += int((values == found.edges[-1]).sum())
        assert found.counts.tolist() == inside


def test_whole_numbers_have_bins_of_whole_numbers():
    assert edges_of(np.array([0.0, 1.0, 1.0, 3.0])).tolist() == [-0.5, 0.5, 1.5, 2.5, 3.5]
    edges = edges_of(np.arange(1000.0))
    assert set(np.diff(edges).tolist()) == {28.0}
    assert edges[0] == -0.5


def test_a_far_value_does_not_flatten_the_rest():
    values = np.append(np.random.default_rng(0).normal(size=5000), [1e9, -1e9])
    found = counts_of(values)
    assert found.edges[-1] < 5
    assert found.outside >= 2
    assert found.counts.max() < 2000


@given(columns, st.integers(1, 12))
def test_shares_keep_equal_values_together_and_in_order(values, most):
    place, bins = share_of(values, most)
    assert set(place.tolist()) == set(range(bins))
    assert bins <= most
    order = np.argsort(values, kind="stable")
    assert (np.diff(place[order]) >= 0).all()
    for value in set(values.tolist()):
        assert len(set(place[values == value].tolist())) == 1


def test_means_are_those_of_plain_loops():
    rng = np.random.default_rng(1)
    along, values, weights = rng.normal(size=300), rng.normal(size=300), rng.gamma(1, 1, 300)
    cluster = np.repeat(np.arange(30), 10)
    means = means_of(along, values, most=4, weights=weights, cluster=cluster)
    place, bins = share_of(along, 4)
    assert bins == 4
    for b in range(4):
        inside = [t for t in range(300) if place[t] == b]
        total = sum(weights[t] for t in inside)
        mean = sum(weights[t] * values[t] for t in inside) / total
        sums = {}
        for t in inside:
            sums[cluster[t]] = sums.get(cluster[t], 0.0) + weights[t] * (values[t] - mean) / total
        error = np.sqrt(len(sums) / (len(sums) - 1) * sum(s * s for s in sums.values()))
        assert means.mean[b] == pytest.approx(mean)
        assert means.error[b] == pytest.approx(error)
        assert means.count[b] == len(inside)
        assert means.place[b] == pytest.approx(np.mean([along[t] for t in inside]))


def test_bins_without_weight_are_left_out():
    along = np.repeat([0.0, 1.0], 10)
    means = means_of(along, along, most=2, weights=1 - along, cluster=np.arange(20))
    assert means.place.tolist() == [0.0]


def test_the_strongest_columns_are_found():
    rng = np.random.default_rng(2)
    columns = rng.normal(size=(2000, 6))
    columns[:, 4] = 1.0  # never moves
    values = np.cos(3 * columns[:, 2]) + 0.3 * columns[:, 5]  # the first is no correlation, yet the strongest
    assert strongest(columns, values)[:2] == [2, 5]
    assert 4 not in strongest(columns, values)
    assert strongest(columns, values * 1e200)[:2] == [2, 5]
    assert strength(columns[:, 2], columns[:, 2]) > 0.95
    assert strength(columns[:, 2], columns[:, 5]) < 0.05
    wide = rng.normal(size=(500, 400))
    assert strongest(wide, wide[:, 77] + 0.5 * wide[:, 301])[:2] == [77, 301]


def test_cells_hold_the_mean_of_what_lies_in_them():
    rng = np.random.default_rng(3)
    x, y, values = rng.uniform(size=200), rng.uniform(size=200), rng.normal(size=200)
    x_edges, y_edges, mean, count = cells(x, y, values, 5)
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
@example(98769.0, 1363.0)  # 100000 and 100200 were both 1e5
def test_ticks_are_round_and_inside(low, width):
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
def test_numbers_beside_axes(value, step, text):
    assert charts.tick_text(value, step) == text


def test_a_scale_keeps_proportions():
    scale = charts.Scale(0.0, 10.0, 100.0, 200.0)
    assert [scale(0), scale(5), scale(10), scale(11)] == [100, 150, 200, 200]
    log = charts.Scale(1e-8, 1.0, 0.0, 80.0, log=True)
    assert [log(1e-8), log(1e-4), log(1.0)] == [0, 40, 80]
    assert [text for _, text in log.ticks()] == ["1e-8", "1e-6", "1e-4", "1e-2", "1e0"]


# ---- marks -------------------------------------------------------------------------------------------------------


def rects(svg, kind):
    return [mark for mark in ElementTree.fromstring(svg).iter("rect") if re.fullmatch(kind, mark.get("class", ""))]


def test_bars_are_as_high_as_their_counts():
    svg = charts.histogram("h", "t", "d", np.arange(5.0), np.array([10, 0, 40, 20]), x_label="x", y_label="y")
    heights = [float(mark.get("height")) for mark in rects(svg, "bar")]
    assert heights == pytest.approx([heights[1] / 4, heights[1], heights[1] / 2], abs=0.02)
    assert [mark[0].text for mark in rects(svg, "bar")] == ["0 to 1: 10", "2 to 3: 40", "3 to 4: 20"]


def test_bars_of_states_go_up_and_down():
    evaluation = KINDS["one-hot"]()
    figure = views.value_figures(evaluation)[0]
    values = evaluation.value(np.arange(5))
    marks = rects(figure.svg, "bar")
    zero = next(float(m.get("y1")) for m in ElementTree.fromstring(figure.svg).iter("line") if m.get("class") == "zero")
    assert [float(row[1]) for row in figure.rows] == pytest.approx(values, rel=1e-4)
    assert sum(int(row[2].replace(",", "")) for row in figure.rows) == len(evaluation.log)
    scale = max(float(mark.get("height")) for mark in marks) / np.abs(values).max()
    for mark, value in zip(marks, values, strict=True):
        assert float(mark.get("height")) == pytest.approx(abs(value) * scale, abs=1.0)
        assert (float(mark.get("y")) < zero - 0.5) == (value > 0)


def test_a_map_shows_values_where_the_log_was():
    evaluation = KINDS["car"]()
    log = evaluation.log
    figure = views.value_figures(evaluation)[0]
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
    assert (levels[0][1], levels[-1][1]) == (0, charts.LEVELS - 1)


def test_cells_of_a_map_lie_where_their_edges_say():
    values, counts = np.array([[1.0, 2.0], [3.0, 0.0]]), np.array([[5, 6], [7, 0]])
    svg = charts.heat(
        "m", "t", "d", np.array([0.0, 1.0, 4.0]), np.array([0.0, 2.0, 4.0]), values, counts, x_label="x", y_label="y",
        unit="value",
    )  # fmt: skip
    (ground,) = rects(svg, "ground")
    left, top, width, height = (float(ground.get(key)) for key in ("x", "y", "width", "height"))
    marks = {mark[0].text: mark for mark in rects(svg, r"h\d+") if len(mark)}
    wanted = {  # the shares of the ground that they begin and end at, across and down
        "0 to 1, 0 to 2: 1 (5 steps)": (0, 0.25, 0.5, 1),
        "0 to 1, 2 to 4: 2 (6 steps)": (0, 0.25, 0, 0.5),
        "1 to 4, 0 to 2: 3 (7 steps)": (0.25, 1, 0.5, 1),
    }
    assert marks.keys() == wanted.keys()
    for text, (x0, x1, y0, y1) in wanted.items():
        x, y, across, down = (float(marks[text].get(key)) for key in ("x", "y", "width", "height"))
        assert [x, x + across] == pytest.approx([left + x0 * width, left + x1 * width], abs=0.5)
        assert [y, y + down] == pytest.approx([top + y0 * height, top + y1 * height], abs=0.5)


def test_lines_and_bands_go_through_their_points():
    x, y = np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 2.0])
    svg = ElementTree.fromstring(
        charts.line("l", "t", "d", x, y, x_label="x", y_label="y", low=y - 1, high=y + 1, zero=True)
    )
    line = [tuple(map(float, pair.split(","))) for pair in svg.find("polyline").get("points").split()]
    band = [tuple(map(float, pair.split(","))) for pair in svg.find("polygon").get("points").split()]
    unit = (line[0][1] - line[1][1]) / 2  # of y on the page
    assert line[1][0] - line[0][0] == pytest.approx(line[2][0] - line[1][0], abs=0.1)
    assert line[2][1] == pytest.approx(line[1][1] + unit, abs=0.1)
    assert [at for _, at in band] == pytest.approx(
        [line[k][1] - unit for k in range(3)] + [line[k][1] + unit for k in (2, 1, 0)], abs=0.1
    )
    zero = next(float(mark.get("y1")) for mark in svg.iter("line") if mark.get("class") == "zero")
    assert zero == pytest.approx(line[0][1] + unit, abs=0.1)


def test_state_action_values_are_drawn_as_values_of_states():
    evaluation = KINDS["pairs"]()
    figure = views.value_figures(evaluation)[0]
    assert [float(row[1]) for row in figure.rows] == pytest.approx(evaluation.value(np.arange(5)), rel=1e-4)
    wide = vf.Transitions.from_arrays(
        np.random.default_rng(0).normal(size=(3000, 2)), np.ones(3000), terminated=np.arange(3000) % 10 == 9,
        action=np.arange(3000) % 2,
    )  # fmt: skip
    evaluation = vf.evaluate(
        wide, features="polynomial:degree=1", discount=0.5, values="state-action",
        policy=lambda seen: np.column_stack([seen[:, 0] > 0, seen[:, 0] <= 0]).astype(float),
    )  # fmt: skip
    steps = np.arange(0, 3000, 7)
    np.testing.assert_allclose(views.values_at(evaluation, steps), evaluation.value(wide.observations[wide.now[steps]]))


def test_the_mean_td_error_of_a_planted_fault_is_seen():
    """A constant as the only feature cannot tell a good half of the states from a bad one."""
    state = np.arange(2000) % 2
    log = vf.Transitions.from_arrays(
        np.column_stack([np.ones(2000), state.astype(float)]), state.astype(float), terminated=np.arange(2000) % 2 == 1
    )
    evaluation = vf.evaluate(log, features=lambda rows: rows[:, :1], discount=0.5)
    figures = {figure.name: figure for figure in views.td_figures(evaluation)}
    by_step = [float(row[1]) for row in figures["td-position"].rows]
    assert by_step == pytest.approx([evaluation.td_errors()[0], evaluation.td_errors()[1]], rel=1e-4)
    assert "2 of 2 bins lie more than two standard errors from 0" in figures["td-position"].svg
    assert "td-value" not in figures  # one value for all


def test_very_large_and_very_small_numbers_are_drawn():
    for size in (1e-60, 1e-30, 1e30, 1e60):
        rng = np.random.default_rng(0)
        log = vf.Transitions.from_arrays(
            rng.normal(size=(400, 3)), size * rng.normal(size=400), terminated=np.arange(400) % 20 == 19
        )
        evaluation = vf.evaluate(log, features="identity", discount=0.5, starts=rng.normal(size=(3, 3)))
        for figure in (*views.value_figures(evaluation), *views.td_figures(evaluation)):
            assert "nan" not in figure.svg
            ElementTree.fromstring(figure.svg)


def test_a_curve_ends_where_the_solver_did():
    evaluation = KINDS["stopped"]()
    (figure,) = views.convergence_figures(evaluation)
    history = evaluation.result.history
    assert f"to {history['residual'][-1]:.1e} after {history['passes'][-1]:.1f}." in figure.svg
    assert views.convergence_figures(KINDS["car"]()) == []


def test_returns_and_lengths_are_those_of_the_episodes():
    log = KINDS["one-hot"]().log
    overview = views.Overview.of(log, 0.9)
    for place, episode in enumerate(log.episodes[:20]):
        part = log.select(episode)
        assert overview.lengths[place] == len(part)
        assert overview.returns[place] == pytest.approx(sum(r * 0.9**t for t, r in enumerate(part.reward)))
    assert overview.terminated == sum(log.select(episode).terminated.any() for episode in log.episodes)


def test_ratios_of_zero_are_told_and_not_drawn():
    (figure,) = views.ratio_figures(np.array([0.0, 0.0, 0.1, 1.0, 10.0]))
    assert "2 steps with ratio 0 not drawn." in figure.caption
    assert sum(int(row[1]) for row in figure.rows) == 3
    assert views.ratio_figures(np.zeros(3)) == []
