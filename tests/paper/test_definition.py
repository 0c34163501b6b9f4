"""The TOML file of an experiment: a wrong or missing key is named, with the file."""

import pytest

from valuefit.paper.definition import EXPERIMENTS, available, load_experiment

VALID = (EXPERIMENTS / "off-policy.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"saga"]', '"sagaa"]', r"\[run\] of .*x\.toml sets methods = .*; it must be a list of some of pdbg, gtd2"),
        ('"saga"]', '"svrg"]', "sets methods"),
        ("methods = [", "metods = [", "has the key 'metods', which no experiment has. Did you mean 'methods'?"),
        ("steps = 20000", "", r"\[source of panel 3\] of .*x.toml has no 'steps'; it must be a whole number"),
        ("steps = 20000", "steps = 0", "sets steps = 0; it must be a whole number from 1 to 1e9"),
        ("steps = 20000", 'steps = "many"', "sets steps = 'many'"),
        ("steps = 20000", f"steps = {10**400}", "sets steps = .*; it must be a whole number"),
        ("steps = 20000", "steps = [1]", r"sets steps = \[1\]"),
        ('kind = "random-mdp"', 'kind = "chess"', "sets kind = 'chess'; it must be one of random-mdp, baird"),
        ('kind = "random-mdp"', "kind = [1]", "it must be one of random-mdp"),
        ("off_policy = true", "off_policy = 1", "it must be true or false"),
        ("states = 400", "cells = 400", "has the key 'cells', which no experiment has"),
        (
            "discount = 0.95",
            "discount = 1.5",
            r"\[problem of panel 3\] of .* sets discount = 1.5; it must be a number from",
        ),
        ("passes = 800", "passes = inf", r"\[run\] of .* sets passes = inf; it must be a number above 0"),
        ("passes = 800", "passes = 1e300", r"sets passes = 1e\+300; it must be a number above 0 and at most 1e6"),
        ("passes = 800", "", r"\[run\] of .* has no 'passes'"),
        ("seeds = 5", "seeds = 1000000000", "a whole number from 1 to 10,000"),
        ("title = ", "titel = ", "has the key 'titel', which no experiment has. Did you mean 'title'?"),
        ("[[panel]]", "[panel]", "is not valid TOML"),
        ('label = "Random MDP"', "", r"\[panel 3\] of .* has no 'label'"),
        ("step_w = [1.0, 1e-1, 1e-2]", "step_w = []", r"\[grid.printed\] of .* sets step_w = \[\]; it must be a list"),
        ("step_w = [1.0, 1e-1, 1e-2]", "step_w = [-1]", "it must be a list of numbers above 0"),
        ("[grid.printed]", "[grids.printed]", "has the key 'grids', which no experiment has. Did you mean 'grid'?"),
        ("[run]", "[run", "is not valid TOML"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(tmp_path, old, new, message):
    path = tmp_path / "x.toml"
    assert old in VALID
    path.write_text(VALID.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as caught:
        load_experiment(str(path))
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["", "title = 3", "panel = 3\n", "x = " + "[" * 5000, "\x00"])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.toml"):
        load_experiment(str(path))


def test_a_file_that_is_too_large_or_no_text_is_refused(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"#" * 2_000_000)
    with pytest.raises(ValueError, match="is larger than"):
        load_experiment(str(path))
    path.write_bytes(b"title = '\xff'")
    with pytest.raises(ValueError, match="is not valid TOML"):
        load_experiment(str(path))


def test_an_unknown_experiment_is_rejected_with_the_list_of_names():
    with pytest.raises(ValueError, match="random-mdp"):
        load_experiment("figure-7")


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("quick", [False, True])
def test_every_experiment_of_the_package_is_valid(name, quick):
    assert load_experiment(name, quick=quick).panels
