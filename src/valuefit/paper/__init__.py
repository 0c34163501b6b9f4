"""The experiments of Du et al. (2017) as data, run, drawn and tabulated."""
