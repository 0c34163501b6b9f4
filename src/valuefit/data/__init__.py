"""The log of transitions, and the readers and writers of its file formats."""
