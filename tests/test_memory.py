"""Memory that a process of a cluster reuses."""

import os
import platform
import subprocess
import sys

FAULTS = """
import resource
import numpy as np
from valuefit.memory import reuse_freed_memory
{call}
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    np.ones(1 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(call: str) -> int:
    """Of 50 arrays of 8 MiB in a process that is started as Dask starts its workers."""
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    code = FAULTS.format(call=call)
    return int(subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True).stdout)


def test_freed_arrays_are_reused_in_a_process_that_dask_started():
    found, before = page_faults("reuse_freed_memory()"), page_faults("")
    if platform.libc_ver()[0] == "glibc":
        assert found < 0.2 * before
    else:
        assert found <= 1.2 * before
