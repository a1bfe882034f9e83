"""Check an image: its file and labels, its definition by spython, and what it really holds by starting it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from hpcml import assets, safe_files, subprocesses, units
from hpcml.failures.rule import Where
from hpcml.failures.rules import meaning
from hpcml.gpu_vendor import VENDOR
from hpcml.images.build import Program, ask, last_lines
from hpcml.images.problems import machine, problems
from hpcml.images.sif import PREFIX, Image
from hpcml.node.hardware import record
from hpcml.node.hardware.record import NEEDS, Contents
from hpcml.sites.settings_layers import process_environment

GOOD, NOTE, BAD = "good", "note", "bad"
_ANEW = "Build the image again from hpcml's definition."
_PACKAGES = ("dask", "distributed", "dask-ml", "dask-cuda", "ucxx", "cudf")  # whose versions are shown
_ALONE = "import sys; sys.path[:] = filter(None, sys.path); exec(sys.argv.pop(1))"  # no module of the working folder
_TIMEOUT = 300.0  # seconds: a first start from a shared file system reads gigabytes, and cuDF is imported


class Finding(NamedTuple):
    """One thing that was looked at: good, a note, or bad; in words, with what to do."""

    subject: str
    state: str
    words: str
    hint: str = ""


def of_the_file(image: Image, *, cuda: str, gpus: int) -> Iterator[Finding]:
    """Yield the findings on the file and its labels."""
    yield Finding("file", GOOD, f"a SIF of {units.format_bytes(image.size)} for {image.architecture or 'any machine'}")
    against = problems(image, cuda=cuda, gpus=gpus, machine=machine())
    for problem in against:
        yield Finding("labels", BAD if problem.fatal else NOTE, problem.what, problem.hint)
    if not against:
        versions = ", ".join(f"{name} {value}" for name, value in image.versions.items())
        yield Finding("labels", GOOD, f"the image's kind is {image.kind}; its versions: {versions or 'none'}")


# -- the definition -------------------------------------------------------------------------------------------------


def of_the_definition(image: Image) -> Iterator[Finding]:
    """Yield the findings on the image's definition: its stages, commands and labels by spython.

    The bases are read from the headers: spython searches every line for ``from:``, those of %post and comments too.
    """
    text = image.definition
    begin = re.search(r"^[ \t]*bootstrap[ \t]*:[ \t]*(\S+)", text, re.IGNORECASE | re.MULTILINE)
    sentence = hint = ""
    if not text:
        sentence = "the image contains no definition: hpcml cannot check how it was built"
    elif begin and begin[1].lower() != "docker":
        sentence = f"spython cannot read definitions that begin with {begin[1]}: the definition was not checked"
    else:
        try:
            stages, warnings = _by_spython(text, dockerfile=begin is None)
        except ModuleNotFoundError:
            sentence, hint = "spython is not installed: the definition was not checked", "pip install 'hpcml[image]'"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it raises whatever its code stumbles over
            # Apptainer built from it all the same: this is spython's trouble and no reason against the image.
            sentence = f"spython cannot read the definition: {str(error) or type(error).__name__}"
            hint = "Compare the definition with hpcml's own definitions (see hpcml image --help)."
    if sentence:
        yield Finding("definition", NOTE, sentence, hint)
        return
    for warning in warnings:
        yield Finding("definition", NOTE, f"spython warns: {warning}")
    bases = _bases(text) if begin else [str(stage.fromHeader) for stage in stages if stage.fromHeader]
    if bases:
        yield from _of_the_last_stage(stages[-1], bases, image)
    else:
        yield Finding(
            "definition",
            NOTE,
            "spython finds no base image in the definition",
            "Write From: IMAGE:VERSION into the definition.",
        )


def _of_the_last_stage(stage: Any, bases: list[str], image: Image) -> Iterator[Finding]:
    pairs = (line.split(None, 1) for line in stage.labels if isinstance(line, str))
    stated = {pair[0]: pair[1].strip().strip('"') for pair in pairs if len(pair) == 2 and "{{" not in pair[1]}
    labels = ((name, value) for name, value in stated.items() if name.startswith(PREFIX))
    different = min((name for name, value in labels if image.labels.get(name, value) != value), default="")
    moving = [base for base in bases if not re.search(r"[:@][^/]+$", base) or base.endswith(":latest")]
    if different:
        sentence = (
            f"the definition states {different} {stated[different]}, but the image's label is {image.labels[different]}"
        )
        yield Finding("definition", BAD, sentence, "The image was changed after its build. Build the image again.")
    if moving:
        sentence = f"the definition's base image {moving[0]} can change over time"
        yield Finding("definition", NOTE, sentence, "Use a fixed version, so that each build gives the same image.")
    if not different and not moving:
        base = f"the base image is {', '.join(bases)}; number of build commands: {len(stage.install)}"
        sentence = f"{base}; the labels match the definition"
        yield Finding("definition", GOOD, sentence)


def _by_spython(text: str, *, dockerfile: bool) -> tuple[list[Any], list[str]]:
    """Return spython's recipe of each stage, and its warnings, which its logger keeps instead of printing them."""
    from spython.logger import bot  # type: ignore[import-untyped,unused-ignore]
    from spython.main.parse.parsers import DockerParser, SingularityParser  # type: ignore[import-untyped,unused-ignore]

    parser = (DockerParser if dockerfile else SingularityParser)(None, load=False)
    parser.lines = text.splitlines(keepends=True)
    bot.level, bot.colorize, bot.history = 0, False, []
    stages = list(parser.parse().values())
    # Nothing here depends on the runscript.
    warned = [line for line in bot.history if line.startswith("WARNING") and "script" not in line]
    return stages, [line.removeprefix("WARNING").strip() for line in warned]


