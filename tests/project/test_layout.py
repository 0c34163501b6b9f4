"""`tests/` mirrors `src/valuefit`: a folder for each package, and test_<module>.py for a module <module>.py."""

import pytest

from helpers.problems import ROOT

PACKAGE, TESTS = ROOT / "src" / "valuefit", ROOT / "tests"
# folders of tests that span packages, and of their data
NOT_PACKAGES = {"claims", "fixtures", "helpers", "project"}
# test files that do not test the module of their name, with what they test
OTHER_TESTS = {
    "cli/test_formats.py": "the commands and vf.evaluate agree for every file format",
    "cli/test_refusals.py": "messages and exit codes of all commands",
    "data/test_load_memory.py": "the memory that loading takes, by format",
    "data/test_mutated_files.py": "damaged files of every format, made by seeded mutations",
    "data/test_untrusted_files.py": "damaged and malicious files, in all readers",
    "datasets/test_datasets.py": "all generators against known solutions",
    "evaluation/test_device_evaluation.py": "evaluate(device=) on torch tensors",
    "evaluation/test_clusters.py": "cluster= in logs, files, standard errors and comparisons",
    "evaluation/test_every_storage.py": "evaluate by every solver in memory, in shards, on workers and on a device",
    "evaluation/test_streamed_memory.py": "the memory that evaluate takes for a log in parts",
    "features/test_transformers.py": "all transformers against plain loops",
    "problem/test_refusals.py": "messages for wrong arguments of Transitions, Problem and solve",
    "report/test_browser.py": "the page in a real browser",
    "solvers/test_batches.py": "the mini-batch kernels of SVRG and SAGA",
    "solvers/test_krylov_sparse.py": "krylov on sparse features, apart from test_krylov.py for its length",
    "solvers/test_twins.py": "all kernels against their naive twins",
}
FOLDERS = [path.parent for path in PACKAGE.glob("*/__init__.py")]
FILES = sorted(
    path.relative_to(TESTS) for path in TESTS.rglob("test_*.py") if path.relative_to(TESTS).parts[0] not in NOT_PACKAGES
)


@pytest.mark.parametrize("name", sorted(folder.name for folder in FOLDERS))
def test_every_package_has_a_folder_of_tests(name):
    assert list((TESTS / name).glob("test_*.py")), f"tests/{name} has no test file"


def test_every_folder_of_tests_belongs_to_a_package():
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    assert folders <= {folder.name for folder in FOLDERS} | NOT_PACKAGES


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_test_file_has_the_name_of_a_module_or_a_listed_reason(path):
    module = PACKAGE / path.parent / path.name.removeprefix("test_")
    listed = path.as_posix() in OTHER_TESTS
    assert module.exists() or listed, f"Name tests/{path} after the module that it tests, or list it in OTHER_TESTS."
    assert not (module.exists() and listed), f"tests/{path} tests a module of its name; remove it from OTHER_TESTS."


def test_listed_files_exist():
    assert all((TESTS / path).exists() for path in OTHER_TESTS)
