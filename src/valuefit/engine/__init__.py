"""The loop that runs a solver: budget, stopping, certificate, choice of the solver, result."""
