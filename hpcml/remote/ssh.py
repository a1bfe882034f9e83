"""The way to a cluster: one authenticated connection of the OpenSSH program, and all else over it.

Who can answer questions (a one-time password, a host key) answers ssh's own, on the terminal. All that follows goes
over that connection's control socket and fails rather than logs in again, so a command, a copy, a forward
or an hour of waiting adds no login.
"""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import safe_files, subprocesses
from hpcml.config_trust import HPCML
from hpcml.errors import (
    ConfigError,
    HostKeyError,
    HpcmlError,
    LinkError,
    LoginNeededError,
    StorageError,
    UsageError,
)
from hpcml.sites import lookup
from hpcml.sites.schema import Login
from hpcml.sites.settings_layers import process_environment, user_path

PERSIST = 600  # seconds that an idle connection stays for the next command
CHECK = 10.0  # seconds for a question to the local end of the connection
OPEN = 60.0  # seconds for a login that asks nobody

# Where a program is not on the PATH of a command by ssh, that of a login shell is tried; what its profile prints or
# reads is kept away from the program's own input and output. Constant; the program's arguments follow, each quoted.
_FIND = (
    """sh -c 'command -v PROGRAM >/dev/null 2>&1 && exec PROGRAM "$@"; exec 3<&0 4>&1; """
    r"""exec bash -lc "command -v PROGRAM >/dev/null 2>&1 || exit 127; exec PROGRAM \"\$@\" <&3 >&4 3<&- 4>&-" """
    """PROGRAM "$@" </dev/null >/dev/null' PROGRAM"""
)

_EFFECTIVE = 20.0  # seconds for `ssh -G`, which opens no connection (but may run the user's own Match exec)
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

HOUR = 3600.0
_ASK = 10.0  # seconds for a question to ssh-keygen or the agent

# What ssh says, most telling first. A site that sees many logins may take them for an attack, so only what is surely
# the network's fault is not counted as one.
_HOST_KEY = r"HOST IDENTIFICATION HAS CHANGED|Host key verification failed|No .* host key is known|REVOKED HOST KEY"
_AUTH = r"Permission denied|Too many authentication failures|authenticating user|no more authentication methods|OTP"
_CONFIG = r"Bad configuration option|bad configuration options|Bad owner or permissions|keyword .* extra arguments"
_REFUSED = "ssh refuses its configuration (~/.ssh/config or /etc/ssh/ssh_config)"
_NETWORK = (
    r"Could not resolve|Connection refused|timed out|No route to host|Network is (?:unreachable|down)|"
    r"Connection (?:closed|reset)|kex_exchange_identification|banner exchange|Broken pipe|not responding"
)


# -- the configuration -------------------------------------------------------------------------------------------------


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
        raise StorageError("HOME is not set", place="HOME", hint="Set HOME to your home folder, which contains .ssh.")
    folder = Path(f"{home}/{control[2:]}" if control.startswith("~/") else control)
    for path in (both := Places(Path(home) / ".hpcml" / "ssh", folder)):
        private_folder(path)
    return both


def private_folder(path: Path) -> None:
    """Make a folder of mode 0700 unless it exists; StorageError if it cannot be made, or others can change it."""
    hint = "Choose another folder with --set login.control=…."
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        itself, above = path.lstat(), path.parent.stat()
    except OSError as error:
        raise StorageError(f"The folder cannot be created: {error.strerror}", place=str(path), hint=hint) from error
    if not stat.S_ISDIR(itself.st_mode) or itself.st_uid != os.getuid() or itself.st_mode & 0o022:
        hint = "Remove this path, or choose another folder with --set login.control=…."
        message = "The path is not a folder that you own, or other users can write to it"
        raise StorageError(message, place=str(path), hint=hint)
    if not safe_files.folder_is_ours(above) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
        if above.st_uid == os.getuid():
            hint = f"Remove other users' write access: chmod go-w {shlex.quote(str(path.parent))}"
        message = f"Other users can rename the folder {path.name}: they own its parent folder, or can write to it"
        raise StorageError(message, place=str(path.parent), hint=hint)
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


def key_of(host: str) -> str:
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
        message = f"The path of ssh's control socket has {length} bytes, but the system allows {most}"
        raise ConfigError(message, place=str(path), hint="Choose a shorter folder: --set login.control=/short/path.")
    return path


