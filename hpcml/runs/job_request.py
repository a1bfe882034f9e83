"""A job that a Python program asks for: the keywords of ``hpcml.map`` and ``hpcml.ElasticCluster`` as a request."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hpcml import __version__, schedulers
from hpcml.errors import UsageError, did_you_mean, nearest
from hpcml.plan.plan import Plan, RunLocation, plan
from hpcml.runs import directories
from hpcml.schedulers import sbatch_options
from hpcml.schedulers.request import JobSpec, job_name, measure
from hpcml.sites import layers, lookup
from hpcml.sites.lookup import LoadedSite
from hpcml.terminal import json_text, note

_TEXTS = ("account", "partition", "qos", "name", "dependency", "image")
_COUNTS = ("nodes", "cpus_per_node")
_MEASURES = ("time", "memory_per_node")
_PASSED = ("constraint", "exclude", "nodelist", "reservation", "mail_user", "mail_type", "begin", "exclusive")
KEYWORDS = ("site", "set", *_TEXTS, *_COUNTS, "gpus_per_node", *_MEASURES, "env", "sbatch", *_PASSED)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse(
    caller: str, spec: JobSpec, options: Mapping[str, Any], without: Collection[str] = ()
) -> tuple[LoadedSite, JobSpec]:
    """Return the site, and the request with what the keywords say; ``without`` are those that the caller lacks.

    Raises
    ------
    HpcmlError
        If a keyword or its value is wrong, or the site cannot be read.
    """
    environment = layers.process_environment()
    if host := environment.get("HPCML_HOST", ""):
        raise UsageError(f"{caller} submits on this machine, and HPCML_HOST names another", place=host)
    keywords = [name for name in KEYWORDS if name not in without]
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None and value is not False}
    for name in given:
        if name not in keywords:
            hint = did_you_mean(nearest(name, keywords), f"It takes {', '.join(keywords)}.")
            raise UsageError(f"{caller} has no option '{name}'", place=f"{name}={options[name]!r}", hint=hint)
    assignments = [f"{key}={_text(value)}" for key, value in given.pop("set", {}).items()]
    loaded = lookup.load(given.pop("site", ""), environment, spec.cwd, assignments)
    for text in loaded.ignored:
        note(text)
    spec = spec._replace(environment=_variables(given.pop("env", ())), sbatch=_passed(given))
    spec = spec._replace(**{name: _value(name, value) for name, value in given.items() if name != "gpus_per_node"})
    if "gpus_per_node" in given:
        kind, count = sbatch_options.gpus(str(given["gpus_per_node"]))
        spec = spec._replace(gpu_type=kind, gpus_per_node=_value("gpus_per_node", count))
    spec = schedulers.get(loaded.site.scheduler).with_variables(spec, loaded.is_from_this_call)
    return loaded, spec._replace(name=job_name(spec))


def _text(value: object) -> str:
    return json_text(value) if isinstance(value, (bool, list, tuple, dict)) else str(value)


def _value(name: str, value: object) -> Any:
    """Return a keyword's value as the request has it."""
    text = str(value)
    if name in _MEASURES:
        return measure(name, text, name)
    if name in _TEXTS:
        if not text.strip():
            raise UsageError(f"{name} is empty", place=name, hint="Leave it out, or give it a value.")
        return text
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(f"{value!r} is not a whole number", place=name, hint=f"Write {name}=4.")
    return int(text)


def _passed(given: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Take from the keywords those that are sbatch's own, and return its options; the last of a name counts."""
    own = given.pop("sbatch", [])
    texts = [own] if isinstance(own, str) else list(own)
    for name in [name for name in given if name in _PASSED]:
        option, value = f"--{name.replace('_', '-')}", given.pop(name)
        texts.append(option if value is True else f"{option}={value}")
    return tuple(dict(sbatch_options.directive(text, "sbatch") for text in texts).items())


def _variables(env: Any) -> tuple[tuple[str, str], ...]:
    """Return the variables of a mapping, or of texts ``NAME=VALUE``; no value stands in an error."""
    if isinstance(env, Mapping):
        pairs = list(env.items())
    else:
        texts = [env] if isinstance(env, str) else list(env)
        if any("=" not in text for text in texts):
            raise UsageError("A variable has no value", place="env", hint="Write env={'NAME': 'VALUE'}.")
        pairs = [(name, value) for name, _, value in (text.partition("=") for text in texts)]
    for name, _ in pairs:
        if not _VARIABLE.fullmatch(name) or name.startswith("HPCML_"):
            hint = "Write env={'NAME': 'VALUE'}. Names that begin with HPCML_ belong to hpcml."
            raise UsageError(f"{name!a} cannot be a variable's name here", place="env", hint=hint)
    return tuple(sorted((name, str(value)) for name, value in pairs))


def place(loaded: LoadedSite, below: str, name: str) -> Path:
    """Return a new folder's path beside the runs, in their folder ``below``; nothing is written.

    Raises
    ------
    StorageError
        If somebody else could replace what is there.
    """
    runs = directories.runs_folder(loaded.site.paths.runs, layers.process_environment())
    for text in directories.check_folder(runs, loaded.site.paths.trust):
        note(text)
    return runs / below / directories.new_id(name)


def make(folder: Path, loaded: LoadedSite) -> None:
    """Make that folder, for this user alone (0700)."""
    with directories.storage(folder), layers.narrowed_umask():
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directories.check_folder(folder.parent, loaded.site.paths.trust)
        folder.mkdir(mode=0o700)


def plan_at(loaded: LoadedSite, spec: JobSpec, directory: Path) -> Plan:
    """Return the plan of one job whose files are in a folder."""
    return plan(loaded.site, spec, RunLocation(directory, sys.executable, __version__, layers.user_umask()))


def program_folder() -> str:
    """Return the folder from which this program imports its own modules."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(program).resolve().parent if program else Path.cwd())
