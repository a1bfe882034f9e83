"""What was measured of the interconnect: transfers and their times, byte counters, and the logs of UCX and NCCL.

Counters of NVLink, InfiniBand and IP are read before and after the transfers and subtracted. If UCX reported a
transport and its counter did not change, it has carried nothing. Reading takes some milliseconds and makes no CUDA
context. The InfiniBand side is tested against trees and logs in the kernel's and the libraries' formats alone.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from hpcml.gpu_vendor import VENDOR
from hpcml.node.hardware import sysfs
from hpcml.node.hardware.gpu_interface import vendor

GIB = 1024**3
SLOW = 0.5  # of the others' bandwidth
_VARIABLES = (VENDOR.visible, "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY")
_UCX_LINE = re.compile(r"UCX\s+(?P<level>INFO|WARN|ERROR|DIAG|FATAL)\s+(?P<text>.*\S)")
_UCX_VERSION = re.compile(r"Version (?P<version>\S+) \(loaded from (?P<library>[^)]*)\)")
# Not the titles of UCX_PROTO_INFO's tables, which put a bar behind "cfg#3".
_UCX_LANES = re.compile(r"\b(?P<scope>self|intra-node|inter-node) cfg#\d+\s+(?P<lanes>(?:\w+\([^()]*\)\s*)+)$")
_UCX_OPERATION = re.compile(r"(\w+)\(([^()]*)\)")
_UCX_ABSENT = re.compile(r"transports? '.*' (?:is|are) not available, please use one or more of: (?P<there>.*)")
_UCX_SETTING = re.compile(r"\b(UCX_\w+)=(\S*)")
_SCOPES = {"self": "self", "intra-node": "intra", "inter-node": "inter"}
_KEEPALIVE = "ka"  # the lane that asks now and then whether the peer lives; it carries no data
_NCCL_VERSION = re.compile(r"NCCL version (\d[\w.]*)")
_NCCL_NET = re.compile(r"(?:Using network|Assigned NET plugin) (?P<net>[\w.-]+)")
_NCCL_USING = re.compile(r"NET/(?P<net>\w+) : Using (?P<devices>\[\d+\].*)")
_NCCL_DEVICE = re.compile(r"\[\d+\]\s*(?P<name>[^\s:]+)(?::(?P<port>\d+)(?=/))?")
_NCCL_VIA = re.compile(r"Channel \d+(?:/\d+)? : \S+ -> \S+ (?:\[(?P<way>send|receive)\] )?via (?P<via>.*\S)")
_NCCL_SETTING = re.compile(r"(NCCL_\w+) set by environment to (\S*?)\.?\s*$", re.MULTILINE)
_NCCL_WARNING = re.compile(r"NCCL WARN (.*\S)")


@dataclass(frozen=True, slots=True)
class Pair:
    """Transfers from one worker (``n1-0``) to another, ``within`` a node or ``across`` nodes."""

    source: str
    target: str
    scope: str
    bytes: int  # what was timed, repeats counted
    seconds: float
    error: str = ""
    moved: int = 0  # all bytes that went this way, those before the timing too; 0 means ``bytes``

    @property
    def bandwidth(self) -> float:
        """GiB per second; 0 if the transfer failed."""
        return 0.0 if self.error or self.seconds <= 0 else self.bytes / GIB / self.seconds

    @property
    def sent(self) -> int:
        """The bytes that the counters must show."""
        return self.moved or self.bytes

    @property
    def name(self) -> str:
        """The pair as people read it."""
        return f"{self.source} → {self.target}"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker knows about itself."""

    node: str
    gpu: str = ""  # the driver's index or UUID
    transports: Sequence[str] = ()  # what UCX may use: ``ucxx.get_active_transports()``
    log: Mapping[str, Any] = field(default_factory=dict)  # :func:`parse_ucx_log` of its log
    version: str = ""  # of UCX
    environment: Mapping[str, str] = field(default_factory=dict)  # :func:`transport_variables`
    memory_resource: str = ""  # RMM's current one, as ``PoolMemoryResource``
    error: str = ""  # why the worker could not tell


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What moved on a node during the transfers (:func:`counter_difference`, {} if not known), and its probe."""

    moved: Mapping[str, Any] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """All of it: the transfers, and facts by worker's name and by node's name.

    ``protocol`` is ucx or tls, or nccl or gloo where a collective alone was measured; ``memory``, where the buffers
    lay, cuda or host. ``nccl`` is None without a collective, else one over all workers: ``bytes``, ``seconds``,
    ``bandwidth`` (bytes per second), ``log``
    (:func:`parse_nccl_log`), ``error``. ``interface`` is the one that the profile names.
    """

    protocol: str
    memory: str
    pairs: Sequence[Pair]
    workers: Mapping[str, WorkerFacts]
    nodes: Mapping[str, NodeFacts]
    nccl: Mapping[str, Any] | None = None
    interface: str = ""


def slow(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs with less than half of the others' bandwidth; those that failed are not among them.

    Within nodes a pair is compared with the median of pairs. Across nodes with the median of what each worker reaches
    at best: one bad node of three takes part in four pairs of six, and would make its own bandwidth the median.
    """
    slow_pairs = []
    for scope in ("within", "across"):
        timed = [pair for pair in pairs if pair.scope == scope and pair.bandwidth]
        best: dict[str, float] = {}
        for pair in timed:
            for name in (pair.source, pair.target):
                best[name] = max(best.get(name, 0.0), pair.bandwidth)
        speeds = best.values() if scope == "across" else [pair.bandwidth for pair in timed]
        slow_pairs += [pair for pair in timed if pair.bandwidth < SLOW * median(speeds)]
    return slow_pairs


