"""The scripts of the gallery and the notebook for teachers run without warnings, draw and print what they show."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from helpers.problems import ROOT

GALLERY = ROOT / "examples" / "gallery"
TEACHING = ROOT / "docs" / "teaching"
SCRIPTS = {str(path.relative_to(GALLERY).with_suffix("")): path for path in sorted(GALLERY.rglob("*.py"))}

# What a script must print: the claim of its page.
EXPECTED_OUTPUT = {
    "bairds_star": r"TD    diverged(.|\n)*SVRG  converged(.|\n)*SAGA  converged",
    "choosing_features": r"verdict: sound",
    "clinical_log": r"more standard(.|\n)*verdict: sound\noften intensive(.|\n)*do not use\n(.|\n)*only an effective",
    "figure_1": r"ridge = 0 +widened +SVRG +\d+ (.|\n)*ridge = L +widened +SAGA +\d+ ",
    "figures_2_and_3": r"n =  20000, ridge = L +SAGA  gap \d\.\de-0[789]",
    "larger_than_memory": r"240,000 steps in \d+ shards(.|\n)*verdict: sound(.|\n)*was not loaded",
    "learned_policy": r"its own episodes: mean gain \d\.\d+, better in ([89]|1[012]) of 12, of which sound ([789]|1.)"
    r"\non held-out episodes: mean gain -?0\.\d+, better in [01] of 12",
    "reading_the_report": r"warn  features suffice",
    "recommender_log": r"(?s)verdict: sound.*verdict: sound",
    "teaching/variance_reduction": r"gap of SVRG: \d\.\de-(0[7-9]|1\d)\n",
    "two_policies": r"service from wear 5 - service from wear 6: 0\.\d+, standard error 0\.\d+, 95% interval 0\.\d",
    "wrong_to_right": r"looks like a time limit(.|\n)*features cannot express(.|\n)*verdict: sound",
}
# The others take 3 to 50 seconds each and call functions that these and other quick tests call, too. The script for
# teachers has the same code as its notebook, which runs below.
QUICK = {"choosing_features", "learned_policy", "two_policies", "wrong_to_right"}

# Runs the script given as argument with all figures kept, and fails if it draws none or an empty one.
RUNNER = """
import runpy, sys
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
plt.show = lambda: None
runpy.run_path(sys.argv[1], run_name="__main__")
figures = [plt.figure(number) for number in plt.get_fignums()]
assert figures and all(axis.has_data() for figure in figures for axis in figure.axes)
"""


def run(script, folder):
    """What the script prints."""
    command = [sys.executable, "-W", "error", "-c", RUNNER, str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cases():
    """The names of the scripts; all but the quick ones are marked slow."""
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in SCRIPTS]


@pytest.mark.parametrize("name", cases())
def test_a_script_of_the_gallery_draws_and_prints_what_its_page_says(name, tmp_path):
    shown = run(SCRIPTS[name], tmp_path)
    assert re.search(EXPECTED_OUTPUT[name], shown), shown


def test_every_script_is_listed_on_the_page_of_the_gallery_and_short():
    assert SCRIPTS.keys() == EXPECTED_OUTPUT.keys()
    page = (GALLERY / "GALLERY_HEADER.rst").read_text()
    assert set(re.findall(r":doc:`([^`]+)`", page)) == SCRIPTS.keys()
    for name, path in SCRIPTS.items():
        assert len(path.read_text().splitlines()) <= (300 if name.startswith("teaching/") else 140), name


def cells(kind):
    """The texts of the cells of the notebook of this kind."""
    notebook = json.loads((TEACHING / "variance_reduction.ipynb").read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_the_cells_of_the_notebook_run_in_order_and_their_assertions_hold(tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join(cells("code")))
    shown = run(script, tmp_path)
    assert re.search(EXPECTED_OUTPUT["teaching/variance_reduction"], shown), shown


def test_every_exercise_of_the_notebook_has_a_solution_that_asserts_numbers():
    exercises = [text for text in cells("markdown") if text.startswith("## Exercise")]
    solutions = [code for code in cells("code") if code.startswith("# Solution")]
    assert len(exercises) == len(solutions) == 7
    assert all(re.search(r"^\s*assert ", code, re.M) for code in solutions)
    assert not any(re.search(r":math:|``|^\.\. ", text, re.M) for text in cells("markdown"))


def test_svrg_without_its_variance_reduction_fails_the_assertions(tmp_path):
    solutions = cells("code")
    place = next(place for place, code in enumerate(solutions) if "def svrg" in code)
    wrong = solutions[place].replace("(B_t(z, t) - B_t(snapshot, t) + full)", "B_t(z, t)")
    assert wrong != solutions[place]
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join([*solutions[:place], wrong]))
    with pytest.raises(AssertionError, match=r"assert gaps_svrg\[-1\] < 1e-6"):
        run(script, tmp_path)


def test_the_notebook_is_the_one_made_from_the_script():
    spec = importlib.util.spec_from_file_location("make_notebook", TEACHING / "make_notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.notebook(SCRIPTS["teaching/variance_reduction"].read_text())
    assert text == module.NOTEBOOK.read_text(), "Run `python docs/teaching/make_notebook.py`."
