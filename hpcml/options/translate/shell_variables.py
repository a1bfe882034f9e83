"""The variables of a shell script, as far as its text tells their values; words with these values in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from hpcml.options.translate.shell_syntax import Piece, UntranslatedError, Word, text_of

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_FORM = re.compile(r"\$\{(\w+)(?:\[([@*]|\d+)\]|:-[^$`\"']*)\}")
_SPECIAL = re.compile(r"[*?\[\]{}~]")
_IN_QUOTES, _BACKSLASH = re.compile(r'["\\$`]'), r"\\\g<0>"
_DEFAULT = re.compile(r"\$\{(\w+):?=")
# Variables of which each process of a shell has another value, or a new one each time.
OF_PROCESS = {
    "RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "LINENO", "BASHPID", "PPID", "HOSTNAME", "SHLVL",
    "OLDPWD", "_",
}  # fmt: skip
_MOST = 1 << 18  # characters of variables' values in all words


def assignment(word: Word) -> tuple[str, str, Word] | None:
    """Return name, ``+`` and value of a word that assigns a variable."""
    if not word or word[0].kind != "text" or word[0].quoted or not (match := _ASSIGNED.fullmatch(word[0].text)):
        return None
    return match[1], match[2], ((Piece("text", match[3]),) if match[3] else ()) + word[1:]


def names(words: Sequence[Word]) -> frozenset[str]:
    """Return the variables that words read."""
    return frozenset(name for word in words for piece in word for name in piece.names)


def sets_by_default(words: Sequence[Word]) -> frozenset[str]:
    """Return the variables that ``${A:=b}`` in words sets."""
    return frozenset(
        name for word in words for piece in word if piece.kind == "form" for name in _DEFAULT.findall(piece.text)
    )


def rendered(words: Sequence[Word]) -> str:
    """Return words as bash reads them."""
    return " ".join(map(_word, words))


def _word(word: Word) -> str:
    word = tuple(map(_apart, word, [*word[1:], None]))
    if (text := text_of(word)) is not None:
        return shlex.quote(text)
    if all(piece.quoted or piece.kind == "text" for piece in word):
        texts = (_IN_QUOTES.sub(_BACKSLASH, piece.text) if piece.kind == "text" else piece.text for piece in word)
        return f'"{"".join(texts)}"'
    return "".join(shlex.quote(piece.text) if piece.kind == "text" else _bare(piece) for piece in word)


def _apart(piece: Piece, after: Piece | None) -> Piece:
    """Return a piece with braces around its variable's name, if the text after it would be a part of the name."""
    if piece.kind == "ref" and after and after.kind == "text" and piece.name and re.match(r"\w", after.text):
        return piece._replace(text=f"${{{piece.name}}}")
    return piece


def _bare(piece: Piece) -> str:
    return f'"{piece.text}"' if piece.quoted else piece.text


