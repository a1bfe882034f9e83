"""`hpcml doctor` on the lab: nothing is wrong with it, and each fault that is planted is found, with what to do."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lab_ssh
from conftest import ALL_NODES, Cluster
from hpcml import errors
from lab_state import wait_for
from laptop import Outside
from tests.fixtures.images import sif_file

pytestmark = pytest.mark.lab

PATIENT = ("--json", "--deadline", "100s")  # the machine may be busy
SMALL = "/tmp/hpcml-doctor"
Found = dict[str, dict[str, Any]]

SACCTMGR = """#!/bin/sh
case "$*" in
  *MaxSubmitJobsPerUser*) echo '0|cpu_qos' ;;
  *MaxSubmitJobs,*) echo '|cpu_qos' ;;
  *) echo 'physics||cpu_qos,gpu_qos|cpu_qos' ;;
esac
"""
GRANT = "#!/bin/sh\necho 'physics 2026 2027 1000 1000'\n"
SMI = "#!/bin/sh\necho '00000000:1D:00.0, 470.82.01, Enabled, Default'\n"
ADAPTERS = """
cp -a /sys/class/net /tmp/class-net
mount -t tmpfs none /sys/class
cp -a /tmp/class-net /sys/class/net
top=/sys/class/infiniband/mlx5_0
mkdir -p $top/ports/1 /tmp/tree/pci0000:00/0000:00:02.0 /tmp/tree/pci0000:80/0000:80:02.0
ln -s /tmp/tree/pci0000:00/0000:00:02.0 $top/device
echo '4: ACTIVE' > $top/ports/1/state
echo '5: LinkUp' > $top/ports/1/phys_state
echo '100 Gb/sec (2X HDR)' > $top/ports/1/rate
echo InfiniBand > $top/ports/1/link_layer
"""
FAR_GPU = """
cd /tmp/tree/pci0000:80/0000:80:02.0
echo 0x10de > vendor; echo 0x030200 > class; echo 1 > numa_node
echo 0 > /tmp/tree/pci0000:00/0000:00:02.0/numa_node
mount -t tmpfs none /sys/bus/pci/devices
ln -s /tmp/tree/pci0000:80/0000:80:02.0 /sys/bus/pci/devices/0000:80:02.0
"""


def findings(done: subprocess.CompletedProcess[str], status: int) -> Found:
    assert done.returncode == status, done.stderr + done.stdout
    return {one["check"]: one for one in json.loads(done.stdout)["findings"]}


def expect(found: Found, planted: dict[str, tuple[str, str, str]]) -> None:
    """Each check tells its colour, names the fault, and says what to do."""
    for check, (state, words, remedy) in planted.items():
        one = found[check]
        assert one["state"] == state, (check, one)
        assert words in one["sentence"], one
        assert remedy in one["remedy"], one


@pytest.fixture(scope="module")
def tools(cluster: Cluster) -> Path:
    """A folder for executables in the place of those that the lab has not, which all nodes see."""
    return cluster.write("bin/.keep", "").parent


def own_runs(cluster: Cluster) -> tuple[str, str]:
    """Options for a folder of runs in which no other test's have failed."""
    return "--set", f"paths.runs={cluster.work}/doctor-runs"


def put(cluster: Cluster, folder: Path, name: str, text: str) -> Path:
    path = cluster.write(str(folder.relative_to(cluster.work) / name), text)
    cluster.run("chmod", "755", str(path))
    return path


@pytest.fixture(autouse=True)
def nobody_failed(cluster: Cluster) -> Iterator[Path]:
    """No node is remembered for what another test did to it; the file that remembers them."""
    memory = cluster.lab.home("alice") / ".hpcml/nodes/lab.json"
    cluster.run("rm", "-f", str(memory))
    yield memory
    cluster.run("rm", "-f", str(memory))


