"""Rules for messages of programs: their cause and what to do, one row for each mechanism.

A pattern is as specific as its meaning needs: a false cause is worse than none. {0} in a sentence is the pattern's
first group. docs/troubleshooting.md explains how a cause is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcml.failures import library_rules
from hpcml.failures.end import NODE_MEMORY, Reason
from hpcml.failures.rule import Retry, Role, Rule, Where

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ERROR = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning)(?::\s.*)?")
_EMPTY = re.compile(r" \((?:missing: )?\)")  # what is left of a parenthesis whose group matched nothing


class Meaning(NamedTuple):
    """A rule that knows a text, and its cause and its remedy for that text."""

    rule: Rule
    cause: str
    remedy: str

    @property
    def sentence(self) -> str:
        """The cause as an error begins with it."""
        return self.cause[:1].upper() + self.cause[1:]


_GENERAL = ("sbatch: error: Batch job submission failed", "sbatch: error: cli_filter plugin terminated")


def own_lines(refusal: str) -> list[str]:
    """Return the output of sbatch or of the site's own check above the last line, which is general."""
    *before, last = [line for line in refusal.splitlines() if line.startswith("sbatch: error: ")] or [""]
    return [line for line in before if not line.startswith(_GENERAL)] if last.startswith(_GENERAL) else []


def filled(text: str, groups: Sequence[str | None]) -> str:
    """Return a rule's sentence with the groups of its pattern."""
    for index, group in enumerate(groups):
        text = text.replace(f"{{{index}}}", (group or "")[:100].rstrip(":,."))
    return _EMPTY.sub("", text)


def meaning(text: str, where: Where) -> Meaning | None:
    """Return the meaning of a program's output by the first row that knows it, None if there is none."""
    plain = COLOURS.sub("", text)
    if where is Where.SUBMISSION and (reasons := own_lines(plain)):
        plain = "\n".join(reasons)
    for rule in RULES:
        if where in rule.where and (match := re.search(rule.pattern, plain, re.MULTILINE)):
            return Meaning(rule, filled(rule.cause, match.groups()), filled(rule.remedy, match.groups()))
    return None


def of_refusal(message: str, quote: Iterable[str]) -> Meaning | None:
    """Return the meaning of the scheduler's refusal of a job, by hpcml's message and the quoted answer."""
    return meaning("\n".join((message, *quote)), Where.SUBMISSION)


def of_xid(xid: int) -> str:
    """Return the meaning of an Xid, the GPU driver's number of an error, as a clause; empty if no rule has it."""
    known = meaning(f"NVRM: Xid (PCI:0): {xid}, ", Where.LOG)
    return known.cause if known else ""


ROOT, CASCADE, CONFIRMATION, TEARDOWN, WARNING = Role.ROOT, Role.CASCADE, Role.CONFIRMATION, Role.TEARDOWN, Role.WARNING
_REFUSED, _ENTERING = Where.LOG | Where.SUBMISSION, Where.LOG | Where.IMAGE
_ELSEWHERE = "Try another node. Report the faulty node and its error to the site's support."
COLLECTIVE = "collective-timeout"  # the rule by which a rank waited too long for another that may still live
_FEWER_RANKS = "Request more memory per node, or start fewer ranks on each node (--ranks)."
_ONE_IMAGE = "Use the same image or environment on all nodes."
_OF_THE_PROGRAM = r"^(?:FATAL|ERROR  ):.*"  # how Apptainer and SingularityCE begin what they report

