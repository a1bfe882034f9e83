"""What the end of a program's output says: its last words before it crashed, and which child process failed first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hpcml.failures import job_log
from hpcml.failures.evidence import Piece
from hpcml.failures.rules import ERROR

_LONGEST = 400  # characters of a line that are quoted
NEAR = 50  # lines before an end, in which a known message is its cause
_COMPLAINT = 12  # lines before an end, in which an error is named
_BEFORE = 20  # lines before a crash, in which a message says why
_OWN = "hpcml: "  # how hpcml's own lines in a program's output begin
# How programs show that they crash: what follows is where, not why.
_CRASH = re.compile(
    r"Fatal Python error: |terminate called |Program received signal SIG|Backtrace for this error|"
    r".{0,40}\*{3} Process received signal|={4} backtrace|"
    r"\[\S+\] Caught signal \d+|\*{3} (?:Aborted at|Check failure stack trace)|PC: @|Aborted\b|Segmentation fault\b"
)
_FATAL = re.compile(r"(Fatal Python error: (?!Segmentation fault|Aborted|Bus error|Illegal instruction).+)")
# Lines that end the output of many programs and say nothing of this one; Open MPI begins each with node and process.
_SAYS_NOTHING = re.compile(
    r"(?:\[\S+:\d+\] )?(?:\W*|Error termination\. Backtrace:|Compile with `TORCH_USE_CUDA_DSA`.*|"
    r"For debugging consider passing CUDA_LAUNCH_BLOCKING.*|"
    r"CUDA kernel errors might be asynchronously.*|\*{3}    and potentially your MPI job\)|"
    r"\*{3} (?:MPI_ERRORS_ARE_FATAL|on |reported by |An error occurred in ).*|NOTE: invoking MPI_ABORT causes.*|"
    r"You may or may not see output.*|exactly when Open MPI kills them\.|(?:Aborted|Segmentation fault)(?: \(core.*)?)"
)
_EXPLAINS = re.compile(
    r"(?i)assert|error|fail|fatal|abort|corrupt|free\(|malloc|terminat|unable|"
    r"cannot|could not|unhealthy|denied|refused|unavailable|invalid|"
    r"timed? ?out|exceed|not (?:found|permitted|supported|available)"
)
_COMPLAINS = re.compile(r"(?i)\b(?:\w*error|fatal|failed|failure|cannot|\w*exception|not found|no such)\b")
_WHAT = re.compile(r"\s+what\(\): +(\S.*)")
_FRAME = re.compile(r"frame #\d+: ")
_PREFIX = re.compile(r"\[rank(\d+)\]:(?:\s|$)")  # which PyTorch writes before each line of a traceback
_TRACEBACK = "Traceback (most recent call last):"
_LINK = re.compile(r"(?:The above exception was|During handling of the above) ")  # between the tracebacks of one error
_IN_THREAD = re.compile(r"Exception in thread (\S.{0,100}?):?")
_CHILD_FAILED = re.compile(r"(?:\w+\.)*ChildFailedError\b")
_ROOT_RANK = re.compile(r"^Root Cause \(first observed failure\):(?:\n.*){0,4}?\n\s+rank\s+: (\d+)", re.MULTILINE)
_ROOT_END = re.compile(
    r"^Root Cause \(first.*(?:\n.*){0,9}?\n\s+traceback : (Signal \d+ \(\w+\)) received", re.MULTILINE
)
_PLACE = re.compile(r'\s+File "(.+)", line (\d+)')


class Words(NamedTuple):
    """A line of an output that says why, and its number (0 if that is not known)."""

    text: str
    number: int = 0


class ChildError(NamedTuple):
    """What a launcher or PyTorch printed of the process that failed first."""

    rank: str  # its number, empty if that is not known
    words: Words  # the first line of its error; empty where it was killed
    message: str  # the whole error
    place: str = ""  # where it was raised: a file and a line
    killed: str = ""  # by which signal, in the launcher's words
    launched: bool = False  # whether torchrun started it


def last_line(output: Piece) -> Words | None:
    """Return the last line that says something; None if there is none."""
    return _said(output, range(len(lines := output.text.split("\n")) - 1, -1, -1), lines)


def last_complaint(output: Piece) -> Words | None:
    """Return the last line near the end that names an error; None if there is none."""
    lines = output.text.rstrip().split("\n")
    for place in range(len(lines) - 1, max(-1, len(lines) - 1 - _COMPLAINT), -1):
        words = _said(output, [place], lines)
        if words and _COMPLAINS.search(words.text):
            return words
    return None


def failed_task(output: Piece) -> str:
    """Return the first report of srun, near the end, on a task that failed, as a clause; empty if there is none."""
    return job_log.failed_task("\n".join(output.text.rstrip().split("\n")[-NEAR:]))


def printed_error(output: Piece) -> ChildError | None:
    """Return the error that ends the last traceback near the end, where other lines follow it; None without one."""
    lines = output.text.rstrip().split("\n")
    near = Piece("\n".join(lines[-NEAR:]), max(0, output.first + len(lines) - NEAR) if output.first else 0)
    if len(lines) <= NEAR:
        near = output
    texts = near.text.split("\n")
    return next(reversed(_errors(near, texts, [None] * len(texts))), None)


def thread_error(output: Piece) -> tuple[str, Words] | None:
    """Return the last thread that an error ended near the end, and its error; None if there is none."""
    near = near_end(output, crashed=False)
    lines = near.text.split("\n")
    begins = [(place, match[1]) for place, line in enumerate(lines) if (match := _IN_THREAD.fullmatch(line))]
    if not begins:
        return None
    begin, name = begins[-1]
    of_thread = Piece("\n".join(lines[begin:]), near.first + begin if near.first else 0)
    error = next(iter(_errors(of_thread, lines[begin:], [None] * (len(lines) - begin))), None)
    return (name, error.words) if error else None


def before_traceback(output: Piece) -> Words | None:
    """Return the last line before the tracebacks of the last error, if it says why; None if it does not."""
    lines = output.text.rstrip().split("\n")
    begins = [place for place, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    end = max((place for place in begins if not _LINK.match("".join(lines[max(0, place - 2) : place]))), default=0)
    words = _said(output, range(end - 1, max(-1, end - 1 - _COMPLAINT), -1), lines)
    return words if words and (_EXPLAINS.search(words.text) or _COMPLAINS.search(words.text)) else None


def _said(output: Piece, places: Sequence[int], lines: Sequence[str]) -> Words | None:
    for place in places:
        text = lines[place].strip()
        if text and not _SAYS_NOTHING.fullmatch(text) and not text.startswith(_OWN):
            return Words(text, output.first + place if output.first else 0)
    return None


def near_end(output: Piece, *, crashed: bool) -> Piece:
    """Return the last lines of an output, of a program that ``crashed`` those before what shows where."""
    lines = output.text.rstrip().split("\n")
    end = _crash(lines) if crashed else None
    end = len(lines) if end is None else end + 2  # what terminate() says of itself is in two lines
    begin = max(0, end - NEAR)
    return Piece("\n".join(lines[begin:end]), output.first + begin if output.first else 0)


def _crash(lines: Sequence[str]) -> int | None:
    """Return the line at which a program begins to show its last crash; None if there is none."""
    marked = [place for place, line in enumerate(lines) if _CRASH.match(line)]
    while len(marked) > 1 and marked[-1] - marked[-2] < NEAR:
        marked.pop()  # terminate() first, then Python
    return marked[-1] if marked else None


def last_words(output: Piece) -> Words | None:
    """Return the output before a program's crash, if it names the cause."""
    lines = output.text.rstrip().split("\n")
    end = _crash(lines)
    end = len(lines) if end is None else end
    for place in range(end, min(len(lines), end + 3)):
        if match := _FATAL.match(lines[place]):
            return Words(match[1], output.first + place if output.first else 0)
    for place in range(end - 1, max(-1, end - 1 - _BEFORE), -1):
        words = _said(output, [place], lines)
        if words and _EXPLAINS.search(words.text) and not _FRAME.match(words.text):
            return words
    for place in range(end, min(len(lines), end + 3)):
        if match := _WHAT.match(lines[place]):
            return Words(match[1].strip(), output.first + place if output.first else 0)
    return None


