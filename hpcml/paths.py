"""The name of every file in a run directory, for the submitting side and the inside alike."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

ROLES = ("scheduler", "worker", "driver")  # in the order in which the batch script starts them

LIBRARY = "lib.zip"  # hpcml's modules for the nodes, which Python imports from it

RESERVE_COUNT = 4  # files for the end of a run when there is no room: two states, two notes
RESERVE_SIZE = 16384  # bytes of each


class RunPaths:
    """The files of one run below its directory (mode 0700, on a file system that all nodes share).

    What belongs to one attempt (a requeued job starts a new one) lies in ``attempts/N``; secrets lie there too, so
    that no attempt reuses another's.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.request = directory / "request.json"
        self.plan = directory / "plan.json"
        self.script = directory / "job.sh"
        self.step = directory / "step.sh"
        self.variables = directory / "environment.sh"
        self.image = directory / "image.sh"
        self.sources = directory / "sources"
        self.stage = directory / "stage.sh"
        self.keep = directory / "keep.sh"
        self.sweep = directory / "sweep.sh"
        self.home = directory / "home"
        self.submission = directory / "submission.json"
        self.job = directory / "job"
        self.next_job = directory / "next-job"
        self.events = directory / "events.jsonl"
        self.status = directory / "status.json"
        self.report = directory / "report.html"
        self.report_facts = directory / "report.json"
        self.profiles = directory / "profiles"
        self.reserve = directory / "reserve"
        self.code = directory / "code"
        self.library = directory / LIBRARY
        self.logs = directory / "logs"
        self.out = directory / "out"
        self.checkpoints = directory / "checkpoints"
        self.points = directory / "points.json"
        self.point_records = directory / "points"
        self.rungs = directory / "rungs"
        self.job_log = self.logs / "job.log"
        self.driver_log = self.logs / "driver.log"
        self.scheduler_log = self.logs / "scheduler.log"

    def worker_log(self, node: str) -> Path:
        """Return the log of the worker task on a node (``%N`` lets srun put the node's name)."""
        return self.logs / f"worker-{node}.log"

    def record_of(self, key: str) -> Path:
        """Return where it is written how a point of a sweep ended, once it has."""
        return self.point_records / f"{key}.json"

    def log_of(self, key: str) -> Path:
        """Return what a point of a sweep printed."""
        return self.point_records / f"{key}.log"

    def rungs_of(self, metric: str) -> Path:
        """Return where points of a sweep keep what they had of a metric: ``STEP/KEY=VALUE``, empty files, for halving.

        A metric's name may hold what a file's may not.
        """
        return self.rungs / quote(metric, safe="").replace(".", "%2E")

    def attempt(self, number: int) -> AttemptPaths:
        """Return the files of one attempt."""
        return AttemptPaths(self.directory / "attempts" / str(number))


class AttemptPaths:
    """The rendezvous of one attempt: what the roles tell each other through the shared file system."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.secret = directory / "secret"
        self.certificate = self.secret / "tls-cert.pem"
        self.key = self.secret / "tls-key.pem"
        self.ucx_key = self.secret / "ucx.key"
        self.jupyter_token = self.secret / "jupyter.token"
        self.control = directory / "control.json"
        self.scheduler = directory / "scheduler.json"
        self.nodes = directory / "nodes"
        self.versions = directory / "versions"
        self.exits = directory / "exit"
        self.terminate = directory / "terminate"
        self.time_limit = directory / "time-limit"
        self.ended = directory / "ended"
        self.begun = directory / "begun"
        self.goes_on = directory / "continue"
        self.end = directory / "end.json"
        self.ledger = directory / "ledger.json"
        self.lost = directory / "lost"
        self.script_error = directory / "script-error.json"
        self.saves = directory / "saves.json"
        self.points_end = directory / "points-end.json"
        self.fabric = directory / "fabric.json"
        self.samples = directory / "samples"
        self.dask_samples = self.samples / "dask.jsonl"

    def exit_of(self, role: str, node: str) -> Path:
        """Return where a role's exit status on a node is written."""
        return self.exits / f"{role}@{node}"

    def mark_of(self, node: str) -> Path:
        """Return where the worker task of a node says that it lives and what it knows."""
        return self.nodes / f"{node}.json"

    def probe_of(self, node: str) -> Path:
        """Return where the worker task of a node writes what the node has: GPUs, NICs, UCX, limits."""
        return self.directory / "probe" / f"{node}.json"

    def samples_of(self, node: str) -> Path:
        """Return where a node's samples are: use of its processors, memory, GPUs and network, while the run lasts."""
        return self.samples / "nodes" / f"{node}.jsonl"

    def service_of(self, name: str) -> Path:
        """Return where a web service of the run (``dashboard``, ``jupyter``) says on which node and socket it is."""
        return self.directory / "services" / f"{name}.json"
