"""``hpcml completion``: the lines by which a shell completes words, and what a word may become at a TAB.

Nothing is asked of Slurm or of another machine. With a profile that is wrong there are no candidates: a shell that
completes has no place for a message, and the command itself will say it.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import assets, features_by_point, kinds
from hpcml.cli import commands
from hpcml.cli.commands import COMMANDS
from hpcml.errors import HpcmlError
from hpcml.options.table import BY_WORD
from hpcml.paths import SCRIPT
from hpcml.request.option import Option
from hpcml.sites import lookup, settings_layers
from hpcml.terminal import say_lines, shown

if TYPE_CHECKING:
    from hpcml.sites.schema import Site

# templates/completion.SHELL hands the words up to the cursor to `hpcml --complete`, which answers with a line for each
# candidate: the word, a tab, what it is. `:files` and `:folders` leave the names to the shell. bash divides words at =
# and : too, so they are put together again, and what stood before is taken off the candidates.
SHELLS = ("bash", "zsh", "fish")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the name of the shell."""
    parser.epilog = (
        "For bash, add to ~/.bashrc: . <(hpcml completion bash). "
        "For zsh, add to ~/.zshrc after compinit: . <(hpcml completion zsh). For fish, run once: "
        "hpcml completion fish > ~/.config/fish/completions/hpcml.fish."
    )
    parser.add_argument("shell", metavar="bash|zsh|fish", choices=SHELLS, help="your shell")


def run(options: argparse.Namespace) -> int:
    """Print a shell's lines."""
    say_lines((assets.folder("templates") / f"completion.{options.shell}").read_text().rstrip("\n"))
    return 0


# -- what a word may become ----------------------------------------------------------------------------------------

# A word and what it is; a word that ends with '=' or ':' goes on.
Candidate = tuple[str, str]
# In the place of a word: the shell itself completes names of files, or of folders.
FILES, FOLDERS = (":files", ""), (":folders", "")
_PLAIN = re.compile(r"[\w.,:=@%+/~-]+")  # words that no shell reads otherwise
_MOST = 200


class Line:
    """A command line up to the word that is being typed: the options before it, and what is still taken."""

    def __init__(self, command: str, host: str | None, arguments: Sequence[str] = ()) -> None:
        self.command, self.given = command, dict[str, list[str]]()
        self.environment = settings_layers.process_environment()
        self.host = self.environment.get("HPCML_HOST", "") if host is None else host
        self.parser: argparse.ArgumentParser | None = commands.build_parser(command)
        self.typed, self.script = commands.split_script(command, arguments)
        self.left = self._positionals()
        self.awaited: argparse.Action | None = None  # the option that waits for a value
        for word in self.typed:
            self._take(word)

    def _positionals(self) -> list[argparse.Action]:
        return [action for action in self.actions() if not action.option_strings]

    def _take(self, word: str) -> None:
        if self.awaited is not None and not (self.awaited.nargs == "+" and word.startswith("-")):
            self.given.setdefault(self.awaited.dest, []).append(word)
            self.awaited = self.awaited if self.awaited.nargs == "+" else None
        elif word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            action = self.option(name)
            if action is not None and equals:
                self.given.setdefault(action.dest, []).append(value)
            self.awaited = action if action is not None and action.nargs not in (0, "?") and not equals else None
        elif self.left and isinstance(self.left[0], argparse._SubParsersAction):  # noqa: SLF001
            self.parser = self.left[0].choices.get(word)
            self.left = self._positionals()
        elif self.left and self.left[0].nargs not in ("*", "+"):
            self.given.setdefault(self.left.pop(0).dest, []).append(word)

    def actions(self) -> list[argparse.Action]:
        """Return the options and words that the command, or its verb, takes."""
        return self.parser._actions if self.parser else []  # noqa: SLF001 - there is no other way to ask

    def option(self, name: str) -> argparse.Action | None:
        """Return the option of a name."""
        return next((action for action in self.actions() if name in action.option_strings), None)

    def options(self) -> Iterator[Candidate]:
        """Yield the options and what they mean."""
        for action in self.actions():
            if action.help != argparse.SUPPRESS:
                yield from ((name, action.help or "") for name in action.option_strings)

    def site(self) -> Site:
        """Return the profile that counts; of a host, the one of its name."""
        sites = self.given.get("site") or ([self.host] if self.host else [""])
        return lookup.load(sites[-1], self.environment, Path.cwd(), self.given.get("set", [])).site

    def runs(self) -> Path:
        """Return the runs folder."""
        from hpcml.runs import directories

        return directories.runs_folder(self.site().paths.runs, self.environment)


