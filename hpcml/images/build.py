"""Build an image: checks that need no build come first, and an image is put in place only when it is whole."""

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
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import __version__, assets, safe_files, subprocesses, units
from hpcml.config_trust import HPCML, TYPED, Named
from hpcml.errors import HpcmlError, ImageError, NotFoundError, StorageError, UsageError, did_you_mean, nearest
from hpcml.failures.rule import Where
from hpcml.failures.rules import meaning
from hpcml.images.definitions import Definition
from hpcml.images.sif import Image, inspect
from hpcml.sites import settings_layers

# -- the program that builds and runs images: Apptainer, SingularityCE or Singularity ---------------------------------


TIMEOUT = 60.0  # seconds for one question to the program; its start from a shared file system may take some
_PROGRAMS = ("apptainer", "singularity")
_VERSION = re.compile(r"(?:(apptainer|singularity-ce|singularity) version )?v?(\d+)\.(\d+)(?:\.(\d+))?")
_NAMES = {"apptainer": "Apptainer", "singularity-ce": "SingularityCE", "singularity": "Singularity"}
# The first version of each that knows the section %arguments and the option --build-arg.
_ARGUMENTS_SINCE = {"apptainer": (1, 2), "singularity-ce": (4, 0)}


class Program(NamedTuple):
    """The program that builds and runs images; ``kind`` is apptainer, singularity-ce or singularity."""

    path: str
    kind: str
    version: tuple[int, ...]
    named: Named

    def __str__(self) -> str:
        return f"{_NAMES[self.kind]} {'.'.join(map(str, self.version))}"

    @property
    def takes_arguments(self) -> bool:
        """Whether it knows ``%arguments`` and ``--build-arg``."""
        return self.kind in _ARGUMENTS_SINCE and self.version >= _ARGUMENTS_SINCE[self.kind]

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the names of its variables begin with, its own first: Apptainer knows Singularity's too."""
        return ("APPTAINER", "SINGULARITY") if self.kind == "apptainer" else ("SINGULARITY",)


def identify(path: str, answer: str, named: Named) -> Program:
    """Return the program with this answer to ``--version``; raise ImageError if it is none that knows SIF images."""
    hint = "Install Apptainer 1.2 or newer, load the site's module, or name another program with --program."
    match = next((match for line in answer.splitlines() if (match := _VERSION.match(line.strip()))), None)
    if match is None:
        quote = last_lines(answer, 3)
        raise ImageError(
            "The container program is neither Apptainer nor Singularity", place=path, hint=hint, quote=quote
        )
    version = tuple(int(number) for number in match.groups()[1:] if number)
    program = Program(path, match[1] or "singularity", version, named)
    if program.kind != "apptainer" and program.version < (3,):
        raise ImageError(f"{program} is too old: it does not support SIF images", place=path, hint=hint)
    return program


def find_program(wanted: str, first: str, named: Named) -> Program:
    """Return the program for images; raise ImageError if there is none, or it cannot be started.

    ``wanted`` is its name or path if the user gave one, and no other is taken then; ``first`` is looked for before
    ``apptainer`` and ``singularity``: the profile's ``runtime.container``, with who set it.
    """
    names = {wanted: TYPED} if wanted else dict.fromkeys((first, *_PROGRAMS), HPCML) | {first: named}
    names.pop("", None)
    path, by = next(((path, by) for name, by in names.items() if (path := shutil.which(name))), ("", HPCML))
    if not path:
        hint = "Load the site's module or install Apptainer 1.2 or newer. You can also build images on another machine."
        raise ImageError(f"There is no {' and no '.join(names)} on this machine", place="PATH", hint=hint)
    answer = ask([path, "--version"], TIMEOUT, by)
    if answer.code != 0:
        what = "did not respond" if answer.code is None else "failed"
        message = f"The container program {what} when hpcml called it with --version"
        hint = "Run the program yourself. Check that its module is loaded and its file system is mounted."
        raise ImageError(message, place=path, hint=hint, quote=last_lines(answer.text))
    return identify(path, answer.text, by)


def ask(command: Sequence[str], timeout: float, named: Named) -> subprocesses.Answer:
    """Run the program; raise ImageError if it cannot be started."""
    try:
        return subprocesses.run(command, timeout, program=named)
    except subprocesses.CommandMissingError as error:
        raise not_started(command[0], error) from error