SLURM = (
    Rule("memory-by-node", ROOT,
         r"(?i)^(?!.*unrecognized option).*(?:--mem(?![\w-]).*\b(?:not|use|instead)\b|memory by node|mem-per-cpu)",
         "this site does not accept memory per node (--mem)",
         'Set slurm.remove=["--mem"] in the profile: hpcml then divides --memory-per-node by the CPUs '
         'and passes --mem-per-cpu. Or set slurm.extra=["--mem-per-cpu=4G"].',
         "memory per node not accepted", where=Where.SUBMISSION),
    Rule("memory-required", ROOT, r"(?i)memory limit must be provided",
         "this site requires each job to request memory",
         "Add --memory-per-node, or set resources.memory_per_node in the profile.", "memory not requested",
         where=Where.SUBMISSION),
    Rule("gpu-type", ROOT, r"(?i)must (?:always )?specify (?:a|the) (?:gpu )?type",
         "this partition requires the type of the GPUs", "Write the type with the number: --gpus-per-node TYPE:N. "
         "sinfo -o '%P %G' shows the types.", "GPU type required", where=Where.SUBMISSION),
    Rule("gres-closed", ROOT, r"(?i)--gres=\S+ (?:is )?no longer (?:acceptable|accepted|supported)",
         "this site does not accept GPUs requested with --gres",
         'Set slurm.gpu_request="gpus-per-node" in the profile.', "--gres not accepted", where=Where.SUBMISSION),
    Rule("gres-only", ROOT, r"GRES option unsupported by configured SelectType",
         "this Slurm accepts GPUs only with --gres", 'Set slurm.gpu_request="gres" in the profile.',
         "only --gres accepted", where=Where.SUBMISSION),
    Rule("policy-minimum", ROOT, r"QOSMin\w+",
         "the request is smaller than the minimum of the QoS",
         "Request more of what the message names, or choose another --qos.", "below the QoS's minimum",
         where=Where.SUBMISSION),
    Rule("account", ROOT, r"(?i)invalid account or (?:account/partition combination|expired budget)",
         "Slurm rejected the account for this partition, or the account's budget is used up",
         "Check --account with sacctmgr show assoc where user=$USER, or with the site's command for budgets.",
         "account rejected", where=_REFUSED),
    Rule("qos", ROOT, r"Invalid qos specification",
         "the QoS does not exist, or Slurm does not allow the QoS for the account or the partition",
         "Check --qos with sacctmgr show assoc where user=$USER format=account,qos.", "QoS rejected", where=_REFUSED),
    Rule("partition", ROOT, r"(?i)invalid partition (?:name )?specified",
         "the partition does not exist", "List the partitions with sinfo -s.", "no such partition", where=_REFUSED),
    Rule("cluster", ROOT, r"can't be reached now, or it is an invalid entry",
         "Slurm cannot reach this cluster, or there is no such cluster",
         "List the clusters with sacctmgr show cluster. If the cluster is listed, try again in some minutes.",
         "cluster not reached", where=_REFUSED),
    Rule("time-refused", ROOT, r"Requested time limit is invalid",
         "the time limit exceeds the maximum of the partition or the QoS",
         "Reduce --time, or choose another --partition or --qos.", "time limit too long", where=_REFUSED),
    Rule("array-refused", ROOT, r"Invalid job array specification",
         "an index of the job array is larger than this cluster allows",
         "Show the limit with scontrol show config | grep MaxArraySize: the largest index is one less.",
         "array index too large", where=_REFUSED),
    Rule("node-count", ROOT, r"Node count specification invalid",
         "the job requests more nodes than the partition allows", "Reduce --nodes.", "too many nodes",
         where=_REFUSED),
    # what --test-only says alone: it does not look at a QoS's PartitionMaxNodes (Slurm 22.05, 24.11, 26.05)
    Rule("configuration-tested", ROOT, r"allocation failure: Requested node configuration is not available",
         "no node of the partition matches the request, or the request has more nodes than the partition allows",
         "Request fewer CPUs or GPUs, or less memory, per node, or choose another --partition. If your QoS allows this "
         "number of nodes, submit the job: Slurm's test (sbatch --test-only) does not check the node limit of a QoS.",
         "no such nodes", where=Where.SUBMISSION),
    Rule("configuration", ROOT, r"Requested node configuration is not available",
         "no node of the partition matches the request",
         "Request fewer CPUs or GPUs, or less memory, per node, or choose another --partition.",
         "no such nodes", where=_REFUSED),
    Rule("gres", ROOT, r"Invalid generic resource \(gres\) specification|Invalid Trackable RESource \(TRES\) spec",
         "Slurm does not know the requested GPUs or other resources",
         "Compare slurm.gpu_request and slurm.gpu_type in the profile with sinfo -o '%P %G'.",
         "GPUs not known to Slurm", where=_REFUSED),
    Rule("memory-refused", ROOT, r"Memory specification can not be satisfied",
         "no node of the partition has as much memory as the job requests", "Reduce --memory-per-node.",
         "too much memory requested", where=_REFUSED),
    Rule("cpus-refused", ROOT,
         r"(?:submission failed|allocation failure): More processors requested than permitted|CPU count",
         "the job requests more CPUs than the partition has", "Reduce --nodes or --cpus-per-node.",
         "too many CPUs", where=Where.SUBMISSION),
    Rule("policy", ROOT, r"accounting/QOS policy|error: (?:QOS\w+Limit|Assoc(?:Max|Grp)\w+)",
         "the request exceeds a limit of the account or the QoS",
         "Request fewer nodes or less time, wait for your other jobs, or choose another --qos.",
         "QoS limit exceeded", where=_REFUSED),
    Rule("dependency-refused", ROOT, r"Job dependency problem",
         "Slurm rejected the dependency", "Check --dependency (afterok:JOBID).", "dependency rejected",
         where=_REFUSED),
    Rule("feature", ROOT, r"Invalid feature specification",
         "no node has the requested feature",
         "Compare --constraint, or slurm.extra in the profile, with sinfo -o '%P %f'.", "no node has the feature",
         where=_REFUSED),
    Rule("not-permitted", ROOT, r"(?i)Access/permission denied|not permitted to use",
         "Slurm does not permit this submission",
         "Check --partition, --account and the machine you submit from, or ask the site's support.",
         "submission not permitted", where=Where.SUBMISSION),
    Rule("option", ROOT, r"unrecognized option|invalid option",
         "this version of Slurm does not know one of the job's options",
         "Remove the option with slurm.remove in the profile.",
         "option unknown to Slurm", where=Where.SUBMISSION),
    Rule("spool", ROOT, r"I/O error writing script|[Dd]isk quota|No space left",
         "Slurm could not store the job script",
         "Slurm's spool directory may be full: report this error to the site's support.",
         "job script not stored", where=Where.SUBMISSION),
    Rule(Reason.NEVER_SATISFIED, ROOT, r"DependencyNeverSatisfied",
         "the job will never start: the job that it depends on did not end as required",
         "Cancel the run. Submit the run again after that other job has succeeded.", "dependency never satisfied"),
    Rule("step-memory", ROOT, r"Memory required by task is not available",
         "a job step requested memory that another step of the job already uses",
         "Start job steps inside the script with srun --overlap --mem=0.", "step without memory"),
    Rule("step-busy", WARNING, r"step creation temporarily disabled, retrying",
         "a job step waited for resources that another step of the job used",
         "Start job steps inside the script with srun --overlap."),
    Rule("step-cpus", ROOT, r"Unable to create step for job \d+: More processors requested than permitted",
         "a job step requested more processors than the job has",
         "Set --cpus-per-task for each srun inside the script. "
         "Without --cpus-per-task, srun requests as many CPUs per task as the job step that runs the script.",
         "step requests too many CPUs"),
    Rule("step-unconfirmed", ROOT, r"(?:allocation|create step) for job \d+: (?:Unable to contact|Socket timed out)",
         "Slurm's controller did not respond when a job step started", "Start the run again.", "Slurm was silent"),
    Rule("slurm-silent", WARNING, r"(?<!\d: )(?:Unable to contact slurm controller|Socket timed out on send/recv)",
         "Slurm's controller did not respond for some time"),
    Rule("rate-limit", WARNING, r"Rate limit exceeded, please retry", "Slurm received too many requests"),
    Rule("time-limit", ROOT, r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ DUE TO TIME LIMIT \*\*\*",
         "the time limit was reached",
         "Increase --time, or submit with --until-done and checkpoints: hpcml help checkpoints.", "time limit",
         Retry.TIME),
    Rule("preempted", ROOT, r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ DUE TO PREEMPTION \*\*\*",
         "the job was preempted: Slurm gave its nodes to another job",
         "Submit the run again, or choose a partition or QoS without preemption.", "preempted"),
    Rule("node-failure", ROOT, r"CANCELLED AT \S+ DUE TO NODE FAILURE|srun: error: Node failure on (\S+)",
         "a node failed or lost its network connection", _ELSEWHERE, "node failed", Retry.EXCLUDE),
    Rule("requeued", WARNING, r"CANCELLED AT \S+ DUE TO JOB REQUEUE", "Slurm requeued the job"),
    Rule("task-failure", CASCADE, r"CANCELLED AT \S+ DUE TO TASK FAILURE",
         "another task of the job step failed first"),
    Rule("oom-kill", CONFIRMATION,
         r"[Dd]etected \d+ oom[_-]kill event(?:s|\(s\))? in |srun: error: \S+: tasks? \S+: Out Of Memory",
         f"{NODE_MEMORY}, and the kernel killed a process",
         "Request more memory, or use more nodes or smaller chunks.", "out of memory", Retry.MEMORY,
         of_ranks=_FEWER_RANKS),
    Rule("chdir", ROOT, r"couldn't chdir to [`'](.+?)': (?:No such file or directory|Permission denied)",
         "the working folder does not exist on the node: {0}",
         "Submit from a folder on a file system that all nodes share.", "working folder not on node"),
    Rule("execve", ROOT,
         r"error: execve\(\): (.{1,400}?): (?:No such file or directory|Permission denied|[Bb]ad interpreter)",
         "a program cannot be started on the node: {0}",
         "Use a path that all nodes share. Convert a script from Windows with dos2unix.", "program not on node"),
    Rule("bad-interpreter", ROOT,
         r"bad interpreter: No such file or directory|/usr/bin/env: [‘'].*\\?\^?M?.*['’]: No such",
         "the interpreter in a script's first line does not exist on the node",
         "Correct the script's first line. Convert a script from Windows with dos2unix.", "interpreter not on node"),
    Rule("credential", ROOT, r"Task launch for StepId=\S+ failed on node (\S+): Job credential expired",
         "a node's clock is wrong, or the node's slurmd was overloaded", _ELSEWHERE, "step could not start",
         Retry.EXCLUDE),
    Rule("prolog", ROOT, r"Job prolog failed|launch failed requeued held",
         "the site's check of a node (prolog) failed before the job started",
         "Submit the run again without the failed node (--exclude), and report the node to the site's "
         "support.", "site's check failed"),
    Rule("requeue-limit", ROOT, r"launch failure limit exceeded requeued held",
         "the job failed to start several times, so Slurm put the job on hold",
         "Cancel the run. Submit the job again without the failed nodes (--exclude).", "held after failed starts"),
    Rule("wait-time", ROOT, r"First task exited\. Terminating job in \d+s",
         "Slurm ended a job step some seconds after its first task ended (the site's WaitTime)",
         "Start the step with srun --wait=0.", "step ended by WaitTime"),
)  # fmt: skip

