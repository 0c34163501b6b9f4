"""Docstrings of valuefit as reStructuredText: they are written as plain text, to be read in the source too."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

FORWARD = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")  # what newer Sphinx makes of an alias inside a union
QUOTED = re.compile(r"(`[^`]+`)")


def as_rst(text: str) -> str:
    """Text with `code` in literal quotes, and nothing else that reStructuredText would take for markup."""
    parts = QUOTED.split(text)
    parts[0::2] = [re.sub(r"([\\*|]|_(?=\W|$))", r"\\\1", part) for part in parts[0::2]]
    parts[1::2] = [f"`{part}`" for part in parts[1::2]]
    return "".join(parts)


def parameters(thing: Any) -> set[str]:
    """Names that a docstring may explain: arguments and fields."""
    try:
        found = set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        found = set()
    if dataclasses.is_dataclass(thing):
        found |= {field.name for field in dataclasses.fields(thing)}
    return found


def with_lists(paragraph: str, names: set[str]) -> list[str]:
    """The paragraph, with what follows "name:" or "name, name:" as entries of a list where these are arguments."""
    starts = []
    for match in re.finditer(r"(?:^|(?<=[.;?)] ))(\w+(?:, \w+)*): ", paragraph):
        if all(name in names for name in match[1].split(", ")):
            starts.append(match)
    if not starts:
        return [as_rst(paragraph)]
    lines = [as_rst(paragraph[: starts[0].start()].strip()), ""] if starts[0].start() else []
    for match, end in zip(starts, [*(match.start() for match in starts[1:]), len(paragraph)], strict=True):
        said = paragraph[match.end() : end].strip()
        listed = ", ".join(f"``{name}``" for name in match[1].split(", "))
        lines.append(f"* {listed}: {as_rst(said)}")
    return lines


def rewrite(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """What Sphinx calls with every docstring; `lines` is changed in place."""
    names = parameters(thing)
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip())
    out: list[str] = []
    for paragraph in filter(None, paragraphs):
        out += [*with_lists(" ".join(paragraph.split()), names), ""]
    lines[:] = out


def sign(app: Any, what: str, name: str, thing: Any, options: Any, signature: str, returns: str) -> Any:
    """Signatures without noise: results are made by valuefit, so nobody needs their constructors."""
    if what == "class" and dataclasses.is_dataclass(thing) and ".solver" not in name:
        return "", None
    return tuple(None if text is None else FORWARD.sub(r"\1", text) for text in (signature, returns))


def list_solvers(app: Any, page: str, source: list[str]) -> None:
    """Put every solver that there is on the page of solvers, so that a new one needs no line there."""
    from valuefit.solvers import registry

    entries = "".join(
        f"\n## `{name}`\n\n```{{eval-rst}}\n.. autoclass:: valuefit.solvers.{kind.__name__}\n```\n"
        for name, kind in registry().items()
    )
    source[0] = source[0].replace("<!-- every solver -->", entries)


def setup(app: Any) -> dict[str, Any]:
    """The hooks."""
    app.connect("autodoc-process-signature", sign)
    app.connect("autodoc-process-docstring", rewrite)
    app.connect("source-read", list_solvers)
    return {"parallel_read_safe": True}
