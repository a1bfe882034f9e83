"""Two threads that import parts of Dask do not wait for each other for ever, where RAPIDS' packages are installed.

RAPIDS brings rapids_dask_dependency, whose finder has all modules of dask and distributed looked for by
``importlib.util.find_spec``. That imports the module's parent while Python holds its lock for all imports (3.11,
``importlib._bootstrap._find_spec``). If another thread is just importing the parent, each waits for the other: a worker
that unpickles a task while a task imports, a scheduler that unpickles a graph. The parent is not needed: a finder is
to look where the parent's ``__path__`` says.
"""

from __future__ import annotations

import sys

from hpcml import repairs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

_LOADER = "rapids_dask_dependency.dask_loader"  # of 26.10: installed by a .pth file as Python starts


class _Importlib:
    """The module importlib for that finder, with another ``util.find_spec``."""

    def __init__(self, package: Any) -> None:
        self.package, self.util = package, self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.package, name)

    def find_spec(self, name: str) -> ModuleSpec | None:
        """Return the spec of a module whose parent is there, or being imported."""
        parent = sys.modules.get(name.rpartition(".")[0])
        spec: ModuleSpec | None = self.package.machinery.PathFinder.find_spec(name, getattr(parent, "__path__", None))
        return spec


def install() -> None:
    """Have the finder look so from now on, where there is one; again it does nothing."""
    loader = sys.modules.get(_LOADER)
    if loader is None or isinstance(getattr(loader, "importlib", None), _Importlib):
        return
    if repairs.is_on("finder"):
        loader.importlib = _Importlib(loader.importlib)  # type: ignore[attr-defined]