def not_started(path: str, error: Exception) -> ImageError:
    """Return the error that the program cannot be started."""
    hint = f"Run {path} --version yourself to see the error, or choose another program with --program."
    return ImageError(f"The container program could not be started: {error}", place=path, hint=hint)


def last_lines(text: str, count: int = 8) -> tuple[str, ...]:
    """Return the last lines of a program's output, without empty ones and colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "\n")
    return tuple(line.rstrip()[:300] for line in plain.splitlines() if line.strip())[-count:]


# -- the build --------------------------------------------------------------------------------------------------------


DEADLINE = 6 * 3600.0  # seconds for a whole build: RAPIDS is downloaded and unpacked
SPACE = "2G"  # what a build takes, where the definition's label org.hpcml.space does not say
_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"  # in all images that hpcml's definitions start from
_ROOM = "hpcml-build-"  # how a build's temporary folder begins
_LOCKS = frozenset(("LOCK", "UCX_LOCK"))  # build arguments: files with the hashes of what pip installs
_NO_VERSIONS = _LOCKS | {"MIRROR", "PIP_INDEX", "UCX_SOURCE"}  # build arguments that choose no version
_NOT_IN_PLACE = ("The image could not be moved to its final path", "Check the folder's permissions and your quota.")


class Order(NamedTuple):
    """A build that may be tried: what, to where, by which program, and with which build arguments.

    ``certificates`` is the file with which pip trusts its index on this machine, if that is not the usual one.
    """

    definition: Definition
    out: Path
    program: Program
    fakeroot: bool
    arguments: dict[str, str]
    certificates: str = ""
    notes: tuple[str, ...] = ()

    def command(self, target: Path) -> list[str]:
        """Return the words of the command that builds into ``target``."""
        argv = [self.program.path, "build", *(["--fakeroot"] if self.fakeroot else [])]
        argv += ["--bind", f"{self.certificates}:{_BUNDLE}"] if self.certificates else []
        argv += [word for item in sorted(self.arguments.items()) for word in ("--build-arg", "=".join(item))]
        return [*argv, str(target), str(self.definition.path)]


def prepare(
    definition: Definition,
    out: Path,
    program: Program,
    *,
    fakeroot: bool | None,
    given: Mapping[str, str],
    force: bool,
) -> Order:
    """Return the order for a build; UsageError, NotFoundError or ImageError if it would fail.

    ``fakeroot`` is whether to be root of a user namespace; None means: unless this user is root. ``given`` are the
    user's own build arguments. With ``force`` an existing image is replaced.
    """
    if out.exists() and not force:
        hint = "Add --force to replace the file, or choose another name for the image."
        raise UsageError("A file with this name already exists", place=str(out), hint=hint)
    if not out.parent.is_dir():
        raise NotFoundError(
            "The folder for the image does not exist", place=str(out.parent), hint="Create the folder with mkdir -p."
        )
    if definition.used and not program.takes_arguments:
        hint = "Build with Apptainer 1.2 or SingularityCE 4.0 or newer. Older versions can only run images."
        raise ImageError(
            f"{program} does not support the build arguments of the definition", place=program.path, hint=hint
        )
    rootless = os.getuid() != 0 if fakeroot is None else fakeroot
    if rootless and os.getuid() != 0:
        check_subordinate(Path("/etc/subuid"))
    path = f"{settings_layers.process_environment().get('PATH', '')}:/usr/sbin:/sbin"
    if definition.header("Bootstrap").lower() == "debootstrap" and shutil.which("debootstrap", path=path) is None:
        hint = "Install debootstrap (apt-get install debootstrap), or build another definition."
        message = "This definition needs debootstrap, which is not installed"
        raise ImageError(message, place=str(definition.path), hint=hint)
    arguments, certificates, notes = _arguments(definition, given)
    check_space(definition, out, program)
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        notes.append("/dev/fuse cannot be used on this machine: only a setuid container program can run images")
    return Order(definition, out, program, rootless, arguments, certificates, tuple(notes))


def check_subordinate(table: Path) -> None:
    """Raise ImageError unless this user has ids to be root with, one line of ``/etc/subuid``."""
    uid = os.getuid()
    names = {str(uid)}
    with contextlib.suppress(KeyError):  # a user without a name has only the number
        names.add(pwd.getpwuid(uid).pw_name)
    try:
        owners = {line.partition(":")[0] for line in table.read_text().splitlines()}
    except OSError:
        owners = set()  # no table is the same as no line in it
    if not names & owners:
        hint = (
            "Ask the site's support to add you to /etc/subuid and /etc/subgid. "
            "You can also build on another machine, or try --no-fakeroot."
        )
        message = "You have no subordinate user ids for a build as root (--fakeroot)"
        raise ImageError(message, place=str(table), hint=hint)


def check_space(definition: Definition, out: Path, program: Program) -> None:
    """Raise StorageError if the build's temporary folder or the image's folder has too little free space.

    Quotas cannot be seen so; when one is hit, the program's own messages say it.
    """
    need = units.parse_memory(definition.label("space") or SPACE)
    setting, (temporary, variable) = f"{program.prefixes[0]}_TMPDIR", _temporary(program)
    for folder, purpose in ((temporary, f"temporary files ({variable or '/tmp'})"), (out.parent, "the image")):
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            message, hint = f"The folder for {purpose} cannot be used", f"Set {setting} to a folder that exists."
            raise StorageError(f"{message}: {error.strerror}", place=str(folder), hint=hint) from error
        if free < need:
            message = (
                f"The folder for {purpose} has {units.format_bytes(free)} of free space, but the build needs about"
            )
            hint = f"Set {setting} to a folder with more space."
            hint = "Write the image to another folder." if folder == out.parent else hint
            raise StorageError(f"{message} {units.format_bytes(need)}", place=str(folder), hint=hint)


def _temporary(program: Program) -> tuple[Path, str]:
    """Return the folder for what a build keeps for a while, and the variable that says so, if one does."""
    names = (*(f"{prefix}_TMPDIR" for prefix in program.prefixes), "TMPDIR")
    environment = settings_layers.process_environment()
    variable = next((name for name in names if environment.get(name)), "")
    return Path(environment.get(variable) or "/tmp"), variable


def _arguments(definition: Definition, given: Mapping[str, str]) -> tuple[dict[str, str], str, list[str]]:
    """Return build arguments, pip's file of certificates and notes: the user's, and what only this machine knows."""
    if unknown := [name for name in given if name not in definition.used]:
        names = sorted(definition.used)
        listed = f"The definition's build arguments: {', '.join(names) or 'none'}."
        hint = did_you_mean(nearest(unknown[0], names), listed)
        raise UsageError(f"The definition has no build argument {unknown[0]}", place=str(definition.path), hint=hint)
    arguments, certificates, notes = dict(given), "", []
    if "PIP_INDEX" in definition.used:
        settings = pip_settings()
        index, certificates = settings.get("index-url", ""), settings.get("cert", "")
        if "@" in urllib.parse.urlsplit(index).netloc:
            notes.append("pip's index has a password in its address: hpcml does not write this address into the image")
        elif index:
            arguments.setdefault("PIP_INDEX", index)
    if "MIRROR" in definition.used and not arguments.setdefault("MIRROR", apt_mirror()):
        hint = "Add the address of a Debian 12 mirror: --build-arg MIRROR=URL."
        raise UsageError(
            "hpcml found no Debian mirror in this machine's apt settings", place=str(definition.path), hint=hint
        )
    for name in sorted(_LOCKS & definition.used):
        arguments[name] = str(_lock(name, definition, given))
    if "UCX_SOURCE" in definition.used:
        if source := arguments.get("UCX_SOURCE"):
            arguments["UCX_SOURCE"] = str(_ucx_source(source))
        else:
            notes.append("without --build-arg UCX_SOURCE=ucx-RELEASE.tar.gz, the image will not support InfiniBand")
    if missing := sorted(definition.used - definition.defaults.keys() - arguments.keys()):
        hint = f"Add --build-arg {missing[0]}=VALUE."
        raise UsageError(f"The build argument {missing[0]} has no value", place=str(definition.path), hint=hint)
    return arguments, certificates if Path(certificates).is_file() else "", notes


def _lock(name: str, definition: Definition, given: Mapping[str, str]) -> Path:
    """Return the path of a list of wheels with their hashes; raise UsageError if it has other versions than asked for.

    A path that the user gives is relative to the working folder, the definition's own to the definition's folder.
    """
    versions = [
        other for other in given if other not in _NO_VERSIONS and given[other] != definition.defaults.get(other, "")
    ]
    if name not in given and versions:
        hint = f"Add --build-arg {name}=FILE with a file of hashes for these versions (hpcml help images)."
        message = f"The definition's list of wheels has another version than {versions[0]}={given[versions[0]]}"
        raise UsageError(message, place=str(definition.path), hint=hint)
    hint = f"Copy the folder {assets.folder('containers') / 'locks'} to this place, or add --build-arg {name}=FILE."
    own = definition.path.parent / definition.defaults.get(name, "")
    return _file(
        settings_layers.user_path(given[name]) if name in given else own, "The list of wheels is not a file", hint
    )


def _ucx_source(name: str) -> Path:
    """Return the path of an OpenUCX release; raise NotFoundError before hours of building if it is not there."""
    hint = "Use the .tar.gz of an OpenUCX release (github.com/openucx/ucx/releases)."
    return _file(settings_layers.user_path(name), "The source of UCX is not a file", hint)


def _file(path: Path, message: str, hint: str) -> Path:
    """Return the absolute path of a file that the definition's shell copies; raise NotFoundError if it cannot."""
    path = path.absolute()
    if not path.is_file() or "'" in str(path):
        raise NotFoundError(message, place=str(path), hint=f"{hint} Its path must not contain a single quote.")
    return path


