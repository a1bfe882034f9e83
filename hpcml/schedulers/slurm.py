"""Talk to Slurm: submit, look, cancel. Answers are read by explicit formats; what Slurm invents is tolerated."""

from __future__ import annotations

import calendar
import functools
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcml import safe_files, typed_json, units
from hpcml.config_trust import HPCML
from hpcml.errors import ANSWER_LOST, HpcmlError, SiteError, SlurmUnreachableError
from hpcml.failures.rule import Where
from hpcml.failures.rules import meaning, own_lines
from hpcml.paths import RunPaths, task_of_array
from hpcml.request.record import RunRequest, measure
from hpcml.run_files import RecordedPlan
from hpcml.schedulers import (
    NOT_ASKED,
    UNKNOWN,
    UNREADABLE,
    AnswerLostError,
    JobEnd,
    JobLayout,
    JobRequest,
    JobState,
    Prospect,
    Submission,
    readable,
    slurm_options,
)
from hpcml.sites.schema import Site
from hpcml.sites.settings_layers import process_environment
from hpcml.states import ACTIVE, ENDED, PENDING, State
from hpcml.subprocesses import Answer, CommandMissingError, run
from hpcml.workload_forms import Form

ONE_MACHINE, OWN_JOBS, BATCH_SCRIPTS = False, True, True
NODE_OPTIONS: tuple[str, ...] = ("--exclude", "--nodelist")
step_on = slurm_options.step_on
shell_on = slurm_options.shell_on
gpu_directives = slurm_options.gpu_directives
array_options, array_launcher = slurm_options.array_options, slurm_options.array_launcher
cluster_options, log_pattern = slurm_options.cluster_options, slurm_options.filename_pattern
TIMEOUT = 60.0  # seconds for one question; slurmctld's own MessageTimeout is 10 to 100
_FOR_A_REASON = 10.0  # seconds for a question that only explains why a job waits
_LOOK_AGAIN = 20.0  # seconds for which a job whose submission was not answered is looked for

_REQ_MEM = re.compile(r"(\d{1,18}(?:\.\d+)?[KMGT]?)([cn]?)", re.IGNORECASE)  # as sacct writes it
KEPT = {"SLURM_CONF", "SLURM_JWT"}
_SCRUBBED = (
    "SLURM_",
    "SBATCH_",
    "SALLOC_",
    "SRUN_",
    "SQUEUE_",
    "SACCT_",
    "SCANCEL_",
    "SCONTROL_",
    "SINFO_",
    "PMI",
    "HPCML_",
)

_CLUSTERS = "SLURM_CLUSTERS"  # the clusters that all of Slurm's commands ask, as a site's module may set it

# What sbatch reads itself (sbatch(1), INPUT ENVIRONMENT VARIABLES): the request's field, or the option passed on.
_INPUT_VARIABLES = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_CONSTRAINT": "--constraint",
    "SBATCH_RESERVATION": "--reservation",
    "SBATCH_CLUSTERS": "clusters",
    _CLUSTERS: "clusters",
}

_ELSEWHERE = (
    "To run a script on this machine, add --site local to its command. To use a cluster, use a login node "
    "(on a laptop: hpcml --host HOST …)"
)
_NOT_CONFIGURED = r"(?i)Could not establish a configuration source|Unable to process configuration"
_UNREACHABLE = (
    r"(?i)Unable to contact slurm controller|Connection refused|Socket timed out|Unable to establish control|"
    r"Zero Bytes were transmitted|munge|Protocol authentication error"
)
_MAYBE_SENT = r"(?i)Socket timed out|Zero Bytes were transmitted|Connection reset"

_ASKED_AT_ONCE = 5000
_ASKED_ALONE = 16  # jobs that are asked for again, each alone, where the answer for many cannot be read
_QUEUED = "--format=%i|%T|%r|%S|%N|%j|%k"
_HEADER = "JOBID|STATE|"  # squeue's first line: with it, a job that is not listed is not known
_SKEW = 3600.0  # seconds that the controller's clock may be behind this machine's
_USUAL_ARRAY = 1000  # tasks, where Slurm does not tell: its default MaxArraySize is 1001, the largest index + 1
_MOST_SAID = 40  # lines of what sbatch says beside the job's number
_UMASK = 0o077  # Slurm makes a job's log with the umask of sbatch
_LONGEST_LINE = 300  # characters of a line that is shown
_LONGEST_FIELD = 65536  # characters of a field: a list of thousands of nodes is the longest that Slurm writes
_STATE = re.compile(r"[A-Z_]{1,30}")
NUMBER = re.compile(r"\d{1,18}", re.ASCII)
OF_ARRAY = re.compile(r"\d{1,18}_(\d{1,9})", re.ASCII)  # a task of a job array


