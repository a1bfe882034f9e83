"""How a run starts in a kept allocation: what the owner's command leaves in the hold's folder for its supervisor.

``hold/queue/RUN`` has the :class:`Start` of a run that waits. The supervisor renames the file into ``hold/runs`` when
it starts the run, and ``hpcml cancel`` from there into ``hold/told``. A hold that takes no further run has renamed
``hold/queue`` itself, so that no file gets into it any more. Nobody but the owner can enter these folders.
"""

# No `from __future__ import annotations`: hpcml/typed_json.py reads the types of fields, from texts slowly.
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpcml.paths import RunPaths

AHEAD = "ahead"  # a last word of the command: the batch script starts before its run, whose directory is a line
# A batch script, and beside it a watch on who started it: a pipe. Its death by SIGKILL ends the run too. The watch ends
# with the batch script.
_BATCH_SCRIPT = """
exec {next}<> <(:)
{ while IFS= read -r line; do set -- "$1" "$line"; printf '%s\\n' "$line" >&"$next"; done
  echo >&"$next"
  until for attempt in "$2"/attempts/*/; do : >"${attempt}terminate" || false; done || [ ! -d "$2" ] || ! kill -0 $$
  do sleep 0.1; done
} <&0 >/dev/null 2>&1 &
exec bash "$1" ${3:+"$next"} </dev/null"""


def batch_script(run: RunPaths) -> tuple[str, ...]:
    """Return the command that becomes the batch script of a run, and ends with its starter."""
    return ("bash", "-c", _BATCH_SCRIPT, "hpcml", str(run.script), str(run.directory))


class Part(NamedTuple):
    """What a run takes of a node, or what a node has."""

    gpus: int
    cpus: int
    memory: int  # MiB; 0: Slurm does not count it

    def fits(self, taken: Sequence["Part"], node: "Part") -> bool:
        """Return True if it is free on a node of which others have taken parts."""
        return all(sum(amounts) <= most for *amounts, most in zip(self, *taken, node, strict=True))


class Start(NamedTuple):
    """What starts a run. The supervisor adds the names of the nodes that the run gets."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    of_job: tuple[str, ...] = ()  # variables of the hold's own that are the run's too
    option: str = ""  # of the command: the first node
    variable: str = ""  # has the names of all nodes
