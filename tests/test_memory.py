"""Memory that a process of a cluster reuses."""

import os
import subprocess
import sys

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