def clean_environment() -> dict[str, str]:
    """Return the environment without what an outer job, or the user's shell, set for Slurm's commands.

    A submission from inside a job would otherwise inherit that job's sizes and bindings, and SQUEUE_FORMAT or
    SLURM_TIME_FORMAT would change answers; SLURM_CONF says which cluster is meant and stays.
    """
    return {key: value for key, value in process_environment().items() if key in KEPT or not key.startswith(_SCRUBBED)}


def foreign_variables() -> list[str]:
    """Return the variables that change what Slurm's own commands do or print; hpcml starts them without these."""
    slurms = tuple(word for word in _SCRUBBED if word not in ("PMI", "HPCML_"))
    kept = {*KEPT, _CLUSTERS}
    return sorted(name for name in process_environment() if name.startswith(slurms) and name not in kept)


def outer_job() -> str:
    """Return the id of the job that this process is in, empty outside one."""
    return process_environment().get("SLURM_JOB_ID", "")


def with_variables(spec: RunRequest, overridden: Callable[[str], bool]) -> RunRequest:
    """Return the request with the defaults that the user's shell gives sbatch; within a job they are the job's own."""
    environment = process_environment()
    if outer_job():
        return spec
    for variable, name in _INPUT_VARIABLES.items():
        text = environment.get(variable, "").strip()
        if not text or name in dict(spec.place.sbatch) or name in spec.given() or overridden(name):
            continue
        given: Any = measure(name, text, variable) if name == "time" else text
        new = {"sbatch": (*spec.place.sbatch, (name, text))} if name.startswith("--") else {name: given}
        origin = (f"--{name.removeprefix('--')} {text}", variable)
        spec = spec.changed(**new, origins=(*spec.origins, origin))
    return spec


def ignored_defaults() -> list[str]:
    """Return the variables with which a user's shell gives sbatch defaults that do not count here.

    Inside a job they are the job's own and no wish of the user's.
    """
    environment = process_environment()
    if outer_job():
        return []
    return sorted(
        name
        for name in environment
        if (name.startswith("SBATCH_") and name not in _INPUT_VARIABLES) or name == "SLURM_ACCOUNT"
    )


def ask(command: list[str], timeout: float = TIMEOUT, *, umask: int = -1) -> Answer:
    """Return the answer of one of Slurm's commands, without users' defaults; SlurmUnreachableError if it is missing."""
    try:
        return run(command, timeout, program=HPCML, environment=clean_environment(), umask=umask, apart=True)
    except CommandMissingError as error:
        hint = f"{_ELSEWHERE}, or load the Slurm module."
        raise SlurmUnreachableError(
            f"Slurm's command could not be started: {error}", place="PATH", hint=hint
        ) from error


def lay_out(site: Site, request: JobRequest) -> JobLayout:
    """Return Slurm's part of a batch script."""
    if request.spec.code.form not in (Form.BATCH, Form.HOLD):
        return slurm_options.lay_out(site, request)
    from hpcml.schedulers import slurm_batch_script

    if request.spec.code.form is Form.HOLD:
        return slurm_batch_script.of_hold(slurm_options.lay_out(site, request), request)
    return slurm_batch_script.lay_out(site, request)


def for_clusters(clusters: str, command: list[str]) -> list[str]:
    """Return one of Slurm's commands for other clusters, as it is for none."""
    return [command[0], f"--clusters={clusters}", *command[1:]] if clusters else command


def user_clusters() -> str:
    """Return the clusters that the user's shell chose for Slurm's commands, empty for the login node's own."""
    return "" if outer_job() else process_environment().get(_CLUSTERS, "").strip()


def submit(site: Site, run: RunPaths) -> Submission:
    """Submit a run's batch script; after a lost answer look for the job by its comment; HpcmlError if there is none."""
    timeout, run_id = float(site.slurm.timeout), run.directory.name
    try:
        return _confirmed(sbatch(str(run.script), timeout, umask=_umask(run))._replace(run=run_id))
    except AnswerLostError as lost:
        clusters = re.search(r"(?m)^#SBATCH --clusters=(\S+)$", safe_files.read(run.script).decode(errors="replace"))
        if job_id := _look_again(run_id, min(timeout, _LOOK_AGAIN), clusters[1] if clusters else ""):
            return job_id
        message = "It is unknown whether Slurm accepted the job"
        hint = f"hpcml did not submit the job again. When Slurm answers again, run: hpcml status {run_id}"
        raise HpcmlError(message, place="sbatch", hint=hint, exit_status=ANSWER_LOST, quote=lost.quote) from lost


