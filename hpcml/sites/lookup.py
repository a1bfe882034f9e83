"""Find the site profiles, choose one for this machine and lay the settings over it."""

from __future__ import annotations

import datetime
import fnmatch
import functools
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import assets, safe_files
from hpcml.config_trust import Origin
from hpcml.errors import ConfigError, did_you_mean, nearest
from hpcml.sites import key_permissions, renamed_keys
from hpcml.sites.schema import CHOICES, CONFIDENCE, Fact, Identify, Site
from hpcml.sites.settings_layers import (
    Layers,
    Value,
    build,
    from_assignments,
    from_environment,
    process_environment,
    read_toml,
)
from hpcml.terminal import note

_IDENTIFY = re.compile(r"^\[identify\]\n(?:(?!\[).*\n)*", re.MULTILINE)


BY_DEFAULT = "no other profile matches this machine"  # why the local site is chosen on a machine without Slurm


class Project(NamedTuple):
    """A project's ``hpcml.toml`` that counts: its path, all that it sets as JSON, and what of that a submission names.

    Those are commands of the job, whom the job is open to, and who pays, as ``key = value``.
    """

    path: str = ""
    content: str = ""
    named: tuple[str, ...] = ()


class LoadedSite(NamedTuple):
    """A site with the layers that made it, so that each value's origin can be shown.

    ``notes`` are what the user should know: files of settings that do not count, and keys by their old names.
    """

    site: Site
    layers: Layers
    chosen_because: str
    project: Project = Project()
    notes: tuple[str, ...] = ()

    def is_from_this_call(self, default: str) -> bool:
        """Whether a default (``account``) was set by ``--set``, a script's line or a variable, and not by a file."""
        return self.layers.named("defaults", default).origin in (Origin.TYPED, Origin.LINE)


def config_folders(environment: Mapping[str, str]) -> list[Path]:
    """Return the machine-wide and the user's configuration folder, most general first."""
    home = environment.get("HOME", "")
    user = environment.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    folders = [Path(environment.get("HPCML_SYSTEM_CONFIG", "/etc/hpcml"))]
    return [*folders, Path(user) / "hpcml"] if user else folders


def why_ignored(path: Path) -> str:
    """Return the reason for which a file of settings is ignored, in words, and the remedy; empty if it is used."""
    try:
        safe_files.read_setting(path)
    except safe_files.ForeignError as error:
        next_step = error.hint or "copy the settings that you need from this file into your own file in ~/.config/hpcml"
        return f"hpcml ignores {path}: {error.why} ({next_step})"
    except (OSError, UnicodeDecodeError):
        return ""  # its reader reports it
    return ""


def profile_files(environment: Mapping[str, str], ignored: list[str] | None = None) -> dict[str, list[Path]]:
    """Return each profile's files by name, most general first (a later one is laid over an earlier one).

    Files that others could have written are left out, and named in ``ignored``. ConfigError if a folder of profiles
    cannot be listed.
    """
    by_name: dict[str, list[Path]] = {}
    shipped = assets.folder("profiles")
    folders = [shipped, *(place / "profiles" for place in config_folders(environment))]
    for folder in folders:
        try:
            paths = sorted(folder.glob("*.toml"))
        except OSError as error:  # a folder that exists but cannot be listed
            place = str(error.filename or folder)
            raise ConfigError(
                f"The profiles cannot be listed: {error.strerror}",
                place=place,
                hint="Give yourself read permission for the folder, or move the folder.",
            ) from error
        for path in paths:
            if folder == shipped or not (why := why_ignored(path)):
                by_name.setdefault(path.stem, []).append(path)
            elif ignored is not None:
                ignored.append(why)
    return by_name


