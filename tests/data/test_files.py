"""Which files a list, a folder or a pattern names, in which order; gzip."""

import gzip
import os

import pandas as pd
import pytest

import valuefit as vf
from helpers.log_files import assert_same_log, expected, flat, json_steps, parquet_parts, steps
from valuefit.data.files import find_files
from valuefit.data.readers import formats

COLUMNS = steps()


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_files_are_read_in_natural_order(tmp_path):
    touch(tmp_path, "part-10.csv", "part-2.csv", "part-1.csv", "b1/x.csv")
    in_order = [tmp_path / name for name in ("part-1.csv", "part-2.csv", "part-10.csv")]
    assert find_files(str(tmp_path / "part-*.csv"), formats()) == in_order
    assert find_files([tmp_path / "part-10.csv", str(tmp_path / "part-[12].csv")], formats()) == in_order
    assert find_files(tmp_path / "**" / "*.csv", formats()) == [tmp_path / "b1" / "x.csv", *in_order]


def test_a_name_with_the_characters_of_a_pattern_is_a_file(tmp_path):
    source = json_steps(COLUMNS, tmp_path / "log[1].jsonl")
    assert_same_log(vf.load(source), expected())


def test_a_folder_a_pattern_and_a_list_of_parts_are_one_log(tmp_path):
    folder = parquet_parts(COLUMNS, tmp_path)
    names = sorted(str(path) for path in folder.glob("*.parquet"))  # as text, as a shell expands the pattern
    for source in (folder, str(folder), str(folder / "*.parquet"), names, tuple(names)):
        log = vf.load(source)
        assert_same_log(log, expected())
        assert log.notes[0].startswith("Read 9 files in the order of their names, from ")
    assert log.source.startswith("9 files (")


def test_sources_of_several_files_that_are_refused(tmp_path):
    pd.DataFrame(flat(COLUMNS)).to_csv(tmp_path / "log.csv", index=False)
    mixed, nested, empty = tmp_path / "mixed", tmp_path / "nested", tmp_path / "empty"
    touch(mixed, "log.csv", "log.parquet")
    touch(nested, "log.csv", "year=2024/log.csv")
    touch(empty, "_SUCCESS", ".log.csv", "notes.txt")
    saved = vf.save(expected(), tmp_path / "saved")
    (tmp_path / "link.csv").symlink_to(tmp_path / "log.csv")
    for source, message in (
        ([], "The list of files is empty. Name at least one file."),
        ([tmp_path / "log.csv", COLUMNS], "A list of logs holds paths of files, but its entry 1 is no path"),
        ([tmp_path / "log.csv", tmp_path / "link.csv"], r"link.csv is named more than once, so its steps would count"),
        (tmp_path / "*.jsonl", r"No file matches '.*\*.jsonl'"),
        (mixed, r"contains files of several formats \(.csv, .parquet\), perhaps copies of one log. Name one kind with"),
        (nested, r"contains files and the folders 'year=2024'. Name the files with a pattern: '.*nested/\*.csv'"),
        (empty, "neither a log that valuefit saved nor a Minari dataset, and it contains no files"),
        ([tmp_path / "log.csv", saved], "which is not read together with other files. Convert it to Parquet first"),
        (["minari:lab/walk-v0", tmp_path / "log.csv"], "minari:lab/walk-v0 is a log that valuefit saved or a Minari"),
        (["https://example.org/log.csv"], "is not on this machine. Download it first"),
        ([tmp_path / "log.csv", tmp_path / "none.csv"], "There is no file '.*none.csv'"),
    ):
        with pytest.raises(ValueError, match=message):
            vf.load(source)


def test_damaged_and_unsupported_gzip_is_refused(tmp_path):
    whole = gzip.compress(json_steps(COLUMNS, tmp_path / "log.jsonl").read_bytes())
    for name, content, message in (
        ("cut.jsonl.gz", whole[:-20], "is not a gzip file, or it is damaged .*. Write it again"),
        ("plain.csv.gz", b"obs,reward,done\n1,1,1\n", "is not a gzip file, or it is damaged"),
        ("changed.jsonl.gz", whole[:90] + bytes([whole[90] ^ 255]) + whole[91:], "plain|gzip|JSON"),
        ("log.parquet.gz", whole, "unsupported extension. valuefit reads .csv, .*.csv.gz"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            vf.load(tmp_path / name)


def test_a_compressed_file_that_expands_beyond_the_limit_is_refused_early(tmp_path):
    line = b"0" * (1 << 20)
    for name, text in (
        ("rows.csv.gz", b"obs,reward,done\n" + b"1,1,0\n" * 2_000_000),
        ("line.csv.gz", b"obs,reward,done\n" + line * 80),
        ("line.jsonl.gz", b'{"obs": [' + line * 100),
    ):
        (tmp_path / name).write_bytes(gzip.compress(text, 1))
        assert os.path.getsize(tmp_path / name) < len(text) / 50
        with pytest.raises(ValueError, match=r"more than the limit of 1.0 MiB|longer than"):
            vf.load(tmp_path / name, limit=1 << 20)


def test_a_working_folder_that_was_deleted_is_named(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    log = {"obs": [1.0], "reward": [1.0], "terminated": [1]}
    for use in (lambda: vf.load("log.csv"), lambda: vf.evaluate(log, policy="module:function")):
        with pytest.raises(ValueError, match="The working folder does not exist any more"):
            use()
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(log).to_csv("log.csv")
    assert len(vf.load("log.csv")) == 1