def pip_settings() -> dict[str, str]:
    """Return pip's own settings on this machine by option (``index-url``, ``cert``); variables win over files."""
    try:
        answer = subprocesses.run([sys.executable, "-P", "-m", "pip", "config", "list"], TIMEOUT, program=HPCML)
    except subprocesses.CommandMissingError:
        return {}  # without pip there are no settings of it
    rows = [line.partition("=") for line in answer.out.splitlines()] if answer.code == 0 else []
    ranks = {":env:": 2, "install": 1}  # by section; of equal ones the last
    rows.sort(key=lambda row: ranks.get(row[0].rpartition(".")[0], 0))
    return {key.rpartition(".")[2]: value.strip().strip("'\"") for key, _, value in rows}


def apt_mirror() -> str:
    """Return the Debian mirror that this machine's apt uses, empty if there is none."""
    argv = ["apt-get", "indextargets", "--format", "$(CREATED_BY)|$(LABEL)|$(REPO_URI)"]
    try:
        answer = subprocesses.run(argv, TIMEOUT, program=HPCML)
    except subprocesses.CommandMissingError:
        return ""  # no Debian
    mirrors = [line.removeprefix("Packages|Debian|") for line in answer.out.splitlines()]
    return next((mirror.rstrip("/") for mirror in mirrors if re.match(r"https?://[^@/]+/", mirror)), "")


