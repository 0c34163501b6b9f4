"""A short run of `fuzz/faults.py`: after kill -9, a full disk or many writers, files are old or new, never between."""

import re
import subprocess
import sys

from helpers.problems import ROOT


def test_files_survive_kills_full_disks_read_only_folders_and_many_writers():
    command = [sys.executable, "-m", "fuzz", "--only", "faults", "--cases", "16", "--seconds", "8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {kind: int(number) for number, kind in re.findall(r"^ *(\d+) (.*)$", done.stdout, re.M)}
    for kind in ("full disks", "read-only folders", "paths with ten writers"):
        assert counts[kind] >= 8
    assert counts["reads during writes"] > 0
