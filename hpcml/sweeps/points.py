"""The points of a sweep: the named values that words of the command line and files mean, and the key of each.

A key says what makes two points the same: the values, the script with the modules beside it, its arguments, the image.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import itertools
import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import safe_files
from hpcml.errors import HpcmlError, NotFoundError, UsageError
from hpcml.runs import modules_code_uses

MOST = 10_000  # points of a sweep: each has files of its own
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_RANGE = re.compile(r"range\(([^()]*)\)")
_DRAW = re.compile(r"(\w+)\((.*)\)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_LONGEST_FILE = 16 << 20  # bytes
_KEY_LENGTH = 16  # hexadecimal digits

Typed = int | float | bool | str


class Value(NamedTuple):
    """One value of a point."""

    name: str
    text: str  # that the script gets
    typed: Typed  # that hpcml.run.point has


Point = tuple[Value, ...]


class Request(NamedTuple):
    """The words of a command line about the points, as they were typed."""

    grids: Sequence[str] = ()  # NAME=VALUES
    zips: Sequence[Sequence[str]] = ()  # of each option its NAME=VALUES
    files: Sequence[Path] = ()
    randoms: Sequence[Sequence[str]] = ()  # of each option a number of draws, then its NAME=DISTRIBUTION
    seed: int = 0


def points(request: Request) -> list[Point]:
    """Return all points: each row of one option with each row of the others, no point twice.

    Raises
    ------
    UsageError
        If a word is none of a point, a name is repeated, there are no points or more than :data:`MOST`.
    NotFoundError
        If a file of points cannot be read.
    """
    axes: list[list[Point]] = []
    axes += [_grid(word) for word in request.grids]
    axes += [_zip(values) for values in request.zips]
    axes += [_file(path) for path in request.files]
    axes += [_random(values, request.seed) for values in request.randoms]
    if not axes:
        raise _wrong("The sweep has no points", "hpcml sweep", "Use --grid k=8,16,32, or --points FILE.csv.")
    seen: set[str] = set()
    for axis in axes:
        names = {value.name for point in axis for value in point}
        if twice := sorted(names & seen):
            raise _wrong(f"Two options set '{twice[0]}'", twice[0], "Use each name once.")
        seen |= names
    _check_count(math.prod(len(axis) for axis in axes))
    return list(dict.fromkeys(tuple(itertools.chain(*rows)) for rows in itertools.product(*axes)))


def drawn(request: Request) -> str:
    """Return the numbers of draws and of different points of ``--random``, in words; empty where all differ."""
    draws = [_random(values, request.seed) for values in request.randoms]
    repeated = [axis for axis in draws if len(set(axis)) < len(axis)]
    return "; ".join(f"--random: of {len(axis)} drawn points, {len(set(axis))} are distinct" for axis in repeated)


def typed(text: str) -> Typed:
    """Return a text as a whole number, a number, True or False, else as it is."""
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)
    return number if math.isfinite(number) and "_" not in text else text


def _grid(word: str) -> list[Point]:
    name, texts = _axis(word, "--grid")
    return [(Value(name, text, typed(text)),) for text in texts]


def _zip(values: Sequence[str]) -> list[Point]:
    axes = [_axis(word, "--zip") for word in values]
    lengths = {len(texts) for _, texts in axes}
    if len(lengths) > 1:
        counts = ", ".join(f"{name} has {len(texts)}" for name, texts in axes)
        raise _wrong(
            f"The lists of --zip differ in length: {counts}", "--zip", "Give each name the same number of values."
        )
    _check_names([name for name, _ in axes], "--zip")
    rows = zip(*([Value(name, text, typed(text)) for text in texts] for name, texts in axes), strict=True)
    return list(rows)


def _axis(word: str, option: str) -> tuple[str, list[str]]:
    """Return the name and the values of ``k=8,16``, ``k=range(1,4)`` (as Python's), ``c="a,b",d``."""
    name, sign, text = word.partition("=")
    hint = f"Example: {option} k=8,16,32"
    if not sign:
        raise _wrong(f"'{word}' is not NAME=VALUES", option, f"{hint}. Write the script's own arguments after --.")
    _check_names([name], option)
    if match := _RANGE.fullmatch(text):
        return name, _range(match[1], word, option)
    if not text:
        raise _wrong(f"'{name}' has no values", option, hint)
    try:
        texts = next(csv.reader([text], strict=True))
    except (csv.Error, StopIteration):
        raise _wrong(
            f"The values of '{name}' cannot be read: {text}", option, 'Quote a value that has a comma: c="a,b",d.'
        ) from None
    if "" in texts:
        raise _wrong(f"A value of '{name}' is empty", option, "Remove the extra comma in the list.")
    _check_count(len(texts))
    return name, texts


def _range(text: str, word: str, option: str) -> list[str]:
    texts = [part.strip() for part in text.split(",")]
    numbers = [int(number) for number in texts if _WHOLE.fullmatch(number)]
    if not (1 <= len(numbers) == len(texts) <= 3) or 0 in numbers[2:]:
        hint = "Write range(START,STOP) or range(START,STOP,STEP) with whole numbers. STOP is excluded."
        raise _wrong(f"'{word}' is not a valid range", option, hint)
    values = range(*numbers)
    if not values:
        raise _wrong(f"'{word}' is empty", option, "START must be less than STOP.")
    _check_count(len(values))
    return [str(value) for value in values]


# -- random points ---------------------------------------------------------------------------------------------------


class Distribution(NamedTuple):
    """What a parameter's values are drawn from: ``uniform``, ``loguniform``, ``randint`` or ``choice``, and of what."""

    kind: str
    of: tuple[Typed, ...]

    def draw(self, source: random.Random) -> str:
        """Return a value as text."""
        if self.kind == "choice":
            return str(source.choice(self.of))
        low, high = map(float, self.of)
        if self.kind == "randint":
            return str(source.randint(int(low), int(high)))
        if self.kind == "uniform":
            return repr(source.uniform(low, high))
        return repr(math.exp(source.uniform(math.log(low), math.log(high))))


def distributions(values: Sequence[str], option: str) -> tuple[int, dict[str, Distribution]]:
    """Return the number of draws that an option begins with, and its distributions by parameter.

    Raises
    ------
    UsageError
        If a word is none, or there are too many draws.
    """
    hint = f"Write {option} 50 x=uniform(0,1) k=randint(1,10) c=choice(a,b) lr=loguniform(1e-4,1)."
    if len(values) < 2 or not re.fullmatch("[0-9]{1,18}", values[0]) or not int(values[0]):
        raise _wrong(f"{option} needs a number of points, then distributions", option, hint)
    _check_count(int(values[0]))
    parsed = []
    for word in values[1:]:
        name, _, text = word.partition("=")
        _check_names([name], option)
        match = _DRAW.fullmatch(text)
        one = _distribution(match[1], next(csv.reader([match[2]]), [])) if match else None
        if one is None:
            raise _wrong(f"'{word}' is not a valid distribution", option, hint)
        parsed.append((name, one))
    _check_names([name for name, _ in parsed], option)
    return int(values[0]), dict(parsed)


def _random(values: Sequence[str], seed: int) -> list[Point]:
    """Return the draws; a draw depends on seed, name and number alone, so that more draws begin with the same."""
    count, space = distributions(values, "--random")
    rows = []
    for number in range(count):
        texts = [(name, one.draw(random.Random(f"{seed}/{name}/{number}"))) for name, one in space.items()]  # noqa: S311
        rows.append(tuple(Value(name, text, typed(text)) for name, text in texts))
    return rows


def _distribution(kind: str, arguments: list[str]) -> Distribution | None:
    arguments = [word.strip() for word in arguments]
    if kind == "choice" and arguments and "" not in arguments:
        return Distribution(kind, tuple(arguments))
    if len(arguments) != 2:
        return None
    if kind == "randint" and all(map(_WHOLE.fullmatch, arguments)) and int(arguments[0]) <= int(arguments[1]):
        return Distribution(kind, (int(arguments[0]), int(arguments[1])))
    try:
        low, high = map(float, arguments)
    except ValueError:
        return None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return None
    if kind == "uniform" or (kind == "loguniform" and low > 0):
        return Distribution(kind, (low, high))
    return None


# -- files of points -------------------------------------------------------------------------------------------------


def _place(path: Path) -> str:
    return f"--points {path}"


def _text(path: Path) -> str:
    place = _place(path)
    try:
        return safe_files.read(path, _LONGEST_FILE, ours=False, follow=True).decode("utf-8-sig")
    except OSError as error:
        raise NotFoundError(f"The file of points cannot be read: {error.strerror}", place=place) from error
    except UnicodeDecodeError as error:
        raise _wrong("The file of points is not UTF-8 text", place, "Save the file as UTF-8.") from error


def _file(path: Path) -> list[Point]:
    place, readers = _place(path), {".csv": _csv, ".jsonl": _jsonl}
    if path.suffix not in readers:
        hint = "Rename the file: its name must end with .csv or .jsonl."
        raise _wrong("The name of the file of points does not end with .csv or .jsonl", place, hint)
    text = _text(path)
    rows = []
    for row in readers[path.suffix](text, place):
        rows.append(row)
        _check_count(len(rows))
    if not rows:
        raise _wrong("The file contains no points", place, "Write one row or line for each point.")
    return rows


def _csv(text: str, place: str) -> Iterator[Point]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names: list[str] = []
    try:
        for row in reader:
            if not row:
                continue
            if not names:
                names = [name.strip() for name in row]
                _check_names(names, place)
                continue
            if len(row) != len(names) or "" in row:
                hint = "Each row needs a value in each column."
                raise _wrong(f"Line {reader.line_num} does not have {len(names)} values", place, hint)
            yield tuple(Value(name, one, typed(one)) for name, one in zip(names, row, strict=True))
    except csv.Error as error:
        raise _wrong(
            f"Line {reader.line_num} is not valid CSV: {error}", place, "Close the quotes in this line."
        ) from error


def _jsonl(text: str, place: str) -> Iterator[Point]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        hint = 'Write one JSON object on each line: {"k": 8, "lr": 0.1}.'
        try:
            table = safe_files.parsed(json.loads, line)
        except ValueError as error:
            raise _wrong(f"Line {number} is not valid JSON", place, hint) from error
        right = isinstance(table, dict) and table and all(_is_value(value) for value in table.values())
        if not right:
            raise _wrong(f"Line {number} is not a JSON object of numbers and strings", place, hint)
        _check_names(list(table), place)
        yield tuple(Value(name, one if isinstance(one, str) else json.dumps(one), one) for name, one in table.items())


def _is_value(one: object) -> bool:
    return (isinstance(one, str) and one != "") or (isinstance(one, int | float) and math.isfinite(one))


# -- what holds for all ----------------------------------------------------------------------------------------------


def _check_names(names: Iterable[str], place: str) -> None:
    seen: set[str] = set()
    for name in names:
        if not _NAME.fullmatch(name):
            hint = "Use at most 64 letters, digits, '_' and '-'. Begin the name with a letter."
            raise _wrong(f"'{name}' is not a valid option name for the script", place, hint)
        if name in seen:
            raise _wrong(f"'{name}' is given twice", place, "Use each name once.")
        seen.add(name)


def _check_count(count: int) -> None:
    if count > MOST:
        hint = "Split the sweep into several sweeps, or draw points at random: --random 100 …."
        raise _wrong(f"The sweep would have {count:,} points, but at most {MOST:,} are allowed", "hpcml sweep", hint)


def _wrong(message: str, place: str, hint: str) -> HpcmlError:
    return UsageError(message, place=place, hint=hint)


def shown(point: Point) -> str:
    """Return a point on one line: ``lr=0.1 k=16``."""
    return " ".join(f"{value.name}={value.text}" for value in point)


# -- keys ------------------------------------------------------------------------------------------------------------


def key_of(point: Point, code: str, arguments: Sequence[str], image: str) -> str:
    """Return a point's key; the order of its names does not count."""
    values = sorted((value.name, value.text) for value in point)
    text = json.dumps([values, code, list(arguments), image])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_KEY_LENGTH]


