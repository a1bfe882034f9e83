"""A Dask cluster that starts when the script opens its first client: how it is asked for, awaited and found.

A script that does not name Dask begins as soon as its node is there, and has the node's GPUs and memory for itself.
The scheduler's and the workers' roles wait, and do not import Dask. If the script opens a client nevertheless, a file
of the attempt, which only the user can write, asks for the cluster. The supervisor then starts it with the deadlines
and checks of every run, and writes the variables with which clients find it.
"""

from __future__ import annotations

import os
import time

from hpcml.node import shared_files
from hpcml.node.context import Context, load

VARIABLE = "DASK_SCHEDULER_ADDRESS"
# In the place of the scheduler's address until there is one. A client that hpcml does not replace fails at once: Dask
# knows no such protocol. Without a word for the address it would start a cluster of its own on one node.
ADDRESS = "hpcml-late://cluster"
_RUNS_OWN = ("DASK_", "HPCML_")  # what else the script has chosen, stays
MARGIN = 30.0  # seconds beyond the deadlines by which the supervisor has answered or ended the run


def is_late() -> bool:
    """Whether the run's cluster has not started, as far as this process knows."""
    return os.environ.get(VARIABLE) == ADDRESS


def answer(context: Context, environment: dict[str, str]) -> None:
    """In the supervisor: say that the cluster is ready, with the variables by which clients find it."""
    changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    shared_files.write_json(context.attempt.cluster, {"environment": changed})


def have_started() -> bool:
    """In the script or a process of it: have the cluster started if it is not; return True if this call did so.

    Raises
    ------
    TimeoutError
        If the supervisor neither answers nor ends the run.
    """
    if not is_late():
        return False
    import dask.config

    from hpcml.node.script import interpreter_state

    context = load()
    attempt, deadlines = context.attempt, context.settings.deadlines
    is_first = not attempt.cluster_wanted.exists()
    if is_first:
        shared_files.write_json(attempt.cluster_wanted, {"pid": os.getpid()})
    longest = deadlines.scheduler + deadlines.workers + deadlines.interconnect + MARGIN
    if not shared_files.wait_for(
        attempt.cluster, time.monotonic() + longest, shared_files.interval(context.settings.job.nodes)
    ):
        raise TimeoutError(f"the run's Dask cluster did not start within {longest:g} s")
    given: dict[str, str] = (shared_files.read_json(attempt.cluster) or {})["environment"]
    variables = {name: value for name, value in given.items() if name.startswith(_RUNS_OWN) or name not in os.environ}
    os.environ.update(variables)
    if interpreter_state.BEFORE:  # they are the run's, and no change of the script's
        interpreter_state.BEFORE["environment"].update(variables)
    dask.config.update(dask.config.config, dask.config.collect_env(variables), priority="new")
    return is_first
