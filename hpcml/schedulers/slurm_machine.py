"""What Slurm says of its machine: configuration, partitions, kinds of nodes, QoS and who may use them.

Fields are found by their names, not by their places, so that those which a version adds or leaves out change nothing.
"""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Iterator, Sequence

from hpcml.errors import SlurmUnreachableError
from hpcml.schedulers import gres, slurm
from hpcml.schedulers.machine import Association, Fields, Kind, Tables
from hpcml.subprocesses import Answer
from hpcml.units import expand_hosts

_SECONDS = 30.0  # for one question; a login node that is busy answers late
_ALL_SECONDS = 120.0
_MOST_KINDS = 12  # kinds of nodes of which one node is asked for more than sinfo tells
_PAIR = re.compile(r"(?:^|\s)([A-Za-z]\w*)=(\S*)")
_SINFO = ("%P", "%D", "%c", "%Z", "%m", "%l", "%N", "%G")


def _ask(command: list[str], timeout: float) -> Answer:
    """Ask the cluster that the user's shell chose; sacctmgr's answers are about all clusters."""
    return slurm.ask(
        command if command[0] == "sacctmgr" else slurm.for_clusters(slurm.user_clusters(), command), timeout
    )


class _Questions:
    """Asks within one deadline for all, and remembers what was not answered."""

    def __init__(self) -> None:
        self.ends = time.monotonic() + _ALL_SECONDS
        self.refused: Fields = {}
        self.unreachable: SlurmUnreachableError | None = None

    def ask(self, name: str, *command: str) -> str:
        try:
            answer = _ask(list(command), max(0.5, min(_SECONDS, self.ends - time.monotonic())))
        except SlurmUnreachableError as missing:
            self.refused[name], self.unreachable = "the command is not installed", self.unreachable or missing
            return ""
        if answer.code == 0:
            return answer.out
        error = slurm.refusal(answer, command[0])
        if isinstance(error, SlurmUnreachableError):
            self.unreachable = self.unreachable or error
        lines = [line.strip() for line in answer.text.splitlines() if line.strip()]
        self.refused[name] = "no answer in time" if answer.code is None else (lines or ["no reason given"])[-1]
        return ""


def read(user: str) -> Tables:
    """Ask Slurm's commands for all that they tell a user on a login node.

    Raises
    ------
    SlurmUnreachableError
        If none of them says anything, because Slurm cannot be reached.
    """
    questions = _Questions()
    ask = questions.ask
    config = config_of(ask("scontrol show config", "scontrol", "show", "config"))
    shown = ask("scontrol show partition", "scontrol", "--oneliner", "show", "partition")
    partitions = records(shown, "PartitionName")
    command = ("sinfo", "--noheader", "--exact", f"--format={'|'.join(_SINFO)}")
    listed = list(_sinfo_rows(ask("sinfo", *command)))
    kinds, kinds_by = kinds_of_sinfo(listed), "sinfo"
    if kinds:
        named = dict.fromkeys(kind.one for kind in kinds if kind.one)
        nodes: dict[str, Fields] = {}
        for name in list(named)[:_MOST_KINDS]:
            if "scontrol show node" in questions.refused:
                break
            nodes |= records(ask("scontrol show node", "scontrol", "--oneliner", "show", "node", name), "NodeName")
        kinds = tuple(_refined(kind, nodes[kind.one]) if kind.one in nodes else kind for kind in kinds)
    else:
        kinds_by = "scontrol show node"
        kinds = kinds_of_nodes(ask(kinds_by, "scontrol", "--oneliner", "show", "node"))
    if not partitions:
        partitions = {row["%P"].rstrip("*"): _of_sinfo(row) for row in listed}
    qos = {
        row["Name"]: row for row in table(ask("sacctmgr show qos", "sacctmgr", "--parsable2", "show", "qos"), "Name")
    }
    where = ("where", f"user={user}")
    mine = ask("sacctmgr show assoc", "sacctmgr", "--parsable2", "show", "assoc", *where)
    associations = tuple(
        row for row in table(mine, "Account") if row.get("Cluster") == config.get("ClusterName", row.get("Cluster"))
    )
    users = table(ask("sacctmgr show user", "sacctmgr", "--parsable2", "show", "user", *where), "User")
    account = next((row["Def Acct"] for row in users if row.get("Def Acct")), "")
    if questions.unreachable and not (config or partitions or kinds):
        raise questions.unreachable
    return Tables(config, partitions, kinds, kinds_by if kinds else "", qos, associations, account, questions.refused)


