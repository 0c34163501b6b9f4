"""README and docs/: the Python code runs and prints the shown output, commands have valid options, links resolve."""

import contextlib
import io
import json
import re
import shlex

import pytest
from click.testing import CliRunner

import valuefit as vf
from helpers.problems import ROOT
from valuefit.cli.main import main

PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)
LINK = re.compile(r"\]\(([^)#\s]+\.(?:md|py|png))[^)]*\)")


def blocks(page):
    """(line, code, expected output or None) of every Python block; the text block after it is the expected output."""
    text = page.read_text()
    found = list(FENCE.finditer(text))
    for place, match in enumerate(found):
        if match[1] != "python":
            continue
        after = found[place + 1] if place + 1 < len(found) else None
        near = after is not None and after[1] == "text" and not text[match.end() : after.start()].strip()
        yield text.count("\n", 0, match.start()) + 2, match[2], after[2] if near else None


def run(page, line, code, namespace):
    """The output of a block; a ValueError counts as output, because the pages show its message."""
    out = io.StringIO()
    padded = "\n" * (line - 1) + code  # so that a traceback has the line number of the page
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(padded, str(page), "exec"), namespace)
        except ValueError as error:
            return f"ValueError: {error}"
    return out.getvalue()


def normalised(text):
    """One line, fractions with three digits, rounding errors as 0: the other digits depend on the machine."""

    def shorten(match):
        value = float(match[0])
        return f"{value:.3g}" if abs(value) > 1e-12 else "0"

    return re.sub(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e-\d+", shorten, " ".join(text.split()))


def matches(output, expected):
    """Whether the normalised texts are equal; "..." on the page matches any text."""
    parts = [re.escape(normalised(part)) for part in expected.split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), normalised(output), re.S) is not None


WITH_CODE = [page for page in [ROOT / "README.md", *PAGES] if "```python" in page.read_text()]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs_and_prints_the_shown_output(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    namespace = {"__name__": "__main__"}
    for line, code, expected in blocks(page):
        output = run(page, line, code, namespace)
        where = f"{page.relative_to(ROOT)}, line {line}"
        if expected is None:
            assert not output.startswith("ValueError"), f"{where}: {output}"
        else:
            assert matches(output, expected), f"{where} prints:\n{output}\nbut the page shows:\n{expected}"


def test_a_page_with_another_output_is_detected(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1, 'is it')\n```\n\n```text\n3 is it\n```\n\n```python\nint('x')\n```\n")
    (line, code, expected), (other, wrong, nothing) = blocks(page)
    assert (line, other, nothing) == (2, 10, None)
    assert not matches(run(page, line, code, {}), expected)
    assert matches(run(page, line, code, {}), "2 ... it")
    assert matches("gap 4.2e-28, value 0.71412", "gap 3e-29, value 0.71413")
    assert not matches("gap 4.2e-8, value 0.71412", "gap 3e-8, value 0.71412")
    assert run(page, other, wrong, {}).startswith("ValueError: invalid literal")


def commands():
    """(page, arguments) of every valuefit command on the pages."""
    for page in [ROOT / "README.md", *PAGES]:
        for kind, text in FENCE.findall(page.read_text()):
            if kind == "console":
                for line in text.splitlines():
                    assert line.startswith("$ valuefit "), f"{page.name}: {line}"
                    yield page, shlex.split(line)[2:]


def test_every_command_line_on_the_pages_has_options_that_exist():
    seen = set()
    for page, (name, *words) in commands():
        seen.add(name)
        assert name in main.commands, f"{page.name} calls valuefit {name}"
        known = {option for parameter in main.commands[name].params for option in parameter.opts}
        for word in words:
            assert not word.startswith("--") or word in known, f"{page.name}: valuefit {name} has no {word}"
    assert {"evaluate", "convert", "reproduce"} <= seen


DATA = [page for page in WITH_CODE if page.parent.name == "data" and page.stem not in ("index", "tables")]


@pytest.mark.parametrize("page", DATA, ids=lambda page: page.stem)
def test_the_command_on_the_page_of_a_format_gives_the_same_number_as_python(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    namespace = {"__name__": "__main__"}
    for line, code, _ in blocks(page):
        run(page, line, code, namespace)
    called = [words for where, words in commands() if where == page and words[0] == "evaluate"]
    assert called
    for words in called:
        source, columns = words[1], [word for word in words[2:] if "=" in word]
        done = CliRunner().invoke(main, [*words, "--json"])
        assert done.exit_code == 0, done.output
        asked = dict(word.split("=", 1) for word in columns) or None
        expected = vf.evaluate(source, columns=asked, discount=0.9).policy_value.estimate
        assert json.loads(done.stdout)["policy_value"]["estimate"] == pytest.approx(expected, abs=1e-8)


def test_every_page_is_in_a_toctree_and_every_link_resolves():
    listed = {ROOT / "docs" / "index.md"}
    for page in [ROOT / "README.md", *PAGES]:
        text = page.read_text()
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", text, re.S):
            names = [line.strip() for line in tree.splitlines() if line.strip() and not line.startswith(":")]
            written = [name for name in names if name != "gallery/index"]  # which is generated
            listed |= {(page.parent / f"{name}.md").resolve() for name in written}
        for target in LINK.findall(text):
            assert (page.parent / target).is_file(), f"{page.relative_to(ROOT)} links to {target}"
    assert listed == set(PAGES)
