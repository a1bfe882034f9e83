"""Build an image: what can be known beforehand is told beforehand, and what was built is put in place whole."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import pwd
import re
import shutil
import sys
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import __version__, files, subprocesses, units
from hpcml.errors import HpcmlError, ImageError, NotFoundError, StorageError, UsageError
from hpcml.images import build_failures
from hpcml.images import program as images
from hpcml.sites import layers

DEADLINE = 6 * 3600.0  # seconds for a whole build: RAPIDS is downloaded and unpacked
SPACE = "2G"  # what a build takes, where the definition's label org.hpcml.space does not say
_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"  # in all images that hpcml's definitions start from
_SHA = "sha256:"


class Order(NamedTuple):
    """A build that may be tried: what, by which program, to where, and with which build arguments and binds."""

    definition: images.Definition
    out: Path
    program: images.Program
    fakeroot: bool
    arguments: dict[str, str]
    binds: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()

    def command(self, target: Path) -> list[str]:
        """Return the words of the command that builds into ``target``."""
        words = [self.program.path, "build", *(["--fakeroot"] if self.fakeroot else [])]
        for bind in self.binds:
            words += ["--bind", bind]
        for name, value in sorted(self.arguments.items()):
            words += ["--build-arg", f"{name}={value}"]
        return [*words, str(target), str(self.definition.path)]


def prepare(
    definition: images.Definition,
    out: Path,
    program: images.Program,
    environment: Mapping[str, str],
    *,
    fakeroot: bool | None,
    given: Mapping[str, str],
    force: bool,
) -> Order:
    """Return the order for a build, or say why it would fail.

    Parameters
    ----------
    fakeroot
        Whether to be root of a user namespace; None means: unless this user is root.
    given
        The user's own build arguments.
    force
        Whether to replace an image that is there.

    Raises
    ------
    HpcmlError
        Of the kind and with the remedy that belong to the reason.
    """
    if out.exists() and not force:
        raise UsageError(
            "There is something of that name already",
            place=str(out),
            hint="Give --force to replace it, or another name.",
        )
    if not out.parent.is_dir():
        raise NotFoundError("The folder for the image is not there", place=str(out.parent), hint="Make it: mkdir -p.")
    if definition.used and not program.takes_arguments:
        hint = "Build with Apptainer 1.2 or SingularityCE 4.0, or newer, here or elsewhere; older ones can run it."
        raise ImageError(f"{program} knows no build arguments, which the definition has", place=program.path, hint=hint)
    rootless = os.getuid() != 0 if fakeroot is None else fakeroot
    if rootless and os.getuid() != 0:
        check_subordinate(Path("/etc/subuid"))
    _check_tools(definition, environment)
    arguments, binds, variables, notes = _arguments(definition, given, environment)
    check_space(definition, out, program, environment)
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        notes.append("/dev/fuse cannot be used here: images can be built, and run only by a program installed setuid")
    return Order(definition, out, program, rootless, arguments, tuple(binds), variables, tuple(notes))


def check_subordinate(table: Path) -> None:
    """Raise unless this user has ids to be root with, one line of ``/etc/subuid``.

    Raises
    ------
    ImageError
        If there is no line for the user.
    """
    uid = str(os.getuid())
    names = {uid}
    with contextlib.suppress(KeyError):  # a user without a name has only the number
        names.add(pwd.getpwuid(int(uid)).pw_name)
    try:
        owners = {line.partition(":")[0] for line in table.read_text().splitlines()}
    except OSError:
        owners = set()  # no table is the same as no line in it
    if not names & owners:
        hint = "Ask for a line there and in /etc/subgid, build elsewhere and copy the image, or try --no-fakeroot."
        raise ImageError(
            "You have no ids to build as root of a namespace with (--fakeroot)", place=str(table), hint=hint
        )


def _check_tools(definition: images.Definition, environment: Mapping[str, str]) -> None:
    path = f"{environment.get('PATH', '')}:/usr/sbin:/sbin"
    if definition.header("Bootstrap").lower() == "debootstrap" and shutil.which("debootstrap", path=path) is None:
        raise ImageError(
            "There is no debootstrap, with which this definition begins",
            place=str(definition.path),
            hint="Install it (apt-get install debootstrap), or build another definition.",
        )


def check_space(
    definition: images.Definition, out: Path, program: images.Program, environment: Mapping[str, str]
) -> None:
    """Raise if the build's temporary folder or the image's folder has too little free space.

    Quotas cannot be seen so; when one is hit, the build's words say it.

    Raises
    ------
    StorageError
        If there is too little, or a folder is not there.
    """
    need = units.parse_memory(definition.label("space") or SPACE)
    name, (temporary, variable) = f"{_variable(program)}_TMPDIR", _temporary(program, environment)
    for folder, what in ((temporary, variable or "the temporary folder"), (out.parent, "the image")):
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            raise StorageError(
                f"The folder for {what} cannot be used: {error.strerror}",
                place=str(folder),
                hint=f"Set {name} to a folder that is there.",
            ) from error
        if free < need:
            words = f"{units.format_bytes(free)} are free, and the build takes about {units.format_bytes(need)}"
            raise StorageError(
                f"Too little space for {what}: {words}",
                place=str(folder),
                hint=f"Set {name} to a folder with more space."
                if folder != out.parent
                else "Write the image to another folder.",
            )


def _temporary(program: images.Program, environment: Mapping[str, str]) -> tuple[Path, str]:
    """Return the folder for what a build keeps for a while, and the variable that says so, if one does."""
    names = ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR", "TMPDIR")[0 if program.kind == "apptainer" else 1 :]
    variable = next((name for name in names if environment.get(name)), "")
    return Path(environment.get(variable) or "/tmp"), variable


def _variable(program: images.Program) -> str:
    return "APPTAINER" if program.kind == "apptainer" else "SINGULARITY"


def _arguments(
    definition: images.Definition, given: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[dict[str, str], list[str], dict[str, str], list[str]]:
    """Return build arguments, binds, variables and notes: the user's, and those that only this machine knows."""
    if unknown := [name for name in given if name not in definition.used]:
        near = layers.nearest(unknown[0], sorted(definition.used))
        hint = f"Did you mean {near}?" if near else f"It has: {', '.join(sorted(definition.used)) or 'none'}."
        raise UsageError(f"The definition has no build argument {unknown[0]}", place=str(definition.path), hint=hint)
    arguments, binds, variables, notes = dict(given), [], {}, []
    if "PIP_INDEX" in definition.used:
        settings = pip_settings(environment)
        index, certificates = settings.get("index-url", ""), settings.get("cert", "")
        if "@" in urllib.parse.urlsplit(index).netloc:
            notes.append("pip's index has a password in its address, which an image would keep: it is not handed on")
        elif index and "PIP_INDEX" not in arguments:
            arguments["PIP_INDEX"] = index
        if certificates and Path(certificates).is_file():
            binds.append(f"{certificates}:{_BUNDLE}")
            variables["PIP_CERT"] = _BUNDLE
    if missing := sorted(definition.used - definition.defaults.keys() - arguments.keys()):
        raise UsageError(
            f"The build argument {missing[0]} has no value",
            place=str(definition.path),
            hint=f"Give it: --build-arg {missing[0]}=VALUE.",
        )
    return arguments, binds, variables, notes


def pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return pip's own settings on this machine by option (``index-url``, ``cert``); variables win over files."""
    try:
        answer = subprocesses.run([sys.executable, "-m", "pip", "config", "list"], environment, images.TIMEOUT)
    except subprocesses.CommandMissingError:
        return {}  # without pip there are no settings of it
    found: dict[str, tuple[int, str]] = {}
    for line in answer.out.splitlines() if answer.code == 0 else ():
        key, _, value = line.partition("=")
        section, _, option = key.rpartition(".")
        rank = {":env:": 2, "install": 1}.get(section, 0)
        if rank >= found.get(option, (0, ""))[0]:
            found[option] = (rank, value.strip().strip("'\""))
    return {option: value for option, (_, value) in found.items()}


def build(order: Order, environment: Mapping[str, str], sink: Callable[[bytes], None]) -> dict[str, object]:
    """Build the image and its record ``OUT.sif.json``; return the record. What fails leaves nothing behind.

    Parameters
    ----------
    sink
        Called with the program's words while it works.

    Raises
    ------
    ImageError
        If the build fails.
    StorageError
        If the disk or a quota is full, or the image cannot be put in place.
    """
    with _room(order, environment) as room, _beside(order.out) as folder:
        variables = {**environment, **order.variables, f"{_variable(order.program)}_TMPDIR": str(room)}
        return _build(order, folder / order.out.name, variables, sink)