def child_error(output: Piece) -> ChildError | None:
    """Return the report of torchrun on the process that failed first, or of PyTorch on this one; None without one."""
    lines = output.text.split("\n")
    failed = [place for place, line in enumerate(lines) if _CHILD_FAILED.match(line)]
    prefixes = [_PREFIX.match(line) for line in lines]
    if not failed and not any(prefixes):
        return None
    root = _ROOT_RANK.findall(output.text)
    errors = list(_errors(output, lines, prefixes))
    of_root = [error for error in errors if root and error.rank == root[-1]]
    if error := next(iter(of_root or errors), None):
        return error._replace(rank=error.rank or next(reversed(root), ""), launched=bool(failed))
    killed = _ROOT_END.findall(output.text)
    return ChildError(root[-1], Words(""), "", killed=killed[-1], launched=True) if root and killed else None


def _errors(output: Piece, lines: Sequence[str], prefixes: Sequence[re.Match[str] | None]) -> list[ChildError]:
    """Return the errors that end the tracebacks of child processes, in their order."""
    errors: list[ChildError] = []
    place_by_rank: dict[str, str] = {}  # of the traceback that is being read
    is_message: dict[str, bool] = {}  # whether its error has begun
    for number, (line, prefix) in enumerate(zip(lines, prefixes, strict=True)):
        rank = prefix[1] if prefix else ""
        text = line[prefix.end() :] if prefix else line
        if text.startswith(_TRACEBACK):
            place_by_rank[rank], is_message[rank] = "", False
        elif rank not in place_by_rank:
            continue
        elif match := _PLACE.match(text):
            place_by_rank[rank] = f"{match[1][-_LONGEST:]}, line {match[2]}"
        elif is_message[rank]:
            if rank and errors and text.strip():  # the prefix shows what belongs to the message
                last = max(place for place, error in enumerate(errors) if error.rank == rank)
                errors[last] = errors[last]._replace(message=f"{errors[last].message}\n{text}")
        elif not text.startswith(" ") and text.strip():
            is_message[rank] = True
            if _CHILD_FAILED.match(text) or not ERROR.fullmatch(text.rstrip()):
                place_by_rank.pop(rank)  # the launcher's own
                continue
            words = Words(text.rstrip()[:_LONGEST], output.first + number if output.first else 0)
            errors.append(ChildError(rank, words, text.rstrip(), place_by_rank[rank]))
    return errors
