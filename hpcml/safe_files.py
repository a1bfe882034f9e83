"""Read files that somebody else could have written, and write files into whose way nobody can put a link.

A run's record, a setting or an image may lie where another account can write. So a file is opened without waiting
(a pipe) and, but for settings and images, without following a link; it must be a regular file of an owner who may
decide, and not larger than its kind ever is. What is wrong is an ``OSError`` that says so, like any other file's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

RECORD = 64 << 20  # bytes; a run's record, its events: some kilobytes, of very long runs some megabytes
SETTINGS = 1 << 20  # bytes of a file of settings or a template
_ALL_USERS = "4294967295"  # how many users a process outside a user namespace can tell from each other
_BLOCK = 65536  # bytes that are read at a time of a file whose size is not known
_LINKS = 40  # links on one path, as the kernel has it


class ForeignError(OSError):
    """A file is not one that may be used; ``why`` and ``strerror`` say why, ``hint`` what its owner can do."""

    def __init__(self, why: str, path: Path, hint: str = "") -> None:
        self.why, self.hint = why, hint
        super().__init__(errno.EPERM, why, str(path))


# -- whose it is -----------------------------------------------------------------------------------------------------


def account(uid: int) -> str:
    """Return the name of an account, or its number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def denied(path: Path) -> tuple[str, str]:
    """Return the file behind a path that this user has no permission for, with the owner, and the next step."""
    place = real = Path(os.path.realpath(path))
    while not os.access(place, os.F_OK) and place != place.parent:  # a folder on the way is closed
        place = place.parent
    owner = place.stat().st_uid
    what = f"{real} of {account(owner)}" if place == real else f"{real}: {place} belongs to {account(owner)}"
    own = f"Give yourself permission: chmod u+rx {shlex.quote(str(place))}."
    return what, own if owner == os.geteuid() else f"Ask {account(owner)} for permission to use it."


def group(gid: int) -> str:
    """Return the name of a group, or its number."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"gid {gid}"


def is_ours(status: os.stat_result) -> bool:
    """Whether a file belongs to this user or to root."""
    return status.st_uid in (os.geteuid(), 0)


def overflow_user() -> int:
    """Return the user (nobody) that represents all whom a user namespace or an id-mapped file system does not know."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534


def unknown_users() -> set[int]:
    """Return the user that represents all whom this process cannot tell apart, if it is in a user namespace."""
    try:
        if Path("/proc/self/uid_map").read_text().split()[2] == _ALL_USERS:
            return set()
    except (OSError, IndexError):
        return set()
    return {overflow_user()}


def folder_is_ours(status: os.stat_result) -> bool:
    """Whether a folder on the way to a file belongs to this user, to root, or to one who may be root for all it shows.

    In a user namespace the users of the host look like one user: only the modes can be judged there.
    """
    return is_ours(status) or status.st_uid in unknown_users()


def is_obeyed(status: os.stat_result) -> bool:
    """Whether settings of this owner are obeyed: the user's, root's, and those of the account that installed hpcml.

    Who owns the code that runs here as the user decides what the user does anyway.
    """
    return is_ours(status) or status.st_uid in {Path(__file__).stat().st_uid} - {overflow_user()}


def _group_is_ours(gid: int) -> bool:
    """Whether a group is this user alone: many systems give each user one of the same name, and a umask of 002."""
    import grp
    import pwd

    try:
        me, them = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return me.pw_gid == gid and them.gr_name == me.pw_name and set(them.gr_mem) <= {me.pw_name}


def _has_acl(place: Path | int) -> bool:
    """Whether a file or folder (no link) has a POSIX ACL: its group's bits are then the most that any entry gives."""
    if sys.platform != "linux":
        return False
    try:
        os.getxattr(place, "system.posix_acl_access")
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return False
        raise
    return True


def written_by_others(status: os.stat_result, path: Path, descriptor: int | None = None) -> str:
    """Return who else may write to a file or folder: everybody, a group, others by an ACL, or nobody (empty).

    ``descriptor`` is the open file that ``status`` is of, where it is open; the path may lead to another by now.
    """
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    if not status.st_mode & stat.S_IWGRP:
        return ""
    if _has_acl(path if descriptor is None else descriptor):
        return f"other users, through an ACL (see getfacl {shlex.quote(str(path))}),"
    return "" if _group_is_ours(status.st_gid) else f"group {group(status.st_gid)}"


def _closing(status: os.stat_result, path: Path) -> str:
    """Return the command that closes a file or folder of one's own to others; it ends what an ACL gives, too."""
    return f"chmod go-w {shlex.quote(str(path))}" if status.st_uid == os.geteuid() else ""


