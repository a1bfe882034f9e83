#!/usr/bin/env python3
"""A real Slurm of several nodes on one GPU machine, each node a network namespace with its share of the GPUs.

    python3 bench/gpu/slurm.py up --nodes 2 --gpus-per-node 1      start (root); --slurm DIR: the pack's slurm/ folder
    python3 bench/gpu/slurm.py exec -- hpcml submit …              run a command where Slurm's controller is
    python3 bench/gpu/slurm.py down                                end it; nothing stays but TOP/log

Every node has its own host name, address and network, and the machine's files, processes and /tmp. There is no way out
of these networks. Other labs on the machine have other namespaces, addresses and munge sockets.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes.util
import functools
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests/lab"))

import slurm_pack
import slurm_text
from lab_state import start_time
from lab_state import wait_for as wait_patiently
from slurm_text import Shape

TOP = Path("/tmp/hpcml-gpu")
PREFIX = "hgpu"
NAMESPACES = Path("/run/netns")
LOADER_CONF = Path("/etc/ld.so.conf.d/hpcml-gpu.conf")
READY = {"idle", "mixed", "allocated", "completing"}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
wait_for = functools.partial(wait_patiently, patience=1)  # a deadline here is part of the sections' budget

# As systemd's `Restart=on-abort`: Slurm 22.05's slurmd now and then dies of a "double free" of its own.
KEEPER = """
hostname "$NODE"
trap 'kill -TERM $child' TERM
for start in 1 2 3 4 5; do
  "$@" & child=$!
  wait $child; code=$?
  while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
  [ $code -gt 128 ] && [ $code -ne 143 ] || exit $code
  echo "ended by signal $((code - 128)) (start $start)"
