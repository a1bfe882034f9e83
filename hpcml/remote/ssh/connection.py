"""The way to a cluster: one authenticated connection of the OpenSSH program, and all else over it.

Who can answer questions (a one-time password, a host key) answers ssh's own, on the terminal. All that follows goes
over that connection's control socket and is told to fail rather than to log in again, so a command, a copy, a forward
or an hour of waiting adds no login.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from hpcml import subprocesses
from hpcml.errors import HpcmlError, LinkError, LoginNeededError
from hpcml.remote.ssh import config
from hpcml.remote.ssh import login as ssh_login
from hpcml.sites.schema import Login

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


def literal(word: str) -> str:
    """Return a word in which ssh finds nothing to replace."""
    return word.replace("%", "%%")


def proxy(words: Sequence[str], *, destination: bool = False) -> str:
    """Return a command for ``ProxyCommand``, which ssh hands to a shell: each word quoted, and none of it replaced.

    Parameters
    ----------
    destination
        Whether ``-W`` and the host and port that ssh wants to reach belong to it.
    """
    quoted = [shlex.quote(literal(word)) for word in words]
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
        self.places = config.places(login.control)
        self.settings = config.effective(self.host)
        self.file = config.write(self.places.files, self.host, self.settings)
        self.name = config.key(self.host)
        self.control = config.control_socket(self.places.control, self.name)
        self.budget = ssh_login.Budget(self.places.files / f"{self.name}.logins", login.logins)
        self.log = self.places.files / f"{self.name}.log"
        self._use_own_master()

    @property
    def user(self) -> str:
        """The user's name on the cluster."""
        return self.settings.get("user", [""])[0]

    def _use_own_master(self) -> None:
        """Use the connection that the user's own configuration has open, if it is safe where it lies."""
        own = self.settings.get("controlpath", ["none"])[0]
        if own == "none" or not Path(own).exists() or self.control.exists():
            return
        folder = Path(own).parent.stat()
        if folder.st_uid == os.getuid() and not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            hpcmls, self.control = self.control, Path(own)
            if not self.alive():
                self.control = hpcmls

    # -- opening ---------------------------------------------------------------------------------------------------

    def alive(self) -> bool:
        """Whether the connection is open here; a dead network is noticed later."""
        return self.control.exists() and subprocesses.run(self._to_control("check"), CHECK).code == 0

    def open(self, *, ask: bool) -> bool:
        """Open the connection unless it is; return whether that took a login.

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
        with config.locked(self.places.files / f"{self.name}.lock"):  # of several tunnels, one logs in
            return not self.alive() and self._open(ask=ask)

    def _open(self, *, ask: bool) -> bool:
        now = time.time()
        if self.budget.left(now) == 0:
            when = ssh_login.clock(self.budget.free_at(now), now)
            many = f"There were {self.login.logins} logins to {self.host} within an hour"
            message = f"{many}, and sites block who logs in too often"
            raise LoginNeededError(message, place="login.logins", hint=f"Try again after {when}.")
        self.control.unlink(missing_ok=True)  # left by one that was killed
        self.budget.spend(now)
        complaint, code = self._log_in(ask=ask)
        if code == 0 and self.alive():
            return True
        error = ssh_login.failure(complaint, self.host, self.login.renew)
        if isinstance(error, LinkError):
            self.budget.refund(now)
        raise error

    def _log_in(self, *, ask: bool) -> tuple[str, int | None]:
        """Start ssh in the background; return what it said and how the start ended."""
        self.log.unlink(missing_ok=True)
        settings = config.options(
            ControlMaster="yes",
            ControlPersist=str(PERSIST),
            ClearAllForwardings="yes",
            BatchMode="no" if ask else "yes",
        )
        files = ["-F", str(self.file), "-S", literal(str(self.control)), "-E", str(self.log)]
        words = ["ssh", *files, "-fNT", *settings, "--", self.host]
        if ask:
            code: int | None = subprocesses.interactive(words)
        else:  # in a session of its own: no jump host can ask on the terminal either
            code = subprocesses.stream(words, OPEN, lambda _: None).code
        try:
            return self.log.read_text(errors="replace"), code
        except OSError:
            return "", code

    # -- using -----------------------------------------------------------------------------------------------------

    def command(self, words: Sequence[str], control: Path | None = None) -> list[str]:
        """Return the arguments that run a command on the login node; without the connection they fail at once.

        ``control`` is the control socket of another open connection, where the command is to go over that one.
        """
        return self._command(shlex.join(words), control)

    def hpcml(self, *words: str) -> list[str]:
        """Return the arguments that run the cluster's own hpcml; ``login.hpcml`` may hold options."""
        program = _FIND.replace("PROGRAM", "hpcml") if self.login.hpcml == "hpcml" else self.login.hpcml
        return self._command(f"{program} {shlex.join(words)}")

    def python(self, *words: str) -> list[str]:
        """Return the arguments that run a Python 3 of the cluster, which may be too old for hpcml."""
        return self._command(f"{_FIND.replace('PROGRAM', 'python3')} {shlex.join(words)}")

    def _command(self, text: str, control: Path | None = None) -> list[str]:
        return [*self.over(control), "-T", "--", self.host, text]

    def run(self, arguments: Sequence[str], timeout: float = 60.0, data: bytes = b"") -> subprocesses.Answer:
        """Run the arguments of :meth:`command` or :meth:`hpcml` and return the answer.

        Raises
        ------
        LinkError
            If the connection is gone, or the command did not end in time.
        """
        answer = subprocesses.run(arguments, timeout, data=data)
        if answer.code is None or (answer.code == 255 and not self.alive()):
            raise self.gone(answer.err)
        return answer

    def gone(self, complaint: str = "") -> LinkError:
        """Return the error for a connection that is lost."""
        quote = tuple(complaint.splitlines()[-3:])
        return LinkError(f"The connection to {self.host} is gone", place=self.host, hint="Try again.", quote=quote)

    # -- forwards --------------------------------------------------------------------------------------------------

    def forward(self, port: int, target: str, control: Path | None = None) -> bool:
        """Have 127.0.0.1:PORT lead to a unix socket beyond a connection; return whether ssh listens there now.

        That the target answers is not known then: ssh looks when somebody connects.
        """
        return subprocesses.run(self._forwarding("forward", port, target, control), CHECK).code == 0

    def cancel(self, port: int, target: str, control: Path | None = None) -> None:
        """Take a forward back; one that has gone with its connection is no error."""
        with contextlib.suppress(HpcmlError):
            subprocesses.run(self._forwarding("cancel", port, target, control), CHECK)

    def _forwarding(self, verb: str, port: int, target: str, control: Path | None) -> list[str]:
        return [*self.over(control), "-O", verb, "-L", f"127.0.0.1:{port}:{target}", "--", self.host]

    def _to_control(self, verb: str) -> list[str]:
        return [*self.over(), "-O", verb, "--", self.host]

    def over(self, control: Path | None = None) -> list[str]:
        """Return ssh and the options that hold it to an open connection: this one, or another by its control socket."""
        # No configuration file: it could ask for forwards of its own. ProxyCommand=false: without the connection ssh
        # would log in by itself.
        settings = config.options(ControlMaster="no", ProxyCommand="false", BatchMode="yes")
        return ["ssh", "-F", "none", "-S", literal(str(control or self.control)), *settings]