def _bases(text: str) -> list[str]:
    """Return the base image of each stage of a definition, by the lines before its first section."""
    heads = re.findall(r"^[ \t]*bootstrap[ \t]*:.*?(?=^[ \t]*%|\Z)", text, re.IGNORECASE | re.MULTILINE | re.DOTALL)
    return [base for head in heads for base in re.findall(r"(?im)^[ \t]*from[ \t]*:[ \t]*([^\s#]+)", head)]


# -- the image at work ----------------------------------------------------------------------------------------------


def at_work(image: Image, program: Program, *, gpu: bool) -> Iterator[Finding]:
    """Yield the findings on the image when this machine starts it; raise ImageError if there is no such program."""
    gpu = gpu and bool(image.cuda or not image.kind)  # an image without GPU parts was found out by its labels
    probe = (assets.package_root() / "hpcml/node/hardware/python_environment.py").read_text()
    start = [program.path, "exec", "--cleanenv", *([VENDOR.image_option] if gpu else []), str(image.path)]
    answer = ask([*start, "python3", "-c", _ALONE, probe, *(["gpu"] if gpu else [])], _TIMEOUT, program.named)
    contents = _contents(answer)
    if contents is None:
        yield _no_start(answer, program)
        return
    yield Finding("starts", GOOD, f"with {program}, Python {contents.python}")
    yield from _of_the_packages(contents, image, gpu=gpu)
    yield from _of_the_versions(contents, image)
    yield from _of_the_hosts(contents, program)
    if gpu or image.kind == "rapids":
        devices = ask([*start, "ucx_info", "-d"], _TIMEOUT, program.named)
        yield from _of_the_transports(contents, devices)
    if gpu:
        yield _of_the_gpu(contents, image)


def _contents(answer: subprocesses.Answer) -> Contents | None:
    """Return the answer that the program in the image printed last; None if its last line is something else."""
    lines = answer.out.strip().splitlines()
    if answer.code != 0 or not lines:
        return None
    try:
        contents = record.read(Contents, safe_files.parsed(json.loads, lines[-1]))
    except ValueError:
        return None  # the caller reports it, with the output that came instead
    return contents if re.fullmatch(r"(\d{1,6}(\.\d+)*)?", contents.driver) else None


def _no_start(answer: subprocesses.Answer, program: Program) -> Finding:
    if answer.code is None:
        return Finding(
            "starts",
            BAD,
            f"Python in the image did not start within {units.format_seconds(_TIMEOUT)}",
            "The disk may be slow.",
        )
    if rule := meaning(answer.text, Where.IMAGE):
        return Finding("starts", BAD, rule.cause, rule.remedy)
    why = " / ".join(last_lines(answer.err or answer.out, 2)) or f"exit status {answer.code}"
    return Finding(
        "starts",
        BAD,
        f"{program} cannot run Python in the image: {why}",
        "Run Python yourself: apptainer exec IMAGE python3.",
    )


def _of_the_packages(contents: Contents, image: Image, *, gpu: bool) -> Iterator[Finding]:
    failed = contents.failed
    absent = [name for name, why in failed.items() if why == f"ModuleNotFoundError: No module named '{name}'"]
    if absent:
        yield Finding("imports", BAD, f"missing: {', '.join(absent)}", _ANEW)
    for name in (name for name in failed if name not in absent):
        yield Finding("imports", BAD, f"{name} cannot be imported: {failed[name]}", _ANEW)
    if image.kind == "rapids" and contents.absent and not gpu:
        yield Finding("imports", BAD, f"missing: {', '.join(contents.absent)}", _ANEW)
    elif not failed:
        yield Finding("imports", GOOD, "Dask, cryptography" + (" and RAPIDS" if gpu else ""))


