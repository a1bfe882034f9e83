"""What NVIDIA's driver says of this node's GPUs, by NVML, nvidia-smi and the kernel: see `gpu_interface.py`.

`ask` talks to the driver and returns its raw answers, which can be recorded as JSON; `described` turns such
answers into a record and needs no GPU. NVML neither makes a CUDA context nor takes GPU memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcml.gpu_vendor import VENDOR
from hpcml.node.hardware.record import Gpu, Gpus, GpuShape, Place, Smi
from hpcml.node.hardware.sysfs import pci_of, read, sysfs_bus_id, to_ranges
from hpcml.node.process_helpers import output

_SMI = "pci.bus_id,driver_version,mig.mode.current,compute_mode"
_SMI_SECONDS = 10.0  # for nvidia-smi: a driver that hangs must not keep the run
_MOST_PROCESSES = 5000  # that are looked at
_ALL_LINKS = 2**32 - 1  # a scopeId of UINT_MAX is the sum over all links; 0, the default, is link 0 alone
_VALUE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")  # by nvmlValueType_t
_AFFINITY_WORDS = 32  # of 64 CPUs each; NVML takes a set that is larger than the node


def ask() -> dict[str, Any]:
    """Return NVML's raw answers, or ``{"error": sentence}`` if it cannot be asked.

    What one GPU does not answer is None, with NVML's words in that GPU's ``errors``. Call it in a process that may be
    ended: a GPU that has fallen off the bus can make NVML wait for ever.
    """
    try:
        import pynvml
    except ImportError:
        return {"error": "nvidia-ml-py is not installed: hpcml cannot query NVML"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": f"NVML, the NVIDIA driver's library, does not work here: {error}"}
    question = Asker(pynvml)
    count = question("count", "nvmlDeviceGetCount") or 0
    handles = {index: question(f"gpu{index}", "nvmlDeviceGetHandleByIndex", index) for index in range(count)}
    answers = {
        "driver": text(question("driver", "nvmlSystemGetDriverVersion")),
        "cuda": question("cuda", "nvmlSystemGetCudaDriverVersion_v2"),
        "gpus": [_ask_gpu(pynvml, index, handle) for index, handle in handles.items() if handle is not None],
    }
    pynvml.nvmlShutdown()
    return {**answers, "errors": question.errors, "error": ""}


class Asker:
    """Calls NVML's functions by name; a refusal becomes words, so that it does not hide the other answers."""

    def __init__(self, nvml: Any) -> None:
        self.nvml, self.errors = nvml, dict[str, str]()

    def __call__(self, fact: str, function: str, *arguments: Any) -> Any:
        """Return the answer of a function, None if NVML refuses; the words are kept under ``fact``."""
        try:
            return getattr(self.nvml, function)(*arguments)
        except (self.nvml.NVMLError, AttributeError, ValueError) as error:  # AttributeError: an older nvidia-ml-py
            self.errors.setdefault(fact, str(error))
            return None

    def refused(self, function: str, *arguments: Any) -> bool:
        """Call a function that answers nothing; return True if NVML refused."""
        try:
            getattr(self.nvml, function)(*arguments)
        except (self.nvml.NVMLError, AttributeError, ValueError):
            return True
        return False

    def links(self, handle: Any) -> dict[int, int]:
        """Return by number whether each link is active; one that the GPU does not have answers an error."""
        states = {
            link: self("", "nvmlDeviceGetNvLinkState", handle, link) for link in range(self.nvml.NVML_NVLINK_MAX_LINKS)
        }
        return {link: int(state) for link, state in states.items() if state is not None}


def text(answer: str | bytes | None) -> str:
    """Return an answer of NVML as text; older versions of nvidia-ml-py give bytes."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer or ""


_GPU_QUESTIONS: tuple[tuple[str, str, tuple[Any, ...], Callable[[Any], Any]], ...] = (
    ("uuid", "nvmlDeviceGetUUID", (), text),
    ("name", "nvmlDeviceGetName", (), text),
    ("memory", "nvmlDeviceGetMemoryInfo", (), lambda memory: int(memory.total)),
    ("capability", "nvmlDeviceGetCudaComputeCapability", (), list),
    ("pci", "nvmlDeviceGetPciInfo", (), lambda pci: text(pci.busId)),
    ("mig", "nvmlDeviceGetMigMode", (), list),
    ("affinity", "nvmlDeviceGetCpuAffinity", (_AFFINITY_WORDS,), lambda words: [int(word) for word in words]),
)


def _ask_gpu(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    ask = Asker(nvml)
    table: dict[str, Any] = {"index": index}
    for fact, function, arguments, convert in _GPU_QUESTIONS:
        answer = ask(fact, function, handle, *arguments)
        table[fact] = ("" if convert is text else None) if answer is None else convert(answer)
    table["bus_id"] = table.pop("pci") or ""
    parts = mig_devices(nvml, handle) if table["mig"] and table["mig"][0] else []
    return {**table, "mig_devices": parts, "errors": ask.errors}


def mig_devices(nvml: Any, handle: Any) -> list[str]:
    """Return the UUIDs of the MIG devices of a GPU."""
    ask = Asker(nvml)
    numbers = range(ask("", "nvmlDeviceGetMaxMigDeviceCount", handle) or 0)
    parts = [ask("", "nvmlDeviceGetMigDeviceHandleByIndex", handle, number) for number in numbers]
    # An index without a MIG device answers "not found".
    return [text(ask("", "nvmlDeviceGetUUID", part)) for part in parts if part is not None]


def memory(index: int) -> tuple[int, int]:
    """Return the total and free memory of a GPU, by NVML's index, in bytes: no CUDA context is needed."""
    import pynvml

    pynvml.nvmlInit()
    amounts = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index))
    return int(amounts.total), int(amounts.free)


