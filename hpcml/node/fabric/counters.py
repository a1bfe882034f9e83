"""What a node can say about its interconnect: byte counters of NVLink, InfiniBand and IP, and the logs of UCX and NCCL.

Counters are read before and after the transfers and subtracted; a lane that a log promises but whose counter stayed
still has carried nothing. Reading takes some milliseconds and makes no CUDA context. The InfiniBand side is untested
on hardware: it is tested against trees and logs in the kernel's and the libraries' formats.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcml.node.hardware import nvml, sysfs

_SETTINGS = ("CUDA_VISIBLE_DEVICES", "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY")

_UCX_LINE = re.compile(r"UCX\s+(?P<level>INFO|WARN|ERROR|DIAG|FATAL)\s+(?P<text>.*\S)")
_UCX_VERSION = re.compile(r"Version (?P<version>\S+) \(loaded from (?P<library>[^)]*)\)")
# Not the titles of UCX_PROTO_INFO's tables, which put a bar behind "cfg#3".
_UCX_LANES = re.compile(r"\b(?P<scope>self|intra-node|inter-node) cfg#\d+\s+(?P<lanes>(?:\w+\([^()]*\)\s*)+)$")
_UCX_OPERATION = re.compile(r"(\w+)\(([^()]*)\)")
_UCX_ABSENT = re.compile(
    r"transports? (?P<asked>'.*') (?:is|are) not available, please use one or more of: (?P<there>.*)"
)
_UCX_SETTING = re.compile(r"\b(UCX_\w+)=(\S*)")
_SCOPES = {"self": "self", "intra-node": "intra", "inter-node": "inter"}
_KEEPALIVE = "ka"  # the lane that asks now and then whether the peer lives; it carries no data

_NCCL_VERSION = re.compile(r"NCCL version (\d[\w.]*)")
_NCCL_NET = re.compile(r"(?:Using network|Assigned NET plugin) (?P<net>[\w.-]+)")
_NCCL_USING = re.compile(r"NET/(?P<net>\w+) : Using (?P<devices>\[\d+\].*)")
_NCCL_DEVICE = re.compile(r"\[\d+\]\s*(?P<name>[^\s:]+)(?::(?P<port>\d+)(?=/))?")
_NCCL_VIA = re.compile(r"Channel \d+(?:/\d+)? : \S+ -> \S+ (?:\[(?P<way>send|receive)\] )?via (?P<via>.*\S)")
_NCCL_CHANNELS = re.compile(r"(\d+) coll channels(?:, \d+ collnet channels)?, (\d+) nvls channels")
_NCCL_SETTING = re.compile(r"(NCCL_\w+) set by environment to (\S*?)\.?\s*$", re.MULTILINE)
_NCCL_WARNING = re.compile(r"NCCL WARN (.*\S)")
_NCCL_NVLS = re.compile(r"NVLS multicast support is (not )?available")


def counters(root: Path = Path("/")) -> dict[str, Any]:
    """Return this node's byte counters as they stand now, ready for JSON; ``sys`` is looked for below ``root``.

    ``time``: seconds of a steady clock. ``nvlink``: by GPU UUID, what `nvml.nvlink_counters` says, None, with
    ``nvlink_why``, where NVML does not answer. ``infiniband``: by ``device:port``, bytes ``tx`` and ``rx``, ``state``
    (ACTIVE, DOWN, …), ``layer`` (InfiniBand, Ethernet) and ``rate`` in bytes per second. ``interfaces``: by name, bytes
    ``tx`` and ``rx``, the ARPHRD ``type`` (32 is IP over InfiniBand) and whether it is made of ``lower`` ones (a bond,
    a VLAN), which count the same bytes.
    """
    nvlink, why = nvml.nvlink_counters()
    return {
        "time": time.monotonic(),
        "nvlink": nvlink,
        "nvlink_why": why,
        "infiniband": sysfs.port_counters(root),
        "interfaces": sysfs.interface_counters(root),
    }


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return what moved between two readings, in the form of ``counters`` with ``seconds`` in place of ``time``.

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
        moved[kind] = {name: _subtract(then.get(name, {}), facts) for name, facts in now.items()}
    return moved


def _subtract(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    moved = dict(after)
    for way in ("tx", "rx"):
        then, now = before.get(way), after[way]
        moved[way] = None if then is None or now is None or now < then else now - then
    return moved


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that decide on a transport: all of UCX and NCCL, and which GPUs the process sees."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(("UCX_", "UCXPY_", "NCCL_")) or name in _SETTINGS
    }


def parse_ucx_log(text: str) -> dict[str, Any]:
    """Return what UCX said with ``UCX_LOG_LEVEL=info``, ready for JSON.

    UCX writes one line for each configuration of an endpoint, also for the one with which a connection begins, which is
    always TCP and always "inter-node". So a lane in the list *may* carry data; which one did is for counters to say.
    And UCX tells a node by its namespaces, not by its name: it has called endpoints of two nodes "intra-node"
    (https://github.com/openucx/ucx/pull/10193) and those of one node "inter-node" (where /dev/shm is not shared).

    ``version`` and ``library`` ("" if not said); ``lanes``: for ``self``, ``intra`` and ``inter`` the sorted
    ``transport/device`` that may carry data; ``operations``: the same by operation (tag, am, rma_am, stream, ka, …);
    ``unavailable``: transports of UCX_TLS that this UCX lacks, ``available``: what it names instead; ``settings``: the
    UCX_ variables that it read; ``warnings`` and ``errors``: its other words, each once.
    """
    operations: dict[str, dict[str, set[str]]] = {scope: {} for scope in _SCOPES.values()}
    facts: dict[str, Any] = {"version": "", "library": "", "unavailable": [], "available": [], "settings": {}}
    warnings: dict[str, None] = {}
    errors: dict[str, None] = {}
    for line in text.splitlines():
        match = _UCX_LINE.search(line)
        if match is None:
            continue
        message = match["text"]
        if version := _UCX_VERSION.search(message):
            facts |= version.groupdict()
        elif wired := _UCX_LANES.search(message):
            lanes_by_operation = operations[_SCOPES[wired["scope"]]]
            for operation, lanes in _UCX_OPERATION.findall(wired["lanes"]):
                lanes_by_operation.setdefault(operation, set()).update(lanes.split())
        elif absent := _UCX_ABSENT.search(message):
            facts["unavailable"] = re.findall(r"'([^']*)'", absent["asked"])
            facts["available"] = absent["there"].split(", ")
            warnings[message] = None
        elif "env variables:" in message:
            facts["settings"] |= dict(_UCX_SETTING.findall(message))
        elif match["level"] in ("ERROR", "FATAL"):
            errors[message] = None
        elif match["level"] == "WARN" and "unused environment variable" not in message and "to suppress" not in message:
            warnings[message] = None  # UCXX itself sets the variable that is unused
    lanes_of = {
        scope: sorted({lane for operation, lanes in own.items() if operation != _KEEPALIVE for lane in lanes})
        for scope, own in operations.items()
    }
    by_operation = {
        scope: {operation: sorted(lanes) for operation, lanes in sorted(own.items())}
        for scope, own in operations.items()
    }
    return {
        **facts,
        "lanes": lanes_of,
        "operations": by_operation,
        "warnings": list(warnings),
        "errors": list(errors),
    }


def parse_nccl_log(text: str) -> dict[str, Any]:
    """Return what NCCL said with ``NCCL_DEBUG=INFO``, ready for JSON.

    ``version``; ``net``: the network that it chose (IB, Socket, IBext_v8, Libfabric, …; "" if it was not said), and
    ``devices`` as NCCL lists them for it; ``within``: by transport (P2P/CUMEM, P2P/IPC, SHM, …) the number of channels
    inside nodes; ``across``: by transport (NET/IB, NET/Socket, …) the number between nodes; ``gdr``: how many of these
    go straight to GPU memory; ``channels`` and ``nvls_channels`` of a collective; ``nvls``: whether NVLink multicast is
    offered (None if not said); ``settings``: the variables that it read; ``warnings``.
    """
    facts: dict[str, Any] = {"version": "", "net": "", "channels": 0, "nvls_channels": 0, "nvls": None, "gdr": 0}
    within: Counter[str] = Counter()
    across: Counter[str] = Counter()
    devices: dict[str, list[str]] = {}
    for line in text.splitlines():
        if version := _NCCL_VERSION.search(line):
            facts["version"] = version[1].partition("+")[0]
        elif via := _NCCL_VIA.search(line):
            parts = via["via"].split("/")
            if parts[0] == "NET":
                across[f"NET/{parts[1]}"] += 1
            else:  # P2P/CUMEM of P2P/CUMEM/read, P2P/direct pointer, and SHM of SHM/direct/direct
                within["/".join(parts[:2]) if parts[0] == "P2P" else parts[0]] += 1
            facts["gdr"] += parts[-1] == "GDRDMA"
        elif net := _NCCL_NET.search(line):
            facts["net"] = net["net"]
        elif using := _NCCL_USING.search(line):
            listed = _NCCL_DEVICE.findall(using["devices"])
            devices[using["net"]] = [":".join(filter(None, parts)) for parts in listed]
        elif channels := _NCCL_CHANNELS.search(line):
            facts["channels"], facts["nvls_channels"] = int(channels[1]), int(channels[2])
        elif multicast := _NCCL_NVLS.search(line):
            facts["nvls"] = not multicast[1]
    listed_as = next((net for net in devices if facts["net"].startswith(net)), "")
    return {
        **facts,
        "devices": devices.get(listed_as, []),
        "within": dict(within),
        "across": dict(across),
        "settings": dict(_NCCL_SETTING.findall(text)),
        "warnings": list(dict.fromkeys(_NCCL_WARNING.findall(text))),
    }
