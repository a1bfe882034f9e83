"""``hpcml image``: build images, show what they are, list them, and check that they serve."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hpcml import terminal, units
from hpcml.cli import common as commands
from hpcml.errors import IMAGE, ConfigError, HpcmlError, ImageError, NotFoundError, StorageError, UsageError
from hpcml.images import build, check, definition, program
from hpcml.images import facts as images
from hpcml.runs import directories
from hpcml.sites import layers, lookup
from hpcml.terminal import say, shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_TAKES = {"build": (1, 2), "show": (1, 1), "check": (1, 1), "ls": (0, 99)}
_ONLY_BUILD = ("fakeroot", "build_arg", "force")


def add_options(parser: ArgumentParser) -> None:
    """Add what this verb takes."""
    parser.usage = "hpcml image build [OPTIONS] DEFINITION [OUT.sif] | show IMAGE | check [--gpu] IMAGE | ls [FOLDER…]"
    parser.epilog = "DEFINITION is a .def file or one that ships with hpcml: cpu, rapids-cu12, rapids-cu13."
    commands.add_site(parser, "program and folder for images")
    commands.add_json(parser)
    parser.add_argument("what", metavar="build|show|check|ls", choices=("build", "show", "check", "ls"))
    parser.add_argument("names", metavar="NAME", nargs="*", help="definition and image to be, an image, or folders")
    parser.add_argument("--program", metavar="PROGRAM", help="apptainer or singularity (default: the one that is here)")
    parser.add_argument("--gpu", action="store_true", help="check: also on one GPU of this machine")
    parser.add_argument(
        "--fakeroot",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="build: as root of a namespace of your own (default: unless you are root)",
    )
    parser.add_argument("--build-arg", action="append", metavar="KEY=VALUE", help="build: of the definition")
    parser.add_argument("--force", action="store_true", help="build: replace an image that is there")
    # An option may stand before the names: argparse's usual way would then miss them.
    parser.parse_args = parser.parse_intermixed_args  # type: ignore[method-assign]


def run(options: Namespace) -> int:
    """``hpcml image build|show|check|ls``."""
    least, most = _TAKES[options.what]
    if not least <= len(options.names) <= most:
        missing = len(options.names) < least
        what = "DEFINITION" if options.what == "build" else "IMAGE"
        raise UsageError(
            f"{what} is missing" if missing else f"'{options.names[most]}' is one word too many",
            place=f"hpcml image {options.what}",
            hint="Try hpcml image --help.",
        )
    for name in _ONLY_BUILD:
        if options.what != "build" and getattr(options, name) not in (None, False):
            raise UsageError(
                f"--{name.replace('_', '-')} is for building", place=f"hpcml image {options.what}", hint="Leave it out."
            )
    if options.gpu and options.what != "check":
        raise UsageError("--gpu is for checking", place=f"hpcml image {options.what}", hint="Leave it out.")
    return {"build": _build, "show": _show, "check": _check, "ls": _ls}[options.what](options)


def _site(options: Namespace) -> tuple[lookup.LoadedSite, dict[str, str]]:
    """Return the site; a project's file does not say which program is started here, on the login node."""
    environment = layers.process_environment()
    loaded = commands.load_site(options.site or "", environment, commands.here(), options.set or ())
    if loaded.is_from_project("runtime.container"):
        terminal.note(f"runtime.container of {loaded.project} counts in jobs, not for this command (--program does)")
        runtime = loaded.site.runtime._replace(container="")
        loaded = loaded._replace(site=loaded.site._replace(runtime=runtime))
    return loaded, environment


def _build(options: Namespace) -> int:
    loaded, environment = _site(options)
    source = definition.find(options.names[0], commands.here())
    out = layers.user_path(options.names[1] if len(options.names) > 1 else f"{source.name}.sif").absolute()
    tool = program.find(options.program or "", environment, loaded.site.runtime.container)
    given = build.parse_arguments(options.build_arg or ())
    order = build.prepare(source, out, tool, environment, fakeroot=options.fakeroot, given=given, force=options.force)
    for note in order.notes:
        terminal.note(note)
    say(f"hpcml: {tool} builds {source.path.name} into {out}.", sys.stderr)

    for number in (signal.SIGTERM, signal.SIGHUP):  # the build is a session of its own: nobody else would end it
        signal.signal(number, _interrupted)
    begin = time.monotonic()
    record = build.build(order, environment, terminal.Raw(sys.stderr).write)
    if options.json:
        commands.print_json({"image": str(out), **record})
    else:
        size = units.format_bytes(out.stat().st_size)
        say(f"{out}  {size}  {units.format_seconds(time.monotonic() - begin)}  {record['digest']}")
    return 0


