"""Munge, slurmctld, the slurmds and, with accounting, mariadbd and slurmdbd: how each starts and when it is ready."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import lab_apptainer
import slurm_conf
from lab_nodes import call, inside, start_daemon
from lab_paths import ACCOUNT, CLUSTER, GPUS_PER_NODE, USERS, LabError, Places, compute_nodes
from lab_state import State, wait_for

READY_NODE = {"idle", "mixed", "allocated", "completing"}

# As systemd's `Restart=on-abort` on a real node: Slurm 22.05's slurmd now and then dies of a "double free" of its own,
# and without this a lab of four nodes goes on as one of three, where every later test fails.
KEEPER = """
trap 'kill -TERM $child' TERM
for start in 1 2 3 4 5; do
  /usr/sbin/slurmd -D & child=$!
  wait $child; code=$?
  while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
  [ $code -gt 128 ] && [ $code -ne 143 ] || exit $code
  echo "slurmd ended by signal $((code - 128)) (start $start)"
done
"""


def prepare_folders(places: Places) -> None:
    """An empty state, spool and log, and the folders that last: homes and the Python environment."""
    for name in ("state", "spool", "log", "etc", "mysql", "dev"):
        shutil.rmtree(places.top / name, ignore_errors=True)
    for name in ("", "etc", "log", "state", "spool", "run", "home", "laptop-home", "dev"):
        folder = places.top / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    empty_run_folder(places)
    _make_devices(places)


def empty_run_folder(places: Places) -> None:
    """Delete sockets, pid files and at last the lab's notes; the lock stays, it is held by whoever calls this."""
    for leftover in places.run.iterdir():
        if leftover.is_dir():
            shutil.rmtree(leftover)
        elif leftover not in (places.state_file, places.run / "lab.lock"):
            leftover.unlink()
    places.state_file.unlink(missing_ok=True)


def _make_devices(places: Places) -> None:
    """Null devices by the names of GPUs, enough for Slurm to hand them out; the nodes' own /dev/fuse, open to all."""
    kinds = {f"gpu{number}": os.makedev(1, 3) for number in range(GPUS_PER_NODE)}
    if lab_apptainer.FUSE.exists():
        kinds["fuse"] = lab_apptainer.FUSE.stat().st_rdev
    for name, kind in kinds.items():
        os.mknod(places.top / "dev" / name, stat.S_IFCHR | 0o666, kind)
        (places.top / "dev" / name).chmod(0o666)


def create_users(places: Places) -> None:
    for name in USERS.values():
        home = places.home(name)
        try:
            known = pwd.getpwnam(name)
        except KeyError:
            words = ["useradd", "--system", "--user-group", "--shell", "/bin/bash", "--no-create-home"]
            call([*words, "--home-dir", str(home), name])
            known = pwd.getpwnam(name)
        call(["usermod", "--password", "*", name])  # no password, and yet not locked: sshd asks
        if Path(known.pw_dir) != home:
            call(["usermod", "--home", str(home), name])
        if not home.exists():
            shutil.copytree("/etc/skel", home)
            for entry in (home, *home.rglob("*")):
                os.chown(entry, known.pw_uid, known.pw_gid, follow_symlinks=False)
        home.chmod(0o700)
        lab_apptainer.give_subordinate_ids(name)


def write_configuration(places: Places, state: State) -> None:
    files = {
        "hosts": slurm_conf.hosts(state.nodes),
        "slurm.conf": slurm_conf.slurm_conf(places, state.nodes, accounting=state.accounting, memory=state.memory),
        "gres.conf": slurm_conf.gres_conf(places, state.nodes),
        "cgroup.conf": slurm_conf.cgroup_conf(state.memory),
        "epilog": slurm_conf.EPILOG,
    }
    for name, text in files.items():
        (places.etc / name).write_text(text)
    (places.etc / "epilog").chmod(0o755)
    secret(places.etc / "munge.key", secrets.token_bytes(128))
    if state.accounting:
        secret(places.etc / "slurmdbd.conf", slurm_conf.slurmdbd_conf(places).encode())


def secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


