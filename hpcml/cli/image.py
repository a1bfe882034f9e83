"""``hpcml image``: build images, show what they are, list them, and check that they serve."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import terminal, units
from hpcml.cli import common
from hpcml.errors import IMAGE, ConfigError, HpcmlError, ImageError, NotFoundError, StorageError
from hpcml.images import build, check, definitions, sif
from hpcml.runs import directories
from hpcml.sites import settings_layers
from hpcml.terminal import say, say_fitted, shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

    from hpcml.sites.lookup import LoadedSite

_CONTAINER = ("runtime", "container")


def add_options(parser: ArgumentParser) -> None:
    """Add a parser for each of ``build``, ``show``, ``check`` and ``ls``."""
    usage = {
        "build": "[OPTIONS] DEFINITION [OUT.sif]",
        "show": "[OPTIONS] IMAGE",
        "check": "[OPTIONS] [--gpu] IMAGE",
        "ls": "[OPTIONS] [FOLDER…]",
    }
    parser.usage = "\n".join(f"hpcml image {what} {words}" for what, words in usage.items())
    shipped = ", ".join(definitions.shipped_definitions())
    parser.epilog = f"DEFINITION is a .def file or the name of a definition that ships with hpcml: {shipped}."
    verbs = parser.add_subparsers(prog="hpcml image", dest="what", metavar="build|show|check|ls", required=True)

    def add(what: str, text: str, action: Callable[[Namespace, LoadedSite], int]) -> ArgumentParser:
        description = f"{text[:1].upper()}{text[1:]}."
        verb = verbs.add_parser(
            what, help=text, description=description, usage=f"hpcml image {what} {usage[what]}", allow_abbrev=False
        )
        verb.set_defaults(action=action)
        common.add_site(verb, "site whose image and container settings hpcml uses")
        common.add_json(verb)
        if what in ("build", "check"):
            text = "name or path of Apptainer or Singularity (default: runtime.container in the profile, "
            text += "else the installed program)"
            verb.add_argument("--program", metavar="PROGRAM", default="", help=text)
        return verb

    build_ = add("build", "build an image, and a JSON file that describes the image", _build)
    build_.epilog = parser.epilog
    text = "a .def file, or the name of a definition that ships with hpcml"
    build_.add_argument("definition", metavar="DEFINITION", help=text)
    build_.add_argument(
        "out",
        metavar="OUT.sif",
        nargs="?",
        default="",
        help="file of the new image (default: the definition's name with .sif)",
    )
    build_.add_argument(
        "--fakeroot",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="build as root in a user namespace (default: yes, unless you are root)",
    )
    build_.add_argument(
        "--build-arg",
        action="append",
        metavar="NAME=VALUE",
        help="set a build argument of the definition (repeatable). Default: the definition's value; for MIRROR and "
        "PIP_INDEX, this machine's settings of apt and pip",
    )
    build_.add_argument("--force", action="store_true", help="replace an existing image")
    plain = build_.parse_known_args

    def intermixed(
        args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Take options between the names too: argparse's usual way would then miss OUT.sif."""
        build_.parse_known_args = plain  # type: ignore[method-assign]
        return build_.parse_known_intermixed_args(args, namespace)

    build_.parse_known_args = intermixed  # type: ignore[method-assign,assignment]
    show = add("show", "show what is in an image: kind, versions, labels and definition", _show)
    show.add_argument("image", metavar="IMAGE", help="a .sif file")
    check_ = add("check", "check an image's file, and test whether the image starts", _check)
    check_.add_argument("image", metavar="IMAGE", help="a .sif file")
    check_.add_argument("--gpu", action="store_true", help="also test one GPU of this machine")
    ls = add("ls", "list the images in one or more folders", _ls)
    ls.add_argument(
        "folders", metavar="FOLDER", nargs="*", help="folder to list (default: the folder of the profile's image)"
    )


def run(options: Namespace) -> int:
    """``hpcml image build|show|check|ls``."""
    loaded = common.load_site(options.site or "", common.here(), options.set or ())
    if loaded.layers.named(*_CONTAINER).origin.foreign:  # it does not say what is started here, on the login node
        container = f"{'.'.join(_CONTAINER)} of {loaded.project.path}"
        terminal.note(f"{container} applies to jobs, not to this command (for this command: --program)")
        runtime = loaded.site.runtime._replace(container="")
        loaded = loaded._replace(site=loaded.site._replace(runtime=runtime))
    return int(options.action(options, loaded))


def _program(options: Namespace, loaded: LoadedSite) -> build.Program:
    """Return the program for images that the user, or the site, names."""
    return build.find_program(options.program, loaded.site.runtime.container, loaded.layers.named(*_CONTAINER))


def _build(options: Namespace, loaded: LoadedSite) -> int:
    source = definitions.find_definition(options.definition, common.here())
    out = settings_layers.user_path(options.out or f"{source.name}.sif").absolute()
    tool = _program(options, loaded)
    given = build.parse_arguments(options.build_arg or ())
    order = build.prepare(source, out, tool, fakeroot=options.fakeroot, given=given, force=options.force)
    for note in order.notes:
        terminal.note(note)
    say(f"hpcml: {tool} builds {source.path.name} into {out}.", sys.stderr)

    common.end_by_signals()  # the build is a session of its own: nobody else would end it
    begin = time.monotonic()
    record = build.build(order, terminal.Raw(sys.stderr).write)
    if options.json:
        common.print_json({"image": str(out), **record})
    else:
        size = units.format_bytes(out.stat().st_size)
        say(f"{out}  {size}  {units.format_seconds(time.monotonic() - begin)}  {record['digest']}")
    return 0


