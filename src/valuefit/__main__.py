"""`python -m valuefit` is the command line."""

from valuefit.cli.main import main

main()
