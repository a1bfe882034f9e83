"""What OpenSSH is told: the user's own configuration, and before it the few settings that hpcml insists on."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hpcml import files, subprocesses
from hpcml.errors import ConfigError, StorageError
from hpcml.sites.layers import process_environment

ASK = 20.0  # seconds for `ssh -G`, which opens no connection (but may run the user's own Match exec)
_SOCKET_PATH = 108 if sys.platform.startswith("linux") else 104  # bytes of sun_path
_SUFFIX = 18  # bytes that ssh appends while it makes a control socket
_UNCHECKED = ("no", "off", "false")

# First in the file, so that they win over the user's: nothing of the laptop's is lent to the other side, no program is
# started, no forward is made but those asked for, and a dead link is noticed within 45 s.
INSISTED = (
    "ForwardAgent no",
    "ForwardX11 no",
    "PermitLocalCommand no",
    "RemoteCommand none",
    "RequestTTY no",
    "Tunnel no",
    "ServerAliveInterval 15",
    "ServerAliveCountMax 3",
    "ExitOnForwardFailure yes",
)
# Last, so that the user's own win.
PREFERRED = ("ConnectTimeout 15",)


def options(**settings: str) -> list[str]:
    """Return settings as ssh takes them on its command line."""
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


class Places(NamedTuple):
    """The folders on the laptop: the configuration files and notes of each cluster, and the control sockets."""

    files: Path
    control: Path


def places(control: str = "~/.hpcml/cm") -> Places:
    """Return the folders, made for the user alone if they are not there.

    Raises
    ------
    StorageError
        If they cannot be made, or are not the user's alone.
    """
    home = process_environment().get("HOME", "")
    if not home.startswith("/"):
        raise StorageError("HOME is not set", place="HOME", hint="Set it: ssh's files lie there.")
    folder = Path(f"{home}/{control[2:]}" if control.startswith("~/") else control)
    for path in (both := Places(Path(home) / ".hpcml" / "ssh", folder)):
        private_folder(path)
    return both


def private_folder(path: Path) -> None:
    """Make a folder of mode 0700, or see that the one there is the user's own and nobody else's to write to."""
    hint = "Remove it, or choose another with --set login.control=…."
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        itself, above = path.lstat(), path.parent.stat()
    except OSError as error:
        raise StorageError(f"The folder cannot be made: {error.strerror}", place=str(path), hint=hint) from error
    if not stat.S_ISDIR(itself.st_mode) or itself.st_uid != os.getuid() or itself.st_mode & 0o022:
        raise StorageError("The folder is not yours alone", place=str(path), hint=hint)
    if not files.folder_is_ours(above) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
        if above.st_uid == os.getuid():
            hint = f"Close it to them: chmod go-w {shlex.quote(str(path.parent))}"
        raise StorageError("Others may rename the folder", place=str(path.parent), hint=hint)
    if itself.st_mode & 0o077:
        path.chmod(0o700)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that all of this user's processes share; it ends with the process, too."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def key(host: str) -> str:
    """Return the short name of a cluster's files, the same for the same words to ssh."""
    return hashlib.sha256(host.encode()).hexdigest()[:16]


def control_socket(folder: Path, name: str) -> Path:
    """Return the path of a control socket.

    Raises
    ------
    ConfigError
        If the system takes no socket of so long a path.
    """
    path = folder / name
    length, most = len(os.fsencode(path)), _SOCKET_PATH - 1 - _SUFFIX
    if length > most:
        message = f"The path of ssh's control socket has {length} bytes, and the system takes {most}"
        raise ConfigError(message, place=str(path), hint="Choose a shorter folder: --set login.control=/short/path.")
    return path


def effective(host: str, file: Path | None = None, seconds: float = ASK) -> dict[str, list[str]]:
    """Return ssh's own view of a host: every setting in force, by its name in small letters."""
    words = ["ssh", *(["-F", str(file)] if file else []), "-G", "--", host]
    try:
        answer = subprocesses.run(words, seconds)
    except subprocesses.CommandMissingError as error:
        hint = "Install OpenSSH's client."
        raise ConfigError(f"ssh cannot be started: {error}", place="PATH", hint=hint) from error
    if answer.code != 0:
        complaint = (answer.err.strip().splitlines() or ["it did not say why"])[-1]
        raise ConfigError(f"ssh refuses its configuration: {complaint}", place=host, hint="Try: ssh -G " + host)
    settings: dict[str, list[str]] = {}
    for line in answer.out.splitlines():
        name, _, value = line.partition(" ")
        settings.setdefault(name, []).append(value)
    return settings


def write(folder: Path, host: str, settings: Mapping[str, list[str]]) -> Path:
    """Write the configuration file with which this cluster is reached; return its path.

    The user's own file and the machine's are included whole. Where they switch the check of host keys off, it is on
    again: an unknown key is asked about, a changed one refused.
    """
    insisted = list(INSISTED)
    if settings.get("stricthostkeychecking", [""])[0] in _UNCHECKED:
        insisted.append("StrictHostKeyChecking ask")
    user = Path(process_environment().get("HOME", "")) / ".ssh" / "config"
    included = [path for path in (user, Path("/etc/ssh/ssh_config")) if path.is_file()]
    lines = [f"# Written by hpcml for {host}, anew each time.", "Host *", *(f"  {line}" for line in insisted)]
    lines += [f'Include "{path}"' for path in included] + ["Host *", *(f"  {line}" for line in PREFERRED)]
    path = folder / f"{key(host)}.conf"
    files.write(path, "\n".join(lines) + "\n")
    return path
