"""What Slurm says on a real machine, and what its sbatch says to a request, by a file of tests/fixtures/sites.

A file has values, not texts. This module writes the answers as Slurm 20.02 to 25.11 writes them, and judges a request
by the same values: an answer and a refusal cannot disagree. tests/fixtures/sites/README.md describes the files.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Fields = dict[str, str]

NODE = {
    "Arch": "x86_64", "CoresPerSocket": "1", "CPUAlloc": "0", "CPUEfctv": "", "CPUTot": "1", "CPULoad": "0.01",
    "AvailableFeatures": "(null)", "ActiveFeatures": "(null)", "Gres": "(null)", "NodeAddr": "", "NodeHostName": "",
    "OS": "Linux 5.14.0-503.el9.x86_64 #1 SMP", "RealMemory": "1", "AllocMem": "0", "FreeMem": "100", "Sockets": "1",
    "Boards": "1", "MemSpecLimit": "", "State": "IDLE", "ThreadsPerCore": "1", "TmpDisk": "0", "Weight": "1",
    "Owner": "N/A", "MCS_label": "N/A", "Partitions": "", "BootTime": "2026-10-01T08:00:00",
}  # fmt: skip
PARTITION = {
    "AllowGroups": "ALL", "AllowAccounts": "ALL", "AllowQos": "ALL", "AllocNodes": "ALL", "Default": "NO", "QoS": "N/A",
    "DefaultTime": "NONE", "DisableRootJobs": "NO", "ExclusiveUser": "NO", "GraceTime": "0", "Hidden": "NO",
    "MaxNodes": "UNLIMITED", "MaxTime": "UNLIMITED", "MinNodes": "0", "LLN": "NO", "MaxCPUsPerNode": "UNLIMITED",
    "Nodes": "", "PriorityJobFactor": "1", "PriorityTier": "1", "RootOnly": "NO", "ReqResv": "NO",
    "OverSubscribe": "NO", "OverTimeLimit": "NONE", "PreemptMode": "OFF", "State": "UP", "TotalCPUs": "",
    "TotalNodes": "", "SelectTypeParameters": "NONE", "JobDefaults": "(null)", "DefMemPerNode": "UNLIMITED",
    "MaxMemPerNode": "UNLIMITED", "TRES": "",
}  # fmt: skip
CONFIG = {
    "AccountingStorageEnforce": "associations,limits,qos", "AccountingStorageType": "accounting_storage/slurmdbd",
    "EnforcePartLimits": "NO", "JobRequeue": "1", "JobSubmitPlugins": "(null)", "KillWait": "30 sec",
    "MaxArraySize": "1001", "PriorityFlags": "(null)", "PrivateData": "none", "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CORE_MEMORY",
}  # fmt: skip
QOS = ("Name", "Priority", "GraceTime", "Preempt", "PreemptMode", "Flags", "UsageFactor", "GrpTRES", "GrpJobs", "MaxTRES",
       "MaxTRESPerNode", "MaxWall", "MaxTRESPU", "MaxJobsPU", "MaxSubmitPU", "MinTRES")  # fmt: skip
ASSOC = ("Cluster", "Account", "User", "Partition", "Share", "GrpTRES", "MaxJobs", "MaxSubmit", "MaxWall", "QOS",
         "Def QOS")  # fmt: skip
INSTEAD = {"DenyAccounts": "AllowAccounts", "DenyQos": "AllowQos", "MaxMemPerCPU": "MaxMemPerNode",
           "DefMemPerCPU": "DefMemPerNode", "Exclusive": "ExclusiveUser"}  # fmt: skip
NOTHING = ("", "N/A", "NONE", "UNLIMITED", "INFINITE", "(null)", "ALL")


class Verdict(NamedTuple):
    """What sbatch says to a request; ``reason`` is why a job that is taken never starts."""

    says: tuple[str, ...] = ()  # on standard error, without "sbatch: "
    message: str = ""  # the error, empty if the job is taken
    reason: str = ""
    partition: str = ""
    stdout: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether the job starts at some time."""
        return not self.message and not self.reason and not self.stdout


