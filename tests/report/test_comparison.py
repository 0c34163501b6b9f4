"""The page of a comparison: its forest plots, tables and warnings, and hostile names."""

import re

import numpy as np
import pytest

import valuefit as vf
from helpers.pages import HOSTILE, Page
from helpers.small_mdp import STATES, SmallMDP
from valuefit.report.comparison import render
from valuefit.report.forest import Row, forest

MDP = SmallMDP(off_policy=True, seed=1)


@pytest.fixture(scope="module")
def compared():
    log = MDP.log(40, propensities=True)
    policies = {"some": 0.6, HOSTILE[0]: 0.65, "less": 0.2}
    return vf.compare(
        {
            name: vf.evaluate(log, policy=np.tile([p, 1 - p], (STATES, 1)), features=MDP.rows, discount=0.9)
            for name, p in policies.items()
        }
    )


def test_the_page_has_both_plots_tables_and_warnings(compared):
    page = Page(render(compared))
    assert [element[1]["id"] for element in page.all("figure")] == ["differences", "values"]
    for words in ("Which policy is better?", "hold for all pairs at once", "some − less", "p-value", "caution"):
        assert words in page.text
    assert f"{compared.pairs[1].estimate:.5g}" in page.text
    assert len([e for e in page.all("line") if e[1].get("class") == "whisker"]) == 6
    assert not page.all("script")
    assert HOSTILE[0] in page.text
    levels = {name: one.verdict.level for name, one in zip(compared.names, compared.evaluations, strict=True)}
    verdicts = {e[2]: e[1]["class"] for e in page.all("p") if "verdict" in e[1].get("class", "")}
    assert verdicts == {f"{name}: {level}": f"verdict {level.replace(' ', '-')}" for name, level in levels.items()}
    assert page.all("section")[-1][1]["class"] == "reasons caution"


def test_one_pair_has_no_sentence_about_all_pairs(compared):
    page = Page(render(vf.compare(list(compared.evaluations[:2]))))
    assert "at once" not in page.text


def test_the_report_is_one_file_that_is_not_overwritten(compared, tmp_path):
    path = compared.report(tmp_path / "page.html")
    assert path.read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(ValueError, match="already exists"):
        compared.report(path)
    assert compared.report(path, force=True) == path


def test_dots_and_intervals_lie_where_the_axis_says():
    svg = forest("f", "t", "d", [Row("a", 1.0, 0.0, 2.0), Row("b", -1.0, None, None)], x_label="difference", zero=True)
    start, stop = (float(re.search(r'class="whisker" x1="([\d.]+)" x2="([\d.]+)"', svg)[i]) for i in (1, 2))
    dots = [float(x) for x in re.findall(r'<circle class="dot big" cx="([\d.]+)"', svg)]
    zero = float(re.search(r'class="mark" x1="([\d.]+)"', svg)[1])
    assert dots[0] == pytest.approx((start + stop) / 2, abs=0.02)
    assert zero == pytest.approx(start, abs=0.02)
    assert zero - dots[1] == pytest.approx(dots[0] - zero, abs=0.02)
    assert svg.count("whisker") == 1
    assert "-1 (interval unknown)" in svg
