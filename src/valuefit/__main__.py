"""`python -m valuefit` is the command line."""

from valuefit.cli import main

main()
