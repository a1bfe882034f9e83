"""How a node is sampled: recorded trees of /proc and /sys, a stand-in for NVML, and a file that stays small."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml import samples
from hpcml.node.hardware import nvidia_samples
from hpcml.node.sampling import gpus, sampler
from hpcml.node.sampling.host import Host
from hpcml.node.sampling.sampler import SampleFile, interval
from hpcml.paths import AttemptPaths
from hpcml.samples import Gpu, GpuSample, NodeHeader, NodeSample, Traffic, line

MEMINFO = "MemTotal:       1000 kB\nMemAvailable:    400 kB\nSwapTotal:  100 kB\nSwapFree:   90 kB\n"
BASE = {
    "proc/meminfo": MEMINFO,
    "proc/stat": "cpu  100 0 50 1000 10 5 5 0 0 0\ncpu0 50 0 25 500 5 2 2 0 0 0\ncpu1 50 0 25 500 5 3 3 0 0 0\n",
    "proc/vmstat": "nr_free_pages 1\noom_kill 3\n",
    "proc/pressure/cpu": "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\n",
    "proc/net/dev": "Inter-|\n face |bytes\n    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n"
                    "  eth0: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n  eth1:1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n"
                    " bond0: 11 1 0 0 0 0 0 0 22 1 0 0 0 0 0 0\n   ib0: 5000 1 0 0 0 0 0 0 6000 1 0 0 0 0 0 0\n",
    "proc/diskstats": "8 0 sda 1 0 10 0 1 0 20 0 0 0 0\n8 1 sda1 1 0 10 0 1 0 20 0 0 0 0\n253 0 dm-0 1 0 10 0 1 0 20 0 0 0 0\n",
    "sys/block/sda/size": "1",
    "sys/block/dm-0/size": "1",
    "sys/class/net/lo/type": "772",
    "sys/class/net/eth0/device/vendor": "x", "sys/class/net/eth0/type": "1",
    "sys/class/net/eth1/device/vendor": "x", "sys/class/net/eth1/type": "1",
    "sys/class/net/bond0/lower_eth0/type": "1", "sys/class/net/bond0/lower_eth1/type": "1", "sys/class/net/bond0/type": "1",
    "sys/class/net/ib0/device/vendor": "x", "sys/class/net/ib0/type": "32",
}  # fmt: skip
PORT = "sys/class/infiniband/mlx5_0/ports/1"
INFINIBAND = {f"{PORT}/state": "4: ACTIVE", f"{PORT}/counters/port_rcv_data": "100", f"{PORT}/counters/port_xmit_data": "200",
              "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN",
              "sys/class/infiniband/mlx5_1/ports/1/counters/port_rcv_data": "7"}  # fmt: skip
JOB2 = "sys/fs/cgroup/system.slice/slurmstepd.scope/sl2JKA4"
VERSION2 = {
    "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/sl2JKA4/step_0/user/task_0\n",
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
    f"{JOB2}/cpu.stat": "usage_usec 5000000\nuser_usec 1\n",
    f"{JOB2}/memory.current": "900", f"{JOB2}/memory.stat": "anon 300\nfile 600\nshmem 100\n", f"{JOB2}/memory.swap.current": "7",
    f"{JOB2}/memory.events": "low 0\noom 2\noom_kill 1\noom_group_kill 0\n", f"{JOB2}/memory.max": "2000",
    f"{JOB2}/memory.pressure": "some avg10=2.25 avg60=0.00 avg300=0.00 total=1\nfull avg10=9.00\n",
    f"{JOB2}/io.stat": "8:0 rbytes=11 wbytes=12 rios=1 wios=1 dbytes=0 dios=0\n8:16 rbytes=1 wbytes=2 rios=1\n",
}  # fmt: skip
JOB1 = "slurm/uid_1000/job_7"
VERSION1 = {
    "proc/self/cgroup": "\n".join(f"{n}:{c}:/{JOB1}/step_0/task_0" for n, c in ((4, "cpu,cpuacct"), (3, "memory"), (2, "blkio"))),
    "proc/self/mountinfo": "".join(
        f"{n} 23 0:{n} / /sys/fs/cgroup/{c} rw - cgroup cgroup rw,{c}\n" for n, c in enumerate(("cpu,cpuacct", "memory", "blkio"))
    ),
    f"sys/fs/cgroup/cpu,cpuacct/{JOB1}/cpuacct.usage": "5000000000",
    f"sys/fs/cgroup/memory/{JOB1}/memory.usage_in_bytes": "900",
    f"sys/fs/cgroup/memory/{JOB1}/memory.stat": "cache 1\ntotal_cache 600\ntotal_shmem 100\ntotal_swap 7\n",
    f"sys/fs/cgroup/memory/{JOB1}/memory.limit_in_bytes": "2000",
    f"sys/fs/cgroup/memory/{JOB1}/step_0/task_0/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    f"sys/fs/cgroup/blkio/{JOB1}/blkio.throttle.io_service_bytes_recursive":
        "8:0 Read 11\n8:0 Write 12\n8:0 Total 23\n8:16 Read 1\n8:16 Write 2\nTotal 26\n",
}  # fmt: skip


HEADER = {**samples.header(samples.NODE), "t": 0.0, "node": "n1"}


def header_of(host: Host) -> NodeHeader:
    return host.header("n1", 0.0, 5.0)


def tree(root: Path, *parts: Mapping[str, str]) -> Path:
    for part in parts:
        for name, text in part.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root


# -- the node --------------------------------------------------------------------------------------------------------


def test_a_node_without_a_group_of_the_job(tmp_path: Path) -> None:
    host = Host(tree(tmp_path, BASE))
    header, sample = header_of(host), host.sample()
    assert (header.cores, header.memory, header.scope.memory) == (2, 1000 * 1024, "host")
    assert (sample.memory, sample.swap, sample.pressure) == (600 * 1024, 10 * 1024, (1.5, None, None))
    assert sample.disk == (10 * 512, 20 * 512)
    assert sample.cpu is None
    time.sleep(0.02)
    tree(tmp_path, {"proc/stat": BASE["proc/stat"].replace("cpu  100 0 50", "cpu  400 0 150")})
    sample = host.sample()
    assert sample.cpu
    assert sample.cpu > 0
    tree(tmp_path, {"proc/vmstat": "oom_kill 5\n"})
    assert (host.new_oom_kills(), host.new_oom_kills()) == (2, 0)


@pytest.mark.parametrize("group", [VERSION2, VERSION1])
def test_a_job_s_own_group(tmp_path: Path, group: Mapping[str, str]) -> None:
    """Page cache is given back at once, /dev/shm is not."""
    host = Host(tree(tmp_path, BASE, group))
    header, sample = header_of(host), host.sample()
    assert (header.scope.cpu, header.scope.memory, header.scope.disk, header.memory) == (
        "cgroup",
        "cgroup",
        "cgroup",
        2000,
    )
    assert header.cores == len(os.sched_getaffinity(0))
    assert (sample.memory, sample.swap, sample.disk) == (400, 7, (12, 14))
    assert sample.pressure[:2] == (1.5, 2.25 if group is VERSION2 else None)
    time.sleep(0.02)
    tree(tmp_path, {name: text.replace("5000000", "5100000") for name, text in group.items() if "cpu" in name})
    used = host.sample().cpu
    assert used
    assert 0 < used <= 5
    assert host.new_oom_kills() == 0
    tree(tmp_path, {name: text.replace("oom_kill 1", "oom_kill 4") for name, text in group.items() if "oom" in text})
    assert host.new_oom_kills() == 3


def test_groups_that_are_no_job_s(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, group in enumerate(("/", "/../../x/step_0", "/system.slice/slurmd.service", "/step_0")):
        with subtests.test(group):
            root = tree(tmp_path / str(number), BASE, VERSION2, {"proc/self/cgroup": f"0::{group}\n"})
            assert header_of(Host(root)).scope.memory == "host"


def test_no_byte_of_the_network_is_counted_twice(tmp_path: Path) -> None:
    """A bond is made of adapters; IP over InfiniBand goes through a port that counts it."""
    host = Host(tree(tmp_path / "ib", BASE, INFINIBAND))
    assert header_of(host).interfaces == ("eth0", "eth1")
    assert header_of(host).infiniband == ("mlx5_0/1",)
    sample = host.sample()
    assert (sample.net, sample.ib) == ((11, 22), (400, 800))  # InfiniBand counts words of 4 bytes
    without = Host(tree(tmp_path / "ip", BASE))
    assert header_of(without).interfaces == ("eth0", "eth1", "ib0")
    assert without.sample().ib == (None, None)
    virtual = {name: text for name, text in BASE.items() if "/device/" not in name}
    assert header_of(Host(tree(tmp_path / "veth", virtual))).interfaces == ("eth0", "eth1", "ib0")


def test_a_kernel_that_says_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert header_of(host).memory is None
    assert host.sample(1.0) == NodeSample(1.0)


# -- GPUs ------------------------------------------------------------------------------------------------------------


class NvmlError(Exception):
    pass


class FakeNvml:
    """pynvml for some GPUs; ``lost`` ones refuse everything, and ``errors`` are Xids that have happened."""

    NVMLError = NVMLError_NoPermission = NvmlError
    NVML_NVLINK_MAX_LINKS, NVML_FEATURE_ENABLED, NVML_SUCCESS = 2, 1, 0
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139

    def __init__(self, count: int) -> None:
        self.count, self.lost, self.xids = count, set[int](), dict[int, list[int]]()
        self.events: dict[int, tuple[Any, object]] = {}
        self.hangs = threading.Event()
        self.hangs.set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML_", "nvmlEventType")) or name == "nvmlDeviceGetCurrentClocksEventReasons":
            raise AttributeError(name)  # an older nvidia-ml-py

        def call(*arguments: Any) -> Any:
            if not self.hangs.wait(30):
                self.hangs.set()  # who waits for it has waited long enough
            first = arguments[0] if arguments else None
            if first in self.lost:
                raise NvmlError("GPU is lost")
            answers: dict[str, Any] = {
                "nvmlInit": None, "nvmlDeviceGetCount": self.count, "nvmlDeviceGetHandleByIndex": first,
                "nvmlDeviceGetUUID": f"GPU-{first}".encode(), "nvmlDeviceGetName": "H200",
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=1000, used=10), "nvmlDeviceGetEnforcedPowerLimit": 700_000,
                "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=90), "nvmlDeviceGetPowerUsage": 512_340,
                "nvmlDeviceGetTemperature": 60, "nvmlDeviceGetClockInfo": 1980, "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
                "nvmlDeviceGetPcieThroughput": 30 + int(arguments[1:] == (1,)), "nvmlDeviceGetTotalEnergyConsumption": 12345,
                "nvmlDeviceGetNvLinkState": 1, "nvmlEventSetCreate": object(), "nvmlDeviceRegisterEvents": None,
                "nvmlDeviceGetFieldValues": [SimpleNamespace(
                    nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=5 if "(139," in str(arguments) else 6))],
            }  # fmt: skip
            if name == "nvmlDeviceRegisterEvents":
                self.events[id(arguments[2])] = first, arguments[2]
            if name == "nvmlEventSetWait_v2":
                waiting = self.xids.get(self.events[id(first)][0], [])
                if not waiting:
                    raise NvmlError("Timeout")
                return SimpleNamespace(eventData=waiting.pop(0))
            if name not in answers:
                raise NvmlError("Not Supported")
            return answers[name]

        return call


def test_the_job_s_gpus_alone_with_all_their_values() -> None:
    nvml = FakeNvml(4)
    found = nvidia_samples.Gpus(nvml, "3,1", 2, affordable=1.0)
    assert [gpu.number for gpu in found.header] == [1, 3]
    assert found.header[0] == Gpu(1, "GPU-1", "H200", memory=1000, power_limit=700.0)
    reading = found.read()
    nvlink, pcie = Traffic(received=5 << 10, sent=6 << 10), Traffic(received=31 << 10, sent=30 << 10)
    assert reading.samples[0] == GpuSample(90, 10, 512.3, 60, 1980, 4, nvlink, pcie, energy=12.3)
    assert reading.xids == ()
    nvml.xids[3] = [79, 31]
    assert found.read().xids == ((3, 79), (3, 31))
    nvml.lost = {3}
    assert found.read().samples[1] == GpuSample()
    assert found.read().samples[0].use == 90


def test_a_hung_nvml_keeps_the_gpus_values_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(1)
    monkeypatch.setattr(
        gpus, "beside", lambda count, share: gpus.Beside(lambda: nvidia_samples.Gpus(nvml, None, count, share))
    )
    monkeypatch.setattr(sampler, "_GPU_ANSWER", 0.05)
    paths = AttemptPaths(tmp_path)
    one = sampler.Sampler(paths.samples_of("n1"), "n1", 5.0, 1, tree(tmp_path / "root", BASE))
    one.sample()
    nvml.hangs.clear()
    one.sample()
    one.sample()
    nvml.hangs.set()
    monkeypatch.setattr(sampler, "_GPU_ANSWER", 30.0)
    nvml.xids[0] = [48]
    one.sample()
    one.sample()
    tree(tmp_path / "root", {"proc/vmstat": "oom_kill 4\n"})
    one.sample()
    series = samples.nodes(paths)["n1"]
    assert [bool(sample.gpus) for sample in series.samples] == [True, False, False, True, True, True]
    assert all(sample.memory == 600 * 1024 for sample in series.samples)
    assert [event[1:] for event in series.events] == [("xid", 0, 48, None), ("oom", None, None, 1)]


def test_nvml_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def none() -> nvidia_samples.Gpus:
        raise NvmlError("Driver Not Loaded")

    monkeypatch.setattr(gpus, "beside", lambda *_: gpus.Beside(none))
    paths = AttemptPaths(tmp_path)
    sampler.Sampler(paths.samples_of("n1"), "n1", 5.0, 1, tree(tmp_path / "root", BASE)).sample()
    assert samples.nodes(paths)["n1"].samples[0].gpus == ()
    assert "n1: the GPUs are not sampled: NvmlError" in capfd.readouterr().err


# -- the file --------------------------------------------------------------------------------------------------------


def test_a_file_that_grows_too_large_is_thinned(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path)
    path = paths.samples_of("n1")
    file = SampleFile(path, HEADER, largest=20_000)
    total = 0.0
    for number in range(1, 2001):
        total += number % 7
        file.append(line(NodeSample(float(number), number % 7, net=Traffic(number, 2 * number))))
        if number == 3:
            file.append(line(samples.Event(3.0, "oom", kills=1).as_json()))
        assert path.stat().st_size <= 20_000
    series = samples.nodes(paths)["n1"]
    assert series.header.node == "n1"
    assert series.events == (samples.Event(3.0, "oom", kills=1),)
    times = [sample.t for sample in series.samples]
    assert times == sorted(times)
    assert (times[0], times[-1], series.samples[-1].net) == (1.0, 2000.0, (2000, 4000))
    assert times[-100:] == [float(number) for number in range(1901, 2001)]
    used = sum((one.cpu or 0) * (one.t - before) for before, one in zip([0.0, *times], series.samples, strict=False))
    assert used == pytest.approx(total, rel=0.01)  # what was left out went into the next


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """What was written in part is closed by a line break; it is said once; it is tried again after a while."""
    paths = AttemptPaths(tmp_path)
    file = SampleFile(paths.samples_of("n1"), HEADER)
    file.append(line(NodeSample(1.0)))
    real, room = os.write, [4]

    def write(descriptor: int, text: bytes) -> int:
        if descriptor != file.descriptor:
            return real(descriptor, text)
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken, room[0] = real(descriptor, text[: room[0]]), 0
        return taken

    monkeypatch.setattr(os, "write", write)
    file.append(line(NodeSample(2.0)))
    file.append(line(NodeSample(3.0)))
    assert samples.nodes(paths)["n1"].samples[-1].t == 1.0
    monkeypatch.setattr(os, "write", real)
    file.append(line(NodeSample(4.0)))  # not yet
    assert samples.nodes(paths)["n1"].samples[-1].t == 1.0
    file.again = 1.0
    file.append(line(NodeSample(5.0)))
    assert [sample.t for sample in samples.nodes(paths)["n1"].samples] == [1.0, 5.0]
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "no samples of resource use are written to" in said
    assert "No space left on device" in said


def test_what_stands_in_the_way_is_left_alone(tmp_path: Path, subtests: pytest.Subtests) -> None:
    target = tmp_path / "another's"
    ways: dict[str, Any] = {"link": lambda path: path.symlink_to(target), "pipe": os.mkfifo, "folder": Path.mkdir}
    for name, make in ways.items():
        with subtests.test(name):
            paths = AttemptPaths(tmp_path / name)
            path = paths.samples_of("n1")
            path.parent.mkdir(parents=True)
            make(path)
            SampleFile(path, {"kind": "node", "t": 0.0}).append(line(NodeSample(1.0)))
            assert not target.exists()
            assert not path.is_file()
    with subtests.test("a run's directory that was removed is not made again"):
        SampleFile(AttemptPaths(tmp_path / "gone" / "0").samples_of("n1"), {"t": 0.0}).append(line(NodeSample(1.0)))
        assert not (tmp_path / "gone").exists()


def test_how_often() -> None:
    assert interval(5.0, 0.0, cost=0.001, size=900) == 1.0
    assert interval(5.0, 61.0, cost=0.001, size=900) == 5.0
    assert interval(0.5, 0.0, cost=0.001, size=900) == 0.5
    assert interval(5.0, 0.0, cost=0.2, size=900) == pytest.approx(20.0)  # at most 1 % of a core
    seconds = interval(5.0, 61.0, cost=0.001, size=10_000)
    assert 3600 / seconds * 10_000 <= sampler.PER_HOUR * 1.001
    assert sampler.PER_HOUR + 60 * 5_000 <= 1 << 20  # and the first minute
    assert samples.LARGEST >= 2 * sampler.LARGEST


# -- the process -----------------------------------------------------------------------------------------------------

PARENT = """
import os, sys, time
from pathlib import Path
from hpcml.node.sampling import sampler
parent = os.getpid()
if not os.fork():
    sampler.run(Path(sys.argv[1]), "n1", 0.05, 0, parent)
    os._exit(1)
time.sleep(600)
"""


def test_it_goes_on_through_slurm_s_signals_and_ends_with_its_parent(tmp_path: Path) -> None:
    """A cancelled job's last seconds are of interest; a parent that is killed takes it along."""
    paths = AttemptPaths(tmp_path)
    path = paths.samples_of("n1")
    with subprocess.Popen([sys.executable, "-c", PARENT, str(path)]) as parent:
        try:
            _until(lambda: path.exists() and len(path.read_text().splitlines()) > 2)
            (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            assert Path(f"/proc/{child}/comm").read_text() == f"{sampler.NAME}\n"
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
                os.kill(int(child), number)
            count = len(path.read_text().splitlines())
            _until(lambda: len(path.read_text().splitlines()) > count + 3)
        finally:
            parent.kill()
    _until(lambda: not Path(f"/proc/{child}").exists() or "(zombie)" in Path(f"/proc/{child}/status").read_text())
    times = [sample.t for sample in samples.nodes(paths)["n1"].samples]
    assert len(times) > 3
    assert times == sorted(times)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