@pytest.fixture
def disks(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    """Options with which the lab is a healthy machine: each node has a disk, and no other test's runs have failed."""
    with contextlib.ExitStack() as mounted:
        for node in ALL_NODES:
            disk = cluster.write(f"disk-{node}/.keep", "").parent
            mounted.enter_context(cluster.covered(node, f"mkdir -p {SMALL}; mount --bind {disk} {SMALL}", SMALL))
        yield "--set", f"paths.scratch={SMALL}", "--set", f"paths.runs={cluster.work}/doctor-runs"


def test_nothing_is_wrong_with_the_lab(cluster: Cluster, disks: tuple[str, ...]) -> None:
    done = cluster.run("hpcml", "doctor", "--node", *PATIENT, *disks, timeout=240)
    found = findings(done, 0)
    assert {one["state"] for one in found.values()} == {"green", "n/a"}, done.stdout
    assert all(one["sentence"] for one in found.values())
    for check in ("request", "start", "partition", "slurm-config", "file-system", "job", "interface", "clocks"):
        assert found[check]["state"] == "green", found[check]
    for check in ("account", "budget", "certificate", "image", "ports", "gpu-distance", "driver"):
        assert found[check]["state"] == "n/a", found[check]
    assert found["job"]["facts"]["nodes"] == ["n1", "n2"]
    left = cluster.run("ls", "-A", f"{cluster.work}/doctor-runs").stdout
    assert left == "", "the job's run stays"
    shown = cluster.run("hpcml", "doctor", "--all")
    assert shown.returncode == 0, shown.stdout
    assert "green   start             Slurm would start a job" in shown.stdout


def test_faults_of_the_login_node(cluster: Cluster, tools: Path, nobody_failed: Path) -> None:
    remembered = {"node": "n3", "why": "workers did not start", "run": "a-20261121-074500-1a2b", "time": time.time()}
    cluster.run("mkdir", "-p", str(nobody_failed.parent))
    cluster.lab.exec(["tee", str(nobody_failed)], input=json.dumps({"nodes": [remembered], "judged": {}}))
    put(cluster, tools, "sacctmgr", SACCTMGR)
    grant = put(cluster, tools, "grant", GRANT)
    stub = cluster.write("cuda/lib64/libcuda.so.1", "").parent
    image = sif_file.make(cluster.work / "other.sif", arch="04")
    image.chmod(0o644)
    key = cluster.lab.home("alice") / ".ssh/id_ecdsa_sk"  # a name that ssh looks for, and nobody here has
    certificate(cluster, key, "-2h:-1h")
    environment = {
        "PATH": f"{tools}:{cluster.run('printenv', 'PATH').stdout.strip()}",
        "SBATCH_NICE": "5",
        "SQUEUE_FORMAT": "%i",
        "CUDA_HOME": str(stub.parent),
        "LD_LIBRARY_PATH": str(stub),
        "NCCL_IB_HCA": "mlx5_0,mlx5_4",
    }
    settings = [
        'network.adapters=["mlx5_0","mlx5_1"]',
        "deadlines.driver_grace=20s",
        "partitions.boost.max_time=2-00:00:00",
        "qos.cpu_qos.without_gpus=true",
        "qos.gpu_qos.max_nodes=4",
        f'cost.budget=["{grant}"]',
        r'cost.budget_row="^{account}\\s+\\d+\\s+\\d+\\s+(?P<total>\\d+)\\s+(?P<used>\\d+)"',
        "login.host=login",
        "login.renew=renew-it",
        f"paths.runs={SMALL}/runs",
    ]
    words = ["hpcml", "doctor", *PATIENT, "--image", str(image), *(w for s in settings for w in ("--set", s))]
    cover = f"mkdir -p {SMALL}; mount -t tmpfs -o nr_inodes=2,mode=1777 small {SMALL}; touch {SMALL}/one"
    with cluster.covered("login", cover, SMALL):
        of_another = cluster.run(*words, "--account", "chemistry", env=environment)
        limited = shlex.join([*words, "--account", "physics"])
        of_mine = cluster.run("sh", "-c", f"ulimit -t 600; {limited}", env=environment)
    cluster.run("rm", "-f", f"{key}-cert.pub")
    expect(
        findings(of_another, errors.UNFIT),
        {
            "account": ("red", "account chemistry is not one of your accounts, which are physics", "--account physics"),
            "slurm-variables": (
                "yellow",
                "SBATCH_NICE, SQUEUE_FORMAT affect your own",
                "unset SBATCH_NICE SQUEUE_FORMAT",
            ),
            "library-path": ("red", "libcuda.so.1 hides the GPU driver's file", f"Remove {stub} from LD_LIBRARY_PATH"),
            "adapters": ("red", "NCCL_IB_HCA names mlx5_4", "Unset NCCL_IB_HCA, or set NCCL_IB_HCA to mlx5_0,mlx5_1"),
            "quota": ("red", "no inodes are left", "hpcml rm"),
            "file-system": ("red", "no inodes are left", "--set paths.runs="),
            "slurm-config": ("yellow", "kills a job 10 s after", "deadlines.driver_grace = '5s'"),
            "partition": ("yellow", "max_time is 2-00:00:00, but 1-00:00:00 in Slurm", "[partitions.boost]"),
            "bad-nodes": ("yellow", "n3 made a run fail in the last 24 hours", "--exclude n3"),
            "image": ("red", "built for aarch64", "Build the image on a"),
            "certificate": ("red", "your ssh certificate expired", "renew-it"),
        },
    )
    expect(
        findings(of_mine, errors.UNFIT),
        {
            "account": ("green", "you may use account physics", ""),
            "budget": ("red", "0 of 1000", "Apply for more compute time"),
            "default-qos": ("red", "the default QoS cpu_qos, which is for nodes without GPUs", "--qos gpu_qos"),
            "submit-limit": ("red", "Slurm's limit of submitted jobs", "cancel a job"),
            "limits": ("yellow", "600 s of CPU time", "--detach"),
        },
    )


def certificate(cluster: Cluster, key: Path, validity: str) -> None:
    """Give alice a certificate of a throw-away authority's beside a key of hers on the login node."""
    made = cluster.work / "keys"
    cluster.run("mkdir", "-p", str(made), str(key.parent))
    for name in ("ca", "mine"):
        cluster.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(made / name))
    sign = ["ssh-keygen", "-q", "-s", str(made / "ca"), "-I", "alice", "-n", "alice", "-V", validity]
    done = cluster.run(*sign, str(made / "mine.pub"))
    assert done.returncode == 0, done.stderr
    cluster.run("cp", str(made / "mine-cert.pub"), f"{key}-cert.pub")


