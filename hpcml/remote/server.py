"""The login node's part: reads a laptop's words from standard input, runs them as if typed here, says how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcml import __version__
from hpcml.errors import ConfigError, LinkError, StorageError, UsageError
from hpcml.remote.answers import LONGEST_LINE, PROTOCOL, SERVE, mark, output_mark
from hpcml.remote.transfer import PIECE, entries_of, files, parts_of, receive
from hpcml.request.record import RunRequest
from hpcml.runs import pythons
from hpcml.safe_files import parsed
from hpcml.sites.settings_layers import forget, process_environment
from hpcml.workload_forms import Form

GO_DEADLINE = 60.0  # seconds for the laptop to say that it knows the run's id
_UPDATE = "Update hpcml on the laptop or on the cluster, whichever is older."
_OLD = 86400.0  # seconds after which a staging folder was left by one that was killed


class RemoteSession:
    """A laptop that called: what it asked for, and the line to it.

    Parameters
    ----------
    source
        The raw standard input.
    """

    def __init__(self, header: Mapping[str, Any], source: int) -> None:
        self.header, self.source = header, source
        self.arguments = [str(word) for word in header["words"]]
        self.host = str(header.get("host", ""))  # how the laptop names this machine; older versions do not say it
        self.folder = str(header.get("folder", ""))  # the laptop's, with its name, of what it sends
        self.staging: Path | None = None
        self.module = Path()  # where a module is, by its dotted name
        self.cwd: Path | None = None  # in it, where the script is to run; None: itself
        self._go = threading.Event()
        self._quiet = threading.Lock()  # held while the laptop's end may not interrupt
        self._over = self._gone = False

    def say(self, **fields: Any) -> None:
        """Tell the laptop a fact; one that has gone does not hear it."""
        with contextlib.suppress(OSError):
            sys.stderr.flush()
            os.write(2, mark(self.header["nonce"], **fields))

    def read(self, most: int) -> bytes:
        """Return some bytes of the input, none at its end."""
        return os.read(self.source, min(most, PIECE))

    def line(self) -> bytes:
        """Return the next line of the input, without reading beyond it."""
        return _line(self.source)

    def watch(self) -> None:
        """From now on, treat the end of the input (Ctrl-C on the laptop, or a lost link) as Ctrl-C here."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while os.read(self.source, 64):
            self._go.set()
        with self._quiet:
            if not self._over and (main := threading.main_thread().ident) is not None:
                self._gone = True
                signal.pthread_kill(main, signal.SIGINT)
                self._go.set()  # a signal that comes just before a wait begins does not end the wait

    # -- a script ----------------------------------------------------------------------------------------------------

    def stage(self, script: list[str]) -> list[str]:
        """Receive the script and the files around it; return the script's words with its new path.

        A module keeps its name: :meth:`spec` looks for it in what was sent.

        Raises
        ------
        StorageError
            If they cannot be written or did not come whole; nothing of them is left.
        UsageError
            If no script was sent.
        """
        if not self.header.get("script"):
            raise UsageError(
                "The laptop's hpcml sent no script",
                place="hpcml submit",
                hint=_UPDATE,
            )
        entries = entries_of(self.header.get("files"), "the laptop's files")
        folder = _incoming()
        with files(folder):
            self.staging = Path(tempfile.mkdtemp(prefix="from-laptop-", dir=folder))  # 0700
        for entry in entries:
            receive(self.staging, entry, self.read)
        for name in self.header.get("empty_folders", ()):  # older laptops do not send it
            with files(self.staging):
                self.staging.joinpath(*parts_of(str(name))).mkdir(parents=True, exist_ok=True)
        place, cwd = str(self.header["script"]), str(self.header.get("cwd", ""))  # of a project's root
        path = self.staging.joinpath(*(parts_of(place) if cwd else [Path(place).name]))
        if cwd and cwd != ".":
            self.cwd = self.staging.joinpath(*parts_of(cwd))
            with files(self.cwd):
                self.cwd.mkdir(parents=True, exist_ok=True)
        if script[0] != "-m" and not path.is_file():
            raise UsageError(
                "The script is missing from the files that the laptop sent", place=str(self.header["script"])
            )
        self.watch()
        if script[0] == "-m":
            self.module = path
            return script
        return ["--", str(path), *script[2:]] if script[0] == "--" else [str(path), *script[1:]]

    @property
    def folder_of_script(self) -> Path | None:
        """The folder here that a staged script is to run in."""
        return self.cwd or self.staging

    def spec(self, spec: RunRequest) -> RunRequest:
        """Return the request of a staged script: its folder is the staging folder, until the run has its own copy."""
        if self.staging is None:
            return spec
        script = self.module if spec.code.form is Form.MODULE else spec.code.script
        spec = spec.changed(script=script, cwd=self.folder_of_script, staged=True, sources=(), in_place=False)
        spec = spec.changed(root=str(self.staging) if "cwd" in self.header else "")
        return spec.changed(sent_from=self.folder)

    @contextlib.contextmanager
    def handing_over(self, run_id: str) -> Iterator[None]:
        """Tell the laptop the run's id, and hand the run over only when it says that it knows it.

        A laptop that never heard the id can so be sure that nothing was submitted; one that did can ask for that run.

        Raises
        ------
        LinkError
            If it does not say so in time; nothing was submitted.
        """
        self.say(run=run_id)
        if not self._go.wait(GO_DEADLINE) or self._gone:
            raise LinkError("The laptop does not respond, so hpcml submitted no job", place="--host", hint="Try again.")
        with self._quiet:
            yield
        self.say(submitted=run_id)
        self.clean()

    def clean(self) -> None:
        """Remove the staging folder."""
        if self.staging is not None:
            shutil.rmtree(self.staging, ignore_errors=True)

    def end(self, status: int) -> None:
        """Say how the command ended; nothing interrupts any more."""
        with self._quiet:
            self._over = True
        self.clean()
        self.say(exit_status=status)


