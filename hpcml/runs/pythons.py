"""Which Python a run uses: ``--python``, the settings, what the script or its project names, the active environment.

What an environment has is read from its files. No interpreter is started, and conda is never started.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import installed_packages, kinds, safe_files, subprocesses
from hpcml.config_trust import Origin
from hpcml.errors import ScriptError, UsageError
from hpcml.request.record import Code, RunRequest
from hpcml.runs import directories, modules_code_uses, uv_environments
from hpcml.runs.environments import OPTION, away_from_nodes, exists, find, too_old, who_may_change
from hpcml.runs.packages import Environment
from hpcml.runs.uv_environments import Described
from hpcml.sites import settings_layers
from hpcml.sites.lookup import LoadedSite
from hpcml.sites.settings_layers import Layers, Value, user_path
from hpcml.terminal import json_text
from hpcml.units import first_of_many
from hpcml.workload_forms import Form

KEY = "runtime.python"
ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")  # variables that name the active environment
_REPEATED = "the repeated run used hpcml's own Python"
_MOST_NAMED = 3  # modules in a note, lines of a quote
_DEADLINE = 60.0  # seconds for the site's setup and modules


class Chosen(NamedTuple):
    """A site and a request with the decision, and notes on it; those of ``always`` each submission shows."""

    loaded: LoadedSite
    spec: RunRequest
    notes: tuple[str, ...] = ()
    always: tuple[str, ...] = ()


def choose(loaded: LoadedSite, spec: RunRequest, late: bool, *, dry_run: bool) -> Chosen:
    """Return the site with the Python of a run that has no ``--python`` in ``runtime.python``; it reads the script.

    Parameters
    ----------
    late
        Whether a Dask cluster starts only if the script opens a client.
    dry_run
        Whether nothing is submitted: then no environment is made.

    Raises
    ------
    ScriptError
        If the environment that a script describes cannot be made, or lacks what the run needs.
    """
    site, environment = loaded.site, settings_layers.process_environment()
    if spec.image or site.runtime.kind == "image" or spec.code.form is Form.BATCH:  # which chooses its own
        return Chosen(loaded, spec)
    needed = _Needed(loaded, spec, late)
    if site.runtime.python:
        chosen = Path(site.runtime.python)
        by = f"the run uses {chosen} ({loaded.layers.origin(KEY)})"
        if loaded.layers.origin(KEY) == OPTION:  # of the run that this one repeats
            spec = _laid(loaded, spec, chosen, OPTION, Origin.LINE).spec
        return _placed(Chosen(loaded, spec), _unused(environment, needed, chosen, by))._replace(always=())
    notes: list[str] = []
    if spec.code.form.traits.is_script:
        found = _described(loaded, spec, needed, notes, dry_run=dry_run)
        if found:
            notes += [*found.notes, *_unused(environment, needed, found.python, f"the run uses {found.origin}")]
            return _placed(_laid(loaded, spec, found.python, found.origin, Origin.PROJECT), notes)
    if not (spec.code.form.traits.is_script or spec.code.form is Form.JUPYTER):
        return Chosen(loaded, spec)
    described = bool(notes)  # by a project that cannot be used
    once: list[str] = []  # many shells activate conda's base without being asked
    is_repeated = KEY in loaded.layers.values  # by a run without one
    for prefix, variable in _active(environment):
        python = prefix / "bin/python"
        if why := _REPEATED if is_repeated else _why_unused(prefix, needed):
            (once if _is_base(prefix) else notes).append(_unused_note(prefix, why))
            continue
        notes += _unused(environment, needed, python, f"the run uses {prefix}")
        placed = _placed(_laid(loaded, spec, python, f"{variable}, the active environment", Origin.FOUND), notes)
        return placed._replace(notes=(*placed.notes, *once))
    if described:
        notes[0] = f"the run uses hpcml's own Python: {notes[0]}"
    else:
        notes += _inactive(spec.code, environment, needed)
    return Chosen(loaded, spec, (*notes, *once), always=tuple(notes))


def origin(loaded: LoadedSite) -> str:
    """Return who named the Python of a site's runs, empty if it is hpcml's own."""
    return loaded.layers.origin(KEY) if loaded.site.runtime.python else ""


def kept(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the Python that an option or the shell gave a recorded run, as a setting with its origin; at most one.

    It is empty if the run had hpcml's own Python: then an active environment does not count.
    """
    entry = settings.get(KEY, {"value": "", "by": Origin.FOUND, "origin": "the repeated run"})
    if not isinstance(entry, dict) or not is_kept(entry):
        return ()
    return ((f"{KEY}={json_text(str(entry['value']))}", str(entry.get("origin"))),)