class Site:
    """A machine of a file."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self.table: dict[str, Any] = tomllib.load(file)
        self.kinds: list[dict[str, str]] = [texts(one) for one in self.table.get("node", {}).values()]
        for kind in self.kinds:
            kind.setdefault("CPUEfctv", kind["CPUTot"])
        self.config = {**CONFIG, **texts(self.table.get("config", {}))}
        self.qos = {name: texts(one) for name, one in self.table.get("qos", {}).items()}
        self.assoc: list[Fields] = [texts(one) for one in self.table.get("assoc", [])]
        self.rules: list[dict[str, Any]] = self.table.get("rule", [])
        self.partitions = {name: self._partition(name, texts(one)) for name, one in self.table["partition"].items()}

    def of(self, partition: str) -> list[Fields]:
        """Return the kinds of nodes of a partition."""
        return [kind for kind in self.kinds if partition in kind["Partitions"].split(",")]

    def _partition(self, name: str, given: Fields) -> Fields:
        kinds = self.of(name)
        nodes = sum(count(kind["names"]) for kind in kinds)
        cpus = sum(count(kind["names"]) * int(kind["CPUTot"]) for kind in kinds)
        memory = sum(count(kind["names"]) * int(kind["RealMemory"]) for kind in kinds)
        gpus = sum(count(kind["names"]) * sum(gres(kind["Gres"]).values()) for kind in kinds if "Gres" in kind)
        tres = f"cpu={cpus},mem={memory}M,node={nodes},billing={cpus}" + (f",gres/gpu={gpus}" if gpus else "")
        counted = {"Nodes": ",".join(kind["names"] for kind in kinds), "TotalCPUs": str(cpus), "TotalNodes": str(nodes),
                   "TRES": tres}  # fmt: skip
        shape = {key: value for key, value in PARTITION.items() if key not in {INSTEAD.get(one) for one in given}}
        if self.table.get("login", "") in _members(given.get("AllocNodes", "")):
            given["AllocNodes"] += f",{os.uname().nodename}"  # the machine that the test runs on is the login node
        return {"PartitionName": name, **shape, **counted, **given}

    # -- answers -------------------------------------------------------------------------------------------------------

    def answer(self, program: str, words: list[str]) -> tuple[int, str, str]:
        """Return the status, the output and the errors of a command that asks."""
        asked = " ".join((program, *(word for word in words if not word.startswith("-"))))
        for denied, error in self.table.get("denied", {}).items():
            if asked.startswith(denied):
                return 1, "", f"{error}\n"
        if program == "sinfo":
            return 0, "".join(f"{line}\n" for line in self._sinfo(words)), ""
        if asked.startswith("sacctmgr"):
            return 0, "".join(f"{line}\n" for line in self._sacctmgr(asked, words)), ""
        if asked.startswith("scontrol show config"):
            version = self.table["slurm"]
            lines = {**self.config, "ClusterName": self.table["cluster"], "SLURM_VERSION": version}
            text = "".join(f"{key:<23} = {value}\n" for key, value in sorted(lines.items()))
            return 0, f"Configuration data as of 2026-11-29T12:00:00\n{text}", ""
        if asked.startswith("scontrol show partition"):
            name = asked.removeprefix("scontrol show partition").strip()
            if name and name not in self.partitions:
                return 1, "", f"Partition {name} not found\n"
            hidden = "--all" not in words and not name
            found = [one for one in self.partitions.values() if name in ("", one["PartitionName"])]
            return 0, lines_of(one for one in found if not (hidden and one["Hidden"] == "YES")), ""
        if asked.startswith("scontrol show node"):
            name = asked.removeprefix("scontrol show node").strip()
            found = [record for kind in self.kinds for record in self._nodes(kind, name)]
            return (0, lines_of(found), "") if found else (1, "", f"Node {name} not found\n")
        if asked.startswith("scontrol show res"):
            found = [{"ReservationName": name, **texts(one)} for name, one in self.table.get("reservation", {}).items()]
            return 0, lines_of(found) or "No reservations in the system\n", ""
        return 0, "", ""

    def _nodes(self, kind: Fields, wanted: str) -> Iterator[Fields]:
        own = {key: value for key, value in kind.items() if key != "names"}
        for name in expand(kind["names"]):
            if wanted in ("", name):
                fields = {"NodeName": name, **NODE, "Version": self.table["slurm"], **own}
                yield {**fields, "NodeAddr": name, "NodeHostName": name}

    def _sinfo(self, words: list[str]) -> Iterator[str]:
        shape = next(word.partition("=")[2] for word in words if word.startswith("--format="))
        for name, partition in self.partitions.items():
            for kind in self.of(name) if partition["Hidden"] != "YES" else []:
                star = "*" if partition["Default"] == "YES" else ""
                time = {"UNLIMITED": "infinite"}.get(partition["MaxTime"], partition["MaxTime"].removeprefix("0"))
                cells = {"%P": f"{name}{star}", "%D": str(count(kind["names"])), "%c": kind["CPUTot"],
                         "%Z": kind.get("ThreadsPerCore", "1"), "%m": kind["RealMemory"], "%l": time,
                         "%N": kind["names"], "%G": kind.get("Gres", "(null)")}  # fmt: skip
                yield "|".join(cells.get(cell, "") for cell in shape.split("|"))

    def _sacctmgr(self, asked: str, words: list[str]) -> Iterator[str]:
        row: Mapping[str, str]
        if "show qos" in asked:
            named = re.search(r"name=(\S+)", asked)
            rows = [{"Name": name, "Priority": "0", "GraceTime": "00:00:00", "PreemptMode": "cluster", **one}
                    for name, one in self.qos.items() if not named or name == named[1]]  # fmt: skip
            names = list(QOS)
        elif "show assoc" in asked:
            rows = [{"Cluster": self.table["cluster"], "User": "alice", "Share": "1", **one} for one in self.assoc]
            names = list(ASSOC)
        else:
            account = self.table.get("default_account", "")
            rows = [{"User": "alice", "Def Acct": account, "Admin": "None"}] if self.assoc else []
            names = ["User", "Def Acct", "Admin"]
        if chosen := re.search(r"format=(\S+)", asked):
            known = {"MaxSubmitJobs": "MaxSubmit", "DefaultQOS": "Def QOS", "MaxSubmitJobsPerUser": "MaxSubmitPU"}
            names = [known.get(name, name) for name in chosen[1].split(",")]
        if "--noheader" not in words:
            yield "|".join(names)
        for row in rows:
            yield "|".join(row.get(name, "") for name in names)

    # -- sbatch --------------------------------------------------------------------------------------------------------

    def judge(self, options: Mapping[str, str]) -> Verdict:
        """Return what this machine's sbatch says to a job with these options."""
        default = next((name for name, one in self.partitions.items() if one["Default"] == "YES"), "")
        named = options.get("--partition", default)
        for rule in self.rules:
            if applies(rule["when"], {**options, "--partition": named}):
                says = tuple(rule["says"])
                return Verdict(stdout=says) if rule.get("stdout") else Verdict(says, rule["message"])
        if not named:
            return Verdict(message="No partition specified or system default partition")
        unknown = [name for name in named.split(",") if name not in self.partitions]
        if unknown:
            return Verdict((f"error: invalid partition specified: {named}",), "Invalid partition name specified")
        enforced = "associations" in self.config["AccountingStorageEnforce"]
        account = options.get("--account", self.table.get("default_account", ""))
        mine = [one for one in self.assoc if one["Account"] == account]
        if enforced and not mine:
            return Verdict(message="Invalid account or account/partition combination specified")
        granted = {name for one in mine for name in one.get("QOS", "").split(",") if name}
        qos = options.get("--qos") or next((one["Def QOS"] for one in mine if one.get("Def QOS")), "normal")
        if (enforced and granted and qos not in granted) or (self.qos and qos not in self.qos):
            return Verdict(message="Invalid qos specification")
        each = [self._in(name, account, qos, options) for name in named.split(",")]
        every = self.config["EnforcePartLimits"] == "ALL"
        order = sorted(each, key=lambda one: one.runs != every)  # the first decides
        return order[0]._replace(partition=named)

    def submitted(self, options: Mapping[str, str], words: list[str], job: str) -> tuple[int, str, str, Verdict]:
        """Return the status, the output and the errors of sbatch, and its verdict."""
        verdict = self.judge(options)
        out = "".join(f"{line}\n" for line in (*self.table.get("banner", ()), *verdict.stdout))
        says = "".join(f"sbatch: {line}\n" for line in verdict.says)
        if verdict.stdout:
            return 1, out, says, verdict
        if "--test-only" in words:
            if verdict.message:
                return 1, "", f"{says}allocation failure: {verdict.message}\n", verdict
            where = f"on nodes x in partition {verdict.partition}"
            return 0, "", f"sbatch: Job {job} to start at 2026-11-30T08:00:00 using 1 processors {where}\n", verdict
        if verdict.message:
            return 1, out, f"{says}sbatch: error: Batch job submission failed: {verdict.message}\n", verdict
        cluster = f";{self.table['cluster']}" if self.table.get("names_cluster") else ""
        return 0, f"{out}{job}{cluster}\n", "", verdict

    def _in(self, name: str, account: str, qos: str, options: Mapping[str, str]) -> Verdict:
        partition = self.partitions[name]
        if partition["State"] in ("INACTIVE", "DRAIN"):
            return Verdict(message="Required partition not available (inactive or drain)")
        if partition["State"] == "DOWN":
            return Verdict(reason="PartitionDown")
        groups, login = self.table.get("groups", ["alice"]), self.table.get("login", "login1")
        if partition["RootOnly"] == "YES" or not allowed(partition, "AllocNodes", [login]):
            return Verdict(message="Access/permission denied")
        if not allowed(partition, "AllowGroups", groups):
            return Verdict(message="User's group not permitted to use this partition")
        if not allowed(partition, "AllowAccounts", [account]) or account in names_of(partition.get("DenyAccounts", "")):
            return Verdict(message="Invalid account or account/partition combination specified")
        if not allowed(partition, "AllowQos", [qos]) or qos in names_of(partition.get("DenyQos", "")):
            return Verdict(message="Invalid qos specification")
        return self._limited(partition, qos, options) or self._placed(partition, options) or Verdict()

    def _limited(self, partition: Fields, qos: str, options: Mapping[str, str]) -> Verdict | None:
        enforced = self.config["EnforcePartLimits"] not in ("NO", "")
        flags = self.qos.get(qos, {}).get("Flags", "").split(",")
        nodes, time = int(options.get("--nodes", "1")), minutes(options.get("--time", partition["MaxTime"]))
        checks = [
            ("PartitionTimeLimit", time > minutes(partition["MaxTime"]), "Requested time limit is invalid (missing or exceeds some limit)"),
            ("PartitionMaxNodes", nodes > number(partition["MaxNodes"]), "Node count specification invalid"),
            ("PartitionMinNodes", nodes < number(partition["MinNodes"], 0), "Node count specification invalid"),
        ]  # fmt: skip
        for flag, beyond, message in checks:
            if beyond and flag not in flags:
                reason = "PartitionTimeLimit" if flag == "PartitionTimeLimit" else "PartitionNodeLimit"
                return Verdict(message=message) if enforced else Verdict(reason=reason)
        own = self.qos.get(partition["QoS"], {})
        first, second = (self.qos.get(qos, {}), own) if "OverPartQOS" in flags else (own, self.qos.get(qos, {}))
        asked = self._asked(partition, options)
        if (wall := first.get("MaxWall") or second.get("MaxWall")) and time > minutes(wall):
            return self._beyond("QOSMaxWallDurationPerJobLimit", first, second)
        words = {"cpu": "Cpu", "node": "Node", "mem": "Memory"}
        for field, scope in (("MaxTRES", "Job"), ("MaxTRESPU", "User"), ("MinTRES", "")):
            limits = {**amounts(second.get(field, "")), **amounts(first.get(field, ""))}
            for what, limit in limits.items():
                has, of = asked.get(what, 0.0), words.get(what, "GRES")
                if scope and has > limit:
                    end = "" if of in ("GRES", "Memory") else "Limit"
                    return self._beyond(f"QOSMax{of}Per{scope}{end}", first, second)
                if not scope and has < limit:
                    return self._beyond({"Cpu": "QOSMinCpuNotSatisfied", "GRES": "QOSMinGRES"}.get(of, f"QOSMin{of}"), first, second)  # fmt: skip
        return None

    def _beyond(self, reason: str, *qos: Fields) -> Verdict:
        if any("DenyOnLimit" in one.get("Flags", "") for one in qos):
            policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
            return Verdict((f"error: {reason}",), policy)
        return Verdict(reason=reason)

    def _asked(self, partition: Fields, options: Mapping[str, str]) -> dict[str, float]:
        nodes = int(options.get("--nodes", "1"))
        kinds = self.of(partition["PartitionName"])
        cpus, memory, gpus = per_node(options)
        if "--exclusive" in options or partition["OverSubscribe"] == "EXCLUSIVE":
            cpus = max(cpus, min((int(kind["CPUEfctv"]) for kind in kinds), default=1))
        if (most := number(partition.get("MaxMemPerCPU", ""), 0)) and memory > cpus * most:
            cpus = -(-memory // most)  # Slurm adds CPUs, it does not refuse
        asked = {"cpu": float(nodes * cpus), "node": float(nodes), "mem": float(nodes * memory), "gres/gpu": 0.0}
        for kind, many in gpus.items():
            asked["gres/gpu"] += nodes * many
            asked[f"gres/gpu:{kind}"] = float(nodes * many)
        return asked

    def _placed(self, partition: Fields, options: Mapping[str, str]) -> Verdict | None:
        nodes = int(options.get("--nodes", "1"))
        cpus, memory, gpus = per_node(options)
        cpus = max(cpus, int(self._asked(partition, options)["cpu"]) // nodes)
        every = {name for kind in self.kinds for name in gres(kind.get("Gres", ""))}
        if any(name and name not in every for name in gpus) or (gpus and not every):
            return Verdict(message="Invalid generic resource (gres) specification")
        if memory > number(partition.get("MaxMemPerNode", "")):
            return Verdict(message="Memory required by task is not available")
        most = number(partition["MaxCPUsPerNode"])
        fits, of_memory = 0, 0
        for kind in self.of(partition["PartitionName"]):
            has, here = gres(kind.get("Gres", "")), count(kind["names"])
            room = int(kind["RealMemory"]) - int(kind.get("MemSpecLimit", "0"))
            of_memory += here * (memory <= room)
            enough = all((has.get(name, 0) if name else sum(has.values())) >= many for name, many in gpus.items())
            features = options.get("--constraint", "") in ("", *kind.get("AvailableFeatures", "").split(","))
            fits += here * (memory <= room and cpus <= min(int(kind["CPUEfctv"]), most) and enough and features)
        if fits >= nodes:
            return None
        says = () if of_memory else ("error: Memory specification can not be satisfied",)
        return Verdict(says, "Requested node configuration is not available")


def texts(table: Mapping[str, Any]) -> Fields:
    """Return a table with its values as texts."""
    return {name: str(value) for name, value in table.items()}


def lines_of(records: Any) -> str:
    """Return records as ``scontrol --oneliner`` writes them."""
    return "".join(f"{' '.join(f'{key}={value}' for key, value in one.items() if value != '')}\n" for one in records)


def expand(names: str) -> list[str]:
    """Return the names of a list such as a[01-03,7],b."""
    found = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?[^,\[]*", names):
        head, opened, rest = part.partition("[")
        if not opened:
            found.append(part)
            continue
        inner, _, tail = rest.partition("]")
        for piece in inner.split(","):
            first, _, last = piece.partition("-")
            found += [f"{head}{index:0{len(first)}d}{tail}" for index in range(int(first), int(last or first) + 1)]
    return found


def count(names: str) -> int:
    """Return how many names a list has."""
    return len(expand(names))


def gres(text: str) -> dict[str, int]:
    """Return a node's GPUs by type, "" without one; other resources, and what follows a number, say nothing."""
    found: dict[str, int] = {}
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        words = [word for word in part.split(":") if word != "no_consume"]
        if words[0] == "gpu":
            many = int(words.pop()) if len(words) > 1 and words[-1].isdecimal() else 1
            found[words[1] if len(words) > 1 else ""] = found.get(words[1] if len(words) > 1 else "", 0) + many
    return found


def per_node(options: Mapping[str, str]) -> tuple[int, int, dict[str, int]]:
    """Return the CPUs, the MiB and the GPUs by type that a job asks for on each node."""
    tasks = int(options.get("--ntasks-per-node", "1"))
    cpus = tasks * int(options.get("--cpus-per-task", "1"))
    memory = mebibytes(options["--mem"]) if "--mem" in options else cpus * mebibytes(options.get("--mem-per-cpu", "0"))
    gpus = gres(options.get("--gres", ""))
    if "--gpus-per-node" in options:
        gpus |= gres(f"gpu:{options['--gpus-per-node']}")
    return cpus, memory, gpus


def mebibytes(text: str) -> int:
    """Return a size of sbatch's in MiB."""
    unit = {"K": 1 / 1024, "G": 1024, "T": 1024**2}.get(text[-1:].upper(), 1)
    return round(float(re.match(r"[\d.]+", text)[0]) * unit)  # type: ignore[index]


def minutes(text: str) -> float:
    """Return a time limit in minutes."""
    if text in NOTHING:
        return float("inf")
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, mins, seconds = (*parts, 0, 0)[:3]
    else:
        hours, mins, seconds = {1: (0, parts[0], 0), 2: (0, *parts)}.get(len(parts), tuple(parts))
    return int(days or 0) * 1440 + hours * 60 + mins + seconds / 60


def number(text: str, nothing: float = float("inf")) -> Any:
    """Return a limit, or what stands for none."""
    return int(text) if text not in NOTHING else nothing


def amounts(text: str) -> dict[str, float]:
    """Return ``cpu=4,mem=2G,gres/gpu=1`` as numbers, memory in MiB."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {name: float(mebibytes(value)) if name == "mem" else float(value) for name, _, value in pairs}


def names_of(text: str) -> list[str]:
    """Return the names of a partition's list, none where all are meant."""
    return [] if text in NOTHING else text.split(",")


def allowed(partition: Fields, field: str, mine: list[str]) -> bool:
    """Return whether one of mine is in a partition's list."""
    listed = names_of(partition.get(field, ""))
    return not listed or bool(set(mine) & {*(_members(",".join(listed)) if field == "AllocNodes" else listed)})


def _members(names: str) -> list[str]:
    return expand(names) if names not in NOTHING else []


def applies(when: Mapping[str, str], options: Mapping[str, str]) -> bool:
    """Return whether a request is what a site's rule is about: options by pattern, "" for one that is missing."""
    for name, pattern in when.items():
        if name == "gpus":
            if bool(per_node(options)[2]) != bool(int(pattern)):
                return False
        elif not re.fullmatch(pattern, options.get(name, "")):
            return False
    return True


if __name__ == "__main__":  # what a machine says, to look at: site_slurm.py FILE PROGRAM WORDS…
    status, printed, errors = Site(sys.argv[1]).answer(sys.argv[2], sys.argv[3:])
    sys.stdout.write(printed)
    sys.stderr.write(errors)
    sys.exit(status)