def _show(options: Namespace, _: LoadedSite) -> int:
    image = sif.inspect(settings_layers.user_path(options.image).absolute())
    digest = build.digest(image.path)
    if options.json:
        table = {"image": image.path, "digest": digest, "kind": image.kind, "cuda": image.cuda}
        table |= {"versions": image.versions, **image._asdict()}
        common.print_json(table)
        return 0
    rows = [
        ("image", str(image.path)),
        ("size", units.format_bytes(image.size)),
        ("built", _date(image.created or image.modified)),
        ("machine", image.architecture or "unknown"),
        ("kind", image.kind or "not built by hpcml"),
        ("cuda", image.cuda),
        ("versions", ", ".join(f"{name} {value}" for name, value in image.versions.items())),
        ("digest", digest),
        ("help", " ".join(image.help.split())),
        *(
            ("label", f"{name} {image.labels[name]}")
            for name in sorted(image.labels)
            if not name.startswith(sif.PREFIX)
        ),
    ]
    for key, value in rows:
        if value:
            say(f"{key:<10} {value}")
    if image.definition:
        say("definition")
        for line in image.definition.splitlines():
            say(f"  | {line}")
    return 0


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _own_folder(setting: str) -> Path:
    """Return the folder of the profile's image, or the usual one."""
    try:
        return directories.runs_folder(setting or "~/.hpcml/images/x", settings_layers.process_environment()).parent
    except StorageError as error:
        message = "The image's path is not absolute, or contains an environment variable without a value"
        raise ConfigError(
            message, hint="Correct runtime.image in the profile.", place=f"runtime.image: {setting}"
        ) from error


def _ls(options: Namespace, loaded: LoadedSite) -> int:
    defaults = [] if options.folders else [_own_folder(loaded.site.runtime.image)]
    folders = [settings_layers.user_path(name) for name in options.folders] or defaults
    present = [folder for folder in folders if not defaults or folder.exists()]  # nobody said that the default is there
    listed = [_inspected(path) for folder in present for path in _images_in(folder)]
    if options.json:
        common.print_json([_row(image) for image in listed])
        return 0
    if not listed:
        say_fitted(f"There are no images in {', '.join(map(str, folders))}.", sys.stderr)
    names = [shown(_row(image)["image"]) for image in listed]
    width = max(map(len, names), default=0)
    for name, one in zip(names, listed, strict=True):
        say(f"{name:<{width}}  {one.message if isinstance(one, HpcmlError) else _in_words(one)}")
    return 0


def _images_in(folder: Path) -> list[Path]:
    """Return the files of images in a folder, by name."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".sif" and not path.name.startswith("."))
    except OSError as error:
        hint = "Name the folder of your images: hpcml image ls FOLDER."
        message = f"The folder cannot be listed: {error.strerror}"
        raise NotFoundError(message, place=str(folder), hint=hint) from error


def _inspected(path: Path) -> sif.Image | HpcmlError:
    """Return the image that a file has, or the error if it cannot be read."""
    try:
        return sif.inspect(path)
    except (ImageError, NotFoundError) as error:
        return error


def _in_words(image: sif.Image) -> str:
    """Return an image's kind, size, date and versions in a line."""
    versions = ", ".join(f"{key} {image.versions[key]}" for key in ("rapids", "dask") if key in image.versions)
    kind = f"{image.kind or '-'}{f' cuda {image.cuda}' if image.cuda else ''}"
    return f"{kind:<15} {units.format_bytes(image.size):>8}  {_date(image.modified)}  {versions}"


def _row(one: sif.Image | HpcmlError) -> dict[str, object]:
    if isinstance(one, HpcmlError):
        return {"image": one.place, "error": one.message}
    values = {key: getattr(one, key) for key in ("kind", "cuda", "size", "versions")}
    return {"image": str(one.path), **values, "modified": _date(one.modified)}


def _check(options: Namespace, loaded: LoadedSite) -> int:
    image = sif.inspect(settings_layers.user_path(options.image).absolute())
    findings = list(check.of_the_file(image, cuda=loaded.site.gpu.cuda, gpus=int(options.gpu)))
    findings += check.of_the_definition(image)
    try:
        tool = _program(options, loaded)
        findings += check.at_work(image, tool, gpu=options.gpu)
    except ImageError as error:
        reason = error.message[:1].lower() + error.message[1:]
        findings.append(check.Finding("starts", check.BAD, reason, error.hint))
    bad = [finding for finding in findings if finding.state == check.BAD]
    if options.json:
        table = {"image": str(image.path), "good": not bad, "findings": [row._asdict() for row in findings]}
        common.print_json(table)
    else:
        for finding in findings:
            say_fitted(finding.words, sys.stdout, first=f"{finding.subject:<11} {finding.state:<5} ", rest=" " * 18)
            if finding.hint:
                say_fitted(finding.hint, sys.stdout, first=f"{'':<18}→ ", rest=" " * 20)
    if bad:
        count = "one check" if len(bad) == 1 else f"{len(bad)} checks"
        say(f"hpcml: the image is not usable: {count} failed.", sys.stderr)
    return IMAGE if bad else 0
