r"""The one way of text to the terminal, which shows all that somebody else could have written, and obeys none of it.

A log, a label, a file's name or another program's answer may hold escape sequences that repaint the screen, line breaks
that add rows to a table, and marks that turn the direction of writing. All of them are shown as Python writes them in a
text (``\x1b``, ``\n``, ``\u202e``).
"""

from __future__ import annotations

import codecs
import os
import sys

TYPE_CHECKING = False  # as typing's, whose import would double the time of --help
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Mapping
    from typing import TextIO

# DEL and the controls of C1; marks without a shape that hide or turn text (Unicode's Cf); line and paragraph
# separators; halves of characters.
_INVISIBLE = (
    "\x7f-\x9f\xad\u061c\u06dd\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_IN_A_LINE = f"[\x00-\x1f{_INVISIBLE}]"
# Tabs, line breaks and a progress bar's carriage return stay.
_IN_A_LOG = f"[\x00-\x08\x0b\x0c\x0e-\x1f{_INVISIBLE}]"

_CONTAINERS = (dict, list, tuple)  # of JSON


def shown(text: object) -> str:
    """Return a text as one line of which nothing is obeyed: line breaks are shown too."""
    return _escaped(_IN_A_LINE, str(text))


def _escaped(invisible: str, text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    import re  # with typing and enum it is longer than all else that --help imports

    return re.sub(invisible, _escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "backslashreplace").decode("ascii")


def say(line: object = "", file: TextIO | None = None, *, end: str = "\n") -> None:
    """Print one line at once, to standard output unless said otherwise; a line break in it is shown, not made."""
    print(shown(line), file=file or sys.stdout, end=end, flush=True)


_RED = "31"
# As SGR takes them; the yellow is dark, because the usual one is unreadable on white.
CODES = {"green": "32", "cyan": "36", "yellow": "38;5;130", "red": _RED}
COLOURS = {name: name for name in CODES}


def has_colour(environment: Mapping[str, str]) -> bool:
    """Whether the user's terminal has colours and they are wanted."""
    return environment.get("TERM", "dumb") != "dumb" and not environment.get("NO_COLOR")


def say_state(line: str, position: int, colours: Mapping[str, str], *, flush: bool = True) -> None:
    """Print one line as :func:`say` does, and the word that begins at ``position`` in its colour, if it has one."""
    text = shown(line)
    state = next((word for word in colours if text.startswith(word, position)), "")
    if state:
        rest = text[position + len(state) :]
        text = f"{text[:position]}\x1b[{CODES[colours[state]]}m{state}\x1b[0m{rest}"
    print(text, flush=flush)


def columns(stream: TextIO, elsewhere: int = 0) -> int:
    """Return the number of columns of a stream's terminal, or ``elsewhere`` if it has none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return elsewhere


def cells(text: str) -> int:
    """Return the largest number of columns that a text takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def fit(text: str, width: int) -> str:
    """Return a text of at most so many columns; one that is cut ends in ``…``."""
    if cells(text) <= width:
        return text
    left = width - 1
    for position, character in enumerate(text):
        left -= cells(character)
        if left < 0:
            return f"{text[:position]}…" if width > 0 else ""
    return text


def folded(text: str, width: int, *, first: str = "", rest: str = "", open_end: str = "") -> list[str]:
    """Return a text in lines of at most so many columns, broken between words only.

    ``first`` and ``rest`` begin the first line and the others; ``open_end`` ends all but the last. A word too long for
    what ``rest`` leaves has fewer spaces before it.
    """
    lines, line = [], first
    tokens = text.split()
    for position, word in enumerate(tokens):
        room = width - len(open_end if position < len(tokens) - 1 else "")
        short = len(line) + (line != first) + len(word) > room
        if short and line.strip() and (line != first or len(word) > room - len(rest)):
            lines.append(line.rstrip() + open_end)
            line = (rest if rest.strip() else rest[: max(0, room - len(word))]) + word
        else:
            line += f" {word}" if line not in (first, rest) else word
    return [*lines, line]


def fitted(text: str, width: int, *, first: str = "", rest: str = "", last: str = "") -> list[str]:
    """Return a text after ``first``; where it is wider than ``width``, in lines that begin with ``rest``.

    ``last`` is two spaces after its end, or on a line of its own; ``width`` 0 is wide enough for all.
    """
    text = shown(text)
    fits = not width or len(first) + len(text) <= width
    lines = [first + text] if fits else folded(text, width, first=first, rest=rest)
    if last and width and len(lines[-1]) + 2 + len(last) > width:
        lines.append(rest + last)
    elif last:
        lines[-1] += f"  {last}"
    return lines


def say_fitted(text: str, file: TextIO, *, first: str = "", rest: str = "") -> None:
    """Print a text after ``first``; where it is wider than the terminal, in lines that begin with ``rest``."""
    for line in fitted(text, columns(file), first=first, rest=rest):
        say(line, file)


def say_facts(rows: Iterable[tuple[str, str]]) -> None:
    """Print texts behind their keys, in a column."""
    for key, text in rows:
        say_fitted(text, sys.stdout, first=f"{key:<10} ", rest=" " * 11)


def json_text(value: object, indent: int = 0) -> str:
    """Return a value as JSON that :func:`say` leaves as it is: DEL is the one character that JSON does not escape."""
    import json

    if not indent:
        text = json.dumps(value, default=str)
    else:
        encode = json.JSONEncoder(default=str, separators=("\n", ": ")).encode
        text = _indented(value, encode, " " * indent, "\n")
    return text.replace("\x7f", "\\u007f")


def _indented(value: object, encode: Callable[[object], str], step: str, margin: str) -> str:
    r"""Return the text of ``json.dumps`` with an indent, whose code for that is not compiled.

    Parameters
    ----------
    encode
        Returns a value as JSON with ``\n`` between items; JSON escapes the line breaks of texts.
    margin
        A line break and the spaces before the value.
    """
    if not value or not isinstance(value, _CONTAINERS):
        return encode(value)
    items: Iterable[tuple[object, object]] = value.items() if isinstance(value, dict) else enumerate(value)
    nested = {key: (line, part) for line, (key, part) in enumerate(items) if part and isinstance(part, _CONTAINERS)}
    if isinstance(value, dict):
        flat: object = value | dict.fromkeys(nested, 0)
    else:
        flat = [0 if place in nested else part for place, part in enumerate(value)]
    lines = encode(flat)[1:-1].split("\n")
    for line, part in nested.values():
        lines[line] = lines[line][:-1] + _indented(part, encode, step, margin + step)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}{margin}{step}" + f",{margin}{step}".join(lines) + f"{margin}{end}"


def say_lines(text: str, file: TextIO | None = None) -> None:
    """Print a text of several lines; foreign parts of it have passed :func:`shown` before."""
    if not (text.isascii() and text.replace("\n", "").isprintable()):  # a long listing is, and each line takes time
        text = "\n".join(map(shown, text.split("\n")))
    print(text, file=file or sys.stdout, flush=True)


def say_message(text: object) -> None:
    """Print an error or a note of hpcml's to standard error, each line folded between words.

    What is quoted in it, behind a margin, stays as it is.
    """
    for line in str(text).split("\n"):
        if line.startswith(" "):
            say(line, sys.stderr)
        else:
            say_fitted(line, sys.stderr)


def note(text: object) -> None:
    """Print a note of hpcml's to standard error."""
    say_message(noted(text))


def noted(text: object) -> str:
    """Return a note of hpcml's as it is printed."""
    sentence = shown(text)
    return f"hpcml: note: {sentence}{'' if sentence.endswith('?') else '.'}"


class Raw:
    """Pass bytes on that somebody's program wrote: a log, a batch script, what another machine says.

    To a terminal they go with all that it would obey made visible, but for tabs, line breaks and the carriage return of
    a progress bar, which can hide nothing but a line of the same text. Elsewhere (a file, a pipe) they go byte for
    byte: what the program behind a pipe does with them is its own matter, as with ``cat``.

    ``of_user``: the user started the program and watches it. Its colours and bars pass unchanged.
    """

    def __init__(self, stream: TextIO, *, of_user: bool = False) -> None:
        self.stream = stream
        self.guarded = stream.isatty() and not of_user
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Pass on some bytes; a character that is not whole waits for the rest, unless these are the last."""
        self.stream.flush()
        self.stream.buffer.write(self.visible(data, last=last))
        self.stream.flush()

    def visible(self, data: bytes, *, last: bool = False) -> bytes:
        """Return the bytes that :meth:`write` would pass on."""
        if not self.guarded:
            return data
        return _escaped(_IN_A_LOG, self._decoder.decode(data, last)).encode()