def load(
    name: str,
    environment: Mapping[str, str],
    cwd: Path | None,
    assignments: Sequence[str] = (),
    lines: Sequence[tuple[str, str]] = (),
) -> LoadedSite:
    """Return a site by name, or the one this machine is recognised as when the name is empty.

    Parameters
    ----------
    cwd
        The folder at or above which a project's file counts; None where none does: what is said there holds for jobs,
        not for this machine.
    assignments
        ``KEY=VALUE`` of the command line.
    lines
        ``KEY=VALUE`` of a script's own lines, each with its line; those of the command line win.

    Raises
    ------
    ConfigError
        If there is no such profile, or a layer holds a key or value that the schema does not know, or that may not
        stand there.
    """
    profiles = _Profiles(environment)
    named_by = "--site"
    if not name and (name := environment.get("HPCML_SITE", "")):
        named_by = "HPCML_SITE"
    reason = f"named by {named_by}"
    if not name:
        name, reason = _recognise(profiles, environment)
    layers = profiles.layers(name, named_by)
    ignored = profiles.ignored
    for path in [place / "config.toml" for place in config_folders(environment)]:
        if path.is_file():
            if why := why_ignored(path):
                ignored.append(why)
            else:
                _add_settings(layers, path, name, profiles, _owner(path, environment))
    project = Project()
    if path_of_project := _project_file(cwd, ignored):
        project = _add_settings(layers, path_of_project, name, profiles, Origin.PROJECT)
    for table, variable in from_environment(environment):
        layers.add(table, variable, Origin.TYPED)
    for assignment, line in lines:
        layers.add(from_assignments([assignment], line), line, Origin.LINE)
    layers.add(from_assignments(assignments), "--set", Origin.TYPED)
    layers.add({"name": name}, "profile name", Origin.TYPED)
    site = _in_doubt(_built(layers), layers)
    return LoadedSite(site, layers, reason, project, (*ignored, *layers.notes))


def load_here(
    name: str, cwd: Path | None, assignments: Sequence[str] = (), lines: Sequence[tuple[str, str]] = ()
) -> LoadedSite:
    """Return a site as :func:`load` does in this process's environment; print its notes, each once."""
    loaded = load(name, process_environment(), cwd, assignments, lines)
    for text in loaded.notes:
        _note_once(text)
    return loaded


@functools.cache
def _note_once(text: str) -> None:
    note(text)


def load_profile(name: str, environment: Mapping[str, str]) -> LoadedSite:
    """Return a profile alone, without the settings that this machine, user or project lay over it.

    Parameters
    ----------
    name
        A profile's name, or the path of a file (with a ``/`` or the ending ``.toml``), which is only read.

    Raises
    ------
    ConfigError
        If there is no such profile or file, or it holds a key or value that the schema does not know.
    """
    profiles, path = _Profiles(environment), Path(name)
    if "/" in name or path.suffix == ".toml":
        table = read_toml(path)
        parent = table.get("extends")
        layers = profiles.below(str(parent), f"{name}: extends") if parent else Layers()
        layers.add(table, name, Origin.TYPED)
        name = path.stem
    else:
        layers = profiles.layers(name, "profile")
    layers.add({"name": name}, "profile name", Origin.TYPED)
    return LoadedSite(_built(layers), layers, "named", notes=(*profiles.ignored, *layers.notes))


def recorded(settings: Mapping[str, Mapping[str, object]]) -> Site:
    """Return the site that a run was submitted to, from the record's settings by dotted key.

    Raises
    ------
    ConfigError
        If this version does not know a key or a value of it.
    """
    layers = Layers()
    for key, setting in settings.items():
        value = Value(setting["value"], str(setting.get("origin", "")), Origin.LINE)
        layers.values[renamed_keys.current(key)] = value
    return _built(layers)


def _in_doubt(site: Site, layers: Layers) -> Site:
    """Return the site with what somebody else's file or line says of nodes without other users as only reported."""
    facts = {
        key.replace("\0", "."): Fact("reported", source=value.origin)
        for key, value in layers.values.items()
        if value.by.foreign and key_permissions.is_doubted(key)
    }
    return site._replace(facts=site.facts | facts) if facts else site


def _built(layers: Layers) -> Site:
    site = build(Site, layers)
    _check_choices(layers)
    return site._replace(facts=facts_in_force(site.facts, layers)) if site.facts else site


