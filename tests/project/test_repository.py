"""The repository as a whole: import order, README and ARCHITECTURE, the installed wheel."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import valuefit as vf
from helpers.problems import ROOT
from valuefit.cli.capabilities import markdown

PACKAGE = ROOT / "src" / "valuefit"

# The direction of the data: a package imports only from packages before it, lazy imports included.
PACKAGE_ORDER = [
    "typing", "tolerances", "memory", "extras", "messages", "atomic", "threads", "machine", "rows", "linalg", "data",
    "features", "datasets", "problem", "streaming", "precondition", "gpu", "solvers", "engine", "policies", "inference",
    "checks", "evaluation", "report", "paper", "cli",
]  # fmt: skip
# (module, imported module)
ALLOWED_BACKWARD_IMPORTS = {
    ("valuefit.evaluation.evaluation", "valuefit.report.page"),
    ("valuefit.evaluation.comparison", "valuefit.report.comparison"),
    ("valuefit.evaluation.selection", "valuefit.report.selection"),
    ("valuefit.problem.problem", "valuefit.gpu.on_device"),
}  # Evaluation.report, Comparisons.report and Selection.plot; Problem.from_rows of tensors, Problem.from_kernel


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(path: Path) -> set[str]:
    """Modules of the package that this file imports, also in functions and by `import_module("...")`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "valuefit":
            names = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.split(".")[0] == "valuefit"}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return found - {"valuefit"}


def test_packages_import_only_from_packages_before_them():
    positions = {name: position for position, name in enumerate(PACKAGE_ORDER)}
    for module, path in MODULES.items():
        if module in ("valuefit", "valuefit.__main__"):
            continue
        here = module.split(".")[1]
        for other in imports_of(path):
            there = other.split(".")[1]
            if there != here and (module, other) not in ALLOWED_BACKWARD_IMPORTS:
                assert positions[there] < positions[here], f"{module} imports {other}, which comes after it"


def test_every_allowed_backward_import_exists():
    assert all(other in imports_of(MODULES[module]) for module, other in ALLOWED_BACKWARD_IMPORTS)


def test_there_is_no_import_cycle():
    """Within a package too; `__init__` files import lazily, by name, and are excluded."""
    graph = {
        module: {other for other in imports_of(path) if (module, other) not in ALLOWED_BACKWARD_IMPORTS}
        for module, path in MODULES.items()
        if path.name != "__init__.py"
    }
    done: set[str] = set()

    def visit(module: str, path_so_far: tuple[str, ...]) -> None:
        assert module not in path_so_far, " -> ".join([*path_so_far, module])
        if module not in done:
            for other in graph.get(module, ()):
                visit(other, (*path_so_far, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_solvers_do_not_print_measure_time_or_count_passes():
    for path in (PACKAGE / "solvers").glob("*.py"):
        text = path.read_text()
        assert not re.search(r"\bprint\(|^import time|^from time|perf_counter|max_passes|tol\b", text, re.M), path.name


def test_files_stay_small():
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= 500, f"{path.name} has grown past 500 lines"


def test_the_table_in_architecture_is_the_generated_one():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    assert markdown() in page, "Paste the output of `valuefit solvers --markdown` into ARCHITECTURE.md."


def test_lstd_krylov_pdbg_svrg_and_saga_support_every_problem():
    for name in ("lstd", "krylov", "pdbg", "svrg", "saga"):
        assert set(vf.solvers.registry()[name].refusals) <= {"shards", "device"}  # rows that are not in memory


def test_every_solver_is_in_the_readme():
    page = (ROOT / "README.md").read_text()
    for name in vf.solvers.names():
        assert f"`{name}`" in page


def test_readme_code_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "converged" in done.stdout


def test_help_imports_nothing_slow():
    code = "import sys; from valuefit.cli.main import main; main(['--help'], standalone_mode=False);"
    code += "heavy = {'numpy', 'scipy', 'numba', 'rich', 'matplotlib'} & set(sys.modules); assert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Examples" in done.stdout


def test_the_version_is_the_same_everywhere():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{vf.__version__}"' in text
    assert f"version: {vf.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{vf.__version__}}}" in (ROOT / "docs" / "citing.md").read_text()


def run(*command, **settings):
    done = subprocess.run(command, capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """A folder with the wheel built from the sources, and its installation in `site`."""
    place = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), str(ROOT))
    built = next(place.glob("valuefit-*.whl"))
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place / "site"), str(built))
    return place


