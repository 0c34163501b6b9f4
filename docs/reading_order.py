"""The order of the examples of the gallery: that of their links on its page."""

from __future__ import annotations

import re
from pathlib import Path


class ReadingOrder:
    """A key to sort the scripts of a folder by, for Sphinx-Gallery, which also makes one without a folder as a test."""

    def __init__(self, folder: str) -> None:
        self.header = Path(folder) / "GALLERY_HEADER.rst"

    def __call__(self, file: str) -> int:
        links = re.findall(r":doc:`([^`]+)`", self.header.read_text())
        name = Path(file).stem
        return links.index(name) if name in links else len(links)
