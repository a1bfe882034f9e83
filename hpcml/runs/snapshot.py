"""Copy the script and the small files around it, so that an edit after the submission does not change the run.

What is not copied is there too, as a link to its place: script and tasks find the same files, data beside the
script included. Only what changes the run when it is changed is named.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import pwd
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from hpcml.runs import folders_code_uses
from hpcml.runs.directories import storage
from hpcml.sites.schema import Code
from hpcml.sites.settings_layers import user_path
from hpcml.units import Memory, first_of_many

_NEVER = "__pycache__"
_NO_CODE = "node_modules"  # and virtual environments
_LOOKED_AT = 10  # times code.max_files: more entries than that are not looked at
_NAMED = 3  # of what was left out, in a note
_MODULE = (".py", ".so")
_OF_HOME = ".hpcml"  # the runs and keys of hpcml itself
_A_LINK = "a link to a folder"
_IMPORTED = re.compile(r"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)


class LeftOut(NamedTuple):
    """A file or folder (with a slash behind its name) that was not copied, and why, with the setting's value."""

    name: str
    why: str
    module: bool = False  # or a package


class Taken(NamedTuple):
    """What became of the folder: what was left out, and what is not there at all.

    ``places`` are the folders to which links lead.
    """

    left_out: tuple[LeftOut, ...] = ()
    missing: tuple[LeftOut, ...] = ()
    places: tuple[Path, ...] = ()

    def notes(self) -> list[str]:
        """Return the notes for the user, as sentences without capital and full stop."""
        files = []
        instead = "with --set code.snapshot=none, the script runs in its own folder"
        if self.left_out:
            pronoun = "them" if len(self.left_out) > 1 else "it"
            why = f"do not change {pronoun} until the run ends, because the run reads {pronoun} in place"
            files.append(f"hpcml does not copy {listed(self.left_out)}: {why}")
        if any(entry.name.endswith("/") and entry.why != _A_LINK for entry in self.left_out):
            files.append(
                "the copy of the code has links to folders that are not copied; os.walk and rglob do not follow links"
            )
        if self.missing:
            files.append(f"the run's copy of the code lacks {listed(self.missing)}; {instead}")
        return files


def listed(left_out: Sequence[LeftOut]) -> str:
    """Return the first names, modules before others, each with why it was left out, and how many more there are."""
    left_out = sorted(left_out, key=lambda one: not one.module)
    named = [f"{entry.name if entry.name.isprintable() else ascii(entry.name)} ({entry.why})" for entry in left_out]
    return first_of_many(named, _NAMED)


class _TooMuchError(Exception):
    """A folder holds more than is left of a limit; its text says of which."""


