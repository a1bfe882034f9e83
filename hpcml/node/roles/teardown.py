"""The end of a run: scheduler and workers are closed within a deadline, the keys removed, the end written."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from hpcml.node import storage
from hpcml.node.outcome import Outcome, say
from hpcml.node.roles.run_state import RunState
from hpcml.node.security import tls

ORDERLY = 2.0  # seconds that scheduler and workers have to close by themselves, a quarter if they never were all up


def tear_down(state: RunState, outcome: Outcome) -> None:
    """Tell the scheduler to close itself and its workers, and wait for both steps within the deadline."""
    start = time.monotonic()
    context = state.context
    storage.write_end(context.run, context.attempt.ended, {"exit_status": outcome.exit_status})
    outcome.write(context, state.warnings, over=False)
    state.closing = True
    state.channel.send(do="close")
    _wait(state, start + (ORDERLY if outcome.phase == "driver" else ORDERLY / 4))
    left = state.steps.alive()
    _force(left, launched=context.settings.launched)
    _wait(state, start + context.settings.teardown_deadline)
    try:
        tls.remove_secrets(context.attempt)
    except OSError as error:  # they open nothing any more, and the script's status stays
        say(context, f"the keys could not be removed: {error}")
    state.events.write("torn-down", seconds=round(time.monotonic() - start, 3), killed=len(left))
    outcome.write(context, state.warnings)
    storage.release(context.run)


def _wait(state: RunState, deadline: float) -> None:
    """Wait for the end of the steps; what the scheduler says meanwhile is written down."""
    while state.steps.alive() and time.monotonic() < deadline:
        state.step()
    if not state.channel.closed:
        state.step()  # its last words


def _force(steps: list[int], *, launched: bool) -> None:
    """End steps that do not end by themselves: srun kills its tasks when told to end; elsewhere it is the group."""
    for pid in steps:
        with contextlib.suppress(ProcessLookupError):
            if launched:
                os.kill(pid, signal.SIGTERM)
            else:
                os.killpg(pid, signal.SIGKILL)
