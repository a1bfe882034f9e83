"""Copy the script and the small files around it, so that an edit after the submission does not change the run.

What is not copied is there too, as a link to where it lies: script and tasks find the same files, data beside the
script included. Only what changes the run when it is changed is named.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import units
from hpcml.runs import storage
from hpcml.schema import Code

_NEVER = "__pycache__"
_NO_CODE = "node_modules"  # and virtual environments
_LOOKED_AT = 10  # times code.max_files: more entries than that are not looked at
_NAMED = 3  # of what was left out, in a note
_ABOVE = re.compile(r"\.parent\b|dirname\(|\.\.|pardir")
_PARENTS = re.compile(r"\.parents\[(\d+)\]")


class LeftOut(NamedTuple):
    """A file or folder (with a slash behind its name) that was not copied, and why, with the setting's value."""

    name: str
    why: str


class Taken(NamedTuple):
    """What became of the folder: what was left out, what is not there at all, and lines that lead above the folder."""

    left_out: tuple[LeftOut, ...] = ()
    missing: tuple[LeftOut, ...] = ()
    above: tuple[str, ...] = ()

    def notes(self) -> list[str]:
        """Return what the user should know, as sentences without capital and full stop."""
        found = []
        if self.left_out:
            words = "not copied, but used where it lies, so that a change changes the run"
            found.append(f"{words}: {listed(self.left_out)}")
        if self.missing:
            words = "code.snapshot = 'none' runs the script where it lies"
            found.append(f"not in the run's copy of the code: {listed(self.missing)}; {words}")
        if self.above:
            words = "which is the run's own folder here; code.snapshot = 'none' runs the script where it lies"
            found.append(f"{', '.join(self.above[:_NAMED])} leads above the script's folder, {words}")
        return found


def listed(left_out: Sequence[LeftOut]) -> str:
    """Return the first names, each with why it was left out, and how many more there are."""
    named = ", ".join(f"{one.name!a} ({one.why})" if not one.name.isprintable() else f"{one.name} ({one.why})"
                      for one in left_out[:_NAMED])  # fmt: skip
    return named + (f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else "")


class _TooMuchError(Exception):
    """A folder holds more than is left of a limit; its text says of which."""


class _Choice:
    """What of a folder is copied and what is linked."""

    def __init__(self, folder: Path, target: Path, code: Code) -> None:
        self.folder, self.code = str(folder), code
        self.avoid = f"{target.resolve()}/"  # runs may be kept below the script's folder
        self.largest, self.room = units.parse_memory(code.max_file), units.parse_memory(code.max_total)
        self.files, self.looks = code.max_files, _LOOKED_AT * code.max_files
        self.copies: list[str] = []
        self.links: list[str] = []
        self.left_out: list[LeftOut] = []

    def make(self) -> None:
        """Choose: single files first, then folder by folder, packages before others, each whole or not at all."""
        try:
            entries = sorted(os.scandir(self.folder), key=lambda entry: entry.name)
        except PermissionError:  # it may be entered and not be listed
            self.left_out.append(LeftOut("./", "it cannot be read"))
            return
        folders = []
        for entry in sorted(entries, key=lambda entry: not entry.name.endswith(".py")):
            if self._is_walked(entry):
                folders.append(entry)
            else:
                self._take(entry, "")
        folders.sort(key=lambda entry: not os.path.exists(f"{entry.path}/__init__.py"))
        for entry in folders:
            self._take_folder(entry)

    def _take_folder(self, entry: os.DirEntry[str]) -> None:
        files, room = self.files, self.room
        copies, links, left_out = len(self.copies), len(self.links), len(self.left_out)
        try:
            self._walk(entry)
        except (_TooMuchError, PermissionError) as error:
            self.files, self.room = files, room
            del self.copies[copies:], self.links[links:], self.left_out[left_out:]
            self.links.append(entry.name)
            why = str(error) if isinstance(error, _TooMuchError) else "not all of it can be read"
            self.left_out.append(LeftOut(f"{entry.name}/", why))

    def _walk(self, top: os.DirEntry[str]) -> None:
        waiting = [top.name]
        while waiting:
            if full := self._full(0):
                raise _TooMuchError(full)
            below = waiting.pop()
            for entry in sorted(os.scandir(f"{self.folder}/{below}"), key=lambda entry: entry.name):
                if self._is_walked(entry):
                    waiting.append(f"{below}/{entry.name}")
                else:
                    self._take(entry, f"{below}/", strict=True)

    def _take(self, entry: os.DirEntry[str], below: str, *, strict: bool = False) -> None:
        """Copy a file or link it; with ``strict``, more than the limits allow is an error."""
        name = f"{below}{entry.name}"
        if entry.name == _NEVER:
            return
        size = _size(entry)
        if size is None or entry.name.startswith("."):
            self.links.append(name)
            if _is_folder(entry) and entry.is_symlink() and not entry.name.startswith("."):
                self.left_out.append(LeftOut(f"{name}/", "a link to a folder"))
        elif size > self.largest:
            self.links.append(name)
            self.left_out.append(LeftOut(name, f"larger than code.max_file = {self.code.max_file}"))
        elif full := self._full(size):
            if strict:
                raise _TooMuchError(full)
            self.links.append(name)
            self.left_out.append(LeftOut(name, full))
            return
        else:
            self.copies.append(name)
            self.room -= size
        self.files -= 1
        if strict and self.files < 0:
            raise _TooMuchError(self._full(0))

    def _full(self, size: int) -> str:
        """Return the limit that a file of a size would break; nothing if there is none."""
        if self.files <= 0 or self.looks <= 0:
            return f"more than code.max_files = {self.code.max_files}"
        return f"more than code.max_total = {self.code.max_total}" if size > self.room else ""

    def _is_walked(self, entry: os.DirEntry[str]) -> bool:
        """Whether an entry is a folder of files that may be code."""
        self.looks -= 1
        return (
            _is_folder(entry) and not entry.is_symlink() and not entry.name.startswith(".")
            and entry.name not in (_NEVER, _NO_CODE) and not os.path.exists(f"{entry.path}/pyvenv.cfg")
            and not self.avoid.startswith(f"{entry.path}/")
        )  # fmt: skip


