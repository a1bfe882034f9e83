"""A batch script as one line of hpcml: the options, what its lines prepare, and the one command that it starts.

Nothing of the script is run. What is not certain to do the same work is refused with the number of its line.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpcml.gpu_vendor import VENDOR
from hpcml.options import table
from hpcml.options.translate import launchers
from hpcml.options.translate.directives import Layout, Row, Taken, layout, read, taken
from hpcml.options.translate.launchers import Launch
from hpcml.options.translate.shell_syntax import Statement, UntranslatedError, Word, statements, text_of, words
from hpcml.options.translate.shell_variables import OF_PROCESS, Values, assignment, names, rendered, sets_by_default
from hpcml.schedulers import batch_variables
from hpcml.terminal import json_text, shown

_SHELLS = re.compile(r"#![ \t]*(?:\S*/)?(?:env[ \t]+)?(?:ba|da)?sh((?:[ \t]+-[euvx]+)*)[ \t]*")
_LOGIN_SHELL = re.compile(r"#![ \t]*(?:\S*/|\S*/env[ \t]+-S[ \t]+(?:\S*/)?)bash[ \t]+-(?:l|-login)()[ \t]*")
_LOGIN_FILES = (  # what such a shell reads first
    '. /etc/profile; for _file in ~/.bash_profile ~/.bash_login ~/.profile; do [ ! -r "$_file" ] || break; done; '
    '[ ! -r "$_file" ] || . "$_file" || :'
)
_OPTION_OF_BASH = re.compile(r"#![ \t]*(?:\S*/)?(?:env[ \t]+)?(?:ba|da)?sh(?:[ \t]+-[euvx]+)*[ \t]+(-\S+)")
_PRINT = {
    "echo", "printf", "date", "hostname", "pwd", "whoami", "env", "printenv", "which", "type", VENDOR.tool, "lscpu",
    "free", "uptime", "ls", "df", "id", "uname", "nproc", "squeue", "sinfo", "sacct", "sstat", "scontrol", "true", ":",
}  # fmt: skip
_NEVER_FAIL = {"echo", "printf", ":", "true"}  # of these: with set -e the others can end the script
_WORK_ALONE = {"date", "hostname", "pwd", "whoami", "env", "uname", "uptime"}  # do not fail without arguments
_PREPARE = {
    "module", "ml", "source", ".", "conda", "mamba", "micromamba", "ulimit", "mkdir", "cp", "mv", "rm", "ln",
    "touch", "tar", "unzip", "gunzip", "rsync", "chmod", "virtualenv", "pip", "pip3", "spack",
}  # fmt: skip
_PREPARES = re.compile(
    r"""python3? -m (?:venv|pip) .*|uv (?:venv|pip|sync)\b.*|eval "?\$\((?:conda|mamba|micromamba) [\w. -]+\)"?"""
)
_BUILTINS = {
    "trap", "alias", "shopt", "umask", "eval", "pushd", "popd", "exit", "return", "declare", "read", "shift", "let",
}  # fmt: skip
_UNLOADS = re.compile(
    r"(?:module|ml) (?:purge|unload|list)\b.*|(?:(?:conda|mamba|micromamba) )?deactivate|wait|exit(?: 0| \$\?)?"
)
# Files that set no variable of a script's but those of the environment.
_ACTIVATES = re.compile(r"(?:source|\.) (?:\S*/)?(?:bin/activate|conda\.sh)(?: \S+)?")
_READS_FILE = re.compile(r"(?:source|\.)\s")
_PURE = {
    "scontrol", "hostname", "head", "tail", "echo", "expr", "sed", "awk", "cut", "tr", "shuf", "seq", "getent", "host",
    "nslookup", "ip", "date", "printf", "wc", VENDOR.tool, "sort", "uniq", "grep", "basename", "dirname", "realpath",
    "pwd", "nproc", "xargs", "whoami", "cat", "nodeset", "uname", "which", "srun", "",
}  # fmt: skip
_SUBSTITUTION = re.compile(r"\$\(|`|<\(")
_BACKTICKS = re.compile(r"`([^`]*)`")
_IN_QUOTES = re.compile(r"'(?:(?!\$\()[^'`])*'")
_PROGRAM = re.compile(r"(?:\$\((?!\([\w\s$(){}+*/%<>=!&|^~?:,-]*\)\))|<\(|\||;|(?<!>)&&?|\n)\s*([^\s|;&<>`)]*)")
_PART = r"(?:\d+|\$(?:\{\w+\}|\(\([\w\s$+-]*\)\))?|/(?:\\.|[^/\\])*/)"
_EDIT = (  # a command of sed's that only prints
    rf"(?:{_PART}(?:,{_PART})?)?!?(?:[pdq=]|[sy](?P<by>[/,#|@:%])(?:(?:\\.|(?!(?P=by))[^\\])*(?P=by)){{2}}[gpI0-9]*);?\s*"
)
# What programs that otherwise only print can do: anywhere in a line, and where a command begins.
_WORKS = re.compile(
    r"\bxargs\s+[^|)\s]|\bsystem\s*\(|\bdate\s+(?:-s|--set)|\bscontrol\s+(?:-\S+\s+)*(?!show\b|hostnames\b|-)\w"
    r"|(?:^|[(|;&`\n])\s*(?:"
    rf"""sed\b(?!(?:\s+-[nErsuz]+)*(?:\s+(?:-[nEr]*e\s+)?(?P<quote>["']?)(?:{_EDIT})+(?P=quote)(?=[\s|)`]|$)){{1,9}}"""
    r"(?![^|();&]*\s-))"
    r"|(?:sort|shuf)\s(?:[^|();&]*\s)?(?:-[a-zA-Z]*o|--o|--comp)|uniq\s+(?:-\S+\s+)*[^-|)\s]\S*\s+[^-|)\s]"
    r"|awk\s(?:[^|()']*\s)?(?:-[fiElo]|--[fieldops])|awk\b[^|()']*(?:'[^']*'[^|()']*){0,9}?'[^']*(?:>|\||getline)"
    r"|hostname\s+(?:-\S+\s+)*(?:[^-\s|)]|-[Fb]|--[fb](?!qdn))|ip\s[^|();&]*\b(?:add|del|delete|set|flush|replace|change)\b"
    rf"|{re.escape(VENDOR.tool)}\b(?!(?:\s+(?:-[Lqxm]|--list-gpus|--query\S*|--xml-format|topo|--matrix|-[id][= ]?\S+"
    r"|--(?:format|id|display)[= ]\S+))*\s*(?:$|[|)`])))"
)
_ENDS_UNSET = re.compile(r"\$\{\w+:?\?")  # ${A:?}: the script ends if A is not set
_ELEMENT = re.compile(r"\$\{!|\$\{#?\w+\[")  # of an array, or of a variable that another one names
_STEP = re.compile(r"\bsrun\b(?![^|;)]*\bhostname\b)")  # a step that does more than name a node
_WRITES = re.compile(r">(?!&\d|\s*/dev/null)")
# What hpcml sets in each rank.
_RENDEZVOUS = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"}
_OF_SHELL = {"IFS", "BASH_ENV", "PS4", "RANK", "LOCAL_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
# Options of the shell that change no words, variables or files, only what it prints, and when it ends.
_SET = re.compile(r"[-+][euxvoETbhm]*|pipefail|errexit|nounset|xtrace|errtrace|verbose")
_SECRET = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|(?:^|_)KEY$|API_?KEY", re.IGNORECASE)
_REPEATED = ("--set", "--env")


class Translation(NamedTuple):
    """What of hpcml's does the same as a batch script, and where each of its lines went."""

    options: tuple[Taken, ...]
    command: tuple[str, ...]  # after --
    number: int  # the line of the command
    rows: tuple[Row, ...]
    typed: tuple[tuple[str, ...], ...] = ()  # the words of each option beside the script, which replaces its lines

    @property
    def line(self) -> str:
        """The line to type; of a variable that looks like a secret only the name."""
        replaced = {_option(words) for words in self.typed if words[0] not in _REPEATED}
        kept = [taken.words for taken in self.options if _option(taken.words) not in replaced]
        options = [word for words in (*self.typed, *kept) for word in public(words)]
        return " ".join(map(quoted, ["hpcml", "submit", *options, "--", *self.command]))


def _option(words: Sequence[str]) -> str:
    """Return the option that words say, of ``--sbatch=--OPTION=VALUE`` the one of sbatch."""
    return words[0].removeprefix("--sbatch=").partition("=")[0]


def _typed(given: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the words of each option of the run that is given beside the script."""
    for name, option in table.OPTIONS.items():
        value = given.get(name)
        if value in (None, False) or not ("lines" in option.takers or name == "python"):
            continue
        for text in value if isinstance(value, list) else [value]:
            if name == "sbatch":
                yield (f"--sbatch={text}",)
            else:
                yield (option.word,) if text is True else (option.word, str(text))
    yield from (("--set", text) for text, _ in given.get("line_set") or ())


def public(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return an option without the value of a variable that looks like a secret."""
    name, equals, _ = words[-1].partition("=")
    return ("--env", name) if words[0] == "--env" and equals and _SECRET.search(name) else words


def quoted(word: str) -> str:
    """Return a word as bash reads it, all in printable characters."""
    if shown(word) == word:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{''.join(letter if shown(letter) == letter else _escape(ord(letter)) for letter in escaped)}'"


def _escape(code: int) -> str:
    if 0xDC80 <= code < 0xDD00:  # a byte that is no text
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\U{code:08x}"


def translate(
    text: str,
    arguments: Sequence[str],
    typed: Mapping[str, Any],
    variables: Mapping[str, str],
    *,
    slurm: bool,
    exported: Collection[str] = ("PATH",),
) -> Translation:
    """Return the options of hpcml's that do the same as a batch script.

    Parameters
    ----------
    text, arguments
        The script, and its arguments.
    typed
        The options of hpcml's that are typed beside it, which replace its lines: ``nodes`` and ``mpi`` decide what
        lines leave open.
    variables
        Variables of the shell that have the same value in the job.
    slurm
        Whether the site has Slurm, and the job its variables.
    exported
        The names of all variables that the job gets from the shell: a line that sets one changes the program's.

    Raises
    ------
    UntranslatedError
        The first line that hpcml has no word for.
    """
    first = text.partition("\n")[0]
    is_login = _LOGIN_SHELL.fullmatch(first)
    if not (match := is_login or _SHELLS.fullmatch(first)):
        option = _OPTION_OF_BASH.match(text)
        raise UntranslatedError(1, f"the option {option[1]} of the shell" if option else "another shell")
    asked = read(text)
    made = layout(asked, str(typed.get("nodes") or ""))
    if (number := str(typed.get("gpus_per_node") or "").rpartition(":")[2]).isdecimal():
        made = made._replace(gpus=int(number))
    options, rows = taken(text, asked, made)
    numbered = {str(number): word for number, word in enumerate(arguments, 1)}
    values = Values({**variables, **made.variables, **numbered, "#": str(len(arguments))}, arguments)
    script = _Script(text, made, values, slurm=slurm)
    script.ends_early, script.ends_unset = "e" in match[1], "u" in match[1]
    script.reads_file = bool(is_login)
    script.before = [_Item(1, "setup", _LOGIN_FILES)] * script.reads_file
    script.exported |= {*exported}
    whole = script.translated(options, rows, str(typed.get("mpi") or ""))
    return whole._replace(typed=tuple(_typed(typed)))


class _Item(NamedTuple):
    """A statement: what it is, its text, the variables that it reads, and the one that it sets."""

    number: int
    kind: str  # setup, assigned, exported (as --env takes it), cd, print, step, exit, unload or command
    text: str
    reads: frozenset[str] = frozenset()
    sets: str = ""
    words: tuple[Word, ...] = ()
    redirections: tuple[tuple[str, Word], ...] = ()
    note: str = ""


class _Script:
    """The statements of a script."""

    def __init__(self, text: str, made: Layout, values: Values, *, slurm: bool) -> None:
        self.text, self.made, self.values, self.slurm = text, made, values, slurm
        self.exported = {*values.words}
        self.ends_early = self.ends_unset = False
        self.before = list[_Item]()  # what the shell does first
        self.reads_file = False  # which may export any variable
        self.mpi = ""

    def translated(self, options: list[Taken], rows: list[Row], mpi: str) -> Translation:
        """Return the whole translation, with the options of the #SBATCH lines and their rows."""
        items = [*self.before, *self._items()]
        at = _command_of(items)
        command, before, after = items[at], items[:at], items[at + 1 :]
        for item in after:
            only_prints = item.kind in ("print", "unload", "assigned") or (text_of((*item.words, ())[0]) in _PRINT)
            if not only_prints or not _does_no_work(item):
                raise UntranslatedError(item.number, "a command after the one that hpcml starts")
        launch = launchers.of(command.words, self.made, mpi or self.mpi, command.number, slurm=self.slurm)
        by_shell, needed = self._command(command, launch, [item for item in before if item.kind == "cd"])
        kept = self._kept(before, needed, launch)
        options += self._prepared(kept, needed)
        ranks = (("--ranks", launch.ranks),) if launch.ranks else ()
        options += [Taken(words, command.number) for words in (*ranks, *launch.options)]
        rows = [row._replace(goes_to=row.goes_to or row.decides(options)) for row in rows]
        rows += [_row(item, kept, launch) for item in (*before, *after)]
        rows.append(Row(command.number, rendered(command.words), launch.note or "the command"))
        words = tuple(by_shell or [text_of(word) or "" for word in launch.words])
        return Translation(tuple(options), words, command.number, tuple(sorted(rows, key=lambda row: row.number)))

    # -- statements ------------------------------------------------------------------------------------------------

    def _items(self) -> Iterator[_Item]:
        """Yield the item of each statement."""
        group, operators = list[_Item](), list[str]()
        for statement in statements(self.text):
            prefix = list(itertools.takewhile(assignment, statement.words))
            found = [self._assignment(statement.number, word, exports=False) for word in prefix]
            if len(prefix) < len(statement.words):
                yield from (self._for_command(item) for item in found)
                found = [self._item(statement._replace(words=statement.words[len(prefix) :]))]
                is_read = {name for name, _, _ in filter(None, map(assignment, prefix))} & found[0].reads
                if prefix and (found[0].kind != "command" or is_read):
                    raise UntranslatedError(statement.number, "variables for one command")
            if len(found) != 1 or (
                statement.redirections and found[0].kind == "assigned" and not found[0].redirections
            ):
                raise UntranslatedError(statement.number, "several variables in one line, or a redirection alone")
            if found[0].kind == "cd" and not group and statement.after in ("", "&&"):
                yield found[0]
                continue
            group += found
            operators += [statement.after] if statement.after else []
            if not statement.after:
                yield _list(group, operators)
                group, operators = [], []
        if group:
            raise UntranslatedError(group[0].number, "a list of commands that does not end")

    def _for_command(self, item: _Item) -> _Item:
        """Return a variable that is set for the command alone."""
        value = self.values.text(item.sets)
        if value is None:
            raise UntranslatedError(item.number, "variables for one command")
        self.values.forget(item.sets)  # its own words do not have it
        return item._replace(kind="exported", text=f"{item.sets}={value}")

    def _item(self, statement: Statement) -> _Item:
        """Return the item of a statement that does more than set variables."""
        number, redirections = statement.number, statement.redirections
        found = tuple(word for part in statement.words for word in self.values.divided(part))
        name = text_of(found[0]) or "" if found else ""
        ends = "".join(f" {sign}{' ' * (sign == '<')}{rendered([word])}" for sign, word in redirections)
        reads = names([*found, *(word for _, word in redirections)])
        item = _Item(number, "command", f"{rendered(found)}{ends}", reads, "", found, redirections)
        if name in ("export", "readonly"):
            return self._exported(statement, name)
        if name in ("mapfile", "readarray", "unset") or (name == "printf" and item.text.startswith("printf -v")):
            return self._changed(item, name)
        if name == "set":
            return self._set(item)
        if sets := sets_by_default(found):
            return self._default(item, name, sets)
        if name in _PREPARE or _PREPARES.fullmatch(item.text):
            if _READS_FILE.match(item.text) and not _ACTIVATES.fullmatch(item.text):
                self.values.forget_all()
                self.reads_file = True
            if name in ("module", "ml"):
                self.mpi = launchers.mpi_of_modules(item.text) or self.mpi
            return item._replace(kind="unload" if _UNLOADS.fullmatch(item.text) else "setup")
        return self._other(item, name)

    def _other(self, item: _Item, name: str) -> _Item:
        """Return the item of a command that is none of the shell's own, and prepares nothing."""
        kind = _kind(name, item)
        never_fails = name in _NEVER_FAIL or (name in _WORK_ALONE and len(item.words) == 1)
        if kind == "print" and (_ENDS_UNSET.search(item.text) or (self.ends_early and not never_fails)):
            kind = "setup"
        if kind == "command" and name in _BUILTINS:
            raise UntranslatedError(item.number, f"{name}, which hpcml has no word for")
        return item._replace(kind=kind)

    def _set(self, item: _Item) -> _Item:
        """Return ``set -euo pipefail`` as what it is: a part of how the lines that prepare end."""
        flags = [text_of(word) or "?" for word in item.words[1:]]
        if not all(map(_SET.fullmatch, flags)):
            raise UntranslatedError(item.number, f"{item.text}, which hpcml has no word for")
        self.ends_early = self.ends_early or bool(re.search(r"-\w*e|-\w*o errexit", item.text))
        if re.search(r"[-+]\w*u|nounset", item.text):
            self.ends_unset = "+" not in item.text
        ends_unset = self.ends_unset and re.search(r"-\w*u|nounset", item.text)
        return item._replace(kind="setup", text="set -u") if ends_unset else item._replace(kind="print")

    def _exported(self, statement: Statement, name: str) -> _Item:
        """Return ``export A=b`` or ``export A``."""
        if len(statement.words) != 2 or statement.redirections:
            raise UntranslatedError(statement.number, f"{name} of several variables in one line")
        word = statement.words[1]
        if assignment(word):
            return self._assignment(statement.number, word, exports=name == "export")
        variable = text_of(word) or ""
        if name != "export" or not variable.isidentifier():
            raise UntranslatedError(statement.number, f"{name} {variable}, which hpcml has no word for")
        self.exported.add(variable)
        if (value := self.values.text(variable)) is not None:
            return _Item(statement.number, "exported", f"{variable}={value}", sets=variable)
        return _Item(statement.number, "setup", f"export {variable}", frozenset([variable]))

    def _changed(self, item: _Item, name: str) -> _Item:
        """Return a statement that changes variables by a program's output, or removes them."""
        which = {"unset": slice(1, None), "printf": slice(2, 3)}.get(name, slice(-1, None))
        targets = [text_of(word) or "" for word in item.words[which]] or [""]
        for target in targets:
            if name == "printf" and not target.isidentifier():
                raise UntranslatedError(item.number, f"{item.text}, which hpcml has no word for")
            if batch_variables.is_slurms(target) or target in (*_RENDEZVOUS, "PATH"):
                raise UntranslatedError(item.number, f"{name} of a variable that hpcml needs")
            self.values.forget(target)
        if name == "unset":
            return item._replace(kind="setup")
        self.values.lost.add(targets[0])
        self.values.arrays |= {*targets} if name != "printf" else set()
        return item._replace(kind="assigned", sets=targets[0])

    def _default(self, item: _Item, name: str, sets: frozenset[str]) -> _Item:
        """Return ``: ${A:=b}`` as the variable that it sets."""
        variable = min(sets)
        if len(sets) > 1 or name not in (":", "echo") or variable in self.exported or item.redirections:
            raise UntranslatedError(item.number, f"${{{variable}:=…}} in this place, which hpcml has no word for")
        self._check_name(item.number, variable)
        self.values.forget(variable)
        self.values.lost.add(variable)
        return item._replace(kind="assigned", sets=variable)

    def _check_name(self, number: int, name: str, plus: str = "") -> None:
        """Refuse a variable that hpcml sets, or that changes how the shell reads lines."""
        if plus or name in _OF_SHELL or batch_variables.is_slurms(name) or name.startswith("HPCML_"):
            raise UntranslatedError(number, f"{name}{plus}=, which hpcml has no word for")

    def _assignment(self, number: int, word: Word, *, exports: bool) -> _Item:
        name, plus, rest = assignment(word) or ("", "", ())
        if batch_variables.is_of_steps(name):
            return _Item(number, "print", rendered([word]), note="left out (only for srun)")
        self._check_name(number, name, plus)
        if sets_by_default([rest]):
            raise UntranslatedError(number, f"{name}, whose line sets another variable too")
        value, elements = self.values.joined(rest), None
        if rest and rest[0].kind == "array":
            elements = [word for part in words(rest[0].text[1:-1], number) for word in self.values.divided(part)]
        self.values.assign(name, value, elements)
        text = text_of(value)
        if (exports or name in self.exported) and elements is None:
            self.exported |= {name}
            if text is not None:
                return _Item(number, "exported", f"{name}={text}", sets=name)
        said = f"{name}={rendered([value]) if value else ''}"
        kind = "setup" if exports or name in self.exported or self.reads_file else "assigned"
        return _Item(number, kind, f"{'export ' * exports}{said}", names([value]), name)

    # -- what is kept ----------------------------------------------------------------------------------------------

    def _kept(self, before: list[_Item], needed: frozenset[str], launch: Launch) -> list[_Item]:
        """Return the items of hpcml's line: those that prepare, and the variables that they or the command need."""
        kept: list[_Item] = []
        is_last = True  # of variables, after which nothing changes them
        for item in reversed(before):
            is_read = any(item.sets in later.reads for later in kept)
            of_ranks = item.sets in _RENDEZVOUS and launch.ranks and not is_read
            if of_ranks or (item.kind == "assigned" and not is_read and item.sets not in needed):
                self._check_left_out(item, launch)
            elif item.kind == "exported":
                if is_last or _SECRET.search(item.sets):
                    kept.append(item)
                else:
                    name, _, value = item.text.partition("=")
                    kept.append(item._replace(kind="setup", text=f"export {name}={shlex.quote(value)}"))
            elif item.text.startswith("exit"):
                raise UntranslatedError(item.number, "an exit before the command")
            elif item.kind in ("setup", "cd", "assigned") or (item.kind == "unload" and item.text != "wait"):
                kept.append(item)
                is_last = False
        kept.reverse()
        while kept and kept[-1].kind == "cd":  # the command has these
            kept.pop()
        return kept if any(item.text != "set -u" for item in kept) else []

    def _check_left_out(self, item: _Item, launch: Launch) -> None:
        tasks = launch.tasks if launch.ranks else self.made.tasks
        value = item.text.partition("=")[2]
        if item.sets == "WORLD_SIZE" and value.isdecimal() and int(value) != tasks:
            raise UntranslatedError(item.number, f"WORLD_SIZE={value}, but {tasks} tasks")
        if not _does_no_work(item):
            raise UntranslatedError(item.number, f"{item.sets}, whose command may do more than print")

    def _prepared(self, kept: list[_Item], needed: frozenset[str]) -> Iterator[Taken]:
        """Yield the options for what prepares the command, and for the variables that it has."""
        setup = [item for item in kept if item.kind != "exported"]
        for item in setup:
            self._check_variables(item.number, item.reads)
        unknown = {name for name in needed - self.exported - self.values.lost if not _is_set_by_job(name)}
        added = needed & {item.sets for item in setup if item.kind == "assigned"}
        added |= unknown if any(_READS_FILE.match(item.text) for item in setup) else frozenset()
        if setup:
            lines = [item.text for item in setup] + ([f"export {' '.join(sorted(added))}"] if added else [])
            yield Taken(("--set", f"runtime.setup={json_text(lines)}"), setup[0].number)
            if self.ends_early:
                yield Taken(("--set", "runtime.setup_errors=end"), setup[0].number)
        yield from (Taken(("--env", item.text), item.number) for item in kept if item.kind == "exported")

    # -- the command -----------------------------------------------------------------------------------------------

    def _command(self, item: _Item, launch: Launch, folders: list[_Item]) -> tuple[list[str], frozenset[str]]:
        """Return the command for the shell of each process, empty if it needs none, and the variables that it reads."""
        redirections = () if all(_is_quiet(*redirection) for redirection in item.redirections) else item.redirections
        if redirections and launch.tasks > 1:
            raise UntranslatedError(item.number, "a file for the output of several tasks. hpcml logs RUN has it")
        if folders and text_of(folders[-1].words[1]) in (".", self.values.text(batch_variables.FOLDER)):
            folders = []
        parts = [*launch.words, *(word for _, word in redirections), *(folder.words[1] for folder in folders)]
        self._check_variables(item.number, names(parts))
        self._check_values(item.number, parts, of_several=launch.tasks > 1)
        if not folders and not redirections and all(text_of(word) is not None for word in parts):
            return [], frozenset()
        if text_of(launch.words[0]) is None:
            raise UntranslatedError(item.number, "a program whose name is not known before the job")
        moves = "".join(f"cd {rendered([folder.words[1]])} && " for folder in folders)
        ends = "".join(f" {sign}{rendered([word])}" for sign, word in redirections)
        return ["bash", "-uc" if self.ends_unset else "-c", f"{moves}exec {rendered(launch.words)}{ends}"], names(parts)

    def _check_values(self, number: int, parts: Sequence[Word], *, of_several: bool) -> None:
        """Refuse words of the command whose value another process than the batch script's shell does not have."""
        if of_several and (own := sorted(names(parts) & OF_PROCESS)):
            raise UntranslatedError(number, f"${own[0]}, whose value only the batch script's shell knows")
        for piece in itertools.chain(*parts):
            if piece.name in self.values.arrays or (piece.kind == "form" and _ELEMENT.match(piece.text)):
                raise UntranslatedError(number, f"{piece.text}, whose value only the batch script's shell knows")
            if piece.kind == "sub":
                raise UntranslatedError(number, "a command in the words of the one that hpcml starts")

    def _check_variables(self, number: int, read: frozenset[str]) -> None:
        for name in sorted(read):
            if not name.isidentifier():
                raise UntranslatedError(number, f"${name}, whose value only the batch script's shell knows")
            if batch_variables.is_slurms(name) and not (self.slurm and batch_variables.is_same(name)):
                why = "which has another value " + ("in hpcml's job" if self.slurm else "without Slurm")
                if name in batch_variables.ZEROS:
                    why = f"which bash replaces by 0 before srun starts. For each task's value: bash -c '… ${name}'"
                raise UntranslatedError(number, f"{name}, {why}")


def _kind(name: str, item: _Item) -> str:
    """Return the kind of a command that only prints, moves, or ends the script; else ``command``."""
    is_quiet = all(_is_quiet(*redirection) for redirection in item.redirections)
    if name == "cd" and len(item.words) == 2 and is_quiet:
        return "cd"
    if _UNLOADS.fullmatch(item.text):
        return "unload"
    if re.fullmatch(r"exit [0-9]+", item.text):
        return "exit"
    if name in _PRINT and is_quiet and not (name == "env" and len(item.words) > 1) and _does_no_work(item):
        return "print"
    if (
        name in ("srun", "mpirun")
        and is_quiet
        and launchers.program_of(item.words) in ("hostname", "date", VENDOR.tool)
    ):
        return "step"
    return "command"


def _list(group: list[_Item], operators: list[str]) -> _Item:
    """Return commands with ``&&`` and ``||`` between them as one of the lines that prepare."""
    kinds = [item.kind for item in group]
    if kinds != ["exit"] and (len(group) == 1 or (kinds == ["cd", "exit"] and operators == ["||"])):
        return group[0]
    for item in group:
        if len(group) == 1 or item.kind not in ("setup", "print", "exit"):
            what = "a command that depends on another (&&, ||)" if len(group) > 1 else item.text
            raise UntranslatedError(item.number, what)
    text = " ".join(f"{item.text} {operator}".strip() for item, operator in zip(group, [*operators, ""], strict=True))
    return _Item(group[0].number, "setup", text, frozenset(name for item in group for name in item.reads))


def _command_of(items: list[_Item]) -> int:
    """Return the index of the command: the only one that does work, or the only one that prints in a step."""
    work = [at for at, item in enumerate(items) if item.kind == "command"]
    steps = [at for at, item in enumerate(items) if item.kind == "step"]
    if len(work or steps) > 1:
        raise UntranslatedError(items[(work or steps)[1]].number, "a second command; hpcml starts one")
    if not work and not steps:
        raise UntranslatedError(items[-1].number if items else 1, "no command that hpcml could start")
    for at in steps if work else ():
        items[at] = items[at]._replace(kind="print")
    return (work or steps)[0]


def _does_no_work(item: _Item) -> bool:
    """Return True if the substitutions of a line do no work, so that it can be left out."""
    if _WORKS.search(item.text):
        return False
    text = _IN_QUOTES.sub("''", _BACKTICKS.sub(r"$(\1)", item.text))
    if not _SUBSTITUTION.search(text):
        return True
    programs = {match[1] for match in _PROGRAM.finditer(text)}
    if item.sets in _RENDEZVOUS:
        programs -= {"python", "python3"}
    return programs <= _PURE and not _WRITES.search(text) and not _STEP.search(text)


def _is_set_by_job(name: str) -> bool:
    return batch_variables.is_slurms(name) or name in _RENDEZVOUS


def _is_quiet(sign: str, word: Word) -> bool:
    """Return True if a redirection loses nothing: one stream joins another, or there is no input."""
    return text_of(word) == "/dev/null" or (sign == "2>&" and text_of(word) == "1")


def _row(item: _Item, kept: list[_Item], launch: Launch) -> Row:
    """Return the row that says where a statement beside the command went."""
    same = next((other for other in kept if other.number == item.number and other.sets == item.sets), None)
    if item.kind == "cd":
        goes_to = "the command's folder"
    elif same:
        goes_to = f"--env {item.sets}" if same.kind == "exported" else "runtime.setup"
    elif item.note:
        goes_to = item.note
    elif item.sets in _RENDEZVOUS and launch.ranks:
        goes_to = f"left out (hpcml sets {item.sets})"
    elif item.kind == "assigned":
        goes_to = "left out (its value is in the line, or nothing needs it)"
    else:
        goes_to = "left out (it only prints, or ends the script)"
    return Row(item.number, public(("--env", item.text))[1] if item.kind == "exported" else item.text, goes_to)
