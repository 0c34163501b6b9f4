"""Preconditioners: one protocol for solvers, certificate and adjoints."""
