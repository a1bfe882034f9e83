"""The nodes of the lab: a network namespace each on one switch, an own name and /tmp, and a process that holds them."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path

import lab_cgroups
from lab_paths import SWITCH, USERS, LabError, Places, address, all_nodes, compute_nodes, namespace, numbered
from lab_state import HOLDER_MARK, Started, State, start_time

NETNS = Path("/run/netns")
HOLDER_SCRIPT = """
set -e
hostname "$NODE"
mkdir -p /tmp; mount -t tmpfs -o mode=1777,nosuid,nodev hpcml-private /tmp
mkdir -p /dev/shm; mount -t tmpfs -o mode=1777,nosuid,nodev hpcml-private /dev/shm
mkdir -p /run/user; mount -t tmpfs -o mode=755,nosuid,nodev hpcml-private /run/user
mount --bind "$TOP/etc/hosts" /etc/hosts
# As systemd mounts it: a terminal has the group tty, which an sshd of a user's own could not give it.
case $NODE in
  n[0-9]*)
    mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 hpcml-private /dev/pts
    mount --bind /dev/pts/ptmx /dev/ptmx ;;
esac
if [ -e "$TOP/dev/fuse" ]; then mount --bind "$TOP/dev/fuse" /dev/fuse; fi
{runtime}
{cgroups}
echo ready
exec sleep infinity </dev/null >/dev/null
"""


def call(argv: Sequence[str], *, text_in: str | None = None) -> str:
    """Run a command of the set-up; a failure becomes one sentence with its error output."""
    done = subprocess.run(argv, input=text_in, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        detail = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"`{' '.join(argv)}` failed ({done.returncode}): {detail[-1] if detail else 'no output'}.")
    return done.stdout


def create_network(state: State) -> None:
    """The switch is a bridge in a namespace of its own, with no leg outside: nothing leads out of the lab."""
    nodes = all_nodes(state.nodes)
    add = [f"netns add {namespace(node)}" for node in nodes]
    call(["ip", "-batch", "-"], text_in="\n".join([f"netns add {SWITCH}", *add]) + "\n")
    wires = ["link add br0 type bridge", "link set br0 up"]
    for node in nodes:
        wires += [
            f"link add p-{node} type veth peer name eth0 netns {namespace(node)}",
            f"link set p-{node} master br0",
            f"link set p-{node} up",
        ]
    call(["ip", "-n", SWITCH, "-batch", "-"], text_in="\n".join(wires) + "\n")
    for node in nodes:
        setup = ["link set lo up", "link set eth0 addrgenmode none"]
        setup += [f"address add {address(node)}/24 dev eth0", "link set eth0 up"]
        call(["ip", "-n", namespace(node), "-batch", "-"], text_in="\n".join(setup) + "\n")


def delete_network(*, unmount: bool) -> None:
    names = [path.name for path in NETNS.glob("hpcml-*")] if NETNS.is_dir() else []
    if names:
        call(["ip", "-batch", "-"], text_in="\n".join(f"netns delete {name}" for name in names) + "\n")
    if unmount and NETNS.is_dir() and not any(NETNS.iterdir()):
        while str(NETNS) in [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]:
            call(["umount", str(NETNS)])
        NETNS.rmdir()


def start_holder(places: Places, state: State, node: str) -> Started:
    """Start the process that keeps a node's namespaces alive, and wait until they are furnished."""
    cgroups = lab_cgroups.create(state.cgroups, node) if state.cgroups and node in compute_nodes(state.nodes) else ""
    script = HOLDER_SCRIPT.format(runtime=_runtime_folders(node), cgroups=cgroups)
    enter = ["nsenter", f"--net={NETNS / namespace(node)}", "unshare", "--mount", "--uts", "--propagation", "private"]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath), "NODE": node, "TOP": str(places.top),
        numbered(HOLDER_MARK): str(places.top),
    }  # fmt: skip
    with (places.log / f"holder-{node}.log").open("w") as log:
        process = subprocess.Popen(
            [*enter, "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as ready:
        answered, _, _ = select.select([ready], [], [], 10)
        if not answered or ready.readline().strip() != b"ready":
            raise LabError(f"The node {node} could not be set up. Read {places.log}/holder-{node}.log.")
    return _let_go(process)


def _let_go(process: subprocess.Popen[bytes]) -> Started:
    """From here on the process is known by pid and start time alone: it outlives us, and anyone may run `down`."""
    process.returncode = 0  # or Popen warns of a child that still runs
    return Started(process.pid, start_time(process.pid) or 0)


def _runtime_folders(node: str) -> str:
    """A login node has /run/user/UID for those who may log in, as systemd makes it; compute nodes have none.

    A laptop has homes and host names of its own.
    """
    if node == "laptop":
        return 'mount --bind "$TOP/laptop-home" "$TOP/home"; mount --bind "$TOP/etc/hosts-laptop" /etc/hosts'
    if not node.startswith("login"):
        return ""
    return "\n".join(f'install -d -m 700 -o {name} "/run/user/$(id -u {name})"' for name in USERS.values())


def inside(holder: Started) -> list[str]:
    """The words before a command that runs it inside a node."""
    return ["nsenter", "--target", str(holder.pid), "--net", "--mount", "--uts", "--"]


def start_daemon(places: Places, holder: Started, argv: Sequence[str], name: str) -> Started:
    """Start a long-lived program inside a node; its own output goes to log/NAME.out."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_CONF": str(places.slurm_conf), "LANG": "C.UTF-8"}
    with (places.log / f"{name}.out").open("w") as log:
        process = subprocess.Popen(
            [*inside(holder), *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd="/",
            umask=0o022,
            start_new_session=True,
        )
    return _let_go(process)