DASK = (
    Rule("killed-worker", CASCADE, r"KilledWorker: Attempted to run task",
         "several workers ran the same task, and each of these workers died"),
    Rule("worker-memory", ROOT,
         r"Worker (\S+) \(pid=\d+\) exceeded \d+% memory budget",
         "a worker was killed because it used more memory than workers.memory_limit, or its share of the node",
         "Use smaller chunks, more memory, more nodes, or fewer workers per node.", "worker out of memory",
         Retry.MEMORY),
    Rule("worker-segfault", ROOT, r"Worker process \d+ was killed by signal 11\b",
         "a worker crashed (segmentation fault) in compiled code",
         "Try another version of the library that the task calls.", "worker crashed (SIGSEGV)"),
    Rule("worker-abort", ROOT, r"Worker process \d+ was killed by signal 6\b",
         "compiled code aborted a worker process",
         "The last lines of the worker's log name the library.", "worker crashed (SIGABRT)"),
    Rule("worker-bus", ROOT, r"Worker process \d+ was killed by signal 7\b",
         "a worker could not access shared or mapped memory (SIGBUS): usually /dev/shm is full",
         "Check df -h /dev/shm on the node.", "shared memory lost (SIGBUS)"),
    Rule("worker-killed", CASCADE, r"Worker process \d+ was killed by signal 9\b",
         "a worker was killed (SIGKILL)"),
    Rule("unmanaged", WARNING, r"Unmanaged memory use is high",
         "much of a worker's memory holds data that Dask does not manage"),
    Rule("paused", WARNING, r"Worker is at \d+% memory usage\. Pausing worker",
         "a worker paused: its memory was nearly full"),
    Rule("event-loop", WARNING, r"Event loop was unresponsive in \S+ for",
         "a task held Python's GIL for a long time, or a file system was slow"),
    Rule("heartbeat", CASCADE, r"Worker failed to heartbeat for \d+s",
         "a worker stopped responding"),
    Rule("lost-tasks", CASCADE, r"Removing worker .* caused the cluster to lose already computed task",
         "computed results were lost when their worker ended"),
    Rule("lost-scattered", CASCADE,
         r"(?:lose|lost) scattered data, which can't be recovered|FutureCancelledError: .*scattered",
         "scattered data was lost when its worker ended, and Dask cannot compute this data again"),
    Rule("connect-timeout", CASCADE, r"Timed out trying to connect to '?(?:tcp|tls|ucx|ucxx)://",
         "a connection to the Dask scheduler or a worker timed out"),
    Rule(Reason.NO_ADDRESS, ROOT, r"interface '?(\S+?)'? (?:doesn't have an|has no) IPv4 address",
         "the network interface {0} has no address on a node",
         "Set network.interface to an interface that all nodes have, or remove it.", "network interface missing"),
    Rule("comm-closed", CASCADE, r"CommClosedError: |StreamClosedError: Stream is closed",
         "a connection broke because the process at the other end had ended"),
    Rule("wait-workers", CASCADE, r"(?:WorkerStartTimeoutError|TimeoutError): Only \d+/\d+ workers arrived",
         "not all workers connected to the Dask scheduler in time"),
    Rule("port-in-use", WARNING, r"Port \d+ is already in use",
         "another program uses a port that Dask requested"),
    Rule("duplicate-name", ROOT, r"Worker tried to connect with a duplicate name",
         "two workers have the same name", "Start each worker once (srun -n 1), or give each worker its own name.",
         "two workers, one name"),
    Rule("large-graph", WARNING, r"Sending large graph of size",
         "the task graph contains large data: read the data on the workers instead"),
    Rule("shuffle", CASCADE,
         r"P2P \w+ failed during (?:transfer|barrier|unpack)|shuffle_transfer failed during shuffle",
         "a shuffle failed: a worker was lost, or a disk is full"),
    Rule("spill", ROOT, r"Spill to disk failed; keeping data in memory",
         "a worker could not spill to disk: the node's scratch folder is full or read-only",
         "Set paths.scratch to a disk with free space.", "scratch disk full"),
    Rule("main-guard", ROOT, r"An attempt has been made to start a new process before the|freeze_support\(\)",
         "the script starts processes but has no main guard",
         'Put the script\'s code below: if __name__ == "__main__":.', "no main guard"),
    Rule("dask-worker", ROOT, r"dask-(?:worker|scheduler|cuda-worker): command not found",
         "the script calls dask-worker or a similar command, which Dask no longer has",
         "Call dask worker, dask scheduler or dask cuda worker instead.",
         "old Dask command"),
    Rule("late-cluster", ROOT, r"unknown address scheme 'hpcml-late'",
         "a Python without hpcml's replacements opened a Dask client, but the run began without a Dask cluster",
         "Submit the run again with --set workers.start=early, which starts the cluster before the script.",
         "no Dask cluster"),
    Rule("dask-command", ROOT, r"""No such command '?\"?cuda""",
         "dask-cuda is not installed in the environment", "Install dask-cuda, or use an image with dask-cuda.",
         "dask-cuda missing"),
    Rule("lost-connection", CASCADE,
         r"Failed to communicate with scheduler during heartbeat|Connection to scheduler broken",
         "the Dask scheduler stopped responding"),
)  # fmt: skip

