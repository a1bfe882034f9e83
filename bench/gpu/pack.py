#!/usr/bin/env python3
"""Pack RAPIDS, Dask, hpcml's needs and a Slurm for a GPU machine that has no network.

    python3 bench/gpu/pack.py OUT               download, blank foreign GPU code, compress, split (about 6 minutes)
    python3 bench/gpu/pack.py OUT --no-slurm    without Slurm's programs (for a machine that has its own)

OUT/part1 … OUT/partN each hold one file of at most --part-mib MiB. Bring all files into one folder on the GPU machine;
run.py --pack FOLDER puts them together. The versions are in pins.toml; README.md says what is left out and why.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import fatbin
import slurm_pack

HERE = Path(__file__).resolve().parent
NAME = "hpcml-gpu"
MANIFEST = "MANIFEST.json"
SMALLEST_LIBRARY = 1 << 20  # smaller files hold no GPU code worth the look
SMALLEST_TWIN = 1 << 16
# What is of no use at run time; `tests` are folders, and nothing outside tests imports from them.
USELESS_FOLDERS = ("include", "cmake", "tests", "__pycache__", "pkgconfig")
USELESS_FILES = ("*.a", "*.pxd", "*.pyx", "libucx/bin/io_demo", "libucx/bin/ucx_perftest*", "nvidia/libnvcomp/bin/*",
                 "libucx/lib/ucx/libucx_perftest*")  # fmt: skip
DEADLINE = 7200  # seconds for pip, and for compressing on a busy machine


class PackError(Exception):
    """The pack cannot be made or put together; the sentence says why and what to do."""


def requirements(pins: dict[str, Any], groups: Iterable[str]) -> list[str]:
    """Return the wheels of some groups."""
    wheels: dict[str, list[str]] = pins["wheels"]
    if unknown := [name for name in groups if name not in wheels]:
        raise PackError(f"There is no group {unknown[0]!r} in pins.toml. Use some of: {', '.join(wheels)}.")
    return [wheel for name in groups for wheel in wheels[name]]


def download(pins: dict[str, Any], wanted: list[str], folder: Path) -> None:
    """Fetch wheels, without what they say they need: the pins are complete."""
    abi = f"cp{pins['python'].replace('.', '')}"
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--only-binary=:all:", "--implementation", "cp", "--python-version", pins["python"]]  # fmt: skip
    words += [word for one in (abi, "abi3", "none") for word in ("--abi", one)]
    words += [word for one in pins["platforms"] for word in ("--platform", one)]
    done = subprocess.run([*words, "--dest", str(folder), *wanted], capture_output=True, text=True, check=False,
                          timeout=DEADLINE)  # fmt: skip
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise PackError(f"pip could not fetch the wheels: {' '.join(errors[:2]) or done.stderr[-500:]}")


def unzip(wheel: Path, site: Path) -> None:
    """Lay a wheel's modules into a folder; scripts, headers and shared data are not needed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for data in site.glob("*.data"):
        for inner in ("purelib", "platlib"):
            if (data / inner).is_dir():
                shutil.copytree(data / inner, site, dirs_exist_ok=True)
        shutil.rmtree(data)


def prune(site: Path) -> int:
    """Remove what is of no use at run time; return its bytes."""
    found = [path for name in USELESS_FOLDERS for path in site.rglob(name) if path.is_dir()]
    found += [path for pattern in USELESS_FILES for path in site.rglob(pattern) if path.is_file()]
    removed = 0
    for path in found:
        if path.is_dir():
            removed += sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            shutil.rmtree(path)
        elif path.exists():
            removed += path.stat().st_size
            path.unlink()
    return removed


def blank(site: Path, architecture: int) -> int:
    """Blank the other architectures' code in every CUDA library; return its bytes."""
    large = (path for path in sorted(site.rglob("*.so*")) if path.stat().st_size > SMALLEST_LIBRARY)
    blanked = 0
    for library in large:
        try:
            blanked += fatbin.keep_one_architecture(library, architecture)
        except fatbin.FatbinError as error:
            print(f"pack: left as it is: {library.relative_to(site)}: {error}", file=sys.stderr)
    return blanked


def link_twins(folder: Path) -> int:
    """Make files of equal content one file with several names (wheels know no links); return the bytes saved."""
    by_size = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size >= SMALLEST_TWIN:
            by_size[path.stat().st_size].append(path)
    saved = 0
    for size, paths in by_size.items():
        first: dict[str, Path] = {}
        for path in paths if len(paths) > 1 else []:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest in first:
                path.unlink()
                os.link(first[digest], path)
                saved += size
            first.setdefault(digest, path)
    return saved


def split(source: BinaryIO, largest: int) -> Iterator[bytes]:
    """Yield a stream's content in pieces of at most ``largest`` bytes."""
    while piece := source.read(largest):
        yield piece


def part_name(digest: str, number: int, count: int) -> str:
    """Return the name of a part's file."""
    return f"{NAME}-{digest}.{number}-of-{count}"


