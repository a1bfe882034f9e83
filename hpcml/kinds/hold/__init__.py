"""A kept allocation: hpcml's processes wait in it for runs, and take nothing of the nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcml.kind import Facts, Kind, Processes, Request, RunState, Site, Stage
from hpcml.kinds.batch.roles import AGENT
from hpcml.settings import Workers

END = 10.0  # seconds beyond the grace of its runs that a hold has for their ends


class HoldKind(Kind):
    """The kind ``hold``."""

    name = "hold"
    roles = (AGENT,)
    startup = (
        Stage(
            "hold",
            begin="allocated",
            end="hold-ready",
            waiting="the hold is about to take runs",
            short="about to take runs",
            done="the nodes are there",
            during="before the hold took runs",
        ),
    )
    ready = "hold-ready"
    noun = "agent"

    def sized(self, site: Site, request: Request) -> tuple[Site, Request]:
        """Leave out the image, which is that of the runs."""
        return site._replace(runtime=site.runtime._replace(kind="python")), request._replace(image="")

    def decided(self, site: Site, request: Request) -> Site:
        """Give the runs time for their own ends before the hold's."""
        deadlines = site.deadlines
        seconds = float(deadlines.script_grace) + float(deadlines.teardown) + END
        return site._replace(deadlines=deadlines._replace(script_grace=type(deadlines.script_grace)(f"{seconds:g}s")))

    def workers(self, site: Site, request: Request, memory: int, cpus: int) -> Workers:
        return Workers(per_node=0)

    def seen(self, event: str, fields: Facts) -> dict[str, Any]:
        if event != "held":
            return super().seen(event, fields)
        numbers = {"idle_before": fields.get("idle", float, 0.0), "unused_since": fields.get("since", float, 0.0)}
        counts = {"runs_ended": fields.get("ended", int, 0), "nodes_free": fields.get("free", int, 0)}
        return {"runs": fields.texts("runs"), "nodes_lost": fields.texts("lost"), **counts, **numbers}

    def main_of(self, role: str) -> Callable[[], int]:
        from hpcml.kinds.hold.node import user_activity

        return user_activity.main

    def processes(self, state: RunState, folders: Any) -> Processes:
        from hpcml.kinds.hold.node import supervised

        return supervised.Processes(state, folders)


KIND = HoldKind()