@contextlib.contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """Give a folder of the user's alone beside an image to be: what is built there nobody can replace meanwhile.

    Raises
    ------
    StorageError
        If it cannot be made.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name[:200]}.", dir=out.parent))
    except OSError as error:
        raise StorageError(
            f"The image cannot be put in place: {error.strerror}",
            place=str(out.parent),
            hint="Check the folder's permissions and your quota.",
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _room(order: Order, environment: Mapping[str, str]) -> Iterator[Path]:
    """Give one build a temporary folder: an interrupted one leaves gigabytes, of users that only --fakeroot knows.

    Raises
    ------
    StorageError
        If it cannot be made.
    """
    place, _ = _temporary(order.program, environment)
    try:
        room = Path(tempfile.mkdtemp(prefix=build_failures.ROOM, dir=place))
    except OSError as error:
        raise StorageError(
            f"The build's temporary folder cannot be made: {error.strerror}",
            place=str(place),
            hint=f"Set {_variable(order.program)}_TMPDIR to a folder of yours.",
        ) from error
    try:
        yield room
    finally:
        shutil.rmtree(room, ignore_errors=True)
        if room.exists():
            words = ["unshare", "--user", "--map-root-user", "--map-auto", "rm", "-rf", "--", str(room)]
            with contextlib.suppress(
                subprocesses.CommandMissingError
            ):  # no unshare: the folder stays, for tmp's own cleaner
                subprocesses.run(words, environment, images.TIMEOUT)


def _build(order: Order, new: Path, variables: Mapping[str, str], sink: Callable[[bytes], None]) -> dict[str, object]:
    try:
        answer = subprocesses.stream(order.command(new), variables, DEADLINE, sink)
    except subprocesses.CommandMissingError as error:
        raise ImageError(
            f"The program for images cannot be started: {error}",
            place=order.program.path,
            hint="Try it yourself, or name another with --program.",
        ) from error
    if answer.code != 0:
        raise failure(answer, order)
    if not new.exists():
        words = f"{order.program} reported success and wrote no image"
        raise ImageError(
            words,
            place=str(order.definition.path),
            hint="Build it by hand, and look at its words.",
            quote=images.last_lines(answer.text),
        )
    facts = images.inspect(new, order.program, variables)
    record = _record(order, facts)
    return _put(order.out, new, record)


def failure(answer: subprocesses.Answer, order: Order) -> HpcmlError:
    """Return a failed build as an error in words."""
    return build_failures.explain(answer, order.program, order.definition.path, order.out, DEADLINE)


def digest(path: Path) -> str:
    """Return ``sha256:…`` of a file.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    with open(files.open_regular(path, ours=False, follow=True), "rb") as file:
        return _SHA + hashlib.file_digest(file, "sha256").hexdigest()


def _record(order: Order, facts: images.ImageFacts) -> dict[str, object]:
    text = order.definition.text
    values = {name: re.sub(r"//[^/@\s]+@", "//…@", value) for name, value in order.arguments.items()}  # no passwords
    return {
        "digest": "",
        "size": facts.size,
        "architecture": facts.architecture,
        "labels": facts.labels,
        "definition": {
            "name": order.definition.path.name,
            "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
        },
        "arguments": values,
        "program": str(order.program),
        "fakeroot": order.fakeroot,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hpcml": __version__,
    }


def _put(out: Path, new: Path, record: dict[str, object]) -> dict[str, object]:
    """Put image and record in place; the record never describes another image than the one beside it."""
    beside = out.with_name(f"{out.name}.json")
    words = new.with_name(f"{new.name}.json")
    try:
        record["digest"] = digest(new)
        files.write(words, json.dumps(record, indent=1) + "\n", 0o666)
        beside.unlink(missing_ok=True)
        new.chmod(new.stat().st_mode | 0o111)
        new.rename(out)
        words.rename(beside)
    except OSError as error:
        raise StorageError(
            f"The image cannot be put in place: {error.strerror}",
            place=str(out),
            hint="Check the folder's permissions and your quota.",
        ) from error
    return record


def parse_arguments(words: Sequence[str]) -> dict[str, str]:
    """Return the ``KEY=VALUE`` of ``--build-arg`` as a table; raise UsageError for a word of another form."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"\w+", name):
            raise UsageError(f"'{word}' is not KEY=VALUE", place="--build-arg", hint="Write --build-arg NAME=VALUE.")
        found[name] = value
    return found
