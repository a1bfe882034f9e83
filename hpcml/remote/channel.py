"""The laptop's part of ``hpcml --host``: one call of the login node's hpcml over the shared ssh connection."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcml import __version__, subprocesses
from hpcml.errors import (
    ANSWER_LOST,
    ConfigError,
    HpcmlError,
    LinkError,
)
from hpcml.remote import answers
from hpcml.remote.protocol import GO, PIECE, PROTOCOL, SERVE, Entry, StreamDemux, listing, send
from hpcml.remote.ssh.connection import Connection
from hpcml.runs.snapshot import take
from hpcml.sites.schema import Code

INTERRUPTED = 10.0  # seconds that the other side has to end after Ctrl-C
GREETING = 300.0  # seconds for the other side's hpcml to begin: its Python may come from a slow file system
MOST_BEFORE = 1 << 20  # bytes that a shell may say before that
_LAST_WORDS = 5.0  # seconds for what is still to be read when ssh has ended


class Upload:
    """The script and the small files around it, copied as a run's snapshot is, ready to be sent.

    Parameters
    ----------
    folder
        An empty folder of the laptop's, for the copy.

    Raises
    ------
    NotFoundError, UsageError
        If the script cannot run; StorageError if it cannot be read or copied.
    """

    def __init__(self, script: Path, folder: Path, code: Code) -> None:
        self.script, self.folder = script.name, folder
        self.taken = take(script, folder, code, linked=False)
        self.entries: list[Entry] = listing(folder)[0]
        self.size = sum(entry.size for entry in self.entries)


class Call:
    """The login node's hpcml at work for us: its standard error and its end are ours to pass on.

    Parameters
    ----------
    words
        The command and what follows it, as typed. They go by standard input: no shell sees them.
    show
        Called with what it says on standard error.
    upload
        What is sent with it.
    capture
        Whether :attr:`out` is to be read; else its output goes where this process's goes, byte by byte.
    """

    def __init__(
        self,
        connection: Connection,
        words: Sequence[str],
        show: Callable[[bytes], object],
        *,
        upload: Upload | None = None,
        capture: bool = False,
    ) -> None:
        self.connection, self.words, self.show, self.upload = connection, list(words), show, upload
        self.nonce = secrets.token_hex(8)
        self.facts: dict[str, Any] = {}
        self.wrong: ConfigError | None = None
        self.held: bytes | None = b""  # what was said before the greeting, which may be a shell's
        self.process = subprocesses.converse(connection.hpcml(SERVE), capture=capture)
        assert self.process.stdin is not None
        self.input = self.process.stdin
        self.out = io.BufferedReader(self.process.stdout) if capture else None  # type: ignore[type-var]
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    # -- what it says ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        assert self.process.stderr is not None
        demux = StreamDemux(self.nonce, self.connection.host)
        descriptor = self.process.stderr.fileno()
        while True:
            data = os.read(descriptor, PIECE)
            try:
                plain, facts = demux.feed(data, last=not data)
            except ConfigError as error:
                self._refuse(error)
                return
            for fact in facts:
                self._learn(fact)
            if self.held is not None:
                self.held += plain
                if len(self.held) > MOST_BEFORE:
                    self._refuse(talks_on(self.connection.host))
                    return
            elif plain:
                self.show(plain)
            if not data:
                return

    def _refuse(self, error: ConfigError) -> None:
        """Listen no more to a machine that does not keep to the form; :meth:`end` raises why."""
        self.wrong = error
        subprocesses.end(self.process)

    def _learn(self, fact: dict[str, Any]) -> None:
        self.facts |= fact
        if "hello" in fact:
            before, self.held = self.held or b"", None
            self.show(before)
            if fact["version"] != __version__:
                versions = f"this is hpcml {__version__}, on {self.connection.host} it is {fact['version']}"
                self.show(f"hpcml: note: {versions}; options may differ.\n".encode())
        if "run" in fact:
            self.write(GO)

    # -- what it is told ---------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send input; one that has gone does not get it, and its end says why."""
        with contextlib.suppress(OSError, ValueError):
            self._write(data)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # a signal may cut a write short
            rest = rest[os.write(self.input.fileno(), rest) :]

    def begin(self) -> None:
        """Send the words and the upload."""
        header: dict[str, Any] = {"protocol": PROTOCOL, "version": __version__, "nonce": self.nonce}
        header |= {"words": self.words}
        if self.upload:
            header |= {"script": self.upload.script, "files": self.upload.entries}
        with contextlib.suppress(OSError):  # the other side has ended: its own words follow
            self._write(json.dumps(header).encode() + b"\n")
            if self.upload:
                send(self.upload.folder, self.upload.entries, self._write)

    # -- its end -----------------------------------------------------------------------------------------------------

    def end(self) -> int:
        """Wait for its end and return its exit status; Ctrl-C means there what it would mean here.

        Raises
        ------
        HpcmlError
            If there is no hpcml, another one, or the link was lost; the sentence says what became of a submission.
        KeyboardInterrupt
            If it did not end after Ctrl-C.
        """
        interrupted, began = False, time.monotonic()
        while True:
            try:
                code = self._wait(began) if not interrupted else subprocesses.ended(self.process, INTERRUPTED)
                break
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                self.hang_up()
        self._listener.join(_LAST_WORDS)
        if self.wrong is not None:
            raise self.wrong
        if "exit_status" in self.facts:
            return int(self.facts["exit_status"])
        if interrupted or code is None:
            raise KeyboardInterrupt
        raise self._why(code)

    def _wait(self, began: float) -> int | None:
        """Wait for its end, however long, but not for its beginning; None if that never came."""
        while (code := subprocesses.ended(self.process, 1.0)) is None:
            if self.held is not None and time.monotonic() - began > GREETING:
                host = self.connection.host
                message = f"The hpcml on {host} did not begin within {GREETING:g} s"
                raise LinkError(message, place=host, hint=f"Is its file system slow? Try: ssh {host} hpcml --version")
        return code

    def hang_up(self) -> None:
        """Let the other side see the end of its input, as after Ctrl-C."""
        with contextlib.suppress(OSError, ValueError):
            self.input.close()

    def close(self) -> None:
        """End what is left of it here; it is not heard any more."""
        self.show = lambda _: None
        self.hang_up()
        subprocesses.end(self.process)
        self._listener.join(_LAST_WORDS)
        if self.out is not None:
            self.out.close()
        if not self._listener.is_alive() and self.process.stderr is not None:
            self.process.stderr.close()

    def _why(self, code: int) -> HpcmlError:
        """Return why it ended without saying its status."""
        host, held = self.connection.host, self.held
        quote = tuple((held or b"").decode(errors="replace").strip().splitlines()[-3:])
        if not self.connection.alive():
            return self._lost(f"The connection to {host} is gone")
        if held is None:
            return self._lost(f"The hpcml on {host} ended with status {code} and did not say why")
        if code in (126, 127):
            return self.connection.no_hpcml(quote)
        if code == 255:
            hint = "Close other sessions to it, or ask the site about MaxSessions."
            return LinkError(f"{host} allows no further session on this connection", place=host, hint=hint, quote=quote)
        hint = f"This is hpcml {__version__}. Install the same there, or name another with login.hpcml."
        message = f"The hpcml on {host} cannot be called from a laptop: it is another version, or not hpcml"
        return ConfigError(message, place="login.hpcml", hint=hint, quote=quote)

    def _lost(self, message: str) -> HpcmlError:
        host, run = self.connection.host, self.facts.get("run")
        if "submitted" in self.facts:
            hint = f"The run goes on. Back to it: hpcml --host {host} logs -f {run}."
            return LinkError(message, place=host, hint=hint)
        if run:
            message += ", and it is not known whether the run was submitted"
            hint = f"It was not sent twice. To find out: hpcml --host {host} status {run}."
            return HpcmlError(message, place=host, hint=hint, exit_status=ANSWER_LOST)
        nothing = "Nothing was submitted. " if self.words[:1] in (["submit"], ["jupyter"], ["fabric"]) else ""
        return LinkError(message, place=host, hint=f"{nothing}Try again.")


def talks_on(host: str) -> ConfigError:
    """Return the error for a login node that says more before its hpcml begins than a shell does."""
    return answers.wrong(host, "it talks without an end before it begins")


def unsent(arguments: Sequence[str], here: Path, sent: Sequence[Entry]) -> list[str]:
    """Return the script's arguments that name something on this laptop which the run will not find by that name.

    The run begins in its copy of the script's folder, so a file that was sent is found there by its relative name.
    """
    names = {entry.name for entry in sent}
    names |= {"/".join(name.split("/")[:end]) for name in names for end in range(1, name.count("/") + 1)}
    missing = []
    for argument in arguments:
        name = argument.partition("=")[2] if argument.startswith("-") else argument
        if not name or name in (".", "..", "/"):
            continue
        with contextlib.suppress(OSError, ValueError):  # too long for a name, or with a zero byte: it names no file
            path = here / name
            if path.exists() and (Path(name).is_absolute() or str(Path(name)) not in names):
                missing.append(argument)
    return missing
