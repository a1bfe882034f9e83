"""Packages of a later Debian suite, for the machine's own: fetched beside its apt, with their C library beside its own.

A program of a later suite needs a newer C library than the machine's. The library goes into a folder of its own and the
program is told to look there, so nothing else on the machine sees it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import lab_install
from lab_paths import LabError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
FOR_PACKAGES = ("patchelf", "debian-archive-keyring")


def mirrors() -> list[str]:
    """The mirrors of the machine's own apt configuration, whatever form that has, those of security updates last."""
    found = _known_mirrors()
    if not found:  # apt speaks of what it has fetched, and some machines come without any list
        lab_install.apt("update", "-q")
        found = _known_mirrors()
    if not found:
        raise LabError(
            "apt on this machine knows no mirror of Debian or Ubuntu. Give it one in /etc/apt/sources.list.d."
        )
    return found


def _known_mirrors() -> list[str]:
    words = ["apt-get", "indextargets", "--format", "$(CREATED_BY)|$(ORIGIN)|$(LABEL)|$(REPO_URI)"]
    rows = [line.split("|") for line in run(words, deadline=60).stdout.splitlines() if line.count("|") == 3]
    own = {_resolved(uri): "Security" in label for kind, origin, label, uri in rows
           if kind == "Packages" and origin in ("Debian", "Ubuntu")}  # fmt: skip
    return sorted(own, key=lambda uri: own[uri])


def _resolved(uri: str) -> str:
    """The first mirror of a list of them, which some images of Debian for the cloud have instead of one."""
    kind, _, path = uri.rstrip("/").partition(":")
    return Path(path).read_text().split()[0].rstrip("/") if kind == "mirror+file" else uri.rstrip("/")


class Suite:
    """A Debian suite, with an apt of its own in a folder: the machine's suites, lists and caches stay as they are."""

    def __init__(self, folder: Path, name: str) -> None:
        """Read what the suite has, by the first mirror of this machine's that gives it, with its signature checked."""
        self.folder = folder
        self.name = name
        for part in ("lists/partial", "cache/archives/partial"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        problems = []
        for mirror in mirrors():
            (self.folder / "suite.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {self.name} main\n")
            done = self._apt("update", "--quiet", "--error-on=any")
            if done.returncode == 0:
                return
            problems.append(_first_line(done))
        raise LabError(f"This machine's mirrors do not give Debian {self.name} ({problems[0]}).")

    def _apt(self, *words: str) -> subprocess.CompletedProcess[str]:
        options = {
            "Dir::Etc::SourceList": self.folder / "suite.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::State::Lists": self.folder / "lists",
            "Dir::Cache": self.folder / "cache",
            "APT::Sandbox::User": "root",  # or apt complains that _apt may not write to our folder
            "APT::Default-Release": self.name,
        }
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return run(["apt-get", *given, *words], deadline=600, cwd=self.folder)

    def download(self, packages: Sequence[str]) -> list[Path]:
        """Fetch packages; returns their files in the order of the names."""
        done = self._apt("download", "--quiet", *packages)
        found = [sorted(self.folder.glob(f"{package}_*.deb"))[-1:] for package in packages]
        if done.returncode or not all(found):
            raise LabError(
                f"Debian {self.name} does not give {' '.join(packages)} by this machine's mirror: {last_line(done)}."
            )
        return [file for files in found for file in files]


def libraries_of(packages: Iterable[Path]) -> list[str]:
    """The libraries that packages depend on: they come from the same suite as the packages themselves."""
    fields = [must(["dpkg-deb", "--field", str(package), "Depends"]).strip() for package in packages]
    return sorted({name for field in fields for name in dependencies(field) if name.startswith(("lib", "zlib"))})


def dependencies(field: str) -> list[str]:
    """The first name of each alternative, without versions."""
    return [re.split(r"[\s(:|]", part.strip())[0] for part in field.split(",") if part.strip()]


def is_elf(path: Path) -> bool:
    """Whether a file is a program or a library."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def interpreter(path: Path) -> str:
    """The dynamic loader of a program; empty for all other files."""
    if not is_elf(path):
        return ""
    done = run(["patchelf", "--print-interpreter", str(path)], deadline=60)
    return done.stdout.strip() if done.returncode == 0 else ""


def needed(programs: Iterable[Path], unpacked: Path, own: Collection[str] = ()) -> dict[str, Path | None]:
    """The libraries that the programs load but for their ``own``, and those that these load: as files, None if missing."""
    found: dict[str, Path | None] = {}
    todo = list(programs)
    while todo:
        for name in must(["patchelf", "--print-needed", str(todo.pop())]).split():
            if name in found or name in own:
                continue
            source = next((path for path in unpacked.rglob(name) if path.exists()), None)
            found[name] = source
            todo += [source] if source else []
    return found


def point_to(program: Path, folders: Sequence[Path]) -> None:
    """Have a program or library look for what it loads in these folders alone, and for a loader in the last."""
    words = ["patchelf", "--force-rpath", "--set-rpath", ":".join(map(str, folders))]
    if loader := interpreter(program):
        words += ["--set-interpreter", str(folders[-1] / Path(loader).name)]
    must([*words, str(program)])


def run(argv: Sequence[str], *, deadline: float, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(
            argv, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline,
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return subprocess.CompletedProcess(list(argv), 127, "", f"{argv[0]} is not installed")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(argv), 124, "", f"{argv[0]} did not end within {deadline:g} s")


def must(argv: Sequence[str]) -> str:
    done = run(argv, deadline=120)
    if done.returncode:
        raise LabError(f"`{' '.join(argv[:2])}` failed ({done.returncode}): {last_line(done)}.")
    return done.stdout


def _first_line(done: subprocess.CompletedProcess[str]) -> str:
    """Of apt's complaints, which end with one that says nothing."""
    lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))] or [last_line(done)]
    return lines[0].strip().rstrip(".")


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
    return lines[-1].strip().rstrip(".")
