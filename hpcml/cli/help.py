"""``hpcml help TOPIC``: the page of the documentation that answers a question best."""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from hpcml import assets, earlier_names, subprocesses
from hpcml.cli import commands
from hpcml.config_trust import TYPED
from hpcml.errors import UsageError, did_you_mean, nearest
from hpcml.sites.settings_layers import process_environment
from hpcml.terminal import columns, folded, say_fitted, say_lines

_IGNORED = re.compile(
    "a|an|and|are|at|be|by|can|do|does|for|from|how|i|if|in|is|it|me|my|of|on|or|should|that|the|this|to|use|what|when|"
    "where|which|who|why|with|you|your"
)
_ENDING = re.compile(r"(?<=...)(ations?|ing|ions?|ed|es|s|e)$")
_MARK = re.compile(r"<!--.*?-->\n?|^!\[[^\n]*\n", re.DOTALL | re.MULTILINE)  # comments and pictures
_LINK = re.compile(r"\[((?:`[^`]*`|[^]`])+)\]\(([^)\s]+)\)")
_ITEM = re.compile(r"(\s*(?:[*-]|\d+\.|>|#+)\s+)(.*)")
_ENDS_BLOCK = re.compile(rf"```|\s*$|\||{_ITEM.pattern}")  # a fence, an empty line, a row, an item
_IN_HEADING, _IN_TITLE = 6, 8  # how often a word of a section's heading, or of its page's title, counts
_SATURATION, _LENGTH = 2.5, 0.3  # of BM25: how soon repetition counts less, and how much a long section does
_LOOKED_UP = 0.5  # weight of pages that list every option or key
_LISTED = 0.9  # weight of the list of examples
_WIDEST = 100  # columns
EXAMPLES = "examples"  # the page beside the examples
_OF_DEVELOPERS = ("architecture", "words")  # pages that answer no question of a user
# Words of a question, and what the pages write.
_MEANING = {
    "clean": "hpcml rm",
    "cleanup": "hpcml rm",
    "ddp": "ranks pytorch",
    "email": "mail at the end",
    "exclude": "exclude the node failed rerun",
    "deadlock": "run hangs",
    "freezes": "run hangs",
    "frozen": "run hangs",
    "hand": "give colleague",
    "mpiexec": "mpirun",
    "sbatch": "batch script",
    "salloc": "reserve nodes hold",
    "share": "hand colleague",
    "sharing": "hand colleague",
    "stuck": "run hangs",
    "interactive": "reserve nodes hold",
    "interpreter": "which python",
    "lmod": "module python",
    "mail": "mail at the end",
    "module": "module which python",
    "modules": "module which python",
    "oom": "out of memory",
    "notification": "mail at the end",
    "pip": "python package",
    "remove": "hpcml rm",
    "timeout": "beyond time limit",
    "virtualenv": "venv",
    "walltime": "beyond time limit",
    "week": "hpcml ls",
    "yesterday": "hpcml ls",
}
_ALONE = {  # words that mean this only if they are the whole question
    "api": "from python hpcmlerror",
    "array": "job array",
    "find": "hpcml ls",
    "memory": "out of memory on a node",
    "oom": "out of memory on a node",
    "out of memory": "out of memory on a node",
    "repeat": "hpcml rerun",
    "resubmit": "hpcml rerun",
    "space": "disk quota",
    "torch": "pytorch",
}
_MEANING_OF = re.compile(rf"\b(?:{'|'.join(_MEANING)})\b")


class _Section(NamedTuple):
    page: str
    heading: str  # as it is in the page, with its marks
    words: Counter[str]


def pages() -> dict[str, str]:
    """Return the title of each page by its name."""
    names = [path.stem for path in assets.folder("docs").glob("*.md")]
    return {page: _text(page).partition("\n")[0].strip("# ") for page in sorted([*names, EXAMPLES])}


def run(topic: str) -> int:
    """Show the page of a topic: its name, or the words of a question; UsageError if there is none."""
    titles = pages()
    name = re.sub(r"\s+", "-", topic.strip().lower().removeprefix("docs/").removesuffix(".md"))
    name = earlier_names.current(name)
    if name == "topics":
        for page, title in titles.items():
            if page not in _OF_DEVELOPERS:
                say_fitted(title, sys.stdout, first=f"{page:<28}", rest=" " * 28)
        say_fitted(
            "hpcml help NAME.md shows the page NAME. "
            "If NAME is also a command, hpcml help NAME shows that command's help.",
            sys.stdout,
        )
        return 0
    answers = [(name, "")] if name in titles else find(topic)
    if not answers:
        near = commands.MEANT.get(name) or nearest(name, [*commands.COMMANDS, *titles])
        hint = did_you_mean(near and f"hpcml {near if near in commands.COMMANDS else f'help {near}'}", "")
        hint = f"{hint} hpcml help topics lists all pages.".lstrip()
        raise UsageError(f"There is no help on '{topic}'", place="hpcml help", hint=hint)
    (page, heading), width = answers[0], min(columns(sys.stdout, _WIDEST), _WIDEST)
    lines = list(_rendered(_text(page), width))
    lines = [line for before, line in itertools.pairwise(["", *lines]) if before or line]  # one empty line at a time
    others = [verb for word in topic.split() if (verb := commands.MEANT.get(word, word)) in commands.COMMANDS]
    if others := [f"hpcml help {name}" for name in (*others, *(_name(page) for page, _ in answers[not heading : 4]))]:
        lines += folded(f"See also: {', '.join(others)}.", width)
    _show(lines, lines.index(heading) if heading in lines else 0)
    return 0


