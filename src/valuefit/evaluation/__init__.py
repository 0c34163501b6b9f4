"""From a log to the value of a policy, with standard errors, checks and a verdict."""