def read_counters(root: Path = Path("/")) -> dict[str, Any]:
    """Return the current byte counters of this node, ready for JSON; ``sys`` is below ``root``.

    ``time``: seconds of a steady clock. ``nvlink``: by GPU UUID, what the vendor's ``link_counters`` says, None, with
    ``nvlink_why``, where it does not answer. ``infiniband``: by ``device:port``, bytes ``tx`` and ``rx``, ``state``
    (ACTIVE, DOWN, …), ``layer`` (InfiniBand, Ethernet) and ``rate`` in bytes per second. ``interfaces``: by name, bytes
    ``tx`` and ``rx``, the ARPHRD ``type`` (32 is IP over InfiniBand) and whether it is made of ``lower`` ones (a bond,
    a VLAN), which count the same bytes.
    """
    nvlink, why = vendor().link_counters()
    return {
        "time": time.monotonic(),
        "nvlink": nvlink,
        "nvlink_why": why,
        "infiniband": sysfs.port_counters(root),
        "interfaces": sysfs.interface_counters(root),
    }


def counter_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bytes that moved between two readings of :func:`read_counters`, with ``seconds`` for ``time``.

    A counter that is missing in one of the readings or went backwards (the driver was reloaded) is None: unknown, which
    is not the same as 0.
    """
    moved: dict[str, Any] = {"seconds": after["time"] - before["time"], "nvlink_why": after["nvlink_why"]}
    for kind in ("nvlink", "infiniband", "interfaces"):
        then, now = before[kind], after[kind]
        if then is None or now is None:
            moved[kind] = None
            moved["nvlink_why"] = after["nvlink_why"] or before["nvlink_why"]
            continue
        moved[kind] = {name: _subtract(then.get(name, {}), counters) for name, counters in now.items()}
    return moved


def _subtract(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    moved = dict(after)
    for way in ("tx", "rx"):
        then, now = before.get(way), after[way]
        moved[way] = None if then is None or now is None or now < then else now - then
    return moved


def transport_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that decide on a transport: all of UCX and NCCL, and which GPUs the process sees."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(("UCX_", "UCXPY_", "NCCL_")) or name in _VARIABLES
    }


def parse_ucx_log(text: str) -> dict[str, Any]:
    """Return the facts of UCX's log with ``UCX_LOG_LEVEL=info``, ready for JSON.

    UCX writes one line for each configuration of an endpoint, also for the one with which a connection begins, which is
    always TCP and always "inter-node". So a lane in the list *may* carry data; which one did is for counters to say.
    And UCX tells a node by its namespaces, not by its name: it has called endpoints of two nodes "intra-node"
    (https://github.com/openucx/ucx/pull/10193) and those of one node "inter-node" (where /dev/shm is not shared).

    ``version`` and ``library`` ("" if not said); ``lanes``: for ``self``, ``intra`` and ``inter`` the sorted
    ``transport/device`` that may carry data; ``available``: what it names instead of transports of UCX_TLS that it
    lacks; ``settings``: the UCX_ variables that it read; ``warnings`` and ``errors``: its other words, each once.
    """
    lanes_of: dict[str, set[str]] = {scope: set() for scope in _SCOPES.values()}
    settings_seen: dict[str, Any] = {"version": "", "library": "", "available": [], "settings": {}}
    warnings: dict[str, None] = {}
    errors: dict[str, None] = {}
    for line in text.splitlines():
        match = _UCX_LINE.search(line)
        if match is None:
            continue
        message = match["text"]
        if version := _UCX_VERSION.search(message):
            settings_seen |= version.groupdict()
        elif wired := _UCX_LANES.search(message):
            for operation, lanes in _UCX_OPERATION.findall(wired["lanes"]):
                lanes_of[_SCOPES[wired["scope"]]] |= {*lanes.split()} if operation != _KEEPALIVE else set()
        elif absent := _UCX_ABSENT.search(message):
            settings_seen["available"] = absent["there"].split(", ")
            warnings[message] = None
        elif "env variables:" in message:
            settings_seen["settings"] |= dict(_UCX_SETTING.findall(message))
        elif match["level"] in ("ERROR", "FATAL"):
            errors[message] = None
        elif match["level"] == "WARN" and "unused environment variable" not in message and "to suppress" not in message:
            warnings[message] = None  # UCXX itself sets the variable that is unused
    by_scope = {scope: sorted(lanes) for scope, lanes in lanes_of.items()}
    return {**settings_seen, "lanes": by_scope, "warnings": list(warnings), "errors": list(errors)}


def parse_nccl_log(text: str) -> dict[str, Any]:
    """Return the facts of NCCL's log with ``NCCL_DEBUG=INFO``, ready for JSON.

    ``version``; ``net``: the network that it chose (IB, Socket, IBext_v8, Libfabric, …; "" if it was not said), and
    ``devices`` as NCCL lists them for it; ``within``: by transport (P2P/CUMEM, P2P/IPC, SHM, …) the number of channels
    inside nodes; ``across``: by transport (NET/IB, NET/Socket, …) the number between nodes; ``gdr``: how many of these
    go straight to GPU memory; ``settings``: the variables that it read; ``warnings``.
    """
    summary: dict[str, Any] = {"version": "", "net": "", "gdr": 0}
    within: Counter[str] = Counter()
    across: Counter[str] = Counter()
    devices: dict[str, list[str]] = {}
    for line in text.splitlines():
        if version := _NCCL_VERSION.search(line):
            summary["version"] = version[1].partition("+")[0]
        elif via := _NCCL_VIA.search(line):
            parts = via["via"].split("/")
            if parts[0] == "NET":
                across[f"NET/{parts[1]}"] += 1
            else:  # P2P/CUMEM of P2P/CUMEM/read, P2P/direct pointer, and SHM of SHM/direct/direct
                within["/".join(parts[:2]) if parts[0] == "P2P" else parts[0]] += 1
            summary["gdr"] += parts[-1] == "GDRDMA"
        elif net := _NCCL_NET.search(line):
            summary["net"] = net["net"]
        elif using := _NCCL_USING.search(line):
            listed = _NCCL_DEVICE.findall(using["devices"])
            devices[using["net"]] = [":".join(filter(None, parts)) for parts in listed]
    listed_as = next((net for net in devices if summary["net"].startswith(net)), "")
    return {
        **summary,
        "devices": devices.get(listed_as, []),
        "within": dict(within),
        "across": dict(across),
        "settings": dict(_NCCL_SETTING.findall(text)),
        "warnings": list(dict.fromkeys(_NCCL_WARNING.findall(text))),
    }


def merge_nccl_logs(logs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several processes' logs (:func:`parse_nccl_log`) as one: counts are added, lists and settings united."""
    merged: dict[str, Any] = dict(logs[0]) if logs else {}
    for log in logs[1:]:
        for name in ("within", "across"):
            merged[name] = dict(Counter(merged[name]) + Counter(log[name]))
        for name in ("devices", "warnings"):
            merged[name] = list(dict.fromkeys([*merged[name], *log[name]]))
        merged |= {"gdr": merged["gdr"] + log["gdr"], "settings": {**merged["settings"], **log["settings"]}}
    return merged