def test_a_silent_controller(cluster: Cluster) -> None:
    controller = cluster.lab.state().daemons["slurmctld"].pid
    os.kill(controller, signal.SIGSTOP)
    try:
        done = cluster.run("hpcml", "doctor", "--json", *own_runs(cluster))
    finally:
        os.kill(controller, signal.SIGCONT)
    expect(findings(done, errors.UNFIT), {"start": ("red", "controller does not answer", "--deadline 30s")})

    def asks() -> list[str]:
        return [line for _, line in cluster.lab.processes("alice") if "sbatch" in line or "scontrol" in line]

    assert wait_for(lambda: not asks(), 60), asks()


def test_a_partition_that_is_down(cluster: Cluster) -> None:
    """What cannot start is cancelled when the doctor's patience or life ends, and told as not looked at."""
    cluster.run("scontrol", "update", "partition=boost", "state=down", user="root")
    queue = ("squeue", "--me", "--noheader", "--name=doctor")
    try:
        ended = cluster.lab.popen(["hpcml", "doctor", "--node", *PATIENT, *own_runs(cluster)], cwd=str(cluster.work))
        assert wait_for(lambda: bool(cluster.run(*queue).stdout), 40)
        for pid, line in cluster.lab.processes("alice"):
            if "/hpcml doctor" in line:
                os.kill(pid, signal.SIGTERM)
        _, said = ended.communicate(timeout=120)
        assert ended.returncode == 130, said
        assert cluster.run(*queue).stdout == ""
        done = cluster.run("hpcml", "doctor", "--node", "--patience", "3s", *PATIENT, *own_runs(cluster))
    finally:
        cluster.run("scontrol", "update", "partition=boost", "state=up", user="root")
    found = findings(done, errors.UNFIT)
    expect(
        found,
        {
            "partition": ("red", "partition boost is DOWN", "another --partition"),
            "job": ("n/a", "did not end within 3.0 s", "--patience"),
            "interface": ("n/a", "see the check 'job'", ""),
        },
    )
    assert cluster.run("squeue", "--me", "--noheader").stdout == ""


