"""The interpreter that waits for its script, as the supervisor has it: the run's own, or in a hold the next run's."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpcml.node.script import launcher, prestarted_script
from hpcml.settings import Code

ROOM = 1 << 20  # bytes that its pipe may hold: what it is sent fits, so that the supervisor never waits for it


class Ready(NamedTuple):
    """An interpreter that waits, and the pipe that tells it its script."""

    process: subprocess.Popen[bytes]
    pipe: int
    number: int  # the pipe's descriptor in that process
    is_of_run: bool  # whether it imports for the script that it becomes
    log_begin: int = 0  # bytes of the run's log before it started

    def take(self, command: Sequence[str], environment: Mapping[str, str], code: Code, *, waits: bool) -> bool:
        """Have it become a script's; return False if that cannot be, and end it then.

        With ``waits`` the script's first line runs when another byte comes. One that still imports for the script of
        another run ends: what goes wrong there would count as this script's.
        """
        variables = {**environment, **({launcher.BEGIN: str(self.number)} if waits else {})}
        sent = prestarted_script.message([*command], variables, code.cwd, code.umask)
        with contextlib.suppress(OSError):  # it has ended, or does not read
            is_able = self.process.poll() is None and self._has_imported() and os.access(code.cwd, os.X_OK)
            if is_able and os.write(self.pipe, sent) == len(sent):
                return True
        self.end()
        return False

    def _has_imported(self) -> bool:
        """Whether it has read what was in its pipe from the start, or may still import."""
        return self.is_of_run or fcntl.ioctl(self.pipe, termios.FIONREAD, bytes(4)) == bytes(4)

    def end(self) -> None:
        """End it, and what Python's start or an import began."""
        os.close(self.pipe)
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
