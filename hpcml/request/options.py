"""The options that a run of every kind has, by their group of the help; hpcml.options.table adds those of kinds."""

from __future__ import annotations

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

FEW = ALL - {"sweep"}  # whose own options leave no room in its --help


# fmt: off
GROUPS: dict[str, tuple[Option, ...]] = {
    "where": (
        Option("site", "site name; see hpcml site ls", default="name",
               otherwise="detected", common=ALL),
        Option("account", "account to charge", also=("-A",), slurm=("--account",), default="defaults.account",
               common=ALL),
        Option("partition", "partition, or a,b", also=("-p",), slurm=("--partition",), default="defaults.partition",
               otherwise="the first that fits, or Slurm's default", common=ALL),
        Option("qos", "Slurm quality of service", also=("-q",), slurm=("--qos",), default="defaults.qos",
               otherwise="the site profile's value for the partition"),
        Option("clusters", "Slurm cluster, or a,b", RUNS, also=("-M",), slurm=("--clusters", "-M")),
        Option("dependency", "Slurm dependency, e.g. afterok:123", ALL - {"elastic"},
               also=("-d",), slurm=("--dependency",)),
        Option("after", "start after RUN succeeds; RUN:any: after RUN ends; RUN:fail: after RUN fails",
               RUNS, read=awaited, slurm=("--dependency",), metavar="RUN[:END]"),
    ),
    "how much": (
        Option("nodes", "number of nodes", ALL - {"elastic"}, read=whole, also=("-N",), slurm=("--nodes",), metavar="N",
               default="defaults.nodes", common=ALL),
        Option("time", "time limit, e.g. 90s, 2h, 1-12:00:00", read=measured, also=("-t",), slurm=("--time",),
               default="defaults.time", otherwise="the partition's DefaultTime", common=ALL),
        Option("gpus_per_node", "GPUs per node, one worker per GPU", read=gpus, metavar="[TYPE:]N", common=ALL,
               slurm=("--gpus-per-node", "--gres", "--gpus", "--gpus-per-task"), default="defaults.gpus_per_node",
               otherwise="0"),
        Option("cpus_per_node", "CPUs per node", read=whole, slurm=("--cpus-per-task", "--cpus-per-gpu"), metavar="N",
               default="resources.cpus_per_node", otherwise="the site profile's value for the partition"),
        Option("memory_per_node", "memory per node, e.g. 120G; 0: all", read=measured, also=("--mem",), metavar="SIZE",
               slurm=("--mem", "--mem-per-cpu", "--mem-per-gpu"), default="resources.memory_per_node",
               otherwise="the site profile's value for the partition", common=FEW),
    ),
    "how": (
        Option("name", "run's name", also=("-J", "--job-name"),
               slurm=("--job-name",), otherwise="script's or command's name", common=FEW),
        Option("set", "set a profile key: workers.threads=4", read=texts, metavar="KEY=VALUE",
               common=FEW),
        Option("python", "run's Python: folder or name; hpcml help python", RUNS - {"lines"}, metavar="PATH|NAME",
               common=frozenset(["submit", "rerun", "jupyter", "run"])),
        Option("image", "Apptainer image", ALL - {"map"}, common=FEW, otherwise="the site's image"),
        Option("env", "environment variable for the run; NAME alone takes its value from this shell", read=texts,
               metavar="NAME[=VALUE]", common=FEW),
        Option("env_file", "file of NAME=VALUE lines, with # comments; --env overrides the file", read=texts,
               metavar="FILE"),
        Option("max_restarts", "with --until-done: largest number of attempts after the first", CONTINUED, read=whole,
               metavar="N", otherwise="20"),
        Option("max_node_hours", "with --until-done: stop restarting before all attempts together exceed N node-hours",
               CONTINUED, read=hours, metavar="N"),
    ),
    "passed to Slurm": (
        Option("constraint", "features that the nodes must have", also=("-C",), passed=True, metavar="FEATURES"),
        Option("exclude", "nodes that the job must not include", also=("-x",), passed=True, metavar="NODES"),
        Option("nodelist", "nodes that the job must include", also=("-w",), passed=True, metavar="NODES"),
        Option("reservation", "reservation to run in", passed=True),
        Option("mail_user", "address for mail from Slurm", passed=True, metavar="ADDRESS"),
        Option("mail_type", "events that send mail, e.g. END,FAIL", passed=True, metavar="EVENTS",
               values=("BEGIN", "END", "FAIL", "REQUEUE", "ALL", "NONE", "TIME_LIMIT", "TIME_LIMIT_90", "ARRAY_TASKS")),
        Option("begin", "earliest start of the job, e.g. 20:00 or now+1hour", also=("-b",), passed=True,
               metavar="WHEN"),
        Option("sbatch", "any other sbatch option in its long form, e.g. --sbatch=--licenses=foo", read=texts,
               metavar="OPTION"),
        Option("exclusive", "use whole nodes, without other jobs on them", read=flag, passed=True,
               default="resources.exclusive"),
    ),
    "what to do": (
        Option("dry_run", "only show the job, or the batch script (=script)", SUBMISSIONS | {"run"},
               metavar="script", values=("script", "summary"), alone="summary", common=ALL),
        Option("prepare", "write the run's folder and print the sbatch command; submit nothing",
               SUBMISSIONS | {"python"}, read=flag),
        Option("check", "test the job with sbatch --test-only; submit nothing", SUBMISSIONS,
               read=flag),
        Option("wait", "wait for the run's end, show its output, exit with its status",
               SUBMISSIONS | {"sweep"}, read=flag, otherwise="on a terminal", common=FEW),
        Option("detach", "do not wait for the run", SUBMISSIONS | {"sweep"}, read=flag,
               otherwise="if no terminal", common=FEW),
        Option("json", "print JSON about the submission; with --wait, about the run's end",
               SUBMISSIONS | {"sweep", "run"}, read=flag),
        Option("until_done", "restart from checkpoints until the script is done",
               CONTINUED, read=flag, common=ALL),
    ),
}
# fmt: on
OPTIONS = {option.name: option for group in GROUPS.values() for option in group}
