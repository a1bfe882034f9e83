"""The table of options as a parser of words, hpcml's way of refusing words, and help that fits the terminal."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hpcml import errors
from hpcml.terminal import folded, say_lines

if TYPE_CHECKING:
    from hpcml.request.option import Option

WIDEST = 118  # columns; longer lines are hard to read
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")  # between an example and what it says


class Parser(argparse.ArgumentParser):
    """argparse with hpcml's way of failing (one sentence, a next step, status 64) and its layout of help.

    ``--help`` leaves out the actions in ``rare``; ``examples`` end it.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": HelpLayout, **settings, "add_help": False})
        self.rare: list[argparse.Action] = []
        self.examples = ""
        self.host = ""  # the login node that runs the command
        # What a command suggests for unknown words: called with the options, the words that it knows, and these
        self.suggest: Callable[[argparse.Namespace, list[str], list[str]], str] = lambda _given, _known, _unknown: ""
        self.add_argument("-h", "--help", dest="help", action=_Help, help="show this help")
        self.help_all = self.add_argument("--help-all", dest="help", action=_Help, help=argparse.SUPPRESS)

    def format_help(self, *, whole: bool = False) -> str:
        """Return the help: of the common options in the order in which they were added, or of all by group."""
        if whole or not self.rare:
            return super().format_help() + self.examples
        layout = HelpLayout(self.prog)
        layout.whole = False
        layout.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        layout.add_text(self.description)
        layout.start_section("common options")
        common = [action for action in self._actions if action not in self.rare]
        layout.add_arguments(sorted(common, key=lambda one: (not isinstance(one, _Help), bool(one.option_strings))))
        layout.end_section()
        layout.add_text(self.epilog)
        return layout.format_help() + self.examples

    def describe(self, texts: Mapping[str, str]) -> None:
        """Replace the help of options, by their words."""
        for action in self._actions:
            action.help = texts.get("".join(action.option_strings[:1]), action.help)

    def show_site_defaults(self, site: str, settings: Iterable[str]) -> None:
        """Put the site's own defaults into the help, if a site is recognised and its settings are valid."""
        from hpcml import schedulers
        from hpcml.options import table
        from hpcml.sites import lookup, settings_layers

        try:
            loaded = lookup.load(site or self.host, settings_layers.process_environment(), Path.cwd(), list(settings))
        except (errors.HpcmlError, OSError):
            return  # the command itself reports it
        for action in self._actions:
            option = table.BY_WORD.get("".join(action.option_strings[:1]))
            if option and action.help == option.help():
                action.help = option.help(loaded.site, has_slurm=not schedulers.get(loaded.site.scheduler).ONE_MACHINE)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError instead of exiting, so that every error is printed in one place."""
        if (missing := message.removeprefix("the following arguments are required: ")) != message:
            message = f"{missing} {'are' if ', ' in missing else 'is'} missing"
            if "|" in missing:
                message = f"one of these words is missing: {missing.replace('|', ', ')}"
        raise errors.UsageError(message[:1].upper() + message[1:], place=self.prog, hint=f"Try {self.prog} --help.")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the options; UsageError for words that are none."""
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known, left = [], list(unknown)  # by position: a value may be equal to an unknown word
            for word in args or ():
                if left and word == left[0]:
                    del left[0]
                else:
                    known.append(word)
            raise no_option(unknown, self, self.suggest(given, known, unknown))
        return given

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Write out the value of an option that may have none, so that the word after it is not taken for it."""
        mine = {word for action in self._actions for word in action.option_strings if action.nargs == "?"}
        if not mine:
            return super().parse_known_args(args, namespace)
        from hpcml.options import table

        alone = {word: option.alone for word, option in table.BY_WORD.items() if option.alone}
        arguments = [f"{word}={alone[word]}" if word in alone and word in mine else word for word in args or ()]
        return super().parse_known_args(arguments, namespace)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuse ``--`` as an option's value, as in ``--name=--``; argparse takes it away and breaks down."""
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            option = action.option_strings[0]
            hint = f"Try {self.prog} --help."
            raise errors.UsageError(f"{option} has no value", place=self.prog, hint=hint)
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a word that is not one of an argument's choices, and name the nearest of them."""
        prefix = f"{self.prog} {action.option_strings[0]}=" if action.option_strings else f"{self.prog} "
        _check_choice(value, action.choices, prefix)


def of(verb: str) -> Parser:
    """Return a parser of a verb's options alone."""
    parser = Parser(prog=f"hpcml {verb}", allow_abbrev=False)
    add_to(parser, verb)
    return parser


