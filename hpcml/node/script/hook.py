"""What the run's kind changes in the script's interpreter, before the script's first line."""

from __future__ import annotations

import importlib
import os

VARIABLE = "HPCML_IN_SCRIPT"  # the module whose install() does it
RESETS = "HPCML_RESETS"  # the module that resets the kind's processes between two points of a sweep


def install() -> None:
    """Have the kind do it in this process; processes that the script starts do not find the variable."""
    if name := os.environ.pop(VARIABLE, ""):
        importlib.import_module(name).install()
