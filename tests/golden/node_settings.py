"""Settings of a run for tests: two nodes with one CPU worker each, and what a test changes."""

from __future__ import annotations

from typing import Any

from hpcml.settings import Attempts, Code, Job, Points, Report, Settings, Workers
from hpcml.site_records import Deadlines, Interconnect, Network
from hpcml.units import Seconds
from hpcml.workload_forms import Form

_USUAL = Settings(
    kind="dask",
    job=Job(2, 0, True, False, 3600, 60.0, "", "", 0),
    code=Code(Form.SCRIPT, "", (), "/", 0o077, "", (), 0.0),
    workers=Workers(1, 1, 0, 3),
    network=Network(),
    deadlines=Deadlines(interconnect=Seconds("60s"), script_grace=Seconds("60s"), teardown=Seconds("30s")),
    attempts=Attempts(False, 20, 0.0),
    points=Points("", 1),
    report=Report(5.0, {}, ()),
    interconnect=Interconnect("none", False),
    of_kind={"on_loss": "continue", "own_clusters": False},
)


def settings(**values: Any) -> Settings:
    """Return settings with other values; ``job__nodes`` is the field ``nodes`` of the group ``job``."""
    changed = _USUAL
    for name, value in values.items():
        group, _, field = name.partition("__")
        if group == "of_kind":
            changed = changed._replace(of_kind={**changed.of_kind, field: value})
            continue
        changed = changed._replace(**{group: getattr(changed, group)._replace(**{field: value})})
    return changed
