"""Signals to a process that a role forks for the user's code."""

from __future__ import annotations

import subprocess
import sys

# The first hook runs before the role's own: a signal comes between the fork and the moment at which the fork answers it.
SENT_AT_ONCE = """
import os, signal
from hpcml.node import script_environment

os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
script_environment.answer_no_signals()
if not (pid := os.fork()):
    os._exit(0)
_, status = os.waitpid(pid, 0)
os.kill(os.getpid(), signal.SIGTERM)  # the role itself lets it pass, and holds nothing back any more
print(os.waitstatus_to_exitcode(status), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_a_signal_right_after_a_fork_ends_it() -> None:
    done = subprocess.run([sys.executable, "-c", SENT_AT_ONCE], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "-15 set()\n"