done
"""


class SlurmError(Exception):
    """Slurm could not be started; the sentence says where to look."""


class Lab:
    """One such Slurm, described by TOP/slurm.json while it is up."""

    def __init__(self, top: Path = TOP) -> None:
        self.top = top.resolve()
        self.state_file = self.top / "slurm.json"
        self.state: dict[str, Any] = {"shape": None, "slurm": "", "daemons": {}, "added": []}
        with contextlib.suppress(FileNotFoundError):
            self.state = json.loads(self.state_file.read_text())

    # -- what others ask -------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape | None:
        """How the machine is divided now, None if Slurm is down."""
        return Shape(**self.state["shape"]) if self.state["shape"] else None

    def environment(self) -> dict[str, str]:
        """Return the variables with which Slurm's commands find this Slurm."""
        programs = f"{self.state['slurm']}/bin:" if self.state["slurm"] else ""
        return {
            "SLURM_CONF": str(self.top / "etc/slurm.conf"),
            "PATH": f"{programs}{os.environ.get('PATH', SYSTEM_PATH)}",
        }

    @staticmethod
    def enter(node: str = "ctl") -> list[str]:
        """Return the words before a command that runs it in a node's network."""
        return ["nsenter", f"--net={NAMESPACES}/{PREFIX}-{node}", "--"]

    def run(self, *words: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm's beside the controller."""
        environment = {**os.environ, **self.environment()}
        return subprocess.run([*self.enter(), *words], env=environment, capture_output=True, text=True, check=False,
                              timeout=timeout)  # fmt: skip

    def node_states(self) -> dict[str, str]:
        """Return each node's state in Slurm's words."""
        lines = self.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.splitlines()
        return dict(line.split(maxsplit=1) for line in lines if " " in line)

    def idle(self) -> bool:
        """Whether all nodes are idle and the queue is empty."""
        assert self.shape is not None
        states = [state.strip() for state in self.node_states().values()]
        return states == ["idle"] * self.shape.nodes and not self.run("squeue", "-h").stdout.strip()

    # -- up and down -----------------------------------------------------------------------------------------------

    def up(self, shape: Shape, slurm: Path | None, *, fake: bool = False) -> None:
        """Start Slurm in a shape; one that is up in another shape is ended first.

        Parameters
        ----------
        slurm
            The folder with Slurm's programs (slurm_pack.py), None for those that are installed.
        fake
            Null devices in place of GPUs: enough for Slurm to hand them out.
        """
        if self.shape == shape:
            return
        self.down()
        self.state |= {"shape": vars(shape), "slurm": str(slurm.resolve()) if slurm else ""}
        for name in ("etc", "log", "state", "spool", "run"):
            shutil.rmtree(self.top / name, ignore_errors=True)
            (self.top / name).mkdir(parents=True, mode=0o755)
        self._save()
        try:
            self._install()
            self._make_network(shape)
            self._configure(shape, fake=fake)
            self._start_all(shape)
        except (SlurmError, OSError, subprocess.SubprocessError):
            self.down()
            raise

    def down(self) -> None:
        """End what was started, by pid, then remove the networks and what was added to the system."""
        for name in sorted(self.state["daemons"], reverse=True):  # slurmd before slurmctld before munged
            _end(self.state["daemons"].pop(name))
        for pid in self._members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in sorted(NAMESPACES.glob(f"{PREFIX}-*")) if NAMESPACES.is_dir() else []:
            subprocess.run(["ip", "netns", "delete", path.name], check=False, timeout=30, env=self._plain())
        for added in self.state["added"]:
            Path(added).unlink(missing_ok=True)
        if str(LOADER_CONF) in self.state["added"]:
            subprocess.run(["ldconfig"], check=False, timeout=60)
        self.state |= {"shape": None, "added": []}
        self.state_file.unlink(missing_ok=True)

    def _save(self) -> None:
        self.top.mkdir(parents=True, exist_ok=True)
        self.state_file.write_text(json.dumps(self.state, indent=1) + "\n")

    def _plain(self) -> dict[str, str]:
        programs = f":{self.state['slurm']}/bin" if self.state["slurm"] else ""
        return {"PATH": f"{SYSTEM_PATH}{programs}", "SLURM_CONF": str(self.top / "etc/slurm.conf"), "LANG": "C.UTF-8"}

    def _install(self) -> None:
        """Let the pack's programs find their libraries: two entries in the system, which `down` takes away again."""
        if not self.state["slurm"]:
            return
        pack = Path(self.state["slurm"])
        extra = self.top / "run/lib"
        extra.mkdir()
        for library in sorted((pack / "lib").iterdir()):
            if not ctypes.util.find_library(library.name.removeprefix("lib").partition(".so")[0]) and not _known(
                library
            ):
                (extra / library.name).symlink_to(library)
        if not slurm_pack.PLUGINS.exists():
            slurm_pack.PLUGINS.parent.mkdir(parents=True, exist_ok=True)
            self._add(slurm_pack.PLUGINS)
            slurm_pack.PLUGINS.symlink_to(pack / "plugins")
        self._add(LOADER_CONF)
        LOADER_CONF.write_text(f"{extra}\n")
        subprocess.run(["ldconfig"], check=True, timeout=60)

    def _add(self, path: Path) -> None:
        self.state["added"].append(str(path))
        self._save()

    def _make_network(self, shape: Shape) -> None:
        """A bridge in a namespace of its own, and a wire from it to every node."""
        nodes = ["ctl", *shape.names]
        self._ip([], [f"netns add {PREFIX}-{name}" for name in ("switch", *nodes)])
        wires = ["link add br0 type bridge", "link set br0 up"]
        for node in nodes:
            wires += [f"link add p-{node} type veth peer name eth0 netns {PREFIX}-{node}",
                      f"link set p-{node} master br0", f"link set p-{node} up"]  # fmt: skip
        self._ip(["-n", f"{PREFIX}-switch"], wires)
        for node in nodes:
            self._ip(["-n", f"{PREFIX}-{node}"], ["link set lo up", f"address add {slurm_text.address(node)}/24 dev eth0",
                                                  "link set eth0 up"])  # fmt: skip

    def _ip(self, options: list[str], lines: list[str]) -> None:
        done = subprocess.run(["ip", *options, "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True,
                              check=False, timeout=30, env=self._plain())  # fmt: skip
        if done.returncode:
            raise SlurmError(f"The network could not be made: {done.stderr.strip() or done.returncode}.")

    def _configure(self, shape: Shape, *, fake: bool) -> None:
        plugins = Path(self.state["slurm"]) / "plugins" if self.state["slurm"] else slurm_pack.PLUGINS
        devices = "/dev/nvidia"
        if fake:
            devices = str(self.top / "run/gpu")
            for number in range(shape.nodes * shape.gpus):
                os.mknod(f"{devices}{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        if unified:
            with contextlib.suppress(OSError):
                Path("/sys/fs/cgroup/system.slice").mkdir(exist_ok=True)
        etc = self.top / "etc"
        (etc / "slurm.conf").write_text(slurm_text.slurm_conf(shape, self.top, plugins))
        (etc / "gres.conf").write_text(slurm_text.gres_conf(shape, devices))
        (etc / "cgroup.conf").write_text(slurm_text.cgroup_conf(unified=unified))
        (etc / "task_prolog.sh").write_text(slurm_text.task_prolog(shape))
        (etc / "task_prolog.sh").chmod(0o755)
        key = os.open(etc / "munge.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(key, "wb") as file:
            file.write(secrets.token_bytes(128))

    def _start_all(self, shape: Shape) -> None:
        run, log = self.top / "run", self.top / "log"
        options = {"key-file": self.top / "etc/munge.key", "socket": run / "munge.sock", "pid-file": run / "munged.pid",
                   "log-file": log / "munged.log", "seed-file": run / "munge.seed"}  # fmt: skip
        munged = [
            self._program("munged"),
            "--foreground",
            "--force",
            *(f"--{key}={path}" for key, path in options.items()),
        ]
        self._start("a-munged", "ctl", munged)
        self._await("a-munged", (run / "munge.sock").is_socket, 10)
        self._start("b-slurmctld", "ctl", [self._program("slurmctld"), "-D"])
        self._await("b-slurmctld", lambda: self.run("scontrol", "ping").returncode == 0, 20)
        for node in shape.names:
            (self.top / "spool" / node).mkdir()
            daemon = [self._program("slurmd"), "-D", "-N", node, "-d", self._program("slurmstepd")]
            self._start(f"c-slurmd-{node}", node, daemon)
        ready = [f"c-slurmd-{node}" for node in shape.names][-1]
        self._await(ready, lambda: sum(s.strip() in READY for s in self.node_states().values()) == shape.nodes, 30)

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=f"{self.state['slurm']}/bin" if self.state["slurm"] else SYSTEM_PATH)
        if not found:
            raise SlurmError(
                f"There is no {name} here. Install Slurm and munge, or give the pack's folder (--slurm DIR)."
            )
        return found

    def _start(self, name: str, node: str, words: Sequence[str]) -> None:
        command = [*self.enter(node), "unshare", "--uts", "sh", "-c", KEEPER, "keeper", *words]
        with (self.top / "log" / f"{name}.out").open("w") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd="/",
                                       umask=0o022, start_new_session=True, env={**self._plain(), "NODE": node})  # fmt: skip
        process.returncode = 0  # it outlives us: known from here on by its pid and start time
        self.state["daemons"][name] = [process.pid, start_time(process.pid)]
        self._save()

    def _await(self, name: str, condition: Callable[[], bool], seconds: float) -> None:
        pid, started = self.state["daemons"][name]
        if not wait_for(lambda: condition() or start_time(pid) != started, seconds) or start_time(pid) != started:
            logs = sorted((self.top / "log").glob(f"*{name[2:]}*"))
            last = [line for log in logs for line in log.read_text(errors="replace").splitlines()[-5:]]
            raise SlurmError(
                f"{name[2:]} ended, or was not ready in {seconds:g} s ({self.top}/log):\n" + "\n".join(last)
            )

    def _members(self) -> Iterator[int]:
        """Yield the processes that are still in one of these networks: jobs that outlived their slurmd."""
        own = {path.stat().st_ino for path in NAMESPACES.glob(f"{PREFIX}-*")} if NAMESPACES.is_dir() else set()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if own and (entry / "ns/net").stat().st_ino in own and int(entry.name) != os.getpid():
                    yield int(entry.name)


def _known(library: Path) -> bool:
    """Whether the system has a library of this name already."""
    done = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False, timeout=60)
    return f"\t{library.name} " in done.stdout


def _end(started: Sequence[int]) -> None:
    """End one process that was started here, unless its pid belongs to another one now."""
    pid, when = started
    for number in (signal.SIGTERM, signal.SIGKILL):
        if start_time(pid) != when:
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        wait_for(lambda: start_time(pid) != when, 5)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def gpu_count(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many GPUs this machine has, by its device files; HPCML_GPU_COUNT says otherwise."""
    said = environment.get("HPCML_GPU_COUNT", "")
    return int(said) if said else sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia*"))


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and act."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top", type=Path, default=TOP, help=f"the lab's folder, seen by all nodes (default {TOP})")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start Slurm")
    up.add_argument("--nodes", type=int, default=1)
    up.add_argument("--gpus-per-node", type=int, default=1)
    up.add_argument("--cpus-per-node", type=int, default=0, help="default: an equal share")
    up.add_argument(
        "--slurm", type=Path, metavar="DIR", help="the folder with Slurm's programs (default: installed ones)"
    )
    up.add_argument("--fake", action="store_true", help="null devices in place of GPUs")
    commands.add_parser("down", help="end Slurm")
    inner = commands.add_parser("exec", help="run a command beside the controller: exec -- CMD …")
    inner.add_argument("words", nargs="+", metavar="CMD")
    options = parser.parse_args(arguments)
    lab = Lab(options.top)
    try:
        if options.command == "up":
            cpus = options.cpus_per_node or max(1, (os.cpu_count() or 1) // options.nodes)
            lab.up(Shape(options.nodes, options.gpus_per_node, cpus), options.slurm, fake=options.fake)
            print(lab.run("sinfo").stdout, end="")
        elif options.command == "down":
            lab.down()
        else:
            words = [*lab.enter(), *options.words]
            os.execvpe(words[0], words, {**os.environ, **lab.environment()})
    except SlurmError as error:
        print(f"slurm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