def test_faults_of_nodes(cluster: Cluster, tools: Path) -> None:
    put(cluster, tools / "gpus", "nvidia-smi", SMI)
    path = {
        "PATH": f"{tools}/gpus:{cluster.run('printenv', 'PATH').stdout.strip()}",
        "UCX_NET_DEVICES": "mlx5_7:1,eth0",
    }
    leave = "head -c 4M /dev/zero > /dev/shm/left-over; touch -d '2 days ago' /dev/shm/left-over"
    cluster.run("sh", "-c", leave, node="n2")
    settings = (
        *own_runs(cluster),
        "--set",
        "network.interface=ib7",
        "--set",
        'gpu.cuda="12"',
        "--set",
        "runtime.container=shifter",
    )
    with contextlib.ExitStack() as planted:
        for node in ("n1", "n2"):
            planted.enter_context(cluster.covered(node, ADAPTERS, "/sys/class"))
            planted.enter_context(cluster.covered(node, FAR_GPU, "/sys/bus/pci/devices"))
        found = findings(
            cluster.run("hpcml", "doctor", "--node", *PATIENT, *settings, env=path, timeout=240), errors.UNFIT
        )
    for node in ("n1", "n2"):
        cluster.run("rm", "-rf", "/tmp/tree", "/tmp/class-net", "/dev/shm/left-over", node=node, user="root")
    expect(
        found,
        {
            "job": ("green", "a run started on n1, n2", ""),
            "interface": ("red", "interface ib7 has no IPv4 address on n1, n2", "network.interface = 'eth0'"),
            "ports": ("red", "UCX_NET_DEVICES names mlx5_7", "Unset UCX_NET_DEVICES"),
            "gpu-distance": ("yellow", "0000:80:02.0 of n1 is at distance SYS from port mlx5_0:1", "hpcml fabric"),
            "locked-memory": ("red", "locked memory is limited to", "ulimit -l unlimited"),
            "shared-memory": ("yellow", "1 old files of yours in /dev/shm of n2", "rm /dev/shm/left-over"),
            "scratch": ("yellow", "/tmp of n1 is a tmpfs", "paths.scratch"),
            "shared-gpus": ("yellow", "MIG divides GPU 00000000:1D:00.0 of n1", "whole GPUs"),
            "driver": ("red", "is 470.82.01, but CUDA 12 of the profile needs driver 535", "older CUDA"),
            "container": ("n/a", "the container program shifter is missing on n1, n2", ""),
        },
    )


def test_a_job_that_fails_is_told_as_why_tells_it(cluster: Cluster) -> None:
    broken = ("--set", "runtime.python=/nowhere/python", "--nodes", "1")
    found = findings(
        cluster.run("hpcml", "doctor", "--node", *PATIENT, *own_runs(cluster), *broken, timeout=240), errors.UNFIT
    )
    expect(
        found, {"job": ("red", "the job that checks the nodes failed", ""), "ports": ("n/a", "see the check 'job'", "")}
    )
    assert found["job"]["remedy"]


def test_from_a_laptop(outside: Outside) -> None:
    """Certificate and login node are the laptop's own matter."""

    def doctor(*words: str) -> subprocess.CompletedProcess[str]:
        return outside.lab.exec(
            ["hpcml", "--host", "lab", "doctor", *PATIENT, *words], node=lab_ssh.LAPTOP, timeout=120
        )

    try:
        found = findings(doctor(), 0)
        expect(
            found,
            {
                "start": ("green", "Slurm would start a job", ""),
                "certificate": ("green", "your ssh certificate expires", ""),
                "login-node": ("green", "lab responds", ""),
            },
        )
        lab_ssh.certify(outside.lab.places, "alice", seconds=300)
        expect(
            findings(doctor(), 0), {"certificate": ("yellow", "your ssh certificate expires", "Get a new certificate")}
        )
        wrong = doctor("--nodes", "2")
        assert wrong.returncode == errors.USAGE
        assert "Add --node" in wrong.stderr
    finally:
        lab_ssh.certify(outside.lab.places, "alice")
    nowhere = outside.lab.exec(["hpcml", "--host", "nowhere.invalid", "doctor"], node=lab_ssh.LAPTOP, timeout=120)
    assert nowhere.returncode == errors.UNFIT
    assert "red     login-node" in nowhere.stdout