def _umask(run: RunPaths) -> int:
    """Return the umask for a job's output: the user's where that goes into the user's own files. A map has no plan."""
    plan = typed_json.on_demand(RecordedPlan, safe_files.read_json(run.plan)) if run.plan.exists() else None
    return _UMASK if plan is None or plan.directive("--output") else plan.inside.code.umask


def _confirmed(answer: Submission) -> Submission:
    """Return sbatch's answer; AnswerLostError if more was printed and the number is not that of the run's job."""
    if answer.said:
        try:
            state = _queued([answer.key])[answer.key]
        except SlurmUnreachableError:
            return answer
        if state.state == UNKNOWN.state:
            raise AnswerLostError("sbatch printed the id of another job", quote=answer.said[-6:])
    return answer


def _look_again(run_id: str, seconds: float, clusters: str) -> Submission | None:
    """Look for the job of a run a few times within a deadline; None if it is not there.

    A request whose answer was lost may still be on its way, so one look that finds nothing proves nothing.
    """
    deadline = time.monotonic() + seconds
    pause = 0.5
    while True:
        try:
            record = find([run_id], clusters, max(1.0, deadline - time.monotonic())).get(run_id)
        except SlurmUnreachableError:
            record = None  # the controller does not answer: the deadline decides
        if record or time.monotonic() + pause > deadline:
            return record
        time.sleep(pause)
        pause = min(pause * 2, 5.0)


def sbatch(script: str, timeout: float = TIMEOUT, chosen: str = "", *, umask: int = _UMASK) -> Submission:
    """Submit a job script and return the job id, the cluster's name (often empty), and what else sbatch says.

    AnswerLostError if the request may have arrived but no answer that names one job; HpcmlError if it was refused.
    """
    answer = ask(for_clusters(chosen, ["sbatch", "--parsable", script]), timeout, umask=umask)
    if _is_silent(answer) or (answer.code != 0 and re.search(_MAYBE_SENT, answer.text)):
        raise AnswerLostError("sbatch did not respond", quote=_quote(answer))
    if answer.code != 0:
        raise refusal(answer)
    # a site's wrapper may print a banner before or after it, or leave --parsable out
    pattern = r"(?m)^[ \t]*(?:(\d+)(?:;(\S+))?|Submitted batch job (\d+)(?: on cluster (\S+))?)[ \t\r]*$"
    clusters: dict[str, str] = {}
    for number, cluster, named, on in re.findall(pattern, answer.out):
        clusters[number or named] = clusters.get(number or named) or cluster or on
    if len(clusters) != 1:
        raise AnswerLostError("The output of sbatch does not name exactly one job", quote=_quote(answer))
    [(job, cluster)] = clusters.items()
    said = re.sub(pattern, "", answer.out) + answer.err
    lines = [re.sub(r"^sbatch: ", "", line.strip())[:_LONGEST_LINE] for line in said.splitlines() if line.strip()]
    more = [f"({len(lines) - _MOST_SAID} more lines)"] if len(lines) > _MOST_SAID else []
    return Submission(job=job, cluster=cluster, said=tuple(f"sbatch: {line}" for line in lines[:_MOST_SAID] + more))


def _is_silent(answer: Answer) -> bool:
    """Whether a command said nothing and failed: it was ended, by us or by a site's wrapper (``timeout``: 124)."""
    return answer.code is None or (answer.code != 0 and not answer.text)


def refusal(answer: Answer, program: str = "sbatch") -> HpcmlError:
    """Return an error that explains why one of Slurm's commands failed."""
    if re.search(_NOT_CONFIGURED, answer.text):
        message = "Slurm's commands are installed, but no cluster is configured"
        hint = f"{_ELSEWHERE}, or set SLURM_CONF."
        return SlurmUnreachableError(message, place=program, hint=hint)
    if re.search(_UNREACHABLE, answer.text):
        effects = {"sbatch": "nothing was submitted", "scancel": "nothing was cancelled"}
        hint = f"Try again in some minutes; {effects.get(program, 'running jobs are not affected')}."
        message = f"Slurm's controller does not answer: {_last(answer)}"
        return SlurmUnreachableError(message, transient=True, place=program, hint=hint)
    if program == "sbatch" and (rule := meaning(answer.text, Where.SUBMISSION)):
        return SiteError(rule.sentence, place=program, hint=rule.remedy, quote=_quote(answer))
    refused = "the job" if program == "sbatch" else f"the command {program}"
    words = [
        re.sub(r"^s[a-z]+: (error: )?", "", line.strip())[:_LONGEST_LINE]
        for line in own_lines(answer.text) or [line for line in _quote(answer) if not line.startswith("Try ")][-1:]
    ]
    said = "; ".join(filter(None, words)).rstrip(".") or "it gives no reason"
    hint = "The site's documentation or support may explain this message."
    return SiteError(f"Slurm refused {refused}: {said}", place=program, hint=hint, quote=_quote(answer))


