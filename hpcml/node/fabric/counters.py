"""What a node can say about the wire: byte counters of NVLink, InfiniBand and IP, and the logs of UCX and NCCL.

Counters are read before and after the transfers and subtracted; a lane that a log promises but whose counter stayed
still has carried nothing. Reading takes some milliseconds and makes no CUDA context. The InfiniBand side is untested
on hardware: it is tested against trees and logs in the kernel's and the libraries' formats.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_WORD = 4  # bytes: port_xmit_data counts words of 4 octets (Linux, Documentation/ABI/stable/sysfs-class-infiniband)
_STUCK = 2**32 - 1  # adapters without 64-bit counters stop here instead of starting again (same document)
_ALL_LINKS = 2**32 - 1  # nvml.h: a scopeId of UINT_MAX is the sum over all links; 0, the default, is link 0 alone
_VALUE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")  # by nvmlValueType_t

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
_NCCL_NVLS = re.compile(r"NVLS multicast support is (not )?available")


def counters(root: Path = Path("/")) -> dict[str, Any]:
    """Return this node's byte counters as they stand now, ready for JSON.

    Parameters
    ----------
    root
        Where ``sys`` is looked for.

    Returns
    -------
    dict
        ``time``: seconds of a steady clock. ``nvlink``: by GPU UUID, NVML's ``index``, bytes ``tx`` and ``rx`` over all
        links (None if unreadable, ``why`` says why), how many ``links`` are active, and ``peers``, the GPUs that it
        reaches by NVLink (None if unknown); None as a whole, with ``nvlink_why``, where NVML does not answer.
        ``infiniband``: by ``device:port``, bytes ``tx`` and ``rx``, ``state`` (ACTIVE, DOWN, …), ``layer`` (InfiniBand,
        Ethernet) and ``rate`` in bytes per second. ``interfaces``: by name, bytes ``tx`` and ``rx``, the ARPHRD
        ``type`` (32 is IP over InfiniBand) and whether it is made of ``lower`` ones (a bond, a VLAN), which count the
        same bytes.
    """
    nvlink, why = _nvlink()
    return {
        "time": time.monotonic(),
        "nvlink": nvlink,
        "nvlink_why": why,
        "infiniband": _infiniband(root / "sys/class/infiniband"),
        "interfaces": _interfaces(root / "sys/class/net"),
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
    """Return the variables that decide on a wire: all of UCX and NCCL, and which GPUs the process sees."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(("UCX_", "UCXPY_", "NCCL_")) or name in _SETTINGS
    }


