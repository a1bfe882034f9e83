"""What a user can do about the error that ended the script, where hpcml knows it."""

from __future__ import annotations

import re
import sys
from typing import Any

from hpcml.failures.rules import BY_NAME
from hpcml.node import files
from hpcml.node.settings import Context

_RULES = ("gpu-arrays", "no-keyboard")  # whose errors are the script's own, on this node


def next_step(context: Context) -> str:
    """Return the next step after the error that the script's process has written down, empty if none is known."""
    try:
        error = files.read_json(context.attempt.script_error)
    except (OSError, ValueError) as problem:
        return f"What ended the script cannot be read: {problem}."
    for one in (error or {}).get("chain", ()):
        if hint := _hint(one, context.settings.job.image):
            return hint
    sweep = context.settings.points.sweep
    return f"The sweep's points, and why some failed: hpcml sweep status {sweep}." if sweep else ""


def _hint(error: dict[str, Any], image: str) -> str:
    if hiding := error.get("hides"):
        return f"{hiding} hides another module of this name, which the script or a library needs: rename it."
    if error["type"] == "ModuleNotFoundError" and error["name"] and "." not in error["name"]:
        return _add_to_path(error["name"], error["has"]) if error.get("has") else _add_module(error["name"], image)
    rules, text = map(BY_NAME.__getitem__, _RULES), f"{error['type']}: {error['message']}"
    return next((rule.remedy for rule in rules if re.search(rule.pattern, text)), "")


def _add_to_path(name: str, file: str) -> str:
    """Say how workers find a module that the script has found."""
    return (
        f"The script has the module '{name}' ({file}), and the workers' path has not: add its folder to PYTHONPATH "
        "before you submit, or to sys.path before the script opens its cluster."
    )


def _add_module(name: str, image: str) -> str:
    """Say where a module is missing and how it gets there; its package may have another name."""
    if image:
        return f"The image {image} has no module '{name}': build one that has it (hpcml image build --help)."
    if name in sys.stdlib_module_names:
        return f"{sys.executable} was built without Python's own module '{name}': set runtime.python to another."
    add = f"{sys.executable} -m pip install {name}"
    return f"{sys.executable}, which ran the script, has no module '{name}': {add}; or set runtime.python to another."
