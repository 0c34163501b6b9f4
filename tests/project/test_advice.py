"""The table of logs on which version 0.2 was wrong: it is complete, and its quick answers are those of this version."""

import json
import sys

import pytest

from helpers.problems import ROOT

sys.path.insert(0, str(ROOT))

import valuefit as vf
from coverage_study import advice

ON_PAGE = advice.rows_on_page()
# those whose answer is words, or one estimate that another scenario has too; the others take seconds or may round
# differently on another processor
QUICK = ("classifier_by_name", "text_actions_saved", "impossible_probability", "other_closure")


def test_every_scenario_has_a_row_and_an_answer_of_version_0_2():
    assert all(ON_PAGE.values())
    assert len({one.what for one in advice.SCENARIOS.values()}) == len(advice.SCENARIOS)
    assert set(json.loads(advice.STORED.read_text())) == set(advice.SCENARIOS)


@pytest.mark.parametrize("name", QUICK)
def test_the_page_shows_what_this_version_answers(name):
    assert advice.answer_of(name) == ON_PAGE[name]


def test_names_in_the_log_give_the_value_of_the_classifier_by_number():
    assert advice.answer_of("names_in_the_log") == advice.answer_of("classifier_by_number")


def test_held_out_policies_are_no_improvement(monkeypatch):
    """The quick sibling of two rows: fewer logs."""
    monkeypatch.setattr(advice, "NULL_LOGS", 4)
    assert int(advice.sound_improvements(held_out=False).split()[0]) >= 2
    assert int(advice.sound_improvements(held_out=True).split()[0]) <= 1


def test_the_table_is_written_between_its_markers(tmp_path, monkeypatch):
    page = tmp_path / "advice.md"
    page.write_text(f"above\n{advice.BEGIN}\nearlier rows\n{advice.END}\nbelow\n")
    monkeypatch.setattr(advice, "PAGE", page)
    assert advice.main(["--only", "impossible_probability"]) == 0
    text = page.read_text()
    assert text.startswith("above\n")
    assert text.endswith("\nbelow\n")
    assert "earlier rows" not in text
    answer = advice.answer_of("impossible_probability")
    assert f"| a `behaviour_prob` of 1.9 | a refusal | accepted | {answer} |" in text


def test_an_answer_is_a_few_words():
    log = vf.datasets.random_walk_log(40)
    assert advice.said(vf.evaluate(log, discount=0.9)).count(",") == 2