def tell(arguments: Sequence[str]) -> int:
    """Print what the last of the words after ``hpcml`` may become, a candidate and what it is on each line."""
    *before, current = arguments or [""]
    name = current.partition("=")[0] if current.startswith("--") and "=" in current else ""
    head = f"{name}=" if name else ""
    try:
        candidates = list(_candidates(before, current.removeprefix(head), name))
    except (HpcmlError, OSError):
        candidates = []  # see above
    by_shell = [candidate for candidate in candidates if candidate in (FILES, FOLDERS)]
    by_hpcml = [(f"{head}{word}", text) for word, text in candidates if (word, text) not in by_shell]
    fitting = [(word, text) for word, text in by_hpcml if word.startswith(current) and _PLAIN.fullmatch(word)]
    for word, text in [*by_shell, *fitting][:_MOST]:
        sys.stdout.write(f"{word}\t{shown(' '.join(text.split()))}\n")
    return 0


def _candidates(before: list[str], current: str, name: str) -> Iterable[Candidate]:
    """Return the candidates after some words, or after ``name=``; the typed beginning does not matter yet."""
    if before == ["--host"] or (not before and name == "--host"):
        return _hosts(Line("submit", ""), current)
    host, rest = commands.split_host(before)
    verbs = [(verb, command.does) for verb, command in COMMANDS.items()]
    if not rest and current.startswith("-"):
        options = {"--host": "run the command on the login node HOST", "--help": "list the commands"}
        return [*options.items(), ("--version", "show the version")]
    if not rest:
        return [*verbs, ("help", "show the help of a command or a topic")]
    if rest == ["help"]:
        from hpcml.cli import help as pages

        return [*verbs, *((page, title) for page, title in pages.pages().items() if page not in COMMANDS)]
    return _of_command(Line(rest[0], host, rest[1:]), rest, current, name) if rest[0] in COMMANDS else ()


def _of_command(line: Line, arguments: list[str], current: str, name: str) -> Iterable[Candidate]:
    command = COMMANDS[line.command]
    has_words = command.takes == commands.SCRIPT_OR_WORDS
    if command.takes and ("--" in arguments or (line.script and not has_words)):  # the script's own arguments
        return () if line.script == ["-m"] else [FILES]  # a module is no file
    if line.awaited is not None:
        return _values(line, line.awaited, current)
    if name:
        action = line.option(name)
        return _values(line, action, current) if action is not None and action.nargs in (None, "?") else ()
    if current.startswith("-"):
        return line.options()
    if has_words and len(line.typed) == 1 and line.typed[0] in command.values["SCRIPT"]:
        return _sweeps(line, current)
    if command.takes in (commands.SCRIPT, commands.SCRIPT_OR_WORDS) and not line.script:
        return [*(_offered(line, "SCRIPT", current) if has_words and not line.typed else ()), FILES]
    return _values(line, line.left[0], current) if line.left and not has_words else line.options()


def _values(line: Line, action: argparse.Action, current: str) -> Iterable[Candidate]:
    """Return the values of an option or of a word."""
    if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
        return [(each.dest, each.help or "") for each in action._choices_actions]  # noqa: SLF001
    if action.choices is not None:
        return [(str(choice), "") for choice in action.choices]
    option = BY_WORD.get(action.option_strings[0]) if action.option_strings else None
    if option and option.values:
        return _of_table(option, current)
    return _offered(line, str(action.metavar), current)


def _offered(line: Line, metavar: str, current: str) -> Iterable[Candidate]:
    """Return the candidates for a metavar: words of the table of commands, or those of a source."""
    offered = COMMANDS[line.command].values.get(metavar, metavar)
    if isinstance(offered, dict):
        return offered.items()
    source = SOURCES.get(offered)
    return source(line, current) if source else ()


