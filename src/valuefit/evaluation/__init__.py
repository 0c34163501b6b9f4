"""From a log to the value of a policy, with standard errors and diagnostics."""
