"""Bring the files that a script wrote into the run's copy of its code to where plain Python would have written them.

At the submission the copy's files are recorded with their digests. At the end of the run, what is new or has another
digest is put into the original folder: no link is followed, no file of somebody else is touched, and a name that holds
anything but what the copy began with stays as it is. What could not be brought stays in the copy, and is recorded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hpcml import safe_files
from hpcml.paths import RunPaths
from hpcml.units import counted, first_of_many

_MOST = 100_000  # entries of the copy that are looked at
_RIVALS = 100  # newest other runs that are asked for the same names
_NAMED = 3  # files in a sentence
_SKIPPED = "__pycache__"
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)
FROM_LAPTOP = "hpcml fetch copies it"
_OTHER = "the original folder has another file of this name"
_STRANGE = "the run's record was not made here"
_RIVAL = "another run wrote a file of this name"


class Left(NamedTuple):
    """A file that stays in the run's copy of the code, why, and the other run that wrote the same name, if one did."""

    name: str
    why: str
    run: str = ""


class Written(NamedTuple):
    """What became of the files that a script wrote into the copy."""

    home: str = ""  # the folder whose copy it is
    attempt: int = 0  # the last one that was looked at
    brought: Mapping[str, str] = {}  # names with digests; without a digest where the file is a hard link
    left: tuple[Left, ...] = ()
    fetched: Mapping[str, str] = {}  # those of the left that were sent to a laptop, with their stamps then

    @property
    def unsaved(self) -> tuple[Left, ...]:
        """Those of the left that are nowhere else."""
        return tuple(file for file in self.left if file.name not in self.fetched)

    def sentence(self) -> str:
        """Return the files that only the copy has and why, in a sentence; empty if there is nothing."""
        left = self.unsaved
        named = [f"{_shown(file.name)} ({file.why}{f': {file.run}' if file.run else ''})" for file in left]
        files_of_script = f"{counted(len(left), 'file')} of the script: {first_of_many(named, _NAMED)}"
        return f"Only the run's folder code/ has {files_of_script}." if left else ""


class _TooManyError(Exception):
    """The copy has more files and folders than are looked at."""


class _StaysError(Exception):
    """A file cannot be brought; the text is a clause that says why."""


class _Copy(NamedTuple):
    """What the copy of the code was at the submission."""

    home: str  # the folder that it is a copy of
    why: str  # nothing can be brought there, in a clause; empty: it can
    files: Mapping[str, str]  # digests
    others: frozenset[str]  # links and folders
    proof: str


def begin(run: RunPaths, home: Path, why: str = "", proof: str = "") -> None:
    """Record the copy of a folder before the script runs.

    Parameters
    ----------
    why
        Why nothing can be brought there, in a clause; empty: it can.
    proof
        By which the login node knows its own record again (:mod:`hpcml.runs.files_of_killed_runs`).
    """
    digests, others = {}, []
    with contextlib.suppress(_TooManyError):  # the others count as written, and have the same digests there
        for name, entry in _entries(run.code):
            if entry.is_file(follow_symlinks=False):
                digests[name] = _digest_of(Path(entry.path))
            else:
                others.append(name)
    record = {"home": str(home), "why": why, "proof": proof, "files": digests, "others": others}
    safe_files.write(run.copied, json.dumps(record) + "\n")


def claimed(run: RunPaths) -> tuple[str, str]:
    """Return the original folder that a run's record names, and the record's proof; both empty without a record."""
    copy = _copy(run)
    return (copy.home, copy.proof) if copy else ("", "")


def earlier(run: RunPaths, script: Path) -> Path | None:
    """Return a run's copy of a script, if the script is certainly another one now."""
    copy = _copy(run)
    name = os.path.relpath(f"{os.path.realpath(script.parent)}/{script.name}", copy.home) if copy else ""
    known = copy.files.get(name, "") if copy else ""
    return run.code / name if known and _digest_of(script) not in ("", known) else None


def of(run: RunPaths) -> Written | None:
    """Return the record of the files that a run's script wrote; None if there is none, or it is damaged."""
    try:
        table = safe_files.read_json(run.written)
        left = tuple(Left(*(str(text) for text in row)) for row in table["left"])
        brought = {str(name): str(digest) for name, digest in table["brought"].items()}
        fetched = {str(name): str(stamp) for name, stamp in table["fetched"].items()}
        return Written(str(table["home"]), int(table["attempt"]), brought, left, fetched)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def stamp(size: int, changed: int) -> str:
    """Return the mark of a file's content: its size, and when it changed (nanoseconds)."""
    return f"{size} {changed}"


