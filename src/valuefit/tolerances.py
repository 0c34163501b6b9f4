"""The tolerance that the whole package uses for rounding errors."""

ROUNDING = 1e-12  # relative: a smaller number, or a smaller difference of two, may be rounding error
