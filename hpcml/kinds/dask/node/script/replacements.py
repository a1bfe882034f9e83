"""Which classes and functions open the run's cluster in the script's process, and when they are put in place.

Scripts open a Dask cluster in a dozen ways. In a run the cluster is there: :func:`install` waits for the modules that
define those ways, and replaces them as each is imported. Nothing is imported before the script does it.
"""

from __future__ import annotations

import os
import sys

from hpcml.node.script import interpreter_state
from hpcml.node.script.after_import import AfterImport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# By package, what stands in place of each name: a class as RunCluster, a function, Client with the run's address, or
# the servers that a script opens by hand, without Dask's pages.
NAMES = {
    "distributed": {"Client": "client", "LocalCluster": "cluster", "SSHCluster": "cluster", "SpecCluster": "cluster",
                    "SubprocessCluster": "cluster", "ServerNode": "server"},
    "dask_cuda": {"LocalCUDACluster": "cluster"},
    "dask_jobqueue": dict.fromkeys(
        ("HTCondorCluster", "JobQueueCluster", "LSFCluster", "MoabCluster", "OARCluster", "PBSCluster", "SGECluster",
         "SLURMCluster", "SLURMRunner"), "cluster"),
    "dask_mpi": {"initialize": "initialize", "execute": "execute", "send_close_signal": "nothing"},
}  # fmt: skip
_PICKLES = "cloudpickle"  # it makes the script's functions travel
_EARLY = {"dask": "dask", "distributed": "distributed", "dask.distributed": "distributed", "hpcml": "distributed",
          "dask.array": "dask.array", "dask.dataframe": "dask.dataframe"}  # fmt: skip
# Packages whose import takes seconds; none of them makes a CUDA context then.
_SLOW = {"cudf", "cuml", "cupy", "dask_cudf", "dask_ml", "numpy", "pandas", "sklearn", "xgboost"}
# Others that may come before: they set no variables that those read, and load no other threads library.
_HARMLESS = {"joblib", "matplotlib", "pyarrow", "scipy", "tqdm", "xarray"}
_MOST_BESIDE = 200  # files beside the script that are looked at
_installed_into: dict[str, bool] = {}  # folders of modules, and whether pip has installed into them
# Packages that do nothing else: a script may import them where they are not installed.
_ABSENT = ("dask_jobqueue", "dask_jobqueue.core", "dask_jobqueue.slurm", "dask_mpi")


def install() -> None:
    """Have the names replaced in what this process imports from now on; keep its state before the script."""
    interpreter_state.take()
    sys.meta_path.insert(0, AfterImport((*NAMES, _PICKLES), lambda name, _: _replace(name)))
    sys.meta_path.append(_Absent())


def import_early(tree: Any, folder: str) -> list[str]:
    """Import Dask and large packages while the cluster starts, if the script's first statements do; return the names.

    The script's own import raises the error of one that fails: a second attempt would fail otherwise.
    """
    imported = []
    for name in early_imports(tree, folder):
        imported.append(name)
        try:
            __import__(name)
        except Exception as error:  # noqa: BLE001 - a library's import may raise anything
            parts = name.split(".")
            missing = (".".join(parts[: i + 1]) for i in range(len(parts)))
            sys.meta_path.insert(0, _Failed(next((part for part in missing if part not in sys.modules), name), error))
            break
    return imported


def early_imports(tree: Any, folder: str) -> list[str]:
    """Return the modules that can be imported before the script begins.

    It makes no difference to the script: only imports of Python's own modules and of some packages come before, and no
    file beside the script hides one of them. Other packages may set variables, or load libraries that have to be first.
    """
    try:
        beside = {entry.partition(".")[0] for entry in os.listdir(folder)}
    except OSError:  # it may be entered and not read
        return []
    if not tree or len(beside) > _MOST_BESIDE or any(_is_installed(name) for name in beside if name.isidentifier()):
        return []
    names = _first_imports(tree, beside)
    return [_EARLY.get(name, name) for name in names if name in _EARLY or name.partition(".")[0] in _SLOW]


def settings_files() -> list[str]:
    """Return Dask's files of settings, which it reads as it is imported; nothing before that."""
    config = sys.modules.get("dask.config")
    if config is None:
        return []
    import glob

    return [path for place in config.paths for path in (place, *glob.glob(f"{place}/*.y*ml"))]  # noqa: PTH207