class Services:
    """Starts the programs of one lab and writes down each pid as soon as it has one."""

    def __init__(self, places: Places, state: State) -> None:
        self.places = places
        self.state = state

    def start_all(self) -> None:
        self.start_munge()
        if self.state.accounting:
            self.start_database()
            self.start_slurmdbd(_accounts())
        self.start_controller()
        for node in compute_nodes(self.state.nodes):
            self.start_slurmd(node)
        self._await("slurmctld", lambda: self.ready_nodes() == self.state.nodes, 20 + self.state.nodes)

    def start_controller(self) -> None:
        """Start slurmctld, with the jobs that it knew before."""
        self._start("slurmctld", "ctl", ["/usr/sbin/slurmctld", "-D"])
        self._await("slurmctld", lambda: self.run("scontrol", "ping").returncode == 0, 15)

    def start_munge(self) -> None:
        run, log = self.places.run, self.places.log
        files = {
            "key-file": self.places.etc / "munge.key",
            "socket": self.places.munge_socket,
            "pid-file": run / "munged.pid",
            "log-file": log / "munged.log",
            "seed-file": run / "munge.seed",
        }
        options = [f"--{name}={path}" for name, path in files.items()]
        self._start("munged", "ctl", ["/usr/sbin/munged", "--foreground", "--force", *options])
        self._await("munged", self.places.munge_socket.is_socket, 5)

    def start_slurmd(self, node: str) -> None:
        (self.places.top / "spool" / node).mkdir(mode=0o755, exist_ok=True)
        self._start(f"slurmd-{node}", node, ["sh", "-c", KEEPER])

    def start_database(self) -> None:
        """A MariaDB of the lab's own: its files and its socket below the lab's folder, no TCP port."""
        user = pwd.getpwnam("mysql")
        database = self.places.top / "mysql"
        for folder in (database, self.places.run / "mysql"):
            folder.mkdir(exist_ok=True)
            os.chown(folder, user.pw_uid, user.pw_gid)
        words = ["--no-defaults", f"--datadir={database}", "--user=mysql"]
        fresh = ["--auth-root-authentication-method=socket", "--skip-test-db", "--skip-name-resolve"]
        call([*inside(self.state.holders["ctl"]), "mariadb-install-db", *words, *fresh])
        small = ["--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"]
        small += ["--innodb-lock-wait-timeout=900"]
        socket = self._database_socket
        self._start(
            "mariadbd", "ctl", ["/usr/sbin/mariadbd", *words, f"--socket={socket}", "--skip-networking", *small]
        )
        self._await("mariadbd", socket.is_socket, 20)

    @property
    def _database_socket(self) -> Path:
        return self.places.run / "mysql" / "mysqld.sock"

    def start_slurmdbd(self, accounts: Sequence[Sequence[str]]) -> None:
        """Start slurmdbd, and tell sacctmgr these words, a list for each call."""
        self._start("slurmdbd", "ctl", ["env", f"MYSQL_UNIX_PORT={self._database_socket}", "/usr/sbin/slurmdbd", "-D"])
        self._await("slurmdbd", lambda: self.run("sacctmgr", "-n", "show", "cluster").returncode == 0, 30)
        for words in accounts:
            done = self.run("sacctmgr", "-i", *words)
            if done.returncode:
                raise LabError(f"`sacctmgr {' '.join(words)}` failed: {(done.stderr or done.stdout).strip()}.")

    def _start(self, name: str, node: str, argv: list[str]) -> None:
        self.state.daemons[name] = start_daemon(self.places, self.state.holders[node], argv, name)
        self.state.save(self.places)

    def _await(self, name: str, condition: Callable[[], bool], seconds: float) -> None:
        alive = self.state.daemons[name]
        if not wait_for(lambda: condition() or not alive.alive, seconds) or not alive.alive:
            raise LabError(
                f"{name} ended or was not ready in {seconds:g} s. Read the end of {self.places.log}/{name}.*"
            )

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """A Slurm command as root on ctl."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_CONF": str(self.places.slurm_conf)}
        words = [*inside(self.state.holders["ctl"]), *argv]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240, check=False)

    def node_states(self) -> dict[str, str]:
        lines = self.run("sinfo", "-h", "-N", "-p", "boost", "-o", "%N %T").stdout.split("\n")
        return dict(line.split(maxsplit=1) for line in lines if " " in line)

    def ready_nodes(self) -> int:
        return sum(1 for word in self.node_states().values() if word.strip() in READY_NODE)

    def idle(self) -> bool:
        """Whether every node is idle and the queue is empty."""
        states = [word.strip() for word in self.node_states().values()]
        return states == ["idle"] * self.state.nodes and not self.run("squeue", "-h").stdout.strip()


def _accounts() -> list[list[str]]:
    limits = ["MaxTRESPerJob=node=2", "MaxWall=00:30:00"]
    users, qos = ",".join(USERS.values()), "QOS=normal,boost_qos_dbg,one_job"
    return [
        ["add", "cluster", CLUSTER],
        ["add", "qos", "boost_qos_dbg", *limits],
        ["add", "qos", "one_job", "MaxSubmitJobsPerUser=1"],
        ["add", "account", ACCOUNT, f"Cluster={CLUSTER}", "Description=lab", "Organization=lab"],
        ["add", "user", users, f"Account={ACCOUNT}", qos, "DefaultQOS=normal"],
    ]