def build(order: Order, sink: Callable[[bytes], None]) -> dict[str, object]:
    """Build the image and its record ``OUT.sif.json``; return the record. What fails leaves nothing behind.

    ``sink`` is called with the program's output while it works. It raises ImageError if the build fails, StorageError
    if the disk or a quota is full.
    """
    place, _ = _temporary(order.program)
    setting = f"{order.program.prefixes[0]}_TMPDIR"
    no_room = ("The build's temporary folder cannot be created", f"Set {setting} to a folder that you own.")
    # An interrupted build leaves gigabytes in its temporary folder, and what is built beside the image nobody can
    # replace meanwhile: both are folders of the user's alone.
    with (
        _folder(place, _ROOM, *no_room) as room,
        _folder(order.out.parent, f".{order.out.name[:200]}.", *_NOT_IN_PLACE) as beside,
    ):
        trust = {"PIP_CERT": _BUNDLE} if order.certificates else {}
        begin = time.monotonic()
        variables, new = {**settings_layers.process_environment(), **trust, setting: str(room)}, beside / order.out.name
        try:
            command, named = order.command(new), order.program.named
            answer = subprocesses.stream(command, DEADLINE, sink, program=named, environment=variables)
        except subprocesses.CommandMissingError as error:
            raise not_started(order.program.path, error) from error
        if answer.code != 0:
            raise failure(answer, order)
        if not new.exists():
            hint = f"Build the image yourself with {order.program.path} build, and read the output."
            quote = last_lines(answer.text)
            message = f"{order.program} reported success but wrote no image"
            raise ImageError(message, place=str(order.definition.path), hint=hint, quote=quote)
        return _put(order.out, new, _record(order, inspect(new), time.monotonic() - begin))