def is_kept(entry: Mapping[str, Any]) -> bool:
    """Whether a recorded setting was the run's own; one of a file or a variable is read again."""
    return entry.get("origin") in ("--set", OPTION) or entry.get("by") in (Origin.LINE, Origin.FOUND)


def typed(loaded: LoadedSite, spec: RunRequest, *, dry_run: bool) -> Chosen:
    """Return the decision for ``--python``, none without it; the script is not read.

    Raises
    ------
    UsageError, NotFoundError
        If it names no environment that can be used, or several.
    """
    if not spec.python:
        return Chosen(loaded, spec)
    image = "--image" if spec.image else "runtime.kind = 'image'"
    if spec.image or loaded.site.runtime.kind == "image":
        hint = f"Remove {OPTION}, or run without the image (--set runtime.kind=python, and no --image)."
        raise UsageError(f"{OPTION} cannot be combined with {image}", place=OPTION, hint=hint)
    if loaded.layers.origin(KEY) == "--set":
        raise UsageError(f"{OPTION} and --set {KEY} name two Pythons", place=OPTION, hint=f"Remove --set {KEY}=….")
    here = settings_layers.user_path("~") if spec.code.staged else settings_layers.here()
    project, notes, complete = here / user_path(spec.python), list[str](), True
    if exists(project / uv_environments.LOCK) and not exists(project / "bin"):
        runs = directories.runs_folder(loaded.site.paths.runs, settings_layers.process_environment())
        found = uv_environments.of_project(project, runs, (), sent=False, dry_run=dry_run)
        python, notes, complete = found.python, [*found.notes], found.complete
    else:
        python = find(
            spec.python, here, settings_layers.process_environment(), lambda: _path_of_job(loaded, spec.python, notes)
        )
    foreign, away = who_may_change(python) if complete else "", away_from_nodes(python, loaded)
    always = [f"{foreign}: this account can run code as you in the run"] if foreign else []
    always += [f"{away}: use a folder that all nodes share"] if away else []
    chosen = _laid(loaded, spec, python, OPTION, Origin.TYPED)
    return chosen._replace(notes=(*always, *notes), always=tuple(always))


def _path_of_job(loaded: LoadedSite, text: str, notes: list[str]) -> str:
    """Return the PATH that the job has after its own setup and modules, which are run here; ``text``: what is typed.

    If a project's file or a script's line names them, nothing is run: it is this shell's PATH, with a note.

    Raises
    ------
    UsageError
        If they fail here.
    """
    runtime, environment = loaded.site.runtime, settings_layers.process_environment()
    keys = [key for key in ("setup", "modules") if getattr(runtime, key)]
    named = [loaded.layers.named("runtime", key) for key in keys]
    foreign = [name.place for name in named if name.origin.foreign]
    if foreign:
        why = f"hpcml does not run here what somebody else may have written in {foreign[0]}"
        notes.append(f"{why}, so it looked on this shell's PATH")
    if foreign or not named:
        return environment.get("PATH", "")
    modules = [f"module load {shlex.quote(module)} || exit 1" for module in runtime.modules]
    lines = "\n".join([*runtime.setup, *modules, 'printf "\\n%s" "$PATH"'])
    answer = subprocesses.run(["bash", "-c", lines], _DEADLINE, program=named[0], environment=environment)
    if answer.code == 0:
        return answer.out.rpartition("\n")[2]
    said = tuple(answer.text.splitlines()[-_MOST_NAMED:])
    hint = f"Name the Python by its path: {OPTION} PATH."
    message = f"runtime.{' and runtime.'.join(keys)} failed on this machine, so hpcml does not know the job's PATH"
    raise UsageError(message, place=f"{OPTION} {text}", hint=hint, quote=said)


