"""The laptop's part of ``hpcml --host``: a call of the login node's hpcml."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Literal, TextIO

from hpcml import __version__, earlier_names, subprocesses
from hpcml.config_trust import HPCML
from hpcml.errors import (
    ANSWER_LOST,
    ConfigError,
    HpcmlError,
    LinkError,
    NotFoundError,
)
from hpcml.remote import answers
from hpcml.remote.answers import GO, PROTOCOL, SERVE, CallFacts, StreamDemux
from hpcml.remote.ssh import Connection
from hpcml.remote.transfer import PIECE, send
from hpcml.remote.upload import Upload
from hpcml.runs import notes
from hpcml.sites.schema import Login
from hpcml.terminal import Raw, noted, say
from hpcml.units import format_bytes

INTERRUPTED = 10.0  # seconds that the other side has to end after Ctrl-C where a run is in its hands
LEFT = 1.0  # and where none is
LAST_WORDS = 10.0  # seconds without a byte after its exit status: who holds its output open then is none of ours
SILENCE = 300.0  # seconds without a byte of what is sent or fetched: its file system may be slow
MOST_FACTS = 100  # beside those of a tunnel's feed
GREETING = 300.0  # seconds for the other side's hpcml to begin: its Python may come from a slow file system
QUIET = 5.0  # seconds after which it is checked whether the login shell runs commands at all
MOST_BEFORE = 1 << 20  # bytes that a shell may say before that
MOST_GREETING = 100  # lines that are shown of that
MOST_SAID = 64 << 20  # bytes of both its streams, of a command whose output is an answer
MOST_KEPT = 1 << 16  # characters of what it says that nobody is shown


def _inert(header: Mapping[str, Any]) -> bytes:
    """Return a line of JSON in which a shell that reads it, in the place of hpcml, finds nothing to run."""
    line = json.dumps(header)  # the other characters that a shell obeys are between double quotes
    return line.replace("$", "\\u0024").replace("`", "\\u0060").encode() + b"\n"


def connect(login: Login) -> Connection:
    """Return an open connection; ssh may ask where both ends of the terminal are a person's."""
    connection = Connection(login)
    connection.open(ask=sys.stdin.isatty() and sys.stderr.isatty())
    return connection


