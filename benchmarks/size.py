"""The size of valuefit and of one evaluation, now and at another commit, as a Markdown table.

    python -m benchmarks.size [--against COMMIT] [--full]

What is counted, in `src/valuefit` unless stated:
- lines, with blank ones and comments, by package, of the sources and of the tests;
- numeric constants: names that a module binds, outside functions and classes, to an expression of number literals,
  arithmetic and other names, or to a tuple or list of such, with at least one literal. Booleans, text, arrays and what
  a call returns are not counted, nor names bound to another name alone. --full lists them;
- imports: the modules that `valuefit.evaluation.evaluate` imports directly or through others, also in functions but
  not for type checking alone; with their lines;
- one `evaluate` of a policy by a log of 1,000 steps, the second one in a process: the modules that have a function
  called, and the hand-overs, calls of a function of another module than the call before, both within valuefit
  (`sys.setprofile`, which does not see compiled functions);
- tests of the storage: `isinstance` with a class whose name says where a log, its rows or its sums are (STORAGES);
- surgery: `copy.copy`, `__dict__`, and `vars(...)` that is searched or indexed for what an object has computed;
- functions of more than 70 lines, from `def` to the last line, and the longest one without a docstring;
- the identifier `found`.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LONG_FUNCTION = 70  # lines
ENTRY = "valuefit.evaluation.evaluate"
STORAGES = re.compile(r"Shard|Stream|Parts|Moment|Device|Tensor|Torch|Rows|Kernel|Frame|Sketch|Exact")
SURGERY = re.compile(r"\bcopy\.copy\(|__dict__|\bin vars\(|\bvars\([^()]*\)(?:\[|\.get\(|\.pop\(|\.keys\()|<= vars\(")
Function = ast.FunctionDef | ast.AsyncFunctionDef

# Evaluates a log of 1,000 steps under sys.setprofile and prints the number of modules and of hand-overs.
PROFILE = """
import sys
import numpy as np
import valuefit as vf
rng, steps = np.random.default_rng(0), 1000
log = vf.Transitions.from_arrays(
    rng.standard_normal((steps, 3)), rng.standard_normal(steps), terminated=np.arange(steps) % 50 == 49,
    action=rng.integers(0, 2, steps), behaviour_prob=np.full(steps, 0.5),
)
policy = {0: 0.4, 1: 0.6}
vf.evaluate(log, discount=0.9, policy=policy)
folder, last, modules, changes = vf.__path__[0], None, set(), 0
def profile(frame, event, argument):
    global last, changes
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(folder):
        changes += last is not None and name != last
        last = name
        modules.add(name)
