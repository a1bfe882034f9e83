"""What a machine says of itself, as a profile: decided here, asked elsewhere; what is not known is a question."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcml import schedulers, units
from hpcml.node.hardware.record import Node
from hpcml.schedulers import machine
from hpcml.schedulers.gres import is_slice
from hpcml.schedulers.machine import Fields, Kind, Tables, amounts
from hpcml.site_records import Deadlines
from hpcml.survey import node_tables
from hpcml.survey.node_tables import Login
from hpcml.survey.profile_draft import LOGIN, NODE, SCHEDULER, SLURM, Draft, How

QUICK = re.compile(r"debug|dbg|devel|test|express|short|interactive", re.IGNORECASE)
_NAMES_A_MACHINE = ("SYSTEMNAME", "NERSC_HOST", "BSC_MACHINE", "LMOD_SYSTEM_NAME", "CLUSTER_NAME", "CLUSTER")
_SAID = ("MaxArraySize", "JobRequeue", "PriorityFlags", "PrivateData", "JobSubmitPlugins", "SelectTypeParameters")
_SAID_OF_QOS = ("MaxWall", "MaxTRES", "MaxTRESPU", "MinTRES", "MaxJobsPU", "MaxSubmitPU", "GrpTRES", "Flags")
_NO_LIMIT = ("", "UNLIMITED", "INFINITE", "NONE", "N/A", "(null)")


class _Limits(NamedTuple):
    """Nodes and seconds that a job may have at most, 0 without a limit, and nodes that it must have.

    ``concluded``: the nodes were counted from CPUs or GPUs.
    """

    nodes: int = 0
    time: int = 0
    least: int = 0
    concluded: bool = False

    def within(self, other: _Limits) -> _Limits:
        """Return the narrower of each."""
        nodes, time = _least(self.nodes, other.nodes), _least(self.time, other.time)
        concluded = self.concluded if nodes == self.nodes else other.concluded
        return _Limits(nodes, time, max(self.least, other.least), concluded)


def write(tables: Tables, login: Login, node: Node | None, date: str) -> Draft:
    """Return the profile of a machine.

    Parameters
    ----------
    node
        The probe that a job on a node made; None without one.
    """
    return _Writer(tables, login, node, date).draft


def _least(*numbers: int) -> int:
    return min(filter(None, numbers), default=0)


def _seconds(text: str) -> int:
    """Return a time limit of Slurm's in seconds, 0 for none."""
    if text in _NO_LIMIT or "inf" in text:
        return 0
    try:
        return units.parse_time_limit(text)
    except ValueError:
        return 0


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _names(text: str) -> tuple[str, ...]:
    return () if text in (*_NO_LIMIT, "ALL") else tuple(filter(None, text.split(",")))