class Guard:
    """Passes on what the other machine says; on a terminal, with escape sequences made visible."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.raw = stream, Raw(stream)

    def __call__(self, data: bytes) -> None:
        """Write a piece."""
        # Not through the stream itself, whose lock a thread may not hold while the interpreter ends.
        data = self.raw.visible(data)
        self.stream.flush()
        while data:
            data = data[os.write(self.stream.fileno(), data) :]


class Call:
    """The login node's hpcml at work for us: its standard error, its facts and its end.

    Parameters
    ----------
    words
        The command and what follows it, as typed. They go by standard input: no shell sees them.
    show
        Called with what it says on standard error; without it :attr:`errors` holds the last of that.
    upload
        What is sent with it.
    out
        Where its standard output goes (:class:`hpcml.subprocesses.Child`).
    most
        How many bytes are passed on of both its streams; without a limit those of a command that runs on.
    """

    def __init__(
        self,
        connection: Connection,
        arguments: Sequence[str],
        show: Callable[[bytes], object] | None = None,
        *,
        upload: Upload | None = None,
        out: int = subprocesses.NOWHERE,
        most: float = MOST_SAID,
    ) -> None:
        self._most = self._left = most
        self.connection, self.words, self.upload = connection, list(arguments), upload
        self.show = show or self._keep
        self.nonce = secrets.token_hex(8)
        self.facts: CallFacts = {}
        self.news = threading.Event()  # set with each fact, and at the end
        self._kept = ""
        self.wrong: ConfigError | None = None
        self._facts_left = MOST_FACTS
        self.held: bytes | None = b""  # what was said before the greeting, which may be a shell's
        self._demux = StreamDemux(self.nonce, connection.host)
        self.child = subprocesses.Child(connection.hpcml(SERVE), self._hear, out, program=HPCML)

    @property
    def code(self) -> int | None:
        """The exit status of ssh, None while it runs."""
        return self.child.code

    @property
    def errors(self) -> str:
        """What it said that nobody was shown, and what ssh or a shell said before it began."""
        return (self.held or b"").decode(errors="replace") + self._kept

    # -- what it says ------------------------------------------------------------------------------------------------

    def _keep(self, data: bytes) -> None:
        self._kept = (self._kept + data.decode(errors="replace"))[-MOST_KEPT:]

    def _hear(self, data: bytes) -> bool:
        """Take in a piece of standard error; return True if the other side does not keep to the form."""
        arrived = None
        try:
            plain, arrived = self._demux.feed(data, last=not data)
            for fact in arrived:
                self._learn(fact)
            if self.held is not None:
                self.held += plain
                if len(self.held) > MOST_BEFORE:
                    raise talks_on(self.connection.host)
            elif plain:
                self._count(plain)
                self.show(plain)
        except ConfigError as error:
            self.wrong = error  # raised by whoever asks for a fact or the end
        if arrived or not data or self.wrong:
            self.news.set()
        return self.wrong is not None

    def _count(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            problem = f"its output has more than {format_bytes(self._most)}"
            raise answers.wrong(self.connection.host, problem)

    def pass_on(self, source: IO[bytes], show: Callable[[bytes], object]) -> None:
        """Pass on its standard output as it comes, when it has begun; a reader of ours that has gone gets no more."""
        try:
            self._pass_on(source, show)
        except ConfigError as error:
            self.wrong = error  # raised by whoever asks for the end
            self.child.kill()

    def _pass_on(self, source: IO[bytes], show: Callable[[bytes], object]) -> None:
        before, has_begun = b"", False
        with contextlib.suppress(OSError, ValueError):
            silent = 0.0
            while silent < LAST_WORDS:
                pause = 0.1 if before else 1.0
                if select.select([source], [], [], pause)[0]:
                    if not (data := os.read(source.fileno(), PIECE)):
                        break
                    before += data
                    silent = 0.0
                elif "exit_status" in self.facts:
                    silent += pause
                if not has_begun and (own := self.own_output(before)) is not None:
                    before, has_begun = own, True
                if has_begun:
                    self._count(before)
                    show(before)
                    before = b""
                elif len(before) > MOST_BEFORE:
                    raise talks_on(self.connection.host)
            if not has_begun:
                self.child.wait(LAST_WORDS)  # its facts may come after the end of its output
                show(self.own_output(before) or b"")
            return
        source.close()  # so that the other side learns it, as from a pipe of its own

    def own_output(self, output: bytes) -> bytes | None:
        """Return the output of the command, without that of a shell before it; None if it has not begun."""
        before, mark, own = output.partition(answers.output_mark(self.nonce))
        if mark:
            self._greet(before)
            return own
        is_older = self.held is None and not self.facts.get("marked")
        return output if is_older else None

    def _greet(self, before: bytes) -> None:
        """Show what a shell printed as it started; a person sees each line once a day."""
        if isinstance(self.show, Guard) and before.strip():
            lines = before.decode(errors="replace").splitlines()[:MOST_GREETING]
            before = "".join(f"{line}\n" for line in notes.new_today(f"ssh {self.connection.host}", lines)).encode()
        if before:
            self.show(before)

    def _learn(self, fact: CallFacts) -> None:
        if "standing" not in fact:
            self._facts_left -= 1
        if self._facts_left < 0 or ("hello" in fact and self.held is None):
            raise answers.wrong(self.connection.host, "the same message was sent twice")
        if "run" in fact and "run" not in self.facts:
            self.write(GO)
        self.facts |= fact
        if "exit_status" in fact:
            self.child.expect_end(LAST_WORDS)
        if "hello" in fact:
            before, self.held = self.held or b"", None
            self._greet(before)
            if fact["version"] != __version__:
                versions = (
                    f"hpcml has version {__version__} on this machine, but {fact['version']} on {self.connection.host}"
                )
                self.show(f"hpcml: note: {versions}; options may differ.\n".encode())

    def fact(self, name: Literal["socket", "relay"], seconds: float) -> Any:
        """Return a fact once it is there; None if the other side does not say it in time, or has ended.

        Raises
        ------
        ConfigError
            If what it said is malformed.
        """
        deadline = time.monotonic() + seconds
        while name not in self.facts and self.child.wait(0) is None and (left := deadline - time.monotonic()) > 0:
            self.news.wait(min(left, 1.0))
            self.news.clear()
        self.check()
        return self.facts.get(name)

    # -- what it is told ---------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send input; one that has gone does not get it, and its end says why."""
        with contextlib.suppress(OSError, ValueError):
            self.child.write(data)

    def begin(self, *, reads: bool = False) -> None:
        """Send the words and, when the other side's hpcml has begun, the upload: another program may run its lines.

        ``reads``: the caller reads the standard output and limits it, so the first output ends the wait too.
        """
        header: dict[str, Any] = {"protocol": PROTOCOL, "version": __version__, "nonce": self.nonce, "marked": True}
        header |= {"words": self.words, "host": self.connection.host}
        if self.upload:
            header |= {**self.upload.place, "files": self.upload.entries, "folder": self.upload.source}
            header["empty_folders"] = self.upload.folders
        self._send(lambda write: write(_inert(header)))  # where the other side has ended, its own words follow
        self._await_greeting(self.child.out if reads else None)
        if (upload := self.upload) and self.held is None:
            self._send(lambda write: send(upload.folder, upload.entries, write))

    def _send(self, what: Callable[[Callable[[bytes], None]], None]) -> None:
        with contextlib.suppress(OSError), patience(self.child, self.connection.host) as heard:

            def write(piece: bytes) -> None:
                self.child.write(piece)
                heard()

            what(write)

    def _await_greeting(self, output: IO[bytes] | None) -> None:
        """Wait until the other side's hpcml has begun or ended, has sent what is no greeting, or an output.

        Raises
        ------
        ConfigError
            If the login shell does not run commands; LinkError if the greeting does not come in time.
        """
        began, is_checked, host = time.monotonic(), False, self.connection.host
        while self.held is not None and self.wrong is None and self.child.code is None:
            self.news.wait(0.1)
            self.news.clear()
            if output and select.select([output], [], [], 0)[0]:
                return
            waited = time.monotonic() - began
            if waited > QUIET and not is_checked:
                is_checked = True
                self.connection.check_shell()
                text = f"hpcml on {host} has not started within {QUIET:g} s. hpcml waits up to {GREETING:g} s"
                self.show(f"{noted(text)}\n".encode())
            if waited > GREETING:
                message = f"hpcml on {host} did not start within {GREETING:g} s"
                hint = f"The file system on {host} may be slow. Try: ssh {host} hpcml --version"
                raise LinkError(message, place=host, hint=hint)

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
        interrupted = False
        while True:
            try:
                code = self._wait() if not interrupted else self.child.wait(self._last_wait())
                break
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                self.child.hang_up()  # as Ctrl-C there
        self.check()
        if "exit_status" in self.facts:
            return int(self.facts["exit_status"])
        if interrupted or code is None:
            raise KeyboardInterrupt
        raise self._why(code)

    def _last_wait(self) -> float:
        return INTERRUPTED if self.upload or "run" in self.facts else LEFT

    def _wait(self) -> int | None:
        """Wait for its end, however long, but not long once it has said its exit status."""
        while (code := self.child.wait(1.0)) is None:
            if "exit_status" in self.facts:
                return self.child.wait(LAST_WORDS)
        return code

    def check(self) -> None:
        """Raise the ConfigError of an answer that was not in the form, if there was one."""
        if self.wrong is not None:
            raise self.wrong

    def stop(self) -> None:
        """End what is left of it here; it is not heard any more."""
        self.show = lambda _: None
        self.child.stop()

    def _why(self, code: int) -> HpcmlError:
        """Return the error for its end without a status."""
        host, held = self.connection.host, self.held
        quote = tuple((held or b"").decode(errors="replace").strip().splitlines()[-3:])
        if not self.connection.alive():
            return self._lost(f"The connection to {host} was lost")
        if held is None:
            return self._lost(f"hpcml on {host} exited with status {code} without a message")
        if code != 255:
            self.connection.check_shell()
        if code in (126, 127):
            hint = f"Install hpcml on {host}, or set its path (login.hpcml in ~/.config/hpcml/config.toml, or --set)."
            return NotFoundError(f"hpcml is not installed on {host}", place="login.hpcml", hint=hint, quote=quote)
        if code == 255:
            hint = f"Close other ssh sessions to {host}, or ask the site about MaxSessions."
            return LinkError(
                f"{host} allows no further session on this ssh connection", place=host, hint=hint, quote=quote
            )
        hint = f"This machine has hpcml {__version__}. Install this version on {host},"
        hint += " or set login.hpcml to the path of another hpcml."
        message = f"hpcml on {host} cannot be called from a laptop: its version differs, or the program is not hpcml"
        return ConfigError(message, place="login.hpcml", hint=hint, quote=quote)

    def _lost(self, message: str) -> HpcmlError:
        host, run = self.connection.host, self.facts.get("run")
        if "submitted" in self.facts:
            hint = f"The run continues. Reconnect: hpcml --host {host} logs -f {run}."
            return LinkError(message, place=host, hint=hint)
        if run:
            message += "; the run may have been submitted"
            hint = f"hpcml did not submit the run again. Check the run's state: hpcml --host {host} status {run}."
            return HpcmlError(message, place=host, hint=hint, exit_status=ANSWER_LOST)
        submits = {*self.words[:1]} & {"submit", "jupyter", *earlier_names.both("interconnect")}
        nothing = "Nothing was submitted. " if submits else ""
        return LinkError(message, place=host, hint=f"{nothing}Try again.")


