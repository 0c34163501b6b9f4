"""Run the command line with `python -m valuefit`."""

from valuefit.cli.main import main

main()
