"""A run of ranks: the script once for each GPU, for each node, or N times on each node; no Dask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hpcml import errors
from hpcml.kind import (
    INTERCONNECT,
    Accounting,
    EndOfKind,
    Facts,
    Kind,
    KindOptions,
    Processes,
    Request,
    Role,
    RunState,
    Site,
    Stage,
)
from hpcml.kinds.ranks.roles import MPI, PROGRAMS, RANK

if TYPE_CHECKING:
    from hpcml.settings import Settings, Workers


class RanksKind(Kind):
    """The kind ``ranks``."""

    name = "ranks"
    roles = (RANK, MPI)
    startup = (
        Stage(
            "ranks",
            begin="allocated",
            end="ranks-ready",
            waiting="{workers} of {expected} ranks can start",
            short="{workers}/{expected} can start",
            done="{expected}/{expected} can start",
            during="before all nodes were ready",
        ),
        INTERCONNECT._replace(begin="ranks-ready"),
    )
    ready = "ranks-ready"
    noun = "rank"
    ends = (
        EndOfKind(errors.WORKERS_NEVER_CAME, "nodes did not start", followed=True),
        EndOfKind(errors.ROLE_LOST, "a node was lost", followed=True),
        EndOfKind(errors.PORT_TAKEN, "port taken by another program", followed=False),
        EndOfKind(errors.INTERCONNECT, "not the required interconnect", followed=False),
    )
    ranks = RANK
    programs = PROGRAMS

    def options(self) -> KindOptions:
        from hpcml.kinds.ranks.login import options

        return options.OPTIONS

    def decided(self, site: Site, request: Request) -> Site:
        from hpcml.kinds.ranks.login import plan

        return plan.decided(site, request)

    def planned_roles(self, request: Request) -> tuple[Role, ...]:
        from hpcml.kinds.ranks.login import plan

        return plan.roles(request)

    def reasons(self, site: Site, request: Request) -> list[str]:
        from hpcml.kinds.ranks.login import plan

        return plan.reasons(request)

    def workers(self, site: Site, request: Request, memory: int, cpus: int) -> Workers:
        from hpcml.kinds.ranks.login import plan

        return plan.workers(request)

    def own(self, site: Site, request: Request) -> tuple[Any, ...]:
        from hpcml.kinds.ranks.login import options
        from hpcml.kinds.ranks.own_settings import Own

        return Own(options.asked(request).mpi)

    def connects(self, request: Request) -> bool:
        from hpcml.kinds.ranks.login import options

        return bool(options.asked(request).mpi)

    def check(self, settings: Settings, scheduler: str) -> None:
        from hpcml.kinds.ranks.login import srun_mpi_check
        from hpcml.kinds.ranks.own_settings import Own

        srun_mpi_check.check_mpi(settings.own(Own).mpi, scheduler)

    def lines(self, settings: Settings, variables: Sequence[str]) -> list[tuple[str, str]]:
        from hpcml.kinds.ranks.variables import OPEN, World, described

        world = World(settings.job.nodes, settings.workers.per_node, settings.gpus)
        texts = described(world, variables)
        return [("security", OPEN), *(("" if number else "variables", text) for number, text in enumerate(texts))]

    def seen(self, event: str, fields: Facts) -> dict[str, Any]:
        match event:
            case "node-ready" | "ranks-running" | "ranks-left":
                return {"workers": fields.get("count", int)}
            case "ranks-ready":
                return {"address": fields.get("address", str)}
            case "ranks-idle":
                return {"idle_since": float(fields.get("since", float))}
        return super().seen(event, fields)

    def accounting(self) -> Accounting:
        from hpcml.kinds.ranks.report_part import ACCOUNTING

        return ACCOUNTING

    def main_of(self, role: str) -> Callable[[], int]:
        if role == RANK.name:
            from hpcml.kinds.ranks.node import rank_agent

            return rank_agent.main
        from hpcml.kinds.ranks.node import pmi_handover

        return pmi_handover.main

    def processes(self, state: RunState, folders: Any) -> Processes:
        from hpcml.kinds.ranks.node import supervised

        return supervised.Processes(state, folders)


KIND = RanksKind()
