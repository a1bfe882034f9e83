"""ssh to the nodes of a run, for editors and rsync: an sshd in a job step, and names for it in a file of ssh's client.

The sshd is a tunnel's (:mod:`hpcml.remote.tunnel_server`) with another configuration: it gives a shell.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcml import assets, safe_files, schedulers, script_api, subprocesses
from hpcml.config_trust import HPCML
from hpcml.errors import NotFoundError, SiteError, StorageError, UsageError
from hpcml.remote import ssh, tunnel_server
from hpcml.remote.answers import Relay, RunNode
from hpcml.runs import directories, handle
from hpcml.runs import record as run_record
from hpcml.runs import status as run_status
from hpcml.sites.settings_layers import process_environment

INCLUDE = "Include ~/.hpcml/ssh/nodes.conf"
_FILE, _FOLDER, _ENDS = "nodes.conf", "node-", 30 * 86400.0
_STARTS = 60.0  # seconds for a job step that tests sshd's configuration
_ENTER = "enter.sh"
_OPEN = """\
PermitTTY yes
ForceCommand {command}
Subsystem sftp internal-sftp
PrintMotd no
PrintLastLog no
"""
# ssh's client hangs its ProxyCommand up, and srun would report a killed step; it ends with its input.
_DEAF = ("/bin/sh", "-c", 'trap "" HUP; "$@"; exit $?', "sh")

# -- the login node's part -------------------------------------------------------------------------------------------


def prepare(run: directories.Run, key: str) -> Relay:
    """Make the files of an sshd that one key may use for a shell on the run's nodes, and test them on the first node.

    Raises
    ------
    UsageError, NotFoundError
        If the run is on this machine, or has no nodes now.
    SiteError
        If the node has no sshd, or the sshd refuses its configuration.
    """
    status = _running(run)
    relay, nodes = tunnel_server.prepare(run, key), status.allocation.nodes
    folder = Path(relay.folder)
    with directories.storage(folder):
        safe_files.write(folder / _ENTER, (assets.folder("templates") / _ENTER).read_bytes())
        config = folder / "config"
        safe_files.write(config, _OPEN.format(command=_command(run, folder)) + config.read_text())
    command = tunnel_server.step(run, nodes[0], relay.folder, mode="-t", whole=True)
    answer = subprocesses.run(command, _STARTS, program=HPCML)
    if answer.code != 0:
        shutil.rmtree(folder, ignore_errors=True)
        lines = answer.err.strip().splitlines() or [f"no response within {_STARTS:g} s"]
        said = [line for line in lines if line.startswith("hpcml: ")] or lines  # srun speaks of the step
        hint = f"Ask the site for OpenSSH's server on the nodes. Without it, open a shell: hpcml shell {run.id}."
        raise SiteError(f"sshd cannot start on {nodes[0]}: {said[0].removeprefix('hpcml: ')}", place=run.id, hint=hint)
    names = tuple(map(RunNode, nodes))
    return relay._replace(run=run.id, nodes=names, ends=tunnel_server.limit_of(run, status))


def serve(run: directories.Run, folder: str, node: str) -> None:
    """Become a job step on a node whose standard input and output are an sshd's.

    Raises
    ------
    NotFoundError
        If the run has no such node now.
    StorageError
        If the files are gone: the run has started again since.
    """
    status = _running(run)
    if node not in status.allocation.nodes:
        hint = f"The run's nodes: {', '.join(status.allocation.nodes)}."
        raise NotFoundError(f"The run has no node '{node}'", place=run.id, hint=hint)
    try:
        settings = map(ssh.quoted, map("=".join, variables(run, status).items()))
        command = tunnel_server.step(run, node, folder, "", *settings, whole=True)
    except StorageError as error:
        hint = f"The run was restarted. Create new ones: hpcml ssh-config {run.id}."
        raise StorageError("The run's ssh keys do not exist", place=folder, hint=hint) from error
    tunnel_server.become(run, [*_DEAF, *command])


def variables(run: directories.Run, status: run_status.Status) -> dict[str, str]:
    """Return the variables of a run for a shell on its nodes: its own, and those of its Dask cluster if it has one."""
    found = handle.node_variables(run, status)
    with contextlib.suppress(NotFoundError):  # runs without Dask, and before its start
        found |= script_api.client_variables(*handle.scheduler_of(run, status))
    return found


def _running(run: directories.Run) -> run_status.Status:
    """Return the status of a run that is on other machines now."""
    if not run.submission or schedulers.nodes_of(run.submission.scheduler) is None:
        hint = f"Open this folder in your editor: {run.paths.directory}"
        raise UsageError("The run needs no ssh: it is on the machine that started it", place=run.id, hint=hint)
    return active(run)


def active(run: directories.Run) -> run_status.Status:
    """Return the status of a run that is on nodes now; NotFoundError if it has ended, or has none yet."""
    status = run_status.status(run)
    if status.over:
        raise NotFoundError("The run has ended", place=run.id, hint="Choose a run that is running: hpcml ls.")
    if not status.allocation.nodes or run_record.newest_attempt(run.paths) is None:
        hint = f"Wait until the run starts: hpcml status -f {run.id}."
        raise NotFoundError("The run has no nodes yet", place=run.id, hint=hint)
    return status


def _command(run: directories.Run, folder: Path) -> str:
    """Return the forced command: none, or what enters the run's image."""
    words = into_image(run)
    return shlex.join(["/bin/sh", str(folder / _ENTER), *words]) if words else "none"


