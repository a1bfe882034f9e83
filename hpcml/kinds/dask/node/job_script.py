"""The options of dask-jobqueue's job scripts, for workers that run already: variables, and what cannot be given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import dask.config

_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_FOR_GPUS = re.compile(r"--gres[= ]\S*gpu|--gpus|-G\s*\d|ngpus=[1-9]|-gpu\b", re.IGNORECASE)
_PROLOGUE = ("job-script-prologue", "env-extra")
_DIRECTIVES = ("job-extra-directives", "job-extra")


def asked(options: Mapping[str, Any], kind: str, environment: Mapping[str, str], *, gpus: bool
          ) -> tuple[dict[str, str], list[str]]:  # fmt: skip
    """Return the variables of a cluster's job script, and in words what workers of this run do not get of it.

    Parameters
    ----------
    options
        Those of the cluster.
    kind
        Its name in Dask's configuration, which may have the same options.
    environment
        The script's variables, for references to them.
    gpus
        Whether the workers have GPUs.
    """
    variables, lacking = exports(_lines(options, kind, _PROLOGUE), environment)
    directives = " ".join(_lines(options, kind, _DIRECTIVES))
    if not gpus and _FOR_GPUS.search(directives):
        lacking.append(f"GPUs of {directives} (submit with --gpus-per-node)")
    return variables, lacking


def _lines(options: Mapping[str, Any], kind: str, names: Iterable[str]) -> list[str]:
    for name in names:
        value = options.get(name.replace("-", "_"))
        value = dask.config.get(f"jobqueue.{kind}.{name}", None) if value is None else value
        if value:
            return [str(line) for line in ([value] if isinstance(value, str) else value)]
    return []


def exports(lines: Iterable[str], environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that lines of shell export, and the lines that need a shell."""
    exported: dict[str, str] = {}
    plain: dict[str, str] = {}  # set, and not exported so far
    lacking = []
    for line in (part.strip() for text in lines for part in text.splitlines()):
        words = _words(line)
        if words is None:
            lacking.append(f"{line} (set runtime.modules or runtime.setup)")
            continue
        is_export = words[:1] == ["export"]
        for name, equals, value in (word.partition("=") for word in words[is_export:]):
            if equals:
                known = {**environment, **plain, **exported}
                value = _REFERENCE.sub(lambda found: known.get(found[1] or found[2], ""), value)  # noqa: B023, PLW2901
            if is_export or name in exported or name in environment:
                exported[name] = value if equals else plain.get(name, environment.get(name, ""))
            else:
                plain[name] = value
    return exported, lacking


def _words(line: str) -> list[str] | None:
    """Return the words of ``export NAME=value …`` or ``NAME=value …``; None of a line that needs a shell."""
    if re.search(r"`|\$\(|[;|&<>]|\$\{\w*[^\w}]|'[^']*\$|\\\$|~", line):
        return None
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None
    names = words[words[:1] == ["export"] :]
    pattern = r"[A-Za-z_]\w*(=.*)?" if words[:1] == ["export"] else r"[A-Za-z_]\w*=.*"
    return words if all(re.fullmatch(pattern, name, re.DOTALL) for name in names) else None
