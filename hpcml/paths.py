"""The name of every file in a run directory, for the submitting side and the inside alike."""

from __future__ import annotations

from pathlib import Path

from hpcml import earlier_names

SCRIPT = "script"  # whose the log is that has what the script printed, and the phase in which it runs
SUPERVISOR = "supervisor"  # the role of the process that runs the script

LIBRARY = "lib.zip"  # hpcml's modules for the nodes, which Python imports from it

RESERVE_COUNT = 4  # files for the end of a run when there is no room: two states, two notes
RESERVE_SIZE = 16384  # bytes of each


def sweep_folder(runs: Path, name: str) -> Path:
    """Return the folder of a sweep, beside the runs: its record, its study, and what its jobs share."""
    return runs / "sweeps" / name


def task_of_array(array: str, index: int | str) -> str:
    """Return the run id of a job array's task: ``job_3-…`` of the array ``job-…``."""
    name, *stamp = array.rsplit("-", 3)
    return "-".join((f"{name}_{index}", *stamp))


class Below:
    """A file's place below a folder; its path is made when it is asked for, as a listing has thousands of runs."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def __get__(self, folder: Folder, _: object) -> Path:
        return folder.directory.joinpath(*self.parts)


class Folder:
    """A folder whose files have names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory


class Renamed(Below):
    """A file's place; in runs of before 0.1.0 the file had another name."""

    def __get__(self, folder: Folder, owner: object) -> Path:
        return earlier_names.file(super().__get__(folder, owner))


class RunPaths(Folder):
    """The files of one run below its directory (mode 0700, on a file system that all nodes share).

    What belongs to one attempt (a requeued job starts a new one) is in ``attempts/N``; secrets are there too, so
    that no attempt reuses another's.
    """

    request = Below("request.json")
    plan = Below("plan.json")
    script = Below("job.sh")
    step = Below("step.sh")
    variables = Below("environment.sh")
    image = Below("image.sh")
    sources = Below("sources")
    setup = Below("setup.sh")
    stage = Below("stage.sh")
    keep = Below("keep.sh")
    sweep = Below("sweep.sh")
    agents = Below("agents.sh")
    batch_script = Below("slurm_script")  # the copy of the user's, under the name that Slurm gives to such copies
    home = Below("home")
    hold = Below("hold")
    queue = Below("hold", "queue")
    closed = Below("hold", "closed")
    held = Below("hold", "runs")
    told = Below("hold", "told")
    ahead = Below("hold", "ahead")
    kept = Below("kept.json")
    submission = Below("submission.json")
    job = Below("job")
    next_job = Below("next-job")
    events = Below("events.jsonl")
    status = Below("status.json")
    report = Below("report.html")
    report_facts = Below("report.json")
    profiles = Below("profiles")
    reserve = Below("reserve")
    code = Below("code")
    copied = Below("copied.json")
    written = Below("written.json")
    replaced = Below("replaced")
    library = Below(LIBRARY)
    logs = Below("logs")
    out = Below("out")
    checkpoints = Below("checkpoints")
    points = Below("points.json")
    point_records = Below("points")
    job_log = Below("logs", "job.log")
    script_log = Renamed("logs", f"{SCRIPT}.log")

    def log(self, role: str, node: str = "") -> Path:
        """Return the log of a role; of one that runs on every node, that of a node."""
        if role == SCRIPT:
            return self.script_log
        return self.logs / (f"{role}-{node}.log" if node else f"{role}.log")

    def record_of(self, key: str) -> Path:
        """Return the file that says how a point of a sweep ended, once it has."""
        return self.point_records / f"{key}.json"

    def log_of(self, key: str) -> Path:
        """Return the file for the output of a point of a sweep."""
        return self.point_records / f"{key}.log"

    def attempt(self, number: int) -> AttemptPaths:
        """Return the files of one attempt."""
        return AttemptPaths(self.directory / "attempts" / str(number))


class AttemptPaths(Folder):
    """The rendezvous of one attempt: what the roles tell each other through the shared file system."""

    secret = Below("secret")
    certificate = Below("secret", "tls-cert.pem")
    key = Below("secret", "tls-key.pem")
    data_key = Below("secret", "data.key")
    jupyter_token = Below("secret", "jupyter.token")
    link_key = Below("secret", "link.key")
    link = Below("link.json")
    scheduler = Below("scheduler.json")
    cluster_wanted = Below("cluster-wanted")
    cluster = Below("cluster.json")
    nodes = Below("nodes")
    exits = Below("exit")
    terminate = Below("terminate")
    time_limit = Below("time-limit")
    ended = Below("ended")
    hold_ends = Below("hold-ends.json")
    begun = Below("begun")
    goes_on = Below("continue")
    end = Below("end.json")
    ledger = Below("ledger.json")
    lost = Below("lost")
    script_error = Below("script-error.json")
    world = Below("world.json")
    saves = Below("saves.json")
    gpu_pools = Below("gpu-pools.json")
    interconnect = Renamed("interconnect.json")
    samples = Below("samples")
    stacks = Below("stacks")
    stacks_request = Below("stacks-request")
    wanted = Below("services-wanted")

    def exit_of(self, role: str, node: str) -> Path:
        """Return the file for a role's exit status on a node."""
        return self.exits / f"{role}@{node}"

    def note_of(self, role: str, node: str) -> Path:
        """Return the file in which a role on a node leaves the reason for its end (hpcml.failures.role_end.Note)."""
        return self.exits / f"note@{role}@{node}"

    def mark_of(self, node: str) -> Path:
        """Return the file in which the worker task of a node says that it lives and what it knows."""
        return self.nodes / f"{node}.json"

    def probe_of(self, node: str) -> Path:
        """Return the file in which the worker task of a node writes what the node has: GPUs, NICs, UCX, limits."""
        return self.directory / "probe" / f"{node}.json"

    def samples_of(self, node: str) -> Path:
        """Return the file of a node's samples: use of its processors, memory, GPUs and network, while the run lasts."""
        return self.samples / "nodes" / f"{node}.jsonl"

    def samples_of_kind(self, kind: str) -> Path:
        """Return the file for the samples of a kind's own processes, by the kind's name."""
        return self.samples / f"{kind}.jsonl"

    def service_of(self, name: str) -> Path:
        """Return the file in which a service (``dashboard``, ``jupyter``, …) says on which node and socket it is."""
        return self.directory / "services" / f"{name}.json"
