"""hpcml: one command runs a Dask script, ranks or a batch script on many nodes of a Slurm cluster.

Scripts use two names: :func:`connect` gives a ``distributed.Client`` wherever the script runs, and :data:`run` says
what is known about the run that the script is part of (output directory, attempt, whether to stop soon).

Other programs use four: :func:`submit` starts a run, :func:`find_run` and :func:`list_runs` give runs that are there,
and :func:`map` calls a function for many points, each in a job of its own.
What they return is a :class:`RunHandle`, and what they raise an :class:`HpcmlError`. Importing hpcml imports neither
Dask nor any command-line library.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, whose import would be most of what --help takes
if TYPE_CHECKING:
    from hpcml.api.elastic import ElasticCluster
    from hpcml.api.map import map  # noqa: A004
    from hpcml.api.submit import find_run, list_runs, submit
    from hpcml.errors import HpcmlError
    from hpcml.runs.handle import RunHandle
    from hpcml.script_api import connect, polars_engine, run

__version__ = "0.1.0"

__all__ = [
    "ElasticCluster",
    "HpcmlError",
    "RunHandle",
    "__version__",
    "connect",
    "find_run",
    "list_runs",
    "map",
    "polars_engine",
    "run",
    "submit",
]

_MODULES = {
    "connect": "script_api",
    "run": "script_api",
    "polars_engine": "script_api",
    "submit": "api.submit",
    "find_run": "api.submit",
    "list_runs": "api.submit",
    "RunHandle": "runs.handle",
    "HpcmlError": "errors",
    "map": "api.map",
    "ElasticCluster": "api.elastic",
}
# What a name needs beside hpcml: the module, its package, and the extra of hpcml that installs it.
_NEEDED = {
    "map": ("submitit", "submitit", "sweep"),
    "ElasticCluster": ("dask_jobqueue", "dask-jobqueue", "interactive"),
}


def __getattr__(name: str) -> object:
    """Import what has a name here when it is first asked for: the command line does without it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'hpcml' has no attribute '{name}'")
    from importlib import import_module, util

    module = f"hpcml.{_MODULES[name]}"
    try:
        if name in _NEEDED and util.find_spec(module) and util.find_spec(_NEEDED[name][0]) is None:
            return _not_installed(name, *_NEEDED[name])
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name not in ("hpcml.api", "hpcml.runs"):
            raise
        reason = f"hpcml.{name} does not work inside a run. Call hpcml.{name} on a login node or a laptop"
        raise AttributeError(reason) from None  # the missing module is no cause that a user can mend


def _not_installed(name: str, module: str, package: str, extra: str) -> type:
    """Return the replacement of a name whose package is missing: a call says how to install it."""
    from hpcml.errors import NotFoundError

    def refuse(*_: object, **__: object) -> None:
        hint = f"Install the package: pip install 'hpcml[{extra}]'."
        raise NotFoundError(f"hpcml.{name} needs {package}", place=module, hint=hint)

    return type(name, (), {"__init__": refuse, "__doc__": f"{name}, which needs {package}."})


def __dir__() -> list[str]:
    return __all__
