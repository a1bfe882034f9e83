"""Have a function follow the import of certain modules, in a process of the script.

This module imports nothing that a script could hide by a module of its own.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class AfterImport:
    """Finds nothing itself: it has a module's own loader followed by a function of name and module."""

    def __init__(self, names: Collection[str], follow: Callable[[str, ModuleType], object]) -> None:
        self.names, self.follow, self.searching = names, follow, False

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the module's own spec, with a loader that the function follows; None for all other modules."""
        if name not in self.names or self.searching:
            return None
        from importlib.util import find_spec

        self.searching = True
        try:
            spec = find_spec(name)
        finally:
            self.searching = False
        if spec and spec.loader:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self.follow(name, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
