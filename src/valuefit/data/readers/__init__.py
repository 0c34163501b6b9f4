"""Readers of files and tables, one format each; all end in `data.assemble`."""
