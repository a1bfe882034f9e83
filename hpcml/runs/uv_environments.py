"""The environment that a script or its project describes: inline metadata (PEP 723) and uv.lock.

uv makes it at the submission, on this machine, in a folder beside the runs whose name is a digest of the description.
The text is other people's. So uv builds nothing, reads no project's settings, starts no Python that the text names, and
does not look into an environment once it is complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import installed_packages, safe_files, subprocesses
from hpcml.config_trust import HPCML
from hpcml.errors import ScriptError, StorageError
from hpcml.request.record import Code
from hpcml.sites import settings_layers
from hpcml.terminal import say
from hpcml.workload_forms import Form

LOCK = "uv.lock"
_PROJECT = "pyproject.toml"
FOLDER = ".environments"  # beside the runs
_MADE = re.compile(
    r"[0-9a-f]{16}-[0-9a-f]{16}"
)  # the name of an environment: a digest of its description, and a number
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_DEADLINE = 1800.0  # seconds for uv, which may download much
_LARGEST = 16 << 20  # bytes of a script or a lock
_SPECIFIERS = re.compile(r"[<>=!~ ,.*0-9]+")  # of a version of Python: no path and no program
_PINNED = re.compile(r"\d+(\.\d+){0,2}")
# Keys of [tool.uv] in a script that say where and which wheels are found; others may have uv start programs.
_PLAIN = {"index", "index-url", "extra-index-url", "find-links", "sources", "exclude-newer", "prerelease", "resolution",
          "index-strategy"}  # fmt: skip
_QUOTED = 6  # last lines of uv


class Described(NamedTuple):
    """An environment, where it comes from in words, and notes. ``complete``: its packages are there."""

    python: Path
    origin: str
    notes: tuple[str, ...] = ()
    complete: bool = True


class _Wanted(NamedTuple):
    """What uv is to make."""

    source: Path  # the script or the lock
    words: tuple[str, ...]  # of uv that name it
    text: str  # the description
    python: str  # the version of Python
    by_hand: str  # the line with which the user makes an environment
    unmade: str = ""  # why uv does not make it by itself, in a clause


def metadata(script: Path) -> dict[str, Any] | None:
    """Return a script's inline metadata (PEP 723), None without it.

    Raises
    ------
    ScriptError
        If it is not valid TOML.
    """
    match = _BLOCK.search(safe_files.text(script, _LARGEST).replace("\r\n", "\n"))
    if match is None:
        return None
    content = "".join(line[2 if line.startswith("# ") else 1 :] for line in match["content"].splitlines(keepends=True))
    try:
        return safe_files.parsed(tomllib.loads, content)
    except ValueError as error:
        hint = "Correct the lines between '# /// script' and '# ///'."
        raise ScriptError(f"The script's metadata is not valid TOML: {error}", place=str(script), hint=hint) from error


def of_script(code: Code, runs: Path, *, dry_run: bool) -> Described | None:
    """Return the environment of a script with inline metadata; None without it.

    Raises
    ------
    ScriptError
        If uv cannot make it; StorageError if the folder cannot be used.
    """
    if code.form is not Form.SCRIPT or (table := metadata(code.script)) is None:
        return None
    script = code.script
    lock = safe_files.text(script.with_name(f"{script.name}.lock"), _LARGEST)
    tool = table.get("tool", {}) if isinstance(table.get("tool", {}), dict) else {}
    uv = tool.get("uv", {}) if isinstance(tool.get("uv", {}), dict) else {}
    built = [*_built_sources(uv.get("sources", {})), *_built_texts(table.get("dependencies")), *_built(_toml(lock))]
    unmade = f"uv must build {', '.join(built)}" if built else ""
    if odd := sorted(uv.keys() - _PLAIN):
        unmade = unmade or f"its metadata sets {', '.join(f'tool.uv.{key}' for key in odd)}"
    name = shlex.quote(str(script))
    by_hand = f'uv sync --script {name}; then add --python "$(uv python find --script {name})"'
    words = ("--script", str(script), "--active", *(("--frozen",) if lock else ()))
    wanted = _Wanted(script, words, f"{table}{lock}", _specifiers(table.get("requires-python")), by_hand, unmade)
    return _made(wanted, runs, f"inline metadata of {script.name}", dry_run=dry_run)


def project_of(code: Code, lock: str = LOCK) -> Path | None:
    """Return the nearest folder at or above a script that has a uv.lock, None without one; a home is no project."""
    top = Path(code.root) if code.staged and code.root else settings_layers.user_path("~")
    start = code.script.parent if code.form is Form.SCRIPT else code.cwd
    for folder in (start, *start.parents):
        if folder == settings_layers.user_path("~") or folder == folder.parent:
            return None
        if os.path.lexists(folder / lock) and os.path.exists(folder / _PROJECT):
            return folder
        if folder == top:
            return None
    return None


def lists_without_lock(script: Path, package: str) -> bool:
    """Whether the project of a script has no uv.lock, but lists a package among its dependencies."""
    project = project_of(Code(script=script), _PROJECT)
    if project is None or os.path.lexists(project / LOCK):
        return False
    table = _toml(safe_files.text(project / _PROJECT)).get("project", {})
    listed = table.get("dependencies") if isinstance(table, dict) else None
    names = [re.split(r"[^\w.-]", str(text).strip())[0] for text in (listed if isinstance(listed, list) else ())]
    return installed_packages.normalized(package) in map(installed_packages.normalized, names)


def why_foreign(project: Path) -> str:
    """Return the reason why a project's description is not obeyed, in a clause; empty if it is."""
    try:
        safe_files.read_setting(project / _PROJECT)
        safe_files.read(project / LOCK, _LARGEST, obeyed=True)
    except safe_files.ForeignError as error:
        return error.why
    except (OSError, UnicodeDecodeError) as error:
        return f"it cannot be read ({getattr(error, 'strerror', None) or error})"
    return ""