def write_parts(packed: Path, out: Path, digest: str, largest: int) -> list[Path]:
    """Split a file over OUT/part1 … OUT/partN; the file is removed."""
    count = -(-packed.stat().st_size // largest)
    parts = []
    with packed.open("rb") as source:
        for number, piece in enumerate(split(source, largest), 1):
            folder = out / f"part{number}"
            folder.mkdir()
            parts.append(folder / part_name(digest, number, count))
            parts[-1].write_bytes(piece)
    packed.unlink()
    return parts


def find_parts(folder: Path) -> list[Path]:
    """Return the parts below a folder, in order.

    Raises
    ------
    PackError
        If there are none, one is missing, or they are of several packs.
    """
    found: dict[tuple[str, int], dict[int, Path]] = defaultdict(dict)
    for path in folder.rglob(f"{NAME}-*.*-of-*"):
        digest, _, numbers = path.name.removeprefix(f"{NAME}-").partition(".")
        number, _, count = numbers.partition("-of-")
        found[digest, int(count)][int(number)] = path
    if len(found) != 1:
        what = "no part of a pack" if not found else "parts of several packs"
        raise PackError(f"{folder} holds {what}. Bring all parts of one pack (pack.py) there.")
    (_, whole), parts = next(iter(found.items()))
    if missing := [str(number) for number in range(1, whole + 1) if number not in parts]:
        raise PackError(f"{folder} lacks part {', '.join(missing)} of {whole}. Bring it there too.")
    return [parts[number] for number in range(1, whole + 1)]


def unpack(folder: Path, target: Path) -> Path:
    """Put the parts below a folder together in TARGET/DIGEST, unless that is done; return it."""
    parts = find_parts(folder)
    digest = parts[0].name.removeprefix(f"{NAME}-").partition(".")[0]
    done = target / digest
    if done.exists():
        return done
    unfinished = target / f".{digest}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    script = 'set -o pipefail; cat "${@:2}" | xz -dcT0 | tar -xf - -C "$1"'
    words = ["bash", "-c", script, "unpack", str(unfinished), *map(str, parts)]
    status = subprocess.run(words, check=False, timeout=DEADLINE).returncode
    if status:
        raise PackError(f"The parts in {folder} could not be unpacked (exit status {status}). Make the pack again.")
    unfinished.rename(done)
    return done


def compress(folder: Path, packed: Path, preset: str) -> None:
    """Write a folder as a tar archive through xz on all processors; equal content gives an equal archive."""
    script = ('set -o pipefail; tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$1" -cf - . '
              '| xz -T0 --x86 --lzma2=preset="$3" >"$2"')  # fmt: skip
    subprocess.run(["bash", "-c", script, "pack", str(folder), str(packed), preset], check=True, timeout=DEADLINE)


def make(options: argparse.Namespace) -> int:
    """Make the pack and print what came of it."""
    pins = tomllib.loads((HERE / "pins.toml").read_text())
    groups = [*pins["groups"]["default"], *options.group]
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"pack: {time.monotonic() - started:4.0f} s  {text}", flush=True)

    shutil.rmtree(options.out, ignore_errors=True)
    wheels, staged = options.out / ".wheels", options.out / ".staged"
    site = staged / "site"
    for folder in (wheels, site):
        folder.mkdir(parents=True)
    download(pins, [*requirements(pins, groups), *options.also], wheels)
    names = sorted(wheels.glob("*.whl")) + options.wheel
    say(f"{len(names)} wheels, {_mib(wheels)} MiB")
    for wheel in names:
        unzip(wheel, site)
    pruned, blanked = prune(site), blank(site, options.architecture)
    slurm = slurm_pack.collect(staged / "slurm") if options.slurm else ""
    saved = link_twins(staged)
    say(
        f"removed {pruned >> 20} MiB, blanked {blanked >> 20} MiB of other GPUs' code, linked {saved >> 20} MiB of twins"
    )
    manifest = {"wheels": [wheel.name for wheel in names], "architecture": options.architecture, "slurm": slurm,
                "python": pins["python"], "groups": groups}  # fmt: skip
    text = json.dumps(manifest, indent=1) + "\n"
    (staged / MANIFEST).write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    packed = options.out / ".packed"
    compress(staged, packed, options.preset)
    size = packed.stat().st_size
    parts = write_parts(packed, options.out, digest, options.part_mib << 20)
    (options.out / MANIFEST).write_text(text)
    say(
        f"{size / 2**20:.1f} MiB in {len(parts)} parts: {', '.join(f'{part.stat().st_size / 2**20:.1f}' for part in parts)}"
    )
    shutil.rmtree(wheels)
    shutil.rmtree(staged)
    return 0


def _mib(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) >> 20


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and make the pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write (what is in it is removed)")
    parser.add_argument(
        "--group", action="append", default=[], help="one more group of pins.toml, e.g. plot (repeatable)"
    )
    parser.add_argument(
        "--also", action="append", default=[], metavar="REQUIREMENT", help="one more wheel (repeatable)"
    )
    parser.add_argument("--wheel", action="append", default=[], type=Path, metavar="FILE", help="a wheel of your own")
    parser.add_argument(
        "--architecture", type=int, default=90, help="GPU architecture to keep (default 90: H100, H200)"
    )
    parser.add_argument("--part-mib", type=int, default=56, help="size of a part (default 56)")
    parser.add_argument("--preset", default="6", help="xz's preset (default 6; 1 is quick, 9e is small)")
    parser.add_argument("--no-slurm", dest="slurm", action="store_false", help="leave Slurm's programs out")
    try:
        return make(parser.parse_args(arguments))
    except (PackError, slurm_pack.SlurmPackError) as error:
        print(f"pack: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
