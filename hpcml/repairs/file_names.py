"""Functions that travel keep the name of their file, so that a traceback of another process shows the line.

cloudpickle 3.1.3 pickles a function of the script as one of the file ``<dynamic-code>``, so that the same cell of two
notebooks gives the same bytes (https://github.com/cloudpipe/cloudpickle/pull/560). The error of a task then has no
place. Older releases kept the name.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from hpcml import repairs

_NO_FILE = "<dynamic-code>"


def keep() -> None:
    """Have cloudpickle name the files of the functions that this process pickles; again it does nothing."""
    if not repairs.is_on("file_names"):
        return
    import cloudpickle

    reducers = getattr(getattr(cloudpickle, "Pickler", None), "dispatch_table", {})
    without_file = reducers.get(CodeType)
    if without_file is None or getattr(without_file, "__module__", "") == __name__:
        return

    def with_file(code: CodeType) -> tuple[Any, ...]:
        make, parts, *rest = without_file(code)
        return make, tuple(code.co_filename if part == _NO_FILE else part for part in parts), *rest

    reducers[CodeType] = with_file
