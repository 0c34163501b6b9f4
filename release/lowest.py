"""Print the lowest supported version of each dependency, one requirement a line, for `pip install -r`.

python -m release.lowest > lowest.txt

The bounds are those of pyproject.toml: of the package itself and of the extras that its tests need.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
EXTRAS = ("plot", "files", "minari", "dask", "dev")
# packages that the lowest versions do not bound, but whose newest ones warn about them
COMPANIONS = ("pyparsing<3.3",)  # later ones deprecate what matplotlib 3.9 calls
BOUND = re.compile(r"(?P<name>[\w.-]+(\[[\w,-]+\])?)>=(?P<version>[\w.]+)")


def lowest(requirement: str) -> str:
    """`numpy>=1.26` as `numpy==1.26`; anything but one lower bound is refused."""
    found = BOUND.fullmatch(requirement)
    if found is None:
        raise ValueError(f"{requirement!r} in pyproject.toml is not of the form name>=version. Write it so.")
    return f"{found['name']}=={found['version']}"


def requirements(project: dict[str, Any]) -> list[str]:
    """The lowest versions of the dependencies and of `EXTRAS`; `project` is the table of this name."""
    extras = project["optional-dependencies"]
    wanted = {*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])}
    return [*sorted(lowest(one) for one in wanted), *COMPANIONS]


if __name__ == "__main__":
    print("\n".join(requirements(tomllib.loads(PYPROJECT.read_text())["project"])))