class _Help(argparse.Action):
    """``--help``, and ``--help-all``, which shows more if a command has the table of options."""

    def __init__(self, option_strings: list[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **settings)

    def __call__(
        self, parser: argparse.ArgumentParser, given: argparse.Namespace, _: object, word: object = ""
    ) -> None:
        """Print the help and exit."""
        assert isinstance(parser, Parser)
        if parser.rare:
            parser.show_site_defaults(given.site or "", given.set or ())
        say_lines(parser.format_help(whole=word == "--help-all").removesuffix("\n"))
        parser.exit()


def add_to(parser: Parser, verb: str) -> None:
    """Add the options that a verb takes, by group."""
    from hpcml.options import table

    parser.help_all.help = "show all options"
    for title, group in table.GROUPS.items():
        if taken := [option for option in group if verb in option.takers]:
            added = parser.add_argument_group(title)
            for option in taken:
                text = option.does if verb == "rerun" else option.help()  # there the run's own values are the defaults
                action = added.add_argument(option.word, *option.also, help=text, **_settings(option))
                parser.rare += [] if verb in option.common else [action]


def _settings(option: Option) -> dict[str, Any]:
    """Return an option's settings for argparse; options for sbatch share a list, so that the last one wins."""
    if option.is_flag and not option.passed:
        return {"action": "store_true"}
    if option.is_flag:
        return {"action": "append_const", "const": option.word, "dest": "sbatch"}
    metavar = option.metavar or option.name.upper()
    if option.alone:
        return {"nargs": "?", "const": option.alone, "choices": option.values, "metavar": metavar}
    if option.passed:
        return {"action": "append", "type": f"{option.word}={{}}".format, "dest": "sbatch", "metavar": metavar}
    return {"action": "append" if option.several else "store", "metavar": metavar}


def no_option(unknown: list[str], parser: Parser, suggested: str = "") -> errors.UsageError:
    """Return the error for words that a command does not have, with hpcml's word for the first or the nearest one."""
    from hpcml.options import sbatch_options

    word, suggested = unknown[0], suggested or f"Try {parser.prog} --help."
    if not word.startswith("-"):
        message = f"Unrecognized arguments: {' '.join(unknown)}"
        return errors.UsageError(message, place=parser.prog, hint=suggested)
    option = word.partition("=")[0] if word.startswith("--") else word[:2]
    long_options = {name[2:] for action in parser._actions for name in action.option_strings if name[:2] == "--"}  # noqa: SLF001 - there is no other way to ask
    hint = sbatch_options.instead(option) if "nodes" in long_options else ""
    if not hint and option.startswith("--"):
        near = errors.nearest(option[2:], sorted(long_options))
        hint = errors.did_you_mean(near and f"--{near}", "")
    if parser.prog == "hpcml rerun":
        hint = f"{hint} {suggested}".strip()  # it may be an option of the script
    if option == "--host":
        hint = f"Write --host before the command: hpcml --host HOST {parser.prog.removeprefix('hpcml ')} …"
    return errors.UsageError(f"There is no option '{option}'", place=parser.prog, hint=hint or suggested)


def _check_choice(word: str, choices: Iterable[str] | None, option: str) -> None:
    """Refuse a word that is not one of the choices after ``words``; without choices any word is taken."""
    if choices is None or word in choices:
        return
    valid = list(choices)
    near = errors.nearest(word, valid)
    command = option.split(" --", maxsplit=1)[0].strip()
    hint = errors.did_you_mean(near and f"{option}{near}", f"Try {command} --help.")
    raise errors.UsageError(f"'{word}' is not one of: {', '.join(valid)}", place=option.rstrip(" ="), hint=hint)


# -- the layout of help ------------------------------------------------------------------------------------------------


class HelpLayout(argparse.HelpFormatter):
    """A formatter of argparse's: paragraphs are folded between words, indented lines stay lines.

    An indented block in which a line is too long has the text after a gap below its line; a command in it that is
    still too long continues after a backslash.
    """

    whole = True  # with all spellings of an option; else with one of Slurm's short ones

    def __init__(self, prog: str, indent_increment: int = 2, max_help_position: int = 24) -> None:
        super().__init__(prog, indent_increment, max_help_position)
        self._width = min(self._width, WIDEST)
        if self._width >= 70:  # room for long options and what they mean on one line
            self._max_help_position = 44 if self._width >= 100 else 30

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Name the value of an option once, after all its spellings."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = str(action.metavar) if action.nargs == "+" else self._format_args(action, "")
        spellings = [word for word in action.option_strings if self.whole or word[1] != "-"]
        names = ", ".join(dict.fromkeys([action.option_strings[0], *spellings]))
        return f"{names}[={value.strip('[]')}]" if action.nargs == "?" else f"{names} {value}"

    def _split_lines(self, text: str, width: int) -> list[str]:
        return folded(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for kind, block in itertools.groupby(text.strip("\n").split("\n"), _kind):
            if kind == "empty":
                lines.append("")
            elif kind == "paragraph":
                lines += folded(" ".join(block), width, first=indent, rest=indent)
            else:
                lines += _indented(list(block), width)
        return "\n".join(lines)

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        """Add the usage; one that is written out is folded too, each line of it by itself."""
        if usage and usage is not argparse.SUPPRESS:
            room, rest = self._width - len("usage: "), " " * len("usage:   ")
            usage = f"\n{' ' * len('usage: ')}".join(
                "\n".join(folded(line, room, rest=rest)) for line in usage.split("\n")
            )
        super().add_usage(usage, actions, groups, prefix)


def _kind(line: str) -> str:
    if not line.strip():
        return "empty"
    return "indented" if line.startswith(" ") else "paragraph"


def _indented(block: list[str], width: int) -> list[str]:
    if all(len(line) <= width for line in block):
        return block
    lines = []
    for line in block:
        margin = line[: len(line) - len(line.lstrip())]
        example, *remarks = _GAP.split(line.strip())
        open_end = " \\" if example.startswith(("python", "hpcml")) else ""
        deeper = f"{margin}    "
        lines += folded(example, width, first=margin, rest=deeper, open_end=open_end)
        for remark in remarks:
            lines += folded(remark, width, first=deeper, rest=deeper)
    return lines