def memory_of(device: str, pid: int) -> tuple[int, int] | None:
    """Return the memory of a GPU that a process uses, and what is free of it, in bytes; None where NVML does not tell.

    ``device`` is an entry of ``CUDA_VISIBLE_DEVICES``: an index, or the UUID of a GPU or of a MIG part. Where NVML does
    not know the process (it has not used the GPU yet, or has another number inside an image) all that is used counts.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None
    ask = Asker(pynvml)
    question = (
        ("nvmlDeviceGetHandleByIndex", int(device)) if device.isdigit() else ("nvmlDeviceGetHandleByUUID", device)
    )
    handle = ask("device", *question)
    amounts = None if handle is None else ask("memory", "nvmlDeviceGetMemoryInfo", handle)
    if amounts is None:
        return None
    processes = ask("processes", "nvmlDeviceGetComputeRunningProcesses", handle) or []
    taken = next((entry.usedGpuMemory for entry in processes if entry.pid == pid), None)  # None too where it is hidden
    return int(amounts.used if taken is None else taken), int(amounts.free)


def link_counters() -> tuple[dict[str, Any] | None, str]:
    """Return by UUID what each GPU has moved over NVLink; None and the reason where NVML does not answer.

    ``index`` is NVML's; ``tx`` and ``rx`` are bytes over all links (None if unreadable, ``why`` says why), ``links``
    how many are active, ``peers`` the GPUs that it reaches by NVLink (None if unknown).
    """
    try:
        import pynvml
    except ImportError:
        return None, "pynvml (the package nvidia-ml-py) is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML could not start: {error}"
    try:
        handles, indices = {}, {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            except pynvml.NVMLError_NoPermission:
                continue  # a GPU that Slurm gave to another job is counted too
            uuid = text(pynvml.nvmlDeviceGetUUID(handle))
            handles[uuid], indices[uuid] = handle, index
        return {uuid: {"index": indices[uuid], **_moved(pynvml, uuid, handles)} for uuid in handles}, ""
    except pynvml.NVMLError as error:
        return None, f"NVML fails: {error}"
    finally:
        pynvml.nvmlShutdown()


def _moved(nvml: Any, uuid: str, handles: Mapping[str, Any]) -> dict[str, Any]:
    handle, ask = handles[uuid], Asker(nvml)
    links = active_links(nvml, handle)
    if not links:
        return {"links": 0, "tx": None, "rx": None, "peers": [], "why": "no active NVLink"}
    tx, rx, why = link_bytes(nvml, handle, links)
    joined = {
        other: ask("", "nvmlDeviceGetP2PStatus", handle, peer, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        for other, peer in handles.items()
        if other != uuid
    }
    peers = [other for other, status in joined.items() if status == nvml.NVML_P2P_STATUS_OK]
    return {"links": len(links), "tx": tx, "rx": rx, "peers": None if None in joined.values() else peers, "why": why}


def active_links(nvml: Any, handle: Any) -> list[int]:
    """Return the numbers of a GPU's links that are active."""
    return [link for link, state in Asker(nvml).links(handle).items() if state == nvml.NVML_FEATURE_ENABLED]


def link_bytes(nvml: Any, handle: Any, links: list[int]) -> tuple[int | None, int | None, str]:
    """Return the bytes that all links have sent and received since the driver started, or why nobody knows.

    The payload counters first, then those with protocol overhead (both in KiB, nvml.h), then those of NVLink 5 (bytes,
    for each link), then the counters that all these have replaced, which count bytes only where an administrator has
    set them so.
    """
    reasons = []
    for tx_name, rx_name, unit in (
        ("THROUGHPUT_DATA_TX", "THROUGHPUT_DATA_RX", 1024),
        ("THROUGHPUT_RAW_TX", "THROUGHPUT_RAW_RX", 1024),
        ("COUNT_XMIT_BYTES", "COUNT_RCV_BYTES", 1),
    ):
        fields = [getattr(nvml, f"NVML_FI_DEV_NVLINK_{name}", None) for name in (tx_name, rx_name)]
        if None in fields:
            continue  # an older nvidia-ml-py
        for scopes in ([_ALL_LINKS], links):
            try:
                tx, rx = (_sum_field(nvml, handle, field, scopes) for field in fields)
            except nvml.NVMLError as error:
                reasons.append(f"{tx_name}: {error}")
            else:
                return tx * unit, rx * unit, ""
    try:
        return (*_old_counters(nvml, handle, links), "")
    except nvml.NVMLError as error:
        return None, None, "; ".join([*dict.fromkeys(reasons), f"utilization counters: {error}"])