FILES_AND_PYTHON = (
    Rule("disk-full", ROOT, r"(?:\[Errno 28\]|Error\(28,|os error 28|(?:write|mkdir|cp|tar|cannot \w+|"
         r"creat\w*).{0,80}:) ?'?No space left on device",
         "a disk is full, or can hold no more files",
         "Delete files on the disk that the error line names. Check the free bytes (df -h) and inodes (df -i).",
         "disk full"),
    Rule("quota", ROOT, r"(?:\[Errno 122\]|Error\(122,|os error 122|: ) ?'?Disk quota exceeded",
         "a quota of bytes or files is used up",
         "Delete files that you do not need, or write to another file system.", "quota used up"),
    Rule("open-files", ROOT,
         r"(?:\[Errno 24\]|Error\(24,) ?'?Too many open files|set max open files limit \(ulimit -n\)",
         "a process has too many files or connections open", "Add ulimit -n $(ulimit -Hn) to runtime.setup.",
         "too many open files"),
    Rule("stale-handle", ROOT, r"\[Errno 116\] Stale file handle",
         "a node lost a file system (stale file handle)", _ELSEWHERE, "file system lost", Retry.EXCLUDE),
    Rule("endpoint-shutdown", ROOT, r"\[Errno 108\]|Cannot send after transport endpoint shutdown",
         "a node lost its connection to the parallel file system", _ELSEWHERE, "file system lost", Retry.EXCLUDE),
    Rule("not-connected", ROOT, r"(?:\[Errno 107\]|: ) ?Transport endpoint is not connected: '",
         "the program that provides a mounted file system (FUSE) ended", _ELSEWHERE, "file system lost", Retry.EXCLUDE),
    Rule("task-error", TEARDOWN, r"""^Exception: ["'](\w+)\(""",
         "a Dask task raised an error"),
    Rule("io-error", ROOT, r"\[Errno 5\] Input/output error",
         "a file system or a disk has errors", _ELSEWHERE, "disk error", Retry.EXCLUDE),
    Rule("read-only", ROOT, r"\[Errno 30\] Read-only file system",
         "a file system is read-only",
         "Write to the run's folder (in Python: hpcml.run.out). Files in an image are read-only.",
         "file system read-only"),
    Rule("no-submodule", ROOT,
         r"""ModuleNotFoundError(?:: |\(\\?["'])No module named \\?'([^'\\.]+)\.([^'\\]+)\\?'""",
         "the module {0} that Python found has no {1}: it has another version, or a file of yours has its name",
         "python -c 'import MODULE; print(MODULE.__file__)' shows which one Python finds. See PYTHONPATH too.",
         "module {0} has no {1}"),
    Rule("no-module", ROOT,
         r"""(?:ModuleNotFoundError(?:: |\(\\?["'])No module named \\?'|python[\d.]*: No module named )"""
         r"""([^'\\.\s]+)(?:\\?'|$)""",
         "a process of the run could not import {0}",
         "If the module is your own file, add its folder to PYTHONPATH before you submit. If the module is a package, "
         "install the package in the run's Python (runtime.python) or image.", "module {0} missing"),
    Rule("import-name", ROOT, r"ImportError: cannot import name '([^']+)' from '([^']+)'",
         "the module {1} has no {0}: the module has another version, or a file of yours has the module's name",
         "Compare the module's version on this machine with its version in the run.", "import of {0} failed"),
    Rule("rank-variable", ROOT,
         r"(?:KeyError: '|environment variable )((?:LOCAL_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|"
         r"PMI_(?:RANK|SIZE)|OMPI_COMM_WORLD_\w+)(?:'$| expected, but not set)",
         "the script needs {0}, which torchrun or mpirun sets; without --ranks hpcml starts one process",
         "Add --ranks gpu, --ranks node or --ranks N: hpcml help ranks.",
         "script needs ranks"),
    Rule("jax-ranks", ROOT, r"ValueError: coordinator_address should be defined",
         "the script calls jax.distributed.initialize(); without --ranks hpcml starts one process",
         "Add --ranks gpu, --ranks node or --ranks N: hpcml help ranks.",
         "script needs ranks"),
    Rule("mpi-rank", ROOT,
         r"MPI_ERR_RANK: invalid rank|MPI\.Exception: Invalid rank\b|Invalid rank has value \d+ but must be",
         "the script uses an MPI rank that does not exist: without --mpi each process is rank 0 of 1",
         "Add --ranks N --mpi pmix, or --mpi pmi2: hpcml help ranks.",
         "script needs ranks"),
    Rule("no-pmi", ROOT, r'application appears to have been direct launched using "srun"',
         "Open MPI cannot connect to Slurm", "Use --mpi pmix: hpcml help ranks.",
         "Open MPI without PMIx"),
    Rule("glibc", ROOT, r"version [`']GLIBC_[\d.]+' not found(?! \(required by /\.singularity\.d/libs/)",
         "a program needs a newer system library (glibc) than the node has",
         "Use a container image, or packages for the node's operating system.",
         "system library too old"),
    Rule("glibcxx", ROOT, r"version [`'](?:GLIBCXX|CXXABI)_[\d.]+' not found",
         "a loaded module's libstdc++ replaces the environment's libstdc++",
         "Load fewer modules, or remove folders from LD_LIBRARY_PATH.",
         "wrong libstdc++"),
    Rule("shared-library", ROOT,
         r"(?:ImportError|error while loading shared libraries): (lib[\w.+-]+): cannot open shared object file",
         "the shared library {0} is missing on the node",
         "Load the library's module (runtime.modules), or use an image with the library.", "library {0} missing"),
    Rule("rmm-pool", ROOT, r"RMM failure at:.*Maximum pool size exceeded",
         "the GPU's memory pool is full",
         "Use smaller Dask partitions, more GPUs, or let cuDF spill.", "GPU memory full"),
    Rule("gpu-memory", ROOT,
         r"bad_alloc: out_of_memory: CUDA error|cudaErrorMemoryAllocation|OutOfMemoryError: CUDA out of memory|"
         r"CUDARuntimeError: cudaErrorMemoryAllocation|OutOfMemoryError: Out of memory allocating",
         "a GPU's memory is full",
         "Use smaller batches or Dask partitions, or more GPUs. nvidia-smi shows whether another process uses the GPU.",
         "GPU memory full"),
    Rule("memory-error", ROOT,
         r"(?:^|[^\S\n])(?:numpy\.\S*)?_?(?:Array)?MemoryError(?:: Unable to allocate(?: (\d[\d.]* \w+))?|$|: $)|"
         r"std::bad_alloc$",
         "a process requested more memory ({0}) than is available",
         "Use smaller chunks or request more memory. In Dask, compute() brings the whole result to the script.",
         "out of memory", Retry.MEMORY, of_ranks=_FEWER_RANKS),
    Rule("segfault", ROOT, r"^Fatal Python error: Segmentation fault",
         "compiled code crashed (segmentation fault)",
         "The first line below the error names the library that crashed: try another version.", "crashed (SIGSEGV)"),
    Rule("bus-error", ROOT, r"^Fatal Python error: Bus error",
         "a process could not access shared or mapped memory (bus error): /dev/shm is full, or a mapped file was cut",
         "Check df -h /dev/shm on the node. If the code maps a file into memory, check that nothing shortens the file.",
         "shared memory lost (SIGBUS)"),
    Rule("abort", ROOT, r"^Fatal Python error: Aborted|^terminate called (?:after throwing|without an active)",
         "compiled code aborted the process", "The lines before the error name the library.", "crashed (SIGABRT)"),
    Rule("assertion", ROOT,
         r"^((?!.*block: \[).{0,200}?\.\w{1,5}:\d+: .{0,200}?[Aa]ssertion [`'\"].{1,200}?['`\"] failed)",
         "an assertion in compiled code failed: {0}",
         "Check the values that the script passed to the library that failed.", "assertion failed in compiled code"),
    Rule("illegal", ROOT, r"^Fatal Python error: Illegal instruction",
         "compiled code was built for another processor",
         "Install or build the library on a machine with the same processor as the nodes.",
         "built for another processor"),
    Rule("no-keyboard", ROOT, r"EOFError: EOF when reading a line",
         "the script asked for input, but a batch job has no keyboard",
         "Replace input() by arguments or a file.", "no keyboard"),
    Rule("debugger", ROOT, r"^(?:bdb\.)?BdbQuit\b",
         "the debugger (breakpoint(), pdb) needs a keyboard, but a batch job has no keyboard",
         "Remove breakpoint() and pdb, or attach an editor's debugger: hpcml help editors.",
         "debugger without a keyboard"),
    Rule("recursion", ROOT, r"RecursionError(?:: |\(\\?['\"])maximum recursion depth exceeded",
         "a function called itself too many times (RecursionError)",
         "The traceback shows the functions that call each other.",
         "endless recursion"),
)  # fmt: skip

