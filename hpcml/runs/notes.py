"""The notes of a submission, one line each: most kinds once for a folder, those on who may run code here each time.

The run keeps all of them. What a project's files set is remembered by a digest, so that a submission reports a change.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import safe_files
from hpcml.plan import batch_script
from hpcml.request.record import Code
from hpcml.schedulers import Submission
from hpcml.sites.lookup import Project
from hpcml.sites.settings_layers import here, process_environment
from hpcml.terminal import cells, columns, fit, noted, say, shown

_LIMIT = 1 << 20  # bytes of the file
_MOST = 200  # folders and files that are remembered, and kinds of note of each folder
_NUMBER = re.compile(r"(?<!\S)\d+(?:\.\d+)?(?!\S)")  # a word of its own: no node's name, no date
_DIGITS = re.compile(r"(?<![A-Za-z\d])\d+(?:T\d+)?")  # in a site's own text: no partition's number

_NO_CODE = Code()
_shown: set[tuple[str, str]] = set()  # folders and kinds that this process has shown: the file may not be writable


class ProjectNote(NamedTuple):
    """A note on a project's file, with the place and the digest by which a change of the file is noticed."""

    text: str
    place: str
    digest: str


def show(notes: Sequence[str], always: Sequence[str] = (), project_notes: Sequence[ProjectNote] = ()) -> None:
    """Print the notes that the current folder has not shown before; on a terminal a line that is too long is cut.

    Parameters
    ----------
    always
        Those that are shown each time, and whole: who else could run code as this user is no news of one day.
    project_notes
        Those on a project's files: shown each time too, and what the files set is remembered.
    """
    width, is_cut, folder = columns(sys.stderr), False, str(here())
    each_time = {*always, *(note.text for note in project_notes)}
    fresh = [text for text in dict.fromkeys(notes) if text not in each_time and (folder, kind(text)) not in _shown]
    _shown.update((folder, kind(text)) for text in notes)
    new = {*each_time, *_remember(folder, fresh, project_notes)}
    for text in [text for text in dict.fromkeys(notes) if text in new]:
        line = shown(noted(text))
        if 0 < width < cells(line) and text not in each_time:
            is_cut, line = True, f"{fit(line, width).rpartition(' ')[0]} …"
        say(line, sys.stderr)
    if is_cut:
        say("hpcml: to show the full notes: hpcml status --notes", sys.stderr)


def show_submitted(submission: Submission | None) -> None:
    """Print a submission's notes that were not shown before, and as it is what sbatch printed that is new today."""
    if submission is None:
        return
    show(submission.notes)
    for line in new_today("sbatch", submission.said):
        say(shown(line), sys.stderr)


def new_today(source: str, lines: Sequence[str]) -> list[str]:
    """Return the lines of a site's text that were not shown today, and remember them; numbers and clocks do not count.

    The text of each source is remembered by its lines' digests: a banner may be long.
    """
    digests = {line: _digest(_DIGITS.sub("#", line).encode()) for line in lines}
    today, path = time.strftime("%Y-%m-%d"), _path()
    known = _read(path).get(source, [])
    known = known if known[:1] == [today] else [today]
    fresh = [line for line in digests if digests[line] not in known and (source + today, digests[line]) not in _shown]
    _shown.update((source + today, digests[line]) for line in fresh)
    if path and fresh:
        _write(path, {source: [*known, *dict.fromkeys(digests[line] for line in fresh)][: _MOST + 1]})
    return fresh


def kind(note: str) -> str:
    """Return a note without its numbers: notes of a kind differ in them only."""
    return _NUMBER.sub("#", note)


def of_project(project: Project, code: Code = _NO_CODE, templates: Path | None = None) -> tuple[ProjectNote, ...]:
    """Return the notes on a project's ``hpcml.toml`` and on its folder of templates.

    Files that a laptop sent with the code have their place on the laptop, where they are the same each time.
    """

    def place(path: Path) -> str:
        if code.staged and path.is_relative_to(code.cwd):
            return f"{code.sent_from or 'laptop:'}/{path.relative_to(code.cwd)}"
        return str(path)

    project_notes = []
    if project.path:
        path, digest = place(Path(project.path)), _digest(project.content.encode())
        text = f"hpcml uses the settings of {path}{_news(path, digest, project.named)}"
        project_notes.append(ProjectNote(text, path, digest))
    if templates:
        template = templates / batch_script.TEMPLATE
        path, digest = place(template if template.is_file() else templates), _digest(*_contents(templates))
        text = f"the batch script uses the template {path}{_news(path, digest)}"
        project_notes.append(ProjectNote(text, path, digest))
    return tuple(project_notes)


def _contents(folder: Path) -> Iterator[bytes]:
    """Yield names and contents of the files in a folder: a template may take in each of them."""
    for path in sorted(itertools.islice(folder.rglob("*"), _MOST)):
        with contextlib.suppress(OSError):  # of one that cannot be read, and counts, the renderer tells
            if path.is_file():
                yield os.path.relpath(path, folder).encode()
                yield safe_files.read(path, ours=False, follow=True)


def _news(place: str, digest: str, named: Sequence[str] = ()) -> str:
    """Return the news of a project's file: what it sets, and whether it has changed since the last submission."""
    before = _read(_path()).get(place, [])
    if before == [digest]:
        return ""
    change, now = (", which has changed", " now") if before else ("", "")
    return f"{change}; it{now} sets for the job: {', '.join(named)}" if named else change


def _digest(*parts: bytes) -> str:
    return "sha256:" + hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def _path() -> Path | None:
    home = process_environment().get("HOME", "")
    return Path(home) / ".hpcml" / "notes.json" if home else None


def _remember(folder: str, notes: list[str], project_notes: Sequence[ProjectNote]) -> list[str]:
    """Return the notes of a kind that is new for a folder, and write down their kinds and the files' digests.

    The file is one of the user's home, put in place whole. If two submissions write it at once, a note is shown again.
    """
    path = _path()
    if path is None:
        return notes
    before = _read(path)
    kinds = before.get(folder, [])
    fresh = [text for text in notes if kind(text) not in kinds]
    after = {note.place: [note.digest] for note in project_notes}
    if fresh:
        after[folder] = [*kinds, *dict.fromkeys(map(kind, fresh))][-_MOST:]
    if any(before.get(place) != value for place, value in after.items()):
        _write(path, after)
    return fresh


def _write(path: Path, after: Mapping[str, list[str]]) -> None:
    """Write down what is new; the oldest entries go."""
    rest = {place: value for place, value in _read(path).items() if place not in after}
    newest = dict(list({**rest, **after}.items())[-_MOST:])
    with contextlib.suppress(OSError):  # a full disk is reported by the submission, which needs more of it
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if safe_files.is_own_folder(path.parent):
            safe_files.write(path, json.dumps(newest, indent=1) + "\n")


def _read(path: Path | None) -> dict[str, list[str]]:
    """Return the kinds of note that were shown by folder, and of each project's file the digest of what it sets.

    Nothing of a file that is damaged or not the user's.
    """
    if path is None:
        return {}
    try:
        record = safe_files.read_json(path, _LIMIT)
        return {str(folder): [str(kind) for kind in kinds] for folder, kinds in record.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
