"""Where logs come from, one file each."""
