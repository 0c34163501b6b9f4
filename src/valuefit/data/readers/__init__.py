"""Readers of files and tables, one format per module; each passes its columns to `data.assemble`."""
