"""
The paper's Figure 1: Random MDP
================================

Du et al. (2017) compare five methods on a random Markov decision process. ``valuefit reproduce`` tunes the steps of
each method, runs the best ones on other seeds, and draws the figure. ``--quick`` takes a smaller problem (50 states
and 2,000 steps instead of 400 and 20,000) and fewer steps to tune.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

with tempfile.TemporaryDirectory() as folder:
    command = ["-m", "valuefit", "reproduce", "random-mdp", "--quick", "--jobs", "2", "--out", folder]
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    table = (Path(folder) / "table.md").read_text()
    picture = plt.imread(Path(folder) / "random-mdp.png")

# %%
# Passes to a gap of 1e-6 (- if it was not reached), and the gap at the end, from ``table.md``:
for line in table.splitlines()[2:]:
    panel, grid, method, _, _, _, passes, _, gap, *_ = (cell.strip() for cell in line.strip("|").split("|"))
    if not panel.startswith("---"):
        print(f"{panel:16} {grid:8} {method:14} {passes:15} {gap}")

# %%
# SVRG and SAGA fall along straight lines, with and without ridge; GTD2 and TD stall at the noise of their single
# steps. The upper row has the step grid that the paper prints, which is too small without ridge; the lower row a
# wider one. The page on :doc:`reproducing the paper </reproduction>` has the full size and all numbers.
DPI = 150  # of the file, so that its pixels are shown one to one
height, width, _ = picture.shape
figure = plt.figure(figsize=(width / DPI, height / DPI), dpi=DPI)
axis = figure.add_axes((0, 0, 1, 1))
axis.imshow(picture)
axis.set_axis_off()
plt.show()
