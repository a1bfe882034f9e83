#!/usr/bin/env python3
"""Pack an Apptainer and a small image for a GPU machine that has neither, nor a network: OUT/apptainer.txz and OUT/image.sif.

    sudo python3 bench/gpu/pack_image.py OUT --python /opt/python3.12     where the lab is installed (tests/lab): about a minute

On the GPU machine: ``tar -C / -xf apptainer.txz``, then ``run.py --image image.sif``. The image (image.def) holds Debian and the
CPython that is named, and no packages: those of the GPU machine are bound into it. Its C library must do for the packages.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/lab"))

import lab_image
import slurm_pack
from lab_paths import Places, account_name

DEFINITION = Path(__file__).with_name("image.def")
BUILDER = "alice"  # of the lab's users: a build by root of a namespace wants an ordinary user
HELPERS = ("squashfuse", "squashfuse_ll", "fuse2fs", "fuse-overlayfs", "fusermount3", "mksquashfs", "unsquashfs")
PROGRAMS = Path("usr/lib/x86_64-linux-gnu/apptainer/bin")  # where Debian's Apptainer looks for them before PATH
LIBRARIES = Path("usr/lib/apptainer-helpers")  # theirs alone: the other machine's programs do not look here
USELESS = ("test", "idlelib", "lib2to3", "ensurepip", "tkinter", "turtledemo", "pydoc_data", "share", "include",
           "config-3.*", "site-packages/*", "*_tkinter*", "_test*.so", "*.a", "*.opt-?.pyc")  # fmt: skip
DEADLINE = 900


class PackError(Exception):
    """It cannot be packed; the sentence says why and what to do."""


def run(words: Sequence[str | Path], *, environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command and return what it printed.

    Raises
    ------
    PackError
        If it fails, with its last lines.
    """
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, timeout=DEADLINE, cwd=cwd,
                          stdin=subprocess.DEVNULL, env=environment)  # fmt: skip
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise PackError(f"`{words[0]}` ended with status {done.returncode}:\n{said}")
    return done.stdout


def pack_apptainer(out: Path) -> None:
    """Write this machine's Apptainer with the programs that it starts and their libraries, as a tree for /.

    The lab's (tests/lab/lab_apptainer.py) has its C library with it, so it starts on any x86-64 Linux.
    """
    with tempfile.TemporaryDirectory(prefix="hpcml-apptainer-") as name:
        tree = Path(name)
        tree.chmod(0o755)
        for line in run(["dpkg", "-L", "apptainer"]).splitlines():
            path = Path(line)
            if (path.is_file() or path.is_symlink()) and not line.startswith("/usr/share"):
                target = tree / path.relative_to("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target, follow_symlinks=False)
        paths = [shutil.which(name, path=slurm_pack.SEARCH) for name in HELPERS]
        if missing := [name for name, path in zip(HELPERS, paths, strict=True) if path is None]:
            raise PackError(f"not here: {', '.join(missing)}. Run: tests/lab/lab.py install")
        helpers = [Path(path) for path in paths if path]
        _copy_with(helpers, tree / PROGRAMS)
        _copy_with(slurm_pack.libraries(helpers), tree / LIBRARIES)
        (tree / "var/lib/apptainer/mnt/session").mkdir(parents=True)
        run(["tar", "-C", tree, "--owner=0", "--group=0", "-I", "xz -6 -T0", "-cf", out, "."])


def _copy_with(files: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, folder / file.name)
        run(["patchelf", "--force-rpath", "--set-rpath", f"/{LIBRARIES}", folder / file.name])


def pack_python(prefix: Path, out: Path) -> None:
    """Write a CPython, without what is of no use at run time, as a tree ``python``."""
    if not any((prefix / "bin").glob("python3.*")):
        raise PackError(f"{prefix} has no bin/python3. Name the folder that a CPython was installed into.")
    with tempfile.TemporaryDirectory(prefix="hpcml-python-") as name:
        tree = Path(name) / "python"
        shutil.copytree(prefix, tree, symlinks=True, ignore=_useless)
        for file in tree.rglob("*.so*"):
            if not file.is_symlink():
                run(["strip", "--strip-unneeded", file])
        for file in (tree / "bin").glob("python3.*[0-9]"):  # or it loads the library of the place that it was built for
            run(["patchelf", "--set-rpath", "$ORIGIN/../lib", file])
        run(["tar", "-C", name, "--owner=0", "--group=0", "-cf", out, "python"])


def _useless(folder: str, names: list[str]) -> set[str]:
    place = Path(folder)
    return {name for name in names for pattern in USELESS if (place / name).match(pattern)}


def build(python: Path, out: Path, places: Places) -> None:
    """Build the image with ``hpcml image build``, as the lab's user and with the lab's hpcml."""
    account = pwd.getpwnam(account_name(BUILDER))
    with tempfile.TemporaryDirectory(prefix="hpcml-gpu-image-", dir=places.top) as name:
        folder = Path(name)
        shutil.copy(DEFINITION, folder)
        pack_python(python, folder / "python.tar")
        for path in (folder, *folder.iterdir()):
            os.chown(path, account.pw_uid, account.pw_gid)
        become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups", "--inh-caps=-all",
                  str(places.venv / "bin/hpcml")]  # fmt: skip
        # Small, because it is sent about, and quick to read: xz packs better, and Python starts twice as slowly from it.
        environment = {"HOME": name, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "APPTAINER_TMPDIR": name,
                       "APPTAINER_MKSQUASHFS_ARGS": "-comp zstd -Xcompression-level 19"}  # fmt: skip
        values = {"PYTHON": f"{folder}/python.tar", "MIRROR": lab_image.mirror()}
        given = [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]
        words = ["image", "build", *given, DEFINITION.name, "image.sif"]
        run([*become, *words], environment=environment, cwd=folder)
        shutil.copy(folder / "image.sif", out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--python", type=Path, required=True, metavar="PREFIX",
                        help="a CPython built on this machine, of the GPU machine's version (pins.toml)")  # fmt: skip
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        pack_apptainer(options.out / "apptainer.txz")
        build(options.python.resolve(), options.out / "image.sif", Places.default())
    except (PackError, OSError, KeyError, subprocess.SubprocessError) as error:
        print(f"pack: {error}", file=sys.stderr)
        return 1
    for path in sorted(options.out.iterdir()):
        print(f"{path}  {path.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
