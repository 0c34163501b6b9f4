"""Write variance_reduction.ipynb from the script of the gallery: `python docs/teaching/make_notebook.py`.

The notebook has no outputs. Text blocks of the script are reStructuredText, of which this knows what they use.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPT = HERE.parent.parent / "examples" / "gallery" / "teaching" / "variance_reduction.py"
NOTEBOOK = HERE / "variance_reduction.ipynb"


def as_markdown(text: str) -> str:
    """Headings, displayed and inline formulas, and code, from reStructuredText to Markdown."""
    text = re.sub(r"^(.+)\n=+$", r"# \1", text, flags=re.M)
    text = re.sub(r"^(.+)\n-+$", r"## \1", text, flags=re.M)
    text = re.sub(r"^\.\. math::\s+(.+(?:\n .+)*)$", lambda match: f"$${match[1]}$$", text, flags=re.M)
    text = re.sub(r":math:`([^`]+)`", lambda match: f"${match[1]}$", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def cell(kind: str, text: str) -> dict[str, Any]:
    """A cell of a notebook; kind: markdown or code."""
    lines = text.strip("\n").splitlines(keepends=True)
    extra = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": lines, **extra}


def cells_of(block: str) -> list[dict[str, Any]]:
    """The cells of a block of the script: its leading comment as text, unless that is a solution, and its code."""
    comment = re.match(r"(?:#.*\n)*", block)
    assert comment is not None
    if block.startswith("# Solution"):
        return [cell("code", block)]
    text = re.sub(r"^# ?", "", comment[0], flags=re.M)
    code = block[comment.end() :].strip("\n")
    return [cell("markdown", as_markdown(text)), *([cell("code", code)] if code else [])]


def notebook(script: str) -> str:
    """The notebook of a script as JSON text."""
    head, *blocks = re.split(r"^# %%\n", script, flags=re.M)
    introduction = ast.get_docstring(ast.parse(head)) or ""
    code = head.split('"""', 2)[2]
    cells = [cell("markdown", as_markdown(introduction)), cell("code", code)]
    cells += [part for block in blocks for part in cells_of(block)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    found = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(SCRIPT.read_text()))
