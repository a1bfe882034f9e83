"""Why a build of an image failed: the program's last words as a sentence with a remedy."""

from __future__ import annotations

import re
from pathlib import Path

from hpcml import subprocesses, units
from hpcml.errors import HpcmlError, ImageError, StorageError
from hpcml.images import program as images

ROOM = "hpcml-build-"  # how a build's temporary folder begins
_NO_NETWORK = (
    r"(?i)no such host|name resolution|connection refused|network is unreachable|(handshake|i/o) timeout|"
    r"connection timed out|proxyconnect|certificate signed by unknown|certificate_verify_failed"
)
_FULL = r"(?i)(?:(/[^:\n]*): )?(no space left on device|disk quota exceeded)"
# What the programs say when a build fails, and what it means.
_FAILURES = (
    (
        r"(?i)/etc/sub[ug]id|newuidmap|fakeroot.{0,80}(not|fail|denied|unable)|user namespaces? .{0,40}(disabled|not)",
        "This machine does not let you build as root of a namespace of your own (--fakeroot)",
        "Ask for a line in /etc/subuid and /etc/subgid, or build on another machine and copy the image.",
    ),
    (r"(?i)must be (the )?root", "The build wants to be root", "Give --fakeroot, or build on a machine where you are."),
    (
        r"toomanyrequests|429 Too Many",
        "The registry refuses more downloads for now",
        "Try again in some hours, or log in to it.",
    ),
    (
        _NO_NETWORK,
        "Something could not be downloaded",
        "Does this machine reach the network (http_proxy, https_proxy)? Compute nodes mostly do not.",
    ),
    (
        r"(?i)test script|%test",
        "The image was made, but fails its own test",
        "The lines above the last say which part.",
    ),
    (r"(?i)%post|post script", "A command of %post failed", "The lines above the last say which one."),
)


def explain(
    answer: subprocesses.Answer, program: images.Program, definition: Path, out: Path, deadline: float
) -> HpcmlError:
    """Return a failed build as an error in words; ``deadline`` is what it had, in seconds."""
    quote, place = images.last_lines(answer.text), str(definition)
    if answer.code is None:
        hint = "Is the network, or the disk, very slow? Look at its last words above."
        return ImageError(
            f"The build did not end within {units.format_seconds(deadline)}", place=place, hint=hint, quote=quote
        )
    said = "\n".join(line for line in answer.text.splitlines() if not line.startswith("INFO"))
    if full := re.search(_FULL, said):
        return _full(full[1] or "", "quota" in full[2].lower(), program, definition, out, quote)
    for pattern, words, hint in _FAILURES:
        if re.search(pattern, said):
            return ImageError(words, place=place, hint=hint, quote=quote)
    words = f"{program} did not build the image (its exit status was {answer.code})"
    return ImageError(words, place=place, hint="Its own words are above.", quote=quote)


def _full(
    path: str, quota: bool, program: images.Program, definition: Path, out: Path, quote: tuple[str, ...]
) -> StorageError:
    """Return which of a build's places is full: its temporary folder, the image's own, or the cache of layers."""
    name = "APPTAINER" if program.kind == "apptainer" else "SINGULARITY"
    if path.startswith(f"{out.parent}/.{out.name}."):
        what, place, hint = " for the image", str(out.parent), "Write the image to a folder with more space."
    elif f"/{ROOM}" in path:
        what, place = " in its temporary folder", path.partition(f"/{ROOM}")[0]
        hint = f"Set {name}_TMPDIR to a folder with more space."
    elif "/cache/" in path:
        what, place = " in the cache", path.partition("/cache/")[0] + "/cache"
        hint = f"Set {name}_CACHEDIR to a folder with more space, or empty it ({program.path} cache clean)."
    else:
        what, place = "", str(definition)
        hint = f"Set {name}_TMPDIR and {name}_CACHEDIR to folders with more space, and write the image to another."
    why = "your quota is used up" if quota else "the disk is full"
    return StorageError(f"The build ran out of space{what}: {why}", place=place, hint=hint, quote=quote)
