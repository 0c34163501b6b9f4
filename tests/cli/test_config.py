"""Options in a TOML file: precedence, rejected files, and exact repetition of a run from a written file."""

import os
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.command_line import facts, piped, refused, run
from helpers.log_files import flat, steps
from valuefit.cli.config import config_text, settings_of
from valuefit.cli.main import main
from valuefit.cli.settings import Settings


def settings_from(*words):
    """The settings of `evaluate` with these words of the command line."""
    with main.commands["evaluate"].make_context("evaluate", [str(word) for word in words]) as context:
        return settings_of(context)


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """A working directory with a log, a policy, starts and an empty folder `runs`."""
    monkeypatch.chdir(tmp_path)
    columns = steps(lengths=(25,) * 12)
    table = pd.DataFrame(flat(columns)).rename(columns={"reward": "r"})
    table.assign(patient=[f"patient {episode % 4}" for episode in table["episode"]]).to_csv("log.csv", index=False)
    np.save("target.npy", np.full(300, 0.5))
    np.save("starts.npy", np.zeros((2, 3)))
    Path("runs").mkdir()
    Path("lab_uniform.py").write_text("import numpy as np\n\ndef policy(x):\n    return np.full((len(x), 3), 1 / 3)\n")
    return tmp_path


ALL_OPTIONS = (
    "log.csv", "--columns", "reward=r", "--columns", "obs=obs_0,obs_1,obs_2", "--columns", "truncated=", "--columns",
    "next_obs=", "--policy", "target.npy", "--starts", "starts.npy", "--features", "fourier:order=1", "--discount",
    "0.9", "--trace", "0.3", "--ridge", "1e-3", "--interval", "cr1", "--level", "0.9", "--cluster", "patient",
    "--reward-range", "-5", "12.5",
    "--solver", "saga", "--tol", "1e-05", "--max-passes", "50", "--seed", "7",
)  # fmt: skip


@pytest.mark.parametrize("path", ["run.toml", "runs/run.toml"])
def test_a_written_file_repeats_the_run_bit_for_bit(path, workdir):
    # ignoring the column truncated drops 6 of the 300 steps, so the policy has 294 probabilities
    np.save("target.npy", np.full(294, 0.5))
    first = run("evaluate", *ALL_OPTIONS, "--json", "--write-config", path)
    assert first.exit_code in (0, 3), first.stderr
    again = run("evaluate", "--config", path, "--json")
    assert (again.exit_code, again.stdout) == (first.exit_code, first.stdout)
    third = run("evaluate", "--config", path, "--json", "--write-config", "third.toml")
    assert third.stdout == first.stdout
    assert tomllib.loads(Path("third.toml").read_text())["log"] == "log.csv"


def test_a_run_on_several_files_is_repeated(workdir):
    table = pd.read_csv("log.csv")
    for number in (1, 2):
        table.assign(episode=table["episode"] + 100 * number).to_csv(f"runs/part-{number}.csv", index=False)
    files = ("runs/part-1.csv", "runs/part-2.csv")
    first = run("evaluate", *files, "--columns", "reward=r", "--json", "--write-config", "runs/run.toml")
    assert tomllib.loads(Path("runs/run.toml").read_text())["log"] == ["part-1.csv", "part-2.csv"]
    assert run("evaluate", "--config", "runs/run.toml", "--json").output == first.output
    done = run("evaluate", *files, "--columns", "reward=r", "--save", "runs/part-2.csv", "--force")
    assert "--save would overwrite the input" in done.output


def test_a_process_in_another_folder_repeats_the_number(workdir, tmp_path_factory):
    words = ("log.csv", "--columns", "reward=r", "--json")
    first = piped("evaluate", *words, "--write-config", "runs/run.toml")
    assert first.returncode == 0, first.stderr
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    again = piped("evaluate", "--config", workdir / "runs" / "run.toml", "--json", cwd=elsewhere)
    assert again.stdout == first.stdout


def test_a_run_on_the_example_log_is_repeated(workdir):
    first = run("evaluate", "--json", "--features", "fourier:order=2", "--write-config", "run.toml")
    assert "No log is named" in Path("run.toml").read_text()
    assert run("evaluate", "--config", "run.toml", "--json").stdout == first.stdout


def test_the_command_line_overrides_the_file_and_the_file_the_defaults(workdir):
    Path("run.toml").write_text(
        'log = "log.csv"\ndiscount = 0.5\nmax-passes = 7\nseed = 3\njson = true\n'
        'columns = { reward = "r", action = "" }'
    )
    done = run("evaluate", "--config", "run.toml", "--discount", "0.6", "--no-json", "--quiet")
    assert done.exit_code == 0
    assert done.stdout.count("\n") == 1
    answer = facts("evaluate", "--config", "run.toml", "--discount", "0.6")
    assert (answer["discount"], answer["seed"], answer["ridge"]) == (0.6, 3, 0.0)
    settings = settings_from("--columns", "action=a", "--config", "run.toml")
    assert settings.columns == {"reward": "r", "action": "a"}
    assert (settings.seed, settings.max_passes, settings.json) == (3, 7.0, True)