def _of_the_versions(contents: Contents, image: Image) -> Iterator[Finding]:
    """Yield the findings on the image's versions, which its label lists."""
    versions = {name: contents.packages[name] for name in _PACKAGES if name in contents.packages}
    has = {**versions, "python": contents.python}
    stated = {name: value for name, value in image.versions.items() if name in has}
    wrong = [name for name, value in stated.items() if has[name] != value]
    for name in wrong:
        yield Finding(
            "versions", BAD, f"the image's label says {name} {stated[name]}, but the image contains {has[name]}", _ANEW
        )
    if not wrong:
        listed = ", ".join(f"{name} {value}" for name, value in versions.items())
        as_labelled = ", as labeled" if stated.keys() & versions.keys() else ""
        yield Finding("versions", GOOD, f"{listed}{as_labelled}")


def _of_the_hosts(contents: Contents, program: Program) -> Iterator[Finding]:
    """Yield the findings on variables and files of the host in the image's processes."""
    names = (f"{prefix}ENV_LD_LIBRARY_PATH" for prefix in program.prefixes)
    set_here = [name for name in names if process_environment().get(name)]
    for name in set_here:
        yield Finding(
            "host", NOTE, f"{name} puts libraries of this machine before the image's libraries", f"unset {name}"
        )
    if contents.outside:
        sentence = f"the image uses files of this machine: {', '.join(contents.outside[:3])}"
        yield Finding(
            "host",
            BAD,
            sentence,
            "Set PYTHONNOUSERSITE=1 in the definition's %environment, or do not bind the folder of these files.",
        )
    elif contents.library_path and not set_here:
        sentence = f"LD_LIBRARY_PATH contains folders of this machine: {', '.join(contents.library_path)}"
        yield Finding("host", NOTE, sentence, "Remove these folders from the definition's %environment.")
    elif not set_here:
        yield Finding("host", GOOD, "the image uses no library or Python module of this machine")


def _of_the_transports(contents: Contents, devices: subprocesses.Answer) -> Iterator[Finding]:
    transports = sorted(set(re.findall(r"Transport: (\S+)", devices.out)))
    ucx = contents.ucx
    name = f"UCX {ucx.version} in {ucx.library.rpartition('/')[0]}" if ucx.library else "UCX"
    here = f"on this machine UCX can use {', '.join(transports) or 'nothing'}"
    if fast := [name for name in transports if units.RDMA.fullmatch(name)]:
        yield Finding("ucx", GOOD, f"{name} uses InfiniBand on this machine: {', '.join(fast)}")
    elif "ib" in ucx.modules:
        yield Finding("ucx", GOOD, f"{name} supports InfiniBand; {here}")
    else:
        sentence = f"the image lacks InfiniBand support. {name} would silently use TCP between nodes; {here}"
        hint = (
            "Build an image from the definition rapids-cu12 or rapids-cu13 (they use conda-forge's ucx). "
            "For a definition with -wheels in its name, add --build-arg UCX_SOURCE=FILE."
        )
        yield Finding("ucx", BAD, sentence, hint)
    if contents.verbs:
        yield Finding(
            "rdma-core", BAD, f"libibverbs cannot be loaded: {contents.verbs}", "Install rdma-core in the image."
        )
    else:
        yield Finding("rdma-core", GOOD, "libibverbs is installed")


def _of_the_gpu(contents: Contents, image: Image) -> Finding:
    driver = contents.driver
    need = NEEDS[int(image.cuda)].driver if image.cuda in map(str, NEEDS) else 0
    if not driver:
        sentence = f"{VENDOR.name}'s driver does not respond on this machine"
        return Finding("gpu", BAD, sentence, "Use srun to run this check on a node with GPUs.")
    if record.major(driver) < need:
        hint = (
            "Use an image from the definition rapids-cu12."
            if image.cuda == "13"
            else "Ask the site for a newer GPU driver."
        )
        return Finding(
            "gpu", BAD, f"the GPU driver is {driver}, but CUDA {image.cuda} needs driver {need} or newer", hint
        )
    if contents.compute:
        return Finding(
            "gpu", BAD, f"cuDF cannot add three numbers: {contents.compute}", "See the check 'imports' above."
        )
    return Finding("gpu", GOOD, f"cuDF works on one GPU (driver {driver})")
