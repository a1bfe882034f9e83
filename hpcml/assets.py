"""Find what ships beside the code: templates, containers, jobs and profiles, in a wheel and in a checkout alike."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(kind: str) -> Path:
    """Return the folder of one kind of asset: ``templates``, ``containers``, ``jobs`` or ``profiles``.

    A wheel holds the first three in ``hpcml/_assets``; an editable install has no such folder (hatchling does not
    force-include there), so the checkout around the package serves.
    """
    if kind == "profiles":
        return _PACKAGE / "sites/profiles"
    shipped = _PACKAGE / "_assets" / kind
    return shipped if shipped.is_dir() else _PACKAGE.parent / kind


def node_side() -> list[str]:
    """Return the modules that run on the nodes, relative to the folder that holds the package."""
    node = sorted(path.relative_to(_PACKAGE).as_posix() for path in (_PACKAGE / "node").rglob("*.py"))
    own = (
        "__init__.py",
        "script_api.py",
        "endings.py",
        "errors.py",
        "files.py",
        "paths.py",
        "terminal.py",
        "units.py",
    )
    return [f"hpcml/{name}" for name in (*own, *node)]


def package_root() -> Path:
    """Return the folder that holds the package ``hpcml``."""
    return _PACKAGE.parent
