"""``hpcml --host HOST top`` on a laptop: the login node looks at the run, and this terminal draws what it says."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcml.cli.top import live
from hpcml.errors import ConfigError
from hpcml.remote import answers, login_call
from hpcml.remote.transfer import PIECE
from hpcml.subprocesses import PIPE
from hpcml.terminal import Raw

if TYPE_CHECKING:
    from argparse import Namespace

    from hpcml.remote.ssh import Connection
    from hpcml.runs.top_view import View

_LOOK = 0.1  # seconds
_LAST_WORDS = 5.0  # seconds for the other end to end after an answer that is no view


def draws_here(command: str, options: Namespace) -> bool:
    """Whether the view is drawn here; elsewhere the other end's own lines are passed on."""
    if command == "status":
        options.once, options.interval = False, None
    return not options.json and sys.stdout.isatty() and (options.once or live.is_live(options))


def watch(connection: Connection, options: Namespace) -> int:
    """Show a run of another machine until it has ended or the user leaves; return the exit status."""
    argv = ["top", "--json", *(["--once"] if options.once else ["--interval", f"{live.interval(options):g}s"])]
    argv += ["--site", options.site] if options.site else []
    argv += [word for assignment in options.set or () for word in ("--set", assignment)]
    said: list[bytes] = []  # shown when the terminal is its user's again
    call = login_call.Call(connection, [*argv, "--", options.run], said.append, out=PIPE)
    assert call.child.out is not None
    reader = _Reader(call)
    status: list[int] = []

    def work(show: Callable[[View], None], poll: Callable[[float], None]) -> None:
        call.begin()
        while reader.alive:
            poll(_LOOK)
            if view := reader.newest():
                show(view)
        if reader.wrong is None:
            status.append(call.end())
        elif call.child.wait(_LAST_WORDS) is None or not call.facts.get("exit_status"):
            raise reader.wrong  # else it was an error of the other end, which has said it in words too
        else:
            status.append(call.facts["exit_status"])

    try:
        if options.once:
            work(live.print_frame, lambda _: None)
            code = 0
        else:
            code = live.on_screen(work)
    finally:
        call.stop()
        raw = Raw(sys.stderr)
        for piece in said:
            raw.write(piece)
    return code or (status[0] if status else 0)


class _Reader:
    """Reads views, a line each, in a thread; of several only the newest is kept."""

    def __init__(self, call: login_call.Call) -> None:
        self.call, self.host = call, call.connection.host
        self.wrong: ConfigError | None = None
        self._views: list[View] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether there may come more, or is more."""
        reads = self._thread.is_alive()  # asked first: the last view may come between the two questions
        return reads or bool(self._views)

    def newest(self) -> View | None:
        """Return the newest view if it was not asked for yet."""
        view = None
        while self._views:
            view = self._views.pop(0)
        return view

    def _read(self) -> None:
        line, has_begun, source = b"", False, self.call.child.out
        assert source is not None
        try:
            while data := source.read1(PIECE):
                line += data
                if not has_begun and (own := self.call.own_output(line)) is not None:
                    line, has_begun = own, True
                if has_begun:
                    *lines, line = line.split(b"\n")
                    self._views += [answers.of_view(view_line, self.host) for view_line in lines[-1:]]
                if len(line) > answers.LONGEST_VIEW:
                    raise answers.wrong(self.host, f"the data for hpcml top has more than {answers.LONGEST_VIEW} bytes")
        except ConfigError as error:
            self.wrong = error
        except (OSError, ValueError):  # the call has ended, and its pipe with it
            return