def _laid(loaded: LoadedSite, spec: RunRequest, python: Path, origin: str, by: Origin) -> Chosen:
    """Return the site and the request with a Python, whose programs come first."""
    changed = Layers()
    changed.values = {**loaded.layers.values, KEY: Value(str(python), origin, by)}
    site = loaded.site._replace(runtime=loaded.site.runtime._replace(python=str(python)))
    programs, code = python.parent, spec.code
    if code.interpreter and os.path.exists(own := programs / code.interpreter[0]):
        spec = spec.changed(interpreter=(str(own), *code.interpreter[1:]))
    elif code.form is Form.PROGRAM:  # what it starts is looked for there too
        bare = not code.script.is_absolute() and os.path.exists(programs / code.script)
        spec = spec.changed(programs=str(programs), script=programs / code.script if bare else code.script)
    return Chosen(loaded._replace(site=site, layers=changed), spec)


def _placed(chosen: Chosen, notes: list[str]) -> Chosen:
    """Return a decision with notes on it, and on where its Python is."""
    python = Path(chosen.loaded.site.runtime.python)
    where = away_from_nodes(python, chosen.loaded)
    notes = [*notes, *([where] if where else [])]
    return chosen._replace(notes=tuple(notes), always=tuple(notes))


# -- what the script or its project describes --------------------------------------------------------------------------


def _described(
    loaded: LoadedSite, spec: RunRequest, needed: _Needed, notes: list[str], *, dry_run: bool
) -> Described | None:
    """Return the environment that the script or its project describes, if the run can use it; a note where not.

    A script that describes its own is refused without it.
    """
    runs = directories.runs_folder(loaded.site.paths.runs, settings_layers.process_environment())
    if found := uv_environments.of_script(spec.code, runs, dry_run=dry_run):
        if found.complete and (lacks := Environment(str(found.python)).lacking(needed.of_run)):
            hint = f"Add them to the script's metadata: uv add --script {spec.code.typed} {' '.join(lacks)}."
            message, _ = installed_packages.lacking(str(found.python), lacks)
            raise ScriptError(f"{message[:1].upper()}{message[1:]}", place=found.origin, hint=hint)
        return found
    project = uv_environments.project_of(spec.code)
    if project is None or os.path.realpath(project / ".venv") == os.path.realpath(sys.prefix):
        return None
    try:
        why = uv_environments.why_foreign(project)
        sent = spec.code.staged
        found = None if why else uv_environments.of_project(project, runs, needed.of_run, sent=sent, dry_run=dry_run)
    except ScriptError as error:
        last = f": {error.quote[-1].strip()}" if error.quote else ""
        notes.append(f"{error.message[:1].lower()}{error.message[1:]} ({error.place}){last}. {error.hint}".rstrip("."))
        return None
    if found and found.complete:
        why = who_may_change(found.python) or needed.missing(found.python)
        if why and found.python.parent.parent != project / ".venv":
            why = f"{why}; an environment with the project itself is made by: {uv_environments.by_hand(project)}"
    if why:
        notes.append(f"hpcml does not use the project {project}, because {why}")
    return None if why else found


# -- the active environment --------------------------------------------------------------------------------------------


class _Needed:
    """What the run needs of its Python, read when it is first asked for."""

    def __init__(self, loaded: LoadedSite, spec: RunRequest, late: bool) -> None:
        self.loaded, self.spec, self.late = loaded, spec, late
        self._names: list[str] | None = None

    @property
    def names(self) -> list[str]:
        """The modules: of the kind of run, of the form, and what the script always imports."""
        if self._names is None:
            self._names = list(dict.fromkeys([*self.of_run, *modules_code_uses.needed(self.spec.code)]))
        return self._names

    @property
    def of_run(self) -> tuple[str, ...]:
        """The modules of the kind of run and of the form."""
        of_kind = () if self.late else kinds.get(self.spec.kind).needs
        return (*of_kind, *self.spec.code.form.traits.packages)

    def missing(self, python: Path) -> str:
        """Return the things that an interpreter lacks, in a clause; empty if it has all."""
        environment = Environment(str(python))
        if not environment.readable:
            return "hpcml cannot read which packages it has"
        lacks = environment.lacking(self.names)
        return f"it lacks {first_of_many(lacks, _MOST_NAMED)}" if lacks else ""