GPU = (
    Rule("gpu-arrays", ROOT,
         r"TypeError: (?:Unsupported type <class 'numpy\.ndarray'>|Implicit conversion to a (?:host )?NumPy array)",
         "the script mixes NumPy and CuPy arrays",
         'Use client = hpcml.connect(backend="gpu") for CuPy arrays in Dask. Copy an array to the CPU with .get().',
         "NumPy and CuPy mixed"),
    Rule("driver-old", ROOT,
         r"cudaErrorInsufficientDriver|CUDA driver version is insufficient for CUDA runtime version|"
         r"NVIDIA driver on your system is too old",
         "the packages need a newer GPU driver than the node has, or the image was started without --nv",
         "Use packages for the node's CUDA version (cu12 for driver 535).", "GPU driver too old"),
    Rule("no-kernel", ROOT, r"no kernel image is available for execution on the device",
         "a package has no code for this kind of GPU", "Install a build of the package for the nodes' GPUs.",
         "package lacks this GPU"),
    Rule("no-gpu", ROOT, r"cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE|no CUDA-capable device is detected|"
         r"Found no NVIDIA driver on your system|RuntimeError: No CUDA GPUs are available|"
         r"Attempting to deserialize object on a CUDA device but",
         "the process has no GPU", "Request GPUs: --gpus-per-node 1.", "no GPU"),
    Rule("gpu-busy", ROOT, r"CUDA-capable device(?:\(s\) is/are|s are) busy or unavailable|cudaErrorDevicesUnavailable",
         "another process uses the GPU, or the GPU's compute mode is exclusive", _ELSEWHERE, "GPU busy", Retry.EXCLUDE),
    Rule("fabric-manager", ROOT, r"CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady|system not yet initialized",
         "NVIDIA's Fabric Manager is not running on a node", _ELSEWHERE, "GPUs not ready", Retry.EXCLUDE),
    Rule("nvml-mismatch", ROOT, r"Failed to initialize NVML: Driver/library version mismatch",
         "a node's GPU driver was updated, but the node was not rebooted", _ELSEWHERE, "GPU driver broken",
         Retry.EXCLUDE),
    Rule("ecc", ROOT,
         r"uncorrectable ECC error encountered|NVRM: Xid \(PCI:\S+\): (?:48|64|94|95)\b|cudaErrorECCUncorrectable",
         "a GPU's memory is faulty (ECC)", _ELSEWHERE, "GPU memory faulty", Retry.EXCLUDE),
    Rule("off-bus", ROOT,
         r"GPU has fallen off the bus|NVRM: Xid \(PCI:\S+\): 79\b|Unable to determine the device handle for GPU",
         "a GPU stopped responding", _ELSEWHERE, "GPU gone", Retry.EXCLUDE),
    Rule("nvlink", ROOT, r"NVRM: Xid \(PCI:\S+\): (?:74|119|120|109|62|143|14[4-9]|150)\b",
         "a GPU's link or firmware is faulty", _ELSEWHERE, "GPU link faulty", Retry.EXCLUDE),
    Rule("illegal-access", ROOT,
         r"an illegal memory access was encountered|cudaErrorIllegalAddress|NVRM: Xid \(PCI:\S+\): (?:13|31|69)\b",
         "GPU code accessed invalid memory: a bug in the program or in a library",
         "Try other versions of the libraries. compute-sanitizer finds the faulty line.", "GPU code crashed"),
    Rule("launch-failure", ROOT, r"unspecified launch failure|cudaErrorLaunchFailure",
         "GPU code crashed: a bug in the program or in a library",
         "Try other versions of the libraries. compute-sanitizer finds the faulty line.", "GPU code crashed"),
    Rule("xid-after", CASCADE, r"NVRM: Xid \(PCI:\S+\): (?:43|45)\b",
         "the GPU driver stopped a program after an error"),
    Rule("context", ROOT,
         r"A CUDA context for device .* already exists on process ID|context assigned to device .*, but .* on device",
         "a module uses the first GPU as soon as the module is imported",
         "Import the module inside the functions that need it, or set RAPIDS_NO_INITIALIZE=1.",
         "import takes first GPU"),
    Rule("affinity", WARNING, r"Setting CPU affinity for GPU \S+ failed",
         "the job does not have the CPUs closest to the GPU"),
    Rule("ipc", ROOT, r"cuIpcOpenMemHandle.*invalid argument",
         "the GPUs of a node cannot access each other",
         "Let each Slurm task use all GPUs of its node (--gpu-bind=none).",
         "GPUs hidden from each other"),
)  # fmt: skip

