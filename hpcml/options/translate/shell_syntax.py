"""The simple commands of a shell script, read without running any: words, quotes and redirections, by line numbers.

What is more than a list of simple commands (pipes, blocks, functions, ``&``, here-documents) is refused with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from hpcml.terminal import shown

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(rf"\$(?:({_NAME}|[0-9@*#?$!-])|\{{({_NAME}|[0-9]+|[@*])\}})")
_NAMED = re.compile(rf"\$\{{?[#!]?({_NAME})")
_PARAMETER = re.compile(r"\$\{[#!]?([0-9]+|[@*]|[#?$!-](?=\}))")  # an argument, or what the shell counts
_IN_ARITHMETIC = re.compile(rf"(?<![\w$]){_NAME}")
_REDIRECTION = re.compile(r"(?:[0-9]*(?:>>|>\||>&|<&|<>|<(?!<)|>)|&>>?)(?!\()")
_COUNTS = re.compile(r"\$\(\(.*?(?:\+\+|--|<<=|>>=|(?<![=!<>])=(?!=))", re.DOTALL)
_PLAIN = re.compile(r"[^\s;|&()<>'\"\\$`*?\[\]{}~]+")
_ARRAY = re.compile(rf"{_NAME}\+?=")
_BLOCKS = {
    "if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac", "select", "coproc",
    "function", "[[", "{", "}", "!",
}  # fmt: skip
_OPERATORS = {"|": "a pipe", "&": "a command in the background", "(": "a subshell or a function", ")": "a block"}
_DEEPEST = 20  # quotes and substitutions within each other


class UntranslatedError(Exception):
    """A line of a batch script that hpcml cannot say otherwise: its number, and what it has."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(what)
        self.number, self.what = number, what


class Piece(NamedTuple):
    """A part of a word; ``kind`` is text, ref (``$A``), form (``${A:-b}``), sub (``$(…)``), glob or array."""

    kind: str
    text: str
    quoted: bool = False

    @property
    def names(self) -> set[str]:
        """The variables that it reads, as far as its text tells."""
        if self.kind in ("text", "glob"):
            return set()
        found = {*_NAMED.findall(self.text), *_PARAMETER.findall(self.text)}
        found |= {match[1] for match in _VARIABLE.finditer(self.text) if match[1]}
        return found | ({*_IN_ARITHMETIC.findall(self.text)} if self.text.startswith("$((") else set())

    @property
    def name(self) -> str:
        """The variable of a reference."""
        match = _VARIABLE.fullmatch(self.text) if self.kind == "ref" else None
        return (match[1] or match[2]) if match else ""


Word = tuple[Piece, ...]


class Statement(NamedTuple):
    """A simple command: the number of its line, its words, its redirections, and the operator after it."""

    number: int
    words: tuple[Word, ...]
    redirections: tuple[tuple[str, Word], ...] = ()
    after: str = ""  # "&&", "||", else empty


def text_of(word: Word) -> str | None:
    """Return the text of a word that the shell does not expand; else None."""
    return "".join(piece.text for piece in word) if all(piece.kind == "text" for piece in word) else None


