"""What a word of the command line may become: asked by the shells' completion at every TAB, so it imports little.

Nothing is asked of Slurm or of another machine. What cannot be told (a profile that is wrong) is no candidate: a shell
that completes has no place for a message, and the command itself will say it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hpcml.cli import main
from hpcml.errors import HpcmlError
from hpcml.sites import layers, lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpcml.sites.schema import Site

# A word and what it is; a word that ends with '=' or ':' goes on.
Candidate = tuple[str, str]
# In the place of a word: the shell itself completes names of files, or of folders.
FILES, FOLDERS = (":files", ""), (":folders", "")
_PLAIN = re.compile(r"[\w.,:=@%+/~-]+")  # words that no shell reads otherwise
_MOST = 200
_WITH_SCRIPT = ("submit", "run", "plan", "sweep")
_MAIL = ("BEGIN", "END", "FAIL", "REQUEUE", "ALL", "NONE", "TIME_LIMIT", "TIME_LIMIT_90", "ARRAY_TASKS")


class Line:
    """A command line up to the word that is being typed: the options before it, and what they mean."""

    def __init__(self, command: str, host: str | None) -> None:
        self.command, self.given = command, dict[str, list[str]]()
        self.environment = layers.process_environment()
        self.host = self.environment.get("HPCML_HOST", "") if host is None else host

    def site(self) -> Site:
        """Return the profile that counts; of a host, the one of its name."""
        sites = self.given.get("site") or ([self.host] if self.host else [""])
        assignments = self.given.get("set", []) if self.command != "image" else []
        return lookup.load(sites[-1], self.environment, Path.cwd(), assignments).site

    def runs(self) -> Path:
        """Return the folder for runs."""
        from hpcml.runs import directories

        return directories.runs_folder(self.site().paths.runs, self.environment)


def tell(words: Sequence[str]) -> int:
    """Print what the last of the words behind ``hpcml`` may become, a candidate and what it is on each line."""
    try:
        found = list(complete(words or [""]))
    except (HpcmlError, OSError):
        found = []  # see above
    for word, text in found[:_MOST]:
        if _PLAIN.fullmatch(word):
            sys.stdout.write(f"{word}\t{' '.join(text.split())}\n")
    return 0


def complete(words: Sequence[str]) -> Iterator[Candidate]:
    """Yield what the last word may become."""
    *before, current = words
    if before == ["--host"] or (not before and current.startswith("--host=")):
        yield from _of_option(Line("", ""), "--host", current, _hosts)
        return
    host, before = main.split_host(before)
    if not before:
        yield from _starting(current, _first_words(current))
    elif before == ["help"]:
        commands = [(name, does) for name, (_, does) in main.COMMANDS.items()]
        yield from _starting(current, [*commands, ("--man", "the manual page")])
    elif before[0] in main.COMMANDS:
        yield from _of_command(Line(before[0], host), before[1:], current)


def _first_words(current: str) -> list[Candidate]:
    if current.startswith("-"):
        options = {"--host": "run the command on that login node", "--help": "list the commands"}
        return [*options.items(), ("--version", "which hpcml this is")]
    return [*((name, does) for name, (_, does) in main.COMMANDS.items()), ("help", "say more of a command")]


def _of_command(line: Line, before: list[str], current: str) -> Iterator[Candidate]:
    parser = main.build_parser(line.command)
    own, script = main.split_script(line.command, before)
    positionals, awaited = _walk(line, parser, own)
    if "--" in before and line.command in _WITH_SCRIPT:
        yield FILES  # the script's own arguments
    elif script and line.command != "sweep":
        if script != ["-m"]:  # a module is no file
            yield FILES
    elif awaited is not None:
        yield from _values(line, awaited, current)
    elif current.startswith("--") and "=" in current:
        name = current.partition("=")[0]
        action = positionals.option(name)
        if action is not None and action.nargs in (None, "?"):
            yield from _of_option(line, name, current, _source(action))
    elif current.startswith("-"):
        yield from _starting(current, positionals.options())
    else:
        yield from _of_word(line, own, positionals, current, has_script=bool(script))


def _of_word(
    line: Line, own: list[str], positionals: _Positionals, current: str, *, has_script: bool
) -> Iterator[Candidate]:
    """Yield what stands where no option does: a script, a run, a verb; where nothing more is taken, the options."""
    if line.command == "sweep" and not own:
        yield from _starting(current, [("status", "how sweeps stand"), ("table", "the points of a sweep")])
    if line.command == "sweep" and own in (["table"], ["status"]):
        yield from _starting(current, _sweeps(line, current))
    elif line.command in _WITH_SCRIPT and not has_script:
        yield FILES
    elif positionals.left and line.command != "sweep":
        yield from _values(line, positionals.left[0], current)
    else:
        yield from _starting(current, positionals.options())


class _Positionals:
    """The words that a parser still takes; a verb of the command has a parser of its own."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser
        self.left = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001 - there is no other way to ask

    def take(self, word: str) -> None:
        """Note that a word was given."""
        if not self.left:
            return
        first = self.left[0]
        if isinstance(first, argparse._SubParsersAction):  # noqa: SLF001
            verb = first.choices.get(word)
            self.__init__(verb) if verb else self.left.clear()  # type: ignore[misc]
        elif first.nargs not in ("*", "+"):
            del self.left[0]

    def option(self, name: str) -> argparse.Action | None:
        """Return the option of a name."""
        return self.parser._option_string_actions.get(name)  # noqa: SLF001

    def options(self) -> Iterator[Candidate]:
        """Yield the options and what they mean."""
        for action in self.parser._actions:  # noqa: SLF001
            if action.help != argparse.SUPPRESS:
                for name in action.option_strings:
                    yield name, action.help or ""