def take_variables(variables: dict[str, str]) -> None:
    """Have this process, which may have imported Dask, take up variables that it has got since."""
    if config := sys.modules.get("dask.config"):
        config.update(config.config, config.collect_env(variables), priority="new")


def _first_imports(tree: Any, beside: set[str]) -> Iterator[str]:
    """Return the modules that the script's first statements import, up to the first that might matter to the others."""
    for statement in tree.body:
        match type(statement).__name__:
            case "Expr" if type(statement.value).__name__ == "Constant":  # the docstring
                continue
            case "Import":
                names = [alias.name for alias in statement.names]
            case "ImportFrom" if not statement.level:
                names = [statement.module]
            case _:
                return
        for name in names:
            top = name.partition(".")[0]
            known = top in sys.stdlib_module_names or name in _EARLY or top in _SLOW or top in _HARMLESS
            if top in beside or not known or not _is_installed(top):
                return
            yield name


def _is_installed(name: str) -> bool:
    """Whether a module of this name is Python's own, or of a package in the environment or a folder of PYTHONPATH."""
    from importlib.machinery import PathFinder

    if name in sys.stdlib_module_names or name == "hpcml":
        return True
    spec = PathFinder.find_spec(name)
    origin = getattr(spec, "origin", None) or ""
    if origin.startswith((sys.prefix, sys.base_prefix)):
        return True
    folder = os.path.dirname(os.path.dirname(origin) if spec and spec.submodule_search_locations else origin)  # noqa: PTH120 - pathlib is not loaded before a script
    return bool(folder) and _has_packages(folder)


def _has_packages(folder: str) -> bool:
    """Whether pip has installed packages into a folder, as ``pip install --target`` and a site's modules do."""
    if folder not in _installed_into:
        try:
            _installed_into[folder] = any(entry.endswith(".dist-info") for entry in os.listdir(folder))
        except OSError:
            _installed_into[folder] = False
    return _installed_into[folder]


def install_in_child(path: list[str]) -> bool:
    """Install in a process that the script started; return False if its Dask cannot talk to the run's scheduler.

    ``path`` is the path of modules at the start of this process.
    """
    from hpcml.node import shared_files, versions_and_clocks
    from hpcml.node.context import load

    context = load()
    if difference := versions_and_clocks.unlike((shared_files.read_json(context.attempt.link) or {})["versions"]):
        print(f"hpcml: process {os.getpid()} cannot use the run's Dask cluster: {difference}.", file=sys.stderr)
        del os.environ["DASK_SCHEDULER_ADDRESS"]  # Dask would connect to it
        return False
    install()
    interpreter_state.name_originals(context.settings.code.copy_of)
    interpreter_state.take_of_script(path, context.settings.code.cwd, context.settings.code.umask)
    return True


def _replace(package: str) -> None:
    """Replace the names in all modules of a package, which has just been imported whole."""
    if package == _PICKLES:
        from hpcml.repairs import file_names

        file_names.keep()
        return
    from hpcml.kinds.dask.node.script import run_cluster

    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    for name, kind in NAMES[package].items():
        originals = [vars(module)[name] for module in modules if name in vars(module)]
        replaced = run_cluster.replacement(kind, originals[0]) if originals else None
        for module in modules:
            if name in vars(module):
                setattr(module, name, replaced)


class _Failed:
    """Raises the error of an early import where the script first imports that module."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name, self.error = name, error

    def find_spec(self, name: str, *_: object) -> None:
        """Raise the error, once."""
        if name == self.name:
            sys.meta_path.remove(self)
            trace = self.error.__traceback__
            raise self.error.with_traceback(trace and trace.tb_next)


class _Absent:
    """Makes the packages that only open clusters, where nobody else finds them."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return a spec of an empty package with the names that open the run's cluster."""
        if name not in _ABSENT:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        import distributed  # noqa: F401 - replaced itself before run_cluster is imported

        from hpcml.kinds.dask.node.script import run_cluster

        for name, kind in NAMES[module.__name__.partition(".")[0]].items():
            setattr(module, name, run_cluster.replacement(kind, type(name, (), {})))
