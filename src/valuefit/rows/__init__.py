"""Feature rows: storages, and the kernels that read them row by row or in full passes."""
