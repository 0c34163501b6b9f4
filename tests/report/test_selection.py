"""The figure of a selection: written in each format, refused for others."""

import numpy as np
import pytest

import valuefit as vf
from helpers.small_mdp import SmallMDP
from valuefit.report.selection import FIGURE_FORMATS


@pytest.fixture(scope="module")
def found():
    return vf.select(SmallMDP().log(40), {"features": ["one-hot"], "ridge": [0.0, 0.1]}, discount=0.9)


@pytest.mark.parametrize("ending", FIGURE_FORMATS)
def test_a_figure_is_written_in_every_format(found, tmp_path, ending):
    path = found.plot(tmp_path / f"figure{ending}")
    magic = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(magic)
    with pytest.raises(ValueError, match="already exists"):
        found.plot(path)
    found.plot(path, force=True)


def test_the_figure_names_the_candidates_their_weights_and_the_criterion(found, tmp_path):
    drawn = found.plot(tmp_path / "figure.svg").read_text()
    for text in ("one-hot (5)", "one-hot, ridge 0.1 (5)", "half 1", "half 2", "squared mean difference of value"):
        assert f"<!-- {text}" in drawn, text
    again = found.plot(tmp_path / "again.svg").read_text()
    assert np.isclose(len(again), len(drawn), rtol=0.01)


def test_other_formats_are_refused(found, tmp_path):
    with pytest.raises(ValueError, match=r"A figure is written as .png, .svg, .pdf"):
        found.plot(tmp_path / "figure.txt")