def _quote(answer: Answer) -> tuple[str, ...]:
    return tuple(line[:_LONGEST_LINE] for line in answer.text.splitlines() if line.strip())[-6:]


def _last(answer: Answer) -> str:
    return re.sub(r"^s[a-z]+: (error: )?", "", (_quote(answer) or ("no answer",))[-1])


def check(script: Path) -> str:
    """Ask the live controller whether it would take the script; return its estimate in its own words."""
    return _last(_test_only(script, TIMEOUT))


def _test_only(script: Path, timeout: float) -> Answer:
    answer = ask(["sbatch", "--test-only", str(script)], timeout)
    if _is_silent(answer):
        message, hint = "Slurm's controller does not answer", "Slurm is busy or down. Try again in some minutes."
        raise SlurmUnreachableError(message, transient=True, place="sbatch --test-only", hint=hint)
    if answer.code != 0:
        raise refusal(answer)
    return answer


def prospect(script: Path, partition: str, seconds: float) -> Prospect:
    """Return the time when Slurm would start a script, and the billing of a partition's jobs if one is named.

    ``--test-only`` says so of the queue as it is at this moment.
    """
    end = time.monotonic() + seconds
    start = re.search(r"to start at (\d{4}-\d\d-\d\dT[0-9:]{8})", _test_only(script, seconds).err)
    outlook = Prospect(start[1] if start else "")
    if not partition:
        return outlook
    show = for_clusters(user_clusters(), ["scontrol", "show"])
    shown = ask([*show, "partition", partition.partition(",")[0]], max(0.1, end - time.monotonic())).out
    texts = re.search(r"\bTRESBillingWeights=(\S+)", shown)
    if texts is None or texts[1] == "(null)":
        return outlook
    config = ask([*show, "config"], max(0.1, end - time.monotonic())).out
    flags = re.search(r"(?m)^PriorityFlags\s*=\s*(.*)$", config)
    names = flags[1].split(",") if flags else []
    if "MAX_TRES_GRES" in names:  # another rule, of Slurm 24.11 and newer
        return outlook
    pairs = (part.partition("=") for part in texts[1].split(","))
    weights = {name: weight for name, _, weight in pairs if weight}
    return outlook._replace(weights=weights, largest="MAX_TRES" in names)


def has_partition(name: str, seconds: float) -> bool:
    """Return True if Slurm has a partition, also if it gives no answer within a deadline."""
    try:
        answer = ask(["scontrol", "show", "partition", name], seconds)
    except SlurmUnreachableError:
        return True
    return f"Partition {name} not found" not in answer.out + answer.err


def mpi_kinds(seconds: float) -> tuple[str, ...]:
    """Return the kinds that ``srun --mpi=list`` names, nothing without an answer within a deadline."""
    try:
        answer = ask(["srun", "--mpi=list"], seconds)
    except SlurmUnreachableError:
        return ()
    names = re.findall(r"(?m)^(?:srun:)?[ \t]*([a-z]\w*)[ \t]*$", answer.text)  # old versions write on standard error
    return tuple(names) if answer.code == 0 else ()


def line(run: RunPaths) -> str:
    """Return the line that submits a run's batch script, whose directives say all else."""
    return f"sbatch {shlex.quote(str(run.script))}"


def find(run_ids: Sequence[str], clusters: str = "", timeout: float = TIMEOUT) -> dict[str, Submission]:
    """Return the records of runs' jobs, with the run's id as comment; SlurmUnreachableError if squeue fails.

    squeue knows waiting, running and recently ended jobs; sacct is asked as well where there is accounting.
    """
    found: dict[str, Submission] = {}
    for cluster in clusters.split(","):
        command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%k"]
        answer = ask(for_clusters(cluster, command), timeout)
        if answer.code != 0:
            raise silent(answer)
        jobs = _jobs_of_runs(rows_of(answer))
        if missing := set(run_ids) - jobs.keys() - found.keys():
            options = ["--format=JobID,State,Comment", "--starttime=now-2days"]
            accounted = _jobs_of_runs(_accounting(options, timeout, cluster) or [])
            jobs |= {run_id: accounted[run_id] for run_id in missing & accounted.keys()}
        named = (run_id for run_id in run_ids if run_id in jobs)
        found |= {run_id: jobs[run_id]._replace(cluster=cluster) for run_id in named}
    return found


