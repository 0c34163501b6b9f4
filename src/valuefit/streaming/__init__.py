"""Problems and sums over a log that is read in shards."""
