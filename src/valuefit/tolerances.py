"""The tolerance for rounding errors in numbers that should be equal."""

ROUNDING = 1e-12  # relative: a smaller number, or a smaller difference of two, may be rounding error