def by_hand(project: Path) -> str:
    """Return the line that makes a project's own environment, whole."""
    return f"uv sync --project {shlex.quote(str(project))}"


def of_project(project: Path, runs: Path, needs: tuple[str, ...], *, sent: bool, dry_run: bool) -> Described:
    """Return the environment of a project: the one that it has (``.venv``), else one that uv makes of its lock.

    ``sent``: a laptop sent the project, so that what it has is of another machine.

    Raises
    ------
    ScriptError
        If uv cannot make it; StorageError if the folder cannot be used.
    """
    text = safe_files.text(project / LOCK, _LARGEST)
    lock, own = _toml(text), project / ".venv/bin/python"
    line = by_hand(project)
    if os.path.lexists(own) and not sent:
        differing = list(_differing(lock, own))
        notes = (f"{project}/.venv differs from {LOCK}: {', '.join(differing[:3])}. To update it: {line}",)
        return Described(own, f"{project}/.venv", notes if differing else ())
    settings = _toml(safe_files.text(project / _PROJECT))
    own_table = settings.get("project", {}) if isinstance(settings.get("project", {}), dict) else {}
    pinned = safe_files.text(project / ".python-version").strip()
    python = pinned if _PINNED.fullmatch(pinned) else _specifiers(own_table.get("requires-python"))
    names = {name for name, _ in _packages(lock)}
    lacks = [name for name in needs if name not in names]
    built = _built(lock, str(own_table.get("name")))
    unmade = f"uv must build {', '.join(built)}" if built else ""
    unmade = unmade or (f"{LOCK} lacks {', '.join(lacks)}" if lacks else "")
    words = ("--project", str(project), "--frozen", "--no-install-project", "--no-install-workspace")
    wanted = _Wanted(project / LOCK, words, text, python, line, unmade)
    origin = f"{LOCK} of the project that the laptop sent" if sent else str(project / LOCK)
    return _made(wanted, runs, origin, dry_run=dry_run)


# -- what a description says -------------------------------------------------------------------------------------------


def _toml(text: str) -> dict[str, Any]:
    try:
        return safe_files.parsed(tomllib.loads, text)
    except ValueError:  # uv says so
        return {}


def _specifiers(text: object) -> str:
    """Return a version of Python as uv takes it; other texts could be the path of a program."""
    oldest = ">=3.11"
    return f"{text},{oldest}" if isinstance(text, str) and _SPECIFIERS.fullmatch(text) else oldest