def _size(entry: os.DirEntry[str]) -> int | None:
    """Return the size of what is a regular file, or leads to one; None for all else, broken and endless links too."""
    try:
        return entry.stat().st_size if entry.is_file() else None
    except OSError:
        return None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def take(script: Path, target: Path, code: Code, *, linked: bool = True, limited: bool = True) -> Taken:
    """Copy the script, and the small files around it, into the run's folder for code, and link what is not copied.

    The folder is the one that Python imports from: that of the file to which a script that is a link leads.

    Parameters
    ----------
    linked
        Whether what is not copied is linked; else it is missing, and told as such.
    limited
        Whether the limits of ``code`` hold.

    Raises
    ------
    StorageError
        If the script cannot be read, or the run's directory not be written.
    """
    if not limited:
        code = Code("folder", "1000000T", "1000000T", 1 << 60)
    with storage(target):
        if code.snapshot == "none":
            return Taken()
        shutil.copy2(script, target / script.name)
        folder = script.resolve().parent
        choice = _Choice(folder, target, code)
        if code.snapshot == "folder":
            choice.make()
        elif linked:
            choice.links = [name for name in sorted(os.listdir(folder)) if name != _NEVER]
        made = [name for name in choice.copies if _copy(folder, target, name, choice)]
        above = tuple(_lines_above(target, [script.name, *(name for name in made if name.endswith(".py"))]))
        if not linked:
            return Taken(missing=tuple(choice.left_out), above=above)
        beside = [] if script.parent.samefile(folder) else sorted(os.listdir(script.parent))
        waiting = [*((folder, name) for name in choice.links), *((script.parent, name) for name in beside)]
        for place, name in waiting[: code.max_files]:
            _link(place, target, name)
        lost = {name for _, name in waiting[code.max_files :]}
        left_out = [one for one in choice.left_out if one.name.rstrip("/") not in lost]
        missing = [one for one in choice.left_out if one.name.rstrip("/") in lost]
        return Taken(tuple(left_out), tuple(missing), above)


def _copy(folder: Path, target: Path, name: str, choice: _Choice) -> bool:
    """Copy a file; one that cannot be read is linked, one that has gone since is passed over."""
    copy = target / name
    if copy.exists():  # the script itself
        return False
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copy2(folder / name, copy)
    except PermissionError:
        copy.unlink(missing_ok=True)
        choice.links.append(name)
        choice.left_out.append(LeftOut(name, "it cannot be read"))
        return False
    except FileNotFoundError:
        copy.unlink(missing_ok=True)
        return False
    return True


def _link(place: Path, target: Path, name: str) -> None:
    link = target / name
    link.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(link):
        link.symlink_to(place / name)


def _lines_above(target: Path, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines that build a path above the script's folder from ``__file__``, as ``main.py:12``."""
    for name in names:
        text = (target / name).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1) if "__file__" in text else ():
            if "__file__" in line:
                up = len(_ABOVE.findall(line)) + sum(int(count) + 1 for count in _PARENTS.findall(line))
                if up > name.count("/") + 1:
                    yield f"{name}:{number}"


def needed(taken: Taken, target: Path) -> list[LeftOut]:
    """Return what is missing although the code that was copied needs it: modules beside it, and what it imports."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(target.rglob("*.py"))]
    return [one for one in taken.missing if _is_needed(one.name, texts)]


def _is_needed(name: str, texts: Sequence[str]) -> bool:
    first, _, rest = name.partition("/")
    if rest or not name.endswith((".py", ".so", "/")):
        return name.endswith((".py", ".so"))  # of a folder that was copied
    imported = re.compile(rf"^\s*(?:from|import)\s+{re.escape(first.partition('.')[0])}\b", re.MULTILINE)
    return first != "." and any(imported.search(text) for text in texts)