class _Choice:
    """What of a folder is copied and what is linked; ``linked`` is false where nothing outside the folder may count."""

    def __init__(
        self,
        folder: Path,
        target: Path,
        code: Code,
        script: str,
        *,
        linked: bool,
        project: bool = False,
        without: Collection[str] = (),
    ) -> None:
        self.project, self.without = project, without
        self.folder, self.code, self.script, self.linked = str(folder), code, script, linked
        self.home = _is_home(folder)
        self.avoid = f"{target.resolve()}/"  # runs may be kept below the script's folder
        self.largest, self.room = int(code.max_file), int(code.max_total)
        self.files, self.looks = code.max_files - 1, _LOOKED_AT * code.max_files  # the script is one
        self.copies: list[str] = []
        self.folders: list[str] = []
        self.links: list[str] = []
        self.left_out: list[LeftOut] = []

    def make(self) -> None:
        """Choose: modules first, then packages, other files and other folders, each whole or not at all."""
        try:
            entries = sorted(os.scandir(self.folder), key=lambda entry: entry.name)
        except PermissionError:  # it may be entered and not be listed
            self.left_out.append(LeftOut("./", "the folder cannot be read"))
            return
        looks = self.looks
        walked = {entry.name for entry in entries if self._is_walked(entry)}
        self.looks = looks  # data beside the script is no reason to leave its modules out
        ranks = {entry.name: _rank(entry.path, folder=entry.name in walked) for entry in entries}
        for entry in sorted(entries, key=lambda entry: (ranks[entry.name], self._is_data(entry, walked))):
            if entry.name == self.script or (self.home and entry.name == _OF_HOME):
                continue
            if self.home and ranks[entry.name] > 1:
                self._pass_over(entry, "from the home folder, hpcml copies only modules and packages")
            elif entry.name in walked:
                self._take_folder(entry)
            else:
                self._take(entry, "")

    def _is_data(self, entry: os.DirEntry[str], walked: set[str]) -> bool:
        """Whether a folder of a project holds neither modules nor packages: such folders come last."""
        if not self.project or entry.name not in walked:
            return False
        with contextlib.suppress(PermissionError), os.scandir(entry.path) as inside:
            for file in itertools.islice(inside, _LOOKED_AT * _LOOKED_AT):
                if file.name.endswith(_MODULE) or os.path.exists(f"{file.path}/__init__.py"):
                    return False
        return True

    def make_none(self) -> None:
        """Choose the script alone: all else is linked, or left out and named."""
        for name in _names(Path(self.folder), self.script):
            self.links.append(name)
            if not self.linked and not name.startswith("."):
                self.leave_out(name, "code.snapshot = 'script'", slash=Path(self.folder, name).is_dir())

    def _pass_over(self, entry: os.DirEntry[str], why: str) -> None:
        if entry.name == _NEVER:
            return
        self.links.append(entry.name)
        if not entry.name.startswith("."):
            self.leave_out(entry.name, why, slash=_is_folder(entry))

    def leave_out(self, name: str, why: str, *, slash: bool = False) -> None:
        module = _rank(f"{self.folder}/{name}", folder=slash) < 2
        self.left_out.append(LeftOut(f"{name}/" if slash else name, why, module))

    def _take_folder(self, entry: os.DirEntry[str]) -> None:
        before = self.files, self.room
        made: tuple[list[Any], ...] = (self.copies, self.folders, self.links, self.left_out)
        sizes = [len(table) for table in made]
        try:
            self._walk(entry)
        except (_TooMuchError, PermissionError) as error:
            self.files, self.room = before
            for one, size in zip(made, sizes, strict=True):
                del one[size:]
            self.links.append(entry.name)
            why = str(error) if isinstance(error, _TooMuchError) else "parts of the folder cannot be read"
            self.leave_out(entry.name, why, slash=True)

    def _walk(self, top: os.DirEntry[str]) -> None:
        waiting = [top.name]
        while waiting:
            if full := self._full(0):
                raise _TooMuchError(full)
            below = waiting.pop()
            try:
                entries = sorted(os.scandir(f"{self.folder}/{below}"), key=lambda entry: entry.name)
            except FileNotFoundError:  # it has gone since
                continue
            self.folders.append(below)
            for entry in entries:
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
                self.leave_out(name, _A_LINK, slash=True)
        elif not self.linked and entry.is_symlink() and not self._holds(entry.path):
            self.leave_out(name, "a link to a place outside the folder")
        elif size > self.largest:
            self.links.append(name)
            self.leave_out(name, f"larger than code.max_file = {self.code.max_file.text}")
        elif full := self._full(size):
            if strict:
                raise _TooMuchError(full)
            self.links.append(name)
            self.leave_out(name, full)
            return
        else:
            self.copies.append(name)
            self.room -= size
        self.files -= 1
        if strict and self.files < 0:
            raise _TooMuchError(self._full(0))

    def _holds(self, path: str) -> bool:
        """Whether a link leads to what the folder holds: code of others may hold links to any file of the user's."""
        return os.path.realpath(path).startswith(f"{os.path.realpath(self.folder)}/")

    def _full(self, size: int) -> str:
        """Return the limit that a file of a size would break; nothing if there is none."""
        if self.files <= 0 or self.looks <= 0:
            return f"exceeds code.max_files = {self.code.max_files}"
        return f"exceeds code.max_total = {self.code.max_total.text}" if size > self.room else ""

    def _is_walked(self, entry: os.DirEntry[str]) -> bool:
        """Whether an entry is a folder of files that may be code."""
        self.looks -= 1
        return (
            _is_folder(entry)
            and not entry.is_symlink()
            and not entry.name.startswith(".")
            and entry.name not in (_NEVER, _NO_CODE)
            and not os.path.exists(f"{entry.path}/pyvenv.cfg")
            and not self.avoid.startswith(f"{entry.path}/")
            and entry.path not in self.without
        )