def note_fetched(run: RunPaths, sent: Mapping[str, str]) -> None:
    """Record that a laptop has these files of the copy, by their names with their stamps."""
    if result := of(run):
        fetched = {**result.fetched, **sent}
        safe_files.write(run.written, json.dumps(result._replace(fetched=fetched)._asdict()) + "\n")


def to_fetch(run: RunPaths) -> list[str]:
    """Return the files of the copy that a laptop can have: those that stay, and before the end those that will."""
    if result := of(run):
        return [file.name for file in result.left]
    if (copy := _copy(run)) is None or not copy.why:
        return []
    return [name for name, entry in _changed(run, copy)[0] if entry.is_file(follow_symlinks=False)]


def bring(run: RunPaths, attempt: int, *, everywhere: bool = True, trusted: bool = True) -> Written | None:
    """Bring what the script wrote to the original folder, and record what was brought and what stays.

    Returns None, with nothing done, if the run has no record of its copy, or the original folder is not on this machine
    and may be on another one (not ``everywhere``). It may be called again, and by two processes at once. Nothing is
    brought if the run's record is not ``trusted``.
    """
    if (copy := _copy(run)) is None:
        return None
    with _alone(run) as alone:
        if alone is None:
            return None
        changed, unread = _changed(run, copy)
        before = of(run) or Written()
        brought, left, why = dict(before.brought), list[Left](), copy.why if trusted else _STRANGE
        try:
            if changed and not why:
                with _opened(Path(copy.home)) as home:
                    brought, left = _Bringing(run, copy, home, brought, alone=alone).all(changed)
        except OSError as error:
            if not everywhere:
                return None
            why = f"{copy.home}: {error.strerror}"
        if why:
            left = [Left(name, why) for name, entry in changed if entry.is_file(follow_symlinks=False)]
        fetched = {name: known for name, known in before.fetched.items() if _stamp_of(run.code / name) == known}
        written = Written(copy.home, attempt, brought, (*left, *unread), fetched)  # unread: folders, never fetched
        safe_files.write(run.written, json.dumps(written._asdict()) + "\n")
    return written


@contextlib.contextmanager
def _alone(run: RunPaths) -> Iterator[bool | None]:
    """Have this process alone bring a run's files: None if another one does, False where that cannot be known."""
    with open(safe_files.open_regular(run.copied)) as record:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        except OSError:  # a file system without locks
            yield False
        else:
            yield True


