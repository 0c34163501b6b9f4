"""Fuzzing of every file format and API entry: `python -m fuzz --help`. Importing it sets one thread per process."""

import os

for name in ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")
