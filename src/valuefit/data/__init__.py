"""The log of transitions, and how it is read from and written to files."""
