"""Where logs come from, one file each: made-up problems, and readers of other people's files."""