def _sum_field(nvml: Any, handle: Any, field: Any, scopes: list[int]) -> int:
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


def described(raw: Mapping[str, Any], root: Path, visible: str | None) -> tuple[Gpus, str]:
    """Return the GPUs in NVML's raw answers (`ask`), with the PCI tree below ``root``, and what went wrong.

    ``visible`` is CUDA_VISIBLE_DEVICES, None if it is not set.
    """
    answers = list(raw.get("gpus", []))
    shown, count = visible_gpus(visible, answers)
    faults = "; ".join(f"{name}: {text}" for name, text in raw.get("errors", {}).items())
    cuda = raw.get("cuda") or 0
    speaks = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""  # 12020 is 12.2
    gpus = tuple(_gpu(gpu, root, visible=gpu["index"] in shown) for gpu in answers)
    return Gpus(gpus, raw.get("driver", ""), speaks, visible, count), raw.get("error") or faults


def _bus(text: str) -> str:
    return sysfs_bus_id(text) if text.count(":") == 2 else ""


def _gpu(gpu: Mapping[str, Any], root: Path, *, visible: bool) -> Gpu:
    bus, errors = _bus(gpu["bus_id"]), dict(gpu["errors"])
    pci = pci_of(root / "sys/bus/pci/devices" / bus) if bus else Place()
    if bus and not pci.bus_id:
        errors["pci"] = f"the kernel shows no PCI device {bus} on this node"
    masks = enumerate(gpu["affinity"] or [])
    shape = GpuShape(
        memory=gpu["memory"],
        capability=tuple(gpu["capability"]) if gpu["capability"] else None,
        mig=bool(gpu["mig"][0]) if gpu["mig"] else None,
        cpus=to_ranges(64 * word + bit for word, mask in masks for bit in range(64) if mask >> bit & 1),
    )
    return Gpu(gpu["index"], gpu["uuid"], gpu["name"], bus, pci, visible, shape, errors)


def visible_gpus(visible: str | None, gpus: Sequence[Mapping[str, Any]]) -> tuple[set[int], int]:
    """Return the indices of the GPUs that a CUDA program sees, and the number of devices (a MIG part is one).

    ``CUDA_VISIBLE_DEVICES`` holds indices, UUIDs or beginnings of UUIDs, or UUIDs of MIG parts; the first entry that
    names nothing ends the list, and an empty list shows nothing (CUDA C++ Programming Guide, "CUDA environment
    variables"). Indices are taken in the PCI order, which is also CUDA's for GPUs of one kind.
    """
    if visible is None:
        return {gpu["index"] for gpu in gpus}, len(gpus)
    shown: list[tuple[int, str]] = []
    for entry in (part.strip() for part in visible.split(",")):
        device = _named(entry, gpus)
        if device is None or device in shown:
            break
        shown.append(device)
    return {index for index, _ in shown}, len(shown)


def _named(entry: str, gpus: Sequence[Mapping[str, Any]]) -> tuple[int, str] | None:
    if entry.isdigit():
        matching = [gpu for gpu in gpus if gpu["index"] == int(entry)]
    elif entry.startswith("GPU-"):
        matching = [gpu for gpu in gpus if gpu["uuid"].startswith(entry)]
    else:
        matching = [gpu for gpu in gpus if entry.startswith("MIG-") and entry in gpu["mig_devices"]]
    return (matching[0]["index"], entry if entry.startswith("MIG-") else "") if len(matching) == 1 else None


# -- without NVML -----------------------------------------------------------------------------------------------------


def names(root: Path) -> tuple[str, ...]:
    """Return the names of all GPUs of the node, also of those that the job may not use."""
    texts = [read(path) for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))]
    return tuple(match[1].strip() for text in texts if (match := re.search(r"(?m)^Model:(.*)$", text)))


def kernel_driver(root: Path) -> str | None:
    """Return the version of the kernel module, None without it."""
    folder = root / "sys/module/nvidia"
    return read(folder / "version") if folder.is_dir() else None


def rows() -> tuple[Smi, ...]:
    """Return a row for each GPU; none where nvidia-smi does not answer."""
    printed = output([VENDOR.tool, f"--query-gpu={_SMI}", "--format=csv,noheader"], _SMI_SECONDS)
    cells = [[word.strip() for word in line.split(",")] for line in printed.splitlines()]
    return tuple(Smi(*row) for row in cells if len(row) == len(Smi._fields))


def is_shared(root: Path) -> bool:
    """Whether a server of NVIDIA's MPS runs on the node."""
    processes = (read(path) for path in list((root / "proc").glob("[0-9]*/comm"))[:_MOST_PROCESSES])
    return any(name.startswith("nvidia-cuda-mps") for name in processes)
