"""Linear algebra over feature rows: moments, sketches, factorisations."""