def jobs_of_clusters() -> dict[str, list[str]]:
    """Return the jobs that are in the queue of this user's elastic clusters, by the cluster's id.

    Each carries the cluster's id and a number of its own as its comment. SlurmUnreachableError if squeue fails.
    """
    command = ["squeue", "--noheader", f"--user={os.getuid()}", "--format=%i|%T|%k"]
    answer = ask(command)
    if answer.code != 0:
        raise silent(answer)
    over = ENDED | {State.COMPLETING}
    jobs: dict[str, list[str]] = {}
    for row in rows_of(answer):
        if len(row) == 3 and row[1] not in over and (match := re.fullmatch(r"hpcml:(.+)\.\d+", row[2])):
            jobs.setdefault(match[1], []).append(row[0])
    return jobs


def _jobs_of_runs(rows: list[list[str]]) -> dict[str, Submission]:
    """Return the job of each run that rows of job, state and comment name: one that has not ended, and the newest.

    Each task of an array is a run too; the comment names the array.
    """
    jobs: dict[str, tuple[bool, int, Submission]] = {}
    for row in rows:
        if len(row) == 3 and row[2].startswith("hpcml:") and NUMBER.fullmatch(number := _base(row[0])):
            run_id, is_active = row[2].removeprefix("hpcml:"), row[1].split(" ")[0] not in ENDED
            submissions = [Submission(job=number, run=run_id, found_again=True)]
            if task := OF_ARRAY.fullmatch(row[0]):
                name = task_of_array(run_id, task[1])
                submissions.append(Submission(job=row[0], run=name, array=run_id, found_again=True))
            for submission in submissions:
                before = jobs.get(submission.run, (False, 0))
                if (is_active, int(number)) >= before[:2]:
                    jobs[submission.run] = is_active, int(number), submission
    return {run_id: submission for run_id, (*_, submission) in jobs.items()}


def rows_of(answer: Answer) -> list[list[str]]:
    """Return the fields, parted by ``|``, of each line of an answer; a field that is too long is cut."""
    return [[field[:_LONGEST_FIELD] for field in line.strip().split("|")] for line in answer.out.splitlines()]


def _accounting(options: list[str], timeout: float = TIMEOUT, cluster: str = "") -> list[list[str]] | None:
    """Return the rows of sacct's answer, none where there is no accounting; None if it failed."""
    try:
        answer = ask(for_clusters(cluster, ["sacct", "--noheader", "--parsable2", "--allocations", *options]), timeout)
    except SlurmUnreachableError:
        return []  # it is not installed
    if answer.code == 0:
        return rows_of(answer)
    return [] if "accounting storage is disabled" in answer.text else None


def accounted(keys: Sequence[str], fields: str) -> dict[str, list[str]]:
    """Return the accounting's fields of jobs of one cluster, by key; see :func:`_accounted`."""
    return _accounted(keys, fields)[0]


def _accounted(keys: Sequence[str], fields: str) -> tuple[dict[str, list[str]], Sequence[str]]:
    """Return ``fields`` of sacct for each job that it knows, and the keys for which it was not asked.

    If the answer for many fails, the newest are asked for alone. A number that another job had before or has now is
    recognized by the comment, or, where accounting does not keep comments, by user, name and time of submission.
    """
    numbers, cluster = dict.fromkeys(_parts(key)[0] for key in keys), _cluster(keys[0])
    identity = ("--duplicates", f"--format=JobID,{fields},Submit,UID,JobName,Comment")
    rows, left = _accounting([f"--jobs={','.join(numbers)}", *identity], cluster=cluster), list[str]()
    if rows is None:
        rows, left = [], sorted(numbers, key=lambda job: int(_base(job)), reverse=True) if len(numbers) > 1 else []
        for job in left[:_ASKED_ALONE]:
            if (of_one := _accounting([f"--jobs={job}", *identity], cluster=cluster)) is None:
                left = []  # it answers for none
                break
            rows += of_one
    count = fields.count(",") + 1
    states: dict[str, list[str]] = {}
    for key in keys:
        job, run = _parts(key)
        job_rows = [row for row in rows if len(row) > count and _row(row[0], job) == _row(job, job)]
        if run:
            job_rows = [row for row in job_rows if _is_accounted(row[count + 1 :], run)]
            job_rows = [row for row in job_rows if row[count + 4]] or job_rows
        if job_rows:
            states[key] = job_rows[-1][1 : count + 1]
    not_asked = set(left[_ASKED_ALONE:])
    return states, [key for key in keys if _parts(key)[0] in not_asked]


def _is_accounted(identity: list[str], run: str) -> bool:
    """Whether a row of sacct with these submission, user, name and comment is of the run's job."""
    if len(identity) < 4:
        return False
    submitted, user, name, comment = identity[:4]
    if comment:
        return comment == f"hpcml:{run}"
    return (user, name) == (str(os.getuid()), _name(run)) and not _is_before(submitted, run)