def code_digest(script: Path, others: Iterable[Path] = ()) -> str:
    """Return a digest of a script and of all modules beside it that it or they import, wherever the import is.

    ``others`` are modules in other folders of its project.

    Raises
    ------
    OSError
        If one of them cannot be read.
    """
    folder = script.parent
    digest = hashlib.sha256()
    waiting, seen = [script], {script}
    while waiting:
        path = waiting.pop(0)
        source = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name} {len(source)}\n".encode("utf-8", "surrogatepass") + source)
        for module in _beside(folder, source, path.relative_to(folder).parent.parts):
            if module not in seen:
                seen.add(module)
                waiting.append(module)
    for module in sorted(others):
        source = module.read_bytes()
        digest.update(f"{module} {len(source)}\n".encode("utf-8", "surrogatepass") + source)
    return digest.hexdigest()


def _beside(folder: Path, source: bytes, package: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files of the modules beside the script that a source of a package imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # whoever runs it says so
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    for name in sorted({name for node in statements for name in modules_code_uses.dotted_names(node, package)}):
        yield from _sources(folder, name)


def _sources(place: Path, name: Sequence[str]) -> Iterator[Path]:
    """Yield the sources of a dotted name: of a package all, of a folder without __init__.py only what is named."""
    for part in name:
        if (file := place / f"{part}.py").is_file():
            yield file
        place /= part
        if (place / "__init__.py").is_file():
            yield from sorted(place.rglob("*.py"))
            return
