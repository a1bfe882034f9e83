"""Remember on a laptop which folders ``hpcml fetch`` has filled: a later submission does not send them again."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from hpcml import safe_files
from hpcml.sites.settings_layers import process_environment

_LIMIT = 1 << 20  # bytes of the file
_MOST = 500  # folders that are remembered


def folders() -> list[str]:
    """Return the folders that were filled, without links; none if the file is damaged."""
    path = _path()
    with contextlib.suppress(OSError, ValueError, TypeError):
        return [str(folder) for folder in safe_files.read_json(path, _LIMIT)] if path else []
    return []


def remember(folder: Path) -> None:
    """Remember a folder that is empty, or not there yet: one with other files may be code."""
    place, known = str(folder.resolve()), folders()
    if (path := _path()) is None or place in known or (folder.is_dir() and any(folder.iterdir())):
        return
    with contextlib.suppress(OSError):  # then it is sent again; a full disk is reported by the fetch itself
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if safe_files.is_own_folder(path.parent):
            safe_files.write(path, json.dumps([*known, place][-_MOST:], indent=1) + "\n")


def _path() -> Path | None:
    home = process_environment().get("HOME", "")
    return Path(home) / ".hpcml" / "fetched.json" if home else None
