"""The image of the lab's users: built by one of them, once for each version of what goes into it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import lab_apptainer
import lab_install
import lab_packages
import lab_services
from lab_paths import PROGRAM, USERS, LabError, Places
from lab_state import locked, wait_for

DEFINITION = Path(__file__).with_name("lab.def")
CONTENT = "hpcml[local]"  # without hpcml itself, which changes often and travels with each run
DEADLINE_S = 900
# Apptainer leaves its process group and debootstrap outlives it: all of a build has pids of its own, which end together.
CONFINED = ("timeout", "--signal=KILL", str(DEADLINE_S), "unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
            "sh", "-c", '"$@"; exit $?', "sh")  # fmt: skip
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")

# Run by the venv's own Python: what an extra needs, as installed there, and the files of it in a tar.
COLLECT = """
import json, sys, tarfile
from importlib.metadata import distribution
from packaging.requirements import Requirement

found, seen, todo = {}, set(), [Requirement(sys.argv[1])]
while todo:
    wanted = todo.pop()
    if (wanted.name, *sorted(wanted.extras)) in seen:
        continue
    seen.add((wanted.name, *sorted(wanted.extras)))
    found[wanted.name.lower()] = package = distribution(wanted.name)
    for need in map(Requirement, package.requires or ()):
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
            todo.append(need)
del found["hpcml"]
if len(sys.argv) > 2:
    with tarfile.open(sys.argv[2], "w") as archive:
        for package in found.values():
            for file in package.files:
                if ".." not in file.parts and file.locate().exists():
                    archive.add(file.locate(), str(file))
print(json.dumps(sorted(f"{package.name}=={package.version}" for package in found.values())))
"""


def image(places: Places) -> Path:
    return places.top / "images" / "lab.sif"


def reason_against(places: Places) -> str | None:
    """Why there is no image to run, in one sentence; None when there is one, built from what there is now."""
    if reason := lab_apptainer.reason_against(places):
        return reason
    if not image(places).exists():
        return f"The lab's image is not built ({image(places)}). Run: {PROGRAM} image"
    if not _current(places, _inputs(places)):
        return f"The lab's image is of another version ({image(places)}). Run: {PROGRAM} image"
    return None


def build(places: Places) -> bool:
    """Build the image as an ordinary user; False when there is one already, built from the same things."""
    if os.geteuid() != 0:
        raise LabError(lab_install.NEEDS_ROOT)
    if reason := lab_apptainer.reason_against(places):
        raise LabError(reason)
    folder = image(places).parent
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    with (folder / "lab.lock").open("w") as file:  # one build at a time; whoever waited finds the image there
        if not wait_for(lambda: locked(file), 2 * DEADLINE_S, 1):
            raise LabError(f"Another build is still at work ({folder}/lab.lock). Wait for it.")
        inputs = _inputs(places)
        if _current(places, inputs):
            return False
        lab_services.create_users(places)
        _replace(places, folder / "work", inputs)
    return True


def _replace(places: Places, work: Path, inputs: str) -> None:
    """Build beside the image there is, and put the new one in its place when it is whole."""
    shutil.rmtree(work, ignore_errors=True)
    try:
        _build(places, work)
        os.chown(work / "lab.sif", 0, 0, follow_symlinks=False)  # or its builder could change what the others run
        (work / "lab.sif").chmod(0o644)
        _stamp(places).unlink(missing_ok=True)
        (work / "lab.sif").replace(image(places))
        _stamp(places).write_text(inputs)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _stamp(places: Places) -> Path:
    return image(places).with_suffix(".inputs")


def _current(places: Places, inputs: str) -> bool:
    return image(places).exists() and _stamp(places).exists() and _stamp(places).read_text() == inputs


def _inputs(places: Places) -> str:
    """A digest of everything that goes into the image."""
    parts = [DEFINITION.read_text(), _suite(), platform.machine(), *_packages(places)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _suite() -> str:
    """The suite of this machine, so that the image has the same Python as the venv outside."""
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "bookworm")


def _packages(places: Places, *target: str) -> list[str]:
    python = places.venv / "bin" / "python"
    if not python.exists():
        raise LabError(f"The lab's users have no Python environment yet ({places.venv}). Run: {PROGRAM} env")
    words = [str(python), "-c", COLLECT, CONTENT, *target]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise LabError(f"The packages for the image cannot be listed: {done.stderr.strip().splitlines()[-1]}.")
    return [str(line) for line in json.loads(done.stdout)]


def _build(places: Places, work: Path) -> None:
    account = pwd.getpwnam(USERS["alice"])
    work.mkdir(mode=0o700)
    os.chown(work, account.pw_uid, account.pw_gid)
    _packages(places, str(work / "packages.tar"))
    (work / "lab.def").write_text(DEFINITION.read_text())
    for name in ("packages.tar", "lab.def"):
        (work / name).chmod(0o644)
    become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups", "--inh-caps=-all"]
    values = {"suite": _suite(), "mirror": mirror(), "packages": str(work / "packages.tar")}
    given = [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]
    # The least packing: the image is read more often than it is sent anywhere, and packing is most of the build's time.
    words = ["apptainer", "build", "--fakeroot", "--mksquashfs-args", "-comp zstd -Xcompression-level 1", *given]
    environment = {
        "HOME": str(work),
        "USER": account.pw_name,
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "APPTAINER_TMPDIR": str(work),
        "APPTAINER_CACHEDIR": str(work / "cache"),
        **{name: os.environ[name] for name in PROXIES if name in os.environ},
    }
    with image(places).with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            [*CONFINED, *become, *words, "lab.sif", "lab.def"], cwd=work, env=environment, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, umask=0o022, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(DEADLINE_S + 30)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code:
        raise LabError(f"The lab's image cannot be built ({code}). Read {image(places).with_suffix('.log')}.")


def mirror() -> str:
    """The first mirror of the machine's apt that debootstrap can use too."""
    for mirror in lab_packages.mirrors():
        if mirror.startswith(("http://", "https://", "file:/")):
            return mirror
    raise LabError("apt on this machine has no mirror that debootstrap can use (http, https or file).")
