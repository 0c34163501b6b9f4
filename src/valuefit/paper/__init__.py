"""The experiments of Du et al. (2017) as TOML files, and the code that runs, plots and tabulates them."""
