"""`release/`: the lowest versions come from pyproject.toml, and files that do not belong into a release are found."""

import sys
import tarfile
import zipfile

import pytest

from helpers.problems import ROOT

sys.path.insert(0, str(ROOT))  # the folder of `release`

from release import check, lowest

TRACKED = {"pyproject.toml", "src/valuefit/__init__.py", "src/valuefit/py.typed"}


def write_release(folder, extra=()):
    """An sdist and a wheel of the files in TRACKED, and `extra` in the package."""
    sdist, wheel = folder / "valuefit.tar.gz", folder / "valuefit.whl"
    (folder / "file").write_text("")
    package = [name for name in TRACKED if name.startswith("src/")]
    with tarfile.open(sdist, "w:gz") as archive:
        for name in (*TRACKED, "PKG-INFO", *(f"src/valuefit/{one}" for one in extra)):
            archive.add(folder / "file", f"{check.NAME}/{name}")
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*package, *(f"src/valuefit/{one}" for one in extra)):
            archive.writestr(name.removeprefix("src/"), "")
        for name in check.WHEEL_METADATA:
            archive.writestr(name, "")
    return sdist, wheel


def test_exactly_the_tracked_files_are_accepted(tmp_path, capsys):
    check.check_contents(*write_release(tmp_path), TRACKED)
    assert "valuefit.whl: 7 files" in capsys.readouterr().out


def test_a_cache_in_a_release_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"valuefit\.whl has valuefit/__pycache__/x\.pyc, which git does not track"):
        check.check_contents(*write_release(tmp_path, ["__pycache__/x.pyc"]), TRACKED)


def test_a_missing_file_in_a_release_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"valuefit\.tar\.gz lacks src/valuefit/new\.py"):
        check.check_contents(*write_release(tmp_path), {*TRACKED, "src/valuefit/new.py"})


def test_a_failing_command_ends_the_check_with_its_output():
    with pytest.raises(SystemExit, match="exit code 3:\nwrong"):
        check.run("sh", "-c", "echo wrong; exit 3")


def test_the_supported_versions_and_the_front_page_are_found():
    assert check.SUPPORTED[0] == "3.11"
    code, output = check.front_page()
    assert "vf.evaluate" in code
    assert output.startswith("PolicyValue(")


def test_outputs_are_compared_to_three_digits():
    assert check.rounded("value 0.69822 of 500") == check.rounded("value 0.69824 of 500")
    assert check.rounded("value 0.698") != check.rounded("value 0.699")


def test_the_lowest_versions_are_those_of_the_bounds():
    extras = {extra: [] for extra in lowest.EXTRAS} | {"plot": ["matplotlib>=3.9"], "minari": ["minari[hdf5]>=0.5"]}
    found = lowest.requirements({"dependencies": ["numpy>=2.0"], "optional-dependencies": extras})
    assert found == ["matplotlib==3.9", "minari[hdf5]==0.5", "numpy==2.0", *lowest.COMPANIONS]


@pytest.mark.parametrize("requirement", ["numpy", "numpy>=2,<3", "numpy==2.0", "numpy~=2.0"])
def test_a_requirement_without_one_lower_bound_is_refused(requirement):
    with pytest.raises(ValueError, match=r"is not of the form name>=version"):
        lowest.lowest(requirement)


def test_every_requirement_of_this_version_has_a_lower_bound():
    project = lowest.tomllib.loads(lowest.PYPROJECT.read_text())["project"]
    assert any(one.startswith("numpy==") for one in lowest.requirements(project))