def test_every_setting_can_be_read_from_a_file(workdir):
    text = (
        'log = "l.csv"\nfeatures = "rbf"\ndiscount = 1\npolicy = "p.npy"\nvalues = "state-action"\ntrace = 1\nridge = 2'
        '\nstarts = "s.npy"\nsolver = "saga"\ntol = 0\nmax-passes = 3\nseed = 4\nreport = "r.html"\nsave = "s.npz"\n'
        'checks = "all"\nstrict = true\ninterval = "cr1"\nlevel = 0.5\nreward-range = [-1, 2.5]\ncluster = "c"\n'
        'missing = "flag"\nmemory = "stream"\nlimit = 3\nscheduler = "tcp://host:1"\n'
        'checkpoint = "kept"\ndevice = "cuda"\n'
        'json = true\nquiet = true\nforce = true\n[columns]\nobs = ["x", "y"]\n'
    )
    Path("runs/all.toml").write_text(text)
    settings = settings_from("--config", "runs/all.toml", "--force")
    assert set(tomllib.loads(text)) == {name.replace("_", "-") for name in Settings.__dataclass_fields__}
    assert settings == Settings(
        log=("runs/l.csv",), columns={"obs": ["x", "y"]}, features="rbf", discount=1.0, policy=("runs/p.npy",),
        values="state-action", trace=1.0, ridge=2.0, starts="runs/s.npy", solver="saga",
        tol=0, max_passes=3.0, seed=4, checks="all", strict=True, interval="cr1", level=0.5,
        reward_range=(-1, 2.5), cluster="c", missing="flag",
        memory="stream", limit="3", scheduler="tcp://host:1", checkpoint="runs/kept", device="cuda",
        report="runs/r.html", save="runs/s.npz", json=True, quiet=True, force=True,
    )  # fmt: skip


def test_code_in_a_file_runs_only_if_the_command_line_repeats_it(workdir):
    words = ("--policy", "lab_uniform:policy")
    first = run("evaluate", "log.csv", "--columns", "reward=r", *words, "--write-config", "run.toml", "--json")
    assert first.exit_code == 0, first.stderr
    assert "must be repeated on the command line" in Path("run.toml").read_text()
    message = "repeat it on the command line: --policy lab_uniform:policy"
    assert message in refused("evaluate", "--config", "run.toml", "--json")
    assert run("evaluate", "--config", "run.toml", *words, "--json").stdout == first.stdout


def test_a_written_file_runs_again_and_overwrites_nothing(workdir):
    words = ("evaluate", "log.csv", "--columns", "reward=r", "--save", "runs/kept.npz", "--report", "runs/page.html")
    assert run(*words, "--write-config", "runs/run.toml").exit_code == 0
    assert "Give --report or --save again to write files." in Path("runs/run.toml").read_text()
    kept = {path: path.stat().st_mtime_ns for path in Path("runs").iterdir()}
    again = run("evaluate", "--config", "runs/run.toml")
    assert again.exit_code == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in Path("runs").iterdir()} == kept
    message = "runs/kept.npz already exists. Choose another name, or overwrite it with --force."
    assert message in refused("evaluate", "--config", "runs/run.toml", "--save", "runs/kept.npz")
    assert run("evaluate", "--config", "runs/run.toml", "--save", "runs/kept.npz", "--force").exit_code == 0


def test_values_that_are_not_relative_paths_are_written_unchanged(workdir):
    settings = Settings(log=("minari:lab/walk-v0",), columns={}, policy=("module:function",), starts="/data/s.npy")
    table = tomllib.loads(config_text(settings, Path("runs")))
    assert (table["log"], table["policy"], table["starts"]) == ("minari:lab/walk-v0", "module:function", "/data/s.npy")
    Path("runs/run.toml").write_text(config_text(settings, Path("runs")))
    assert settings_from("--policy", "module:function", "--config", "runs/run.toml") == settings


def test_a_name_that_is_not_utf8_is_rejected():
    with pytest.raises(ValueError, match=r"The name in .*log = .* is not valid UTF-8, which TOML requires"):
        config_text(Settings(log=(os.fsdecode(b"\xff.csv"),)), Path())


def test_a_huge_file_is_rejected(tmp_path):
    (tmp_path / "huge.toml").write_text("#" * (1 << 20) + "\n")
    with pytest.raises(ValueError, match=r"huge.toml is larger than 1,048,576 bytes, the limit for a file of options"):
        settings_from("--config", tmp_path / "huge.toml")


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
names = texts.filter(lambda text: "/" not in text and text not in (".", ".."))


@given(
    st.builds(
        Settings,
        log=st.lists(names.map(lambda name: f"data/{name}")).map(tuple),
        features=texts,
        discount=st.floats(allow_nan=False),
        tol=st.floats(allow_nan=False) | st.just("statistical"),
        seed=st.integers(-(2**63), 2**63 - 1),
        solver=texts,
        columns=st.dictionaries(texts, texts | st.none() | st.lists(texts, min_size=1)),
    )
)
def test_settings_are_the_same_after_writing_and_reading(tmp_path_factory, settings):
    folder = tmp_path_factory.getbasetemp() / "settings"
    folder.mkdir(exist_ok=True)
    (folder / "run.toml").write_bytes(config_text(settings, folder).encode())
    assert settings_from("--config", folder / "run.toml") == settings
