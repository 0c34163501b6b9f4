"""Check the built pages: links between them resolve, each links to the glossary, nothing comes from the network.

python docs/check_links.py docs/_build/html
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href"}  # what a browser fetches without being asked


class Page(HTMLParser):
    """The targets (`ids`) and the references of a page: (tag, address)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.references: list[tuple[str, str]] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := values.get(name))}
        address = values.get(LOADED.get(tag, "href"))
        if address and (tag in LOADED or tag == "a"):
            self.references.append((tag, address))


@cache
def read(path: Path) -> Page:
    return Page(path)


def faults_of(path: Path) -> list[str]:
    """One line for each reference of this page that leads nowhere."""
    faults = []
    for tag, address in read(path).references:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            if tag != "a":
                faults.append(f"{path}: {tag} is loaded from {address}")
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not target.is_file():
            faults.append(f"{path}: there is no {address}")
        elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in read(target).ids:
            faults.append(f"{path}: {address} has no such heading")
    linked = {urlsplit(address).path for tag, address in read(path).references if tag == "a"}
    if path.name != "glossary.html" and not any(target.endswith("glossary.html") for target in linked):
        faults.append(f"{path}: has no link to the glossary")
    return faults


def main(folder: str) -> None:
    """Exit with a list of the faults, if there are any."""
    root = Path(folder).resolve()
    pages = sorted(page for page in root.rglob("*.html") if "_static" not in page.relative_to(root).parts)
    faults = [fault for page in pages for fault in faults_of(page)]
    if faults or not pages:
        sys.exit("\n".join(faults) or f"There are no pages in {folder}.")
    print(f"Checked the links of {len(pages)} pages")


if __name__ == "__main__":
    main(sys.argv[1])
