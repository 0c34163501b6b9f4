"""What loading takes, against what `load` expects of each format."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import valuefit as vf
from valuefit.data import load as module
from valuefit.data.readers import formats

CHILD = """
import json, sys
import numpy, h5py, pandas, pyarrow.csv, pyarrow.parquet
import valuefit as vf

def measured(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))

vf.load(sys.argv[2])
open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
before = measured("VmRSS")
log = vf.load(sys.argv[1], limit=2**40)
print(json.dumps(measured("VmHWM") - before))
"""


def columns(n, width):
    rng = np.random.default_rng(0)
    numbers = {f"obs_{k}": rng.normal(size=n) for k in range(width)}
    return {**numbers, "reward": rng.normal(size=n), "terminated": np.arange(n) % 50 == 49}


def write(path, n, width):
    frame = pd.DataFrame(columns(n, width))
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        obs = frame[[f"obs_{k}" for k in range(width)]].to_numpy()
        np.savez(path, obs=obs, reward=frame["reward"], terminated=frame["terminated"])
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("width", [2, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet", ".npz"])
def test_loading_takes_at_most_what_is_expected(kind, width, tmp_path):
    n = (8 << 20) // (8 * width) // (3 if kind == ".jsonl" else 1)
    path, small = write(tmp_path / f"log{kind}", n, width), write(tmp_path / f"small{kind}", 100, width)
    found = subprocess.run([sys.executable, "-c", CHILD, path, small], capture_output=True, text=True, check=True)
    contents = n * (8 * width + 9)
    form = formats()[kind]
    copies = form.copies * (2 if width == 2 and form.scan is None else 1)
    fixed = 16 << 20  # of readers, whatever the size
    assert json.loads(found.stdout) <= copies * contents + fixed


def test_text_that_does_not_fit_is_refused_and_fits_as_parquet(tmp_path, monkeypatch):
    n, settings = 4000, {"features": "fourier:order=1", "discount": 0.9}
    path, npz = write(tmp_path / "log.csv", n, 2), write(tmp_path / "log.npz", n, 2)
    expected = vf.evaluate(str(path), **settings).policy_value.estimate
    monkeypatch.setattr(module, "memory_limit", lambda: 100 * n)
    message = (
        r"Loading .*log.csv takes up to 6 times its contents, .* or more, but half of the memory is 390.6 KiB. Con"
    )
    with pytest.raises(ValueError, match=message):
        vf.load(path)
    assert len(vf.load(npz)) == n
    assert len(vf.load(path, limit=100 * n)) == n
    pd.read_csv(path).to_parquet(tmp_path / "log.parquet", index=False)  # as the message says
    monkeypatch.undo()
    streamed = vf.load(tmp_path / "log.parquet", memory="stream")
    assert vf.evaluate(streamed, **settings).policy_value.estimate == pytest.approx(expected, rel=1e-6)
