"""A real Apptainer for the lab's users, where the machine's own suite has none: Debian unstable's, repacked.

It is a Go program whose two binaries need a newer C library than Debian 12's. The library goes into a folder of its own
and the binaries are told to look there, so nothing else on the machine sees it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import lab_install
from lab_paths import PROGRAM, LabError, Places

TOOLS = ("patchelf", "uidmap", "squashfs-tools", "squashfuse", "fuse2fs", "fuse-overlayfs")
FOR_IMAGES = ("debootstrap", "debian-archive-keyring")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LIBRARIES = Path("usr/lib/apptainer-libc")  # of its own: no other program looks here
FUSE = Path("/dev/fuse")
NOBODY = 65534
SUBORDINATE_IDS = 65536


# --- whether it is there --------------------------------------------------------------------------------------------


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
    done = _run([*become, "unshare", "--user", "--map-root-user", "--mount", "true"], deadline=10)
    if done.returncode:
        return f"This machine gives ordinary users no user namespaces ({_last_line(done)}). See kernel.unprivileged_userns_clone."
    return None


def _note(places: Places) -> Path:
    """Where `install` leaves its reason, for the tests that are skipped because of it."""
    return places.top / "apptainer-is-missing"


# --- installation ---------------------------------------------------------------------------------------------------


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
        own = _download(folder, "apptainer", mirrors())
        others = [_download_more(folder, library) for library in _libraries_of(own)]
        lab_install.install_file(_repack(folder, own, others))
    done = _run(["apptainer", "--version"], deadline=30)
    if done.returncode:
        raise LabError(f"Apptainer was installed but does not start: {_last_line(done)}.")
    return [*fetched, "apptainer"]


def mirrors() -> list[str]:
    """The mirrors of the machine's own apt configuration, whatever form that has, those of security updates last."""
    found = _known_mirrors()
    if not found:  # apt speaks of what it has fetched, and some machines come without any list
        lab_install.update()
        found = _known_mirrors()
    if not found:
        raise LabError(
            "apt on this machine knows no mirror of Debian or Ubuntu. Give it one in /etc/apt/sources.list.d."
        )
    return found


def _known_mirrors() -> list[str]:
    words = ["apt-get", "indextargets", "--format", "$(CREATED_BY)|$(ORIGIN)|$(LABEL)|$(REPO_URI)"]
    rows = [line.split("|") for line in _run(words, deadline=60).stdout.splitlines() if line.count("|") == 3]
    own = {_resolved(uri): "Security" in label for kind, origin, label, uri in rows
           if kind == "Packages" and origin in ("Debian", "Ubuntu")}  # fmt: skip
    return sorted(own, key=lambda uri: own[uri])


def _resolved(uri: str) -> str:
    """The first mirror of a list of them, which some images of Debian for the cloud have instead of one."""
    kind, _, path = uri.rstrip("/").partition(":")
    return Path(path).read_text().split()[0].rstrip("/") if kind == "mirror+file" else uri.rstrip("/")


def _download(folder: Path, package: str, candidates: Iterable[str]) -> Path:
    """Fetch a package of Debian unstable from the first mirror that has it, with its signature checked."""
    problems = []
    for mirror in candidates:
        _configure(folder, mirror)
        done = _apt(folder, "update", "--quiet", "--error-on=any")
        if done.returncode == 0:
            return _download_more(folder, package)
        problems.append(_first_line(done))
    detail = problems[0] if problems else "it has none"
    raise LabError(
        f"Apptainer cannot be fetched from Debian unstable by this machine's mirrors ({detail}). "
        "Install the package apptainer by hand."
    )


