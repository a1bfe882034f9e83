"""The next step after the error that ended a task, which its process wrote down."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from hpcml import installed_packages
from hpcml.node import shared_files
from hpcml.node.context import Context

_HINT_RULES = ("gpu-arrays", "no-keyboard")  # whose errors are the script's own, on this node


def next_step(context: Context, note: Path) -> str:
    """Return the next step after the error that a task's process has written down, empty if none is known."""
    try:
        error = shared_files.read_json(note)
    except (OSError, ValueError) as problem:
        return f"The reason for the script's end cannot be read: {problem}."
    hints = (_hint(error_of_chain, context.settings.job.image) for error_of_chain in (error or {}).get("chain", ()))
    return next(filter(None, hints), "")


def _hint(error: dict[str, Any], image: str) -> str:
    if hiding := error.get("hides"):
        return f"{hiding} has the same name as a module that the script or a library needs. Rename the file."
    if error["type"] == "ModuleNotFoundError" and error["name"] and "." not in error["name"]:
        return _add_to_path(error["name"], error["has"]) if error.get("has") else _add_module(error["name"], image)
    from hpcml.failures.rules import BY_NAME

    rules, text = map(BY_NAME.__getitem__, _HINT_RULES), f"{error['type']}: {error['message']}"
    return next((rule.remedy for rule in rules if re.search(rule.pattern, text)), "")


def _add_to_path(name: str, file: str) -> str:
    """Say how workers find a module that the script has found."""
    return (
        f"The script found the module '{name}' ({file}), but the workers did not. Add the module's folder to "
        "PYTHONPATH before you submit, or to sys.path before the script opens its cluster."
    )


def _add_module(name: str, image: str) -> str:
    """Say where a module is missing and how it gets there; its package may have another name."""
    if image:
        return f"The image {image} has no module '{name}'. Build an image with this module (hpcml image build --help)."
    if name in sys.stdlib_module_names:
        return f"{sys.executable} was built without the standard module '{name}': use another Python (--python PATH)."
    lacks = f"{sys.executable}, which ran the script, has no module '{name}'"
    return f"{lacks}. {installed_packages.add(sys.executable, name)}"
