"""A user's batch script, which runs in the batch step of its job as sbatch would run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcml.kind import Kind, Processes, Request, RunState, Site, Stage
from hpcml.kinds.batch.roles import AGENT
from hpcml.settings import Workers


class BatchKind(Kind):
    """The kind ``batch``."""

    name = "batch"
    roles = (AGENT,)
    startup = (
        Stage(
            "start",
            begin="allocated",
            end="script-ready",
            waiting="the batch script is about to start",
            short="about to start",
            done="the nodes are there",
            during="before the batch script started",
        ),
    )
    ready = "script-ready"
    noun = "agent"

    def with_script(self, request: Request) -> tuple[Request, list[str]]:
        from hpcml.kinds.batch.login import script

        return script.read(request)

    def sized(self, site: Site, request: Request) -> tuple[Site, Request]:
        from hpcml.kinds.batch.login import script

        return script.sized(site, request)

    def workers(self, site: Site, request: Request, memory: int, cpus: int) -> Workers:
        return Workers(per_node=0)

    def main_of(self, role: str) -> Callable[[], int]:
        from hpcml.kinds.batch.node import observing_agent

        return observing_agent.main

    def processes(self, state: RunState, folders: Any) -> Processes:
        from hpcml.kinds.batch.node import supervised

        return supervised.Processes(state, folders)


KIND = BatchKind()