def _nvlink() -> tuple[dict[str, Any] | None, str]:
    try:
        import pynvml
    except ImportError:
        return None, "pynvml (the package nvidia-ml-py) is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML does not start: {error}"
    try:
        handles, indices = {}, {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            except pynvml.NVMLError_NoPermission:
                continue  # a GPU that Slurm gave to another job is counted too
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            handles[uuid], indices[uuid] = handle, index
        return {uuid: {"index": indices[uuid], **_gpu(pynvml, uuid, handles)} for uuid in handles}, ""
    except pynvml.NVMLError as error:
        return None, f"NVML fails: {error}"
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes before nvidia-ml-py 11.515


def _gpu(nvml: Any, uuid: str, handles: Mapping[str, Any]) -> dict[str, Any]:
    handle = handles[uuid]
    links = _active_links(nvml, handle)
    facts: dict[str, Any] = {"links": len(links), "tx": None, "rx": None, "peers": [], "why": "no active NVLink"}
    if links:
        tx, rx, why = _throughput(nvml, handle, links)
        facts |= {"tx": tx, "rx": rx, "peers": _peers(nvml, uuid, handles), "why": why}
    return facts


def _active_links(nvml: Any, handle: Any) -> list[int]:
    found = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED:
                found.append(link)
        except nvml.NVMLError:  # "not supported" on a GPU without NVLink, "invalid argument" behind its last link
            break
    return found


def _peers(nvml: Any, uuid: str, handles: Mapping[str, Any]) -> list[str] | None:
    try:
        return [
            other
            for other, handle in handles.items()
            if other != uuid
            and nvml.nvmlDeviceGetP2PStatus(handles[uuid], handle, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            == nvml.NVML_P2P_STATUS_OK
        ]
    except nvml.NVMLError:
        return None  # unknown, as the caller's documentation says


def _throughput(nvml: Any, handle: Any, links: list[int]) -> tuple[int | None, int | None, str]:
    """Return the bytes that all links have sent and received since the driver started, or why nobody knows.

    The payload counters first, then those with protocol overhead (both in KiB, nvml.h), then those of NVLink 5 (bytes,
    for each link), then the counters that all these have replaced, which count bytes only where an administrator has
    set them so.
    """
    reasons = []
    for tx_name, rx_name, unit in (
        ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", 1024),
        ("NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX", 1024),
        ("NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES", "NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES", 1),
    ):
        tx_field, rx_field = getattr(nvml, tx_name, None), getattr(nvml, rx_name, None)
        if tx_field is None or rx_field is None:
            continue  # an older nvidia-ml-py
        for scopes in ([_ALL_LINKS], links):
            try:
                sums = [_sum_field(nvml, handle, field, scopes) for field in (tx_field, rx_field)]
            except nvml.NVMLError as error:
                reasons.append(f"{tx_name.removeprefix('NVML_FI_DEV_NVLINK_')}: {error}")
            else:
                return sums[0] * unit, sums[1] * unit, ""
    try:
        return (*_old_counters(nvml, handle, links), "")
    except nvml.NVMLError as error:
        return None, None, "; ".join([*dict.fromkeys(reasons), f"utilization counters: {error}"])


def _sum_field(nvml: Any, handle: Any, field: int, scopes: list[int]) -> int:
    total = 0
    for value in nvml.nvmlDeviceGetFieldValues(handle, [(field, scope) for scope in scopes]):
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        total += int(getattr(value.value, _VALUE[value.valueType]))
    return total


def _old_counters(nvml: Any, handle: Any, links: list[int]) -> tuple[int, int]:
    for counter in (0, 1):
        control = nvml.nvmlDeviceGetNvLinkUtilizationControl(handle, links[0], counter)
        if control.units == nvml.NVML_NVLINK_COUNTER_UNIT_BYTES:
            pairs = [nvml.nvmlDeviceGetNvLinkUtilizationCounter(handle, link, counter) for link in links]
            return sum(tx for _, tx in pairs), sum(rx for rx, _ in pairs)
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)


def _infiniband(folder: Path) -> dict[str, Any]:
    ports = {}
    for port in sorted(folder.glob("*/ports/*")):
        counted: dict[str, Any] = {}
        for way, words, octets in (("tx", "port_xmit_data", "tx_bytes"), ("rx", "port_rcv_data", "rx_bytes")):
            value = _number(port / "counters" / words)
            # Amazon's EFA has no port counters, but bytes among its own (Linux, drivers/infiniband/hw/efa/efa_verbs.c).
            own = _number(port / "hw_counters" / octets)
            counted[way] = own if value is None else None if value == _STUCK else value * _WORD
        state, rate = _read(port / "state"), _read(port / "rate").split()
        ports[f"{port.parent.parent.name}:{port.name}"] = {
            **counted,
            "state": state.rpartition(": ")[2],
            "layer": _read(port / "link_layer"),
            "rate": int(float(rate[0]) * 1e9 / 8) if rate[1:2] == ["Gb/sec"] else 0,
        }
    return ports


def _interfaces(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.glob("*/statistics")):
        interface = path.parent
        found[interface.name] = {
            "tx": _number(path / "tx_bytes"),
            "rx": _number(path / "rx_bytes"),
            "type": _number(interface / "type"),
            "lower": any(interface.glob("lower_*")),
        }
    return found


def _read(path: Path) -> str:
    """Return a file of /sys without its end of line; "" if the driver does not offer it or refuses to read it."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None


def parse_ucx_log(text: str) -> dict[str, Any]:
    """Return what UCX said with ``UCX_LOG_LEVEL=info``, ready for JSON.

    UCX writes one line for each configuration of an endpoint, also for the one with which a connection begins, which is
    always TCP and always "inter-node". So a lane in the list *may* carry data; which one did is for counters to say.
    And UCX tells a node by its namespaces, not by its name: it has called endpoints of two nodes "intra-node"
    (https://github.com/openucx/ucx/pull/10193) and those of one node "inter-node" (where /dev/shm is not shared).

    Returns
    -------
    dict
        ``version`` and ``library`` ("" if not said); ``lanes``: for ``self``, ``intra`` and ``inter`` the sorted
        ``transport/device`` that may carry data; ``operations``: the same by operation (tag, am, rma_am, stream, ka,
        …); ``unavailable``: transports of UCX_TLS that this UCX lacks, ``available``: what it names instead;
        ``settings``: the UCX_ variables that it read; ``warnings`` and ``errors``: its other words, each once.
    """
    operations: dict[str, dict[str, set[str]]] = {scope: {} for scope in _SCOPES.values()}
    facts: dict[str, Any] = {"version": "", "library": "", "unavailable": [], "available": [], "settings": {}}
    warnings, errors = [], []
    for line in text.splitlines():
        match = _UCX_LINE.search(line)
        if match is None:
            continue
        said = match["text"]
        if found := _UCX_VERSION.search(said):
            facts["version"], facts["library"] = found["version"], found["library"]
        elif found := _UCX_LANES.search(said):
            known = operations[_SCOPES[found["scope"]]]
            for operation, lanes in _UCX_OPERATION.findall(found["lanes"]):
                known.setdefault(operation, set()).update(lanes.split())
        elif found := _UCX_ABSENT.search(said):
            facts["unavailable"] = re.findall(r"'([^']*)'", found["asked"])
            facts["available"] = found["there"].split(", ")
            warnings.append(said)
        elif "env variables:" in said:
            facts["settings"] |= dict(_UCX_SETTING.findall(said))
        elif match["level"] in ("ERROR", "FATAL"):
            errors.append(said)
        elif match["level"] == "WARN" and "unused environment variable" not in said and "to suppress" not in said:
            warnings.append(said)  # UCXX itself sets the variable that is unused
    return {
        **facts,
        "lanes": {scope: _lanes(known) for scope, known in operations.items()},
        "operations": {
            scope: {operation: sorted(lanes) for operation, lanes in sorted(known.items())}
            for scope, known in operations.items()
        },
        "warnings": list(dict.fromkeys(warnings)),
        "errors": list(dict.fromkeys(errors)),
    }


def _lanes(operations: Mapping[str, Iterable[str]]) -> list[str]:
    return sorted({lane for operation, lanes in operations.items() if operation != _KEEPALIVE for lane in lanes})


def parse_nccl_log(text: str) -> dict[str, Any]:
    """Return what NCCL said with ``NCCL_DEBUG=INFO``, ready for JSON.

    Returns
    -------
    dict
        ``version``; ``net``: the network that it chose (IB, Socket, IBext_v8, Libfabric, …; "" if it was not said), and
        ``devices`` as NCCL lists them for it; ``within``: by transport (P2P/CUMEM, P2P/IPC, SHM, …) the number of
        channels inside nodes; ``across``: by transport (NET/IB, NET/Socket, …) the number between nodes; ``gdr``: how
        many of these go straight to GPU memory; ``channels`` and ``nvls_channels`` of a collective; ``nvls``: whether
        NVLink multicast is offered (None if not said); ``settings``: the variables that it read; ``warnings``.
    """
    facts: dict[str, Any] = {"version": "", "net": "", "channels": 0, "nvls_channels": 0, "nvls": None, "gdr": 0}
    within: dict[str, int] = {}
    across: dict[str, int] = {}
    devices: dict[str, list[str]] = {}
    variables: dict[str, str] = {}
    warnings = []
    for line in text.splitlines():
        if found := _NCCL_VERSION.search(line):
            facts["version"] = found[1].partition("+")[0]
        elif found := _NCCL_VIA.search(line):
            parts = found["via"].split("/")
            where, name = (across, f"NET/{parts[1]}") if parts[0] == "NET" else (within, _inside(parts))
            where[name] = where.get(name, 0) + 1
            facts["gdr"] += parts[-1] == "GDRDMA"
        elif found := _NCCL_NET.search(line):
            facts["net"] = found["net"]
        elif found := _NCCL_USING.search(line):
            listed = _NCCL_DEVICE.findall(found["devices"])
            devices[found["net"]] = [":".join(filter(None, parts)) for parts in listed]
        elif found := _NCCL_CHANNELS.search(line):
            facts["channels"], facts["nvls_channels"] = int(found[1]), int(found[2])
        elif found := _NCCL_NVLS.search(line):
            facts["nvls"] = not found[1]
        elif found := re.search(r"(NCCL_\w+) set by environment to (\S*?)\.?$", line.rstrip()):
            variables[found[1]] = found[2]
        elif found := re.search(r"NCCL WARN (.*\S)", line):
            warnings.append(found[1])
    listed_as = next((net for net in devices if facts["net"].startswith(net)), "")
    return {
        **facts,
        "devices": devices.get(listed_as, []),
        "within": within,
        "across": across,
        "settings": variables,
        "warnings": list(dict.fromkeys(warnings)),
    }


def _inside(parts: list[str]) -> str:
    """Return ``P2P/CUMEM`` of ``P2P/CUMEM/read``, ``P2P/direct pointer``, and ``SHM`` of ``SHM/direct/direct``."""
    return "/".join(parts[:2]) if parts[0] == "P2P" else parts[0]
