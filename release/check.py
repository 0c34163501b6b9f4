"""Build the sdist and the wheel, check their metadata and contents, and try the wheel in empty environments.

python -m release.check                          # with the python3.11, python3.12, ... that are found
python -m release.check /opt/python3.13/bin/python3 ...

The environment needs `build` and `twine` (extra `release`). The files are left in `dist/`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = f"{PROJECT['name']}-{PROJECT['version']}"
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")
SUPPORTED = [match[1] for one in PROJECT["classifiers"] if (match := CLASSIFIER.fullmatch(one))]
# what the wheel has besides the package
WHEEL_METADATA = {
    f"{NAME}.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
}


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """What the command printed; exits with that if it failed."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed with exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def build() -> tuple[Path, Path]:
    """The sdist and the wheel that is built from it, in `dist/`."""
    dist = ROOT / "dist"
    for old in dist.glob(f"{PROJECT['name']}-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", dist)
    sdist, wheel = dist / f"{NAME}.tar.gz", dist / f"{NAME}-py3-none-any.whl"
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    return sdist, wheel


def differences(found: set[str], expected: set[str]) -> list[str]:
    """One line for each file that is there and should not be, or the other way round."""
    return [f"has {name}, which git does not track" for name in sorted(found - expected)] + [
        f"lacks {name}" for name in sorted(expected - found)
    ]


def check_contents(sdist: Path, wheel: Path, tracked: set[str]) -> None:
    """The sdist has the tracked files, the wheel those of the package; nothing else, such as caches."""
    with tarfile.open(sdist) as archive:
        files = {one.name.removeprefix(f"{NAME}/") for one in archive.getmembers() if one.isfile()}
    package = {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    with zipfile.ZipFile(wheel) as archive:
        modules = set(archive.namelist())
    faults = [f"{sdist.name} {line}" for line in differences(files, tracked | {"PKG-INFO"})]
    faults += [f"{wheel.name} {line}" for line in differences(modules, package | WHEEL_METADATA)]
    if faults:
        sys.exit("\n".join(faults))
    for path, names in ((sdist, files), (wheel, modules)):
        print(f"{path.name}: {len(names)} files, {path.stat().st_size / 1e6:.1f} MB")


def front_page() -> tuple[str, str]:
    """The lines of Python on the front page of the documentation, and what they print."""
    blocks = re.search(r"```python\n(.*?)```\s*```text\n(.*?)```", (ROOT / "docs" / "index.md").read_text(), re.S)
    assert blocks, "docs/index.md has no Python followed by its output"
    return blocks[1], blocks[2]


def rounded(text: str) -> str:
    """The text with fractions of three digits; further digits depend on the machine."""
    return re.sub(r"\d+\.\d+", lambda match: f"{float(match[0]):.3g}", text)


def try_wheel(python: str, wheel: Path) -> str:
    """Install the wheel alone in a new environment and use it in an empty folder; a line that says what ran."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        environment, empty = Path(folder) / "environment", Path(folder) / "empty"
        empty.mkdir()
        run(python, "-m", "venv", environment)
        bin = environment / "bin"
        run(bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        run(bin / "python", "-m", "pip", "check")
        run(bin / "valuefit", "demo", "--quick", cwd=empty)
        value = run(bin / "valuefit", "evaluate", "--quiet", cwd=empty).strip()
        code, expected = front_page()
        printed = run(bin / "python", "-c", code, cwd=empty)
        if rounded(printed) != rounded(expected):
            sys.exit(f"With {python} the front page printed\n{printed}instead of\n{expected}")
        version = run(bin / "python", "-c", "import platform; print(platform.python_version())").strip()
        if written := list(empty.iterdir()):
            sys.exit(f"With {python} files were written into the current folder: {', '.join(map(str, written))}")
    return f"Python {version}: demo, evaluate ({value}) and front page in {time.perf_counter() - began:.0f} s"


def find_pythons() -> list[str]:
    """The `python3.X` on the path, for each supported 3.X, that start; says which are missing."""
    found = []
    for version in SUPPORTED:
        python = shutil.which(f"python{version}")
        if python and subprocess.run([python, "--version"], capture_output=True).returncode == 0:
            found.append(python)
        else:
            print(f"Not checked: python{version} was not found. Name it: make release-check PYTHONS=/path/to/it")
    return found


def main(pythons: list[str]) -> None:
    """Exit with a sentence at the first fault."""
    sdist, wheel = build()
    check_contents(sdist, wheel, set(run("git", "ls-files").splitlines()))
    pythons = pythons or find_pythons()
    if not pythons:
        sys.exit("The wheel was not tried, because no supported Python was found.")
    for python in pythons:
        print(try_wheel(python, wheel), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
