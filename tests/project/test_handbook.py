"""The theory pages name functions and tests that exist; the front page and README say the same."""

import functools
import importlib.util
import re

import pytest

from helpers.problems import ROOT

THEORY = sorted((ROOT / "docs" / "theory").glob("*.md"))
FUNCTION = re.compile(r"`(valuefit(?:\.\w+)+)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ERRATUM = re.compile(r"`(test_erratum_\d\d)_\.\.\.`")


def resolve(name):
    """The object of a dotted name: the longest prefix that is a module, then its attributes."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def defined_tests(path):
    return re.findall(r"^def (test_\w+)\(", (ROOT / path).read_text(), re.M) if (ROOT / path).is_file() else []


@pytest.mark.parametrize("page", THEORY, ids=lambda page: page.stem)
def test_a_theory_page_names_functions_and_tests_that_exist(page):
    text = page.read_text()
    functions, tests = FUNCTION.findall(text), TEST.findall(text)
    assert page.stem == "index" or (functions and tests), "a theory page must say where its formulas are"
    for name in functions:
        found = resolve(name)
        assert callable(found) or isinstance(found, property | functools.cached_property), f"{name} computes nothing"
    for path, name in tests:
        assert name in defined_tests(path), f"{page.name}: there is no {path}::{name}"
    for start in ERRATUM.findall(text):
        assert any(name.startswith(start) for name in defined_tests("tests/claims/test_errata.py"))
    files = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert all((ROOT / path).is_file() for path in files)
    assert text.count("`tests/") == len(tests) + len(files)
    assert text.count("`valuefit.") == len(functions)


def test_names_that_do_not_exist_are_detected():
    with pytest.raises(AttributeError):
        resolve("valuefit.problem.problem.Problem.no_such_method")
    with pytest.raises(AttributeError):
        resolve("valuefit.no_such_module.function")
    assert defined_tests("tests/claims/no_such_file.py") == []


def test_every_erratum_of_the_tests_is_in_the_table():
    table = (ROOT / "docs" / "theory" / "theorems.md").read_text()
    tested = {name[:15] for name in defined_tests("tests/claims/test_errata.py")}
    assert tested == set(ERRATUM.findall(table))
    assert len(tested) == 13


def test_readme_starts_like_the_front_page():
    """The same question, figure, installation, code and output."""
    front, readme = (
        re.sub(r"\{term\}`(\w+)`", r"\1", (ROOT / name).read_text()) for name in ("docs/index.md", "README.md")
    )
    for block in re.findall(r"```(?:sh|python|text)\n.*?```", front, re.S):
        assert block in readme
    sentences = " ".join(
        front[: front.index("valuefit is not released")].replace("](figures", "](docs/figures").split()
    )
    words = " ".join(readme[: readme.index("valuefit is not released")].split())
    for sentence in re.split(r"(?<=[.?]) ", sentences):
        assert sentence in words, f"README does not say: {sentence}"


def test_what_the_verdict_is_worth_is_stated_as_measured():
    """README and the theory page have the numbers of the table that `make coverage` writes."""
    row = re.search(r"\| all tested \|(.*)\|", (ROOT / "docs" / "coverage.md").read_text()).group(1).split("|")
    logs, wrong, right, covered = (float(row[column].strip(" %")) for column in (1, 2, 3, 4))
    stated = f"({logs:,.0f} logs), it called {wrong:.0f}% of the logs sound where intervals fail and {right:.0f}% where"
    for name in ("README.md", "docs/theory/checks.md"):
        text = " ".join((ROOT / name).read_text().split())
        assert f"{stated} they hold; {covered:.0f}% of the sound intervals cover" in text, name


LINKS = importlib.util.spec_from_file_location("check_links", ROOT / "docs" / "check_links.py")


def test_the_link_check_finds_broken_links_missing_headings_the_network_and_no_glossary(tmp_path):
    check_links = importlib.util.module_from_spec(LINKS)
    LINKS.loader.exec_module(check_links)
    (tmp_path / "good.html").write_text('<h1 id="top">x</h1><a href="#top">y</a><a href="https://example.org">z</a>')
    (tmp_path / "glossary.html").write_text('<a href="#">Glossary</a>')
    with pytest.raises(SystemExit, match=r"good\.html: has no link to the glossary"):
        check_links.main(str(tmp_path))
    check_links.read.cache_clear()
    (tmp_path / "good.html").write_text('<h1 id="top">x</h1><a href="#top">y</a><a href="glossary.html">z</a>')
    check_links.main(str(tmp_path))
    (tmp_path / "bad.html").write_text(
        '<a href="good.html#top">0</a><a href="glossary.html">g</a>'
        '<a href="none.html">1</a><a href="good.html#none">2</a>'
        '<script src="https://example.org/x.js"></script>'
    )
    with pytest.raises(SystemExit) as failure:
        check_links.main(str(tmp_path))
    lines = str(failure.value).splitlines()
    assert len(lines) == 3
    assert "there is no none.html" in lines[0]
    assert "good.html#none has no such heading" in lines[1]
    assert "script is loaded from https://example.org/x.js" in lines[2]