NETWORK = (
    Rule("ib-retry", CASCADE, r"Transport retry count exceeded on \S+",
         "an InfiniBand connection failed: the process at the other end had ended, or the link is faulty"),
    Rule("ucx-reset", CASCADE, r"UCXX?ConnectionReset(?:Error)?|Connection reset by remote peer|Endpoint timeout|"
         r"Endpoint is closed -- unable to send",
         "a UCX connection broke because the process at the other end had ended"),
    Rule("ucx-unreachable", ROOT,
         r"UCXX?Unreachable(?:Error)?\b|Destination is unreachable|no (?:remote|auxiliary|am|"
         r"active messages?) .*transport to <",
         "two processes have no UCX transport in common", f"{_ONE_IMAGE} Do not set UCX_TLS.",
         "no common UCX transport"),
    Rule("ucx-transport", ROOT, r"(?:transports? '[^ ]+' (?:is|are) not available|"
         r"network device '[^']+' is not available), please use one or more of",
         "UCX lacks a requested transport or network device", "Do not set UCX_TLS and UCX_NET_DEVICES.",
         "UCX transport missing"),
    Rule("memlock", ROOT, r"Please set max locked memory \(ulimit -l\) to 'unlimited'",
         "the node's limit for locked memory is too small for InfiniBand",
         "Add ulimit -l unlimited to runtime.setup. If that fails, ask the site's support.", "locked memory limit"),
    Rule("reg-mr", ROOT, r"ibv_reg_mr\(.*\) failed: Cannot allocate memory",
         "InfiniBand could not lock memory", "Add ulimit -l unlimited to runtime.setup.", "locked memory limit"),
    Rule("verbs", WARNING, r"libibverbs: Warning: couldn't load driver|no userspace device-specific driver found",
         "the environment lacks the InfiniBand driver: data is sent over TCP"),
    Rule("qp-init", WARNING, r"Failed to modify UD QP to INIT on \S+: Operation not permitted",
         "the process has no permission to use the InfiniBand device"),
    Rule("ibv-fork", WARNING, r"ibv_fork_init\(\) was disabled or failed, yet a fork\(\) has been issued",
         "a process was forked while InfiniBand used the process's memory"),
    Rule("nccl-bootstrap", ROOT, r"Bootstrap : no socket interface found",
         "NCCL found no network interface with the name in NCCL_SOCKET_IFNAME", "Do not set NCCL_SOCKET_IFNAME.",
         "NCCL finds no network"),
    Rule("nccl-no-ib", WARNING, r"NET/IB : No device found",
         "NCCL found no InfiniBand device and uses TCP"),
    Rule("nccl-system", ROOT,
         r"NCCL_ERROR: b'unhandled system error'|NCCL\S* error.*unhandled system error|ncclSystemError",
         "a system call of NCCL failed (socket, memory or /dev/shm)",
         "See NCCL's log in the run's logs folder.", "NCCL system error"),
    Rule("nccl-remote", CASCADE,
         r"remote process exited or there was a network error|NET/IB: Got completion from peer .* status=",
         "another rank exited"),
    Rule("nccl-shm", ROOT, r"failed to extend /dev/shm/nccl-\S+ to \d+ bytes",
         "/dev/shm is full: killed jobs left files in /dev/shm, or its size limit is small",
         "Remove your own files /dev/shm/nccl-* on the node.", "/dev/shm full"),
    Rule(COLLECTIVE, ROOT,
         r"Watchdog caught collective operation timeout(?:: WorkNCCL\(SeqNum=(\d+), OpType=(\w+))?|"
         r"Timed out waiting \d+ms for (?:recv|send) operation",
         "a rank did not join a collective operation in time",
         "Find out where each rank waited. While a run hangs, hpcml stacks shows where its ranks wait.",
         "collective operation timed out"),
    Rule("nccl-same-gpu", ROOT, r"Multiple Ranks are using the same GPU|Duplicate GPU detected",
         "two ranks use the same GPU", "Give each rank its own GPU.", "two ranks, one GPU"),
    Rule("nccl-version", ROOT, r"Mismatched NCCL version detected",
         "the ranks have different versions of NCCL", _ONE_IMAGE, "NCCL versions differ"),
    Rule("nccl-nvls", ROOT, r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory",
         "NVLink multicast does not work on a node", "Set NCCL_NVLS_ENABLE=0 (--env).", "NVLink multicast broken"),
    Rule("nccl-mixed", ROOT, r"NET/IB : Remote .* device is incompatible with the local",
         "NCCL mixed InfiniBand and Ethernet ports", "Set NCCL_IB_HCA to ports of one kind.", "NCCL mixes networks"),
)  # fmt: skip

