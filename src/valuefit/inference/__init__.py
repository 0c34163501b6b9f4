"""Standard errors, intervals and occupancy weights, by sums over the clusters of a log."""