class Values:
    """What variables have at a line: one word, or the elements of an array; nothing where the text does not tell."""

    def __init__(self, variables: Mapping[str, str], arguments: Sequence[str]) -> None:
        self.words: dict[str, list[Word]] = {
            name: [(Piece("text", value, quoted=True),)] for name, value in variables.items()
        }
        self.words["@"] = [(Piece("text", word, quoted=True),) for word in arguments]
        self.lost: set[str] = set()  # variables that a line sets, whose values only the job knows
        self.arrays: set[str] = set()  # those that no other process can have
        self._fixed = {*self.words}
        self._room = _MOST

    def assign(self, name: str, value: Word, elements: Sequence[Word] | None) -> None:
        """Set a variable; ``elements`` are those of an array."""
        self.forget(name)
        if elements is not None and all(text_of(word) is not None for word in elements):
            self.words[name] = [*elements]
        elif elements is None and all(
            piece.kind == "text" or (piece.kind == "ref" and piece.name not in {*OF_PROCESS, "PWD"}) for piece in value
        ):
            self.words[name] = [value]
        else:
            self.lost.add(name)
            self.arrays |= {name} if elements is not None else set()

    def forget(self, name: str) -> None:
        """Forget the value of a variable that changes, and the values that are made of it."""
        self.arrays.discard(name)
        self.words.pop(name, None)
        self._lose([other for other, value in self.words.items() if name in names(value)])

    def forget_all(self) -> None:
        """Forget what a file that is read may change."""
        self._lose([name for name in self.words if name not in self._fixed])

    def _lose(self, lost: Sequence[str]) -> None:
        for name in lost:
            del self.words[name]
            self.lost.add(name)

    def text(self, name: str) -> str | None:
        """Return the value of a variable if the text tells it."""
        value = self.words.get(name, [])
        return text_of(value[0]) if len(value) == 1 and name != "@" else None

    def joined(self, word: Word) -> Word:
        """Return the word that a variable gets: no part of the word is divided."""
        pieces: list[Piece] = []
        for piece in word:
            value = self.words.get(piece.name, []) if piece.kind == "ref" and piece.name != "@" else []
            if len(value) == 1:
                pieces += [self._inserted(part)._replace(quoted=True) for part in value[0]]
            else:
                pieces.append(piece if piece.kind in ("glob", "array") else piece._replace(quoted=True))
        return tuple(pieces)

    def divided(self, word: Word) -> list[Word]:
        """Return the words that bash makes of a word."""
        fields: list[list[Piece]] = [[]]
        for piece in word:
            value, several = self._found(piece)
            for number, one in enumerate(value or []):
                if several:
                    fields += [[]] if number else []
                    fields[-1] += [self._inserted(part)._replace(quoted=True) for part in one]
                else:
                    fields[-1] += [Piece("text", "", quoted=True)] if piece.quoted and not one else []
                    for part in one:
                        _divide(fields, self._inserted(part), quoted=piece.quoted)
            if value is None:
                fields[-1].append(piece)
        return [tuple(field) for field in fields if field]

    def _found(self, piece: Piece) -> tuple[list[Word] | None, bool]:
        """Return the value of a piece of a word, None if only the job knows it, and whether it is several words."""
        if piece.kind == "ref" and (value := self.words.get(piece.name)) is not None:
            if piece.name == "@":
                return (value, True) if piece.quoted else (None, False)
            parts = value[0] if value else ()  # of an array without elements
            is_plain = piece.quoted or not any(_SPECIAL.search(part.text) for part in parts if part.kind == "text")
            return (value[:1] if is_plain else None), False
        return self._of_form(piece) if piece.kind == "form" else (None, False)

    def _of_form(self, piece: Piece) -> tuple[list[Word] | None, bool]:
        """Return the same for an element or all of an array, and for a variable with a default."""
        match = _FORM.fullmatch(piece.text)
        value = self.words.get(match[1]) if match else None
        if match is None or not value:
            return None, False
        if match[2] is None:  # with a default, which an empty value takes
            return (value if len(value) == 1 and self.text(match[1]) else None), False
        if match[2].isdecimal():
            return (value[int(match[2][:6]) :][:1] or None), False
        is_plain = piece.quoted or not any(re.search(r"[\s*?\[]", text_of(word) or " ") for word in value)
        return (value if is_plain and match[2] == "@" else None), True

    def _inserted(self, piece: Piece) -> Piece:
        """Count a piece of a value; refuse values that grow without end."""
        self._room -= 1 + len(piece.text)
        if self._room < 0:
            raise UntranslatedError(1, "variables whose values are very long")
        return piece


def _divide(fields: list[list[Piece]], part: Piece, *, quoted: bool) -> None:
    """Add a part of a value to the words: outside quotes its blanks end a word."""
    if quoted or part.kind != "text":
        fields[-1].append(part._replace(quoted=quoted))
        return
    for number, text in enumerate(re.split(r"[ \t\n]+", part.text)):
        fields += [[]] if number else []
        fields[-1] += [part._replace(text=text)] if text else []
