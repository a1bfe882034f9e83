"""Words that make PyTorch's launchers use a rendezvous by which other accounts run code: a note before submission.

torch keeps the state of ``c10d`` and ``etcd-v2`` as a pickle in a store that accepts every connection, and each
``torchrun`` unpickles it every few seconds. With ``static``, which hpcml sets, each ``torchrun`` reads only JSON.

The texts that a run starts with are searched for these words. No shell is imitated, so no spelling of a call matters.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from hpcml import kinds, safe_files
from hpcml.errors import UsageError
from hpcml.plan.make_plan import Plan
from hpcml.request.record import RunRequest
from hpcml.runs import modules_code_uses
from hpcml.sites import settings_layers
from hpcml.sites.schema import Site
from hpcml.units import counted
from hpcml.workload_forms import Form

UNPICKLES = ("c10d", "etcd-v2")  # rendezvous whose state is a pickle
_TORCHRUN = r"(?<![\w-])torchrun(?![\w./-])|torch[./]distributed[./](?:run|launch)\b"
_LAUNCHER = re.compile(rf"{_TORCHRUN}|\baccelerate\b")
_TOPIC = re.compile(rf"{_TORCHRUN}|\baccelerate\b|rdzv|PET_", re.IGNORECASE)  # without it, the words mean other things
_BACKEND = (
    r"""(?:(?<![\w-])[\w-]{1,40}(?:=|\s|:\s)\s*["']?)?"""  # what it is the value of
    rf"""(?<![\w./+])(?<!\w-)(?:{"|".join(UNPICKLES)})(?![\w./-])"""
)
_STANDALONE = r"--stan(?:d(?:a(?:l(?:o(?:ne?)?)?)?)?)?(?![\w-])"  # argparse takes each beginning that fits one option
_BY_VARIABLE = r"""PET_STANDALONE=(?!["']?0*["']?(?:\s|$))[^\s"']+"""
# Without the variables that hpcml sets, torchrun on one node chooses c10d itself.
_EMPTY = r"\benv\s+(?:-u\s*\S+\s+){0,9}(?:-\w{0,9}i\w*|--i[\w-]+|-)(?=\s)"
_UNSET = r"(?:\bunset\s.{0,200}|(?<=\s)-u\s*|--unset[=\s])\W{0,5}PET_(?:RDZV\w*|(?![A-Z]))"
_UNSAFE = re.compile("|".join((_BACKEND, _STANDALONE, _BY_VARIABLE, _EMPTY, _UNSET)))
_PORT = re.compile(r"rdzv[-_]e|master[-_]p", re.IGNORECASE)  # begins an option or a variable that places the rendezvous
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*|\bTORCH_LOGS=\S*", re.MULTILINE)
_WORD = re.compile(r"""[^\s\0"'`;&|()<>=]+""")
_PYTHON_FILE = re.compile(r"[^-\s=][^\s=]*\.(?:py|ipynb)")
_NAMES = (".sh", ".bash", ".yaml", ".yml", ".json")  # of files that a text names
_COMMAND = "the command"
_LIMIT, _MOST_FILES = 1 << 16, 64  # bytes of a file, files
_FLAGS = (  # of torchrun; each other option has a value
    "--help", "--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank", "--use-env", "-h", "-m",
)  # fmt: skip


class _Option(NamedTuple):
    """An option of a launcher: its name with dashes, its value, and which words of the command it is."""

    name: str
    value: str
    words: range


def check(site: Site, spec: RunRequest, made: Plan) -> list[str]:
    """Return a note on each text that lets PyTorch's launchers use a rendezvous by which other accounts run code.

    Raises
    ------
    UsageError
        If torchrun would wait for nodes that the run does not have, or each torchrun for the others.
    """
    variables = settings_layers.process_environment() if site.slurm.export.startswith("ALL") else {}
    variables |= {**site.environment, **dict(spec.environment)}
    has_hpcmls = kinds.get(spec.kind).ranks and made.inside.workers.per_node == 1  # rendezvous, by PET_ variables
    command = _command(spec)
    texts = _texts(site, spec, command, variables)
    everything = "\n".join(texts.values())
    if not has_hpcmls and not _LAUNCHER.search(everything):
        return []
    if has_hpcmls and made.inside.job.nodes > 1 and (typed := _standalone(command)):
        hint = f"Remove {typed}: hpcml connects the nodes. Or request one node: --nodes 1."
        problem = f"torchrun {typed} is for one node, but the run has {made.inside.job.nodes} nodes: it would hang"
        raise UsageError(problem, place="--ranks", hint=hint)
    batch = spec.code.form is Form.BATCH
    notes = [_note(f"{words} in {place}", words, command, batch=batch) for place, words in _found(texts)]
    if because := _by_variable(variables):
        notes.append(_note(because, because.partition("=")[0], []))
    placed = variables.get("PET_RDZV_ENDPOINT") or variables.get("PET_MASTER_PORT") or _PORT.search(everything)
    if not notes and not has_hpcmls and not placed and re.search(_TORCHRUN, everything):
        # Of one node, torch itself replaces static by c10d where neither a port nor an endpoint is given.
        notes.append(_note("torchrun without --ranks node", "", command, batch=batch))
    if has_hpcmls and not notes and variables.get("PET_RDZV_BACKEND", "static") == "static":
        notes += _other_sizes(command, texts, made.inside.job.nodes)
    return notes


def _note(because: str, remove: str, command: list[str], *, batch: bool = False) -> str:
    """Return a note: why, and the command to type instead, or what to remove."""
    options = [option for option in _options(_own(command)) if option.name.startswith(("--rdzv", "--stan"))]
    gone = {at for option in options for at in option.words}
    rest = [word for at, word in enumerate(command) if at not in gone]
    if batch:
        remedy = "Add --translate: hpcml then starts torchrun by --ranks node, with the static rendezvous"
    elif (gone or not remove) and not _UNSAFE.search(" ".join(_own(rest))):
        dashes = "" if rest[0] == "-m" else "-- "
        remedy = f"Use '--ranks node {dashes}{shlex.join(rest)}' instead"
    else:
        remedy = f"Remove '{remove}': with --ranks node, hpcml sets the static rendezvous"
    risk = "other users of the nodes can run code as you, because PyTorch unpickles what they send"
    return f"{because}: {risk}. {remedy}"


def _standalone(command: list[str]) -> str:
    """Return the typed option by which torchrun makes a rendezvous for its node alone, empty without one."""
    return next((option.name for option in _options(_own(command)) if re.fullmatch(_STANDALONE, option.name)), "")


def _by_variable(variables: Mapping[str, str]) -> str:
    """Return the variable by which torchrun uses such a rendezvous, empty if there is none."""
    if variables.get("PET_STANDALONE", "0").strip("0"):
        return f"PET_STANDALONE={variables['PET_STANDALONE']}"
    backend = variables.get("PET_RDZV_BACKEND", "")
    return f"PET_RDZV_BACKEND={backend}" if backend in UNPICKLES else ""


def _found(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the place of the first such words of each text, and the words."""
    if not _TOPIC.search("\n".join(texts.values())):
        return
    for name, text in texts.items():
        if found := _UNSAFE.search(text):
            line = text.count("\n", 0, found.start()) + 1
            words = " ".join(re.sub("[\"']", "", found[0]).split())
            yield name if name == _COMMAND else modules_code_uses.place(Path(), name, line), words


# -- the texts -------------------------------------------------------------------------------------------------------


def _command(spec: RunRequest) -> list[str]:
    """Return the words of what a request starts."""
    script = spec.code.script
    if spec.code.form is Form.MODULE:
        return ["-m", script.name, *spec.code.arguments]
    is_here = script.is_relative_to(spec.code.cwd)
    return [f"./{os.path.relpath(script, spec.code.cwd)}" if is_here else str(script), *spec.code.arguments]


def _own(command: Sequence[str]) -> list[str]:
    """Return the words up to a Python file of the user's; the others are the file's."""
    files_at = (at for at, word in enumerate(command) if _PYTHON_FILE.fullmatch(word) and not _LAUNCHER.search(word))
    return list(command[: next(files_at, len(command))])


def _texts(site: Site, spec: RunRequest, command: list[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return by place the texts that say what runs, without comments: command, setup, and the files that these name."""
    own = _own(command)
    texts = {_COMMAND: "\n".join(own), "runtime.setup": "\n".join(site.runtime.setup)}
    texts = {place: _COMMENT.sub("", text) for place, text in texts.items()}
    names = [*own, *_WORD.findall(texts[_COMMAND]), *_named(texts["runtime.setup"])]
    while names and len(texts) < _MOST_FILES:
        name = names.pop(0)
        if name not in texts and (text := _text(spec.code.cwd / _expanded(name, variables))):
            texts[name] = text
            names += _named(text)
    everything = "\n".join(texts.values())
    if re.search(r"\baccelerate\b", everything) and not re.search("--config[-_]file", everything):
        cache = variables.get("HF_HOME") or f"{variables.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
        for kind in ("yaml", "json"):
            default = Path(cache, "accelerate", f"default_config.{kind}").expanduser()
            texts[str(default)] = _text(default)
    return texts


def _expanded(name: str, variables: Mapping[str, str]) -> str:
    return Template(re.sub("^~/", "$HOME/", name)).safe_substitute(variables)


def _named(text: str) -> Iterator[str]:
    """Yield the words of a text that look like names of shell scripts and configurations."""
    return (word for word in _WORD.findall(text) if word.endswith(_NAMES))


def _text(path: Path) -> str:
    """Return a small text file of the user's without comments, empty if it is another file, or Python code."""
    if path.suffix in (".py", ".ipynb"):
        return ""
    try:
        content = safe_files.read(path, _LIMIT, follow=True)
    except OSError:
        return ""  # no file, or one that its reader reports
    if b"\0" in content or re.match(rb"#!.*python", content):
        return ""
    return _COMMENT.sub("", content.decode(errors="replace"))


# -- torchrun's options ----------------------------------------------------------------------------------------------


def _options(words: Sequence[str]) -> Iterator[_Option]:
    """Yield the options of the launcher among some words, as far as the words tell."""
    launchers = (at for at, word in enumerate(words) if _LAUNCHER.search(word) and not re.search(r"\s", word))
    at = next(launchers, len(words)) + 1
    at += words[at : at + 1] == ["launch"]
    end_of_own = at + len(_own(words[at:]))
    while at < end_of_own and words[at].startswith("-") and words[at] != "--":
        name, equals, value = words[at].partition("=")
        name = name.replace("_", "-")
        has_value = not equals and not any(flag.startswith(name) for flag in _FLAGS)
        end = at + 1 + (has_value and at + 1 < end_of_own and not words[at + 1].startswith("-"))
        yield _Option(name, value if equals else "".join(words[at + 1 : end]), range(at, end))
        at = end


def _other_sizes(command: list[str], texts: Mapping[str, str], nodes: int) -> Iterator[str]:
    """Yield notes on each torchrun in a text that would wait for other nodes; refuse one that was typed."""
    if problem := _other_size(_own(command), nodes):
        raise UsageError(problem, place="--ranks", hint="Remove --nnodes: hpcml sets it.")
    for place, text in texts.items():
        for line in text.replace("\\\n", " ").splitlines():
            if problem := _other_size(re.findall(r"""[^\s"'`;&|()]+""", line), nodes):
                yield f"{place}: {problem}. Remove --nnodes: hpcml sets it"


def _other_size(command: Sequence[str], nodes: int) -> str:
    """Return the way in which torchrun would wait for nodes that the run lacks, empty if it would not.

    With the static rendezvous it waits until all nodes of the upper end of a range are there.
    """
    options = list(_options(command))
    asked = next((option for option in reversed(options) if "--nnodes".startswith(option.name)), None)
    most = asked.value.rpartition(":")[2] if asked else ""
    has_endpoint = any(option.name.startswith("--rdzv-e") for option in options)
    if not asked or not re.fullmatch("[0-9]{1,9}", most) or int(most) == nodes or has_endpoint:
        return ""
    typed = shlex.join(command[at] for at in asked.words)
    return f"torchrun {typed} needs {counted(int(most), 'node')}, but the run has {counted(nodes, 'node')}"
