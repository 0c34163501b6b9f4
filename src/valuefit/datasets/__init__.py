"""Made-up problems with known answers, and the log that comes with the package."""
