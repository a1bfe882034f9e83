"""Words that make PyTorch's launchers use a rendezvous by which other accounts run code: a note before submission.

torch keeps the state of ``c10d`` and ``etcd-v2`` as a pickle in a store that accepts every connection, and each
``torchrun`` unpickles it every few seconds. With ``static``, which hpcml sets, each ``torchrun`` reads only JSON.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import files
from hpcml.errors import UsageError
from hpcml.forms import Form
from hpcml.kinds.ranks import KIND
from hpcml.plan.plan import Plan
from hpcml.request.record import RunRequest
from hpcml.runs import ranks
from hpcml.sites import layers
from hpcml.sites.schema import Site
from hpcml.units import counted

UNPICKLES = ("c10d", "etcd-v2")  # rendezvous whose state is a pickle
_TORCHRUN, _ACCELERATE = "torchrun", "accelerate launch"
# How the launchers are called: as a program, as words of a program, as a module.
_PROGRAMS = {"torchrun": _TORCHRUN, "accelerate-launch": _ACCELERATE}
_MODULES = {
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate.commands.launch": _ACCELERATE,
}
# Options of torchrun, of which argparse takes every beginning that fits one option; `_` may stand for `-`.
_FLAGS = {"--help", "--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank", "--use-env"}
_WITH_VALUE = {
    "--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--max-restarts",
    "--monitor-interval", "--start-method", "--event-log-handler", "--role", "--log-dir", "--redirects", "--tee",
    "--log-line-prefix-template", "--local-ranks-filter", "--duplicate-stdout-filters", "--duplicate-stderr-filters",
    "--node-rank", "--master-addr", "--master-port", "--local-addr", "--logs-specs", "--numa-binding",
    "--signals-to-handle", "--shutdown-timeout", "--print-completion",
}  # fmt: skip
_OF_RENDEZVOUS = {"--standalone", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"}
_CONFIG_LIMIT = 1 << 16  # bytes
_IN_CONFIG = re.compile(rf"""(?:^|[{{,])\s*["']?rdzv_backend["']?\s*:\s*["']?({"|".join(UNPICKLES)})\b""", re.MULTILINE)
_OPERATORS = re.compile(r"[;&|()<>]+")


class _Option(NamedTuple):
    """An option of a launcher: its whole name, its value, and which of the launcher's words it is."""

    name: str
    value: str
    start: int
    end: int


class _Launch(NamedTuple):
    """A launcher with its own options; ``text`` is the shell's text that it is in, empty where it was typed itself."""

    launcher: str
    words: list[str]  # the whole command
    options: list[_Option]
    text: str

    def value(self, name: str) -> str | None:
        """Return the value that counts of an option, None if it is not given."""
        return next((option.value for option in reversed(self.options) if option.name == name), None)

    def typed(self, name: str) -> str:
        """Return an option as it was typed."""
        last = next(option for option in reversed(self.options) if option.name == name)
        return shlex.join(self.words[last.start : last.end])

    def without_rendezvous(self) -> str:
        """Return the line without its words on the rendezvous."""
        gone = {at for one in self.options if one.name in _OF_RENDEZVOUS for at in range(one.start, one.end)}
        return shlex.join(word for at, word in enumerate(self.words) if at not in gone)


def check(site: Site, spec: RunRequest, made: Plan) -> list[str]:
    """Return a note on each launcher of PyTorch that lets other accounts run code.

    Raises
    ------
    UsageError
        If torchrun would wait for nodes that the run does not have.
    """
    variables = layers.process_environment() if site.slurm.export.startswith("ALL") else {}
    variables |= {**site.environment, **dict(spec.environment)}
    has_hpcmls = spec.kind == KIND.name and made.inside.workers.per_node == 1  # rendezvous, by PET_ variables
    ours = has_hpcmls and variables.get("PET_RDZV_BACKEND", "static") == "static"
    launches = list(_launches(spec))
    notes = []
    for launch in launches:
        if because := _unpickles(launch, variables, spec.code.cwd, ours=ours):
            notes.append(_note(because, launch, has_hpcmls=has_hpcmls))
        elif ours and launch.launcher == _TORCHRUN and (problem := _other_size(launch, made.inside.job.nodes)):
            if launch.text:
                notes.append(f"{launch.text}: {problem}. Remove --nnodes: hpcml sets it")
            else:
                raise UsageError(problem, place="--ranks", hint="Remove --nnodes: hpcml sets it.")
    if has_hpcmls and not launches and (because := _by_variable(variables)):
        notes.append(_risk(because) + f". Remove {because.partition('=')[0]}: hpcml sets the static rendezvous")
    return list(dict.fromkeys(notes))


def _risk(because: str) -> str:
    return f"{because}: other users of the nodes can run code as you, because PyTorch unpickles what they send"


def _note(because: str, launch: _Launch, *, has_hpcmls: bool) -> str:
    """Return the note on a launcher: why, and the line to type instead."""
    if because.startswith("PET_"):
        remedy = f"Remove {because.partition('=')[0]}: hpcml sets the static rendezvous"
    elif because.startswith("rdzv_backend:"):
        remedy = "Write rdzv_backend: static"
    elif launch.text:
        remedy = f"In {launch.text}, use '{launch.without_rendezvous()}' instead"
        remedy += "" if has_hpcmls else ", and add --ranks node"
    else:
        dashes = "" if launch.words[0] == "-m" else "-- "
        remedy = f"Use '--ranks node {dashes}{launch.without_rendezvous()}' instead"
    return f"{_risk(because)}. {remedy}"


def _unpickles(launch: _Launch, variables: Mapping[str, str], cwd: Path, *, ours: bool) -> str:
    """Return what makes a launcher use such a rendezvous, empty if nothing does."""
    if launch.value("--standalone") is not None:
        return f"{launch.launcher} {launch.typed('--standalone')}"
    if (backend := launch.value("--rdzv-backend")) is not None:
        return f"{launch.launcher} {launch.typed('--rdzv-backend')}" if backend in UNPICKLES else ""
    if launch.launcher == _ACCELERATE:  # it gives torch the rendezvous of its own options, else static
        return _in_config(launch.value("--config-file"), cwd)
    if because := _by_variable(variables):
        return because
    # Of one node, torch itself replaces static by c10d where neither a port nor an endpoint is given.
    placed = [launch.value(name) for name in ("--rdzv-endpoint", "--master-port")]
    placed += [variables.get("PET_RDZV_ENDPOINT"), variables.get("PET_MASTER_PORT")]
    nodes = launch.value("--nnodes") or variables.get("PET_NNODES") or "1"
    return "torchrun without --ranks node" if not ours and not any(placed) and nodes in ("1", "1:1") else ""


def _by_variable(variables: Mapping[str, str]) -> str:
    """Return the variable by which torchrun uses such a rendezvous, empty if there is none."""
    if variables.get("PET_STANDALONE", "0").strip("0"):
        return f"PET_STANDALONE={variables['PET_STANDALONE']}"
    backend = variables.get("PET_RDZV_BACKEND", "")
    return f"PET_RDZV_BACKEND={backend}" if backend in UNPICKLES else ""


def _other_size(launch: _Launch, nodes: int) -> str:
    """Return how torchrun would wait for nodes that the run does not have, empty if it would not.

    With the static rendezvous it waits until all nodes of the upper end of a range are there.
    """
    most = (launch.value("--nnodes") or "").rpartition(":")[2]
    if not most.isdecimal() or int(most) == nodes or launch.value("--rdzv-endpoint") is not None:
        return ""
    asked = f"torchrun {launch.typed('--nnodes')} needs {counted(int(most), 'node')}"
    return f"{asked}, but the run has {counted(nodes, 'node')}"


def _in_config(name: str | None, cwd: Path) -> str:
    """Return the line of accelerate's configuration that names such a rendezvous, empty if none does."""
    if not name:
        return ""
    try:
        text = files.read(cwd / name, _CONFIG_LIMIT, follow=True).decode(errors="replace")
    except OSError:
        return ""  # accelerate reports a file that it cannot read
    found = _IN_CONFIG.search(text)
    return f"rdzv_backend: {found[1]} in {name}" if found else ""


def _launches(spec: RunRequest) -> Iterator[_Launch]:
    """Yield the launchers among the words of a request, and in the text that a shell is to run."""
    script, arguments = spec.code.script, list(spec.code.arguments)
    if spec.code.form is Form.MODULE:
        yield from _found(["-m", script.name, *arguments], most=1)
        return
    is_here = script.is_relative_to(spec.code.cwd)
    name = f"./{os.path.relpath(script, spec.code.cwd)}" if is_here else str(script)
    if spec.code.form is not Form.PROGRAM:
        yield from _found([name, *arguments], most=1)  # the other words are the script's own
        return
    yield from _found([name, *arguments])
    texts = {f"the text for {name}": word for word in arguments if len(word.split()) > 1}  # bash -c "torchrun …"
    if (script_text := ranks.shell_script(spec)) not in ("", *texts.values()):
        texts[next((word for word in arguments if not word.startswith("-")), name)] = script_text
    for place, text in texts.items():
        for words in _commands(text):
            yield from _found(words, text=place)


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in a shell's text, as far as they can be read."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quotation that goes on in the next line
            words = line.split()
        command: list[str] = []
        for word in words:
            if _OPERATORS.fullmatch(word):
                yield command
                command = []
            else:
                command.append(word)
        yield command


def _found(words: Sequence[str], *, text: str = "", most: int | None = None) -> Iterator[_Launch]:
    """Yield the first launcher of PyTorch in a command, also behind other words (``env A=1 torchrun``)."""
    for at, word in enumerate(words[:most]):
        launcher, options = _PROGRAMS.get(os.path.basename(word), ""), at + 1
        if not launcher and os.path.basename(word) == "accelerate" and list(words[at + 1 : at + 2]) == ["launch"]:
            launcher, options = _ACCELERATE, at + 2
        if not launcher and word == "-m":
            launcher, options = _MODULES.get("".join(words[at + 1 : at + 2]), ""), at + 2
        if not launcher and word.startswith("-m"):
            launcher = _MODULES.get(word[2:], "")
        if launcher:
            parse = _options_of_torchrun if launcher == _TORCHRUN else _options_of_accelerate
            yield _Launch(launcher, list(words), list(parse(words, options)), text)
            return


def _options_of_torchrun(words: Sequence[str], at: int) -> Iterator[_Option]:
    """Yield torchrun's options up to the training script, as argparse reads them."""
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, value = words[at].partition("=")
        if not name.startswith("--"):
            end = at + 1 + (name in ("-r", "-t"))
            yield _Option(name, "", at, end)
            at = end
            continue
        dashed = name.replace("_", "-")
        of = {dashed} & (_FLAGS | _WITH_VALUE) or {one for one in _FLAGS | _WITH_VALUE if one.startswith(dashed)}
        whole = next(iter(of)) if len(of) == 1 else dashed
        has_value = not equals and not (of and of <= _FLAGS)
        end = min(len(words), at + 1 + has_value)
        yield _Option(whole, value if equals else "".join(words[at + 1 : end]), at, end)
        at = end


def _options_of_accelerate(words: Sequence[str], at: int) -> Iterator[_Option]:
    """Yield accelerate's options that matter here, up to a word that is a Python file; it takes no beginnings."""
    while at < len(words) and not words[at].endswith(".py"):
        name, equals, value = words[at].partition("=")
        dashed, end = name.replace("_", "-"), at + 1
        if dashed in ("--rdzv-backend", "--rdzv-conf", "--config-file"):
            end = min(len(words), end + (not equals))
            yield _Option(dashed, value if equals else "".join(words[at + 1 : end]), at, end)
        at = end
