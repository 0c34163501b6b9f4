"""Table 1: counted operations follow the formulas, an interrupted run resumes, the page is complete."""

import json

import numpy as np
import pytest

import valuefit as vf
from valuefit.datasets.ar1 import ar1_log, fourier_features
from valuefit.paper import table1


def test_the_autoregressive_process_has_the_stated_moments():
    log = ar1_log(50_000, memory=0.8)
    x = log.observations[log.now]
    assert np.abs(x.var(axis=0) - 1).max() < 0.1
    x_next = log.observations[log.next]
    assert np.corrcoef(x[:, 0], x_next[:, 0])[0, 1] == pytest.approx(0.8, abs=0.02)
    rows = fourier_features(30)(x)
    assert rows.shape == (50_000, 30)
    assert (rows[:, -1] == 1).all()


def test_a_smaller_spread_is_worse_conditioned():
    log = ar1_log(3000)
    wide, narrow = (vf.Theory(vf.Problem(log, fourier_features(20, spread=s))).kappa_C for s in (1.0, 0.3))
    assert narrow > 10 * wide


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table1")
    return table1.run_table1(folder, quick=True), folder


def test_counted_operations_grow_as_in_the_formulas(cells):
    found, _ = cells
    assert table1.exponent(found["n"], "n", "lstd", "operations") == pytest.approx(1, abs=0.1)
    assert table1.exponent(found["d"], "d", "lstd", "operations") == pytest.approx(2, abs=0.1)
    for rows in found.values():
        for row in rows:
            assert row["methods"]["lstd"]["reached"]
            assert row["methods"]["saga"]["reached"]
            # a pass of SAGA costs O(n d)
            saga = row["methods"]["saga"]
            assert saga["operations"] == pytest.approx(24 * row["n"] * row["d"] * saga["passes"])


def test_larger_n_needs_fewer_passes(cells):
    passes = [row["methods"]["saga"]["passes"] for row in cells[0]["n"]]
    assert passes[-1] < passes[0]


def test_a_second_call_measures_no_cell_again(cells, monkeypatch):
    found, folder = cells
    measured = []
    monkeypatch.setattr(table1, "measure", lambda size, **settings: measured.append(size))
    assert table1.run_table1(folder, quick=True) == found
    assert measured == [table1.Size(200, 5)]  # the call that compiles


def test_page_and_figure_are_written(cells):
    found, folder = cells
    page = (folder / "table.md").read_text()
    assert "SAGA against LSTD" in page
    assert (folder / "table-1.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((folder / "runs").glob("*.json"))) == 5  # one cell is in both sweeps
    assert json.loads((folder / "runs" / "n1000-d20.json").read_text()) == {"format": 1, **found["d"][1]}


def test_seconds_without_the_target_are_a_lower_bound():
    def row(n, one, other):
        return {"n": n, "methods": {"a": one, "b": other}}

    def cell(seconds, reached=True):
        return {"seconds": seconds, "reached": reached}

    assert table1.crossover([row(1, cell(1), cell(2)), row(2, cell(1), cell(5, False))], "n", "a", "b") == (
        "everywhere from n = 1"
    )
    assert table1.crossover([row(1, cell(2), cell(1)), row(2, cell(9, False), cell(5))], "n", "a", "b") == (
        "not up to n = 2"
    )
    both = [row(1, cell(2), cell(1)), row(2, cell(2), cell(1, False)), row(3, cell(2), cell(4))]
    assert table1.crossover(both, "n", "a", "b") == "faster at n = 3; slower at n = 1; undecided at n = 2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged"),
        ("{}", "run format None"),
        ('{"format": 1}', "the key 'n' is missing"),
        ('{"format": 1, "n": 3}', "the value of 'n' is not that of this run"),
    ],
)
def test_a_damaged_file_of_a_cell_is_named(tmp_path, text, message):
    path = tmp_path / "n200-d5.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        table1._read_cell(path, table1.Size(200, 5))
    assert str(caught.value).startswith(str(path))
