"""Convert the plain-text docstrings of valuefit to reStructuredText for Sphinx."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

FORWARD = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")  # newer Sphinx shows a type alias in a union like this
QUOTED = re.compile(r"(`[^`]+`)")


def as_rst(text: str) -> str:
    """Turn `code` into literals and escape everything else that reStructuredText would read as markup."""
    parts = QUOTED.split(text)
    parts[0::2] = [re.sub(r"([\\*|]|_(?=\W|$))", r"\\\1", part) for part in parts[0::2]]
    parts[1::2] = [f"`{part}`" for part in parts[1::2]]
    return "".join(parts)


def parameters(thing: Any) -> set[str]:
    """Names of the arguments and dataclass fields of a function or class."""
    try:
        found = set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        found = set()
    if dataclasses.is_dataclass(thing):
        found |= {field.name for field in dataclasses.fields(thing)}
    return found


def with_lists(paragraph: str, names: set[str]) -> list[str]:
    """The paragraph as lines; "name: text" and "name, name: text" become list entries if the names are in `names`."""
    starts = []
    for match in re.finditer(r"(?:^|(?<=[.;?)] ))(\w+(?:, \w+)*): ", paragraph):
        if all(name in names for name in match[1].split(", ")):
            starts.append(match)
    if not starts:
        return [as_rst(paragraph)]
    lines = [as_rst(paragraph[: starts[0].start()].strip()), ""] if starts[0].start() else []
    for match, end in zip(starts, [*(match.start() for match in starts[1:]), len(paragraph)], strict=True):
        text = paragraph[match.end() : end].strip()
        listed = ", ".join(f"``{name}``" for name in match[1].split(", "))
        lines.append(f"* {listed}: {as_rst(text)}")
    return lines


def rewrite(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Hook for every docstring; changes `lines` in place."""
    names = parameters(thing)
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip())
    out: list[str] = []
    for paragraph in filter(None, paragraphs):
        out += [*with_lists(" ".join(paragraph.split()), names), ""]
    lines[:] = out


def sign(app: Any, what: str, name: str, thing: Any, options: Any, signature: str, returns: str) -> Any:
    """Hook for signatures: hide the constructors of result classes, which users do not call."""
    if what == "class" and dataclasses.is_dataclass(thing) and ".solver" not in name:
        return "", None
    return tuple(None if text is None else FORWARD.sub(r"\1", text) for text in (signature, returns))


def list_solvers(app: Any, page: str, source: list[str]) -> None:
    """Hook for pages: insert an entry for every registered solver into the page of solvers."""
    from valuefit.solvers import registry

    entries = "".join(
        f"\n## `{name}`\n\n```{{eval-rst}}\n.. autoclass:: valuefit.solvers.{kind.__name__}\n```\n"
        for name, kind in registry().items()
    )
    source[0] = source[0].replace("<!-- every solver -->", entries)


def setup(app: Any) -> dict[str, Any]:
    """Register the hooks."""
    app.connect("autodoc-process-signature", sign)
    app.connect("autodoc-process-docstring", rewrite)
    app.connect("source-read", list_solvers)
    return {"parallel_read_safe": True}