def _name(run: str) -> str:
    """Return the name of a run's job, as its id begins."""
    return run.rsplit("-", 3)[0]


def _is_before(submitted: str, run: str) -> bool:
    """Whether a job was submitted before the run was made; its id has the time, in UTC."""
    try:
        stamp = re.sub(r".*-(\d{8}-\d{6})-[0-9a-f]{4}(\.\d+)?", r"\1", run)
        made = calendar.timegm(time.strptime(stamp, "%Y%m%d-%H%M%S"))
        return time.mktime(time.strptime(submitted, "%Y-%m-%dT%H:%M:%S")) < made - _SKEW
    except ValueError:
        return False


def silent(answer: Answer) -> SlurmUnreachableError:
    """Return the error for a question that squeue did not answer."""
    error = refusal(answer, "squeue")
    if isinstance(error, SlurmUnreachableError):
        return error
    hint = "Try again in some minutes. Running jobs are not affected."
    return SlurmUnreachableError(f"squeue does not answer: {_last(answer)}", transient=True, place="squeue", hint=hint)


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """Return the states of jobs, with one question to each cluster, all at the same time.

    A job is named by its number, and by the run's id after a space: another job of that number is not the run's.
    A job that Slurm does not know is UNKNOWN; one of which its answer says nothing that can be read is UNREADABLE,
    which is not an end. One argument of a command holds 128 KiB: beyond some thousand jobs there are several questions.
    Of several clusters, one that does not answer leaves the jobs of the others readable.
    """
    by_cluster: dict[str, list[str]] = {}
    for job in jobs:
        by_cluster.setdefault(_cluster(job), []).append(job)
    if len(by_cluster) < 2:
        return _of_cluster(jobs)
    from concurrent.futures import (
        ThreadPoolExecutor,  # few need it, and it imports a module that users call theirs: queue
    )

    with ThreadPoolExecutor(len(by_cluster)) as pool:
        answers = [*pool.map(_of_cluster_or_silent, by_cluster.values())]
    return {job: state for answer in answers for job, state in answer.items()}


def _of_cluster_or_silent(jobs: Sequence[str]) -> dict[str, JobState]:
    try:
        return _of_cluster(jobs)
    except SlurmUnreachableError as error:
        return dict.fromkeys(jobs, JobState(UNREADABLE, error.message))


def _of_cluster(jobs: Sequence[str]) -> dict[str, JobState]:
    by_job: dict[str, JobState] = {}
    for first in range(0, len(jobs), _ASKED_AT_ONCE):
        by_job |= _states(jobs[first : first + _ASKED_AT_ONCE])
    return by_job


def _states(jobs: Sequence[str]) -> dict[str, JobState]:
    by_job = _queued(jobs)
    unread = sorted(_unread(by_job), key=_parts, reverse=True) if len(jobs) > 1 else []
    for job in unread[:_ASKED_ALONE]:
        by_job |= _queued([job])
    by_job |= {job: by_job[job]._replace(reason=NOT_ASKED, asked=False) for job in unread[_ASKED_ALONE:]}
    if gone := [*_unread(by_job), *(job for job in jobs if by_job[job].state == UNKNOWN.state)]:
        rows, not_asked = _accounted(gone, "State,ExitCode,Start,NodeList")
        by_job |= {job: JobState(UNREADABLE, NOT_ASKED, asked=False) for job in not_asked}
        for job, (state, status, start, nodes) in rows.items():
            word = (state.split() or [""])[0].rstrip("+")  # CANCELLED by 1000
            # Accounting lags behind the controller: that a job runs, of which the controller knows nothing, is old.
            if word in ENDED or (word in PENDING | ACTIVE and by_job[job].state == UNREADABLE):
                by_job[job] = JobState(word, exit=status, start=start, nodes=nodes)
    return by_job


def _unread(by_job: Mapping[str, JobState]) -> list[str]:
    return [job for job, job_state in by_job.items() if job_state.state == UNREADABLE]


