"""An evaluation as one HTML page."""