def say_more(command: str) -> None:
    """Name the page of a command below its help, and the page's title."""
    titles = pages()
    page = next((page for page in (command, f"{command}s") if page in titles), "commands")
    say_lines(f"More: hpcml help {_name(page)}  ({titles[page]})")


# -- the search --------------------------------------------------------------------------------------------------------


def find(question: str) -> list[tuple[str, str]]:
    """Return the pages that answer a question, each with its best section, the best first: BM25 over sections.

    A section with less than half of the question's words is no answer.
    """
    sections = list(_sections())
    frequency = Counter(word for section in sections for word in section.words)
    mean = sum(section.words.total() for section in sections) / len(sections)
    hits_of_pages: dict[str, list[tuple[float, str]]] = {}
    question = question.strip().lower()
    meant = _ALONE.get(question) or _MEANING_OF.sub(lambda word: _MEANING[word[0]], question)
    asked, plain = dict.fromkeys(_words(meant)), set(_plain_words(meant))
    for section in sections:
        long = _SATURATION * (1 - _LENGTH + _LENGTH * section.words.total() / mean)
        score = 0.0
        for word in asked:
            rarity = math.log(1 + (len(sections) - frequency[word] + 0.5) / (frequency[word] + 0.5))
            score += rarity * section.words[word] / (section.words[word] + long)
        if score and 2 * len(plain & section.words.keys()) >= len(plain):
            weight = _LOOKED_UP if section.page.startswith("reference-") else _LISTED if section.page == EXAMPLES else 1
            hits_of_pages.setdefault(section.page, []).append((score * weight, section.heading))
    ranked = []
    for page, hits in hits_of_pages.items():
        hits.sort(reverse=True)
        ranked.append((hits[0][0] + 0.3 * sum(score for score, _ in hits[1:3]), (page, hits[0][1])))
    return [answer for _, answer in sorted(ranked, reverse=True)]


def _sections() -> Iterator[_Section]:
    for page, title in pages().items():
        if page in _OF_DEVELOPERS:
            continue
        code, section = False, _Section(page, "", Counter())
        for line in _text(page).splitlines():
            code ^= line.startswith("```")
            if not code and line.startswith("#"):
                section = _Section(page, line, Counter(_words(line) * _IN_HEADING + _words(title) * _IN_TITLE))
                yield section
            elif not code:
                section.words.update(_words(line))


def _words(text: str) -> list[str]:
    """Return the words of a text without their endings, and each two neighbours as one: "VS Code" is "vscode"."""
    text = _LINK.sub(r"\1", text).lower()
    plain = _plain_words(text)
    return plain + [first + second for first, second in itertools.pairwise(plain)]


def _plain_words(text: str) -> list[str]:
    return [_ENDING.sub("", word) for word in re.findall(r"[a-z0-9]+", text) if not _IGNORED.fullmatch(word)]


# -- the page ----------------------------------------------------------------------------------------------------------


def _name(page: str) -> str:
    """Return the topic of a page: its name, with its ending where a command has this name."""
    return f"{page}.md" if page in commands.COMMANDS else page


def _text(page: str) -> str:
    file = assets.folder("jobs") / "README.md" if page == EXAMPLES else assets.folder("docs") / f"{page}.md"
    return _MARK.sub("", file.read_text(encoding="utf-8"))


def _rendered(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a page: paragraphs, items and rows of tables are folded, code stays as it is."""
    code, block, heads = False, "", list[str]()
    text = _LINK.sub(lambda link: f"{link[1]} ({link[2]})" if link[2].startswith("http") else link[1], text)
    for line in [*text.splitlines(), ""]:
        fence = line.startswith("```")
        if not code and re.fullmatch(r"\|[|\s:-]+", line):
            block = ""  # the head of the table
            continue
        if not code and not block and line.startswith("    "):  # code without a fence
            yield line
            continue
        if code or _ENDS_BLOCK.match(line):
            yield from _folded(block, width)
            block = ""
        code ^= fence
        if fence:
            continue
        if code or not line.strip():
            yield f"    {line}".rstrip() if code else ""
            heads = []
        elif line.startswith("|"):
            cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
            heads = heads or cells
            block = _of_row(cells, heads)
        else:
            block = f"{block} {line.strip()}" if block else line


def _of_row(cells: list[str], heads: list[str]) -> str:
    """Return a row of a table as an item: the first cell, the second, and the others behind their heads."""
    named = zip(heads[2:], cells[2:], strict=False)
    rest = [*cells[1:2], *(f"{head}: {cell}" if head else cell for head, cell in named if cell)]
    return f"* {cells[0]}: {'; '.join(filter(None, rest))}"


def _folded(block: str, width: int) -> list[str]:
    if not block:
        return []
    item = _ITEM.fullmatch(block)
    return folded(item[2], width, first=item[1], rest=" " * len(item[1])) if item else folded(block, width)


def _show(lines: list[str], first: int) -> None:
    """Print a page from the best section on; on a terminal that is too small for it by the user's pager."""
    pager = shlex.split(process_environment().get("PAGER") or "less")
    if not sys.stdout.isatty() or len(lines) < os.get_terminal_size().lines or not shutil.which(pager[0]):
        say_lines("\n".join([*lines[:2], *lines[first:]] if first else lines))  # below the page's title
        return
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="hpcml-help-") as file:
        file.write("\n".join([*lines, ""]))
        file.flush()
        start = [f"+{first + 1}"] if first and os.path.basename(pager[0]) in ("less", "more") else []
        subprocesses.interactive([*pager, *start, file.name], program=TYPED)