def serve(call: Callable[[list[str], RemoteSession], int]) -> int:
    """Run what a laptop asks for; return the exit status.

    Parameters
    ----------
    call
        Runs the words of a command line, and prints its errors.

    Raises
    ------
    UsageError
        If no laptop's hpcml is at the other end of standard input.
    ConfigError
        If it has another version of the protocol.
    """
    source = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)  # what is started from here on does not read the laptop's line
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        header = parsed(json.loads, _line(source).decode())
        session = RemoteSession(header, source)
        if header.get("marked"):  # an older laptop does not know it
            os.write(1, output_mark(str(header["nonce"])))
        session.say(hello=PROTOCOL, version=__version__, marked=bool(header.get("marked")))
        protocol = header["protocol"]
    except (ValueError, TypeError, KeyError, OSError) as error:
        hint = "Call hpcml from a laptop: hpcml --host HOST COMMAND."
        raise UsageError(f"Only hpcml on a laptop uses the option {SERVE}", place="hpcml", hint=hint) from error
    if protocol != PROTOCOL:
        session.say(exit_status=ConfigError.exit_status)
        message = f"Protocol version mismatch: laptop {protocol}, cluster {PROTOCOL}"
        raise ConfigError(message, place="hpcml", hint=_UPDATE)
    if session.arguments[:1] not in (["submit"], ["run"], ["fetch"]):
        session.watch()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        forget(pythons.ACTIVE)  # what a login shell activates is no choice of the laptop's user
        home = process_environment().get("HOME", "/")
        with files(Path(home)):
            os.chdir(home)
        status = call(session.arguments, session)
    except BaseException:
        session.clean()
        raise
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    session.end(status)
    return status


def _line(source: int) -> bytes:
    """Return a line, byte by byte: what follows it is not ours yet."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(source, 1)):
        line += byte
        if len(line) > LONGEST_LINE:
            raise ValueError("the line is too long")
    return bytes(line)


def _incoming() -> Path:
    """Return the folder for what laptops send, the user's alone, without what killed ones left there."""
    folder = Path(process_environment().get("HOME", "/nowhere")) / ".hpcml" / "incoming"
    with files(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            hint = "Rename or remove this path."
            raise StorageError("The path is not a folder that you own", place=str(folder), hint=hint)
        folder.chmod(0o700)
        for left in folder.glob("from-laptop-*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - left.lstat().st_mtime > _OLD:
                    shutil.rmtree(left, ignore_errors=True)
    return folder