@pytest.mark.slow  # quick: an installed wheel evaluates the built-in log; tests/cli runs the demo
def test_an_installed_wheel_runs_the_demo_from_an_empty_folder(wheel, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(wheel / "site"), "COLUMNS": "120"}
    where = run(sys.executable, "-c", "import valuefit; print(valuefit.__file__)", cwd=tmp_path, env=environment)
    assert where.startswith(str(wheel))
    shown = run(sys.executable, "-m", "valuefit", "demo", "--quick", cwd=tmp_path, env=environment)
    for word in ("passes", "seconds", "gap", "status", *vf.solvers.names()):
        assert word in shown
    assert re.search(r"lstd\W+[\d.]+\W+[\d.]+\W+[\d.e-]+\W+converged", shown)


def test_an_installed_wheel_evaluates_the_built_in_log(wheel, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(wheel / "site")}
    where = run(sys.executable, "-c", "import valuefit; print(valuefit.__file__)", cwd=tmp_path, env=environment)
    assert where.startswith(str(wheel))
    shown = run(sys.executable, "-m", "valuefit", "evaluate", "--quiet", cwd=tmp_path, env=environment)
    assert re.match(r"-69\.\d+ \(standard error 0\.\d+, 95% interval", shown)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # quick: an installed wheel evaluates; tests/paper reproduces the figure
def test_an_installed_wheel_reproduces_figure_1_from_an_empty_folder(wheel, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(wheel / "site"), "COLUMNS": "160"}
    shown = run(
        sys.executable, "-m", "valuefit", "reproduce", "random-mdp", "--quick", cwd=tmp_path, env=environment
    )  # fmt: skip
    assert "SAGA" in shown
    assert "passes to 1e-6" in shown
    written = {path.name for path in (tmp_path / "results" / "random-mdp-quick").iterdir()}
    assert written == {"runs", "random-mdp.png", "random-mdp.svg", "table.md", "results.csv"}


def test_an_installed_wheel_writes_a_report_from_an_empty_folder(wheel, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(wheel / "site")}
    code = "import valuefit as vf, numpy as np;"
    code += "log = vf.Transitions.from_arrays(np.arange(6) % 3, np.ones(6), terminated=np.arange(6) % 3 == 2);"
    code += "vf.evaluate(log).report('report.html')"
    run(sys.executable, "-c", code, cwd=tmp_path, env=environment)
    assert "The policy value is" in (tmp_path / "report.html").read_text()


def test_an_unknown_experiment_gives_an_error_message():
    done = subprocess.run([sys.executable, "-m", "valuefit", "reproduce", "figure-7"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "There is no experiment 'figure-7'" in done.stderr


def test_the_command_line_lists_solvers():
    shown = run(sys.executable, "-m", "valuefit", "solvers", "--markdown")
    assert shown.strip() == markdown()
    assert "recursive-lstd" in run(sys.executable, "-m", "valuefit", "solvers")


def test_solve_is_the_function_after_any_import():
    code = "import valuefit.cli.demo, valuefit.paper.reproduce, valuefit as vf; assert callable(vf.solve); "
    code += "vf.solvers.names()"
    run(sys.executable, "-c", code)
    for name in vf.__all__:
        assert getattr(vf, name) is not None


def test_docstrings_say_what_is_returned_or_done():
    """None begins as if a sentence before it had named what it is about."""
    vague = re.compile(r"(Of|Those of|That of|The same)\b")
    offenders = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and vague.match(ast.get_docstring(node) or "")
    ]
    assert offenders == []