class _Profiles:
    """The profiles that this machine and user have; each file is read once, when it is first needed."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.ignored: list[str] = []
        self.environment = environment
        self.files = profile_files(environment, self.ignored)
        self._tables: dict[str, list[tuple[dict[str, Any], str, Origin]]] = {}

    def tables(self, name: str) -> list[tuple[dict[str, Any], str, Origin]]:
        """Return a profile's own tables, where each was read and whose it is, most general first."""
        if name not in self._tables:
            self._tables[name] = [
                (read_profile(path), _origin(path), _owner(path, self.environment)) for path in self.files[name]
            ]
        return self._tables[name]

    def rules(self, name: str) -> list[tuple[dict[str, Any], str, Origin]]:
        """Return the tables in which a profile says how it is recognised, without reading all of hpcml's own."""
        if name in self._tables or any(path.parent != assets.folder("profiles") for path in self.files[name]):
            return self.tables(name)
        return [(identify_of(path), _origin(path), Origin.SITE) for path in self.files[name]]

    def layers(self, name: str, named_by: str, below: tuple[str, ...] = ()) -> Layers:
        """Return a profile's settings over those that it extends; ConfigError if one is unknown or extends itself."""
        if name not in self.files:
            hint = did_you_mean(nearest(name, self.files), f"Known sites: {', '.join(sorted(self.files))}.")
            raise ConfigError(f"Unknown site '{name}'", place=named_by, hint=hint)
        if name in below:
            ring = " → ".join([*below, name])
            raise ConfigError(
                f"The profiles extend each other in a circle: {ring}",
                place=named_by,
                hint="Remove 'extends' from one of these profiles.",
            )
        layers = Layers()
        parent, said_by = next(
            ((t["extends"], by) for t, by, _ in reversed(self.tables(name)) if t.get("extends")), ("", "")
        )
        if parent:
            layers = self.below(str(parent), f"{said_by}: extends", (*below, name))
        for table, origin, by in self.tables(name):
            layers.add(table, origin, by)
        return layers

    def below(self, parent: str, named_by: str, below: tuple[str, ...] = ()) -> Layers:
        """Return the settings that a profile inherits from the one that it extends."""
        layers, not_inherited = Layers(), ("identify", "description", "extends", "name")
        inherited = self.layers(parent, named_by, below)
        layers.notes |= inherited.notes
        for key, value in inherited.values.items():  # nor is a fact of what is not inherited
            if key.replace("\0", ".").removeprefix("facts.").partition(".")[0] not in not_inherited:
                layers.values[key] = value
        return layers


def identify_of(path: Path) -> dict[str, Any]:
    """Return the part of a profile of hpcml's own that says how it is recognised: each submission needs it of all."""
    import tomllib

    part = _IDENTIFY.search(path.read_text(encoding="utf-8"))
    return tomllib.loads(part[0]) if part else {}


def read_profile(path: Path) -> dict[str, Any]:
    """Return a profile's file as a table.

    Raises
    ------
    ConfigError
        If it cannot be read, is not TOML, or others could have written it.
    """
    return read_toml(path, obeyed=path.parent != assets.folder("profiles"))


def _origin(path: Path) -> str:
    return f"profile {path.stem}" if path.parent == assets.folder("profiles") else str(path)


def _owner(path: Path, environment: Mapping[str, str]) -> Origin:
    """Return whose a file of settings is: the machine-wide folder and hpcml's profiles are the site's."""
    shared = (assets.folder("profiles"), config_folders(environment)[0], config_folders(environment)[0] / "profiles")
    return Origin.SITE if path.parent in shared else Origin.USER


def _recognise(profiles: _Profiles, environment: Mapping[str, str]) -> tuple[str, str]:
    import socket

    host = socket.gethostname()
    candidates = []
    for name in profiles.files:
        layers = Layers()  # what a profile extends says nothing about how this one is recognised
        for table, origin, by in profiles.rules(name):
            layers.add({"identify": table.get("identify", {})}, origin, by)
        rule = build(Site, layers).identify
        if why := _matches(rule, host, environment):
            candidates.append((rule.order, name, why))
    if not candidates:
        names = ", ".join(sorted(profiles.files))
        raise ConfigError(
            "No profile matches this machine", place="identify", hint=f"Choose a profile with --site: {names}."
        )
    _, name, why = min(candidates)
    return name, why


def _matches(rule: Identify, host: str, environment: Mapping[str, str]) -> str:
    """Return the reason for which the rule matches this machine, or nothing."""
    if rule.never:
        return ""
    reasons = []
    if rule.hostname:
        if not any(fnmatch.fnmatch(host, pattern) for pattern in rule.hostname):
            return ""
        reasons.append(f"the host is {host}")
    for variable, pattern in rule.environment.items():
        if not fnmatch.fnmatch(environment.get(variable, ""), pattern):
            return ""
        reasons.append(f"{variable} is {environment.get(variable, '')}")
    if rule.command:
        if shutil.which(rule.command, path=environment.get("PATH")) is None:
            return ""
        reasons.append(f"{rule.command} is on PATH")
    return " and ".join(reasons) or BY_DEFAULT


def _project_file(cwd: Path | None, ignored: list[str]) -> Path | None:
    """Return the nearest ``hpcml.toml`` at or above the working directory that nobody else could have written."""
    for place in (cwd, *cwd.parents) if cwd else ():
        path = place / "hpcml.toml"
        if not path.is_file():
            continue
        if not (why := why_ignored(path)):
            return path
        ignored.append(why)
    return None