def _copy(run: RunPaths) -> _Copy | None:
    try:
        table = safe_files.read_json(run.copied)
        digests = {str(name): str(digest) for name, digest in table["files"].items()}
        others = frozenset(map(str, table["others"]))
        return _Copy(str(table["home"]), str(table["why"]), digests, others, str(table.get("proof", "")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # of a version without it, or damaged


def _entries(code: Path, unread: list[Left] | None = None) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the entries below the copy with their names, folders before their files; no link is followed.

    Folders that cannot be read are added to ``unread``.

    Raises
    ------
    _TooManyError
        Behind the last entry that is looked at, if there are more.
    """
    waiting, looked_at = [] if code.is_symlink() else [""], 0
    while waiting:
        below = waiting.pop()
        try:
            inside = sorted(os.scandir(code / below), key=lambda entry: entry.name)
        except FileNotFoundError:  # it is being removed
            continue
        except OSError as error:  # the script closed it, or its path is too long
            if unread is not None:
                unread.append(Left(below, f"the folder cannot be read: {error.strerror}"))
            continue
        for entry in inside:
            looked_at += 1
            if looked_at > _MOST:
                raise _TooManyError
            name = f"{below}{entry.name}"
            if entry.name == _SKIPPED:
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{name}/")
            yield name, entry


def _changed(run: RunPaths, copy: _Copy) -> tuple[list[tuple[str, os.DirEntry[str]]], list[Left]]:
    """Return the entries that are new or have another content, by name, and the folders that were not looked at."""
    changed, unread = [], list[Left]()
    try:
        for name, entry in _entries(run.code, unread):
            if entry.is_file(follow_symlinks=False):
                if name not in copy.files or _digest_of(Path(entry.path)) != copy.files[name]:
                    changed.append((name, entry))
            elif name not in copy.others and (entry.is_symlink() or entry.is_dir(follow_symlinks=False)):
                changed.append((name, entry))
    except _TooManyError:
        unread.append(Left("./", f"the files and folders after the first {_MOST} were not looked at"))
    return changed, unread


class _Bringing:
    """One file, link or folder on its way to the original folder."""

    def __init__(self, run: RunPaths, copy: _Copy, home: int, brought: dict[str, str], *, alone: bool) -> None:
        self.run, self.copy, self.home, self.brought, self.alone = run, copy, home, brought, alone
        self.hidden = f".hpcml-{run.directory.name}-"  # how its unfinished files begin
        self.cleaned = set[tuple[str, ...]]()  # folders

    def all(self, changed: list[tuple[str, os.DirEntry[str]]]) -> tuple[dict[str, str], list[Left]]:
        """Bring what can be brought; return the digests of all that was, and what stays."""
        left = []
        rivals = _Rivals(self.run, self.copy.home, [name for name, entry in changed if entry.is_file()])
        for name, entry in changed:
            try:
                self._one(name, entry, rivals)
            except _StaysError as stays:
                left.append(Left(name, str(stays), rivals.of(name)))
            except OSError as error:
                left.append(Left(name, error.strerror or str(error)))
        for file in left:
            self.brought.pop(file.name, None)
        folders = {name for name, entry in changed if entry.is_dir(follow_symlinks=False)}
        return self.brought, [file for file in left if file.name not in folders]  # their files say it

    def _one(self, name: str, entry: os.DirEntry[str], rivals: _Rivals) -> None:
        if name in rivals.live:
            raise _StaysError(_RIVAL)
        *above, last = name.split("/")
        if entry.is_dir(follow_symlinks=False):
            with _folder(self.home, [*above, last], self.run.code):
                return
        with _folder(self.home, above, self.run.code) as folder:
            if entry.is_symlink():
                self._link(entry.path, folder, last)
                self.brought[name] = ""
                return
            if self.alone and tuple(above) not in self.cleaned:
                self.cleaned.add(tuple(above))
                self._clean(folder)
            known = self.brought.get(name, "") or self.copy.files.get(name, "")
            digest = self._file(name, Path(entry.path), folder, last, known)
            self.brought[name] = digest or self.brought.get(name, "")

    def _clean(self, folder: int) -> None:
        """Remove what a process left that was killed while it copied."""
        for name in os.listdir(folder):
            if name.startswith(self.hidden):
                with contextlib.suppress(OSError):  # another account's, or a folder: it hinders nothing
                    os.unlink(name, dir_fd=folder)

    def _link(self, path: str, folder: int, last: str) -> None:
        target = os.readlink(path)  # noqa: PTH115 - as it is written
        if target.startswith(own := f"{self.run.code}/"):
            target = f"{self.copy.home}/{target[len(own) :]}"
        try:
            os.symlink(target, last, dir_fd=folder)
        except FileExistsError:
            there = os.stat(last, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISLNK(there.st_mode) or os.readlink(last, dir_fd=folder) != target:
                raise _StaysError(_OTHER) from None

    def _file(self, name: str, source: Path, folder: int, last: str, known: str) -> str:
        try:
            os.link(source, last, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return self._meet(name, source, folder, last, known)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            return ""
        with self._beside(source, folder, links=False) as (new, digest):
            try:
                os.link(new, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return self._meet(name, source, folder, last, known)
        return digest

    def _meet(self, name: str, source: Path, folder: int, last: str, known: str) -> str:
        """Take the place of a file that is still what the copy began with; its content is kept in the run."""
        import hashlib

        there = os.stat(last, dir_fd=folder, follow_symlinks=False)
        own = source.lstat()
        if os.path.samestat(there, own):
            return ""
        if not stat.S_ISREG(there.st_mode) or there.st_uid != os.geteuid():
            raise _StaysError(_OTHER)
        with open(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb") as old:
            if not os.path.samestat(there, os.fstat(old.fileno())):  # others may write to the folder
                raise _StaysError(_OTHER)
            digest = hashlib.file_digest(old, "sha256").hexdigest()
            if there.st_size == own.st_size and digest == _digest_of(source):
                return digest
            if not known or digest != known:
                raise _StaysError(_OTHER)
            self._keep(name, old)
        with self._beside(source, folder, links=True) as (new, digest):
            now = os.stat(last, dir_fd=folder, follow_symlinks=False)
            if (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) != (
                there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns):  # fmt: skip
                raise _StaysError(_OTHER)
            os.rename(new, last, src_dir_fd=folder, dst_dir_fd=folder)
        return digest

    def _keep(self, name: str, old: BinaryIO) -> None:
        """Keep in the run what a file held at the submission; of what an earlier attempt brought, the run had it."""
        kept = self.run.replaced / name
        if not kept.exists():
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            old.seek(0)
            safe_files.write(kept, old.read())

    @contextlib.contextmanager
    def _beside(self, source: Path, folder: int, *, links: bool) -> Iterator[tuple[str, str]]:
        """Have the file under a hidden name in a folder, and give its digest; the name is removed if it is left."""
        new = f"{self.hidden}{os.urandom(8).hex()}"
        try:
            if not (links and _is_linked(source, folder, new)):
                _copied(source, folder, new)
            yield new, _digest_of(source)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)


class _Rivals:
    """Other runs of the same original folder that wrote the same names."""

    def __init__(self, run: RunPaths, home: str, names: list[str]) -> None:
        self.live: dict[str, str] = {}  # by name, a run that has not brought its file and may
        self.had: dict[str, str] = {}  # by name, a run that has brought its file
        others = [
            name for name in os.listdir(run.directory.parent) if name != run.directory.name and name.count("-") > 2
        ]
        for other in sorted(others, key=lambda name: name.split("-")[-3:], reverse=True)[:_RIVALS]:
            paths = RunPaths(run.directory.parent / other)
            if not safe_files.is_own_folder(paths.directory):
                continue
            both = [name for name in names if os.path.lexists(paths.code / name)]
            if not both or (copy := _copy(paths)) is None or copy.home != home:
                continue
            ended = of(paths)
            conflicts = {file.name for file in ended.left if file.run} if ended else {}
            for name in both:
                if ended and name in ended.brought:
                    self.had.setdefault(name, other)
                elif (not ended or name in conflicts) and _is_written(paths.code, name, copy):
                    self.live.setdefault(name, other)

    def of(self, name: str) -> str:
        """Return the other run that wrote a name, empty if none did."""
        return self.live.get(name, "") or self.had.get(name, "")


def _is_written(code: Path, name: str, copy: _Copy) -> bool:
    """Whether a file of a copy is another than at the submission; not what a link of the copy leads to."""
    path = code / name
    if os.path.realpath(path.parent) != os.path.join(os.path.realpath(code), *path.relative_to(code).parent.parts):  # noqa: PTH118
        return False
    return name not in copy.files or _digest_of(path) != copy.files[name]


@contextlib.contextmanager
def _opened(home: Path) -> Iterator[int]:
    """Open the original folder: the user's own, at its path without links."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise safe_files.ForeignError("the folder belongs to another account", home)
        if sys.platform == "linux" and os.readlink(f"/proc/self/fd/{descriptor}") != str(home):  # noqa: PTH115
            raise safe_files.ForeignError("the path now leads to another folder", home)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _folder(above: int, parts: list[str], copy: Path) -> Iterator[int]:
    """Open a folder below another, and make it as the copy has it; a link or a folder of others is an error."""
    inside = os.dup(above)
    try:
        for part in parts:
            copy /= part
            made = True
            try:
                os.mkdir(part, dir_fd=inside)
            except FileExistsError:
                made = False
            try:
                deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=inside)
            except (NotADirectoryError, PermissionError) as error:
                raise _StaysError(f"{_shown(part)} is not a folder there, or a link") from error
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise _StaysError(f"{_shown(part)} is a link there") from error
                raise
            os.close(inside)
            inside = deeper
            if (owner := os.fstat(inside).st_uid) != os.geteuid():
                raise _StaysError(f"the folder {_shown(part)} belongs to {safe_files.account(owner)}")
            if made and not os.listdir(inside):  # a full one was put there by others
                of_project = os.fstat(inside).st_mode & stat.S_ISGID  # as mkdir gave it
                os.fchmod(inside, copy.stat().st_mode & 0o777 | stat.S_IRWXU | of_project)
        yield inside
    finally:
        os.close(inside)


def _is_linked(source: Path, folder: int, name: str) -> bool:
    try:
        os.link(source, name, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


def _copied(source: Path, folder: int, name: str) -> None:
    """Copy a file, whole, with its mode and times; only the user's own is read."""
    with open(safe_files.open_regular(source), "rb") as old:
        status, room = os.fstat(old.fileno()), os.fstatvfs(folder)
        if status.st_size > room.f_bavail * room.f_frsize:  # it would fill the file system before it fails
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(
            os.open(name, flags, stat.S_IMODE(status.st_mode) & 0o777 | stat.S_IWUSR, dir_fd=folder), "wb"
        ) as new:
            shutil.copyfileobj(old, new, 1 << 20)
            new.flush()
            os.fchmod(new.fileno(), stat.S_IMODE(status.st_mode) & 0o777)
            os.utime(new.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def _stamp_of(path: Path) -> str:
    """Return a file's stamp now; empty if it is gone."""
    try:
        status = path.lstat()
    except OSError:
        return ""
    return stamp(status.st_size, status.st_mtime_ns)


def _digest_of(path: Path) -> str:
    """Return a file's digest; empty if it cannot be read, which is like no other file."""
    try:
        return _digest(safe_files.open_regular(path))
    except OSError:
        return ""


def _digest(descriptor: int) -> str:
    import hashlib  # with OpenSSL behind it some milliseconds, which status and ls do not need

    with open(descriptor, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)