def effective(host: str, file: Path | None = None, seconds: float = _EFFECTIVE) -> dict[str, list[str]]:
    """Return ssh's own view of a host: all settings, by name in small letters; ConfigError if ssh fails."""
    command = ["ssh", *(["-F", str(file)] if file else []), "-G", "--", host]
    try:
        answer = subprocesses.run(command, seconds, program=HPCML)
    except subprocesses.CommandMissingError as error:
        hint = "Install OpenSSH's client."
        raise ConfigError(f"ssh could not be started: {error}", place="PATH", hint=hint) from error
    if answer.code != 0:
        complaint = (answer.err.strip().splitlines() or ["ssh gave no reason"])[-1]
        raise ConfigError(f"{_REFUSED}: {complaint}", place=host, hint="Try: ssh -G " + host)
    settings: dict[str, list[str]] = {}
    for line in answer.out.splitlines():
        name, _, value = line.partition(" ")
        settings.setdefault(name, []).append(value)
    return settings


def write_config(folder: Path, host: str, settings: Mapping[str, list[str]]) -> Path:
    """Write the configuration file with which this cluster is reached; return its path.

    The user's own file and the machine's are included whole. Where they switch the check of host keys off, it is on
    again: an unknown key is asked about, a changed one refused.
    """
    insisted = list(INSISTED)
    if settings.get("stricthostkeychecking", [""])[0] in _UNCHECKED:
        insisted.append("StrictHostKeyChecking ask")
    user = Path(process_environment().get("HOME", "")) / ".ssh" / "config"
    included = [path for path in (user, Path("/etc/ssh/ssh_config")) if path.is_file()]
    head = f"# Written by hpcml for {host}. Do not edit this file: hpcml overwrites it."
    lines = [head, "Host *", *(f"  {line}" for line in insisted)]
    lines += [f"Include {quoted(glob.escape(str(path)))}" for path in included]
    lines += ["Host *", *(f"  {line}" for line in PREFERRED)]
    path = folder / f"{key_of(host)}.conf"
    safe_files.write(path, "\n".join(lines) + "\n")
    return path


# -- logging in --------------------------------------------------------------------------------------------------------


def check_host(host: str, place: str = "--host") -> str:
    """Return a host's name; UsageError if ssh cannot be called with it."""
    if not host or host.startswith("-") or any(not letter.isprintable() or letter.isspace() for letter in host):
        hint = "Use a name that ssh knows (user@login.example.org), or a site with login.host in its profile."
        raise UsageError(f"{host!r} is not the name of a host", place=place, hint=hint)
    return host


def login_of(
    host: str,
    assignments: Sequence[str] = (),
    *,
    site: str = "",
    place: str = "--host",
    load: Callable[..., lookup.LoadedSite],
) -> Login:
    """Return the way to a cluster, by a site's name or by what ssh is called with.

    No project's file counts, which may have come with somebody else's code.

    Parameters
    ----------
    assignments
        ``--set`` of the command line.
    site
        Whose settings count for a host that is not a site's name; empty for the site found here.
    place
        Where the host was named, for errors.
    load
        Loads a site.

    Raises
    ------
    UsageError
        If it is not the name of a host.
    """
    check_host(host, place)
    if host in lookup.profile_files(process_environment()):
        login = load(host, None, assignments).site.login
        if login.host:
            return login._replace(host=check_host(login.host, "login.host"))
    return load(site, None, assignments).site.login._replace(host=host)


class Budget:
    """How many new logins a cluster has seen in the last hour, by a file that all of this user's processes share."""

    def __init__(self, path: Path, most: int) -> None:
        self.path, self.most = path, most

    def left(self, now: float) -> int:
        """Return the number of logins that are still allowed now."""
        with self._last_hour(now) as logins:
            return max(0, self.most - len(logins))

    def spend(self, now: float) -> None:
        """Note a login."""
        with self._last_hour(now) as logins:
            logins.append(now)

    def refund(self, now: float) -> None:
        """Take back the note of a login that did not get as far as the other side's question who we are."""
        with self._last_hour(now) as logins, contextlib.suppress(ValueError):
            logins.remove(now)

    def free_at(self, now: float) -> float:
        """Return the time at which the next login is allowed."""
        with self._last_hour(now) as logins:
            recent = sorted(logins)
        return now if len(recent) < self.most else recent[-self.most] + HOUR if self.most else now + HOUR

    @contextlib.contextmanager
    def _last_hour(self, now: float) -> Iterator[list[float]]:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                logins = [float(moment) for moment in json.loads(file.read() or "[]")]
            except (ValueError, TypeError, RecursionError):
                logins = []  # not ours to mend, and the next line writes it anew
            logins = [moment for moment in logins if abs(now - moment) < HOUR]
            before = list(logins)
            yield logins
            if logins != before:
                file.seek(0)
                file.truncate()
                json.dump(logins, file)


