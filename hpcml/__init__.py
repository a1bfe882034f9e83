"""hpcml: one command turns a plain Python script into a run on N nodes of a Slurm machine.

Scripts use two names: :func:`connect` gives a ``distributed.Client`` wherever the script runs, and :data:`run` says
what is known about the run (output directory, attempt, whether to stop soon). Importing hpcml imports neither Dask
nor any command-line library.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, whose import would be most of what --help takes
if TYPE_CHECKING:
    from hpcml.script_api import connect, run

__version__ = "0.1.0"

__all__ = ["__version__", "connect", "run"]


def __getattr__(name: str) -> object:
    """Import the script's side when it is first asked for: the command line does without it."""
    if name not in ("connect", "run"):
        raise AttributeError(f"module 'hpcml' has no attribute '{name}'")
    from hpcml import script_api

    return getattr(script_api, name)