def _rank(path: str, *, folder: bool) -> int:
    """Return 0 for a module, 1 for a package, 2 for another file and 3 for another folder."""
    if folder:
        return 1 if os.path.exists(f"{path}/__init__.py") else 3
    return 0 if path.endswith(_MODULE) else 2


def _homes() -> list[Path]:
    """Return the user's home, by HOME and by the account."""
    homes = [user_path("~")]
    with contextlib.suppress(KeyError):  # an account that this machine does not know
        homes.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return homes


def _is_home(folder: Path) -> bool:
    """Whether a folder is the user's home."""
    return any(home.exists() and folder.samefile(home) for home in _homes())


def is_home_or_above(folder: Path) -> bool:
    """Whether a folder is the user's home or holds it."""
    return any(home.resolve().is_relative_to(folder.resolve()) for home in _homes())


def _names(folder: Path, script: str) -> list[str]:
    """Return the names beside the script in a folder that may be linked to."""
    never = (_NEVER, script, *([_OF_HOME] if _is_home(folder) else []))
    return [name for name in sorted(os.listdir(folder)) if name not in never]


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


def folder_of(script: Path, *, module: bool) -> Path:
    """Return the folder that is copied: of a script that is a link, the real file's; of a module, where it is named."""
    return script.parent.resolve() if module else script.resolve().parent


def preview(script: Path, target: Path, code: Code, *, module: bool, root: str = "") -> tuple[int, list[LeftOut]]:
    """Return the number of files that :func:`take` would copy, and the others; StorageError if they cannot be read."""
    with storage(script):
        choice = _chosen(script, target, code, root, module=module)
    own = set() if module else {str(script.relative_to(root)) if root else script.name}
    return len({*choice.copies} | own), choice.left_out


def _chosen(
    script: Path,
    target: Path,
    code: Code,
    root: str,
    *,
    module: bool = False,
    linked: bool = True,
    without: Collection[str] = (),
) -> _Choice:
    """Return the choice of files to copy from the script's folder, or the project's root."""
    folder = Path(root) if root else folder_of(script, module=module)
    name = "" if root or module else script.name
    choice = _Choice(folder, target, code, name, linked=linked, project=bool(root), without=without)
    if code.snapshot == "folder":
        choice.make()
    else:
        choice.make_none()
    return choice


def uncovered(root: Path, modules: Sequence[Path], target: Path, code: Code) -> str:
    """Return the reason why the copy of a project would lack one of its modules, empty if it would have all."""
    with storage(root):
        choice = _chosen(root, target, code, str(root))
    copied = {*choice.copies}
    for name in (str(module.relative_to(root)) for module in modules):
        if name not in copied:
            why = next((item.why for item in choice.left_out if f"{name}/".startswith(f"{item.name.rstrip('/')}/")), "")
            return f"{root} is too large to copy: {name} {why}" if why else f"{name} is not a part of its copy"
    return ""


def take(
    script: Path,
    target: Path,
    code: Code,
    *,
    linked: bool = True,
    limited: bool = True,
    module: bool = False,
    root: str = "",
    without: Collection[str] = (),
) -> Taken:
    """Copy the script, and the small files around it, into the run's folder for code, and link what is not copied.

    The folder is the one that Python imports from: that of the file to which a script that is a link leads.

    Parameters
    ----------
    linked
        Whether what is not copied is linked; else it is missing, and reported as such.
    limited
        Whether the limits of ``code`` hold.
    module
        Whether ``script`` is a folder and the name of a module in it: the folder is copied, and no file first.
    root
        The folder above the script that is copied instead of the script's own: the project's.
    without
        Folders, without links in their paths, that are not copied.

    Raises
    ------
    StorageError
        If the script cannot be read, or the run's directory not be written.
    """
    if not limited:
        code = Code("folder", Memory("1000000T"), Memory("1000000T"), 1 << 60)
    with storage(target):
        if code.snapshot == "none":
            return Taken()
        place = str(script.relative_to(root)) if root else script.name
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        if not module:
            shutil.copy2(script, target / place)
        choice = _chosen(script, target, code, root, module=module, linked=linked, without=without)
        folder = Path(choice.folder)
        for name in choice.folders:
            (target / name).mkdir(parents=True, exist_ok=True)
        for name in choice.copies:
            _copy(folder, target, name, choice)
        if not linked:
            if root:
                _mark(folder, target)
            return Taken(missing=tuple(choice.left_out))
        return _link_rest(choice, folder if root else script.parent.resolve(), target)