def failure(complaint: str, host: str, renew: str = "") -> HpcmlError:
    """Return the error that an ssh that did not get through meant by its last words."""
    quote = tuple(line for line in complaint.splitlines() if line.strip())[-14:]
    if re.search(_HOST_KEY, complaint):
        message = f"The host key of {host}, or of a jump host before it, has changed"
        hint = "If the site announced new keys, remove the old key (ssh-keygen -R HOST). "
        hint += "If the site announced no new keys, report the change to the site."
        return HostKeyError(message, place=host, hint=hint, quote=quote)
    if re.search(_CONFIG, complaint):
        return ConfigError(_REFUSED, place=host, hint=f"Try: ssh -G {host}", quote=quote)
    if re.search(_AUTH, complaint):
        hint = f"Check that your key or certificate is still valid: ssh {host}"
        hint = f"Get a new certificate: {renew}." if renew else hint
        return LoginNeededError(f"{host} refused the login", place=host, hint=hint, quote=quote)
    unreachable = re.search(_NETWORK, complaint)
    message = f"{host} cannot be reached" if unreachable else f"ssh to {host} failed for an unknown reason"
    hint = "Check the network (VPN) and the name of the host. Your runs on the cluster are not affected."
    return LinkError(message, place=host, hint=hint, quote=quote[-3:])


def certificates(settings: Mapping[str, Sequence[str]], seconds: float = _ASK) -> list[float]:
    """Return the times at which the user's certificates for a host end, in seconds since 1970; infinite: never.

    They are those of its ``CertificateFile`` lines, beside its keys, and in the agent.

    Parameters
    ----------
    settings
        The host's settings (:func:`effective`).
    seconds
        How long each question may take.
    """
    named = [*settings.get("certificatefile", []), *(f"{path}-cert.pub" for path in settings.get("identityfile", []))]
    paths = {user_path(name) for name in named if name != "none"}
    ends: list[float] = []
    for path in sorted(paths):
        if path.is_file():
            answer = subprocesses.run(["ssh-keygen", "-L", "-f", str(path)], seconds, program=HPCML)
            ends += validity(answer.out)
    if process_environment().get("SSH_AUTH_SOCK"):
        keys = subprocesses.run(["ssh-add", "-L"], seconds, program=HPCML)
        if keys.code == 0 and "-cert-" in keys.out:
            command = ["ssh-keygen", "-L", "-f", "-"]
            answer = subprocesses.run(command, seconds, program=HPCML, data=keys.out.encode())
            ends += validity(answer.out)
    return ends


def validity(text: str) -> list[float]:
    """Return the ends of the certificates that ``ssh-keygen -L`` describes, in its own local time."""
    ends = []
    for match in re.finditer(r"^\s*Valid: (?:from \S+ to (\S+)|forever)", text, re.MULTILINE):
        if match[1] in (None, "forever"):
            ends.append(float("inf"))
        else:
            zone = calendar.timegm if match[1].endswith("Z") else time.mktime
            ends.append(float(zone(time.strptime(match[1].removesuffix("Z"), "%Y-%m-%dT%H:%M:%S"))))
    return ends


def clock(moment: float, now: float) -> str:
    """Return a moment as the user's clock shows it, with the day if it is not today's."""
    same = time.strftime("%Y%j", time.localtime(moment)) == time.strftime("%Y%j", time.localtime(now))
    return time.strftime("%H:%M" if same else "%Y-%m-%d %H:%M", time.localtime(moment))


def warning(certificates: Sequence[float], until: float | None, now: float, renew: str) -> str:
    """Return the warning of the certificates' end before relying on the link until then, or nothing."""
    if not certificates:
        return ""
    ends = max(certificates)
    again = f": {renew}" if renew else ""
    if ends <= now:
        return f"your ssh certificate expired at {clock(ends, now)}; a new login needs a new certificate{again}"
    if until is not None and ends < until:
        return (
            f"your ssh certificate expires at {clock(ends, now)}, before the run ends ({clock(until, now)}). An "
            f"existing tunnel continues, but a new login needs a new certificate{again}"
        )
    return ""


# -- the connection ----------------------------------------------------------------------------------------------------


def literal(word: str) -> str:
    """Return a word in which ssh finds nothing to replace."""
    return word.replace("%", "%%")