IMAGES = (
    Rule("fuse", ROOT, r"(?i)failed to open /dev/fuse|/dev/fuse: (?:Permission|No such|Operation)|"
         r"fusermount3?: .{0,400}?(?:denied|not permitted)",
         "/dev/fuse cannot be used, but mounting an image needs /dev/fuse",
         "Try another node. Or ask the site's support to give all users access to /dev/fuse (mode 666), or to install "
         "the container program setuid.", "images not allowed", Retry.EXCLUDE, _ENTERING),
    Rule("fakeroot", ROOT, r"(?i)/etc/sub[ug]id|newuidmap|fakeroot.{0,80}(?:not|fail|denied|unable)",
         "this machine does not let you build as root in a user namespace (--fakeroot)",
         "Ask the site's support for a line in /etc/subuid and /etc/subgid. "
         "Or build the image on another machine and copy the image.",
         where=Where.BUILD),
    Rule("namespace", ROOT, r"(?i)user namespaces? (?:(?:are|is) )?(?:disabled|not)\b|failed to create user namespace|"
         r"create namespace: user|max_user_namespaces",
         "the machine does not allow user namespaces, which images need",
         "Try another node, or ask the site's support for user namespaces or a setuid container program.",
         "images not allowed", Retry.EXCLUDE, _ENTERING | Where.BUILD),
    Rule("image-slow", ROOT, r"(?:squashfuse_ll|squashfuse|fuse2fs|fuse-overlayfs) failed to mount \S+ in (\d+)s",
         "the image was not mounted within {0} s: its file system is slow or busy, often because many nodes read it",
         'Copy the image to each node first: --set runtime.stage="copy".', "image mounted too slowly",
         where=_ENTERING),
    Rule("image-noexec", ROOT,
         r"exec /\.singularity\.d/actions/\w+(?: failed)?: permission denied|fork/exec /bin/sh: permission denied",
         "the image's programs must not be executed: the image was unpacked into a file system that forbids it "
         "(noexec), or the image's files lack permissions",
         "Set TMPDIR to a folder that findmnt --target FOLDER shows without noexec. If the image is a folder, allow "
         "its users to read and execute its files.", "image not executable", where=_ENTERING | Where.BUILD),
    Rule("image-proc", ROOT, r"can't mount proc filesystem to /proc",
         "the machine does not allow the container program to mount /proc, as inside another container",
         "Run hpcml outside the other container, or ask the site's support.", "/proc not mounted", where=_ENTERING),
    Rule("image-glibc", ROOT, r"version [`']GLIBC_[\d.]+' not found \(required by /\.singularity\.d/libs/",
         "the image's system library (glibc) is older than the node's GPU driver needs",
         "Build the image from a newer operating system (From: in its definition).", "image's glibc too old",
         where=_ENTERING),
    Rule("faked", ROOT, r"mount source /\.singularity\.d/libs/faked doesn't exist",
         "--fakeroot needs the program faked, which is missing",
         "Remove --fakeroot from runtime.options, or ask the site's support for a line in /etc/subuid.",
         "faked is missing", where=_ENTERING | Where.BUILD),
    Rule("bind-source", ROOT, r"mount source (?!/\.singularity\.d/libs/faked)(\S+) doesn't exist",
         "a path in runtime.binds does not exist on the node: {0}",
         "Correct runtime.binds (or paths.scratch), or create the path on all nodes.", "path to bind missing",
         where=_ENTERING),
    Rule("bind", ROOT, r"FATAL: +container creation failed: mount .* error: .*doesn't exist in container",
         "a folder in runtime.binds does not exist in the image", "Correct runtime.binds.", "bind point missing",
         where=_ENTERING),
    Rule("image-folder", ROOT, r"failed to set working directory: chdir (\S+):",
         "the folder {0} does not exist in the image", "Add the folder to runtime.binds.", "folder not in image",
         where=_ENTERING),
    Rule("architecture", ROOT, r"image's architecture \((\w+)\) could not run on the host's \((\w+)\)",
         "the image is for {0} processors, but the machine has {1}", "Build the image on a machine like the nodes.",
         "image for another processor", where=_ENTERING),
    Rule("image-programs", ROOT, _OF_THE_PROGRAM + "(?i:exec format error)",
         "the image's programs are for another processor", "Build the image on a machine like the nodes.",
         "image for another processor", where=_ENTERING),
    Rule("image-format", ROOT, r"image format not recognized",
         "the file is not an image", "Build the image with hpcml image build, or copy the image again.", "not an image",
         where=_ENTERING),
    Rule("image-superblock", ROOT, r"bad superblock for squashfs",
         "the node's kernel cannot read the image: it lacks the image's compression, or the image is damaged",
         "Run hpcml image check. If the check finds no fault, build the image again with gzip compression: "
         'apptainer build --mksquashfs-args="-comp gzip" NEW OLD.', "image not readable", where=_ENTERING),
    Rule("image-damaged", ROOT,
         r"(?i:trying to read the squashfs image)|" + _OF_THE_PROGRAM +
         r"(?i:squashfs.{0,40}(?:corrupt|superblock)|unexpected EOF|header is corrupted|"
         r"while (?:loading|reading) .*(?:EOF|header|descriptor))",
         "the image file is damaged or truncated",
         "Copy the image again: the copy may have been interrupted. If hpcml image check finds no fault, "
         "the file system failed.",
         "image damaged", where=_ENTERING),
    Rule("image-closed", ROOT, r"could not open image .{0,400}?(?:not readable by the current user|permission denied)|"
         r"\.sif: permission denied",
         "you have no permission to read the image",
         "Check the permissions of the image and of its folders.", "no permission to read image",
         where=_ENTERING),
    Rule("image-missing", ROOT, r"could not open image (\S{1,400}): .{0,400}?no such file or directory",
         "the image does not exist: {0}",
         "Put the image on a file system that all nodes share, and do not move it after the submission.",
         "image does not exist",
         where=_ENTERING),
    Rule("image-room", ROOT, _OF_THE_PROGRAM + "(?i:no space left on device|disk quota exceeded)",
         "there is not enough space to unpack the image: a disk is full, or a quota is used up",
         "Delete files in the machine's temporary folder and in your home folder, or set TMPDIR to another "
         "folder.",
         "no space for image", where=_ENTERING),
    Rule("image-memory", ROOT, _OF_THE_PROGRAM + "(?i:cannot allocate memory|resource temporarily unavailable)",
         "the container program could not get enough memory, or could not start another process",
         "Increase --memory-per-node, or check the node's limit on the number of your processes (ulimit -u).",
         "no memory for image", where=_ENTERING),
    Rule("image-python", ROOT, _OF_THE_PROGRAM + r"(?i:python3?\S*.{0,40}(?:not found|no such file))",
         "the image lacks the run's Python",
         "Install python3 in the image and set PATH in %environment, or correct runtime.python.", "no Python in image",
         where=_ENTERING),
    Rule("image-option", ROOT, r'^Error for command "\w+": unknown (?:shorthand )?flag\b.*?(-\S+)',
         "the container program does not know the option {0}",
         "Correct runtime.options, or use a newer container program.",
         "wrong container option", where=_ENTERING),
    Rule("nv-files", WARNING, r"Could not find any nv files on this host",
         "the node has no GPU driver for the image"),
    Rule("capabilities", ROOT, r"Requesting capability set",
         "root on this machine lacks capabilities that the build needs",
         "Build as an ordinary user with --fakeroot. This user needs a line in /etc/subuid.", where=Where.BUILD),
    Rule("needs-root", ROOT, r"(?i)must be (?:the )?root",
         "the build must run as root", "Use --fakeroot, or build on a machine where you are root.", where=Where.BUILD),
    Rule("registry", ROOT, r"toomanyrequests|429 Too Many",
         "the image registry refused the download, because there were too many downloads",
         "Try again in a few hours, or log in to the registry.",
         where=Where.BUILD),
    Rule("hash", ROOT, r"(?s)DO NOT MATCH THE HASHES.{0,2000}?\n\s*([^\s:]+)[^\n]*:\s*Expected sha256",
         "a downloaded package differs from its hash in the list of wheels: {0}",
         "Do not use this package. Tell the package index's owner. Or build with another index (--build-arg "
         "PIP_INDEX=URL).", where=Where.BUILD),
    Rule("no-hash", ROOT, r"[Ii]n --require-hashes mode|^\S+ \S+ requires .+, which is not installed",
         "the list of wheels (LOCK) is not complete: a package, a version or a hash is missing",
         "Write the list with all packages and their hashes (hpcml help images).", where=Where.BUILD),
    Rule("no-wheel", ROOT, r"No matching distribution found for (\S+)",
         "the package index has no {0} for the image's Python and this processor",
         "Update the site's package index, or build with another index (--build-arg PIP_INDEX=URL).",
         where=Where.BUILD),
    Rule("download", ROOT,
         r"(?i)no such host|name resolution|connection refused|network is unreachable|(?:handshake|i/o) timeout|"
         r"connection timed out|proxyconnect|certificate signed by unknown|certificate_verify_failed",
         "a download failed",
         "Check this machine's internet access (http_proxy, https_proxy). Compute nodes usually have no internet "
         "access.",
         where=Where.BUILD),
    Rule("image-test", ROOT, r"(?i)test script|%test",
         "the image was built, but its test failed",
         "In the build's output, the lines before the last line show which part failed.",
         where=Where.BUILD),
    Rule("post", ROOT, r"(?i)%post|post script",
         "a command of %post failed",
         "In the build's output, the lines before the last line show the failed command.", where=Where.BUILD),
)  # fmt: skip

