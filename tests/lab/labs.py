"""The lab as an object: start it, end it, run commands on its nodes as its users (used by lab.py and by pytest)."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import lab_cgroups
import lab_env
import lab_install
import lab_nodes
import lab_services
import lab_ssh
import slurm_conf
from lab_paths import PROGRAM, LabError, Places, account_name, all_nodes, compute_nodes
from lab_state import (
    PATIENCE,
    Started,
    State,
    all_pids,
    boot_id,
    kill,
    load,
    locked,
    marked_holders,
    members,
    mount_namespace,
    reap,
    wait_for,
)

NODE_WAIT_S = 20.0


class Lab:
    """One lab, below one top folder; the object itself holds no resource, so any number may refer to the same lab."""

    def __init__(self) -> None:
        self.places = Places.default()

    # --- life ---------------------------------------------------------------------------------------------------

    def check(self) -> str | None:
        """The reason why a lab cannot run on this machine, in one sentence; None when it can."""
        return lab_install.reason_against()

    def up(self, accounting: bool = False, nodes: int = 4) -> bool:
        """Start the lab and wait until all nodes are idle; False when it was already up with these options."""
        reason = self.check() or (lab_install.missing_for_accounting() if accounting else None)
        if reason:
            raise LabError(reason)
        if others := self._other_labs():
            raise LabError(f"Another lab is up ({others[0]}). Run: HPCML_LAB_TOP={others[0]} {PROGRAM} down")
        with self._lock():
            state = load(self.places)
            for entry in state.processes() if state else ():
                if entry.alive:  # a test that was killed may have left a daemon stopped
                    os.kill(entry.pid, signal.SIGCONT)
            if state and (state.accounting, state.nodes) == (accounting, nodes) and self._alive(state):
                self._revive(state)
                return False
            self._refuse_while_busy(state)
            self._tear_down()
            try:
                self._start(accounting, nodes)
            except BaseException as error:
                tail = self._log_tail()
                self._tear_down()
                if isinstance(error, LabError):
                    raise LabError(f"{error}\n{tail}".rstrip()) from error
                raise
        return True

    def down(self) -> None:
        """End every process of the lab and delete its namespaces and cgroups; nothing happens when it is not up."""
        if os.geteuid() != 0:
            raise LabError(lab_install.NEEDS_ROOT)
        if not self.places.run.is_dir():
            return
        with self._lock():
            self._tear_down()

    def add_laptop(self) -> None:
        """Add the laptop, a second login node and every sshd to the lab that is up, unless they are there."""
        with self._lock():
            state = self.state()
            if lab_ssh.LAPTOP not in state.holders:
                lab_ssh.start(self.places, state)

    def _start(self, accounting: bool, nodes: int) -> None:
        lab_services.prepare_folders(self.places)
        memory = slurm_conf.CGROUP if lab_cgroups.available() else slurm_conf.SAMPLING
        state = State(accounting=accounting, nodes=nodes, boot=boot_id(), memory=memory)
        state.netns_mounted = not lab_nodes.NETNS.exists()
        state.cgroups = lab_cgroups.lab_folders() if memory == slurm_conf.CGROUP else []
        state.save(self.places)
        lab_services.create_users(self.places)
        lab_services.write_configuration(self.places, state)
        lab_env.write_settings(self.places)
        lab_nodes.create_network(state)
        for node in all_nodes(nodes):
            state.holders[node] = lab_nodes.start_holder(self.places, state, node)
            state.save(self.places)
        lab_services.Services(self.places, state).start_all()
        state.ready = True
        state.save(self.places)

    @staticmethod
    def _alive(state: State) -> bool:
        """Whether the lab was started and lives; a slurmd may be down, as node_down leaves it."""
        needed = [entry for name, entry in state.daemons.items() if not name.startswith(("slurmd-", "sshd-"))]
        return state.ready and all(entry.alive for entry in [*needed, *state.holders.values()])

    def _revive(self, state: State) -> None:
        for node in compute_nodes(state.nodes):
            if not state.daemons[f"slurmd-{node}"].alive:
                self._node_up(state, node)

    def _refuse_while_busy(self, state: State | None) -> None:
        if state and self._alive(state):
            queue = self.exec(["squeue", "-h"], user="root").stdout.splitlines()
            if queue:
                raise LabError(
                    f"The lab is up with other options and has {len(queue)} job(s) ({self.places.state_file}). "
                    f"Run: {PROGRAM} down"
                )

    def _tear_down(self) -> None:
        state = load(self.places)
        self._kill_members(state)
        if state or not self._other_labs():
            lab_nodes.delete_network(unmount=state.netns_mounted if state else False)
        if state and state.cgroups:
            lab_cgroups.remove(state.cgroups)
        lab_services.empty_run_folder(self.places)

    def _other_labs(self) -> list[str]:
        """Top folders of the other labs that are up; they would use the same names, so there can be one at a time."""
        return sorted({top for top in marked_holders().values() if top != str(self.places.top)})

    def _kill_members(self, state: State | None) -> None:
        """Kill whatever lives in the mount namespaces of our holders; they are proved ours by pid and start time."""
        holders = {pid for pid, top in marked_holders().items() if top == str(self.places.top)}
        proved = [entry for entry in (state.processes() if state else []) if entry.alive]
        ours = {entry.pid for entry in proved} | holders
        host = mount_namespace(os.getpid())
        namespaces = {number for pid in ours if (number := mount_namespace(pid)) is not None} - {host}

        def gone() -> bool:
            if state:
                lab_cgroups.thaw(state.cgroups)
            left = {*members(namespaces), *(entry.pid for entry in proved if entry.alive)} - {os.getpid()}
            for pid in left:
                kill(pid)
            return not left

        if not wait_for(gone, 15):
            raise LabError(
                f"Some processes of the lab do not end ({self.places.state_file}). Run {PROGRAM} down again."
            )
        for pid in ours:
            reap(pid)

    def _log_tail(self) -> str:
        """The last lines of each log that has any, for a failed start."""
        parts = []
        for path in sorted(self.places.log.glob("*")):
            text = path.read_text(errors="replace").splitlines()[-8:] if path.is_file() else []
            parts += [f"--- {path}", *text] if text else []
        return "\n".join(parts)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """One `up` or `down` at a time."""
        self.places.run.mkdir(parents=True, exist_ok=True)
        with (self.places.run / "lab.lock").open("w") as file:
            if not wait_for(lambda: locked(file), 120):
                raise LabError(f"Another `up` or `down` is still at work ({self.places.run}/lab.lock). Wait for it.")
            yield

    # --- commands -----------------------------------------------------------------------------------------------

    def state(self) -> State:
        """What the running lab wrote down; an error when it is not up."""
        state = load(self.places)
        if state is None or not self._alive(state):
            raise LabError(f"The lab is not up ({self.places.state_file}). Run: {PROGRAM} up")
        return state

    def command(
        self,
        argv: Sequence[str],
        *,
        node: str = "login",
        user: str = "alice",
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> tuple[list[str], dict[str, str]]:
        """The words and the environment that run `argv` on a node as a user; its pid is that of the command itself."""
        holder = self._holder(node)
        account = pwd.getpwnam(account_name(user))
        become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups"]
        if account.pw_uid:
            become.append("--inh-caps=-all")
        home = self.places.home(user)
        words = [*lab_nodes.inside(holder), *become, "env", f"--chdir={cwd or home}", *argv]
        variables = {
            "HOME": str(home), "USER": account.pw_name, "LOGNAME": account.pw_name, "SHELL": "/bin/bash",
            "PATH": f"{self.places.venv}/bin:/usr/bin:/bin", "SLURM_CONF": str(self.places.slurm_conf),
            "HPCML_SYSTEM_CONFIG": str(self.places.site), "LANG": "C.UTF-8",
        }  # fmt: skip
        if node == lab_ssh.LAPTOP:
            variables["PATH"] = f"{self.places.laptop_venv}/bin:/usr/bin:/bin"  # no Slurm, and an hpcml of its own
            del variables["SLURM_CONF"], variables["HPCML_SYSTEM_CONFIG"]
        if "TERM" in os.environ:
            variables["TERM"] = os.environ["TERM"]
        return words, {**variables, **(env or {})}

    def has(self, node: str) -> bool:
        """Whether the lab is up with such a node."""
        state = load(self.places)
        return state is not None and node in state.holders

    def _holder(self, node: str) -> Started:
        state = load(self.places)
        if state is None or not state.holders:
            raise LabError(f"The lab is not up ({self.places.state_file}). Run: {PROGRAM} up")
        if node not in state.holders:
            raise LabError(f"The lab has no node {node!r} ({PROGRAM}). Use one of: {', '.join(state.holders)}.")
        if not state.holders[node].alive:
            raise LabError(f"The node {node} is gone ({self.places.state_file}). Run: {PROGRAM} down, then up")
        return state.holders[node]

    def popen(
        self,
        argv: Sequence[str],
        *,
        node: str = "login",
        user: str = "alice",
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = subprocess.PIPE,
        stderr: int | IO[Any] | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on a node, in a session of its own: os.killpg(process.pid, …) reaches all of it."""
        words, variables = self.command(argv, node=node, user=user, env=env, cwd=cwd)
        return subprocess.Popen(
            words,
            env=variables,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            umask=0o022,
            start_new_session=True,
        )

    def exec(
        self,
        argv: Sequence[str],
        *,
        node: str = "login",
        user: str = "alice",
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        timeout: float = 60,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node to its end; at the timeout it is killed with its children."""
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        with self.popen(argv, node=node, user=user, env=env, cwd=cwd, stdin=stdin) as process:
            try:
                out, err = process.communicate(input, timeout=PATIENCE * timeout)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    # --- looking and meddling -----------------------------------------------------------------------------------

    def services(self) -> lab_services.Services:
        return lab_services.Services(self.places, self.state())

    def home(self, user: str) -> Path:
        return self.places.home(user)

    def wait_idle(self, timeout: float) -> None:
        """Wait until all nodes are idle and the queue is empty; an error at the timeout."""
        services = self.services()
        if not wait_for(services.idle, timeout, 0.1):
            raise LabError(
                f"The lab is not idle after {timeout:g} s: {services.node_states()}. Look at squeue.\n"
                f"{services.run('sinfo', '-R').stdout}"
            )

    def processes(self, user: str) -> list[tuple[int, str]]:
        """Every process of this user on the machine, with its command line."""
        uid = pwd.getpwnam(account_name(user)).pw_uid
        found = []
        for pid in all_pids():
            try:
                if Path(f"/proc/{pid}").stat().st_uid != uid:
                    continue
                words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            except OSError:
                continue
            if words != [b""]:
                found.append((pid, " ".join(word.decode(errors="replace") for word in words)))
        return found

    def node_down(self, node: str, *, crash: bool = False, tell: bool = False) -> None:
        """Stop a node's slurmd; Slurm finds out after 40 to 70 s, or at once if we `tell` it.

        With `crash` everything else that runs on the node ends too, as when it loses power.
        """
        with self._lock():
            state = self.state()
            slurmd = self._slurmd(state, node)
            if crash:
                self._kill_all_on(state.holders[node])
            elif slurmd.alive:
                os.kill(slurmd.pid, signal.SIGTERM)
            if not wait_for(lambda: not slurmd.alive, NODE_WAIT_S):
                raise LabError(f"The slurmd of {node} does not end (pid {slurmd.pid}). Read {self.places.log}.")
            reap(slurmd.pid)
            if tell:
                services = lab_services.Services(self.places, state)
                services.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lab node-down")

    @staticmethod
    def _kill_all_on(holder: Started) -> None:
        """Stop all, then kill them: as without power, none lives long enough to see the end of another and to tell it."""
        number = mount_namespace(holder.pid)

        def left() -> set[int]:
            return set(members({number} if number else set())) - {holder.pid}

        def gone() -> bool:
            found = left()
            for pid in sorted(found, reverse=True):  # children first: one whose parent ends before it would go on
                kill(pid)
            return not found

        stopped: set[int] = set()
        while new := left() - stopped:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= new
        wait_for(gone, NODE_WAIT_S)

    def node_up(self, node: str) -> None:
        """Start a node's slurmd again, tell the controller, and wait until the node can take jobs."""
        with self._lock():
            self._node_up(self.state(), node)

    def _node_up(self, state: State, node: str) -> None:
        services = lab_services.Services(self.places, state)
        if not self._slurmd(state, node).alive:
            services.start_slurmd(node)
        sshd = state.daemons.get(f"sshd-{node}")
        if sshd and not sshd.alive:  # after a crash
            lab_ssh.start_sshd(self.places, state, node)

        def usable() -> bool:
            word = services.node_states().get(node, "")
            if word.startswith(("down", "drain")):
                services.run("scontrol", "update", f"nodename={node}", "state=resume")
            return word in lab_services.READY_NODE

        if not wait_for(usable, NODE_WAIT_S, 0.2):
            raise LabError(f"The node {node} did not come back. Read {self.places.log}/slurmd-{node}.log.")

    @staticmethod
    def _slurmd(state: State, node: str) -> Started:
        name = f"slurmd-{node}"
        if name not in state.daemons:
            raise LabError(
                f"{node!r} is no compute node ({PROGRAM}). Use one of: {' '.join(compute_nodes(state.nodes))}."
            )
        return state.daemons[name]
