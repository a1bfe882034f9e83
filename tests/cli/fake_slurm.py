"""Slurm's commands as far as hpcml uses them, with what they do kept in the folder $FAKE_STATE.

``PROGRAM.answer`` there changes what a program does: ``out``, ``err`` and ``code`` are its answer, ``sleep`` its delay
before it, ``until`` a file that it waits for, and ``then`` says that it does its work nevertheless (an answer that was lost). Options are checked against
those that ``--help`` of Slurm 22.05 lists, and --kill-on-invalid-dep, which its manual has. The files hold Python's
literals: importing json and pathlib would take twice as long as all else, more than a thousand times.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing is dear too
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STATE = os.environ["FAKE_STATE"]
OPTIONS = {
    "sbatch": """container contiguous get-user-env help hold ignore-pbs kill-on-invalid-dep= no-kill no-requeue overcommit oversubscribe parsable
        quiet reboot requeue spread-job test-only usage use-min-nodes verbose version wait account= array= bb= bbf= begin=
        chdir= cluster-constraint= clusters= comment= constraint= core-spec= cores-per-socket= cpu-freq= cpus-per-gpu=
        cpus-per-task= deadline= delay-boot= dependency= distribution= error= exclude= exclusive exclusive= export=
        export-file= extra-node-info= gid= gpu-bind= gpu-freq= gpus= gpus-per-node= gpus-per-socket= gpus-per-task= gres=
        gres-flags= input= job-name= licenses= mail-type= mail-user= mcs-label= mem= mem-per-cpu= mem-per-gpu= mincpus=
        nice= nodefile= nodelist= nodes= ntasks= ntasks-per-core= ntasks-per-node= ntasks-per-socket= open-mode= output=
        partition= power= priority= profile= propagate= qos= reservation= signal= sockets-per-node= switches= thread-spec=
        threads-per-core= time= time-min= tmp= uid= wckey= wrap=""",
    "squeue": """all array array-unique federation help hide json local long me noconvert noheader sibling start usage verbose
        version yaml account= clusters= format= iterate= job= jobs= licenses= name= nodelist= partition= qos= reservation=
        sort= states= steps= user=""",
    "sacct": "allocations duplicates noheader parsable2 clusters= format= jobs= starttime=",
    "scancel": """batch full help hurry interactive me quiet usage verbose version account= clusters= name= partition= qos= signal= state=
        user= wckey=""",
    "scontrol": "all help oneliner quiet verbose version clusters=",
    "sinfo": "exact noheader format= clusters=",
    "sacctmgr": "noheader parsable2",
}


def main(program: str, arguments: list[str]) -> int:
    with open(f"{STATE}/calls", "a") as file:
        file.write(f"{ {'program': program, 'arguments': arguments, 'environment': dict(os.environ)} }\n")
    positional = [word for word in arguments if not word.startswith("-")]
    check(program, [word for word in arguments if word.startswith("-")])
    answer = read(f"{program}.answer")
    code, out = 0, ""
    if not answer or answer.get("then"):
        code, out = WORK[program](arguments, positional)
    time.sleep(answer.get("sleep", 0))
    while "until" in answer and not os.path.exists(answer["until"]):
        time.sleep(0.01)
    sys.stdout.write(answer.get("out", out))
    sys.stderr.write(answer.get("err", ""))
    return int(answer.get("code", code))


def read(name: str) -> dict[str, Any]:
    """Return what a file of the folder holds."""
    try:
        with open(f"{STATE}/{name}") as file:
            return dict(eval(file.read()))  # noqa: S307 - the tests' own
    except FileNotFoundError:
        return {}


def check(program: str, options: list[str]) -> None:
    known = set(OPTIONS[program].split())
    for word in options:
        name, equals, _ = word.removeprefix("--").partition("=")
        if f"{name}{equals}" not in known:
            sys.exit(f"{program}: unrecognized option '{word}'")


def jobs() -> dict[str, dict[str, str]]:
    return read("jobs")


def save(found: dict[str, dict[str, str]]) -> None:
    new = f"{STATE}/jobs.{os.getpid()}"  # whoever reads it meanwhile finds the whole of one or the other
    with open(new, "w") as file:
        file.write(repr(found))
    os.replace(new, f"{STATE}/jobs")  # noqa: PTH105 - without pathlib, as all here


def machine() -> Any:
    """Return the machine of a file that $FAKE_SITE names; None without one."""
    path = os.environ.get("FAKE_SITE")
    if not path:
        return None
    sys.path.append(__file__.rpartition("/")[0])
    import site_slurm

    return site_slurm.Site(path)


def answer_of(program: str) -> Callable[[list[str], list[str]], tuple[int, str]]:
    """Return what asks the machine of a file."""

    def asked(arguments: list[str], _positional: list[str]) -> tuple[int, str]:
        site = machine()
        code, out, err = site.answer(program, arguments) if site else (0, "", "")
        sys.stderr.write(err)
        return code, out

    return asked


def sbatch(arguments: list[str], positional: list[str]) -> tuple[int, str]:
    with open(positional[0]) as file:
        lines = file.read().splitlines()
    directives = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    check("sbatch", directives)
    options = dict(line.partition("=")[::2] for line in directives)
    reason = "Priority"
    if site := machine():
        job = str(max([100, *map(int, jobs())]) + 1)
        code, out, err, verdict = site.submitted(options, arguments, job)
        sys.stderr.write(err)
        if code and "--test-only" not in arguments:
            with open(f"{STATE}/refusal", "w") as file:
                file.write(err or out)
        if code or "--test-only" in arguments:
            return code, out
        reason = verdict.reason or reason
    if "--test-only" in arguments:
        sys.stderr.write(
            "sbatch: Job 7 to start at 2026-11-21T08:00:00 using 1 processors on nodes n1 in partition boost\n"
        )
        return 0, ""
    known = jobs()
    numbers = [int(one.partition("_")[0]) for one in known]
    job = str(max([100, *(number for number in numbers if number < 4000)]) + 1)
    facts = {"state": "PENDING", "reason": reason, "script": positional[0], "name": options["--job-name"]}
    cluster = options.get("--clusters", "").split(",")[-1]  # the first that can start it
    if site:
        job, _, cluster = out.splitlines()[-1].partition(";")
    first, _, last = options.get("--array", "").partition("%")[0].partition("-")
    tasks = [f"{job}_{index}" for index in range(int(first), int(last or first) + 1)] if first else [job]
    save({**known, **{task: {"comment": options["--comment"], "cluster": cluster, **facts} for task in tasks}})
    return 0, out if site else f"{job};{cluster}\n" if cluster else f"{job}\n"


def squeue(arguments: list[str], _positional: list[str]) -> tuple[int, str]:
    options = dict(word.removeprefix("--").partition("=")[::2] for word in arguments)
    cluster = options.get("clusters", "")
    here = {job: facts for job, facts in jobs().items() if facts.get("cluster", "") == cluster}
    if read("down").get(cluster):
        sys.stderr.write(f"squeue: error: Unable to contact slurm controller of {cluster}\n")
        return 1, ""
    asked = options["jobs"].split(",") if "jobs" in options else list(here)
    titles = {
        "i": "JOBID", "T": "STATE", "r": "REASON", "S": "START_TIME", "N": "NODELIST", "j": "NAME", "k": "COMMENT",
    }  # fmt: skip
    rows = [] if "noheader" in options else [titles]
    for job, facts in here.items():
        if {job, job.partition("_")[0]} & {*asked}:
            rows.append({"i": job, "k": facts["comment"], "T": facts["state"], "r": facts["reason"], "S": "N/A", "N": "",
                         "j": facts["name"]})  # fmt: skip
    if len(asked) == 1 and asked[0] not in {job.partition("_")[0] for job in here} and "jobs" in options:
        sys.stderr.write("slurm_load_jobs error: Invalid job id specified\n")
        return 1, ""
    banner = f"CLUSTER: {cluster}\n" if cluster else ""
    lines = ["|".join(row.get(word[1], "") for word in options["format"].split("|")) for row in rows]
    return 0, banner + "".join(f"{line}\n" for line in lines)


def sacct(_arguments: list[str], _positional: list[str]) -> tuple[int, str]:
    sys.stderr.write("Slurm accounting storage is disabled\n")
    return 1, ""


def scancel(arguments: list[str], positional: list[str]) -> tuple[int, str]:
    found = jobs()
    cluster = next((word.partition("=")[2] for word in arguments if word.startswith("--clusters=")), "")
    for job in positional:
        tasks = [one for one in found if job in (one, one.partition("_")[0])]
        if not tasks or found[tasks[0]].get("cluster", "") != cluster:
            sys.stderr.write(f"scancel: error: Kill job error on job id {job}: Invalid job id specified\n")
            return 1, ""
        for task in tasks:
            found[task]["state"] = "CANCELLED"
    save(found)
    return 0, ""


WORK = {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel,
        **{program: answer_of(program) for program in ("scontrol", "sinfo", "sacctmgr")}}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