def _queued(jobs: Sequence[str]) -> dict[str, JobState]:
    """Return the states that squeue reports of jobs; what cannot be read of it is UNREADABLE."""
    numbers = dict.fromkeys(_base(_parts(job)[0]) for job in jobs)
    each = ["--array"] if any(OF_ARRAY.fullmatch(_parts(job)[0]) for job in jobs) else []
    command = ["squeue", "--all", *each, "--states=all", f"--jobs={','.join(numbers)}", _QUEUED]
    answer = ask(for_clusters(_cluster(jobs[0]), command))
    if answer.code != 0 and "Invalid job id" not in answer.text:
        raise silent(answer)
    if answer.code != 0 and len(numbers) == 1:
        return dict.fromkeys(jobs, UNKNOWN)
    last = (_quote(answer) or ("it is empty",))[-1]
    other = JobState(UNREADABLE, f"The output of squeue cannot be read: {last}")
    if answer.code == 0 and any(line.startswith(_HEADER) for line in answer.out.splitlines()):
        other = UNKNOWN
    rows: dict[str, list[list[str]]] = {}
    for task, *fields in rows_of(answer):
        if fields and _STATE.fullmatch(fields[0]):
            for number in {_base(task), task}:
                rows.setdefault(number, []).append(fields)
    maintenance = functools.cache(lambda: _maintenance(_cluster(jobs[0])))
    named = {job: _parts(job)[0] for job in jobs}
    return {job: _of_rows(job, rows.get(_row(one, one), []), other, maintenance) for job, one in named.items()}


def _maintenance(cluster: str) -> tuple[float, float]:
    """Return begin and end of the next maintenance; 0 if Slurm does not tell."""
    try:
        answer = ask(for_clusters(cluster, ["scontrol", "--oneliner", "show", "reservation"]), _FOR_A_REASON)
    except SlurmUnreachableError:
        return 0.0, 0.0  # scontrol is not installed
    if answer.code != 0:
        return 0.0, 0.0
    from hpcml.schedulers import slurm_reasons

    return slurm_reasons.next_maintenance(answer.out, time.time())


def _of_rows(
    job: str, rows: list[list[str]], other: JobState, maintenance: Callable[[], tuple[float, float]]
) -> JobState:
    """Return the state of a job by squeue's rows of its number, ``other`` if there is none."""
    number, run = _parts(job)
    combined = other
    for state, *more in rows:
        reason, start, nodes = (*more[:3], "", "", "")[:3]
        if run and (doubt := _is_not(number, run, more[3:])):
            combined = doubt if combined == other else combined
            continue
        # of an array's tasks, a running one counts
        if combined.state in (UNREADABLE, UNKNOWN.state) or combined.ended:
            start = "" if start == "N/A" else start[:_LONGEST_LINE]
            combined = JobState(state, start=start, nodes=nodes)
            if state in PENDING:
                from hpcml.schedulers import slurm_reasons  # few look at a job that waits

                why = slurm_reasons.read(reason, maintenance, time.time())
                combined = combined._replace(reason=why.words, wait=why.wait)
    return combined


def _is_not(number: str, run: str, identity: list[str]) -> JobState | None:
    """Return the state of a run of whose number squeue shows a job that may not be the run's; None if it is.

    A site that takes the comment from jobs leaves the name: whether it is the run's job is then not known.
    """
    name, comment = identity[0] if identity else "", "|".join(identity[1:])
    if f"hpcml:{run}" in comment.split():
        return None
    if not identity or (comment in ("", "(null)") and name == _name(run)):
        return JobState(UNREADABLE, f"Job {number} does not have this run's comment, hpcml:{run}")
    return UNKNOWN._replace(
        reason=f"Slurm no longer knows the run's job: the number {number} now belongs to another job"
    )


def _parts(key: str) -> tuple[str, str]:
    """Return a job's number, and the id of the run whose comment it carries, empty if none is known."""
    job, _, run = key.partition(" ")
    return job.partition(";")[0], run


def _cluster(key: str) -> str:
    """Return the cluster that sbatch named for a job, empty for the login node's own."""
    return key.partition(" ")[0].partition(";")[2]


def _base(job: str) -> str:
    """Return the number of a job, also of an array's task (``12_3``, ``12_[0-3]``) or of a part of one (``12+1``)."""
    return re.split(r"[_+]", job, maxsplit=1)[0]


def _row(row: str, job: str) -> str:
    """Return the part of a row's first field that names a job: of an array's task all, else the number."""
    return row if OF_ARRAY.fullmatch(job) else _base(row)


def end(job: str) -> JobEnd:
    """Return the accounting's record of a job's end, or the controller's if there is none.

    Slurm's Reason is not asked: it is the last thing that a job waited for.
    """
    number, run = _parts(job)
    for fields in ("ExitCode,FailedNode", "ExitCode"):  # Slurm 22.05 does not tell the node
        for status, *nodes in accounted([job], fields).values():
            if ":" in status:
                failed = "".join(nodes)
                return _job_end(status, failed if re.fullmatch(r"[\w\[\],.-]+", failed) else "")
    try:
        answer = ask(for_clusters(_cluster(job), ["scontrol", "--oneliner", "show", "job", number]))
    except SlurmUnreachableError:
        return JobEnd()
    exit_code = re.search(r" ExitCode=(\d+:\d+)", answer.out)
    is_own = not run or f" Comment=hpcml:{run} " in f"{answer.out.strip()} "
    return _job_end(exit_code[1]) if exit_code and is_own else JobEnd()


