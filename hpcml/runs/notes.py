"""The notes of a submission: each kind of note is shown once for a folder, in one line; the run keeps all of them."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcml import files
from hpcml.sites.layers import here, process_environment
from hpcml.terminal import cells, columns, fit, noted, say, shown

_LIMIT = 1 << 20  # bytes of the file
_MOST = 200  # folders that are remembered, and kinds of note of each
_NUMBER = re.compile(r"(?<!\S)\d+(?:\.\d+)?(?!\S)")  # a word of its own: no node's name, no date


_shown: set[tuple[str, str]] = set()  # folders and kinds that this process has shown: the file may not be writable


def show(notes: Sequence[str]) -> None:
    """Print the notes that the current folder has not shown before; on a terminal a line that is too long is cut."""
    width, is_cut, folder = columns(sys.stderr), False, str(here())
    fresh = [text for text in dict.fromkeys(notes) if (folder, kind(text)) not in _shown]
    _shown.update((folder, kind(text)) for text in fresh)
    for text in _remember(folder, fresh):
        line = shown(noted(text))
        is_cut = is_cut or 0 < width < cells(line)
        say(fit(line, width) if width else line, sys.stderr)
    if is_cut:
        say("hpcml: to show the full notes: hpcml status --notes", sys.stderr)


def kind(note: str) -> str:
    """Return a note without its numbers: notes of a kind differ in them only."""
    return _NUMBER.sub("#", note)


def _remember(folder: str, notes: list[str]) -> list[str]:
    """Return the notes of a kind that is new for a folder, and write down their kinds.

    The file is one of the user's home, put in place whole. If two submissions write it at once, a note is shown again.
    """
    home = process_environment().get("HOME", "")
    path = Path(home) / ".hpcml" / "notes.json"
    kinds_by_folder = _read(path) if home else {}
    kinds = kinds_by_folder.pop(folder, [])
    fresh = [text for text in notes if kind(text) not in kinds]
    if fresh and home:
        kinds_by_folder[folder] = [*kinds, *dict.fromkeys(map(kind, fresh))][-_MOST:]
        newest = dict(list(kinds_by_folder.items())[-_MOST:])
        with contextlib.suppress(OSError):  # a full disk is told by the submission, which needs more of it
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if files.is_own_folder(path.parent):
                files.write(path, json.dumps(newest, indent=1) + "\n")
    return fresh


def _read(path: Path) -> dict[str, list[str]]:
    """Return the kinds of note that were shown by folder; nothing of a file that is damaged or not the user's."""
    try:
        record = files.read_json(path, _LIMIT)
        return {str(folder): [str(one) for one in kinds] for folder, kinds in record.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
