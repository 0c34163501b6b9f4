"""Coverage of intervals and calibration of the verdict, on designs and tasks with known truth: `make coverage`."""
