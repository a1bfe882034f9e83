"""Why a role ended, or an image could not be entered: the words of the log or program, and no guess beside them."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import files

CONTAINER_FAILED = 255  # the exit status of all failures of Apptainer and SingularityCE themselves
_OWN = "hpcml: "
ERROR = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning)(?::\s.*)?")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
NOT_EXECUTABLE = 126
_FORMAT = re.compile(r"(/[^:\n]+): (?:cannot execute binary file: )?Exec format error")
_NODE = re.compile(r"hpcml: (\S+) is (\w+)$")  # what step.sh says then
_NOT_THERE = {NOT_EXECUTABLE: "cannot be executed", 127: "is not there"}  # what a shell ends with, POSIX
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = re.compile(r"^(WARNING|INFO|ERROR|FATAL|DEBUG):\s+")

_NO_NAMESPACES = (
    r"(?i)user namespaces? (are|is) (disabled|not)|failed to create user namespace|create namespace: user|"
    r"max_user_namespaces"
)
_DAMAGED = (
    r"(?i)trying to read the squashfs image|squashfs.{0,40}(corrupt|superblock)|unexpected EOF|"
    r"while (loading|reading) .*(EOF|header|descriptor)|header is corrupted"
)
_CLOSED = r"not readable by the current user|could not open image \S+: .*permission denied|\.sif: permission denied"
_NO_FUSE = r"failed to open /dev/fuse|/dev/fuse: (Permission|No such|Operation)|fusermount3?: .*(denied|not permitted)"

# What they say (Apptainer 1.4, tests/lab/test_apptainer.py; SingularityCE shares the code), what it means, what to do.
# {0} is the pattern's first group, {1} the second. The first pattern that fits counts.
_CONTAINER_ERRORS = (
    (
        r"hpcml: there is no (\S+) on ",
        "the program {0} is not there",
        "Load its module (runtime.modules), or correct runtime.container.",
    ),
    (r"hpcml: (TMPDIR cannot be bound .*)", "{0}", "Set TMPDIR to another folder (runtime.setup)."),
    (
        _NO_FUSE,
        "/dev/fuse cannot be used, and images are mounted with it",
        "Ask for /dev/fuse to be usable by all (mode 666), or for a setuid installation of the program.",
    ),
    (
        _NO_NAMESPACES,
        "the machine allows no user namespaces",
        "Ask for them, or for a setuid installation of the program.",
    ),
    (
        r"mount source (\S+) doesn't exist",
        "a path that is to be bound is not there: {0}",
        "Correct runtime.binds (or paths.scratch), or make it on all nodes.",
    ),
    (
        r"failed to set working directory: chdir (\S+):",
        "the folder {0} is not there inside",
        "Add it to runtime.binds.",
    ),
    (
        r"image's architecture \((\w+)\) could not run on the host's \((\w+)\)",
        "the image is for {0} processors, and the machine has {1}",
        "Build the image on a machine like the nodes.",
    ),
    (r"(?i)exec format error", "its programs are for another processor", "Build it on a machine like the nodes."),
    (r"image format not recognized", "the file is not an image", "Build it with hpcml image build, or copy it again."),
    (_DAMAGED, "the image is damaged or cut off", "Copy it again: was the copy interrupted?"),
    (_CLOSED, "the image may not be read", "Check its permissions and those of its folders."),
    (
        r"could not open image (\S+): .*no such file or directory",
        "the image is not there: {0}",
        "Put it on a file system that all nodes see; was it moved after the submission?",
    ),
    (
        r"(?i)no space left on device|disk quota exceeded",
        "a disk or a quota is full",
        "Free some space: in the machine's temporary folder, and in your home.",
    ),
    (
        r"(?i)cannot allocate memory|resource temporarily unavailable",
        "there was no memory or no process left for it",
        "Ask for more with --memory-per-node, or look at ulimit -u.",
    ),
    (
        r"(?i)python3?\S*.{0,40}(?:not found|no such file)",
        "there is no such Python in the image",
        "Install python3 in it and set PATH in %environment, or correct runtime.python.",
    ),
    (
        r"(?i)unknown (?:shorthand )?flag\b[^\n]*?(-\S+)",
        "the program knows no option {0}",
        "Correct runtime.options, or use a newer program.",
    ),
)


class Cause(NamedTuple):
    """Why something ended: a clause, and what to do, if that is known."""

    what: str
    hint: str = ""


def of_role(status: int, log: Sequence[str]) -> Cause:
    """Return how a role ended whose last words are ``log``."""
    last = log[-1].strip() if log else ""
    if status == NOT_EXECUTABLE and (program := _FORMAT.search("\n".join(log))):
        node = next((f"{match[1]} is {match[2]}" for match in map(_NODE.match, log) if match), "the node is not")
        kind = files.architecture_of(Path(program[1])) or "another processor"
        what = f"ended with exit status {status}: its interpreter {program[1]} is for {kind}, {node}"
        return Cause(what, "Set runtime.python to an interpreter for the nodes' processors.")
    if status in _NOT_THERE:
        what = f"ended with exit status {status}: its interpreter or something before it {_NOT_THERE[status]}"
        return Cause(what, "Does the interpreter exist on the compute nodes (runtime.python)?")
    if status > 128 and status - 128 in signal.valid_signals():
        return Cause(f"ended with exit status {status} (killed by {signal.Signals(status - 128).name})")
    if last.startswith(_OWN):
        return Cause(f"ended with exit status {status}: {last.removeprefix(_OWN).rstrip('.')}")
    if status and ERROR.fullmatch(last):
        missing = _NO_MODULE.match(last)
        hint = (
            f"Is {missing[1].partition('.')[0]} installed in the run's environment (runtime.python)?" if missing else ""
        )
        return Cause(f"ended with exit status {status}: {last[:300]}", hint or "The last line of the log is the error.")
    return Cause(f"ended with exit status {status}")


def container_error(output: str) -> Cause | None:
    """Return what the output of Apptainer or SingularityCE means; None where that is not known, or is no failure."""
    plain = COLOURS.sub("", output)
    for pattern, what, hint in _CONTAINER_ERRORS:
        if match := re.search(pattern, plain):
            groups = [(group or "").rstrip(":,.") for group in match.groups()]
            return Cause(what.format(*groups), hint)
    return None


def not_entered(output: str, status: str) -> Cause:
    """Return why an image was not entered, with the program's last line where its meaning is not known."""
    if known := container_error(output):
        return known
    lines = [line for line in COLOURS.sub("", output).splitlines() if line.strip()]
    fatal = [line for line in lines if line.lstrip().startswith("FATAL")] or lines
    last = _LEVEL.sub("", fatal[-1].strip()).rstrip(".") if fatal else f"exit status {status}"
    return Cause(f"the image could not be entered: {last[:300]}", "Look at the image: hpcml image check IMAGE.")
