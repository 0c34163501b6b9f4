"""Target policies, importance ratios and values of actions."""
