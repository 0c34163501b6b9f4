"""Memory that a process may use, and that one of a cluster reuses."""

import os
import subprocess
import sys

import pytest

from valuefit.memory import available_memory

# the bytes that malloc has asked the system for, array by array, before and while one of 8 MiB exists
MAPPED = """
import ctypes
import numpy as np
from valuefit.memory import reuse_freed_memory
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Info = type("Info", (ctypes.Structure,), {{"_fields_": [(name, ctypes.c_size_t) for name in names]}})
mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)  # of glibc 2.33 or newer
{call}
if mallinfo is not None:
    mallinfo.restype = Info
    before = mallinfo().hblkhd
    array = np.ones(1 << 20)
    print(mallinfo().hblkhd - before >= array.nbytes)
"""


def is_mapped(call: str) -> str:
    """Whether an array gets memory of its own from the system, in a process that is started as Dask starts workers."""
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    code = MAPPED.format(call=call)
    run = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    return run.stdout.strip()


def test_arrays_use_freed_memory_in_a_process_that_dask_started():
    assert (is_mapped(""), is_mapped("reuse_freed_memory()")) in [("True", "False"), ("", "")]


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/job/step", {"job/step/memory.max": "max", "job/memory.max": "3000"}, 3000),
        ("0::/", {"memory.max": "2000"}, 2000),
        ("0::/elsewhere", {"memory.max": "max"}, None),
        ("4:cpu,memory:/job", {"memory/job/memory.limit_in_bytes": "1000"}, 1000),
        ("4:memory:/of the host", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("4:cpu:/job", {"job/memory.max": "1000"}, None),
    ],
)
def test_the_limit_of_a_container_bounds_memory(line, files, expected, tmp_path):
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"1:name=systemd:/x\n{line}\n")
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert available_memory(tmp_path / "groups", tmp_path / "own") == (expected or physical)
    assert available_memory(tmp_path / "groups", tmp_path / "none") == physical