def config_of(text: str) -> Fields:
    """Return ``scontrol show config`` as a table."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs if re.fullmatch(r"\s*[\w.\[\]]+\s*", key)}


def records(text: str, first: str) -> dict[str, Fields]:
    """Return the records of ``scontrol show`` by name; each begins with its field ``first``, in one line or more."""
    record_by_name: dict[str, Fields] = {}
    for part in re.split(rf"(?m)^[ \t]*(?={first}=)", text):
        fields = dict(
            reversed(_PAIR.findall(part))
        )  # the first of a name counts: what follows may be an administrator's words
        if name := fields.get(first, ""):
            record_by_name[name] = fields
    return record_by_name


def table(text: str, needed: str) -> list[Fields]:
    """Return ``sacctmgr --parsable2`` as rows by the names of its header; none without the field ``needed``."""
    lines = [line.split("|") for line in text.splitlines()]
    head = next((position for position, cells in enumerate(lines) if needed in cells), None)
    if head is None:
        return []
    names = lines[head]
    return [dict(zip(names, cells, strict=True)) for cells in lines[head + 1 :] if len(cells) == len(names)]


def _sinfo_rows(text: str) -> Iterator[Fields]:
    for line in text.splitlines():
        cells = line.strip().split("|", len(_SINFO) - 1)
        if len(cells) == len(_SINFO) and cells[1].isdecimal():
            yield dict(zip(_SINFO, cells, strict=True))


def kinds_of_sinfo(rows: Sequence[Fields]) -> tuple[Kind, ...]:
    """Return the kinds of nodes that sinfo's rows tell."""
    counts: dict[Kind, int] = {}
    for row in rows:
        cpus, threads = _number(row["%c"]), _number(row["%Z"])
        kind = Kind(row["%P"].rstrip("*"), 0, cpus, threads, _memory(row["%m"]), _gpus(row["%G"]))
        same = next((other for other in counts if other._replace(one="") == kind), None)
        if same is None:
            counts[kind._replace(one=_first(row["%N"]))] = int(row["%D"])
        else:  # of another state, or another limit of time
            counts[same] += int(row["%D"])
    return tuple(kind._replace(nodes=nodes) for kind, nodes in counts.items())


def kinds_of_nodes(text: str) -> tuple[Kind, ...]:
    """Return the kinds of nodes that ``scontrol show node`` tells."""
    nodes: dict[Kind, list[str]] = {}
    for name, fields in records(text, "NodeName").items():
        for partition in filter(None, fields.get("Partitions", "").split(",")):
            kind = _refined(Kind(partition, 0, 0, 1, 0, _gpus(fields.get("Gres", ""))), fields)
            nodes.setdefault(kind, []).append(name)
    return tuple(kind._replace(nodes=len(names), one=names[0]) for kind, names in nodes.items())


def _refined(kind: Kind, fields: Fields) -> Kind:
    """Return a kind with what one of its nodes tells: cores and memory that Slurm keeps for itself are no job's."""
    memory = _memory(fields.get("RealMemory", "")) - _number(fields.get("MemSpecLimit", ""))
    cpus = _number(fields.get("CPUEfctv", "")) or _number(fields.get("CPUTot", ""))
    threads = _number(fields.get("ThreadsPerCore", ""))
    return kind._replace(
        cpus=cpus or kind.cpus, threads=threads or kind.threads, memory=memory if memory > 0 else kind.memory
    )


def _of_sinfo(row: Fields) -> Fields:
    """Return a partition's fields as scontrol would name them."""
    default = "YES" if row["%P"].endswith("*") else "NO"
    return {"PartitionName": row["%P"].rstrip("*"), "Default": default, "MaxTime": row["%l"]}


