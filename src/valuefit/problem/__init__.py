"""The empirical MSPBE as a saddle point, its exact solution, and its preconditioners."""
