"""A folder with the wheels of hpcml and of what an extra needs, from which pip installs where no index is reached."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib import metadata, util
from pathlib import Path
from typing import NamedTuple

from hpcml import __version__, subprocesses
from hpcml.errors import ConfigError, NotFoundError, StorageError, UsageError, did_you_mean, nearest
from hpcml.installation import one_file

DEADLINE = 3600.0  # seconds for pip: the wheels for GPUs are some gigabytes
PLATFORM = "manylinux_2_28_x86_64"  # what a RHEL 8 and all that is newer takes
_OLD_NAMES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}  # of glibc 2.N
_WHEEL = f"Wheel-Version: 1.0\nGenerator: hpcml {__version__}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_COMMAND = "[console_scripts]\nhpcml = hpcml.cli.main:main\n"
_QUOTED = 6  # lines of pip's


class Wanted(NamedTuple):
    """What a wheelhouse is for: the extras, and the Python (``3.11``) and platform (``manylinux_2_28_x86_64``)."""

    extras: tuple[str, ...]
    python: str
    platform: str

    @property
    def requirement(self) -> str:
        """What pip is asked to install."""
        return f"hpcml[{','.join(self.extras)}]" if self.extras else "hpcml"


def check(wanted: Wanted) -> None:
    """Refuse what cannot be had.

    Raises
    ------
    UsageError
        If there is no such extra, or the Python or the platform is not written as pip writes it.
    """
    known = _own_metadata().get_all("Provides-Extra") or []
    for extra in wanted.extras:
        if extra not in known:
            hint = did_you_mean(nearest(extra, known), f"One of: {', '.join(sorted(known))}.")
            raise UsageError(f"hpcml has no extra '{extra}'", place="--extra", hint=hint)
    number = re.fullmatch(r"3\.(\d{1,3})", wanted.python)
    if not number or int(number[1]) < 11:
        hint = "Write it as 3.11, or newer: as `python3 --version` says on the nodes."
        raise UsageError(f"'{wanted.python}' is no Python that runs hpcml", place="--python", hint=hint)
    _platforms(wanted.platform)


def make(folder: Path, wanted: Wanted, sink: Callable[[bytes], None]) -> list[str]:
    """Make the folder, which is not there yet, whole or not at all; return the names of its wheels.

    What pip says goes to ``sink``.

    Raises
    ------
    UsageError
        If the folder is there.
    ConfigError
        If this Python has no pip.
    NotFoundError
        If a package cannot be had.
    StorageError
        If the folder cannot be written.
    """
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} is there already", place="hpcml wheelhouse", hint="Choose another name with -o.")
    if util.find_spec("pip") is None:
        hint = "Install it there: python3 -m ensurepip."
        raise ConfigError("This Python has no pip, which fetches the wheels", place=sys.executable, hint=hint)
    new = folder.with_name(f".{folder.name}.new")
    try:
        new.mkdir(parents=True)
    except OSError as error:
        hint = "Remove it, if no other hpcml wheelhouse is at work." if new.is_dir() else "Name another with -o."
        raise StorageError(f"The folder cannot be made: {error.strerror}", place=str(new), hint=hint) from error
    try:
        own = new / f"hpcml-{__version__}-py3-none-any.whl"
        own.write_bytes(own_wheel())
        answer = subprocesses.stream(_command(new, own, wanted), DEADLINE, sink)
        if answer.code != 0:
            why = (
                f"pip ended with status {answer.code}" if answer.code is not None else "pip did not end within an hour"
            )
            quote = tuple(line for line in answer.text.splitlines() if line.startswith("ERROR"))[-_QUOTED:]
            hint = "pip's own settings say where it looks (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL)."
            raise NotFoundError(f"Not all wheels can be had: {why}", place=wanted.requirement, hint=hint, quote=quote)
        new.rename(folder)
    except OSError as error:
        hint = "Make room there, or name another folder (-o; with --host, TMPDIR)."
        raise StorageError(f"The wheels cannot be written: {error.strerror}", place=str(new), hint=hint) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)  # it is not there any more if all went well
    return sorted(path.name for path in folder.iterdir())


def _command(folder: Path, own: Path, wanted: Wanted) -> list[str]:
    """Return the command line of pip."""
    words = [sys.executable, "-P", "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    words += ["--progress-bar=off", "--only-binary=:all:", "--dest", str(folder), "--find-links", str(folder)]
    words += ["--implementation=cp", "--python-version", wanted.python]
    for platform in _platforms(wanted.platform):
        words += ["--platform", platform]
    return [*words, f"{own}{wanted.requirement.removeprefix('hpcml')}"]


def _platforms(newest: str) -> Sequence[str]:
    """Return all platforms whose wheels run on one: those for older versions of its C library too."""
    match = re.fullmatch(r"manylinux_2_(\d{1,3})_(\w+)", newest)
    if not match:
        hint = f"Write it as {PLATFORM}: the 28 is of the nodes' glibc 2.28, as `ldd --version` says there."
        raise UsageError(f"'{newest}' is no platform of Linux", place="--platform", hint=hint)
    found = []
    for minor in range(int(match[1]), 4, -1):
        found.append(f"manylinux_2_{minor}_{match[2]}")
        if minor in _OLD_NAMES:
            found.append(f"{_OLD_NAMES[minor]}_{match[2]}")
    return [*found, f"linux_{match[2]}"]


def _own_metadata() -> metadata.PackageMetadata:
    try:
        return metadata.metadata("hpcml")
    except metadata.PackageNotFoundError as error:
        hint = "Install it, in a checkout with: pip install ."
        raise ConfigError("This hpcml is not installed as a package", place=sys.executable, hint=hint) from error


def own_wheel() -> bytes:
    """Return hpcml's own wheel, made from its files: no index has to have it, and nothing is built."""
    _own_metadata()
    info = f"hpcml-{__version__}.dist-info"
    members = {name: data for name, data in one_file.of_hpcml() if not name.endswith("/RECORD")}
    members |= {f"{info}/WHEEL": _WHEEL.encode(), f"{info}/entry_points.txt": _COMMAND.encode()}
    out = io.BytesIO()
    record = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(members.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "".join([*record, f"{info}/RECORD,,\n"]))
    return out.getvalue()
