"""Output of `valuefit` on a terminal, in a pipe, as JSON and after Ctrl-C; its help and its tab completion."""

import ast
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import valuefit as vf
from helpers.command_line import facts, on_terminal, piped, refused, run, strict
from helpers.log_files import flat, steps
from helpers.problems import ROOT
from valuefit.cli.console import cli_message, escaped
from valuefit.cli.main import main
from valuefit.cli.settings import Settings, solver_names
from valuefit.datasets.example import VALUE

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A CSV log in the working directory."""
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(flat(steps(lengths=(30,) * 25))).to_csv("log.csv", index=False)
    return "log.csv"


# ---- the result -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example():
    """The result without a log."""
    return run("evaluate", "--json")


def test_without_a_log_the_example_is_evaluated(example):
    answer = strict(example.stdout)
    assert example.exit_code == 0
    assert example.stdout.startswith("{")
    assert example.stdout.endswith("}\n")
    assert example.stderr == ""
    assert answer["policy_value"]["estimate"] == pytest.approx(-69.6, abs=0.2)
    assert answer["steps"] == 18307
    assert "example log of valuefit" in answer["notes"][0]


def test_the_example_is_sound_because_its_answer_is_right(example):
    """The tests reject its features as too coarse, not its observations, and richer ones hardly move the value."""
    answer = strict(example.stdout)
    checks = {check["name"]: check for check in answer["checks"]}
    low, high = answer["policy_value"]["interval"]
    assert answer["verdict"] == {"level": "sound", "reasons": []}
    assert low < VALUE < high
    assert checks["features suffice"]["p_value"] < 0.01
    assert checks["features suffice"]["size"] < 0.1
    assert checks["observations are Markov"]["p_value"] > 0.1


def test_json_has_the_keys_of_to_dict_except_the_time(log):
    answer = facts("evaluate", log, "--ridge", 0.01)
    expected = vf.evaluate(log, ridge=0.01).to_dict()
    assert answer.keys() == expected.keys()
    assert expected["solver"].pop("seconds") > 0
    assert answer["solver"].keys() == expected["solver"].keys()
    assert answer["notes"] == expected["notes"]


def test_in_a_pipe_the_output_is_plain_text_without_progress_bars(log):
    done = piped("evaluate", log)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "━" not in done.stdout + done.stderr
    assert re.search(r"policy value +-?\d", done.stdout)
    assert "Notes:" in done.stdout
    assert done.stderr == ""


def test_quiet_is_one_line(log):
    done = run("evaluate", log, "--quiet")
    assert re.fullmatch(r"-?\d\S* \(standard error \S+, 95% interval \S+ to \S+\), verdict: .+\n", done.stdout)
    few = run("evaluate", log, "-q", "--discount", 1, "--solver", "gtd2", "--max-passes", 1)
    assert re.search(r", verdict: (caution|do not use) \(\d+ reasons\)\n$", few.stdout)


@pytest.fixture
def impossible(tmp_path):
    """A log whose starts are far from every other observation, so that the value there is below every possible sum."""
    rng = np.random.default_rng(0)
    time = np.tile(np.arange(20), 40)
    table = pd.DataFrame({
        "episode": np.repeat(np.arange(40), 20), "obs_0": np.where(time == 0, -3, 1) + 0.1 * rng.normal(size=800),
        "reward": rng.random(800), "terminated": rng.permutation(np.arange(800) % 20 == 19) & False, "next_obs_0": 1.0,
    })  # fmt: skip
    table["terminated"] = (time == 19) & (table["episode"] % 2 == 0)
    table["truncated"] = (time == 19) & ~table["terminated"]
    table.to_csv(tmp_path / "impossible.csv", index=False)
    return tmp_path / "impossible.csv"


def test_strict_exits_with_code_4_if_the_verdict_is_do_not_use(impossible, log):
    words = ("evaluate", impossible, "--features", "identity", "--discount", 0.9)
    done = run(*words)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[2].startswith("Verdict: do not use (of ")
    assert "is impossible" in done.stdout
    assert run(*words, "--strict").exit_code == 4
    assert facts(*words, "--strict", code=4)["verdict"]["level"] == "do not use"
    assert run(*words, "--strict", "-q").stdout.split(", verdict: ")[1].startswith("do not use (")
    assert run("evaluate", log, "--strict").exit_code == 0
    code, shown = on_terminal(*words, "--strict", cwd=".")
    plain = ESCAPE.sub("", shown)
    assert code == 4
    assert plain.index("Verdict: do not use") < plain.index("policy value") < plain.index("Checks")


def test_all_checks_solve_with_other_traces(log):
    names = {check["name"] for check in facts("evaluate", log, "--checks", "all")["checks"]}
    assert {"trace 0.5", "trace 0.9"} <= names
    assert not {"trace 0.5", "trace 0.9"} & {check["name"] for check in facts("evaluate", log)["checks"]}


def test_an_unknown_standard_error_is_named_in_text_and_null_in_json(tmp_path):
    pd.DataFrame({"obs_0": [0.5], "reward": [1.0], "terminated": [1]}).to_csv(tmp_path / "one.csv", index=False)
    words = ("evaluate", tmp_path / "one.csv", "--features", "identity")
    assert facts(*words)["policy_value"]["standard_error"] is None
    assert "standard error unknown" in run(*words, "-q").stdout
    code, shown = on_terminal(*words, cwd=tmp_path)
    assert code == 0
    assert "unknown" in shown


def test_a_terminal_shows_a_progress_bar_then_the_text_of_a_pipe_with_a_coloured_verdict(log):
    code, shown = on_terminal("evaluate", log, cwd=".")
    assert code == 0
    assert "Reading" in shown
    assert "Solving" in shown
    plain = ESCAPE.sub("", shown)
    assert plain.replace("\r", "").endswith(f"log.csv\n{run('evaluate', log).stdout}")
    assert re.search(r"\x1b\[3\dm\x1b\[1mVerdict: ", shown)


def test_a_result_that_did_not_converge_is_printed_with_exit_code_3(log):
    words = ("evaluate", log, "--solver", "gtd2", "--max-passes", 2)
    done = run(*words)
    assert done.exit_code == 3
    assert "policy value" in done.stdout
    assert "Allow more with --max-passes." in re.sub(r"\s+", " ", done.stdout)
    assert facts(*words, code=3)["solver"]["status"] == "budget"
    code, shown = on_terminal(*words, cwd=".")
    assert code == 3
    plain = ESCAPE.sub("", shown)
    assert plain.index("Verdict: caution") < plain.index("The solver did not converge") < plain.index("policy value")


# ---- interrupted by Ctrl-C --------------------------------------------------------------------------------------


def test_ctrl_c_while_solving_prints_the_current_result_and_gives_130(log):
    def stop(process):
        os.kill(process.pid, signal.SIGINT)

    words = ("evaluate", log, "--solver", "saga", "--tol", 0, "--max-passes", 1e9)
    code, shown = on_terminal(*words, cwd=".", once=b"Solving", then=stop)
    assert code == 130
    assert "Traceback" not in shown
    assert "Stopped by the keyboard" in ESCAPE.sub("", shown)
    assert "policy value" in shown


def test_ctrl_c_at_another_time_gives_130_and_a_message(log):
    with open("lab_stop.py", "w") as module:
        module.write("def policy(observations):\n    raise KeyboardInterrupt\n")
    done = run("evaluate", log, "--policy", "lab_stop:policy")
    assert done.exit_code == 130
    assert done.stdout == ""
    assert "Stopped." in done.stderr


# ---- files -------------------------------------------------------------------------------------------------------


def test_a_saved_evaluation_can_be_loaded_in_python(log):
    done = run("evaluate", log, "--save", "kept.npz")
    assert done.exit_code == 0
    assert "Evaluation: kept.npz" in done.stdout
    kept = vf.Evaluation.load("kept.npz")
    assert kept.policy_value == vf.evaluate(log).policy_value


def test_the_report_is_written_to_the_given_path(log, monkeypatch):
    calls = []

    def write_report(evaluation, path, *, force):
        calls.append((evaluation.policy_value.starts, path, force))
        return path

    monkeypatch.setitem(sys.modules, "valuefit.report.page", SimpleNamespace(write_report=write_report))
    assert "Report: page.html" in run("evaluate", log, "--report", "page.html").stdout
    assert strict(run("evaluate", log, "--report", "page.html", "--force", "--json").stdout)
    assert calls == [(25, "page.html", False), (25, "page.html", True)]


# ---- untrusted names ----------------------------------------------------------------------------------------------


def test_names_with_markup_or_escape_sequences_are_printed_escaped(tmp_path):
    """The path and the columns contain [/], <script> and an escape sequence."""
    (tmp_path / "[").mkdir()
    table = pd.DataFrame(flat(steps(lengths=(9,) * 20)))
    name = "[/]<script>\x1b[31m.csv"
    theirs = {"obs_0": "[/]", "obs_1": "\x1b]0;gone\x07", "obs_2": "[red]<script>"}
    table.rename(columns=theirs).to_csv(tmp_path / name, index=False)
    words = ("evaluate", name, "--columns", "obs=[/],\x1b]0;gone\x07", "--columns", "next_obs=")
    code, shown = on_terminal(*words, cwd=tmp_path)
    assert code == 0, shown
    assert r"[/]<script>\x1b[31m.csv" in shown
    assert "\x07" not in shown
    assert "\x1b]0;" not in shown
    code, shown = on_terminal("evaluate", name, cwd=tmp_path)
    assert code == 1
    message = shown.rpartition("\x1b[2K")[2]  # after the progress bar has been erased
    assert message.startswith("Error: [/]<script>\\x1b[31m.csv has no column obs_0")
    assert r"'[/]', '\x1b]0;gone\x07', '[red]<script>'" in message
    assert "\x1b" not in message
    code, shown = on_terminal("convert", name, "[/]", *words[2:], cwd=tmp_path)
    assert (code, "\x1b" in shown) == (0, False)
    assert "Written: [/]" in shown


def test_printable_escapes_control_characters_only():
    assert escaped("Größe 3 × 4, 速度") == "Größe 3 × 4, 速度"
    assert escaped("a\x1b[2J\x07\x9b\u202e\n\udc80") == r"a\x1b[2J\x07\x9b\u202e\n\udc80"


@pytest.mark.parametrize(
    ("message", "translated"),
    [
        ("Name yours with `columns={'obs': ...}`; it has x.", "Name yours with --columns obs=...; it has x."),
        ('Leave it out with `columns={"done": None}`.', "Leave it out with --columns done=."),
        ("declare them: `columns={'categorical': ['a']}`.", "declare them: --columns categorical=a."),
        ('Use `values="state-action"`, or `ridge=0`.', "Use --values state-action, or --ridge 0."),
        ("overwrite it with `force=True`.", "overwrite it with --force."),
        ("Give more `max_passes`, a smaller tol", "Give more --max-passes, a smaller tol"),
        ("max_passes is 0; ridge=0", "max_passes is 0; ridge=0"),  # not named as an argument
        (
            "The column `level` has `x=1`, `seed",
            "The column --level has `x=1`, `seed",
        ),  # untrusted names change words only
        (f"`ridge={'(' * 99}`, `seed=os.remove(1)`, `", f"`ridge={'(' * 99}`, `seed=os.remove(1)`, `"),
    ],
)
def test_messages_name_options_instead_of_python_arguments(message, translated):
    assert cli_message(message) == translated
    assert cli_message(translated) == translated


def test_arguments_in_messages_stand_between_backticks():
    argument = re.compile(rf"(?<![\w`(])(?:{'|'.join(Settings.__dataclass_fields__)})=[\"'{{\\d]")
    unmarked = [
        f"{path.name}, line {node.lineno}"
        for path in (ROOT / "src" / "valuefit").rglob("*.py") if path.parent.name != "cli"
        for statement in ast.walk(ast.parse(path.read_text()))
        if isinstance(statement, ast.Raise | ast.Return | ast.Call)
        for node in ast.walk(statement) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if argument.search(node.value.replace("(path, ", "("))
    ]  # fmt: skip
    assert unmarked == []


# ---- help and completion -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *main.commands])
def test_the_examples_in_the_help_can_be_parsed(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").touch()
    done = run(*command.split(), "--help")
    assert done.exit_code == 0
    examples = [line.split("   ")[0] for line in re.findall(r"^ {4}valuefit (.*)$", done.stdout, re.M)]
    assert examples
    assert "Examples" in done.stdout
    for words in (example.split("|")[0].split() for example in examples):
        name, rest = words[0], words[1:]
        main.commands[name].make_context(name, rest, resilient_parsing=False)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_completion_lists_all_solvers():
    assert set(solver_names()) == {"auto", *vf.solvers.names()}


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("valuefit ev", {"evaluate"}),
        ("valuefit evaluate --features fo", {"fourier"}),
        ("valuefit evaluate --solver s", {"saga", "svrg"}),
        ("valuefit evaluate --values s", {"state", "state-action"}),
        ("valuefit evaluate --write", {"--write-config"}),
    ],
)
def test_the_shell_completes_words(words, completions):
    environment = {
        **os.environ, "_VALUEFIT_COMPLETE": "bash_complete", "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }  # fmt: skip
    code = "from valuefit.cli.main import main; import sys\ntry: main(prog_name='valuefit')\nfinally: "
    code += "assert not {'numpy', 'rich'} & set(sys.modules), 'slow'"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert {line.split(",")[1] for line in done.stdout.split()} == completions, done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script(shell):
    done = run("completion", shell)
    assert done.exit_code == 0
    assert f"_VALUEFIT_COMPLETE={shell}_complete" in done.stdout


def test_an_unknown_command_is_rejected():
    assert "No such command 'evalute'" in refused("evalute", code=2)
