"""A real Apptainer for the lab's users, where the machine's own suite has none: Debian unstable's, repacked.

It is a Go program whose two binaries need a newer C library than Debian 12's. The library goes into a folder of its own
and the binaries are told to look there, so nothing else on the machine sees it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import lab_install
from lab_packages import (
    FOR_PACKAGES,
    Suite,
    dependencies,
    interpreter,
    last_line,
    libraries_of,
    must,
    needed,
    point_to,
    run,
)
from lab_paths import PROGRAM, LabError, Places

TOOLS = (*FOR_PACKAGES, "uidmap", "squashfs-tools", "squashfuse", "fuse2fs", "fuse-overlayfs")
FOR_IMAGES = ("debootstrap", "debian-archive-keyring")
LIBRARIES = Path("usr/lib/apptainer-libc")  # of its own: no other program looks here
FUSE = Path("/dev/fuse")
NOBODY = 65534
SUBORDINATE_IDS = 65536


def reason_against(places: Places) -> str | None:
    """Why no container can run here, in one sentence; None when one can."""
    if shutil.which("apptainer") is None:
        try:
            return _note(places).read_text().strip()
        except FileNotFoundError:
            return f"Apptainer is not installed ({PROGRAM}). Run: {PROGRAM} install"
    if not FUSE.exists():
        return f"The kernel has no {FUSE}, through which Apptainer reads an image. Run: modprobe fuse"
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]
    done = run([*become, "unshare", "--user", "--map-root-user", "--mount", "true"], deadline=10)
    if done.returncode:
        return f"This machine gives ordinary users no user namespaces ({last_line(done)}). See kernel.unprivileged_userns_clone."
    return None


def _note(places: Places) -> Path:
    """Where `install` leaves its reason, for the tests that are skipped because of it."""
    return places.top / "apptainer-is-missing"


def install(places: Places) -> list[str]:
    """Fetch Apptainer unless there is one; returns what was installed. The reason of a failure is kept for the tests."""
    note = _note(places)
    try:
        return _install()
    except LabError as error:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{error}\n")
        raise
    finally:
        if shutil.which("apptainer"):
            note.unlink(missing_ok=True)


def _install() -> list[str]:
    if shutil.which("apptainer"):
        return lab_install.fetch(FOR_IMAGES)
    fetched = lab_install.fetch([*TOOLS, *FOR_IMAGES])
    with tempfile.TemporaryDirectory(prefix="hpcml-apptainer-") as name:
        folder = Path(name)
        try:
            suite = Suite(folder, "unstable")
            own = suite.download(["apptainer"])
            others = suite.download(libraries_of(own))
        except LabError as error:
            raise LabError(f"Apptainer cannot be fetched: {error} Install the package apptainer by hand.") from error
        lab_install.install_file(_repack(folder, own[0], others))
    done = run(["apptainer", "--version"], deadline=30)
    if done.returncode:
        raise LabError(f"Apptainer was installed but does not start: {last_line(done)}.")
    return [*fetched, "apptainer"]


def _repack(folder: Path, package: Path, libraries: Sequence[Path]) -> Path:
    """The package with its C library inside, and with dependencies that this machine's own suite can satisfy."""
    tree, unpacked = folder / "tree", folder / "unpacked"
    must(["dpkg-deb", "--raw-extract", str(package), str(tree)])
    for library in libraries:
        must(["dpkg-deb", "--extract", str(library), str(unpacked)])
    programs = [path for path in tree.rglob("*") if interpreter(path)]
    target = tree / LIBRARIES
    target.mkdir(parents=True)
    for name, source in needed(programs, unpacked).items():
        if source is None:
            raise LabError(f"Apptainer needs {name}, which none of the packages fetched with it has.")
        shutil.copy2(source, target / name)
    for program in programs:
        point_to(program, [Path("/") / LIBRARIES])
    _rewrite_control(tree / "DEBIAN")
    result = folder / "apptainer-for-the-lab.deb"
    must(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(tree), str(result)])
    return result


def _rewrite_control(folder: Path) -> None:
    """Without the libraries, which are inside now, and without the sums of the programs, which were changed."""
    (folder / "md5sums").unlink(missing_ok=True)
    control = folder / "control"
    lines = []
    for line in control.read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Depends", "Recommends", "Suggests"):
            kept = [word for word in dependencies(value) if not word.startswith("lib")] if name == "Depends" else []
            lines += [f"Depends: {', '.join(kept)}"] if kept else []
        else:
            lines.append(line)
    control.write_text("\n".join(lines) + "\n")


def give_subordinate_ids(account: str) -> None:
    """What `useradd` gives ordinary users but not system accounts: the ids that a container's other users have."""
    for path, option in ((Path("/etc/subuid"), "--add-subuids"), (Path("/etc/subgid"), "--add-subgids")):
        path.touch()
        rows = [line.split(":") for line in path.read_text().splitlines() if line.count(":") == 2]
        if any(row[0] == account for row in rows):
            continue
        first = max([100_000, *(int(start) + int(count) for _, start, count in rows)])
        must(["usermod", option, f"{first}-{first + SUBORDINATE_IDS - 1}", account])