sys.setprofile(profile)
vf.evaluate(log, discount=0.9, policy=policy)
sys.setprofile(None)
print(len(modules), changes)
"""


class Sources:
    """The modules of a folder of sources, parsed."""

    def __init__(self, root: Path) -> None:
        files = {path.relative_to(root / "src"): path.read_text() for path in sorted((root / "src").rglob("*.py"))}
        self.texts = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): files[path] for path in files}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}

    def functions(self) -> list[tuple[str, int, bool]]:
        """Module and name, lines, and whether there is a docstring, of every function."""
        return [
            (f"{module}.{node.name}", int(node.end_lineno or 0) - node.lineno + 1, bool(ast.get_docstring(node)))
            for module, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, Function)
        ]

    def constants(self) -> list[str]:
        """Module and name of every numeric constant."""
        return [
            f"{module}.{target.id}"
            for module, tree in self.trees.items()
            for targets, value in map(assigned, tree.body)
            if value is not None and is_numeric(value) and any(map(is_number, ast.walk(value)))
            for target in targets
            if isinstance(target, ast.Name)
        ]

    def closure(self, entry: str) -> set[str]:
        """A module and those that it imports, directly or through others."""
        reached, waiting = set(), [entry]
        while waiting:
            module = waiting.pop()
            if module in self.trees and module not in reached:
                reached.add(module)
                waiting += imports_of(self.trees[module])
        return reached

    def storage_tests(self) -> list[str]:
        """Module and classes of every `isinstance` on a storage."""
        calls = ((module, node) for module, tree in self.trees.items() for node in ast.walk(tree))
        tests = [
            (module, ast.unparse(node.args[1]))
            for module, node in calls
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
        ]
        return [f"{module}: {classes}" for module, classes in tests if STORAGES.search(classes)]

    def surgery(self) -> int:
        """Copies of objects and uses of their dictionaries."""
        return sum(len(SURGERY.findall(text)) for text in self.texts.values())

    def count_of(self, word: str) -> int:
        """How often this identifier occurs."""
        lines = (io.StringIO(text).readline for text in self.texts.values())
        return sum(
            (token.type, token.string) == (tokenize.NAME, word)
            for one in lines
            for token in tokenize.generate_tokens(one)
        )


def assigned(node: ast.stmt) -> tuple[list[ast.expr], ast.expr | None]:
    """The targets and the value of an assignment; none of other statements."""
    if isinstance(node, ast.Assign):
        return (list(node.targets), node.value)
    return ([node.target], node.value) if isinstance(node, ast.AnnAssign) else ([], None)


def is_numeric(node: ast.expr) -> bool:
    """Whether an expression consists of numbers, names and arithmetic, or is a tuple or list of such."""
    if isinstance(node, ast.Tuple | ast.List):
        return all(map(is_numeric, node.elts))
    if isinstance(node, ast.BinOp):
        return is_numeric(node.left) and is_numeric(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_numeric(node.operand)
    return isinstance(node, ast.Name | ast.Attribute) or is_number(node)


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def imports_of(tree: ast.AST) -> Iterator[str]:
    """The modules, and what may be modules, that are imported, but for those of `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        else:
            yield from imports_of(node)


def lines_by_folder(folder: Path) -> Counter[str]:
    """Lines of Python by the folder below this one; "" for files directly in it."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        inside = path.relative_to(folder).parts
        counts[inside[0] if len(inside) > 1 else ""] += len(path.read_text().splitlines())
    return counts


def profiled(root: Path) -> list[int]:
    """Modules and hand-overs of an evaluation with the sources of this folder."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "NUMBA_NUM_THREADS": "1"}  # calls of one thread
    done = subprocess.run([sys.executable, "-c", PROFILE], capture_output=True, text=True, check=True, env=environment)
    return [int(word) for word in done.stdout.split()]


def measure(root: Path) -> dict[str, Any]:
    """All figures of a checkout, in the order in which they are shown."""
    sources, tests = Sources(root), lines_by_folder(root / "tests")
    source = lines_by_folder(root / "src" / "valuefit")
    closure, functions, (visited, changes) = sources.closure(ENTRY), sources.functions(), profiled(root)
    longest = max((lines, name) for name, lines, documented in functions if not documented)
    return {
        **{f"{name or 'top level'}, source lines": count for name, count in sorted(source.items())},
        "**source lines**": source.total(),
        **{f"{name or 'top level'}, test lines": count for name, count in sorted(tests.items())},
        "**test lines**": tests.total(),
        "source modules": len(sources.texts),
        "numeric constants at module level": len(sources.constants()),
        "modules visited by an `evaluate`": visited,
        "hand-overs of an `evaluate`": changes,
        f"modules imported for `{ENTRY}`": len(closure),
        "lines of these modules": sum(len(sources.texts[name].splitlines()) for name in closure),
        "`isinstance` tests on storages": len(sources.storage_tests()),
        "`copy.copy`, `__dict__` and the like": sources.surgery(),
        f"functions of more than {LONG_FUNCTION} lines": sum(lines > LONG_FUNCTION for _, lines, _ in functions),
        "longest function without a docstring": f"{longest[0]} ({longest[1].removeprefix('valuefit.')})",
        "identifier `found`": sources.count_of("found"),
    }


def measure_commit(commit: str) -> dict[str, Any]:
    """The figures of another commit, from a worktree in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            return measure(tree)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def table(columns: dict[str, dict[str, Any]]) -> str:
    """A Markdown table with a column for each checkout; 0 for packages that one does not have."""
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    rows = [["", *columns], ["---", *["---:"] * len(columns)]]
    for name in names:
        figures = [column.get(name, 0) for column in columns.values()]
        rows.append([name, *(f"{figure:,}" if isinstance(figure, int) else figure for figure in figures)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the size of valuefit and of one evaluation.")
    parser.add_argument("--against", metavar="COMMIT", help="also that of another commit")
    parser.add_argument("--full", action="store_true", help="list constants, storage tests and long functions too")
    given = parser.parse_args()
    before = {given.against: measure_commit(given.against)} if given.against else {}
    print(table(before | {"now": measure(ROOT)}))
    if given.full:
        sources = Sources(ROOT)
        long = [f"{name}: {lines}" for name, lines, _ in sources.functions() if lines > LONG_FUNCTION]
        lists = {"Constants": sources.constants(), "Storage tests": sources.storage_tests(), "Long functions": long}
        for title, entries in lists.items():
            print(f"\n{title}\n" + "\n".join(entries))


if __name__ == "__main__":
    main()