def statements(text: str) -> Iterator[Statement]:
    """Yield the simple commands of a script.

    Raises
    ------
    UntranslatedError
        At the first line that has anything else.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if shown(line.replace("\t", " ")) != line.replace("\t", " "):
            raise UntranslatedError(number, "a control character, or bytes that are no text")
    return _Reader(text).statements()


def words(text: str, number: int) -> tuple[Word, ...]:
    """Return the words of an array, or of a command that is an argument.

    Raises
    ------
    UntranslatedError
        If it is no simple command.
    """
    try:
        found = list(_Reader(text.replace("\n", " ")).statements())
    except UntranslatedError as error:
        raise UntranslatedError(number, error.what) from error
    if len(found) > 1 or any(statement.redirections or statement.after for statement in found):
        raise UntranslatedError(number, "several commands in one argument")
    return found[0].words if found else ()


class _Reader:
    """A position in a script."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def refusal(self, what: str, at: int | None = None) -> UntranslatedError:
        return UntranslatedError(self.text.count("\n", 0, self.at if at is None else at) + 1, what)

    def statements(self) -> Iterator[Statement]:
        while self.at < len(self.text):
            self._skip_blanks()
            begin, found, redirections = self.at, list[Word](), list[tuple[str, Word]]()
            while (operator := self._operator()) is None:
                if match := _REDIRECTION.match(self.text, self.at):
                    self.at = match.end()
                    self._skip_blanks()
                    redirections.append((match[0], self._word()))
                else:
                    found.append(self._word())
                    if len(found) == 1 and (first := "".join(piece.text for piece in found[0])) in _BLOCKS:
                        raise self.refusal(f"a block ({first})", begin)
                self._skip_blanks()
            if found or redirections or operator:
                number = self.text.count("\n", 0, begin) + 1
                yield Statement(number, tuple(found), tuple(redirections), operator)

    def _skip_blanks(self) -> None:
        while match := re.compile(r"[ \t]+|\\\n").match(self.text, self.at):
            self.at = match.end()
        if self.text.startswith("#", self.at):
            self.at = self._end("\n", len(self.text))

    def _end(self, mark: str, otherwise: int = -1) -> int:
        end = self.text.find(mark, self.at)
        return end if end >= 0 else otherwise

    def _operator(self) -> str | None:
        """Return the operator that ends a command here, empty for the end of a line, None if the command continues."""
        if self.at >= len(self.text):
            return ""
        if match := re.compile(r"\n|;(?!;)|&&|\|\|").match(self.text, self.at):
            self.at = match.end()
            return match[0].strip("\n;")
        if self.text.startswith("<<", self.at):
            raise self.refusal("a here-document")
        if self.text.startswith(("&>", "<(", ">(")):
            return None
        if (what := _OPERATORS.get(self.text[self.at])) and not self.text.startswith("&>", self.at):
            raise self.refusal(what)
        if self.text.startswith(";;", self.at):
            raise self.refusal("a block (case)")
        return None

    def _word(self) -> Word:
        """Read a word."""
        pieces: list[Piece] = []
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] not in " \t\n;|&)":
            if self.text[self.at] in "<>" and (pieces or not self.text.startswith("(", self.at + 1)):
                break
            pieces += self._pieces(begin)
        if self.at == begin:
            raise self.refusal("a word that hpcml cannot read")
        return _joined(pieces)

    def _pieces(self, begin: int) -> Iterator[Piece]:
        """Read a part of the word that began at a position."""
        character = self.text[self.at]
        if match := _PLAIN.match(self.text, self.at):
            self.at = match.end()
            yield Piece("text", match[0])
        elif character in "<>":
            self.at += 1
            yield Piece("sub", character + self._balanced(0))
        elif character == "(":
            if not _ARRAY.fullmatch(self.text, begin, self.at):
                raise self.refusal(_OPERATORS["("])
            yield Piece("array", self._balanced(0))
        elif character == "'":
            yield Piece("text", self._until("'"), quoted=True)
        elif character == '"':
            yield Piece("text", "", quoted=True)
            yield from self._double_quoted()
        elif character == "\\":
            if not self.text.startswith("\n", self.at + 1):
                yield self._escaped()
            self.at += 2
        elif character in "$`":
            yield self._expansion(quoted=False)
        else:
            yield Piece("glob", character)
            self.at += 1

    def _escaped(self) -> Piece:
        return Piece("text", self.text[self.at + 1 : self.at + 2], quoted=True)

    def _until(self, mark: str) -> str:
        """Return the text before the next mark, and go after it."""
        begin = self.at
        self.at += 1
        if (end := self._end(mark)) < 0:
            raise self.refusal("a quote without its end", begin)
        found, self.at = self.text[self.at : end], end + 1
        return found

    def _double_quoted(self) -> Iterator[Piece]:
        begin = self.at
        self.at += 1
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == '"':
                self.at += 1
                return
            if character in "$`":
                yield self._expansion(quoted=True)
                continue
            escapes = character == "\\" and self.text[self.at + 1 : self.at + 2] in tuple('$`"\\\n')
            if not (escapes and self.text[self.at + 1] == "\n"):
                yield self._escaped() if escapes else Piece("text", character, quoted=True)
            self.at += 2 if escapes else 1
        raise self.refusal("a quote without its end", begin)

    def _expansion(self, *, quoted: bool) -> Piece:
        begin = self.at
        if self.text[begin] == "`":
            self._until("`")
            return Piece("sub", self.text[begin : self.at], quoted)
        if self.text.startswith("$(", begin):
            self.at += 1
            self._balanced(0)
            if _COUNTS.match(self.text, begin, self.at):
                raise self.refusal("arithmetic that changes a variable", begin)
            return Piece("sub", self.text[begin : self.at], quoted)
        if self.text.startswith("$[", begin):
            raise self.refusal("arithmetic in $[…]", begin)
        if match := _VARIABLE.match(self.text, begin):
            self.at = match.end()
            return Piece("ref", match[0], quoted)
        if self.text.startswith("${", begin):
            self.at += 1
            self._balanced(0, "{}")
            return Piece("form", self.text[begin : self.at], quoted)
        if not quoted and self.text[begin + 1 : begin + 2] in ("'", '"'):
            raise self.refusal("a quote with $")
        self.at += 1
        return Piece("text", "$", quoted=True)

    def _balanced(self, depth: int, pair: str = "()") -> str:
        """Go behind the parenthesis that closes the one at the position; return all of it."""
        begin, opened = self.at, 0
        if depth > _DEEPEST:
            raise self.refusal("too many quotes within each other")
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == "'" and pair == "()":
                self._until("'")
                continue
            if character == '"':
                self._skip_double_quoted(depth)
                continue
            opened += (character == pair[0]) - (character == pair[1])
            self.at += 2 if character == "\\" else 1
            if not opened:
                return self.text[begin : self.at]
        raise self.refusal(f"a '{pair[0]}' without its end", begin)

    def _skip_double_quoted(self, depth: int) -> None:
        begin = self.at
        self.at += 1
        while self.at < len(self.text):
            if self.text[self.at] == '"':
                self.at += 1
                return
            if self.text.startswith("$(", self.at):
                self.at += 1
                self._balanced(depth + 1)
                continue
            self.at += 2 if self.text[self.at] == "\\" else 1
        raise self.refusal("a quote without its end", begin)


def _joined(pieces: list[Piece]) -> Word:
    """Return pieces with neighbouring texts of one kind together."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and piece.kind == "text" and not piece.text:
            continue
        if last and last.kind == "text" and not last.text:
            joined.pop()
            last = joined[-1] if joined else None
        if last and last.kind == piece.kind and piece.kind in ("text", "glob") and last.quoted == piece.quoted:
            joined[-1] = last._replace(text=last.text + piece.text)
        else:
            joined.append(piece)
    return tuple(joined)