def _interrupted(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _facts(options: Namespace, environment: dict[str, str], container: str) -> images.ImageFacts:
    """Return the image's facts, with the help of a program where the file does not hold them and there is one."""
    path = layers.user_path(options.names[0]).absolute()
    facts = images.inspect(path)
    if facts.labels:
        return facts
    try:
        tool = program.find(options.program or "", environment, container)
    except ImageError:
        if options.program:
            raise
        return facts  # the file alone speaks
    return images.inspect(path, tool, environment)


def _show(options: Namespace) -> int:
    loaded, environment = _site(options)
    facts = _facts(options, environment, loaded.site.runtime.container)
    digest = _digest(facts.path)
    if options.json:
        table = {
            "image": str(facts.path),
            "digest": digest,
            "kind": facts.kind,
            "cuda": facts.cuda,
            "versions": facts.versions,
            **facts._asdict(),
            "path": str(facts.path),
        }
        commands.print_json(table)
        return 0
    others = [(name, value) for name, value in sorted(facts.labels.items()) if not name.startswith(images.PREFIX)]
    rows = [
        ("image", str(facts.path)),
        ("size", units.format_bytes(facts.size)),
        ("built", _date(facts.created or facts.modified)),
        ("machine", facts.architecture or "not said"),
        ("kind", facts.kind or "not one of hpcml's"),
        ("cuda", facts.cuda),
        ("versions", ", ".join(f"{name} {value}" for name, value in facts.versions.items())),
        ("digest", digest),
        ("help", " ".join(facts.help.split())),
        *(("label", f"{name} {value}") for name, value in others),
    ]
    for key, value in rows:
        if value:
            say(f"{key:<10} {value}")
    if facts.definition:
        say("definition")
        for line in facts.definition.splitlines():
            say(f"  | {line}")
    return 0


def _digest(path: Path) -> str:
    try:
        return build.digest(path)
    except OSError as error:
        raise NotFoundError(
            f"The image cannot be read: {error.strerror}", place=str(path), hint="Does its file system answer?"
        ) from error


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _own_folder(setting: str, environment: dict[str, str]) -> Path:
    """Return the folder of the profile's image, or the usual one."""
    try:
        return directories.runs_folder(setting or "~/.hpcml/images/x", environment).parent
    except StorageError as error:
        raise ConfigError(
            "The image's path is not absolute, or a variable in it is not set",
            hint="Correct it.",
            place=f"runtime.image: {setting}",
        ) from error


def _ls(options: Namespace) -> int:
    loaded, environment = _site(options)
    if options.names:
        folders = [layers.user_path(name) for name in options.names]
    else:
        folders = [_own_folder(loaded.site.runtime.image, environment)]
    rows: list[dict[str, object]] = []
    for folder in folders:
        if not options.names and not folder.exists():
            continue  # nobody said that it is there
        for found in images.list_images(folder):
            if isinstance(found, HpcmlError):
                rows.append({"image": found.place, "error": found.message})
            else:
                rows.append(
                    {
                        "image": str(found.path),
                        "kind": found.kind,
                        "cuda": found.cuda,
                        "size": found.size,
                        "versions": found.versions,
                        "modified": _date(found.modified),
                    }
                )
    if options.json:
        commands.print_json(rows)
        return 0
    if not rows:
        say(f"No images in {', '.join(map(str, folders))}.", sys.stderr)
    names = [shown(row["image"]) for row in rows]
    width = max(map(len, names), default=0)
    for name, row in zip(names, rows, strict=True):
        if "error" in row:
            say(f"{name:<{width}}  {row['error']}")
            continue
        versions = row["versions"]
        assert isinstance(versions, dict)
        words = ", ".join(f"{known} {versions[known]}" for known in ("rapids", "dask") if known in versions)
        kind = f"{row['kind'] or '-'}{f' cuda {cuda}' if (cuda := row['cuda']) else ''}"
        assert isinstance(row["size"], int)
        say(f"{name:<{width}}  {kind:<15} {units.format_bytes(row['size']):>8}  {row['modified']}  {words}")
    return 0


def _check(options: Namespace) -> int:
    loaded, environment = _site(options)
    site = loaded.site
    facts = _facts(options, environment, site.runtime.container)
    found = list(check.of_the_file(facts, cuda=site.gpu.cuda, gpus=int(options.gpu)))
    found += check.of_the_definition(facts)
    try:
        tool = program.find(options.program or "", environment, site.runtime.container)
        found += check.at_work(facts, tool, environment, gpu=options.gpu)
    except ImageError as error:
        words = error.message[:1].lower() + error.message[1:]
        found.append(check.Finding("starts", check.BAD, words, error.hint))
    bad = [finding for finding in found if finding.state == check.BAD]
    if options.json:
        table = {"image": str(facts.path), "good": not bad, "findings": [row._asdict() for row in found]}
        commands.print_json(table)
    else:
        columns = max(60, shutil.get_terminal_size((120, 24)).columns)
        for finding in found:
            lines = textwrap.wrap(shown(finding.words), columns - 18) or [""]
            say(f"{finding.subject:<11} {finding.state:<5} {lines[0]}")
            for line in lines[1:]:
                say(f"{'':<18}{line}")
            if finding.hint:
                say(f"{'':<18}→ {finding.hint}")
    if bad:
        count = "one thing is" if len(bad) == 1 else f"{len(bad)} things are"
        say(f"hpcml: the image cannot be used as it is: {count} bad.", sys.stderr)
    return IMAGE if bad else 0