@contextlib.contextmanager
def _folder(parent: Path, prefix: str, message: str, hint: str) -> Iterator[Path]:
    """Make a folder and remove it in the end, with the files in it of users that only --fakeroot knows."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        raise StorageError(f"{message}: {error.strerror}", place=str(parent), hint=hint) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            argv = ["unshare", "--user", "--map-root-user", "--map-auto", "rm", "-rf", "--", str(folder)]
            with contextlib.suppress(subprocesses.CommandMissingError):  # the folder stays, for tmp's own cleaner
                subprocesses.run(argv, TIMEOUT, program=HPCML)


def digest(path: Path) -> str:
    """Return ``sha256:…`` of a file; raise OSError if it cannot be read."""
    with open(safe_files.open_regular(path, ours=False, follow=True), "rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _record(order: Order, image: Image, seconds: float) -> dict[str, object]:
    text = hashlib.sha256(order.definition.text.encode()).hexdigest()
    return {
        "digest": "",
        "size": image.size,
        "architecture": image.architecture,
        "labels": image.labels,
        "definition": {"name": order.definition.path.name, "digest": f"sha256:{text}"},
        # without passwords
        "arguments": {name: re.sub(r"//[^/@\s]+@", "//…@", value) for name, value in order.arguments.items()},
        "program": str(order.program),
        "fakeroot": order.fakeroot,
        "seconds": round(seconds, 1),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hpcml": __version__,
    }


def _put(out: Path, new: Path, record: dict[str, object]) -> dict[str, object]:
    """Put image and record in place; the record never describes another image than the one beside it."""
    beside = out.with_name(f"{out.name}.json")
    new_record = new.with_name(f"{new.name}.json")
    try:
        record["digest"] = digest(new)
        safe_files.write(new_record, json.dumps(record, indent=1) + "\n", 0o666)
        beside.unlink(missing_ok=True)
        new.chmod(new.stat().st_mode | 0o111)
        new.rename(out)
        new_record.rename(beside)
    except OSError as error:
        message, hint = _NOT_IN_PLACE
        raise StorageError(f"{message}: {error.strerror}", place=str(out), hint=hint) from error
    return record


def parse_arguments(pairs: Sequence[str]) -> dict[str, str]:
    """Return the ``KEY=VALUE`` of ``--build-arg`` as a table; raise UsageError for a word of another form."""
    arguments = {}
    for word in pairs:
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"\w+", name):
            raise UsageError(f"'{word}' is not KEY=VALUE", place="--build-arg", hint="Use --build-arg NAME=VALUE.")
        arguments[name] = value
    return arguments


# -- why a build failed ----------------------------------------------------------------------------------------------

_FULL = r"(?i)(?:(/[^:\n]*): )?(no space left on device|disk quota exceeded)"


def failure(answer: subprocesses.Answer, order: Order) -> HpcmlError:
    """Return a failed build as an error: the program's last lines as a sentence with a remedy."""
    quote, place = last_lines(answer.text), str(order.definition.path)
    text = "\n".join(line for line in answer.text.splitlines() if not line.startswith("INFO"))
    if answer.code is None:
        message = f"The build did not end within {units.format_seconds(DEADLINE)}"
        hint = "The network or the disk may be slow. See the last lines of the build's output above."
    elif full := re.search(_FULL, text):
        why = "your quota is used up" if "quota" in full[2].lower() else "the disk is full"
        where, place, hint = _full(full[1] or "", order)
        return StorageError(f"The build ran out of space{where}: {why}", place=place, hint=hint, quote=quote)
    elif rule := meaning(text, Where.BUILD):
        message, hint = rule.sentence, rule.remedy
    else:
        message, hint = (
            f"{order.program} did not build the image (its exit status was {answer.code})",
            "See the build's output above.",
        )
    return ImageError(message, place=place, hint=hint, quote=quote)


def _full(path: str, order: Order) -> tuple[str, str, str]:
    """Return the full one of a build's places (temporary folder, image, cache of layers), and a remedy."""
    program, name = order.program, order.program.prefixes[0]
    if path.startswith(f"{order.out.parent}/.{order.out.name}."):
        return " for the image", str(order.out.parent), "Write the image to a folder with more space."
    if f"/{_ROOM}" in path:
        hint = f"Set {name}_TMPDIR to a folder with more space."
        return " in its temporary folder", path.partition(f"/{_ROOM}")[0], hint
    if "/cache/" in path:
        hint = f"Set {name}_CACHEDIR to a folder with more space, or empty it ({program.path} cache clean)."
        return " in the cache", path.partition("/cache/")[0] + "/cache", hint
    hint = f"Set {name}_TMPDIR and {name}_CACHEDIR to folders with more space, and write the image to another folder."
    return "", str(order.definition.path), hint
