"""Why Apptainer or SingularityCE could not enter an image: its own words, turned into a sentence with a remedy."""

from __future__ import annotations

import re
from typing import NamedTuple

FATAL = 255  # the exit status of all their own failures
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"^(WARNING|INFO|ERROR|FATAL|DEBUG):\s+")

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
_WORDS = (
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


class Reason(NamedTuple):
    """Why an image was not entered: a clause, and what to do."""

    what: str
    hint: str


def reason(said: str) -> Reason | None:
    """Return what a program's words mean; None where they are not known, or are no words of failing."""
    plain = _COLOURS.sub("", said)
    for pattern, what, hint in _WORDS:
        if found := re.search(pattern, plain):
            groups = [(group or "").rstrip(":,.") for group in found.groups()]
            return Reason(what.format(*groups), hint)
    return None


def in_words(said: str, status: str) -> Reason:
    """Return why an image was not entered, with the program's last words where they are not known."""
    if known := reason(said):
        return known
    lines = [line for line in _COLOURS.sub("", said).splitlines() if line.strip()]
    fatal = [line for line in lines if line.lstrip().startswith("FATAL")] or lines
    last = _NOISE.sub("", fatal[-1].strip()).rstrip(".") if fatal else f"exit status {status}"
    return Reason(f"the image could not be entered: {last[:300]}", "Look at the image: hpcml image check IMAGE.")
