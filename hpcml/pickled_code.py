"""Functions that travel keep the name of their file, so that a traceback of another process shows the line.

cloudpickle 3.1.3 pickles a function of the script as one of the file ``<dynamic-code>``, so that the same cell of two
notebooks gives the same bytes (https://github.com/cloudpipe/cloudpickle/pull/560). The error of a task then has no
place. Older releases kept the name.
"""

from __future__ import annotations

import sys
from types import CodeType, FunctionType
from typing import Any

_NO_FILE = "<dynamic-code>"


def keep_file_names() -> None:
    """Have cloudpickle name the files of the functions that this process pickles; again it does nothing."""
    import cloudpickle

    reducers = getattr(getattr(cloudpickle, "Pickler", None), "dispatch_table", {})
    without_file = reducers.get(CodeType)
    if without_file is None or getattr(without_file, "__module__", "") == __name__:
        return

    def with_file(code: CodeType) -> tuple[Any, ...]:
        make, parts, *rest = without_file(code)
        return make, tuple(code.co_filename if part == _NO_FILE else part for part in parts), *rest

    reducers[CodeType] = with_file


def move_to_main() -> None:
    """In a process of multiprocessing's spawn: say ``__main__`` of the script's functions and classes.

    There the script is the module ``__mp_main__``, which workers cannot import. What ``__main__`` has travels whole.
    """
    spawned = sys.modules.get("__mp_main__")
    if spawned is not None and getattr(spawned, "__name__", "") == "__mp_main__":
        _move_to_main(spawned)


def _move_to_main(owner: Any) -> None:
    for member in list(vars(owner).values()):
        function = getattr(member, "__func__", member)  # of a static method or a class method
        if isinstance(function, FunctionType | type) and function.__module__ == "__mp_main__":
            function.__module__ = "__main__"
            if isinstance(function, type):
                _move_to_main(function)
