"""Repairs of Dask, RAPIDS, UCX and cloudpickle, until their own releases make them needless: see ``table``.

hpcml works without them. ``repairs = false`` of a site turns all of them off for its runs.
"""

from __future__ import annotations

import os

OFF = ("HPCML_REPAIRS", "false")  # the variable and its value in runs without repairs


def variables(wanted: bool) -> list[tuple[str, str]]:
    """Return the variables of a run whose site wants the repairs, or does not."""
    return [] if wanted else [OFF]


def are_on() -> bool:
    """Return False in the processes of a run whose site has ``repairs = false``, else True."""
    name, value = OFF
    return os.environ.get(name) != value
