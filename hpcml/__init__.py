"""hpcml: one command turns a plain Python script into a run on N nodes of a Slurm machine.

Scripts use two names: :func:`connect` gives a ``distributed.Client`` wherever the script runs, and :data:`run` says
what is known about the run (output directory, attempt, whether to stop soon). Importing hpcml imports neither Dask
nor any command-line library.
"""

from hpcml.driver import connect, run

__version__ = "0.1.0"

__all__ = ["__version__", "connect", "run"]