def _gpus(text: str) -> tuple[tuple[str, int], ...]:
    """Return the GPUs of a node by its ``Gres``: types and counts."""
    return tuple((gpu.type, gpu.number) for gpu in gres.gpus(text) if gpu.number)


def _memory(text: str) -> int:
    """Return a node's memory in MiB, 0 if Slurm does not know it: it says 1 where nobody has configured RealMemory."""
    memory = _number(text)
    return memory if memory > 1 else 0


def _number(text: str) -> int:
    digits = re.match(r"\d{1,15}", text)
    return int(digits[0]) if digits else 0


def _first(nodes: str) -> str:
    """Return the first node of a list."""
    try:
        return next(iter(expand_hosts(nodes)), "")
    except ValueError:
        return ""


def configuration(timeout: float) -> Fields | str:
    """Return Slurm's configuration, or the reason why it is unknown."""
    answer = _ask(["scontrol", "show", "config"], timeout)
    return config_of(answer.out) if answer.code == 0 else _reason(answer, timeout)


def partition(name: str, timeout: float) -> Fields | str:
    """Return a partition's fields, none if there is no such partition, or the reason why they are unknown."""
    answer = _ask(["scontrol", "--oneliner", "show", "partition", name], timeout)
    if answer.code == 0:
        return dict(word.partition("=")[::2] for word in answer.out.split())
    reason = _reason(answer, timeout)
    return {} if "not found" in reason else reason


def _reason(answer: Answer, timeout: float) -> str:
    """Return the last line of what a command that failed says."""
    return (answer.text.splitlines() or [f"scontrol did not answer within {timeout:.1f} s"])[-1]


def room(directives: Sequence[tuple[str, str]], timeout: float) -> int | None:
    """Return the number of further jobs with these directives that may be submitted; None without a known limit.

    The limits of the QoS and of the association (MaxSubmitJobs) count; jobs that wait or run are taken from them.
    """
    chosen = dict(directives)
    user = getpass.getuser()
    try:
        limits = _submit_limits(user, chosen.get("--account", ""), chosen.get("--qos", ""), timeout)
        if not limits:
            return None
        queue = _ask(["squeue", "--noheader", "--array", f"--user={user}", "--format=%i"], timeout)
    except SlurmUnreachableError:
        return None
    if queue.code:
        return None
    return max(0, min(limits) - len(queue.out.split()))


def _submit_limits(user: str, account: str, qos: str, timeout: float) -> list[int]:
    """Return the limits of the account's associations and of the QoS; without one, of the user's default one."""
    limits = []
    if not account:
        account = next((row[1] for row in _sacctmgr(["user", "where", f"user={user}"], timeout) if len(row) > 1), "")
    where = ["where", f"user={user}", *([f"account={account}"] if account else [])]
    rows = _sacctmgr(["assoc", *where, "format=MaxSubmitJobs,DefaultQOS"], timeout)
    for limit, default in rows:
        limits.append(limit)
        qos = qos or default
    if qos:
        rows = _sacctmgr(["qos", "where", f"name={qos}", "format=MaxSubmitJobsPerUser,Name"], timeout)
        limits += [limit for limit, *_ in rows]
    return [int(limit) for limit in limits if slurm.NUMBER.fullmatch(limit)]


def _sacctmgr(arguments: Sequence[str], timeout: float) -> list[list[str]]:
    answer = _ask(["sacctmgr", "--noheader", "--parsable2", "show", *arguments], timeout)
    return slurm.rows_of(answer) if answer.code == 0 else []


def associations(timeout: float) -> list[Association] | str:
    """Return this user's associations, or why Slurm does not tell them, in some words."""
    fields = "format=Account,Partition,QOS,DefaultQOS"
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "assoc", "where", f"user={getpass.getuser()}", fields]
    try:
        answer = _ask(command, timeout)
    except SlurmUnreachableError as error:
        return error.message
    if answer.code != 0:
        return (answer.text.splitlines() or [f"sacctmgr did not answer within {timeout:.1f} s"])[-1]
    rows = [row for row in slurm.rows_of(answer) if len(row) == 4]
    return [Association(row[0], row[1], tuple(filter(None, row[2].split(","))), row[3]) for row in rows]