def quoted(text: str) -> str:
    """Return a text as one word of a configuration of ssh or sshd, also with spaces and quotation marks."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def proxy(command: Sequence[str], *, destination: bool = False) -> str:
    """Return a command for ``ProxyCommand``, which ssh hands to a shell: each word quoted, and none of it replaced.

    Parameters
    ----------
    destination
        Whether ``-W`` and the host and port that ssh wants to reach belong to it.
    """
    quoted = [shlex.quote(literal(word)) for word in command]
    if destination:
        quoted[-1:-1] = ["-W", "'[%h]:%p'"]
    return " ".join(quoted)


class Connection:
    """The connection to a cluster's login node; it is opened once and shared by all of the user's hpcml commands.

    Parameters
    ----------
    login
        The cluster: ``login.host`` is what ssh is called with.

    Raises
    ------
    StorageError, ConfigError
        If ssh's folders or the user's ssh configuration are not usable.
    """

    def __init__(self, login: Login) -> None:
        self.login = login
        self.host = login.host
        self.places = places(login.control)
        self.settings = effective(self.host)
        self.file = write_config(self.places.files, self.host, self.settings)
        self.name = key_of(self.host)
        self.control = control_socket(self.places.control, self.name)
        self.budget = Budget(self.places.files / f"{self.name}.logins", login.logins)
        self.log = self.places.files / f"{self.name}.log"
        self._use_own_master()

    @property
    def user(self) -> str:
        """The user's name on the cluster."""
        return self.settings.get("user", [""])[0]

    def _use_own_master(self) -> None:
        """Use the connection that the user's own configuration has open, if its place is safe."""
        control_path = self.settings.get("controlpath", ["none"])[0]
        if control_path == "none" or not Path(control_path).exists() or self.control.exists():
            return
        folder = Path(control_path).parent.stat()
        if folder.st_uid == os.getuid() and not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            hpcmls, self.control = self.control, Path(control_path)
            if not self.alive():
                self.control = hpcmls

    # -- opening ---------------------------------------------------------------------------------------------------

    def alive(self) -> bool:
        """Whether the connection is open here; a dead network is noticed later."""
        return self.control.exists() and subprocesses.run(self._to_control("check"), CHECK, program=HPCML).code == 0

    def open(self, *, ask: bool) -> bool:
        """Open the connection unless it is; return True if that took a login.

        Parameters
        ----------
        ask
            Whether the user is at the terminal and may be asked by ssh.

        Raises
        ------
        LoginNeededError
            If the other side does not let us in, or this hour's logins are used up.
        HostKeyError
            If a host's key is not the known one.
        LinkError
            If the other side cannot be reached.
        """
        if self.alive():
            return False
        with locked(self.places.files / f"{self.name}.lock"):  # of several tunnels, one logs in
            return not self.alive() and self._open(ask=ask)

    def _open(self, *, ask: bool) -> bool:
        now = time.time()
        if self.budget.left(now) == 0:
            when = clock(self.budget.free_at(now), now)
            many = f"hpcml tried to log in to {self.host} {self.login.logins} times within an hour"
            message = f"{many}, and does not try again yet: sites block users who log in too often"
            raise LoginNeededError(message, place="login.logins", hint=f"Try again after {when}.")
        self.control.unlink(missing_ok=True)  # left by one that was killed
        self.budget.spend(now)
        complaint, code = self._log_in(ask=ask)
        if code == 0 and self.alive():
            return True
        error = failure(complaint, self.host, self.login.renew)
        if isinstance(error, LinkError):
            self.budget.refund(now)
        raise error

    def _log_in(self, *, ask: bool) -> tuple[str, int | None]:
        """Start ssh in the background; return its output and exit status."""
        self.log.unlink(missing_ok=True)
        settings = options(
            ControlMaster="yes",
            ControlPersist=str(PERSIST),
            ClearAllForwardings="yes",
            BatchMode="no" if ask else "yes",
        )
        files = ["-F", str(self.file), "-S", literal(str(self.control)), "-E", str(self.log)]
        command = ["ssh", *files, "-fNT", *settings, "--", self.host]
        if ask:
            code: int | None = subprocesses.interactive(command, program=HPCML)
        else:  # in a session of its own: no jump host can ask on the terminal either
            code = subprocesses.stream(command, OPEN, lambda _: None, program=HPCML).code
        try:
            return self.log.read_text(errors="replace"), code
        except OSError:
            return "", code

    def log_size(self) -> int:
        """Return the number of bytes that the connection has written."""
        try:
            return self.log.stat().st_size
        except OSError:
            return 0

    def log_text(self, begin: int) -> str:
        """Return the last KiB of what the connection has said after so many bytes; the user's own says nothing here."""
        with contextlib.suppress(OSError), open(self.log, "rb") as file:
            file.seek(max(begin, file.seek(0, os.SEEK_END) - 1024))
            return file.read(1024).decode(errors="replace")
        return ""

    # -- using -----------------------------------------------------------------------------------------------------

    def command(self, arguments: Sequence[str], control: Path | None = None) -> list[str]:
        """Return the arguments that run a command on the login node; without the connection they fail at once.

        ``control`` is the control socket of another open connection, where the command is to go over that one.
        """
        return self._command(shlex.join(arguments), control)

    def hpcml(self, *arguments: str) -> list[str]:
        """Return the arguments that run the cluster's own hpcml; ``login.hpcml`` may hold options."""
        program = _FIND.replace("PROGRAM", "hpcml") if self.login.hpcml == "hpcml" else self.login.hpcml
        return self._command(f"{program} {shlex.join(arguments)}")

    def python(self, *arguments: str) -> list[str]:
        """Return the arguments that run a Python 3 of the cluster, which may be too old for hpcml."""
        return self._command(f"{_FIND.replace('PROGRAM', 'python3')} {shlex.join(arguments)}")

    def _command(self, text: str, control: Path | None = None) -> list[str]:
        return [*self.over(control), "-T", "--", self.host, text]

    def run(self, arguments: Sequence[str], timeout: float = 60.0, data: bytes = b"") -> subprocesses.Answer:
        """Run the arguments of :meth:`command` or :meth:`hpcml` and return the answer.

        Raises
        ------
        LinkError
            If the connection is gone, or the command did not end in time.
        """
        answer = subprocesses.run(arguments, timeout, program=HPCML, data=data)
        if answer.code is None or (answer.code == 255 and not self.alive()):
            raise self.gone(answer.err)
        return answer

    def check_shell(self) -> None:
        """Raise ConfigError if the login shell does not run a command: a startup file exits or starts another shell."""
        word = secrets.token_hex(8)
        answer = subprocesses.run(self.command(["echo", word]), CHECK, program=HPCML)
        if answer.code is None or word in answer.out or not self.alive():
            return  # who called says that it is slow, or that the connection is lost
        message = f"The login shell on {self.host} ran no command: it exited with status {answer.code}"
        hint = "A startup file there, such as ~/.bashrc, exits or starts another shell. "
        hint += "Put this line behind a test for interactive shells: [[ $- == *i* ]] && exec zsh. "
        hint += f"Then try: ssh {self.host} echo test"
        quote = tuple((answer.out + answer.err).strip().splitlines()[-3:])
        raise ConfigError(message, place=self.host, hint=hint, quote=quote)

    def gone(self, complaint: str = "") -> LinkError:
        """Return the error for a connection that is lost."""
        quote = tuple(complaint.splitlines()[-3:])
        return LinkError(f"The connection to {self.host} was lost", place=self.host, hint="Try again.", quote=quote)

    # -- forwards --------------------------------------------------------------------------------------------------

    def forward(self, port: int, target: str, control: Path | None = None) -> bool:
        """Have 127.0.0.1:PORT lead to a unix socket beyond a connection; return True if ssh listens there now.

        That the target answers is not known then: ssh looks when somebody connects.
        """
        command = self._forwarding("forward", port, target, control)
        return subprocesses.run(command, CHECK, program=HPCML).code == 0

    def cancel(self, port: int, target: str, control: Path | None = None) -> None:
        """Take a forward back; one that has gone with its connection is no error."""
        with contextlib.suppress(HpcmlError):
            subprocesses.run(self._forwarding("cancel", port, target, control), CHECK, program=HPCML)

    def _forwarding(self, verb: str, port: int, target: str, control: Path | None) -> list[str]:
        return [*self.over(control), "-O", verb, "-L", f"127.0.0.1:{port}:{target}", "--", self.host]

    def _to_control(self, verb: str) -> list[str]:
        return [*self.over(), "-O", verb, "--", self.host]

    def over(self, control: Path | None = None) -> list[str]:
        """Return ssh and the options that hold it to an open connection: this one, or another by its control socket."""
        # No configuration file: it could ask for forwards of its own. ProxyCommand=false: without the connection ssh
        # would log in by itself.
        settings = options(ControlMaster="no", ProxyCommand="false", BatchMode="yes")
        return ["ssh", "-F", "none", "-S", literal(str(control or self.control)), *settings]