def _job_end(exit_code: str, failed_nodes: str = "") -> JobEnd:
    """Return the end of which Slurm says ``status:signal``."""
    status, signal = (int(number) if NUMBER.fullmatch(number) else 0 for number in exit_code.partition(":")[::2])
    return JobEnd(signal, failed_nodes, status)


def submit_script(script: Path) -> Submission:
    """Submit a script that is no run's; AnswerLostError if it is not known whether the job exists."""
    return sbatch(str(script), chosen=user_clusters())


def cancel_named(name: str) -> None:
    """Cancel this user's jobs of a name, whose number may not be known."""
    ask(for_clusters(user_clusters(), ["scancel", "--quiet", f"--user={os.getuid()}", f"--name={name}"]), 20.0)


def cancel(job: str) -> str:
    """Cancel a job, but no other job of its number; HpcmlError if Slurm refuses, no error if it has ended."""
    number, run = _parts(job)
    if run:
        where = f" --clusters={_cluster(job)}" if _cluster(job) else ""
        look = f"squeue --jobs={_base(number)}{where}"
        hint = f"Try again in some minutes; nothing was cancelled. Or check the job with {look}."
        try:
            if readable(_queued([job])[job]).state == UNKNOWN.state:
                return ""
        except SlurmUnreachableError as error:
            raise SlurmUnreachableError(error.message, transient=True, place=error.place, hint=hint) from error
    cluster = _cluster(job)
    answer = ask(for_clusters(cluster, ["scancel", number]))
    if answer.code == 0 or "Invalid job id" in answer.text or "already completing or completed" in answer.text:
        return f"job {number} on cluster {cluster}" if cluster else f"job {number}"
    raise refusal(answer, "scancel")


def most_tasks() -> int:
    """Return the most tasks of an array whose first index is 0; 0 if this Slurm has no arrays."""
    try:
        config = ask(["scontrol", "show", "config"]).out
    except SlurmUnreachableError:
        return _USUAL_ARRAY  # scontrol is not there
    size = re.search(r"(?m)^MaxArraySize\s*=\s*(\d{1,18})\b", config)
    tasks = re.search(r"(?m)^SchedulerParameters\s*=.*\bmax_array_tasks=(\d{1,18})\b", config)
    return min([int(limit[1]) for limit in (size, tasks) if limit], default=_USUAL_ARRAY)


def task_states(jobs: Sequence[str]) -> dict[tuple[str, int], str]:
    """Return the states of arrays' tasks by number and index; what the controller has forgotten is left out.

    An array is named by its number and the id of the run whose comment it carries, as in :func:`states`.

    Raises
    ------
    SlurmUnreachableError
        If it does not answer.
    """
    numbers = {number: run for number, _, run in (job.partition(" ") for job in jobs)}
    command = ["squeue", "--all", "--array", "--noheader", "--states=all", f"--jobs={','.join(numbers)}"]
    answer = ask([*command, "--format=%F|%K|%T|%k"])
    if answer.code != 0:
        if "Invalid job id" not in answer.text:
            raise silent(answer)
        # of several jobs one that is forgotten hides the others
        return {key: state for job in jobs for key, state in task_states([job]).items()} if len(jobs) > 1 else {}
    rows = rows_of(answer)
    task_rows = [row for row in rows if len(row) > 2 and NUMBER.fullmatch(row[1]) and row[0] in numbers]
    return {
        (row[0], int(row[1])): row[2]
        for row in task_rows
        if not numbers[row[0]] or f"hpcml:{numbers[row[0]]}" in "|".join(row[3:]).split()
    }


def memory_per_node(requested: str, nodes: int, cpus: int) -> float:
    """Return sacct's ReqMem in bytes for each node of a job, 0 if it says nothing that can be read.

    Before Slurm 21.08 it is for each node (``4Gn``) or processor (``2000Mc``), since then of the whole job (``16G``).
    """
    match = _REQ_MEM.fullmatch(requested.strip())
    if match is None or nodes < 1:
        return 0.0
    size = float(units.parse_memory(match[1]))
    parts = {"n": 1.0, "c": nodes / max(1, cpus)}
    return size / parts.get(match[2].lower(), float(nodes))


def requested_memory(job: str) -> float:
    """Return the bytes that a job asked for on each node, 0 where accounting does not tell."""
    for fields in accounted([job], "ReqMem,NNodes,NCPUS").values():
        if NUMBER.fullmatch(fields[1]) and NUMBER.fullmatch(fields[2]):
            return memory_per_node(fields[0], int(fields[1]), int(fields[2]))
    return 0.0