def run(
    connection: Connection,
    arguments: Sequence[str],
    upload: Upload | None = None,
    *,
    most: float = MOST_SAID,
    show: Callable[[bytes], object] | None = None,
) -> int:
    """Run a command of the login node's hpcml, ``show`` its output, at ``most`` so much, and return its exit status."""
    call = Call(connection, arguments, Guard(sys.stderr), upload=upload, out=subprocesses.PIPE, most=most)
    reader = threading.Thread(target=call.pass_on, args=(call.child.out, show or Guard(sys.stdout)), daemon=True)
    reader.start()
    try:
        call.begin()
        status = call.end()
        reader.join()
        call.check()
    except KeyboardInterrupt:
        if not upload:
            raise
        run_id = call.facts.get("run")
        advice = "nothing was submitted"
        if run_id:
            advice = "the run may have been submitted. "
            advice += f"Check the run's state: hpcml --host {connection.host} status {run_id}"
        say("", sys.stderr)
        say(f"Interrupted; {advice}.", sys.stderr)
        return 130
    finally:
        call.stop()
    if status == 130 and "submitted" in call.facts:
        command = f"hpcml --host {connection.host} logs -f {call.facts['run']}"
        say(f"To follow the run from this machine: {command}", sys.stderr)
    elif status == 130 and upload:
        say("Nothing was submitted.", sys.stderr)
    return status


@contextlib.contextmanager
def patience(child: subprocesses.Child, host: str) -> Iterator[Callable[[], None]]:
    """Yield the function to call with each sign of life of the other side; LinkError if there is none for too long."""
    try:
        with child.patience(SILENCE) as heard:
            yield heard
    except subprocesses.SilentError:
        hint = f"The file system on {host} may be slow. Try: ssh {host} ls."
        raise LinkError(f"{host} has not answered for {SILENCE:g} s", place=host, hint=hint) from None


def marked_line(source: IO[bytes], mark: bytes, longest: int, host: str) -> bytes | None:
    """Return the next line with a mark, without it; None at the end. What a shell says before is skipped.

    Raises
    ------
    ConfigError
        If that is more than a shell says.
    """
    before = 0
    while line := source.readline(longest):
        if line.startswith(mark):
            return line[len(mark) :]
        before += len(line)
        if before > MOST_BEFORE:
            raise talks_on(host)
    return None


def talks_on(host: str) -> ConfigError:
    """Return the error for a login node that says more before its hpcml begins than a shell does."""
    return answers.wrong(host, "too much other text (for example from shell startup files) comes before the message")