def _configure(folder: Path, mirror: str) -> None:
    """An apt of its own: the machine's suites, lists and caches stay as they are."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "unstable.list").write_text(f"deb [signed-by={KEYRING}] {mirror} unstable main\n")


def _apt(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    options = {
        "Dir::Etc::SourceList": folder / "unstable.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",  # or apt complains that _apt may not write to our folder
        "APT::Default-Release": "unstable",
    }
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return _run(["apt-get", *given, *words], deadline=600, cwd=folder)


def _download_more(folder: Path, package: str) -> Path:
    done = _apt(folder, "download", "--quiet", package)
    found = sorted(folder.glob(f"{package}_*.deb"))
    if done.returncode or not found:
        raise LabError(f"Debian unstable gives no package {package} by this machine's mirror: {_last_line(done)}.")
    return found[-1]


def _libraries_of(package: Path) -> list[str]:
    """The libraries that a package depends on: they come from the same suite as the package itself."""
    return [name for name in _dependencies(_field(package, "Depends")) if name.startswith("lib")]


def _dependencies(field: str) -> list[str]:
    """The first name of each alternative, without versions."""
    return [re.split(r"[\s(:|]", part.strip())[0] for part in field.split(",") if part.strip()]


def _field(package: Path, name: str) -> str:
    return _must(["dpkg-deb", "--field", str(package), name]).strip()


# --- repacking ------------------------------------------------------------------------------------------------------


def _repack(folder: Path, package: Path, libraries: Sequence[Path]) -> Path:
    """The package with its C library inside, and with dependencies that this machine's own suite can satisfy."""
    tree, unpacked = folder / "tree", folder / "unpacked"
    _must(["dpkg-deb", "--raw-extract", str(package), str(tree)])
    for library in libraries:
        _must(["dpkg-deb", "--extract", str(library), str(unpacked)])
    programs = [path for path in tree.rglob("*") if _interpreter(path)]
    target = tree / LIBRARIES
    target.mkdir(parents=True)
    for name, source in _needed(programs, unpacked).items():
        shutil.copy2(source, target / name)
    for program in programs:
        loader = f"/{LIBRARIES}/{Path(_interpreter(program)).name}"
        _must(["patchelf", "--force-rpath", "--set-rpath", f"/{LIBRARIES}", "--set-interpreter", loader, str(program)])
    _rewrite_control(tree / "DEBIAN")
    result = folder / "apptainer-for-the-lab.deb"
    _must(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(tree), str(result)])
    return result


def _interpreter(path: Path) -> str:
    """The dynamic loader of a program; empty for all other files."""
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return ""
    done = _run(["patchelf", "--print-interpreter", str(path)], deadline=60)
    return done.stdout.strip() if done.returncode == 0 else ""


def _needed(programs: Sequence[Path], unpacked: Path) -> dict[str, Path]:
    """The libraries that the programs load, and those that these load, as files."""
    found: dict[str, Path] = {}
    todo = list(programs)
    while todo:
        asking = todo.pop()
        for name in _must(["patchelf", "--print-needed", str(asking)]).split():
            if name in found:
                continue
            source = next((path for path in unpacked.rglob(name) if path.exists()), None)
            if source is None:
                raise LabError(f"Apptainer needs {name}, which none of the packages fetched with it has.")
            found[name] = source
            todo.append(source)
    return found


def _rewrite_control(folder: Path) -> None:
    """Without the libraries, which are inside now, and without the sums of the programs, which were changed."""
    (folder / "md5sums").unlink(missing_ok=True)
    control = folder / "control"
    lines = []
    for line in control.read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Depends", "Recommends", "Suggests"):
            kept = [word for word in _dependencies(value) if not word.startswith("lib")] if name == "Depends" else []
            lines += [f"Depends: {', '.join(kept)}"] if kept else []
        else:
            lines.append(line)
    control.write_text("\n".join(lines) + "\n")


# --- the lab's users and nodes --------------------------------------------------------------------------------------


def give_subordinate_ids(account: str) -> None:
    """What `useradd` gives ordinary users but not system accounts: the ids that a container's other users have."""
    for path, option in ((Path("/etc/subuid"), "--add-subuids"), (Path("/etc/subgid"), "--add-subgids")):
        path.touch()
        rows = [line.split(":") for line in path.read_text().splitlines() if line.count(":") == 2]
        if any(row[0] == account for row in rows):
            continue
        first = max([100_000, *(int(start) + int(count) for _, start, count in rows)])
        _must(["usermod", option, f"{first}-{first + SUBORDINATE_IDS - 1}", account])


# --- commands -------------------------------------------------------------------------------------------------------


def _run(argv: Sequence[str], *, deadline: float, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
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


def _must(argv: Sequence[str]) -> str:
    done = _run(argv, deadline=120)
    if done.returncode:
        raise LabError(f"`{' '.join(argv[:2])}` failed ({done.returncode}): {_last_line(done)}.")
    return done.stdout


def _first_line(done: subprocess.CompletedProcess[str]) -> str:
    """Of apt's complaints, which end with one that says nothing."""
    lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))] or [_last_line(done)]
    return lines[0].strip().rstrip(".")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
    return lines[-1].strip().rstrip(".")
