"""A run with a Dask cluster: a scheduler on the first node, and workers on every node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
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
    Progress,
    Request,
    RunState,
    Schema,
    Site,
    Stage,
)
from hpcml.kinds.dask.roles import NEEDS, SCHEDULER, WORKER
from hpcml.workload_forms import Form

_NODE = f"{__name__}.node"

if TYPE_CHECKING:
    from hpcml.settings import Settings, Workers


class DaskKind(Kind):
    """The kind ``dask``."""

    name = "dask"
    roles = (SCHEDULER, WORKER)
    startup = (
        Stage(
            "scheduler",
            begin="allocated",
            end="scheduler-up",
            waiting="the Dask scheduler starts",
            short="the Dask scheduler starts",
            done="up, {protocol}",
            during="before the Dask scheduler had started",
        ),
        Stage(
            "workers",
            begin="scheduler-up",
            end="workers-ready",
            waiting="{workers} of {expected} workers started",
            short="{workers}/{expected}",
            done="{expected}/{expected}",
            during="before all workers had started",
        ),
        INTERCONNECT._replace(begin="workers-ready"),
    )
    ready = "workers-ready"
    noun = "worker"
    threads = "workers.threads"
    ends = (
        EndOfKind(errors.WORKERS_NEVER_CAME, "workers did not start", followed=True),
        EndOfKind(errors.ROLE_LOST, "Dask workers or scheduler lost", followed=True),
        EndOfKind(errors.INTERCONNECT, "not the required interconnect", followed=False),
    )
    services = ("dashboard", "jupyter")
    needs = NEEDS
    has_cluster = True
    programs = {
        Form.JUPYTER: f"{_NODE}.jupyter.server",
        Form.NOTEBOOK: f"{_NODE}.jupyter.execute",
        Form.INTERCONNECT: f"{_NODE}.interconnect",
        Form.DOCTOR: f"{_NODE}.doctor_script",
    }
    in_script = f"{_NODE}.script.replacements"
    reset = f"{_NODE}.reset"

    def options(self) -> KindOptions:
        from hpcml.kinds.dask.login import options

        return options.OPTIONS

    def workers(self, site: Site, request: Request, memory: int, cpus: int) -> Workers:
        from hpcml.kinds.dask.login import plan

        return plan.workers(site, request, memory, cpus)

    def own(self, site: Site, request: Request) -> tuple[Any, ...]:
        from hpcml.kinds.dask.login import plan

        return plan.own(site, request)

    def environment(self, site: Site, request: Request) -> tuple[tuple[str, str], ...]:
        from hpcml.kinds.dask.login import plan

        return plan.environment(site, request)

    def profilers(self, request: Request) -> tuple[str, ...]:
        from hpcml.kinds.dask.login import plan

        return plan.profilers(request)

    def notices(self, settings: Settings) -> list[str]:
        from hpcml.kinds.dask.login import plan

        return plan.notices(settings)

    def packages(self, settings: Settings) -> dict[str, Sequence[str]]:
        from hpcml.kinds.dask.login.options import PROFILERS

        return {"--profile": [PROFILERS[name] for name in settings.report.profilers if PROFILERS[name]]}

    def condition(self, settings: Settings) -> str:
        return "the script alone; if it opens a Dask client, " if settings.workers.late else ""

    def network(self, settings: Settings) -> str:
        from hpcml.kinds.dask.login import plan

        return plan.network(settings, super().network(settings))

    def seen(self, event: str, fields: Facts) -> dict[str, Any]:
        match event:
            case "worker-added" | "worker-removed":
                return {"workers": fields.get("count", int)}
            case "cluster-waits" | "cluster-wanted":
                return {"has_cluster": event == "cluster-wanted"}
            case "workers-silent":
                return {"silent_workers": fields.numbers("since")}
            case "scheduler-up":
                return {"protocol": f"{fields.get('protocol', str)} ({fields.get('because', str)})"}
        return super().seen(event, fields)

    def progress(self, samples: Sequence[Any], nodes: Sequence[str]) -> Progress:
        from hpcml.kinds.dask.login import top_tasks

        return top_tasks.of(samples, nodes)

    def samples(self) -> Schema:
        from hpcml.kinds.dask.samples import SCHEMA

        return SCHEMA

    def accounting(self) -> Accounting:
        from hpcml.kinds.dask.report_part import ACCOUNTING

        return ACCOUNTING

    def main_of(self, role: str) -> Callable[[], int]:
        if role == SCHEDULER.name:
            from hpcml.kinds.dask.node import scheduler_start

            return scheduler_start.main
        from hpcml.kinds.dask.node import workers

        return workers.main

    def import_ahead(self, role: str, context: Any) -> Sequence[Path]:
        from hpcml.kinds.dask.node import prestarted_imports

        return prestarted_imports.import_for(role, context, self)

    def processes(self, state: RunState, folders: Any) -> Processes:
        from hpcml.kinds.dask.node import supervised

        return supervised.Processes(state, folders)


KIND = DaskKind()
