"""A scheduler that closes does not tell the workers that are left of each one that goes.

For a thousand workers these are half a million messages that nobody reads, and many seconds.
"""

from __future__ import annotations

from typing import Any

from distributed import Status

from hpcml import repairs


class QuietClose:
    """A base class before Dask's ``Scheduler``, which is silent while it closes."""

    status: Status

    def worker_send(self, worker: str, msg: dict[str, Any]) -> None:
        """Send as Dask does, but nothing while the scheduler closes."""
        if self.status not in (Status.closing, Status.closed) or not repairs.is_on("closing"):
            super().worker_send(worker, msg)  # type: ignore[misc]