def is_own_folder(path: str | Path) -> bool:
    """Whether this is a folder of this user's (no link to one)."""
    return own_folder(path) is not None


def own_folder(path: str | Path) -> os.stat_result | None:
    """Return the status of a folder of this user's (no link to one), None if it is not one."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() else None


# -- reading ---------------------------------------------------------------------------------------------------------


def is_file(path: Path) -> bool:
    """Return True for a path to a file, False for a word that is longer than a path may be."""
    with contextlib.suppress(OSError):
        return path.is_file()
    return False


def open_regular(path: Path, *, ours: bool = True, follow: bool = False, obeyed: bool = False) -> int:
    """Open a regular file for reading, without waiting for anybody, and return its descriptor.

    Parameters
    ----------
    ours
        Whether it must belong to this user or to root.
    follow
        Whether the path may be a link.
    obeyed
        Whether it must instead be of an owner who is obeyed (:func:`is_obeyed`), and nobody else may write to it.

    Raises
    ------
    ForeignError
        If it is not such a file; OSError if it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise ForeignError("the path is a link", path) from error
        if error.errno == errno.ENXIO:  # a socket, or a pipe's like
            raise ForeignError("the path is not a regular file", path) from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ForeignError(f"the path is {what}", path)
        if ours and not (is_obeyed(status) if obeyed else is_ours(status)):
            raise ForeignError(f"the file belongs to {account(status.st_uid)}", path)
        if obeyed and (who := written_by_others(status, path, descriptor)):
            raise ForeignError(f"{who} can write to the file", path, _closing(status, path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read(path: Path, limit: int = RECORD, *, ours: bool = True, follow: bool = False, obeyed: bool = False) -> bytes:
    """Return the content of a file; see :func:`open_regular`.

    Raises
    ------
    ForeignError
        If it is not such a file, or larger than ``limit`` bytes; OSError if it cannot be read.
    """
    descriptor = open_regular(path, ours=ours, follow=follow, obeyed=obeyed)
    try:
        size, parts, length = os.fstat(descriptor).st_size, list[bytes](), 0
        if size <= limit:  # else it may be a hole of terabytes
            # Until the end: it may grow, and some systems do not tell the size.
            while length <= limit and (part := os.read(descriptor, min(size or _BLOCK, limit) + 1)):
                parts.append(part)
                length += len(part)
    finally:
        os.close(descriptor)
    if max(size, length) > limit:
        raise ForeignError(f"the file is larger than {limit} bytes", path)
    return b"".join(parts)


def parsed(parse: Callable[[str], T], text: str) -> T:
    """Return the result of a parser for a text; one that is nested without end is a ValueError like other nonsense."""
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("the content is nested too deeply") from None
    except MemoryError:
        raise ValueError("reading the content needs more memory than is available") from None


def read_json(path: Path, limit: int = RECORD, *, ours: bool = True, follow: bool = False) -> Any:
    """Return the content of a JSON file; a ValueError if it is no JSON, an OSError as :func:`read`."""
    return parsed(json.loads, read(path, limit, ours=ours, follow=follow).decode())


def read_setting(path: Path) -> str:
    """Return a file that is obeyed: settings, a profile, a template.

    It, and where it is a link that link, must be of an owner who is obeyed (:func:`is_obeyed`), and nobody else may
    write to it. The same holds for the folder in which it lies, unless only owners may replace what is in it
    (``/tmp``). Folders above need not be looked at: who can replace one of them cannot put a file of this user's there.

    Raises
    ------
    ForeignError
        If it is not such a file; OSError if it cannot be read; UnicodeDecodeError if it is no text.
    """
    real = Path(os.path.realpath(path))
    for place in {path, real}:
        link = os.lstat(place)
        if stat.S_ISLNK(link.st_mode) and not is_obeyed(link):
            raise ForeignError(f"the path is a link that belongs to {account(link.st_uid)}", path)
        above = place.parent.stat()
        if not (is_obeyed(above) or folder_is_ours(above)):
            raise ForeignError(f"the file's folder belongs to {account(above.st_uid)}", path)
        if not above.st_mode & stat.S_ISVTX and (who := written_by_others(above, place.parent)):
            raise ForeignError(f"{who} can write to the file's folder", path, _closing(above, place.parent))
    try:
        return read(real, SETTINGS, obeyed=True).decode()
    except ForeignError as error:
        raise ForeignError(error.why, path, error.hint) from error


def text(path: Path, limit: int = SETTINGS) -> str:
    """Return a text that decides nothing by itself, as of an environment's settings; empty if it cannot be read."""
    try:
        return read(path, limit, ours=False, follow=True).decode(errors="replace")
    except OSError:
        return ""


def tail(path: Path, lines: int = 12, width: int | None = None, begin: int = 0) -> tuple[str, ...]:
    """Return the last lines of a log (of its last 16 KiB, and those after its first bytes up to ``begin``).

    Empty lines are left out. Nothing is returned if the log cannot be read.
    """
    try:
        with open(open_regular(path), "rb") as file:
            file.seek(max(begin, os.fstat(file.fileno()).st_size - 16384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple([line.rstrip()[:width] for line in text.splitlines() if line.strip()][-lines:])


def state_and_start(pid: int) -> tuple[str, str]:
    """Return the state of a process and when it began (proc(5), stat), both empty if the system does not tell."""
    try:
        fields = stat_fields(Path(f"/proc/{pid}"))
    except OSError:
        return "", ""
    return fields[0], fields[19]


def stat_fields(process: Path) -> list[str]:
    """Return the fields of stat after a process's name (proc(5)), which may hold blanks and brackets; or OSError."""
    return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()


def size_of(path: Path) -> int:
    """Return the size of a file now, 0 if it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


# -- writing ---------------------------------------------------------------------------------------------------------


def create(path: Path, mode: int = 0o600) -> int:
    """Make a new file and return its descriptor; what is there already, a link included, is an error."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def beside(path: Path) -> Path:
    """Return a hidden name beside a file that nobody can foresee, for what is to take its place."""
    name = os.fsencode(path.name)[:200].decode(errors="ignore")  # file systems count bytes
    return path.parent / f".{name}.{os.urandom(8).hex()}.new"


def write(path: Path, data: str | bytes, mode: int = 0o600) -> None:
    """Put a file in place by writing another and renaming it: whole or not at all, and through no link."""
    new = beside(path)
    descriptor = create(new, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        new.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            new.unlink()
        raise


# -- the folders above -----------------------------------------------------------------------------------------------


def leading_to(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every folder and link that a path leads through, from the root on; an OSError if they are a ring."""
    waiting, here, links = list(reversed(path.parts[1:])), Path("/"), 0
    yield here, os.lstat(here)
    while waiting:
        part = waiting.pop()
        if part == "..":
            here = here.parent
            continue
        step = here / part
        try:
            status = os.lstat(step)
        except FileNotFoundError:
            return
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            here = step
            continue
        links += 1
        if links > _LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = step.readlink()
        if target.is_absolute():
            here = Path("/")
        waiting += reversed([word for word in target.parts if word != "/"])


class Replaceable(NamedTuple):
    """A folder on a path whose entries others may replace."""

    path: Path
    who: str  # may do so
    meant: bool  # the site may have meant it so
    unknown: bool = False  # its owner is one whom this machine cannot tell from others


def replaceable(path: Path, trusted: Collection[str] = ()) -> list[Replaceable]:
    """Return the places where others could replace a path by something else, the worst first.

    Who owns a folder may replace what is in it, and so may who may write to it, unless it is sticky: then only who owns
    what is replaced. A folder that a group may write to is how projects share their space, and may be meant; one of
    another account, or that everybody may write to, is not.

    ``trusted`` are accounts, and groups as ``@NAME``, that may.
    """
    places = []
    for place, status in leading_to(path):
        if not folder_is_ours(status) and (who := account(status.st_uid)) not in trusted:
            places.append(Replaceable(place, who, meant=False, unknown=status.st_uid == overflow_user()))
        elif not stat.S_ISDIR(status.st_mode) or status.st_mode & stat.S_ISVTX:
            continue
        elif (who := written_by_others(status, place)) and f"@{who.removeprefix('group ')}" not in trusted:
            places.append(Replaceable(place, who, meant=who != "everybody"))
    return sorted(dict.fromkeys(places), key=lambda one: one.meant)


_MACHINES = {3: "i386", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}  # of ELF


def architecture_of(program: Path) -> str:
    """Return the processor that a program is for, by the kernel's name (``x86_64``); empty if it is not ELF."""
    try:
        with open(open_regular(program, ours=False, follow=True), "rb") as file:
            head = file.read(20)
    except OSError:
        return ""
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return ""
    little = head[5] == 1
    name = _MACHINES.get(int.from_bytes(head[18:20], "little" if little else "big"), "")
    return f"{name}le" if name == "ppc64" and little else name
