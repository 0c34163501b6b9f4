"""A Dask cluster of two worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client, LocalCluster


@contextmanager
def two_workers() -> Iterator[Client]:
    """The client of two worker processes of a real scheduler."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as processes,
        Client(processes) as client,
    ):
        yield client
