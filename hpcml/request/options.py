"""The options of a run, in one table: the command line, ``# hpcml:`` lines, Python and completion read it."""

from __future__ import annotations

from hpcml.kinds import KINDS
from hpcml.request.option import (
    ALL,
    CONTINUED,
    RUNS,
    SUBMISSIONS,
    Option,
    awaited,
    flag,
    gpus,
    hours,
    measured,
    texts,
    whole,
)
from hpcml.request.record import options_of


def _of_kinds(title: str) -> tuple[Option, ...]:
    """Return the rows that the kinds of run have in a group of the help."""
    rows: dict[str, Option] = {}
    for kind in KINDS:
        for row in options_of(kind).rows.get(title, ()):
            first = rows.get(row.name, row)  # of an option that several kinds have
            rows[row.name] = first._replace(kinds=first.kinds | {kind})
    return tuple(rows.values())


# fmt: off
GROUPS: dict[str, tuple[Option, ...]] = {
    "where": (
        Option("site", "site profile to use; hpcml site ls lists them (default: HPCML_SITE, else the one found here)"),
        Option("account", "Slurm account to charge (default: defaults.account of the profile)",
               also=("-A",), slurm=("--account",)),
        Option("partition", "Slurm partition (default: defaults.partition if the request fits it, else the first "
               "that fits)", also=("-p",), slurm=("--partition",)),
        Option("qos", "Slurm quality of service (default: defaults.qos, else the partition's)",
               also=("-q",), slurm=("--qos",)),
        Option("dependency", "Slurm dependency, e.g. afterok:123", ALL - {"elastic"},
               also=("-d",), slurm=("--dependency",)),
        Option("after", "start after RUN succeeded; RUN:any: after it ended; RUN:fail: after it failed (repeatable)",
               RUNS, read=awaited, slurm=("--dependency",)),
    ),
    "how much": (
        Option("nodes", "number of nodes (default: defaults.nodes)", ALL - {"elastic"}, read=whole,
               also=("-N",), slurm=("--nodes",)),
        Option("time", "time limit: 30 (minutes), 2:00:00, 1-12:00:00, 90m (default: defaults.time, else the "
               "partition's)", read=measured, also=("-t",), slurm=("--time",)),
        Option("gpus_per_node", "GPUs per node, one worker for each: 4, or a100:4 (default: defaults.gpus_per_node)",
               read=gpus, slurm=("--gpus-per-node", "--gres", "--gpus", "--gpus-per-task")),
        Option("cpus_per_node", "CPUs on each node (default: resources.cpus_per_node, else the partition's, or some "
               "GPUs' share of them; else Slurm's)", read=whole, slurm=("--cpus-per-task", "--cpus-per-gpu")),
        Option("memory_per_node", "memory on each node: 120G, or MiB (default: resources.memory_per_node, else the "
               "partition's, or some GPUs' share of it; else Slurm's)", read=measured,
               also=("--mem",), slurm=("--mem", "--mem-per-cpu", "--mem-per-gpu")),
    ),
    "how": (
        Option("name", "the run's name: at most 64 letters, digits, . _ - (default: the script's)",
               also=("-J", "--job-name"), slurm=("--job-name",)),
        Option("set", "a value of the profile, e.g. workers.per_node=4 (repeatable)",
               read=texts, metavar="KEY=VALUE"),
        Option("image", "run all roles inside this Apptainer image (default: runtime.image, if runtime.kind is image)",
               ALL - {"map"}),
        Option("env", "NAME=VALUE for scheduler, workers and script, or NAME as it is here (repeatable)", read=texts),
        Option("env_file", "file of NAME=VALUE lines, with # comments; --env overrides it (repeatable)",
               read=texts),
        *_of_kinds("how"),
        Option("max_restarts", "with --until-done: how many attempts may follow the first (20)", CONTINUED, read=whole),
        Option("max_node_hours", "with --until-done: stop restarting before the total exceeds this many node-hours",
               CONTINUED, read=hours),
    ),
    "passed to Slurm": (
        Option("constraint", "node features to require", also=("-C",), passed=True),
        Option("exclude", "nodes to avoid", also=("-x",), passed=True),
        Option("nodelist", "nodes to use", also=("-w",), passed=True),
        Option("reservation", "reservation to run in", passed=True),
        Option("mail_user", "address for mail from Slurm", passed=True),
        Option("mail_type", "events that send mail, e.g. END,FAIL", passed=True,
               values=("BEGIN", "END", "FAIL", "REQUEUE", "ALL", "NONE", "TIME_LIMIT", "TIME_LIMIT_90", "ARRAY_TASKS")),
        Option("begin", "earliest start, e.g. 20:00 or now+1hour", also=("-b",), passed=True),
        Option("sbatch", "any other sbatch option in its long form: --sbatch=--licenses=foo (repeatable)",
               read=texts),
        Option("exclusive", "use whole nodes, without other jobs on them (default: resources.exclusive)",
               read=flag, passed=True),
    ),
    "what to do": (
        Option("dry_run", "check the request, print a summary and submit nothing; =script: print the batch script; "
               "with --json: the plan", SUBMISSIONS | {"run"}, metavar="script", values=("script", "summary"),
               alone="summary"),
        Option("prepare", "write the run and print the sbatch line that submits it; submit nothing",
               SUBMISSIONS | {"python"}, read=flag),
        Option("check", "ask Slurm whether it would take the job (sbatch --test-only); submit nothing; an image is "
               "looked at", SUBMISSIONS, read=flag),
        Option("wait", "wait, pass on the script's output byte for byte and exit with its status (on a terminal: the "
               "default)", SUBMISSIONS | {"sweep"}, read=flag),
        Option("detach", "do not wait (elsewhere: the default)", SUBMISSIONS | {"sweep"}, read=flag),
        Option("json", "print facts as JSON; without --wait it does not wait", SUBMISSIONS | {"sweep", "run"},
               read=flag),
        Option("until_done", "continue after the time limit, a preemption or a node's failure, from the script's "
               "checkpoints", CONTINUED, read=flag),
        *_of_kinds("what to do"),
    ),
}
# fmt: on
OPTIONS = {option.name: option for group in GROUPS.values() for option in group}
BY_WORD = {word: option for option in OPTIONS.values() for word in (option.word, *option.also)}
TAKES_VALUE = {word: option.takes_word for word, option in BY_WORD.items()}


def of(taker: str) -> dict[str, Option]:
    """Return the options that a taker has, by name."""
    return {name: option for name, option in OPTIONS.items() if taker in option.takers}
