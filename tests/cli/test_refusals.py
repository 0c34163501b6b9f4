"""Wrong input gives one line on stderr and its exit code, nothing on stdout, and no traceback."""

import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from helpers.command_line import on_terminal, piped, refused, run
from helpers.log_files import flat, steps

TOML = {
    "malformed.toml": "discount = = 1",
    "unknown.toml": "discont = 0.9",
    "code.toml": 'log = "log.csv"\npolicy = "os:system"',
    "force.toml": 'log = "log.csv"\nforce = true',
    "text.toml": 'discount = "high"',
    "truth.toml": "ridge = true",
    "seed.toml": "seed = 1.5",
    "tol.toml": 'tol = "tight"',
    "digits.toml": f"discount = {10**400}",
    "seed-digits.toml": "seed = 0x" + "f" * 20_000,
    "nan.toml": 'log = "log.csv"\nridge = nan',
    "list.toml": "trace = [0.5]",
    "date.toml": "max-passes = 2020-01-01",
    "nested.toml": "discount = " + "[" * 200 + "]" * 200,
    "null.toml": 'log = "a\\u0000b"',
    "values.toml": 'values = "states"',
    "quiet.toml": 'quiet = "loud"',
    "limit.toml": 'log = "log.csv"\nlimit = "1e9"',
    "columns.toml": 'columns = "reward"',
    "columns2.toml": "[columns]\nreward = 3",
    "twice.toml": "max-passes = 1\nmax_passes = 2",
    "table.toml": 'log = "log.csv"\n[config]\nx = 1',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("wrong")
    table = pd.DataFrame(flat(steps(lengths=(20,) * 8)))
    table.to_csv(path / "log.csv", index=False)
    table.drop(columns="behaviour_prob").to_csv(path / "bare.csv", index=False)
    table.drop(columns=["obs_0", "obs_1", "obs_2"]).to_csv(path / "blind.csv", index=False)
    table.assign(reward=np.where(np.arange(len(table)) == 7, np.nan, 1.0)).to_csv(path / "nan.csv", index=False)
    (path / "there.html").write_text("mine")
    (path / "there.npz").write_text("mine")
    (path / "there.toml").write_text("mine")
    (path / "sub").mkdir()
    np.save(path / "three.npy", np.full((4, 3), 1 / 3))
    np.save(path / "wide.npy", np.full((4, 3), 0.5))
    np.save(path / "starts.npy", np.zeros((2, 5)))
    (path / "lab_broken.py").write_text("def policy(observations):\n    return observations.shpae\n")
    for name, text in TOML.items():
        (path / name).write_text(text)
    return path


WRONG = [
    # the log
    ("missing.csv", "There is no file 'missing.csv'."),
    ("blind.csv", "has no column obs_0, obs_1, ... (or one column obs). Name yours with --columns obs=..."),
    ("log.csv --columns reward=r", "has no column 'r', which columns gives for reward. It has 'episode', 'obs_0'"),
    ("nan.csv", "reward is nan at step 7"),
    ("--columns reward=r", "--columns and --cluster name columns of a log, but no LOG is given."),
    ("log.csv --limit 1kB", "more than the limit of 1000 bytes. If you trust it, load it with a larger --limit"),
    # the policy and the starts
    ("bare.csv --policy three.npy", "Either give behaviour_prob, or use --values state-action, which needs none."),
    ("log.csv --policy wide.npy", "The probabilities of the policy file wide.npy sum to 1.5 in row 0, not to 1."),
    ("log.csv --policy none.npy", "There is no policy file none.npy."),
    ("log.csv --policy nothing", "The policy 'nothing' is neither \"module:function\" nor a file"),
    ("log.csv --policy lab_broken:polcy", "'lab_broken' has no 'polcy'. Did you mean 'policy'?"),
    ("log.csv --policy lab_broken:policy", "The policy lab_broken:policy failed with AttributeError"),
    ("log.csv --policy lab_broken:policy", "lab_broken.py, line 2)"),
    ("log.csv --values state-action", "State-action values need a target policy. Give --policy, or use --values state"),
    ("log.csv --starts none.npy", "There is no file of starts none.npy."),
    ("log.csv --starts log.json", "Starts are read from .npy, .csv, .txt, but the file is 'log.json'."),
    ("log.csv --starts starts.npy", "has shape (5,), but an observation of the log has (3,)"),
    # features, solver, numbers
    ("log.csv --features fourrier", "There are no features 'fourrier' (did you mean 'fourier'?)"),
    (f"log.csv --features fourier:order={'-' * 5000}5", "order is '-----"),
    (f"log.csv --features fourier:order={'(' * 5000}", "order is '((((("),
    (f"log.csv --features fourier:order={10**400}", "order is a whole number of about 398 digits; it must be"),
    ("log.csv --features fourier:odrer=5", "have no option 'odrer' (did you mean 'order'?)"),
    ("log.csv --discount 1.5", "discount is 1.5; it must lie between 0 and 1."),
    ("log.csv --ridge nan", "ridge is nan; it must be a finite number, 0 or more"),
    ("log.csv --tol nan", "tol is nan"),
    ("log.csv --max-passes 0", "max_passes is 0"),
    # output files
    ("log.csv --save there.npz", "there.npz already exists. Choose another name, or overwrite it with --force."),
    ("log.csv --write-config there.toml", "there.toml already exists."),
    ("log.csv --report page.pdf", "The report is an HTML page, so 'page.pdf' should end in .html."),
    ("log.csv --save sub --force", "sub is a folder, but a file would be written."),
    ("log.csv --save log.csv --force", "--save would overwrite the input: both are 'log.csv'."),
    ("log.csv --policy wide.npy --save sub/../wide.npy --force", "--save would overwrite the input"),
    (f"log.csv --save {'x' * 256}", f"The name {'x' * 40}... is too long to be written. Choose a shorter one."),
    ("log.csv --save x.html --report x.html", "--save would overwrite --report: both are 'x.html'."),
    # TOML
    ("--config none.toml", "There is no file 'none.toml'."),
    ("--config malformed.toml", "malformed.toml is not valid TOML: Invalid value (at line 1, column 12)"),
    ("--config unknown.toml", "key 'discont', which is no option of valuefit evaluate. Did you mean 'discount'?"),
    ("--config code.toml", "sets the policy 'os:system', which is code, and a file may not run code. If you trust it, "
     "repeat it on the command line: --policy os:system"),
    ("--config force.toml", "sets force, but a file may not allow overwriting. Repeat it on the command line: --force"),
    ("--config text.toml", "text.toml sets discount = 'high': 'high' is not a valid float."),
    ("--config truth.toml", "truth.toml sets ridge = True: 'True' is not a valid float."),
    ("--config seed.toml", "seed.toml sets seed = 1.5: '1.5' is not a valid integer range."),
    ("--config digits.toml", "sets discount = a whole number of about 398 digits: "),
    ("--config seed-digits.toml", "seed-digits.toml sets seed = a whole number of about 24000 digits: "),
    ("--config nan.toml", "ridge is nan; it must be a finite number, 0 or more"),
    ("--config list.toml", "list.toml sets trace = [0.5]: '[0.5]' is not a valid float."),
    ("--config date.toml", "date.toml sets max-passes = datetime.date(2020, 1, 1): "),
    ("--config nested.toml", "nested.toml sets discount = [[[["),
    ("--config null.toml", "null.toml sets log = 'a\\x00b': the character 0 cannot be part of it."),
    ("--config tol.toml", "sets tol = 'tight': 'tight' is neither a number nor \"statistical\"."),
    ("--config values.toml", "sets values = 'states': 'states' is not one of 'state', 'state-action'."),
    ("--config quiet.toml", "sets quiet = 'loud': 'loud' is not a valid boolean."),
    ("--config limit.toml", "limit is '1e9'; it must be a number of bytes"),
    ("--config columns.toml", "sets columns = 'reward': 'reward' does not have the form OURS=THEIRS"),
    ("--config columns2.toml", "sets columns = {'reward': 3}: columns = { reward = \"r\", obs = "),
    ("--config twice.toml", "sets 'max_passes' twice"),
    ("--config table.toml", "has the key 'config', which is no option of valuefit evaluate."),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[words[:80] for words, _ in WRONG])
def test_wrong_input_gives_its_message_and_exit_code_1(words, message, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*") if "__pycache__" not in str(path))
    printed = refused("evaluate", *words.split(), "--json")
    assert printed.startswith("Error: ")
    assert message in printed
    assert printed.count("\n") == 1
    after = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*") if "__pycache__" not in str(path))
    assert [one for one in after if not one[0].is_dir()] == [one for one in before if not one[0].is_dir()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("log.csv --discount much", "'much' is not a valid float"),
        ("log.csv --values states", "'states' is not one of 'state', 'state-action'"),
        ("log.csv --tol tight", "'tight' is neither a number nor \"statistical\"."),
        ("log.csv --columns reward", "'reward' does not have the form OURS=THEIRS, as in reward=r."),
        ("log.csv --columns reward=a --columns reward=b", "'reward' is given twice."),
        ("log.csv --discont 0.9", "--discont"),
        (f"log.csv --seed {10**400}", "is not in the range"),
    ],
)
def test_wrong_usage_gives_exit_code_2(words, message, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert message in refused("evaluate", *words.split(), code=2)


def test_long_arguments_are_quoted_in_part():
    assert len(refused("solvers", "x" * 300, "y" * 300, code=2).splitlines()[-1]) < 300


def test_choices_are_listed_on_one_line():
    expected = "Error: Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish"
    assert refused("completion", code=2).splitlines()[-1] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("missing.csv out", "There is no file 'missing.csv'."),
        ("log.csv out.csv", "valuefit saves logs as folders, .parquet or .npz, not as .csv. Choose another name."),
        ("log.csv there.npz", "there.npz already exists. Choose another name, or overwrite it with --force."),
        ("log.csv none/out", "There is no folder 'none' to write into."),
        ("log.csv out --columns reward=r", "has no column 'r'"),
        ("nan.csv out", "reward is nan at step 7"),
        (f"log.csv {'x' * 256}", "is too long to be written. Choose a shorter one."),
        ("log.csv there.html", "there.html already exists."),
    ],
)
def test_convert_rejects_wrong_input_with_a_message(words, message, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert message in refused("convert", *words.split())
    assert not (folder / "out").exists()


def test_a_separate_process_prints_the_same_message(folder):
    done = piped("evaluate", "nan.csv", "--json", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: reward is nan at step 7. Give every step a finite value.\n"
    assert piped("evaluate", "--no-such", cwd=folder).returncode == 2
    code, shown = on_terminal("evaluate", "nan.csv", cwd=folder)
    assert code == 1
    assert "Error: reward is nan at step 7." in shown
    assert "Traceback" not in shown


def test_force_overwrites_the_named_files_and_nothing_else(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for name in ("a.npz", "a.toml"):
        (folder / name).write_text("old")
    assert run("evaluate", "log.csv", "--save", "a.npz", "--write-config", "a.toml", "--force").exit_code == 0
    assert (folder / "a.npz").read_bytes()[:2] == b"PK"
    assert (folder / "a.toml").read_text().startswith("# Written by valuefit")
    assert (folder / "there.npz").read_text() == "mine"
    for name in ("a.npz", "a.toml"):
        (folder / name).unlink()


def test_a_failed_write_is_reported_after_the_result(folder, monkeypatch):
    monkeypatch.chdir(folder)

    def disk_full(self, path, *, force):
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr("valuefit.evaluation.evaluation.Evaluation.save", disk_full)
    done = run("evaluate", "log.csv", "--save", "b.npz", "-q")
    assert done.exit_code == 1
    assert "standard error" in done.stdout
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize(
    ("words", "redirection", "code", "message"),
    [
        ("evaluate log.csv", ">&-", 0, ""),
        ("--help", ">&-", 0, ""),
        ("evaluate log.csv -q", "2>&- >/dev/null", 0, ""),
        ("evaluate log.csv", ">/dev/full", 1, "Error: .*No space left on device.*\n"),
        ("--help", ">/dev/full", 1, "Error: The output cannot be written: No space left on device.\n"),
        ("evaluate log.csv --json", "| head -c 1 >/dev/null", 0, ""),
    ],
)
def test_output_that_cannot_be_written_gives_no_traceback(words, redirection, code, message, folder):
    command = f"{sys.executable} -m valuefit {words} {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, cwd=folder)
    assert done.returncode == code
    assert re.fullmatch(message, done.stderr), done.stderr


def test_files_are_written_with_standard_output_closed(folder, tmp_path):
    command = f"{sys.executable} -m valuefit evaluate {folder / 'log.csv'} --save {tmp_path / 'a.npz'} >&-"
    assert subprocess.run(["bash", "-c", command], timeout=120).returncode == 0
    assert (tmp_path / "a.npz").read_bytes()[:2] == b"PK"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("x.toml", 1, "There is no experiment 'x.toml'"),
        ("random-mdp --quick --out there.html/sub", 1, "cannot be created: Not a directory."),
        (f"random-mdp --quick --out {'x' * 256}", 1, "cannot be created: File name too long."),
        ("random-mdp --jobs 0", 2, "0 is not in the range 1<=x<=1000"),
        ("random-mdp --seed -1", 2, "-1 is not in the range"),
    ],
)
def test_reproduce_refuses_before_the_work(words, code, message, folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = run("reproduce", *words.split())
    assert done.exit_code == code
    assert message in done.stderr
