"""Measuring a change of the code: what evaluations gave before and after it, and the size of the sources."""

import copy
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from helpers.problems import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import freeze, frozen_logs, size

LOGS = ["tiny 1", "chain 1"]  # a few steps in memory; 2,500 steps of one episode in every storage
ROUTE = "chain 1/memory/log"


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    first, second = folder / "first.json.gz", folder / "second.json.gz"
    for path in (first, second):
        freeze.main(["write", str(path), "--only", *LOGS])
    assert first.read_bytes() == second.read_bytes()
    return first


def failures(old, new, **settings):
    return [(one.cell, one.quantity) for one in freeze.compare(old, new, **settings) if one.share > 1]


def test_two_runs_are_equal(frozen, capsys):
    with pytest.raises(SystemExit) as end:
        freeze.main(["compare", str(frozen), str(frozen)])
    assert end.value.code == 0
    assert re.search(r"\d+ cells compared, 0 differ by more than allowed", capsys.readouterr().out)


def test_a_planted_change_is_reported(frozen, tmp_path, capsys, monkeypatch):
    to_dict = freeze.vf.Evaluation.to_dict

    def changed(self):
        told = to_dict(self)
        told["policy_value"]["standard_error"] = (told["policy_value"]["standard_error"] or 0.0) * (1 + 3e-6)
        return told

    monkeypatch.setattr(freeze.vf.Evaluation, "to_dict", changed)
    freeze.main(["write", str(tmp_path / "new.json.gz"), "--only", "tiny 1"])
    with pytest.raises(SystemExit) as end:
        freeze.main(["compare", str(frozen), str(tmp_path / "new.json.gz")])
    assert end.value.code == 1
    printed = capsys.readouterr().out
    assert re.search(r"policy_value/standard_error +3  tiny 1/memory/", printed)
    assert "tiny 1/memory/log/lstd: policy_value/standard_error" in printed
    assert "chain 1" not in printed  # the new file does not have this log


@pytest.mark.parametrize(
    ("option", "quantity", "factor", "reported"),
    [
        ("lstd", "estimate", 1 + 2e-7, True),
        ("lstd", "estimate", 1 + 2e-8, False),
        ("lstd", "standard_error", 1 + 2e-6, True),
        ("lstd", "standard_error", 1 + 2e-7, False),
        ("lstd", "interval", 1 + 2e-6, True),
        ("auto", "standard_error", 1 + 2e-6, False),
        ("auto", "standard_error", 1 + 2e-5, True),
    ],
)
def test_what_is_allowed_depends_on_the_quantity_and_the_solver(frozen, option, quantity, factor, reported):
    old = freeze.read(frozen)
    cell = f"tiny 1/memory/log/{option}"
    new = copy.deepcopy(old)
    value = new["cells"][cell]["policy_value"]
    value[quantity] = (factor * np.array(value[quantity])).tolist()
    assert failures(old, new) == ([(cell, f"policy_value/{quantity}")] if reported else [])


def test_verdicts_outcomes_and_cells_are_compared_exactly(frozen):
    old = freeze.read(frozen)
    new = copy.deepcopy(old)
    check = new["cells"][f"{ROUTE}/lstd"]["checks"]["consecutive steps"]
    check["outcome"] = "fail" if check["outcome"] != "fail" else "pass"
    new["cells"][f"{ROUTE}/cr1"]["verdict"] = "another"
    del new["cells"][f"{ROUTE}/trace"]
    new["cells"][f"{ROUTE}/auto"]["solver"] = "another"  # not compared
    expected = [
        (f"{ROUTE}/cr1", "verdict"), (f"{ROUTE}/lstd", "checks/consecutive steps/outcome"), (f"{ROUTE}/trace", "cell"),
    ]  # fmt: skip
    assert failures(old, new) == expected
    assert failures(old, new, without=["checks/consecutive", "trace"]) == expected[:1]


def test_logs_in_files_are_read_in_several_shards(monkeypatch):
    case = replace(frozen_logs.CASES["process 5"](), routes={})
    monkeypatch.setitem(frozen_logs.CASES, "process 5", lambda: case)
    cells = freeze.cells_of("process 5")
    assert cells.keys() == {"process 5/shards/shards", "process 5/sample/shards"}
    assert min(facts["count"] for facts in cells.values()) >= 3


def test_sixty_logs_have_names_and_the_quick_ones_are_among_them():
    assert len(frozen_logs.CASES) == 60
    assert len(set(frozen_logs.QUICK_CASES)) == 12
    assert set(frozen_logs.QUICK_CASES) <= frozen_logs.CASES.keys()


SOURCE = '''
"""A module."""
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from valuefit import unused
from valuefit.data import log
LIMIT = 3  # a constant
BOUNDS: tuple[float, float] = (-1.0, 2 * LIMIT)  # another
ALIAS, FLAG, NAME = LIMIT, True, "name"
def work(log, found):
    from valuefit import lazy
    if isinstance(log, ShardedLog) or isinstance(found, str):
        found = copy.copy(log)
        found.__dict__.pop("name")
    return "name" in vars(found)
'''


def test_sources_are_counted_by_their_syntax(tmp_path):
    package = tmp_path / "src" / "valuefit"
    (package / "data").mkdir(parents=True)
    texts = {"__init__": "", "first": SOURCE, "lazy": "", "unused": "", "data/__init__": "", "data/log": "x = 1\n"}
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    sources = size.Sources(tmp_path)
    assert sources.constants() == ["valuefit.data.log.x", "valuefit.first.LIMIT", "valuefit.first.BOUNDS"]
    closure = {"valuefit", "valuefit.first", "valuefit.data", "valuefit.data.log", "valuefit.lazy"}
    assert sources.closure("valuefit.first") == closure
    assert sources.storage_tests() == ["valuefit.first: ShardedLog"]
    assert sources.surgery() == 3
    assert sources.count_of("found") == 5
    assert sources.functions() == [("valuefit.first.work", 6, False)]
    assert size.lines_by_folder(package) == {"": SOURCE.count("\n"), "data": 1}


def test_the_table_has_a_column_for_each_checkout():
    lines = size.table({"before": {"a": 1200, "b": 3}, "now": {"a": 900, "c": "x"}}).splitlines()
    assert lines == [
        "|  | before | now |",
        "| --- | ---: | ---: |",
        "| a | 1,200 | 900 |",
        "| b | 3 | 0 |",
        "| c | 0 | x |",
    ]


def test_an_evaluation_visits_modules():
    visited, changes = size.profiled(ROOT)
    assert 10 < visited <= changes
