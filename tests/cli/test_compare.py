"""`valuefit compare`: the same numbers as in Python, as text and JSON, and what it refuses."""

import numpy as np
import pytest

import valuefit as vf
from helpers.command_line import facts, piped, run
from helpers.small_mdp import STATES, SmallMDP

OPTIONS = "--features", "one-hot", "--discount", "0.9"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("compare")
    vf.save(SmallMDP(off_policy=True, seed=1).log(40, propensities=True), path / "log.npz")
    for name, left in (("some", 0.6), ("more", 0.65), ("less", 0.2)):
        np.save(path / f"{name}.npy", np.tile([left, 1 - left], (STATES, 1)))
    (path / "lab_left.py").write_text(
        "import numpy as np\n\ndef policy(states):\n    return np.tile([0.6, 0.4], (len(states), 1))\n"
    )
    return path


@pytest.fixture(autouse=True)
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_the_numbers_are_those_of_python():
    found = facts(
        "compare", "log.npz", "--policy", "lab_left:policy", "--policy", "less.npy", "--policy", "logged", *OPTIONS,
        "--level", "0.9", "--interval", "cr1",
    )  # fmt: skip
    log = vf.load("log.npz")
    policies = {"lab_left:policy": np.load("some.npy"), "less.npy": np.load("less.npy"), "logged": None}
    expected = vf.compare(
        {
            name: vf.evaluate(log, policy=policy, features="one-hot", discount=0.9, interval="cr1")
            for name, policy in policies.items()
        },
        level=0.9,
    )
    assert found == expected.to_dict()
    assert found["level"] == 0.9
    assert [one["names"] for one in found["differences"]][1] == ["lab_left:policy", "logged"]
    assert {one["method"] for one in found["differences"]} == {"cr1"}


def test_a_single_policy_is_compared_with_the_logged_one():
    found = facts("compare", "log.npz", "--policy", "some.npy", "--values", "state-action", *OPTIONS)
    assert [one["name"] for one in found["values"]] == ["some.npy", "logged"]
    assert len(found["differences"]) == 1


def test_the_text_has_values_differences_and_warnings():
    words = "compare", "log.npz", "--policy", "some.npy", "--policy", "more.npy", "--policy", "less.npy", *OPTIONS
    done, found = piped(*words), facts(*words)
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("Comparison of policies", "some.npy - more.npy", "p-value", "hold for all pairs at once"):
        assert text in done.stdout
    for entry in (*found["values"], *found["differences"]):
        assert f"{entry['estimate']:.5g}" in done.stdout
    assert [entry["verdict"]["level"] for entry in found["values"]][2] != "sound"
    assert "Warnings of less.npy:" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_report_is_written_after_the_result(tmp_path):
    words = "compare", "log.npz", "--policy", "some.npy", "--report", tmp_path / "report.html", *OPTIONS
    done = run(*words)
    assert done.exit_code == 0
    assert done.stdout.rstrip().endswith("report.html")
    assert "some.npy − logged" in (tmp_path / "report.html").read_text()
    again = run(*words)
    assert (again.exit_code, again.stdout) == (1, "")
    assert "already exists" in again.stderr
    assert run(*words, "--force").exit_code == 0


def test_a_solver_that_did_not_converge_gives_exit_code_3():
    words = "--policy", "some.npy", "--solver", "gtd2", "--tol", "1e-12", "--max-passes", "3"
    assert run("compare", "log.npz", *words, *OPTIONS).exit_code == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--policy some.npy --policy some.npy", "The policy some.npy is given twice."),
        ("--policy logged", "The logged policy is compared with others. Give another --policy."),
        ("--policy none.npy", "There is no policy file none.npy."),
        ("--policy some.npy --level 95", "level is 95.0; it must be between 0 and 1, for example 0.95."),
        ("--policy some.npy --starts none.npy", "There is no file of starts none.npy."),
    ],
)
def test_wrong_input_is_refused_in_a_sentence(words, message):
    done = run("compare", "log.npz", *words.split(), *OPTIONS)
    assert (done.exit_code, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_wrong_usage_is_refused():
    assert "Missing option '--policy'" in run("compare", "log.npz").stderr
    assert "Missing argument" in run("compare", "--policy", "some.npy").stderr
    assert run("compare", "log.npz", "--policy", "some.npy", "--interval", "cr2").exit_code == 2
