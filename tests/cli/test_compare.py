"""`valuefit compare`: the same numbers as in Python, as text and JSON, and what it refuses."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

import valuefit as vf
from helpers.command_line import facts, piped, run
from helpers.small_mdp import STATES, SmallMDP
from helpers.streamed import log_with_actions
from valuefit.checks.verdict import Verdict
from valuefit.evaluation import streamed as streaming

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


def test_a_file_gives_the_log_the_policies_and_the_options(tmp_path):
    words = "compare", "log.npz", "--policy", "some.npy", "--policy", "less.npy", *OPTIONS
    expected = facts(*words, "--write-config", tmp_path / "run.toml")
    written = tomllib.loads((tmp_path / "run.toml").read_text())
    assert [Path(policy).name for policy in written["policy"]] == ["some.npy", "less.npy"]
    assert facts("compare", "--config", tmp_path / "run.toml") == expected
    assert facts("compare", "--config", tmp_path / "run.toml", "--level", 0.8)["level"] == 0.8
    other = facts("compare", "--config", tmp_path / "run.toml", "--policy", "more.npy")
    assert [one["name"] for one in other["values"]] == ["more.npy", "logged"]
    refused = run("evaluate", "--config", tmp_path / "run.toml")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "Several policies are given. Give one, or compare them with valuefit compare." in refused.stderr


def test_code_in_a_file_must_be_repeated_with_the_other_policies(tmp_path):
    words = "--policy", "lab_left:policy", "--policy", "less.npy"
    expected = facts("compare", "log.npz", *words, *OPTIONS, "--write-config", tmp_path / "run.toml")
    refused = run("compare", "--config", tmp_path / "run.toml")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "repeat it on the command line: --policy lab_left:policy --policy " in refused.stderr
    assert facts("compare", "--config", tmp_path / "run.toml", *words) == expected


def test_saved_evaluations_are_numbered_and_give_the_same_comparison(tmp_path):
    words = "compare", "log.npz", "--policy", "some.npy", "--policy", "less.npy", *OPTIONS
    done = run(*words, "--save", tmp_path / "run.npz")
    assert done.exit_code == 0
    paths = [tmp_path / "run-1.npz", tmp_path / "run-2.npz"]
    assert done.stdout.splitlines()[-2:] == [f"Evaluation: {path}" for path in paths]
    loaded = [vf.Evaluation.load(path) for path in paths]
    found = vf.compare(dict(zip(("some.npy", "less.npy"), loaded, strict=True)))
    assert found.to_dict() == facts(*words)
    again = run(*words, "--save", tmp_path / "run.npz")
    assert (again.exit_code, again.stdout) == (1, "")
    assert "run-1.npz already exists" in again.stderr


def test_quiet_is_one_line_for_each_difference():
    words = "compare", "log.npz", "--policy", "some.npy", "--policy", "more.npy", "--policy", "logged", *OPTIONS
    found, done = facts(*words), run(*words, "--quiet")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    verdicts = {entry["name"]: entry["verdict"]["level"] for entry in found["values"]}
    for line, entry in zip(lines, found["differences"], strict=True):
        assert line.startswith(f"{' - '.join(entry['names'])}: {entry['estimate']:.5g} (standard error ")
        assert f"95% interval {entry['interval'][0]:.5g} to {entry['interval'][1]:.5g}, p-value " in line
        assert line.endswith(f"verdicts: {', '.join(verdicts[name] for name in entry['names'])}")


def test_strict_exits_with_code_4_if_one_verdict_is_do_not_use(monkeypatch):
    words = "compare", "log.npz", "--policy", "some.npy", "--policy", "logged", *OPTIONS
    assert run(*words, "--strict").exit_code == 0
    levels = iter(["sound", "do not use"] * 20)  # of the first and the second evaluation
    monkeypatch.setattr("valuefit.evaluation.evaluation.verdict_of", lambda checks: Verdict(next(levels), ()))
    assert run(*words, "--strict").exit_code == 4
    assert run(*words, "--no-strict").exit_code == 0


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


POLICIES = "--policy", "lab_even:policy", "--policy", "lab_left:policy", "--policy", "logged"


@pytest.fixture
def streamed(folder, monkeypatch):
    """A log of which an evaluation in parts holds a sample only."""
    vf.save(log_with_actions(60), folder / "steps.parquet", force=True)
    (folder / "lab_even.py").write_text("import numpy as np\n\ndef policy(x):\n    return np.full((len(x), 2), 0.5)\n")
    monkeypatch.setattr(streaming, "MAX_SAMPLE_STEPS", 600)
    return "compare", "steps.parquet", *POLICIES, "--features", "identity", "--discount", "0.9"


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_policies_are_compared_on_a_log_that_is_streamed(streamed, values):
    options = *streamed, "--values", values, "--tol", "1e-12"
    loaded, found = facts(*options), facts(*options, "--memory", "stream")
    for one, other in zip(loaded["differences"], found["differences"], strict=True):
        assert other["estimate"] == pytest.approx(one["estimate"], abs=1e-8)
        assert other["standard_error"] == pytest.approx(one["standard_error"], rel=1e-6)
        assert other["interval"] == pytest.approx(one["interval"], abs=1e-6)
        assert (other["names"], other["method"]) == (one["names"], one["method"])


def test_a_comparison_keeps_checkpoints_and_writes_files_by_policy(streamed, folder):
    options = *streamed, "--memory", "stream", "--checkpoint", "kept"
    found = facts(*options, "--save", "run.npz", "--report", "compared.html")
    assert facts(*options) == found
    assert all((folder / f"kept-{number}" / "evaluation.json").exists() for number in (1, 2, 3))
    assert "lab_even:policy" in (folder / "compared.html").read_text()
    saved = vf.Evaluation.load("run-1.npz")
    assert saved.policy_value.estimate == found["values"][0]["estimate"]
    with pytest.raises(ValueError, match="one of them was loaded from a file"):
        vf.compare(saved, vf.Evaluation.load("run-2.npz"))


def test_a_report_of_a_log_that_is_streamed_has_intervals_of_its_values(streamed, folder):
    done = run("evaluate", *streamed[1:2], *streamed[-4:], "--memory", "stream", "--report", "streamed.html")
    assert done.exit_code == 0, done.stderr
    page = (folder / "streamed.html").read_text()
    assert "Standard error of the value" in page
    assert "a sample of 1,968 in 60 episodes" in page
