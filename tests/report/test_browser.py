"""The report in headless Chromium, run from its command line."""

import json
import os
import re
import shutil
import subprocess
from html import escape

import numpy as np
import pytest
from PIL import Image

import valuefit as vf
from conftest import NO_BROWSER
from helpers.pages import HOSTILE, KINDS, Page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BACKGROUND = {"light": (0xF6, 0xF7, 0xF9), "dark": (0x12, 0x15, 0x1A)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    if BROWSER is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"This test {NO_BROWSER}.", pytrace=False)
        pytest.skip(NO_BROWSER)
    folder = tmp_path_factory.mktemp("pages")
    found = {name: KINDS[name]().report(folder / f"{name}.html") for name in ("car", "one-hot", "hostile", "stopped")}
    compared = vf.compare(dict.fromkeys(("first", *HOSTILE), KINDS["one-hot"]()))
    return {**found, "comparison": compared.report(folder / "comparison.html")}


def browse(path, folder, *options, scheme="light"):
    """The output of Chromium, the console messages of the page, and the URLs that the page requests."""
    net_log = folder / "net.json"
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'profile'}", f"--log-net-log={net_log}", "--enable-logging=stderr", "--v=0",
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}", *options, path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    log = json.loads(net_log.read_text())
    start_job = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    started = [event["params"] for event in log["events"] if event["type"] == start_job and "params" in event]
    # requests of the browser itself (updates, the time) have no origin
    requested = [job["url"] for job in started if job.get("initiator", "not an origin") != "not an origin"]
    return done.stdout, console, requested


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_screenshots_have_the_expected_colours(pages, tmp_path, scheme, width):
    shot = tmp_path / "shot.png"
    browse(pages["car"], tmp_path, f"--screenshot={shot}", f"--window-size={width},2600", scheme=scheme)
    with Image.open(shot) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape[:2] == (2600, width)
    assert tuple(pixels[-1, 0].tolist()) == BACKGROUND[scheme]
    counts = np.bincount((pixels.astype(int) @ [1 << 16, 1 << 8, 1]).ravel())
    assert (counts > 0).sum() > 200  # text, charts and a heat map
    assert counts.max() < 0.95 * counts.sum()
    reddish = (pixels[:, :, 0].astype(int) - pixels[:, :, 2] > 80).sum()  # high values are yellow
    assert reddish > 500


@pytest.mark.parametrize("name", ["car", "one-hot", "hostile", "stopped", "comparison"])
def test_the_page_has_no_console_messages_and_no_requests(pages, tmp_path, name):
    _, console, requested = browse(pages[name], tmp_path, "--dump-dom")
    assert console == []
    assert requested == []


def test_the_checks_detect_a_script_and_a_request(pages, tmp_path):
    injected = '<img src="http://example.invalid/x.png"><script>console.log("ran")</script></main>'
    text = pages["hostile"].read_text().replace("</main>", injected)
    modified = tmp_path / "modified.html"
    modified.write_text(text)
    _, console, requested = browse(modified, tmp_path, "--dump-dom")
    assert len(console) == 2
    assert all("violates the following Content Security Policy" in line for line in console)
    assert requested == []
    modified.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text))
    _, console, requested = browse(modified, tmp_path, "--dump-dom")
    assert any('"ran"' in line for line in console)
    assert requested == ["http://example.invalid/x.png"]


def test_the_browser_shows_markup_of_the_log_as_text(pages, tmp_path):
    dom, _, _ = browse(pages["hostile"], tmp_path, "--dump-dom")
    page = Page(dom)
    assert not page.all("script")
    assert f"Mean value over {HOSTILE[0]} and {HOSTILE[1]}" in page.text
    assert [e[1].get("id") for e in page.all("figure")] == [
        e[1].get("id") for e in Page(pages["hostile"].read_text()).all("figure")
    ]


def test_the_page_fits_a_narrow_screen_and_the_skip_link_appears_on_focus(pages, tmp_path):
    # in a frame, because the window of a headless browser has a minimum width
    measure = """<script>onload = () => {
    const frame = document.querySelector("iframe").contentDocument, root = frame.documentElement;
    const skip = frame.querySelector(".skip"), before = skip.getBoundingClientRect().bottom;
    frame.querySelectorAll("details").forEach(part => { part.open = true; });
    skip.focus();
    document.body.dataset.measured = [root.scrollWidth, root.clientWidth, before, skip.getBoundingClientRect().top];
    }</script>"""
    for name in ("car", "hostile"):
        frame = tmp_path / "frame.html"
        frame.write_text(f'<body><iframe width="360" srcdoc="{escape(pages[name].read_text())}"></iframe>{measure}')
        dom, _, _ = browse(frame, tmp_path, "--dump-dom")
        wide, window, hidden, shown = map(float, re.search(r'data-measured="([^"]*)"', dom)[1].split(","))
        assert wide <= window <= 360
        assert hidden <= 0 <= shown


def test_the_page_prints_on_few_pages(pages, tmp_path):
    for scheme in ("light", "dark"):
        path = tmp_path / f"{scheme}.pdf"
        browse(pages["hostile"], tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={path}", scheme=scheme)
        data = path.read_bytes()
        assert data.startswith(b"%PDF")
        assert 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 8