def _active(environment: Mapping[str, str]) -> list[tuple[Path, str]]:
    """Return the active environments other than hpcml's own, with their variables: first the one first on PATH."""
    places = [os.path.realpath(folder) for folder in environment.get("PATH", "").split(":") if folder]
    found: dict[str, tuple[Path, str]] = {}
    for variable in ACTIVE:
        text = environment.get(variable, "")
        if text.startswith("/") and os.path.realpath(text) != os.path.realpath(sys.prefix):
            found.setdefault(os.path.realpath(text), (Path(text), variable))

    def order(real: str) -> int:
        programs = os.path.realpath(f"{real}/bin")
        return places.index(programs) if programs in places else len(places)

    return [found[real] for real in sorted(found, key=order)]


def _is_base(prefix: Path) -> bool:
    """Whether an environment is that of conda itself."""
    return os.path.exists(prefix / "condabin")


def _why_unused(prefix: Path, needed: _Needed) -> str:
    """Return the reason why hpcml does not use an active environment by itself, a clause; empty if it does."""
    python = prefix / "bin/python"
    if why := _cannot_run(python) or who_may_change(python):
        return why
    if _is_base(prefix):
        return "it is conda's base environment"
    here, kind = os.uname().machine, safe_files.architecture_of(python)
    if kind and kind != here:
        return f"it is for {kind}, but this machine is {here}"
    return away_from_nodes(python, needed.loaded) or needed.missing(python)


def _cannot_run(python: Path) -> str:
    """Return the reason why ``--python`` refuses an interpreter too, a clause; empty if it does not."""
    if not os.path.lexists(python):
        return "it has no bin/python that you can read"
    if not os.access(python, os.X_OK):
        return "its bin/python cannot be executed"
    why = too_old(Environment(str(python)))
    return f"it {why}" if why else ""


def _unused(environment: Mapping[str, str], needed: _Needed, chosen: Path, by: str) -> list[str]:
    """Return a note on the active environment that a run does not use though it could."""
    used = os.path.realpath(chosen.parent.parent)
    others = [prefix for prefix, _ in _active(environment) if os.path.realpath(prefix) != used]
    return [_unused_note(prefix, by) for prefix in others[:1] if not _why_unused(prefix, needed)]


def _inactive(code: Code, environment: Mapping[str, str], needed: _Needed) -> list[str]:
    """Return a note on an environment beside the script or in the current folder, where hpcml's own Python is used."""
    if code.interpreter or code.form is Form.PROGRAM:  # the user named a program
        return []
    folders = (*([code.script.parent.resolve()] if code.form.traits.is_script else []), code.cwd)
    known = {os.path.realpath(prefix) for prefix in (Path(sys.prefix), *dict(_active(environment)))}
    for folder in (above / name for above in folders for name in (".venv", "venv")):
        is_one = os.path.exists(folder / installed_packages.SETTINGS) and os.path.exists(folder / "bin/python")
        if is_one and os.path.realpath(folder) not in known:
            why = _cannot_run(folder / "bin/python") or needed.missing(folder / "bin/python")
            what = f"the environment {folder} is not used{why and f', and {why}'}; the run uses {sys.executable}"
            return [what + _to_use(folder, why)]
    return []


def _unused_note(prefix: Path, why: str) -> str:
    return f"hpcml does not use the active environment {prefix}, because {why}{_to_use(prefix, why)}"


def _to_use(prefix: Path, why: str) -> str:
    if _cannot_run(prefix / "bin/python"):
        return ""
    first = "install what it lacks, then add " if why.startswith("it lacks") else ""
    return f". To use it: {first}{OPTION} {shlex.quote(str(prefix))}"