def _walk(
    line: Line, parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[_Positionals, argparse.Action | None]:
    """Return what is left of a command's own words, and the option that waits for a value, if one does."""
    positionals = _Positionals(parser)
    awaited: argparse.Action | None = None
    for word in words:
        if awaited is not None and not (awaited.nargs == "+" and word.startswith("-")):
            line.given.setdefault(awaited.dest, []).append(word)
            awaited = awaited if awaited.nargs == "+" else None
        elif word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            action = positionals.option(name)
            if action is not None and equals:
                line.given.setdefault(action.dest, []).append(value)
            awaited = action if action is not None and action.nargs not in (0, "?") and not equals else None
        else:
            positionals.take(word)
    return positionals, awaited


def _values(line: Line, action: argparse.Action, current: str) -> Iterator[Candidate]:
    """Yield the values of an option or of a word."""
    if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
        yield from _starting(current, [(each.dest, each.help or "") for each in action._choices_actions])  # noqa: SLF001
    elif action.choices is not None:
        yield from _starting(current, [(str(choice), "") for choice in action.choices])
    elif source := _source(action):
        yield from _starting(current, source(line, current))


def _of_option(line: Line, name: str, current: str, source: Source | None) -> Iterator[Candidate]:
    """Yield the values of ``--option=VALUE``, or of one that stands before; the shell completes files by itself."""
    value = current.removeprefix(f"{name}=")
    before = current[: len(current) - len(value)]
    for word, text in _starting(value, source(line, value) if source else ()):
        yield (word if (word, text) in (FILES, FOLDERS) else f"{before}{word}"), text


def _starting(current: str, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    for one in candidates:
        if one in (FILES, FOLDERS) or one[0].startswith(current):
            yield one


# -- where values come from --------------------------------------------------------------------------------------------

Source = Callable[[Line, str], Iterable[Candidate]]


def _files(_: Line, __: str) -> Iterable[Candidate]:
    return [FILES]


def _folders(_: Line, __: str) -> Iterable[Candidate]:
    return [FOLDERS]


def _fixed(*words: str) -> Source:
    return lambda _, __: [(word, "") for word in words]


def _sites(line: Line, _: str) -> Iterator[Candidate]:
    for name, paths in lookup.profile_files(line.environment).items():
        yield name, str(lookup.read_profile(paths[-1]).get("description", ""))


def _hosts(line: Line, _: str) -> Iterator[Candidate]:
    """Yield the sites that say how they are reached."""
    for name, paths in lookup.profile_files(line.environment).items():
        login = lookup.read_profile(paths[-1]).get("login", {})
        if isinstance(login, Mapping) and login.get("host"):
            yield name, str(login["host"])


def _partitions(line: Line, _: str) -> Iterator[Candidate]:
    for name, limits in line.site().partitions.items():
        nodes = f"{limits.max_nodes} nodes at most" if limits.max_nodes else ""
        gpus = f"{limits.gpus_per_node} GPUs a node" if limits.gpus_per_node else ""
        yield name, ", ".join(filter(None, (nodes, gpus)))


def _qos(line: Line, _: str) -> Iterator[Candidate]:
    from hpcml.sites.schema import Qos

    site = line.site()
    for name in dict.fromkeys([*site.qos, site.defaults.qos, *(one.qos for one in site.partitions.values())]):
        if name:
            limits = site.qos.get(name, Qos())
            nodes = f"{limits.max_nodes} nodes at most" if limits.max_nodes else ""
            yield name, ", ".join(filter(None, (limits.description, nodes, limits.max_time.text)))


def _runs(line: Line, current: str) -> Iterator[Candidate]:
    """Yield ``last`` and the names of runs, the newest first; the ids of a name when more than the name is typed."""
    from hpcml.runs import directories

    if line.host:
        return  # they are on the other machine
    run_ids = directories.ids(line.runs())[::-1]
    if not run_ids:
        return
    yield "last", run_ids[0]
    of_name: dict[str, list[str]] = {}
    for run_id in run_ids:
        of_name.setdefault(directories.name_of(run_id), []).append(run_id)
    for name, mine in of_name.items():
        yield name, f"the newest of {len(mine)}: {mine[0]}" if len(mine) > 1 else mine[0]
    for name, mine in of_name.items():
        if current.startswith(f"{name}-"):
            for run_id in mine:
                yield run_id, ""


def _after(line: Line, current: str) -> Iterator[Candidate]:
    run, colon, _ = current.partition(":")
    if colon:
        texts = {"ok": "when it has ended well", "any": "when it has ended", "fail": "when it failed"}
        for when, text in texts.items():
            yield f"{run}:{when}", text
    else:
        yield from _runs(line, current)


def _run_names(line: Line, current: str) -> Iterator[Candidate]:
    return (one for one in _runs(line, current) if one[0] != "last")


def _sweeps(line: Line, _: str) -> Iterator[Candidate]:
    from hpcml.sweeps import store

    if not line.host:
        for name in store.names(line.runs()):
            yield name, ""


def _of_name(line: Line, current: str) -> Iterable[Candidate]:
    """Yield what NAME stands for: of runs, of the run's services, or of a script that is to be written."""
    if line.command == "ls":
        return _run_names(line, current)
    if line.command == "tunnel":
        return [("dashboard", "of Dask"), ("jupyter", "JupyterLab")]
    return _examples(line, current) if line.command == "new" else ()


def _examples(_: Line, __: str) -> Iterator[Candidate]:
    from hpcml.cli import new

    for name in new.examples():
        yield name, ""


def _definitions(_: Line, __: str) -> Iterator[Candidate]:
    from hpcml.images import definition

    for name in definition.shipped():
        yield name, "ships with hpcml"
    yield FILES


def _settings(_: Line, current: str) -> Iterator[Candidate]:
    """Yield the keys of a profile, and behind ``=`` the values that a key may have."""
    from hpcml.sites.schema import CHOICES, Site

    key, equals, _value = current.partition("=")
    if equals:
        record: object = Site._field_defaults
        for part in key.split("."):
            fields = record if isinstance(record, dict) else getattr(record, "_field_defaults", {})
            record = fields.get(part)
        values = ("true", "false") if isinstance(record, bool) else CHOICES.get(key, ())
        for value in values:
            yield f"{key}={value}", ""
        return
    for section, fields in Site._field_defaults.items():
        names = getattr(fields, "_fields", None)
        for name in [f"{section}.{name}" for name in names] if names else [section] if isinstance(fields, str) else []:
            yield f"{name}=", ""


def _extras(_: Line, __: str) -> Iterator[Candidate]:
    from importlib import metadata

    yield "none", "hpcml and Jinja2 alone"
    try:
        names = metadata.metadata("hpcml").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return
    for name in names:
        yield name, ""


def _profilers(_: Line, current: str) -> Iterator[Candidate]:
    from hpcml.plan.workers import PROFILERS

    before, comma, _last = current.rpartition(",")
    for name in PROFILERS:
        if name not in before.split(","):
            yield f"{before}{comma}{name}", ""


def _variables(line: Line, current: str) -> Iterator[Candidate]:
    if "=" not in current:
        for name in sorted(line.environment):
            yield name, "with its value here"


# By the word in capitals that stands for the value; for others there is nothing to offer.
SOURCES: dict[str, Source] = {
    "AFTER": _after,
    "DEFINITION": _definitions,
    "DEST": _folders,
    "ENV": _variables,
    "ENV_FILE": _files,
    "EXAMPLE": _examples,
    "EXTRA": _extras,
    "FILE": _files,
    "FOLDER": _folders,
    "HOST": _hosts,
    "IMAGE": _files,
    "KEY=VALUE": _settings,
    "MAIL_TYPE": _fixed(*_MAIL),
    "NAME": _of_name,
    "OUT.sif": _files,
    "PARTITION": _partitions,
    "PATTERN": _run_names,
    "PROFILE": _profilers,
    "PROGRAM": _fixed("apptainer", "singularity"),
    "QOS": _qos,
    "ROLE": _fixed("driver", "scheduler", "worker", "job"),
    "ROUTE": _fixed("direct", "twohop", "srun"),
    "RUN": _runs,
    "SITE": _sites,
}


def _source(action: argparse.Action) -> Source | None:
    if "--build-arg" in action.option_strings:
        return None
    return SOURCES.get(str(action.metavar))
