"""What takes in a file on the login node, where no hpcml need be: any Python 3 reads this module.

It comes by standard input (:class:`hpcml.remote.pack_delivery.Delivery`). After it come a line with what is asked, and
the bytes of the files. Its answers go to standard output, each on a line that begins with the question's mark.
"""

import contextlib
import glob
import grp
import json
import os
import pwd
import shutil
import signal
import stat
import sys
import tempfile
import time
from typing import Any, BinaryIO, Callable

OLD = 86400.0  # seconds after which what lies half-written was left by one that was killed
END = ".hpcml-part"  # of the name of a folder that is being written
GO = b"go\n"  # behind the last file: put it in place
PIECE = 1 << 18  # bytes


class RefusedError(Exception):
    """It cannot be put there; the argument says why in one word, further ones are facts."""


def place(ask: "dict[str, Any]") -> str:
    """Return the whole path of what is to come; a relative one begins at home.

    Raises
    ------
    RefusedError
        If something is there that may not be replaced, there is no folder for it, or no room.
    """
    path = os.path.join(os.path.expanduser("~"), str(ask["path"]))
    above = os.path.dirname(path)
    if os.path.lexists(path) and not ask["replace"]:
        raise RefusedError("there")
    if not os.path.isdir(above):
        raise RefusedError("folder")
    if is_open(above):
        raise RefusedError("open")
    disk = os.statvfs(above)
    free = disk.f_bavail * disk.f_frsize
    if sum(size for _, size, _ in ask["files"]) > free:
        raise RefusedError("room", free)
    return path


def receive(ask: "dict[str, Any]", source: BinaryIO, answer: "Callable[..., None]") -> None:
    """Write the files into a folder of another name, and put the first in place when all are there; else EOFError."""
    path = place(ask)
    above, name = os.path.split(path)
    if is_closed(above):  # elsewhere others give folders of ours another name
        for left in glob.glob(os.path.join(glob.escape(above), "." + glob.escape(name[:50]) + ".*" + END)):
            if time.time() - os.lstat(left).st_mtime > OLD:
                shutil.rmtree(left, ignore_errors=True)
    new = tempfile.mkdtemp(END, "." + name[:50] + ".", above)  # 0700
    try:
        folder = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        answer(ready=True)
        for entry in ask["files"]:
            take(folder, entry, source)
        if source.readline(len(GO)) != GO:
            raise EOFError
        place(dict(ask, files=[]))  # once more: sending takes a while
        os.rename(os.path.join(new, ask["files"][0][0]), path)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    answer(done=True)


def is_open(folder: str) -> bool:
    """Whether somebody else could put another thing in the place of what is in a folder, here or in a folder above."""
    real = os.path.realpath(folder)
    while True:
        status = os.stat(real)
        shared = status.st_mode & (stat.S_IWOTH | (0 if is_own_group(status.st_gid) else stat.S_IWGRP))
        if status.st_uid not in (0, os.getuid()) or (shared and not status.st_mode & stat.S_ISVTX):
            return True
        if real == os.path.dirname(real):
            return False
        real = os.path.dirname(real)


def is_own_group(gid: int) -> bool:
    """Whether a group is this user alone: many systems give each user one of the same name, and a umask of 002."""
    try:
        me, them = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return me.pw_gid == gid and them.gr_name == me.pw_name and set(them.gr_mem) <= {me.pw_name}


def is_closed(folder: str) -> bool:
    """Whether the folder is the user's, and nobody else may write to it."""
    status = os.stat(folder)
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def take(folder: int, entry: "list[Any]", source: BinaryIO) -> None:
    """Write one file into an open folder, for its owner alone; RefusedError for a bad name, EOFError if it is cut."""
    name, left, mode = entry
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise RefusedError("name")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(name, flags, 0o700 if mode & 0o100 else 0o600, dir_fd=folder)
    try:
        while left:
            piece = source.read(min(left, PIECE))
            if not piece:
                raise EOFError
            left -= len(piece)
            while piece:  # a file system that fills up takes a part first and says so at the next write
                piece = piece[os.write(descriptor, piece) :]
    finally:
        os.close(descriptor)


def main() -> int:
    """Do what is asked; the end of the input means Ctrl-C on the laptop, or a lost link, and leaves nothing here."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    os.umask(0o077)
    source = sys.stdin.buffer
    ask = json.loads(source.readline().decode())

    def answer(**fields: object) -> None:
        with contextlib.suppress(OSError):  # the laptop has gone
            sys.stdout.write(ask["mark"] + " " + json.dumps(fields) + "\n")
            sys.stdout.flush()

    try:
        receive(ask, source, answer)
    except RefusedError as error:
        answer(refused=error.args[0], free=sum(error.args[1:]))
    except OSError as error:
        answer(refused="failed", why=error.strerror or str(error), free=0)
    except (EOFError, KeyboardInterrupt):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