def _packages(lock: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the packages of a lock with their names."""
    packages = lock.get("package", [])
    for package in packages if isinstance(packages, list) else []:
        if isinstance(package, dict) and isinstance(package.get("name"), str):
            yield package["name"], package


def _built(lock: Mapping[str, Any], project: str = "") -> list[str]:
    """Return the packages of a lock that have no wheels to download: uv builds editable ones even with --no-build.

    The ``project`` itself, in the lock's folder, is none of them: uv leaves it out (--no-install-project).
    """
    own = installed_packages.normalized(project)

    def is_own(name: str, source: object) -> bool:
        return name == own and source in ({"editable": "."}, {"directory": "."})

    def has_wheel(source: object) -> bool:
        if not isinstance(source, dict):
            return False
        wheels = [str(source.get(key, "")).endswith(".whl") for key in ("url", "path")]
        return "registry" in source or "virtual" in source or any(wheels)

    return [
        name
        for name, package in _packages(lock)
        if not (is_own(name, source := package.get("source")) or has_wheel(source))
    ]


def _built_sources(sources: object) -> list[str]:
    """Return the packages of ``tool.uv.sources`` that must be built."""
    found = []
    for name, entry in sources.items() if isinstance(sources, dict) else ():
        for source in entry if isinstance(entry, list) else [entry]:
            place = source.get("url", source.get("path", "")) if isinstance(source, dict) else ""
            if not (isinstance(source, dict) and ("index" in source or str(place).endswith(".whl"))):
                found.append(str(name))
    return list(dict.fromkeys(found))


def _built_texts(dependencies: object) -> list[str]:
    """Return those of some dependencies that name a place other than a wheel's."""
    texts = [text for text in dependencies if isinstance(text, str)] if isinstance(dependencies, list) else []
    pairs = [text.partition("@") for text in texts]
    return [name.strip() for name, at, place in pairs if at and not place.partition(";")[0].strip().endswith(".whl")]


def _differing(lock: Mapping[str, Any], python: Path) -> Iterator[str]:
    """Yield the packages whose installed versions are not those of a lock: it may have several for other machines."""
    locked: dict[str, set[str]] = {}
    for name, package in _packages(lock):
        locked.setdefault(name, set()).add(str(package.get("version", "")))
    for folder in python.parent.parent.glob("lib/python3.*/site-packages"):
        for name, version in installed_packages.distributions(str(folder)).items():
            if name in locked and version not in locked[name] and "" not in locked[name]:
                yield f"{name} {version} (locked: {', '.join(sorted(locked[name]))})"


# -- uv ----------------------------------------------------------------------------------------------------------------


def _made(wanted: _Wanted, runs: Path, origin: str, *, dry_run: bool) -> Described:
    """Return the environment of a description, which uv makes now if it is not there."""
    key = hashlib.sha256(f"{wanted.python}\0{wanted.text}".encode(errors="replace")).hexdigest()[:16]
    name = f"{origin}, by uv"
    if folder := _complete(runs / FOLDER / key):
        return Described(folder / "bin/python", name)
    if wanted.unmade:
        hint = f"Make the environment yourself: {wanted.by_hand}. Or name another Python: --python PATH."
        raise ScriptError(
            f"hpcml does not make this environment, because {wanted.unmade}", place=str(wanted.source), hint=hint
        )
    if shutil.which("uv", path=settings_layers.process_environment().get("PATH", "")) is None:
        hint = "Install uv (pip install uv), or name another Python: --python PATH."
        raise ScriptError("uv, which makes this environment, is not on PATH", place=str(wanted.source), hint=hint)
    if dry_run:
        note = f"the submission lets uv make the environment of {origin}; hpcml did not check the packages"
        return Described(runs / FOLDER / key / "bin/python", name, (note,), complete=False)
    _make_folder(runs / FOLDER)
    say(f"  python     uv makes the environment of {origin}", sys.stderr)
    folder = runs / FOLDER / f"{key}-{os.urandom(8).hex()}"
    try:
        _sync(wanted, folder)
        new = safe_files.beside(folder)
        new.symlink_to(folder.name)
        new.rename(runs / FOLDER / key)  # another submission may have made the same: both are good
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Described(folder / "bin/python", name)


def _complete(link: Path) -> Path | None:
    """Return the environment of a description, None if it is not complete: a link leads to one that is."""
    try:
        name = os.readlink(link)  # noqa: PTH115 - a text, of which no part is trusted
    except OSError:
        return None
    folder = link.with_name(name) if _MADE.fullmatch(name) else link
    is_own = all(map(safe_files.is_own_folder, (folder, folder.parent)))
    return folder if is_own and os.path.exists(folder / "bin/python") else None


def _make_folder(folder: Path) -> None:
    """Make the folder of all environments, which only this user can enter."""
    hint = "Check the folder and its free space, or choose another folder for runs (--set paths.runs=…)."
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"The folder cannot be made: {error.strerror}", place=str(folder), hint=hint) from error
    if not safe_files.is_own_folder(folder):
        raise StorageError("The folder is not yours, or is a link", place=str(folder), hint=hint)


def _sync(wanted: _Wanted, folder: Path) -> None:
    """Let uv make an environment; ScriptError with its last lines if it cannot."""
    # uv waits for a lock in TMPDIR that all users of the machine may hold: here only this user can.
    places = {"VIRTUAL_ENV": str(folder), "UV_PROJECT_ENVIRONMENT": str(folder), "TMPDIR": str(folder.parent)}
    environment = {**settings_layers.process_environment(), **places}
    settings = Path(environment.get("XDG_CONFIG_HOME") or settings_layers.user_path("~/.config")) / "uv/uv.toml"
    config = ["--config-file", str(settings)] if os.path.exists(settings) else ["--no-config"]
    command = ["uv", "sync", *wanted.words, "--python", wanted.python, "--no-build", "--no-progress", *config]
    said: list[bytes] = []
    try:
        answer = subprocesses.stream(command, _DEADLINE, said.append, program=HPCML, environment=environment)
    except subprocesses.CommandMissingError as error:
        raise ScriptError(f"uv cannot be started: {error}", place=str(wanted.source), hint="Check uv.") from error
    if answer.code == 0:
        return
    how = f"exited with status {answer.code}" if answer.code is not None else f"did not end within {_DEADLINE:g} s"
    lines = [line for line in b"".join(said).decode(errors="replace").splitlines() if line.strip()]
    hint = f"If a package must be built, make the environment yourself: {wanted.by_hand}. Or add --python PATH."
    message = f"uv could not make the environment: it {how}"
    raise ScriptError(message, place=str(wanted.source), hint=hint, quote=tuple(lines[-_QUOTED:]))
