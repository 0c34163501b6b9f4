"""Damaged result files are refused with a sentence, and a failed save keeps the old file."""

import json
import math
import os
import pickle

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import PROBLEM


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "result.npz"
    vf.solve(PROBLEM, "saga", max_passes=4).save(path)
    return path


def rewrite(path, change):
    """Store the same arrays with changed facts."""
    with np.load(path) as stored:
        arrays = dict(stored)
    facts = json.loads(str(arrays.pop("facts")))
    np.savez(path, facts=np.array(json.dumps(change(facts))), **arrays)


def test_a_result_file_with_flipped_bits_is_refused(saved):
    content = bytearray(saved.read_bytes())
    with np.load(saved) as stored:
        place = content.index(stored["theta"].tobytes())
    content[place + 3] ^= 0x10
    saved.write_bytes(content)
    with pytest.raises(ValueError, match="is not a valuefit result, or is incomplete"):
        vf.Result.load(saved)


@pytest.mark.parametrize("kind", ["text", "npy", "npz", "pickle", "pickled npy", "folder", "zip of text"])
def test_other_files_are_refused(tmp_path, kind):
    path = tmp_path / "other.npz"
    if kind == "text":
        path.write_text("theta,w\n1,2\n")
    elif kind == "npy":
        with open(path, "wb") as stream:
            np.save(stream, np.arange(3.0))
    elif kind == "npz":
        np.savez(path, theta=np.arange(3.0))
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"theta": [1.0]}))
    elif kind == "pickled npy":
        with open(path, "wb") as stream:
            np.save(stream, np.array([{"theta": 1.0}], object))
    elif kind == "folder":
        path.mkdir()
    elif kind == "zip of text":
        np.savez(path, facts=np.array("not JSON"), theta=[1.0], w=[1.0], history=[1.0])
    with pytest.raises(ValueError, match=r"other\.npz is not a valuefit result"):
        vf.Result.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: [facts],
        lambda facts: {name: value for name, value in facts.items() if name != "dead"},
        lambda facts: {name: value for name, value in facts.items() if name != "status"},
        lambda facts: {**facts, "colour": "red"},
    ],
    ids=["a list", "dead missing", "status missing", "a field too many"],
)
def test_a_result_file_with_missing_or_unknown_facts_is_refused(saved, change):
    rewrite(saved, change)
    with pytest.raises(ValueError, match=r"result\.npz is not a valuefit result"):
        vf.Result.load(saved)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (0, "Solve and save it again"),
        (3, "newer version: update valuefit"),
        (99, "newer"),
        (None, "Solve"),
        ([], "Solve"),
    ],
)
def test_a_result_of_another_format_is_refused_with_both_numbers(saved, number, advice):
    rewrite(saved, lambda facts: {**facts, "format": number})
    with pytest.raises(ValueError, match=r"has result format .*; this version of valuefit reads format 2\.") as caught:
        vf.Result.load(saved)
    assert f"format {number};" in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("passes", "many"), ("passes", [1]), ("seconds", None), ("gap", "small"), ("gap", {}), ("status", "done"),
        ("solver", 3), ("message", None), ("settings", []), ("tol", []), ("seed", 1.5), ("seed", -1), ("dead", 3),
        ("dead", ["x"]), ("dead", [True]), ("residual", "x"), ("objective", True), ("passes", 10**400),
    ],
)  # fmt: skip
def test_facts_of_the_wrong_type_are_refused(saved, name, value):
    rewrite(saved, lambda facts: {**facts, name: value})
    with pytest.raises(ValueError, match=f"is not a valuefit result: ({name}|seed or dead)[.0-9]* is "):
        vf.Result.load(saved)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("theta", np.zeros((2, 2))), ("theta", np.array(["a"])), ("theta", np.array([np.nan])),
        ("w", np.zeros(3, int)), ("history", np.zeros(3)), ("history", np.zeros(3, [("passes", "f8")])),
        ("history", np.zeros(3, [("passes", "U5"), ("seconds", "f8"), ("residual", "f8")])),
    ],
)  # fmt: skip
def test_arrays_of_the_wrong_type_are_refused(saved, name, array):
    with np.load(saved) as stored:
        arrays = {**stored, name: array}
    np.savez(saved, **arrays)
    with pytest.raises(ValueError, match=f"is not a valuefit result: {name} does not h"):
        vf.Result.load(saved)


def test_weights_in_another_byte_order_are_converted(saved):
    with np.load(saved) as stored:
        arrays = {**stored, "theta": stored["theta"].astype(">f8")}
    np.savez(saved, **arrays)
    assert vf.Result.load(saved).theta.dtype.isnative


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def test_pickled_content_is_refused_and_not_run(saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    with np.load(saved) as stored:
        arrays = {**stored, "history": np.array([Bomb()], object)}
    np.savez(saved, **arrays)
    with pytest.raises(ValueError, match="is not a valuefit result"):
        vf.Result.load(saved)
    assert not (saved.parent / "unpickled").exists()


@pytest.mark.parametrize("failing", ["os.replace", "numpy.savez"])
def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(saved, monkeypatch, failing):
    before = saved.read_bytes()
    result = vf.solve(PROBLEM, "lstd")

    def fail(*arguments, **settings):
        raise OSError("the disk is full")

    monkeypatch.setattr(failing, fail)
    with pytest.raises(OSError, match="the disk is full"):
        result.save(saved)
    assert saved.read_bytes() == before
    assert [entry.name for entry in saved.parent.iterdir()] == ["result.npz"]


@pytest.mark.parametrize(
    ("solver", "seed"),
    [
        (vf.solvers.GTD2(decay=math.inf), 4),
        (vf.solvers.SVRG(inner=np.int64(7)), 4),
        (vf.solvers.SAGA(step_theta=np.float32(0.01), step_w=np.float32(0.01)), 4),
        (vf.solvers.SAGA(), np.int64(4)),
    ],
    ids=["infinite decay", "NumPy integer", "NumPy float32", "NumPy seed"],
)
def test_settings_without_a_JSON_form_are_saved(tmp_path, solver, seed):
    result = vf.solve(PROBLEM, solver, max_passes=3, seed=seed)
    loaded = vf.Result.load(result.save(tmp_path / "result.npz"))
    assert loaded.settings == result.settings
    assert loaded.seed == 4