def _allowed(fields: Fields, what: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return those accounts or QoS that a partition takes; Slurm does not look at a Deny list beside an Allow list."""
    allowed, denied = (_names(fields.get(f"{verb}{what}", "")) for verb in ("Allow", "Deny"))
    return tuple(name for name in names if (name in allowed if allowed else name not in denied))


def _most_memory(fields: Fields, cpus: int) -> int:
    """Return the MiB of a node that a job with so many CPUs may have in a partition, 0 without a limit.

    Beyond MaxMemPerCPU Slurm adds CPUs to the job, which a node does not have if the job has all of them.
    """
    return _least(_count(fields.get("MaxMemPerNode", "")), _count(fields.get("MaxMemPerCPU", "")) * cpus)


def _hosts(texts: Sequence[str]) -> tuple[str, ...]:
    try:
        return units.expand_hosts(",".join(texts))
    except ValueError:
        return tuple(texts)


def _whole_type(kinds: Sequence[Kind]) -> str:
    """Return the type of most whole GPUs where a request without a type could get parts of GPUs (MIG), else nothing."""
    counts = Counter[str]()
    for kind in kinds:
        for gpu_type, count in kind.gpus_by_type:
            counts[gpu_type] += count * kind.nodes
    whole = {name: count for name, count in counts.items() if not is_slice(name)}
    return max(whole, key=lambda name: whole[name]) if 0 < len(whole) < len(counts) else ""


class _Writer:
    def __init__(self, tables: Tables, login: Login, node: Node | None, date: str) -> None:
        self.tables, self.login, self.node = tables, login, node
        self.draft = Draft(date)
        self.of_node = {
            kind.partition: kind
            for kind in schedulers.machine_of(SCHEDULER).kinds_of_nodes(node.job.shown if node else "")
        }
        self.accounts = tuple(dict.fromkeys(row["Account"] for row in tables.associations if row.get("Account")))
        listed = dict.fromkeys(name for row in tables.associations for name in _names(row.get("QOS", "")))
        self.qos = {name: tables.qos.get(name, {}) for name in listed or tables.qos}
        self.default_qos = self._default_qos()
        self.left_out: list[str] = []
        self.partitions = self._usable()
        self.kinds = {name: [kind for kind in tables.kinds if kind.partition == name] for name in self.partitions}
        self._identify()
        self._defaults()
        self._requests()
        for name in self.partitions:
            self._partition(name)
        for name, fields in self.qos.items():
            self._qos(name, fields)
        node_tables.runtime(self.draft, login, node)
        node_tables.gpus(self.draft, node)
        node_tables.network(self.draft, node)
        self._deadlines()
        self._cost()
        node_tables.disks(self.draft, login, node)
        self.draft.ask(
            ("login",),
            "how does a laptop reach this machine (login.host, login.renew), and do its nodes reach the internet?",
        )

    # -- who may use what ------------------------------------------------------------------------------------------

    def _default_qos(self) -> str:
        rows = sorted(self.tables.associations, key=lambda row: row.get("Account") != self.tables.account)
        named = next((row["Def QOS"] for row in rows if row.get("Def QOS") not in (None, *_NO_LIMIT)), "")
        return named or ("normal" if "normal" in self.qos else "")

    def _usable(self) -> dict[str, Fields]:
        """Return the partitions that this user may use: Slurm's default, the others by size, those for tests."""
        usable = {}
        every = self.tables.partitions
        any_up = any(fields.get("State", "UP") == "UP" for fields in every.values())  # none is in a maintenance
        for name, fields in every.items():
            if any_up and fields.get("State", "UP") != "UP":
                self.left_out.append(f"{name} (it is {fields['State'].lower()})")
            elif why := self._why_closed(name, fields):
                self.left_out.append(f"{name} ({why})")
            elif not (fields.get("Hidden") == "YES" or fields.get("RootOnly") == "YES"):
                usable[name] = fields
        if not usable and self.node and self.node.job.partition:
            usable[self.node.job.partition] = {}

        def order(item: tuple[str, Fields]) -> tuple[bool, bool, int]:
            name, fields = item
            return fields.get("Default") != "YES", bool(QUICK.search(name)), -_count(fields.get("TotalNodes", ""))

        return dict(sorted(usable.items(), key=order))

    def _why_closed(self, name: str, fields: Fields) -> str:
        """Return the reason for which a partition takes no job of this user from here; empty if it may take some."""
        groups, nodes = (_names(fields.get(field, "")) for field in ("AllowGroups", "AllocNodes"))
        if self.accounts and not self._accounts_of(name, fields):
            return f"for the accounts {', '.join(_names(fields.get('AllowAccounts', ''))) or 'of others'}"
        if any(row.get("QOS") for row in self.tables.associations) and not _allowed(fields, "Qos", self.qos):
            return "for other QoS"
        if groups and not {*groups} & {*self.login.groups}:
            return "for other groups"
        if nodes and self.login.host.partition(".")[0] not in {node.partition(".")[0] for node in _hosts(nodes)}:
            return f"not from {self.login.host}"
        return "only in a reservation" if fields.get("ReqResv") == "YES" else ""

    def _accounts_of(self, name: str, fields: Fields) -> tuple[str, ...]:
        """Return those of the user's accounts that a partition takes."""
        rows = [row for row in self.tables.associations if row.get("Partition", "") in ("", name)]
        usable = [row for row in rows if not row.get("QOS") or _allowed(fields, "Qos", _names(row["QOS"]))]
        rows = usable or rows  # an account may lack the QoS that the partition takes
        return _allowed(fields, "Accounts", dict.fromkeys(row.get("Account", "") for row in rows))

    def _qos_of(self, partition: str) -> tuple[str, ...]:
        """Return those of the user's QoS that a partition takes."""
        return _allowed(self.partitions[partition], "Qos", self.qos)

    # -- tables ----------------------------------------------------------------------------------------------------

    def _identify(self) -> None:
        draft, table, host = self.draft, ("identify",), self.login.host
        cluster = self.tables.config.get("ClusterName", "") or "a Slurm cluster"
        draft.values[()] = {"description": f"{cluster}, examined on {host}", "extends": "slurm"}
        pattern = re.sub(r"\d+", "*", host)
        draft.set(table, "hostname", [pattern], How(LOGIN, f"the host is {host}", concluded=True))
        names = {name: self.login.environment[name] for name in _NAMES_A_MACHINE if self.login.environment.get(name)}
        draft.set(table, "environment", names, How(LOGIN, f"{', '.join(names)} in the environment"))
        draft.choose(table, "order", 5)  # before the profiles that ship with hpcml
        if not names and not re.search(r"[.\d]", host):
            draft.ask(
                table, f"other machines may have a login node called {host}: how can hpcml recognize this machine?"
            )

    def _defaults(self) -> None:
        draft, table = self.draft, ("defaults",)
        first = next(iter(self.partitions), "")
        of_slurm = self.partitions.get(first, {}).get("Default") == "YES"
        question = "scontrol show partition" if of_slurm else "the partition with the most nodes that is not for tests"
        draft.set(table, "partition", first, How(SLURM, question, concluded=not of_slurm))
        if len(self.partitions) > 1:
            which = f"{first} is Slurm's default" if of_slurm else f"{first} is the largest"
            rule = "hpcml uses the first partition that fits a request; requests without GPUs prefer nodes without GPUs"
            draft.ask(table, f"what is each partition for? {which}; {rule}")
        draft.choose(table, "time", "30")
        account = self.tables.account or next(iter(self.accounts), "")
        asked = How(SLURM, "sacctmgr show user, show assoc", concluded=not self.tables.account)
        draft.set(table, "account", account, asked)
        if len(self.accounts) > 1:
            have = ", ".join(self.accounts)
            rule = "a profile for all users should not name an account"
            draft.ask(table, f"which account pays? You have the accounts {have}; {rule}")

    def _requests(self) -> None:
        """Set how this Slurm wants to be asked, and tell what of its configuration matters to a job."""
        draft, table, config = self.draft, ("slurm",), self.tables.config
        sized = any(self.kinds.values()) or any("TotalCPUs" in partition for partition in self.partitions.values())
        draft.choose(("resources",), "exclusive", not (sized or self.node))  # else a part of a node can be asked for
        kinds = self.tables.kinds
        gpus = any(kind.gpus for kind in kinds) or bool(self.node and self.node.gpu.names) or self._gpus_by_amounts()
        if gpus or kinds:
            source = "Gres of the nodes" if kinds else "TRES of the partitions"
            draft.set(table, "gpu_request", "gres" if gpus else "none", How(SLURM, source, concluded=not kinds))
        asked = How(SLURM, "scontrol show config")
        enforced = "associations" in config.get("AccountingStorageEnforce", "").lower() or bool(self.accounts)
        draft.set(table, "account_required", enforced, asked)
        draft.tell("slurm.version", config.get(machine.VERSION, ""), asked)
        for name in _SAID:
            value = config.get(name, "")
            draft.tell(f"slurm.said.{name}", "" if value in _NO_LIMIT else value, asked)
        if plugins := ", ".join(_names(config.get("JobSubmitPlugins", ""))):
            draft.ask(table, f"a plugin ({plugins}) checks each submission: what does it require?")
        refused = "; ".join(f"{command}: {why}" for command, why in self.tables.refused.items())
        draft.tell("slurm.denied", refused, How(SLURM, "the error messages of these commands"))
        if self.left_out:
            draft.remark(("partitions",), f"The profile omits the partitions {', '.join(self.left_out)}.")

    def _gpus_by_amounts(self) -> bool:
        return any("gres/gpu" in amounts(partition.get("TRES", "")) for partition in self.partitions.values())

    def _shape(self, name: str) -> tuple[Kind, How]:
        """Return the largest request that fits every node of a partition, with its source; 0 is not known."""
        kinds, fields = self.kinds[name], self.partitions[name]
        if kinds:
            smallest = Kind(
                partition=name,
                nodes=sum(kind.nodes for kind in kinds),
                cpus=min(kind.cpus for kind in kinds),
                threads=max(kind.threads for kind in kinds),
                memory=_least(*(kind.memory for kind in kinds)),
                gpus_by_type=max(kinds, key=lambda one: one.gpus).gpus_by_type,
            )
            return smallest, How(SLURM, self.tables.kinds_by)
        if self.node and name in self.of_node:
            nodes = _count(fields.get("TotalNodes", "")) or 1
            return self.of_node[name]._replace(nodes=nodes), How(NODE, f"scontrol show node {self.node.job.node}")
        nodes, all_of_it = _count(fields.get("TotalNodes", "")), amounts(fields.get("TRES", ""))
        cpus, gpus = (_count(all_of_it.get(resource, "")) or 0 for resource in ("cpu", "gres/gpu"))
        cpus = cpus or _count(fields.get("TotalCPUs", ""))
        memory = 0
        if "mem" in all_of_it:
            try:
                memory = units.parse_memory(all_of_it["mem"]) >> 20
            except ValueError:
                memory = 0
        if nodes:
            how = How(
                SLURM,
                "the partition's totals in scontrol show partition, divided by its number of nodes",
                concluded=True,
            )
            memory = memory // nodes if memory > nodes else 0  # 1 MiB a node is Slurm's word for unknown
            return Kind(name, nodes, cpus // nodes, 0, memory, _untyped(gpus // nodes)), how
        if self.node and self.node.job.partition == name:
            how = How(NODE, f"what {self.node.job.node} has", concluded=True)
            return Kind(name, 0, self.node.process.cpus.online, 0, 0, _untyped(len(self.node.gpu.names))), how
        return Kind(name, 0, 0, 0, 0), How(SLURM, "no node was seen", concluded=True)

    def _raw(self, name: str, *, own_qos: bool = True) -> _Limits:
        """Return the limits of a partition itself and of the QoS that it has of its own."""
        fields = self.partitions[name]
        limits = _Limits(
            _count(fields.get("MaxNodes", "")), _seconds(fields.get("MaxTime", "")), _count(fields.get("MinNodes", ""))
        )
        return limits.within(self._limits(fields.get("QoS", ""), name)) if own_qos else limits

    def _limits(self, qos: str, partition: str) -> _Limits:
        """Return the limits of a QoS; those in CPUs or GPUs are counted as nodes of a partition."""
        fields = self.tables.qos.get(qos, {})
        shape = self._shape(partition)[0] if partition else Kind("", 0, 0, 0, 0)
        if not all(kind.gpus for kind in self.kinds.get(partition, ())):  # a limit of GPUs is none of such nodes
            shape = shape._replace(gpus_by_type=())
        per_job = self._nodes(fields.get("MaxTRES", ""), shape, up=False)
        per_user = self._nodes(fields.get("MaxTRESPU", ""), shape, up=False)
        least = self._nodes(fields.get("MinTRES", ""), shape, up=True)
        nodes, concluded = min((limit for limit in (per_job, per_user) if limit[0]), default=(0, False))
        return _Limits(nodes, _seconds(fields.get("MaxWall", "")), least[0], concluded or (least[0] > 0 and least[1]))

    @staticmethod
    def _nodes(text: str, shape: Kind, *, up: bool) -> tuple[int, bool]:
        """Return a limit in nodes, and whether it was counted from GPUs or CPUs."""
        limits = amounts(text)
        if nodes := _count(limits.get("node", "")):
            return nodes, False
        for name, each in (("gres/gpu", shape.gpus), ("cpu", shape.cpus)):
            if each and (limit := _count(limits.get(name, ""))):
                return max(1, -(-limit // each) if up else limit // each), True
        return 0, False

    def _partition(self, name: str) -> None:
        draft, table, fields = self.draft, ("partitions", name), self.partitions[name]
        shape, seen = self._shape(name)
        asked = How(SLURM, "scontrol show partition" if "TotalNodes" in fields else "sinfo")
        limits = self._raw(name)
        mine = self._qos_of(name)
        default = self.default_qos if self.default_qos in mine else ""
        if default:
            limits = limits.within(self._limits(default, name)._replace(least=0))
        for kind in self.kinds[name]:
            draft.remark(table, f"{_in_words(kind)}.")
        if not self.kinds[name] and shape.nodes:
            draft.remark(table, f"{shape.nodes} nodes.")
        question = f"scontrol show partition, sacctmgr show qos ({default or fields.get('QoS', '')})"
        from_qos = self.tables.qos and (default or fields.get("QoS", "") not in _NO_LIMIT)
        how = How(SLURM, question, limits.concluded) if from_qos else asked
        draft.set(table, "min_nodes", limits.least if limits.least > 1 else 0, how)
        draft.set(table, "max_nodes", _least(limits.nodes, _count(fields.get("TotalNodes", "")) or shape.nodes), how)
        draft.set(table, "max_time", units.format_time_limit(limits.time) if limits.time else "", how)
        self._sizes(name, shape, seen)
        self._account(name)
        self._kinds(name, seen)
        self._ask_of(name, shape, "was derived from the whole partition" if seen.concluded else "is what Slurm reports")
        if not default and (self.default_qos or _names(fields.get("AllowQos", ""))):
            self._qos_for(name, mine)

    def _sizes(self, name: str, shape: Kind, seen: How) -> None:
        """Set what a node of a partition has, and which of it a job may request."""
        draft, table, fields = self.draft, ("partitions", name), self.partitions[name]
        gpu_type = _whole_type(self.kinds[name])
        counts = [dict(kind.gpus_by_type).get(gpu_type, 0) for kind in self.kinds[name]] if gpu_type else [shape.gpus]
        draft.set(table, "gpus_per_node", max(counts), seen)
        draft.set(table, "gpu_type", gpu_type, seen._replace(concluded=True))
        cpus = _least(shape.cpus, _count(fields.get("MaxCPUsPerNode", "")))
        draft.set(table, "cpus_per_node", cpus, seen)
        memory = _least(shape.memory, _most_memory(fields, cpus if shape.memory else 0))
        draft.set(table, "memory_per_node", f"{memory}M" if memory else "", seen)
        if self.kinds[name] and not shape.memory:
            unknown = How(SLURM, "RealMemory is 1 MiB: Slurm does not know the nodes' memory", concluded=True)
            draft.set(table, "remove", ["--mem", "--mem-per-cpu"], unknown)
        shown = How(SLURM, "scontrol show partition")
        draft.set(table, "whole_nodes", fields.get("OverSubscribe") == "EXCLUSIVE" or "", shown)
        least = amounts(self.tables.qos.get(fields.get("QoS", ""), {}).get("MinTRES", ""))
        draft.set(table, "needs_gpus", "gres/gpu" in least or "", How(SLURM, "MinTRES of the partition's QoS"))

    def _account(self, name: str) -> None:
        """Set the account of a partition that does not take the one which the profile has for all."""
        mine = self._accounts_of(name, self.partitions[name])
        if mine and self.draft.values.get(("defaults",), {}).get("account") not in mine:
            how = How(SLURM, f"AllowAccounts of {name}, sacctmgr show assoc", concluded=len(mine) > 1)
            self.draft.set(("partitions", name), "account", mine[0], how)
            if len(mine) > 1:
                self.draft.ask(
                    ("partitions", name), f"partition {name} accepts the accounts {', '.join(mine)}: which pays?"
                )

    def _kinds(self, name: str, seen: How) -> None:
        """Set the kinds of nodes of a partition that has several, each type of GPUs as one of them."""
        fields, labels = self.partitions[name], Counter[str]()
        most = _count(fields.get("MaxCPUsPerNode", ""))
        rows = dict[Kind, int]()  # kinds of one type and size, however they differ otherwise
        for kind in self.kinds[name]:
            for pair in kind.gpus_by_type or [("", 0)]:
                row = kind._replace(nodes=0, threads=0, one="", gpus_by_type=(pair,))
                rows[row] = rows.get(row, 0) + kind.nodes
        for kind, nodes in rows.items() if len(rows) > 1 else ():
            (gpu_type, gpus) = kind.gpus_by_type[0]
            label = gpu_type or ("gpu" if gpus else "cpu")
            labels[label] += 1
            label = f"{label}-{labels[label]}" if labels[label] > 1 else label
            table = ("partitions", name, "nodes", label)
            values = {"max_nodes": nodes, "gpus_per_node": gpus, "gpu_type": gpu_type}
            cpus = _least(kind.cpus, most)
            memory = _least(kind.memory, _most_memory(fields, cpus)) if kind.memory else 0
            values |= {"cpus_per_node": cpus, "memory_per_node": f"{memory}M" if memory else ""}
            for key, value in values.items():
                self.draft.set(table, key, value, seen)

    def _ask_of(self, name: str, shape: Kind, memory: str) -> None:
        """Ask what the sizes of a partition's nodes leave open."""
        draft, table, key = self.draft, ("partitions", name), f"partitions.{name}"
        if len({kind._replace(nodes=0, one="") for kind in self.kinds[name]}) > 1:
            which = f"partition {name} has several kinds of nodes"
            draft.ask(table, f"{which}: must a job choose one with a constraint ({key}.constraint)?")
        types = dict.fromkeys(gpu_type for kind in self.kinds[name] for gpu_type, _ in kind.gpus_by_type if gpu_type)
        if len(types) > 1:
            which = f"{', '.join(types)} ({key}.gpu_type)"
            draft.ask(table, f"which of these GPUs shall a job in partition {name} request: {which}?")
        seen = self.node if self.node and self.node.job.partition == name else None
        threads = shape.threads or (seen.process.cpus.threads if seen else 0)
        if threads > 1:
            cores = shape.cpus // threads
            counts = f"{key}.cpus_per_node counts {threads} threads of each core"
            draft.ask(table, f"{counts}: is {cores}, the number of cores, the correct value?")
        elif shape.cpus and not threads:
            draft.ask(table, f"{key}.cpus_per_node counts Slurm's CPUs: are these CPUs threads or cores?")
        if shape.memory:
            allowed = "may a job request all of this memory, and may it request memory at all (slurm.remove)?"
            draft.ask(table, f"{key}.memory_per_node {memory}: {allowed}")

    def _qos_for(self, name: str, mine: tuple[str, ...]) -> None:
        """Set the QoS of a partition that does not take the one which a job gets that names none."""
        draft, table = self.draft, ("partitions", name)
        if mine:
            limits = {qos_name: self._limits(qos_name, name) for qos_name in mine}
            sizes = {one: (limit.nodes or math.inf, limit.time or math.inf) for one, limit in limits.items()}
            chosen = max(mine, key=lambda one: (not QUICK.search(one), sizes[one]))
            how = How(SLURM, f"AllowQos of {name}, sacctmgr show assoc", concluded=len(mine) > 1)
            draft.set(table, "qos", chosen, how)
            draft.ask(
                table,
                f"partition {name} accepts the QoS {', '.join(mine)}, "
                f"{f'not the default QoS {self.default_qos}' if self.default_qos else 'and you have no default QoS'}: "
                f"is {chosen} correct?",
            )
        draft.ask(table, f"must a job name the partition {name}, or does the QoS choose the nodes?")

    def _qos(self, name: str, fields: Fields) -> None:
        draft, table = self.draft, ("qos", name)
        homes = [partition for partition in self.partitions if name in self._qos_of(partition)]
        asked = How(SLURM, "sacctmgr show qos")
        draft.remark(table, f"Slurm: {_said(fields)}." if _said(fields) else "Slurm reports no limits for this QoS.")
        if homes and len(homes) < len(self.partitions):
            draft.set(table, "partitions", homes, How(SLURM, "AllowQos and DenyQos of the partitions"))
        shapes = {home: self._shape(home)[0] for home in homes}
        counted = max(homes, key=lambda one: (shapes[one].gpus > 0, shapes[one].nodes), default="")
        limits = self._limits(name, counted)
        nodes, time = self._within_partitions(limits.nodes, limits.time, homes, fields.get("Flags", "").split(","))
        usual = self._usual(homes)  # the partitions have these limits too
        nodes = nodes or max((shapes[home].nodes for home in homes), default=0)  # not the limit of the default QoS
        nodes = nodes if limits.nodes or usual.nodes else 0  # else the partition's limit counts
        time = time if limits.time or usual.time else 0
        how = asked._replace(concluded=limits.concluded)
        draft.set(table, "min_nodes", limits.least if limits.least > 1 else 0, how)
        draft.set(table, "max_nodes", nodes, how)
        if time:
            draft.set(table, "max_time", units.format_time_limit(time), asked)
        elif usual.time:  # or the partitions would limit it as they do the default QoS
            how = asked._replace(question="this QoS has no time limit", concluded=True)
            draft.set(table, "max_time", "365-00:00:00", how)
        draft.set(table, "max_jobs", _count(fields.get("MaxSubmitPU", "")), asked)
        if not draft.values[table]:  # or a profile that has all QoS would lack this one
            draft.set(table, "partitions", homes, How(SLURM, "AllowQos and DenyQos of the partitions"))

    def _usual(self, homes: Sequence[str]) -> _Limits:
        """Return the widest limits that the default QoS sets in some partitions; 0 where it sets none in any."""
        each = [_Limits(), *(self._limits(self.default_qos, home) for home in homes)]
        return _Limits(max(limits.nodes for limits in each), max(limits.time for limits in each))

    def _within_partitions(self, nodes: int, time: int, homes: Sequence[str], flags: Sequence[str]) -> tuple[int, int]:
        """Return a QoS's nodes and time within the limits of its partitions, where its flags do not lift these."""
        raw = [self._raw(home, own_qos="OverPartQOS" not in flags) for home in homes]
        if raw and "PartitionMaxNodes" not in flags and all(limits.nodes for limits in raw):
            nodes = _least(nodes, max(limits.nodes for limits in raw))
        if raw and "PartitionTimeLimit" not in flags and all(limits.time for limits in raw):
            time = _least(time, max(limits.time for limits in raw))
        return nodes, time

    def _deadlines(self) -> None:
        wait = machine.kill_wait(self.tables.config)
        if wait is not None and wait <= float(Deadlines().script_grace):
            how = How(SLURM, f"KillWait is {wait} s in scontrol show config", concluded=True)
            self.draft.set(("deadlines",), "script_grace", f"{max(1, wait // 2)}s", how)

    def _cost(self) -> None:
        draft = self.draft
        weights = {partition.get("TRESBillingWeights", "") for partition in self.partitions.values()} - {*_NO_LIMIT}
        if not weights:
            return
        asked = How(SLURM, "TRESBillingWeights in scontrol show partition")
        if len(weights) == 1:
            weight_by_resource = {name.lower(): weight for name, weight in amounts(weights.pop()).items()}
            draft.set(("cost",), "weights", weight_by_resource, asked)
            largest = "MAX_TRES" in self.tables.config.get("PriorityFlags", "").split(",")
            draft.set(("cost",), "largest", largest, How(SLURM, "PriorityFlags in scontrol show config"))
        else:
            draft.remark(("cost",), "The partitions are billed by different weights (TRESBillingWeights).")
        draft.ask(
            ("cost",),
            "what is the unit of the charge, and which command shows granted compute time (cost.unit, cost.budget)?",
        )


def _in_words(kind: Kind) -> str:
    gpus = " and ".join(f"{count} GPUs {name}".rstrip() for name, count in kind.gpus_by_type) or "no GPUs"
    memory = f"{kind.memory} MiB" if kind.memory else "memory unknown to Slurm"
    return f"{kind.nodes} nodes: {kind.cpus} CPUs, {kind.threads} for each core, {memory}, {gpus}"


def _untyped(gpus: int) -> tuple[tuple[str, int], ...]:
    return (("", gpus),) if gpus else ()


def _said(fields: Fields) -> str:
    return ", ".join(f"{name} {fields[name]}" for name in _SAID_OF_QOS if fields.get(name))
