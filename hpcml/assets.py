"""Find what ships beside the code: templates, containers, jobs and profiles, in a wheel and in a checkout alike."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(kind: str) -> Path:
    """Return the folder of one kind of asset: ``templates``, ``containers``, ``jobs`` or ``profiles``.

    A wheel holds the first three in ``hpcml/_assets``; an editable install has no such folder (hatchling does not
    force-include there), so the checkout around the package serves.
    """
    if kind == "profiles":
        return _PACKAGE / "profiles"
    shipped = _PACKAGE / "_assets" / kind
    return shipped if shipped.is_dir() else _PACKAGE.parent / kind


def node_side() -> list[str]:
    """Return the modules that run on the nodes, relative to the folder that holds the package."""
    inside = sorted(name for name in os.listdir(_PACKAGE / "inside") if name.endswith(".py"))
    own = (
        "__init__.py",
        "driver.py",
        "entering.py",
        "errors.py",
        "files.py",
        "last_words.py",
        "layout.py",
        "terminal.py",
        "units.py",
    )
    return [*(f"hpcml/{name}" for name in own), *(f"hpcml/inside/{name}" for name in inside)]


def package_root() -> Path:
    """Return the folder that holds the package ``hpcml``."""
    return _PACKAGE.parent