def _add_settings(layers: Layers, path: Path, site: str, profiles: _Profiles, by: Origin) -> Project:
    """Lay a settings file over the layers: its own keys first, then those of its ``[site.NAME]`` table.

    Return it as a project's file. Its tables of other sites may set no more than the rest of it.
    """
    table = read_toml(path, obeyed=True)
    content = json.dumps(table, sort_keys=True, default=str)
    by_site = table.pop("site", {})
    if not isinstance(by_site, dict) or not all(isinstance(value, dict) for value in by_site.values()):
        raise ConfigError(
            "'site' must contain a table for each site",
            place=f"{path}: site",
            hint="Write a table with the site's name, such as [site.leonardo].",
        )
    for name in by_site:
        if name not in profiles.files:
            hint = did_you_mean(nearest(name, profiles.files), f"Known sites: {', '.join(sorted(profiles.files))}.")
            raise ConfigError(f"Unknown site '{name}'", place=f"{path}: site.{name}", hint=hint)
    parts = {name: Layers() for name in ("", *by_site)}
    for name, part in parts.items():
        part.add(by_site[name] if name else table, f"{path} [site.{name}]" if name else str(path), by)
    layers.add(table, str(path), by)
    layers.add(by_site.get(site, {}), f"{path} [site.{site}]", by)
    in_force = parts[""].values | (parts[site].values if site in parts else {})
    return Project(str(path), content, key_permissions.described({key: one.value for key, one in in_force.items()}))


def _check_choices(layers: Layers) -> None:
    for key, allowed in CHOICES.items():
        value = layers.values.get(key)
        if value is not None and value.value not in allowed:
            hint = did_you_mean(nearest(str(value.value), allowed), f"Allowed: {', '.join(allowed)}.")
            raise ConfigError(f"The value {value.value!r} is not allowed", place=f"{value.origin}: {key}", hint=hint)


# -- how each value is known -------------------------------------------------------------------------------------------


def facts_in_force(written: Mapping[str, Fact], layers: Layers) -> dict[str, Fact]:
    """Return the fact of each value that has one, and the facts with a value of their own.

    A fact is of the value that its key names, or of all below the table that it names. It holds for those that were
    set where the fact was: who sets another value answers for it.

    Raises
    ------
    ConfigError
        If a fact lacks something.
    """
    in_force: dict[str, Fact] = {}
    covered: set[str] = set()
    for escaped, value in layers.values.items():
        if escaped.startswith("facts."):
            continue
        key = escaped.replace("\0", ".")
        for above in _and_above(key):
            if above in written:
                covered.add(above)
                if _fact_origin(layers, above) == value.origin:
                    in_force[key] = written[above]
                break
    for key, fact in written.items():
        _check_fact(fact, _fact_place(layers, key), is_setting=key in covered)
        if not (fact.value or key in covered or any(above in layers.values for above in _and_above(key))):
            unused = f"{_fact_place(layers, key)}: this entry of [facts] describes a key that the profile does not set"
            layers.notes[f"{unused} (correct the entry's key, or remove the entry)"] = None
        if fact.value:
            in_force[key] = fact
    return in_force


def _and_above(key: str) -> Iterator[str]:
    while key:
        yield key
        key = key.rpartition(".")[0]


def _fact_origin(layers: Layers, key: str) -> str:
    escaped = key.replace(".", "\0")
    return layers.origin(f"facts.{escaped}")


def _fact_place(layers: Layers, key: str) -> str:
    return f"{_fact_origin(layers, key)}: facts.{key}"


def _check_fact(fact: Fact, place: str, *, is_setting: bool) -> None:
    if fact.confidence not in CONFIDENCE:
        hint = did_you_mean(nearest(fact.confidence, CONFIDENCE), f"Set confidence to one of: {', '.join(CONFIDENCE)}.")
        raise ConfigError(f"Unknown confidence '{fact.confidence}'", place=place, hint=hint)
    if not fact.source:
        raise ConfigError(
            "This entry of [facts] has no source", place=place, hint="Add source = '…': a page, a command or a person."
        )
    try:
        datetime.date.fromisoformat(fact.date)
    except ValueError as error:
        raise ConfigError(f"'{fact.date}' is not a date", place=place, hint="Example: date = 2026-11-22") from error
    if fact.value and is_setting:
        hint = "Remove 'value' from the entry: the profile sets the value."
        raise ConfigError("An entry of [facts] about a setting must not contain a value", place=place, hint=hint)