def into_image(run: directories.Run) -> list[str]:
    """Return the words before a command in the run's image, with the user's own home folder; none without an image."""
    plan = run_record.Record(run.paths).plan
    if not plan.entry:
        return []
    entry = list(plan.entry)
    for option in ("--home", "--pwd"):
        entry[entry.index(option) + 1] = process_environment().get("HOME", "/")
    return [*entry, plan.inside.job.image]


# -- the part of the machine with ssh's client -------------------------------------------------------------------------


def write(folder: Path, relay: Relay, user: str, command: Callable[[str], Sequence[str]]) -> dict[str, str]:
    """Write the names of a run's nodes beside those of other runs; return the node of each name.

    The key is in ``folder``, which gets the name of the run. ``user`` is the name on the cluster. ``command`` returns
    the command that leads to a node's sshd.

    Raises
    ------
    UsageError, StorageError
        If a path or an option cannot be written in ssh's configuration, or the files cannot be written.
    """
    first = f"hpcml-{relay.run}"
    nodes = {f"{first}-{node.name}" if number else first: node.name for number, node in enumerate(relay.nodes)}
    ours = folder.with_name(f"{_FOLDER}{relay.run}")
    lines = []
    for name, node in nodes.items():
        lines += [f"Host {name}", f"  ProxyCommand {ssh.proxy(command(node))}"]
    lines += [f"Host {first} {first}-*", f"  User {user}", *(f"  {line}" for line in _settings(ours, first))]
    if invalid := next((line for line in lines if not line.isprintable()), ""):
        hint = "Use paths and options without line breaks and control characters."
        raise UsageError("ssh's configuration cannot contain this line", place=invalid, hint=hint)
    with directories.storage(folder), ssh.locked(folder.with_name("nodes.lock")):
        safe_files.write(folder / "known_hosts", f"{first} {relay.host_key}\n")
        safe_files.write(folder / "config", "\n".join(lines) + "\n")
        os.utime(folder / "config", (relay.ends or time.time() + _ENDS,) * 2)
        shutil.rmtree(ours, ignore_errors=True)
        (folder / "owner").unlink()
        folder.rename(ours)
        head = "# Written by hpcml ssh-config. Do not edit this file: hpcml overwrites it.\n"
        folders = sorted(folder.parent.glob(f"{_FOLDER}*"))
        safe_files.write(folder.with_name(_FILE), head + "".join(map(_config_of, folders)))
    return nodes


def _settings(folder: Path, name: str) -> tuple[str, ...]:
    """Return the settings of all names of a run. They are first in the user's file, so they win."""
    key, known_hosts = (ssh.quoted(ssh.literal(str(folder / file))) for file in ("key", "known_hosts"))
    return (
        f"IdentityFile {key}",
        "IdentitiesOnly yes",
        "IdentityAgent none",
        "PreferredAuthentications publickey",
        f"UserKnownHostsFile {known_hosts}",
        f"GlobalKnownHostsFile {known_hosts}",
        "StrictHostKeyChecking yes",
        f"HostKeyAlias {name}",
        "ServerAliveInterval 15",
        "ForwardAgent no",
        "ForwardX11 no",
        "PermitLocalCommand no",
    )


def _config_of(folder: Path) -> str:
    """Return the names of a run; of one whose time limit has passed, remove the key."""
    config = folder / "config"
    with contextlib.suppress(OSError):
        if config.stat().st_mtime > time.time():
            return config.read_text()
    shutil.rmtree(folder, ignore_errors=True)
    return ""


def own_command() -> list[str]:
    """Return the words that start this hpcml from any folder."""
    program = Path(sys.argv[0]).absolute()
    return [sys.executable, "-P", *(["-m", "hpcml"] if program.name == "__main__.py" else [str(program)])]