def _of_table(option: Option, current: str) -> Iterator[Candidate]:
    """Yield the values of an option by the table of options; one that may be repeated takes several with commas."""
    before, comma, _ = current.rpartition(",") if option.several else ("", "", current)
    for value in option.values:
        if value not in before.split(","):
            yield f"{before}{comma}{value}", ""


# -- where values come from ----------------------------------------------------------------------------------------

Source = Callable[[Line, str], Iterable[Candidate]]


def _files(_: Line, __: str) -> Iterable[Candidate]:
    return [FILES]


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
    for name in dict.fromkeys([*site.qos, site.defaults.qos, *(row.qos for row in site.partitions.values())]):
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
    yield "last", "the run submitted last"
    of_name: dict[str, list[str]] = {}
    for run_id in run_ids:
        of_name.setdefault(directories.name_of(run_id), []).append(run_id)
    for name, mine in of_name.items():
        yield name, f"the newest of {len(mine)} runs with this name: {mine[0]}" if len(mine) > 1 else mine[0]
    for name, mine in of_name.items():
        if current.startswith(f"{name}-"):
            for run_id in mine:
                yield run_id, ""


def _services(line: Line, _: str) -> Iterator[Candidate]:
    """Yield the services of the run that is typed already, or else of the run submitted last."""
    from hpcml import services
    from hpcml.runs import directories, record

    own = {"dashboard": "Dask's dashboard", "jupyter": "JupyterLab"}
    names: list[str] = list(own)
    if not line.host:
        with contextlib.suppress(HpcmlError):  # there is no such run
            run = directories.find(line.runs(), line.given.get("run", ["last"])[-1])
            planned = record.planned(run)
            named = [services.declared(text)[0] for text in planned.declared]
            names = [*kinds.get(planned.kind).services, *named, *record.services(run.paths)]
    for name in dict.fromkeys(names):
        if not name[:1].isdigit():  # a port that somebody asked for
            yield name, own.get(name, "a service that the run has named")


def _after(line: Line, current: str) -> Iterator[Candidate]:
    run, colon, _ = current.partition(":")
    if colon:
        texts = {"ok": "after the run succeeded", "any": "after the run ended", "fail": "after the run failed"}
        for when, text in texts.items():
            yield f"{run}:{when}", text
    else:
        yield from _runs(line, current)


def _run_names(line: Line, current: str) -> Iterator[Candidate]:
    return (candidate for candidate in _runs(line, current) if candidate[0] != "last")


def _sweeps(line: Line, _: str) -> Iterator[Candidate]:
    if not line.host:
        for name in features_by_point.collected("names of sweeps", line.runs()):
            yield name, ""


def _examples(_: Line, __: str) -> Iterator[Candidate]:
    from hpcml.cli import new

    for name in new.examples():
        yield name, ""


def _definitions(_: Line, __: str) -> Iterator[Candidate]:
    for name in features_by_point.collected("names of definitions"):
        yield name, "ships with hpcml"
    yield FILES


def _settings(_: Line, current: str) -> Iterator[Candidate]:
    """Yield the keys of a profile, and after ``=`` the values that a key may have."""
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


def _roles(_: Line, __: str) -> Iterable[Candidate]:
    return [(role, "") for role in (SCRIPT, *kinds.roles(), "job")]


def _variables(line: Line, current: str) -> Iterator[Candidate]:
    if "=" not in current:
        for name in sorted(line.environment):
            yield name, "pass this variable with its value in this shell"


# By the word in capitals that stands for the value, where the table of commands has no words for it.
SOURCES: dict[str, Source] = {
    "DEFINITION": _definitions,
    "DEST": lambda _, __: [FOLDERS],
    "EXAMPLE": _examples,
    "FILE": _files,
    "FOLDER": lambda _, __: [FOLDERS],
    "HOST": _hosts,
    "IMAGE": _files,
    "KEY=VALUE": _settings,
    "LOG": _roles,
    "NAME[=VALUE]": _variables,
    "OUT.sif": _files,
    "PARTITION": _partitions,
    "PATTERN": _run_names,
    "QOS": _qos,
    "RUN": _runs,
    "RUN[:END]": _after,
    "SERVICE": _services,
    "SITE": _sites,
}