OWN = (  # what hpcml finds out itself: a field of the run's end names the row, and no text is looked at
    Rule(Reason.BATCH_KILLED, ROOT, "", "the batch script was killed",
         "A user, the site or the kernel killed the batch script on the first node. Submit the run again.",
         "batch script killed", where=Where(0)),
    Rule(Reason.DAMAGED_LIBRARY, ROOT, "", "lib.zip in the run's directory is damaged or missing",
         "Submit the run again. If lib.zip is damaged again, check the file system of paths.runs.",
         "hpcml's modules damaged", where=Where(0)),
    Rule(Reason.LACKS_PACKAGES, ROOT, "", "the run's Python lacks packages that a Dask cluster needs",
         "Install these packages, or name another Python (--python PATH).", "Python lacks packages", where=Where(0)),
    Rule(Reason.SHADOWED, ROOT, "", "a folder of PYTHONPATH hides a package that hpcml needs",
         "Remove this folder from PYTHONPATH, then submit again.", "PYTHONPATH hides a package", where=Where(0)),
    # an agent names these of the processes that it starts (ProcessEnd), and some of those above
    Rule("worker-oom", ROOT, "", f"a worker was killed because {NODE_MEMORY}",
         "Request more memory, or use more nodes or smaller chunks.", "worker out of memory", Retry.MEMORY,
         where=Where(0)),
    Rule("worker-exit", ROOT, "", "a worker exited with status {1}",
         "The last lines of the worker's log show why: hpcml logs RUN workers. "
         "If they show no error, a task or a library called os._exit.", "worker exited", where=Where(0)),
    # the event script-blocked
    Rule("frozen", ROOT, "", "the script was blocked on a file system that did not respond ({0})", _ELSEWHERE,
         "file system does not respond", Retry.EXCLUDE, where=Where(0)),
    # image.sh leaves these
    Rule(Reason.NO_CONTAINER_PROGRAM, ROOT, "", "the container program is missing",
         "Load the program's module (runtime.modules) or correct runtime.container.",
         "no container program", where=Where(0)),
    Rule(Reason.TMPDIR_NOT_BOUND, ROOT, "", "TMPDIR cannot be bound into an image",
         "Set TMPDIR to another folder (runtime.setup).", "TMPDIR cannot be bound", where=Where(0)),
    Rule(Reason.TMPDIR_OPEN, ROOT, "", "other users may replace the contents of TMPDIR",
         "Set TMPDIR to your own folder, or to a sticky folder of root.", "TMPDIR not protected", where=Where(0)),
)  # fmt: skip

RULES = (*SLURM, *DASK, *FILES_AND_PYTHON, *library_rules.RULES, *GPU, *NETWORK, *IMAGES)  # by texts of programs
BY_NAME = {rule.name: rule for rule in (*RULES, *OWN)}
