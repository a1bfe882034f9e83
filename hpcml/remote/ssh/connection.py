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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpcml import subprocesses
from hpcml.errors import HpcmlError, LinkError, LoginNeededError, StorageError
from hpcml.remote.ssh import config
from hpcml.remote.ssh import login as ssh_login
from hpcml.sites.schema import Login

PERSIST = 600  # seconds that an idle connection stays for the next command
CHECK = 10.0  # seconds for a question to the local end of the connection
OPEN = 60.0  # seconds for a login that asks nobody


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
    said = [shlex.quote(literal(word)) for word in words]
    if destination:
        said[-1:-1] = ["-W", "'[%h]:%p'"]
    return " ".join(said)


class Connection:
    """The connection to a cluster's login node; it is opened once and shared by all of the user's hpcml commands.

    Parameters
    ----------
    login
        The cluster: ``login.host`` is what ssh is called with.
    environment
        This process's environment.
    clock
        Seconds since 1970, for the budget of logins.

    Raises
    ------
    StorageError, ConfigError
        If ssh's folders or the user's ssh configuration are not usable.
    """

    def __init__(self, login: Login, environment: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self.login, self.environment, self.clock = login, dict(environment), clock
        self.host = login.host
        self.places = config.places(environment, login.control)
        self.known = config.effective(self.host, self.environment)
        self.file = config.write(self.places.files, self.host, environment, self.known)
        self.name = config.key(self.host)
        self.control = config.control_socket(self.places.control, self.name)
        self.budget = ssh_login.Budget(self.places.files / f"{self.name}.logins", login.logins)
        self.log = self.places.files / f"{self.name}.log"
        self._use_own_master()

    @property
    def user(self) -> str:
        """The user's name on the cluster."""
        return self.known.get("user", [""])[0]

    def _use_own_master(self) -> None:
        """Use the connection that the user's own configuration has open, if it is safe where it lies."""
        own = self.known.get("controlpath", ["none"])[0]
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
        return self.control.exists() and subprocesses.run(self._to_control("check"), self.environment, CHECK).code == 0

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
        now = self.clock()
        if self.budget.left(now) == 0:
            when = ssh_login.clock(self.budget.free_at(now), now)
            many = f"There were {self.login.logins} logins to {self.host} within an hour"
            words = f"{many}, and sites block who logs in too often"
            raise LoginNeededError(words, place="login.logins", hint=f"Try again after {when}.")
        with contextlib.suppress(FileNotFoundError):
            self.control.unlink()  # left by one that was killed
        self.budget.spend(now)
        said, code = self._log_in(ask=ask)
        if code == 0 and self.alive():
            return True
        error = ssh_login.failure(said, self.host, self.login.renew)
        if isinstance(error, LinkError):
            self.budget.refund(now)
        raise error

    def _log_in(self, *, ask: bool) -> tuple[str, int | None]:
        """Start ssh in the background; return what it said and how the start ended."""
        with contextlib.suppress(FileNotFoundError):
            self.log.unlink()
        words = [
            "ssh",
            "-F",
            str(self.file),
            "-S",
            literal(str(self.control)),
            "-E",
            str(self.log),
            "-fNT",
            "-o",
            "ControlMaster=yes",
            "-o",
            f"ControlPersist={PERSIST}",
            "-o",
            "ClearAllForwardings=yes",
            "-o",
            f"BatchMode={'no' if ask else 'yes'}",
            "--",
            self.host,
        ]
        if ask:
            code: int | None = subprocesses.interactive(words, self.environment)
        else:  # in a session of its own: no jump host can ask on the terminal either
            code = subprocesses.stream(words, self.environment, OPEN, lambda _: None).code
        try:
            return self.log.read_text(errors="replace"), code
        except OSError:
            return "", code

    def close(self) -> None:
        """End the connection, for all who use it."""
        if self.control.exists():
            subprocesses.run(self._to_control("exit"), self.environment, CHECK)

    # -- using -----------------------------------------------------------------------------------------------------

    def words(self, command: Sequence[str]) -> list[str]:
        """Return the words that run a command on the login node over the connection; without it they fail at once."""
        return [*self._over(self.control), "-T", "--", self.host, shlex.join(command)]

    def hpcml(self, *words: str) -> list[str]:
        """Return the words that run the cluster's own hpcml over the connection; ``login.hpcml`` may hold options."""
        return [*self._over(self.control), "-T", "--", self.host, f"{self.login.hpcml} {shlex.join(words)}"]

    def run(self, command: Sequence[str], timeout: float = 60.0, data: bytes = b"") -> subprocesses.Answer:
        """Run a command on the login node and return its answer.

        Raises
        ------
        LinkError
            If the connection is gone, or the command did not end in time.
        """
        return self.answer(self.words(command), timeout, data)

    def answer(self, words: Sequence[str], timeout: float = 60.0, data: bytes = b"") -> subprocesses.Answer:
        """Run :meth:`words` or :meth:`hpcml`, as :meth:`run` does."""
        answer = subprocesses.run(words, self.environment, timeout, data=data)
        if answer.code is None or (answer.code == 255 and not self.alive()):
            raise LinkError(
                f"The connection to {self.host} is gone",
                place=self.host,
                hint="Try again.",
                quote=tuple(answer.err.splitlines()[-3:]),
            )
        return answer

    def start(self, words: Sequence[str]) -> subprocesses.Child:
        """Start :meth:`words` or :meth:`hpcml` and return it running."""
        return subprocesses.Child(words, self.environment)

    def send(self, folder: Path, target: str, names: Sequence[str] = (".",), timeout: float = 600.0) -> None:
        """Copy files and folders (``names`` in ``folder``) into a folder of the cluster, which is made 0700.

        Raises
        ------
        StorageError
            If it is not all there afterwards; LinkError if the connection is gone.
        """
        quoted = shlex.quote(target)
        remote = ["sh", "-c", f"umask 077 && mkdir -p -- {quoted} && tar -xf - -C {quoted}"]
        local = ["tar", "-cf", "-", "-C", str(folder), "--", *names]
        self._copy(local, self.words(remote), f"{self.host}:{target}", timeout)

    def fetch(self, source: str, folder: Path, names: Sequence[str] = (".",), timeout: float = 3600.0) -> None:
        """Copy files and folders (``names`` in ``source`` on the cluster) into a folder here, which must exist.

        Raises
        ------
        StorageError
            If it is not all there afterwards; LinkError if the connection is gone.
        """
        remote = ["tar", "-cf", "-", "-C", source, "--", *names]
        local = ["tar", "-xf", "-", "--no-same-owner", "-C", str(folder)]
        self._copy(self.words(remote), local, str(folder), timeout)

    def _copy(self, left: list[str], right: list[str], place: str, timeout: float) -> None:
        first, second = subprocesses.pipeline(left, right, self.environment, timeout)
        if first.code == 0 and second.code == 0:
            return
        if not self.alive():
            raise LinkError(f"The connection to {self.host} is gone", place=self.host, hint="Try again.")
        said = (f"{first.err}{second.err}".strip().splitlines() or ["it did not end in time"])[-1]
        raise StorageError(f"The files were not copied: {said}", place=place, hint="Is there room, and may you write?")

    # -- forwards --------------------------------------------------------------------------------------------------

    def forward(self, port: int, target: str, control: Path | None = None) -> str:
        """Have 127.0.0.1:PORT lead to a unix socket (or ``host:port``) beyond a connection; return why not, or nothing.

        That the target answers is not known then: ssh looks when somebody connects.
        """
        done = subprocesses.run(self._forwarding("forward", port, target, control), self.environment, CHECK)
        return "" if done.code == 0 else (done.err.strip().splitlines() or ["no word"])[-1]

    def cancel(self, port: int, target: str, control: Path | None = None) -> None:
        """Take a forward back; one that has gone with its connection is no error."""
        with contextlib.suppress(HpcmlError):
            subprocesses.run(self._forwarding("cancel", port, target, control), self.environment, CHECK)

    def _forwarding(self, verb: str, port: int, target: str, control: Path | None) -> list[str]:
        words = self._over(control or self.control)
        return [*words, "-O", verb, "-L", f"127.0.0.1:{port}:{target}", "--", self.host]

    def _to_control(self, verb: str) -> list[str]:
        return [*self._over(self.control), "-O", verb, "--", self.host]

    def over(self, control: Path | None = None) -> list[str]:
        """Return ssh and the options that hold it to an open connection: this one, or another by its control socket."""
        return self._over(control or self.control)

    @staticmethod
    def _over(control: Path) -> list[str]:
        # No configuration file: it could ask for forwards of its own. ProxyCommand=false: without the connection ssh
        # would log in by itself.
        return [
            "ssh",
            "-F",
            "none",
            "-S",
            literal(str(control)),
            "-o",
            "ControlMaster=no",
            "-o",
            "ProxyCommand=false",
            "-o",
            "BatchMode=yes",
        ]
