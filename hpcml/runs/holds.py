"""Kept allocations, as a run that is to start in one sees them: which is meant, what it has, and what it refuses."""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcml import __version__, safe_files
from hpcml.errors import ConfigError, NotFoundError, SiteError, UsageError
from hpcml.request.record import RunRequest
from hpcml.runs import directories
from hpcml.runs import status as run_status
from hpcml.runs.record import Record
from hpcml.runs.status import Status
from hpcml.schedulers import existing_allocation, gres
from hpcml.schedulers.existing_allocation import Allocation
from hpcml.sites.settings_layers import user_path
from hpcml.states import Phase
from hpcml.units import parse_memory
from hpcml.workload_forms import Form

_NODES_BACK = 5.0  # seconds
_START = "Start one: hpcml hold --nodes N --time TIME."


class Hold:
    """A kept allocation that has not ended."""

    def __init__(self, run: directories.Run, status: Status) -> None:
        self.run, self.status, self.record = run, status, Record(run.paths)
        self.site = status.planned.site

    @cached_property
    def allocation(self) -> Allocation:
        """What the allocation has: as Slurm says of one that runs, else as it was asked for."""
        plan, submission = self.record.plan, self.run.submission
        assert submission is not None
        job = plan.inside.job
        if self.status.allocation.nodes and not job.one_machine:
            found = existing_allocation.of_job(submission.job, submission.cluster)
            return found._replace(nodes=tuple(node for node in found.nodes if node not in self.status.held.nodes_lost))
        try:
            memory = parse_memory(plan.directive("--mem")) >> 20
        except ValueError:
            memory = 0
        began = self.status.progress.times.get("allocated", time.time())
        end = began + job.time_limit if job.time_limit else 0.0
        nodes = self.status.allocation.nodes if not job.one_machine else ()
        gpus = gres.gpus(plan.directive("--gres") or f"gpu:{plan.directive('--gpus-per-node')}")
        types = tuple(gpu.type for gpu in gpus if gpu.type)
        cpus = plan.cpus or (0 if job.one_machine else 1)  # 0: those that this machine has
        return Allocation(self.run.job, nodes or ("",) * job.nodes, cpus, memory, job.gpus, end, types)

    @property
    def terms(self) -> dict[str, Any]:
        """What runs in it have in common with it, by option."""
        return {name: self.record.plan.directive(f"--{name}") for name in ("account", "partition", "qos")}

    @property
    def image(self) -> str:
        """The image that was given to it, for its runs; empty without one."""
        given = self.record.request.given if self.record.request else {}
        return str(Path(str(given.get("cwd", "/"))) / user_path(str(given["image"]))) if given.get("image") else ""

    def check(self, spec: RunRequest, *, no_wait: bool) -> None:
        """Raise an HpcmlError if the run cannot start in it."""
        if (version := self.record.plan.version) != __version__:
            hint = "Start another hold with this hpcml, or use that version of hpcml for its runs."
            message = f"hpcml {version} started the hold, but this is hpcml {__version__}"
            raise ConfigError(message, place=self.run.id, hint=hint)
        if spec.place.site and spec.place.site != self.site:
            hint = "Remove --site."
            message = f"--site requests {spec.place.site}, but the hold is on site {self.site}"
            raise UsageError(message, place=self.run.id, hint=hint)
        image = str(spec.code.cwd / user_path(spec.image)) if spec.image else ""
        if image and image != self.image:
            raise _other_image(self, image)
        if self.status.phase == Phase.PREPARED:
            raise SiteError("The hold was not submitted", place=self.run.id, hint=self.status.hint)
        if self.status.phase == Phase.ENDING or not self.run.paths.queue.exists():
            raise SiteError("The hold takes no further run: it is ending", place=self.run.id, hint=_START)
        if no_wait and self.status.phase != Phase.RUNNING:
            raise self._busy(f"the hold has not started ({self.status.message})")

    def check_free(self, nodes: int) -> None:
        """Raise SiteError if a run cannot start at once: so many nodes are not free, or another run waits."""
        free = self.status.held.nodes_free
        if nodes > free or any(self.run.paths.queue.iterdir()):
            raise self._busy(f"{free} of its {len(self.allocation.nodes)} nodes are free ({self.status.message})")

    def wait_for_nodes(self, run_id: str) -> None:
        """Wait until the hold has the nodes of a run back if it has ended, but not long."""
        deadline, run = time.monotonic() + _NODES_BACK, directories.load(self.run.paths.directory.parent / run_id)
        while run_status.status(run).over and (self.run.paths.held / run_id).exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def check_image(self, image: str) -> None:
        """Raise UsageError if the run's image, also one that its project sets, is not the hold's."""
        if self.image and image != self.image:
            raise _other_image(self, image)

    def _busy(self, why: str) -> SiteError:
        hint = "Remove --no-wait: the run then waits."
        return SiteError(f"The run cannot start at once: {why}", place=self.run.id, hint=hint)


def _other_image(hold: Hold, image: str) -> UsageError:
    own = f"has the image {hold.image}" if hold.image else "has no image"
    hint = "Remove --image, or start a hold with this image: hpcml hold --image …."
    return UsageError(f"The hold {own}, not {image or 'none'}", place=hold.run.id, hint=hint)


def find(folder: Path, word: str) -> Hold:
    """Return the hold that the user means, as for any run; ``last`` is the newest that has not ended.

    Raises
    ------
    NotFoundError
        If there is none.
    UsageError
        If the run is no hold.
    SiteError
        If it has ended.
    """
    if word == "last":
        for run_id in reversed(directories.ids(folder)):
            if (folder / run_id / "hold" / "queue").is_dir() and safe_files.is_own_folder(f"{folder}/{run_id}"):
                run, status = run_status.now(directories.load(folder / run_id))
                if not status.over and status.phase != Phase.PREPARED:
                    return Hold(run, status)
        raise NotFoundError("You have no kept allocation", place="--in last", hint=_START)
    run, status = run_status.now(directories.find(folder, word))
    if status.planned.form is not Form.HOLD:
        raise UsageError("The run is not a hold", place=run.id, hint=f"Name a hold. {_START}")
    if status.phase == Phase.REFUSED:
        raise SiteError("The hold never started: Slurm refused it", place=run.id, hint=f"hpcml why {run.id}")
    if status.over:
        raise SiteError(f"The hold has ended: {status.message}", place=run.id, hint=_START)
    return Hold(run, status)
