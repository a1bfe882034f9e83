"""How hpcml begins as one file: with a Python that is new enough, and unpacked once. Any Python 3 reads this module."""

import importlib
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile

DIGEST = "of what is in the file"  # which hpcml.cli.pack writes here
OLDEST = (3, 11)
OTHER = "Set XDG_CACHE_HOME to your own folder."
USABLE = "import sys; sys.exit(sys.version_info < (3, 11))"


def fail(sentence: str, status: int) -> None:
    """Say what is wrong as hpcml does, and end."""
    sys.stderr.write("hpcml: " + sentence + "\n")
    sys.exit(status)


def become_newer() -> None:
    """Go on with the newest Python on PATH, if it is new enough."""
    for minor in range(40, OLDEST[1] - 1, -1):
        interpreter = shutil.which("python3." + str(minor))
        if interpreter and subprocess.call([interpreter, "-I", "-c", USABLE], stderr=subprocess.DEVNULL) == 0:
            os.execv(interpreter, [interpreter, *sys.argv])
    here = ".".join(str(number) for number in sys.version_info[:2])
    sentence = "hpcml needs Python 3.11 or newer, but this is Python " + here + " (" + sys.executable + ").\n"
    fail(
        sentence
        + "Load a newer Python (module avail python), or start hpcml with a newer Python: python3.11 "
        + sys.argv[0]
        + " …",
        78,
    )


def refuse_shared(archive: str, path: str) -> None:
    """End if somebody else could replace what is at a path, by the rule of the archive's own hpcml.safe_files."""
    with zipfile.ZipFile(archive) as members:
        names = {"__name__": "hpcml.safe_files"}
        exec(members.read("lib/hpcml/safe_files.py"), names)  # noqa: S102 - it is what runs next
    for who in names["replaceable"](pathlib.Path(path)):  # type: ignore[operator]
        fail(
            "Other users can replace the unpacked files in "
            + path
            + ", because of the owner or the permissions of "
            + str(who.path)
            + " (who can: "
            + who.who
            + ").\n"
            + OTHER,
            74,
        )


def unpacked(archive: str) -> str:
    """Return the folder with what is in the archive; it is made whole or not at all, by whoever comes first."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    place = os.path.join(cache, "hpcml")
    folder = os.path.join(place, DIGEST)
    mask = os.umask(0o022)
    try:
        refuse_shared(archive, place)
        if not os.path.isdir(folder):
            os.makedirs(place, 0o700, exist_ok=True)
            new = tempfile.mkdtemp(prefix=".", dir=place)
            try:
                with zipfile.ZipFile(archive) as members:
                    members.extractall(new, [name for name in members.namelist() if name.startswith("lib/")])
                os.rename(os.path.join(new, "lib"), folder)
            except OSError:
                if not os.path.isdir(folder):  # nobody else was faster
                    raise
            finally:
                shutil.rmtree(new, ignore_errors=True)
        for path in (place, folder):
            status = os.lstat(path)
            if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
                fail(
                    "Other users could have changed the unpacked files ("
                    + path
                    + ").\nRename this folder and try again.",
                    74,
                )
    except OSError as error:
        why = (error.strerror or str(error)) + " (" + str(error.filename or place) + ")"
        fail(
            "hpcml cannot unpack its files: "
            + why
            + ".\nDelete files that you do not need, or set XDG_CACHE_HOME to a folder where you can write.",
            74,
        )
    finally:
        os.umask(mask)
    return folder


def main() -> int:
    """Run hpcml's command line."""
    if sys.version_info[:2] < OLDEST:
        become_newer()
    sys.path[0] = unpacked(sys.path[0])
    return int(importlib.import_module("hpcml.cli.main").main())


if __name__ == "__main__":
    sys.exit(main())
