"""The report page: its contents, the escaping of untrusted text, and its accessibility."""

import re
import sys
from dataclasses import replace
from html import unescape
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

import valuefit as vf
from helpers.pages import HOSTILE, KINDS, Page
from helpers.problems import ROOT
from valuefit.report.figures import observation_names
from valuefit.report.page import CONTENT_SECURITY_POLICY, python_call, render, write_report
from valuefit.report.svg import HEAT_COLOURS, printable


@pytest.fixture(scope="module", params=KINDS)
def rendered(request):
    """Name, evaluation and page of each kind."""
    evaluation = KINDS[request.param]()
    return request.param, evaluation, render(evaluation)


def svgs(text):
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.S)]


# ---- the page as a whole -----------------------------------------------------------------------------------------


def test_the_page_has_all_parts_in_order(rendered):
    _, _, text = rendered
    assert text.startswith("<!DOCTYPE html>")
    page = Page(text)
    assert page.all("html")[0][1]["lang"] == "en"
    for tag in ("header", "nav", "main", "footer", "h1"):
        assert len(page.all(tag)) == 1, tag
    assert page.all("nav")[0][1]["aria-label"]
    levels = [int(element[0][1]) for element in page.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert all(element[2].strip() for element in page.all("h1", "h2", "h3", "figcaption", "caption", "summary", "a"))
    first = page.all("a", "button", "summary")[0]
    assert first[1] == {"class": "skip", "href": "#answer"}


def test_every_reference_has_exactly_one_target(rendered):
    page = Page(rendered[2])
    ids = [element[1]["id"] for element in page.elements if "id" in element[1]]
    assert len(ids) == len(set(ids))
    links = [element[1]["href"] for element in page.all("a")]
    assert all(link.startswith("#") for link in links)
    named = {link[1:] for link in links}
    for element in page.elements:
        named |= set(element[1].get("aria-labelledby", "").split())
        found = re.fullmatch(r"url\(#(.+)\)", element[1].get("fill", ""))
        named |= {found[1]} if found else set()
    assert named <= set(ids), named - set(ids)
    sections = {element[1]["id"] for element in page.all("section")}
    assert sections == {link[1:] for link in links}


def test_tables_have_captions_and_scopes(rendered):
    page = Page(rendered[2])
    assert len(page.all("table")) == len(page.all("caption"))
    assert all(element[1]["scope"] in ("row", "col") for element in page.all("th"))
    assert all(element[1].get("tabindex") == "0" for element in page.elements if element[1].get("class") == "scroll")


def test_charts_are_well_formed_and_described(rendered):
    name, _, text = rendered
    drawn = svgs(text)
    assert len(drawn) >= (0 if name == "tiny" else 5)
    for svg in drawn:
        assert svg.get("role") == "img"
        title, desc = svg[0], svg[1]
        assert (title.tag, desc.tag) == ("title", "desc")
        assert svg.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
        assert title.text
        assert re.search(r"\d", desc.text)
        _, _, width, height = map(float, svg.get("viewBox").split())
        for mark in svg.iter():
            for key, limit in (
                ("x", width),
                ("x1", width),
                ("x2", width),
                ("cx", width),
                ("y", height),
                ("cy", height),
            ):
                assert 0 <= float(mark.get(key, 0)) <= limit, (title.text, mark.tag, key, mark.get(key))
            assert float(mark.get("width", 1)) >= 0
            assert float(mark.get("height", 1)) >= 0
            assert "nan" not in mark.get("points", "").lower()


def test_the_page_runs_no_scripts_and_loads_no_files(rendered):
    _, _, text = rendered
    page = Page(text)
    assert CONTENT_SECURITY_POLICY == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    policies = [e[1]["content"] for e in page.all("meta") if e[1].get("http-equiv") == "Content-Security-Policy"]
    assert policies == [CONTENT_SECURITY_POLICY]
    assert not page.all("script", "img", "iframe", "object", "embed", "form", "base", "image", "use", "foreignobject")
    for tag, attributes, _ in page.elements:
        assert not any(key.startswith("on") or key in ("src", "srcset", "xlink:href") for key in attributes), tag
    assert [e[1]["href"] for e in page.all("link")] == ["data:,"]
    assert "<script" not in text.lower()
    assert not re.search(r"https?:", text)
    style = page.all("style")[0][2]
    assert "@import" not in style
    assert "url(" not in style


def test_the_page_shows_the_numbers_and_sentences_of_the_evaluation(rendered):
    name, evaluation, text = rendered
    shown, value = Page(text).text, evaluation.policy_value
    assert f"The policy value is {value.estimate:.5g}" in shown
    if value.interval is None:
        assert "Standard error unknown" in shown
        assert name == "tiny"
    else:
        low, high = value.interval
        assert f"Standard error {value.standard_error:.5g}; 95% interval from {low:.5g} to {high:.5g}." in shown
        assert "The interval covers the fixed point" in shown
    assert f"mean value over {value.starts:,} start" in shown
    assert f"discounted by {evaluation.discount:g} per step." in shown
    facts = dict(re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)</td>', text))
    result = evaluation.result
    assert facts["Steps"] == f"{len(evaluation.log):,}"
    assert facts["Solver"] == result.solver
    assert facts["Effort"] == f"{result.passes:.1f} passes over the log, {result.seconds:.2f} seconds"
    assert facts["Status"].startswith(result.status)
    assert unescape(facts["Features"]).endswith(evaluation.features.sentence)
    assert f"{evaluation.problem.d:,}, " in facts["Features"]
    for sentence in (*evaluation.notes, *evaluation.warnings):
        assert " ".join(printable(sentence).replace("`", "").split()) in shown  # between backticks is code
    assert shown.index(f"Verdict: {evaluation.verdict.level} (") < shown.index("The policy value is")
    assert f'class="verdict {evaluation.verdict.level.replace(" ", "-")}"' in text
    assert ("Reasons for the verdict" in shown) == bool(evaluation.verdict.reasons)
    for check in evaluation.checks:
        assert f'<th scope="row">{check.name}</th><td class="outcome {check.outcome}">{check.outcome}</td>' in text
    if value.effective_sample_size is not None:
        assert f"{value.effective_sample_size:.5g} of {len(evaluation.log):,} steps" in shown
    assert ("importance" in [e[1]["id"] for e in Page(text).all("section")]) == (
        value.effective_sample_size is not None
    )  # fmt: skip
    not_converged = "The solver did not converge: the interval includes the remaining solver error."
    assert (not_converged in shown) == (result.status != "converged")


def test_each_kind_of_evaluation_has_its_figures():
    expected = {
        "car": {
            "value-map", "value-error-map", "value-distribution", "td-distribution", "td-position", "td-value",
            "lengths", "returns",
        },
        "one-hot": {"value-states", "td-distribution", "td-position", "td-value", "rewards", "lengths", "returns"},
        "hostile": {
            "value-map", "value-error-map", "value-along-1", "value-along-2", "value-distribution", "td-distribution",
            "td-position",
            "td-value", "rewards", "returns", "ratios",
        },
        "stopped": {
            "value-map", "value-error-map", "value-distribution", "td-distribution", "td-position", "td-value",
            "residual", "lengths", "returns",
        },
        "stream": {
            "value-states", "value-distribution", "td-distribution", "td-position", "td-value", "residual", "rewards",
        },
        "tiny": set(),
    }  # fmt: skip
    for name, figures in expected.items():
        text = render(KINDS[name]())
        assert {element[1]["id"] for element in Page(text).all("figure")} == figures, name


def test_reports_of_the_same_evaluation_are_identical():
    evaluation = KINDS["hostile"]()
    assert render(evaluation) == render(evaluation)


# ---- untrusted text ----------------------------------------------------------------------------------------------


def test_markup_in_names_is_escaped():
    text = render(KINDS["hostile"]())
    page = Page(text)
    for expected in (
        f"logs/{HOSTILE[0]}\ufffd{HOSTILE[1]}.parquet",
        f"policy {HOSTILE[0]}", f"note {HOSTILE[0]} {HOSTILE[1]} & more",
        f"warning {HOSTILE[0]} 'quoted' \"twice\"", f"Mean value over {HOSTILE[0]} and {HOSTILE[1]}",
        "a\ufffdb\ufffd",
    ):  # fmt: skip
        assert expected in page.text
    title = next(e for e in page.all("title") if not e[1])
    assert HOSTILE[0] in title[2]
    assert text.isprintable() or set(text) - {"\n"} == {c for c in text if c.isprintable()}


def test_markup_in_file_and_column_names_is_escaped(tmp_path):
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    rng = np.random.default_rng(0)
    columns = {HOSTILE[0]: rng.normal(size=80), HOSTILE[1]: rng.normal(size=80), "reward": rng.normal(size=80)}
    ends = {"terminated": (np.arange(80) % 10 == 9).astype(int)}
    table = {**columns, **ends}
    path = folder / "script>.csv"
    lines = [",".join(f'"{name}"' for name in table)]
    lines += [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
    path.write_text("\n".join(lines))
    evaluation = vf.evaluate(path, columns={"obs": list(HOSTILE)}, features=_unchanged)
    assert evaluation.log.names == HOSTILE
    page = Page(evaluation.report(folder / "report.html").read_text())
    assert not page.all("script")
    assert f"{HOSTILE[0]}.csv" in page.text
    assert f"Value over {HOSTILE[0]} and {HOSTILE[1]}" in page.text
    assert "<b>own</b>" in page.text


def _unchanged(rows):
    return rows


_unchanged.__name__ = "<b>own</b>"


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x7f", "\u202e", "\u2028", "\udcff", "\ufeff", "\uffff"])
def test_unprintable_characters_are_replaced(character):
    assert printable(f"a{character}b\nc") == "a\ufffdb\nc"
    evaluation = KINDS["one-hot"]()
    fit = replace(evaluation.fit, log=replace(evaluation.log, names=(f"x{character}y",)))
    text = render(replace(evaluation, notes=[f"a{character}b"], fit=fit))
    assert character not in text
    assert "a\ufffdb" in text
    assert all(svg is not None for svg in svgs(text))
    text.encode()


def test_column_names_are_kept_with_the_log(tmp_path):
    table = {"x": np.arange(6.0), "v": np.ones(6), "reward": np.ones(6), "terminated": [0, 0, 1] * 2}
    log = vf.load(table, columns={"obs": ["x", "v"]})
    assert log.names == log[2:4].names == ("x", "v")
    folder = vf.save(log, tmp_path / "folder")
    assert vf.load(folder).names == ("x", "v")
    saved = vf.evaluate(log, features="identity", discount=0.5).save(tmp_path / "evaluation.npz")
    assert vf.Evaluation.load(saved).log.names == ("x", "v")
    assert vf.load({"obs": np.ones((2, 3)), "reward": [1, 1], "terminated": [0, 1]}).names == ()
    assert vf.load(table, columns={"obs": "x"}).names == ("x",)
    assert observation_names(replace(log, names=("x",))) == ["observation 0", "observation 1"]
    assert observation_names(replace(log, observations=np.ones((6, 2, 1)), names=())) == [
        "observation 0, 0", "observation 1, 0",
    ]  # fmt: skip


# ---- the file ----------------------------------------------------------------------------------------------------


def test_existing_files_are_overwritten_only_with_force(tmp_path):
    evaluation = KINDS["tiny"]()
    path = evaluation.report(tmp_path / "report.html")
    assert path.read_text() == render(evaluation)
    path.write_text("mine")
    with pytest.raises(ValueError, match=r"already exists. Choose another name, or overwrite it with `force=True`."):
        evaluation.report(path)
    assert path.read_text() == "mine"
    assert write_report(evaluation, str(path), force=True) == path
    assert path.read_text() != "mine"


def test_without_jinja2_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ValueError, match=r"A report needs jinja2. Install it with: pip install 'valuefit\[plot\]'"):
        KINDS["tiny"]().report(tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_report_of_a_large_log_is_small(tmp_path):
    rng = np.random.default_rng(0)
    n = 200_000
    x = rng.normal(size=(n, 3))
    log = vf.Transitions.from_arrays(
        x, x[:, 0] + rng.standard_cauchy(n), terminated=rng.random(n) < 0.05, episode=None, ratio=rng.gamma(1, 1, n),
        truncated=np.arange(n) == n - 1, next_observation=np.roll(x, -1, axis=0),
    )  # fmt: skip
    path = vf.evaluate(log, features="polynomial:degree=2", discount=0.5).report(tmp_path / "report.html")
    assert path.stat().st_size < 300_000


# ---- the call that reproduces the evaluation ---------------------------------------------------------------------


@pytest.mark.parametrize("features", ["auto", "fourier:order=2", "tiles", "rbf", "polynomial", "identity"])
def test_the_printed_call_reproduces_the_value(tmp_path, features):
    log = KINDS["car"]().log[:1500]
    path = vf.save(log, tmp_path / "log.npz")
    evaluation = vf.evaluate(
        path, features=features, discount=0.9, ridge=0.125, trace=0.25, seed=3,
        solver=vf.solvers.SVRG(step_theta=0.01, step_w=0.01),
    )  # fmt: skip
    call = re.search(r"<pre[^>]*><code>(.*?)</code>", render(evaluation), re.S)
    assert unescape(call[1]) == python_call(evaluation)
    scope = {}
    exec(unescape(call[1]), scope)
    assert scope["evaluation"].policy_value == evaluation.policy_value
    assert "SVRG(step_theta=0.01, step_w=0.01)" in call[1]


def test_arguments_that_are_not_stored_have_a_comment():
    call = python_call(KINDS["hostile"]())
    assert "policy=policy,  # the same policy: 'policy <script>alert(1)</script>'" in call
    compile(call, "call", "exec")
    own = vf.evaluate(KINDS["tiny"]().log, features=_unchanged)
    call = python_call(own)
    assert "features=features,  # your own: 'Used the callable <b>own</b> (1 features) as given.'" in call
    assert "    log,  # the same log" in call
    call = python_call(KINDS["stream"]())
    assert "vf.features.OneHot(unknown='error'),  # other options are fitted to the log" in call


def test_a_comment_with_line_ends_stays_on_one_line():
    evaluation = KINDS["tiny"]()
    fitted = replace(evaluation.features, spec=None, sentence="one\nimport os; os.remove('x')")
    call = python_call(replace(evaluation, fit=replace(evaluation.fit, features=fitted)))
    assert "\nimport os" not in call


# ---- colours -----------------------------------------------------------------------------------------------------


def luminance(colour):
    parts = np.array([int(colour[first : first + 2], 16) for first in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(colour, background):
    light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_sufficient_in_light_and_dark():
    style = (ROOT / "src" / "valuefit" / "report" / "report.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.S)[:2]
    light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})\b", blocks[0]))
    dark = light | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})\b", blocks[1]))
    assert dark["page"] != light["page"]
    for colours in (light, dark):
        for text in ("text", "soft", "accent", "fine", "mark"):
            assert contrast(colours[text], colours["card"]) >= 4.5, text
        for text in ("text", "soft", "accent"):
            assert contrast(colours[text], colours["page"]) >= 4.5, text
        assert contrast(colours["warn-text"], colours["warn"]) >= 4.5
        assert contrast(colours["bar"], colours["card"]) >= 3
        heat = [luminance(colours[f"h{level}"]) for level in range(HEAT_COLOURS)]
        assert all(after > before for before, after in pairwise(heat)), heat