def _mark(root: Path, target: Path) -> None:
    """Have the copy of a project the hidden marks by which code looks for its root; of a repository the name alone."""
    for name in (name for name in folders_code_uses.MARKERS if name.startswith(".") and (root / name).exists()):
        mark = target / name / "HEAD" if (root / name).is_dir() else target / name  # no empty folder is sent
        mark.parent.mkdir(exist_ok=True)
        mark.touch()


def _link_rest(choice: _Choice, beside: Path, target: Path) -> Taken:
    """Link what was not copied, modules first, as many as there may be; name the rest."""
    folder = Path(choice.folder)  # another one than ``beside``, if the script is a link
    places = dict.fromkeys(_names(beside, choice.script), beside) if beside != folder else {}
    places |= dict.fromkeys(choice.links, folder)
    names = [name for name in places if not os.path.lexists(target / name)]
    if len(names) > (most := choice.code.max_files):
        names.sort(key=lambda name: (_rank(str(places[name] / name), folder=(places[name] / name).is_dir()), name))
    for name in names[:most]:
        link = target / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(places[name] / name)
    left_out = {entry.name.rstrip("/"): entry for entry in choice.left_out}
    missing = [
        left_out.pop(name) if name in left_out else _cut(places[name], name, choice.code) for name in names[most:]
    ]
    return Taken(tuple(left_out.values()), tuple(missing), tuple(dict.fromkeys(places[name] for name in names[:most])))


def _cut(place: Path, name: str, code: Code) -> LeftOut:
    folder = (place / name).is_dir()
    module = _rank(str(place / name), folder=folder) < 2
    return LeftOut(f"{name}/" if folder else name, f"exceeds code.max_files = {code.max_files}", module)


def _copy(folder: Path, target: Path, name: str, choice: _Choice) -> None:
    """Copy a file; one that cannot be read is linked, one that has gone since is passed over."""
    copy = target / name
    if copy.exists():  # the script itself
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copy2(folder / name, copy)
    except PermissionError:
        copy.unlink(missing_ok=True)
        choice.links.append(name)
        choice.leave_out(name, "the file cannot be read")
    except FileNotFoundError:
        copy.unlink(missing_ok=True)


def needed(taken: Taken, target: Path) -> list[LeftOut]:
    """Return the modules and packages that are missing although the code in the copy imports them."""
    modules = [entry for entry in taken.missing if entry.module]
    if not modules:
        return []
    imported: set[str] = set()
    for path in sorted(target.rglob("*.py")):
        if path.is_file():
            with contextlib.suppress(PermissionError):  # what is linked may be unreadable here
                imported |= _imports(path.read_text(encoding="utf-8", errors="replace"))
    return [entry for entry in modules if _in_package(entry.name, target) or _module_name(entry.name) in imported]


def _in_package(name: str, target: Path) -> bool:
    """Whether a module belongs to a package in the copy, which may import it by any name."""
    first, _, rest = name.partition("/")
    return bool(rest) and not name.endswith("/") and (target / first / "__init__.py").exists()


def _module_name(name: str) -> str:
    """Return the last word of the name under which a file or folder is imported."""
    path = PurePosixPath(name)
    return path.parent.name if path.name == "__init__.py" else path.name.partition(".")[0]


def _imports(text: str) -> set[str]:
    """Return the words of all names that a module imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(_IMPORTED.findall(text))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            imported.update(word for name in names for word in name.split("."))
    return imported - {""}
