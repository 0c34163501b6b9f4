"""Shared set-up: a compilation cache for these sources, one thread, markers, and the tests that may be skipped."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _cache_directory() -> Path:
    """A folder named by a digest of all sources, because numba does not detect edits in imported modules."""
    sources = sorted((ROOT / "src").rglob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    return ROOT / ".numba_cache" / digest


os.environ.setdefault("NUMBA_CACHE_DIR", str(_cache_directory()))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import hypothesis  # noqa: E402  (the environment must be set before numpy and numba load)
import pytest  # noqa: E402

from helpers.problems import Oracle  # noqa: E402

hypothesis.settings.register_profile("valuefit", deadline=None, derandomize=True)
hypothesis.settings.load_profile("valuefit")


# `make test-cpus` repeats numerical tests with the BLAS kernels and code generation of other processors: all but those
# in these folders, and in files whose results do not depend on the processor, or whose kernels take long to compile and
# are compared with loops in plain Python at wide tolerances, or that measure coverage over many logs.
NOT_NUMERICAL = {"tests", "cli", "data", "readers", "datasets", "gpu", "paper", "project", "report"}
NOT_AFFECTED = {
    "test_batches", "test_blocks", "test_checkpoint", "test_clusters", "test_comparison",
    "test_cross_checks", "test_estimator", "test_evaluation", "test_parts", "test_policy", "test_refusals",
    "test_result", "test_sensitivity", "test_storage", "test_streamed_memory", "test_twins", "test_errors",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name not in NOT_NUMERICAL and item.path.stem not in NOT_AFFECTED:
            item.add_marker("numerical")


@pytest.fixture(params=range(16), ids=lambda number: f"oracle{number}")
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return Oracle(request.param)


# Files that need torch are collected where it is installed, as by `make test-torch`, and listed elsewhere.
TORCH_TESTS = [
    path.relative_to(ROOT / "tests").as_posix()
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if "\nimport torch\n" in path.read_text()
]
collect_ignore = [] if find_spec("torch") else TORCH_TESTS

# Tests that may be skipped, each with its reason; any other skip fails the run.
NO_BROWSER = "needs chromium, which `make test` installs where it is root and has apt-get"
ALLOWED_SKIPS: dict[str, str] = {
    f"tests/report/test_browser.py::{test}": NO_BROWSER
    for test in (
        "test_screenshots_have_the_expected_colours",
        "test_the_page_has_no_console_messages_and_no_requests",
        "test_the_checks_detect_a_script_and_a_request",
        "test_the_browser_shows_markup_of_the_log_as_text",
        "test_the_page_fits_a_narrow_screen_and_the_skip_link_appears_on_focus",
        "test_the_page_prints_on_few_pages",
    )
}
_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome == "skipped":
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    allowed = {} if os.environ.get("CI") == "true" else ALLOWED_SKIPS
    surprising = [test for test in _skipped if test.split("[")[0] not in allowed]
    if surprising and session.exitstatus == 0:
        print("\nSkipped without a reason in ALLOWED_SKIPS: " + ", ".join(surprising))
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = sorted({test.split("[")[0] for test in _skipped} & ALLOWED_SKIPS.keys())
    for reason in sorted({ALLOWED_SKIPS[test] for test in skipped}):
        tests = ", ".join(test for test in skipped if ALLOWED_SKIPS[test] == reason)
        terminalreporter.write_line(f"Skipped, {reason}: {tests}")
    if collect_ignore:
        terminalreporter.write_line(f"Not run, needs torch (make test-torch): {', '.join(collect_ignore)}")
