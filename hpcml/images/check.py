"""Check an image: its file and labels, its definition by spython, and what it really holds by starting it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpcml import assets, container_errors, files, subprocesses, units
from hpcml.errors import ImageError
from hpcml.images import program as images

GOOD, NOTE, BAD = "good", "note", "bad"
_ANEW = "Build it anew from hpcml's definition."
_TIMEOUT = 300.0  # seconds: a first start from a shared file system reads gigabytes, and cuDF is imported
_RDMA = re.compile(r"(rc|dc|ud)_(mlx5|verbs)")  # UCX's transports over InfiniBand and RoCE


class Finding(NamedTuple):
    """One thing that was looked at: good, a note, or bad; in words, with what to do."""

    subject: str
    state: str
    words: str
    hint: str = ""


def of_the_file(facts: images.ImageFacts, *, cuda: str, gpus: int) -> Iterator[Finding]:
    """Yield what the file and its labels show."""
    yield Finding("file", GOOD, f"a SIF of {units.format_bytes(facts.size)} for {facts.architecture or 'any machine'}")
    known = images.pins()
    found = images.problems(facts, cuda=cuda, gpus=gpus, machine=images.machine(), pinned=known)
    for problem in found:
        yield Finding("labels", BAD if problem.fatal else NOTE, problem.what, problem.hint)
    if not found:
        said = ", ".join(f"{name} {value}" for name, value in facts.versions.items())
        yield Finding("labels", GOOD, f"kind {facts.kind}: {said or 'no versions'}")


# -- the definition -------------------------------------------------------------------------------------------------


def of_the_definition(facts: images.ImageFacts) -> Iterator[Finding]:
    """Yield what spython finds in the definition that the image was built from."""
    text = facts.definition
    if not text:
        yield Finding("definition", NOTE, "the image holds no definition: how it was made is not known")
        return
    found = re.search(r"^[ \t]*bootstrap[ \t]*:[ \t]*(\S+)", text, re.IGNORECASE | re.MULTILINE)
    if found and found[1].lower() != "docker":
        yield Finding("definition", NOTE, f"spython reads none that begin with {found[1]}: not looked at")
        return
    try:
        stages, warnings = _parse(text, dockerfile=found is None)
    except ModuleNotFoundError:
        yield Finding("definition", NOTE, "spython is not installed: not looked at", "pip install 'hpcml[image]'")
        return
    except ImageError as error:
        # Apptainer built from it all the same: this is spython's trouble and no reason against the image.
        yield Finding("definition", NOTE, error.message[:1].lower() + error.message[1:], error.hint)
        return
    for warning in warnings:
        yield Finding("definition", NOTE, f"spython warns: {warning}")
    yield from _of_the_stages(stages, [] if found is None else _bases(text), facts)


def _bases(text: str) -> list[str]:
    """Return what the stages of a definition start from, by the lines before their first section."""
    found, header = [], False
    for line in text.splitlines():
        if match := re.match(r"\s*(bootstrap|from)\s*:\s*([^\s#]+)", line, re.IGNORECASE):
            header = header or match[1].lower() == "bootstrap"
            found += [match[2]] if header and match[1].lower() == "from" else []
        elif line.lstrip().startswith("%"):
            header = False
    return found


@contextlib.contextmanager
def _listening(said: io.StringIO) -> Iterator[None]:
    """Collect what is printed, also by spython's logger, which took the streams when it was imported."""
    from spython.logger import bot  # type: ignore[import-untyped,unused-ignore]

    kept = bot.errorStream, bot.outputStream
    bot.errorStream = bot.outputStream = said
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield
    finally:
        bot.errorStream, bot.outputStream = kept


def _parse(text: str, *, dockerfile: bool) -> tuple[dict[str, Any], list[str]]:
    """Return spython's recipes by stage, and its warnings; its silence, its printing and its exits become errors.

    Its parser searches every line for ``from:``, those of %post and comments too, and then says nothing: what it takes
    for the bases is compared with the definition's headers.

    Raises
    ------
    ModuleNotFoundError
        Without spython.
    ImageError
        If it cannot read the text.
    """
    from spython.main.parse.parsers import DockerParser, SingularityParser  # type: ignore[import-untyped,unused-ignore]

    said = io.StringIO()
    hint = "Compare it with a definition that ships with hpcml (hpcml image --help names them)."
    with tempfile.NamedTemporaryFile("w", suffix=".def") as file:
        file.write(text)
        file.flush()
        try:
            with _listening(said):
                stages = (DockerParser if dockerfile else SingularityParser)(file.name).recipe
        except (Exception, SystemExit) as error:  # it raises whatever its code stumbles over
            words = str(error) or type(error).__name__
            raise ImageError(
                f"spython cannot read the definition: {words}", hint=hint, quote=images.last_lines(said.getvalue())
            ) from error
    if not isinstance(stages, dict) or not stages:
        raise ImageError("spython finds nothing in the definition", hint=hint, quote=images.last_lines(said.getvalue()))
    read, wanted = [str(stage.fromHeader or "") for stage in stages.values()], _bases(text)
    if (
        not dockerfile and any(read) and list(map(str.lower, wanted)) != list(map(str.lower, read))
    ):  # it writes small letters
        words = f"spython reads {', '.join(read)!a} where the definition starts from {', '.join(wanted)!a}"
        raise ImageError(words, hint="A line of %post or a comment has 'from:' in it. Word it otherwise.")
    # Nothing here depends on the runscript.
    warned = [line for line in said.getvalue().splitlines() if line.startswith("WARNING") and "script" not in line]
    return stages, [line.removeprefix("WARNING").strip() for line in warned]


def _of_the_stages(stages: Mapping[str, Any], bases: Sequence[str], facts: images.ImageFacts) -> Iterator[Finding]:
    last = list(stages.values())[-1]
    named = list(bases or filter(None, (str(stage.fromHeader or "") for stage in stages.values())))
    moving = next((base for base in named if not re.search(r"[:@][^/]+$", base) or base.endswith(":latest")), "")
    base = moving or ", ".join(named)
    if not base:
        yield Finding("definition", NOTE, "spython finds nothing that it starts from", "Write From: IMAGE:VERSION.")
        return
    pairs = (line.split(None, 1) for line in last.labels if isinstance(line, str))
    stated = {pair[0]: pair[1].strip().strip('"') for pair in pairs if len(pair) == 2 and "{{" not in pair[1]}
    own = {name: value for name, value in stated.items() if name.startswith(images.PREFIX)}
    differ = sorted(name for name, value in own.items() if facts.labels.get(name, value) != value)
    if differ:
        name = differ[0]
        yield Finding(
            "definition",
            BAD,
            f"it says {name} {stated[name]}, the image's label is {facts.labels[name]}",
            "The image was changed after it was built: build it anew.",
        )
    if moving:
        yield Finding(
            "definition",
            NOTE,
            f"it starts from {base}, which is another image every month",
            "Name a version: the same build gives the same image then.",
        )
    if not differ and not moving:
        yield Finding("definition", GOOD, f"starts from {base}, {len(last.install)} commands, labels as stated")


# -- the image at work ----------------------------------------------------------------------------------------------


def at_work(
    facts: images.ImageFacts, program: images.Program, environment: Mapping[str, str], *, gpu: bool
) -> Iterator[Finding]:
    """Yield what the image shows when it is started on this machine.

    Raises
    ------
    ImageError
        If the program cannot be started.
    """
    gpu = gpu and bool(facts.cuda or not facts.kind)  # an image without GPU parts was found out by its labels
    probe = (assets.package_root() / "hpcml/node/hardware/probe_image.py").read_text()
    start = [program.path, "exec", "--cleanenv", *(["--nv"] if gpu else []), str(facts.path)]
    answer = images.ask([*start, "python3", "-c", probe, *(["gpu"] if gpu else [])], environment, _TIMEOUT)
    found = _facts(answer)
    if found is None:
        yield _no_start(answer, program)
        return
    yield Finding("starts", GOOD, f"with {program}, Python {found['python']}")
    yield from _of_the_packages(found, facts, gpu=gpu)
    yield from _of_the_hosts(found, program, environment)
    if gpu or facts.kind == "rapids":
        devices = images.ask([*start, "ucx_info", "-d"], environment, _TIMEOUT)
        yield from _of_the_wires(found, devices)
    if gpu:
        yield from _of_the_gpu(found, facts)


def _facts(answer: subprocesses.Answer) -> dict[str, Any] | None:
    lines = answer.out.strip().splitlines()
    if answer.code != 0 or not lines:
        return None
    try:
        found = files.parsed(json.loads, lines[-1])
    except ValueError:
        return None  # told by the caller, with the words that came instead
    return found if isinstance(found, dict) and _is_probe(found) else None


def _is_probe(found: dict[str, Any]) -> bool:
    """Whether what the image's Python printed is what the probe prints: the image may have one of its own."""
    texts, tables, lists = (
        ("python", "driver", "compute", "verbs"),
        ("failed", "versions"),
        ("absent", "outside", "library_path", "ucx_modules"),
    )
    return (
        all(isinstance(found.get(name), str) for name in texts)
        and all(isinstance(found.get(name), dict) for name in tables)
        and all(isinstance(found.get(name), list) for name in lists)
        and all(isinstance(item, str) for name in lists for item in found[name])
        and all(isinstance(item, str) for name in tables for item in found[name].values())
        and re.fullmatch(r"(\d{1,6}(\.\d+)*)?", found["driver"]) is not None
    )


def _no_start(answer: subprocesses.Answer, program: images.Program) -> Finding:
    if answer.code is None:
        return Finding("starts", BAD, f"it did not answer within {units.format_seconds(_TIMEOUT)}", "Is the disk slow?")
    if known := container_errors.reason(answer.text):
        return Finding("starts", BAD, known.what, known.hint)
    said = " / ".join(images.last_lines(answer.err or answer.out, 2)) or f"exit status {answer.code}"
    return Finding("starts", BAD, f"{program} cannot run Python in it: {said}", "Try it: apptainer exec IMAGE python3.")


def _of_the_packages(found: Mapping[str, Any], facts: images.ImageFacts, *, gpu: bool) -> Iterator[Finding]:
    failed: dict[str, str] = found["failed"]
    absent = [name for name, why in failed.items() if why == f"ModuleNotFoundError: No module named '{name}'"]
    if absent:
        yield Finding("imports", BAD, f"not there: {', '.join(absent)}", _ANEW)
    for name, why in ((name, why) for name, why in failed.items() if name not in absent):
        yield Finding("imports", BAD, f"{name} cannot be imported: {why}", _ANEW)
    if facts.kind == "rapids" and found["absent"] and not gpu:
        yield Finding("imports", BAD, f"not there: {', '.join(found['absent'])}", _ANEW)
    elif not failed:
        yield Finding("imports", GOOD, "Dask, cryptography" + (" and RAPIDS" if gpu else ""))
    stated = {name: value for name, value in facts.versions.items() if name in found["versions"]}
    wrong = {name: value for name, value in stated.items() if found["versions"][name] != value}
    if facts.versions.get("python", found["python"]) != found["python"]:
        wrong["python"] = facts.versions["python"]
        found["versions"]["python"] = found["python"]
    for name, value in wrong.items():
        yield Finding("versions", BAD, f"its label says {name} {value}, it holds {found['versions'][name]}", _ANEW)
    if not wrong:
        said = ", ".join(f"{name} {value}" for name, value in found["versions"].items())
        yield Finding("versions", GOOD, f"{said}{', as labelled' if stated else ''}")


def _of_the_hosts(
    found: Mapping[str, Any], program: images.Program, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield what of the host got into the image's processes."""
    prefixes = ("APPTAINERENV_", "SINGULARITYENV_") if program.kind == "apptainer" else ("SINGULARITYENV_",)
    set_here = [f"{prefix}LD_LIBRARY_PATH" for prefix in prefixes if environment.get(f"{prefix}LD_LIBRARY_PATH")]
    for name in set_here:
        yield Finding("host", NOTE, f"{name} puts libraries of this machine before the image's", f"unset {name}")
    if found["outside"]:
        words = f"it uses files of this machine: {', '.join(found['outside'][:3])}"
        yield Finding("host", BAD, words, "Set PYTHONNOUSERSITE=1 in %environment, or do not bind that folder.")
    elif found["library_path"] and not set_here:
        yield Finding(
            "host",
            NOTE,
            f"LD_LIBRARY_PATH names this machine's folders: {', '.join(found['library_path'])}",
            "Take them out of %environment.",
        )
    elif not set_here:
        yield Finding("host", GOOD, "no library or module of this machine is in use")


def _of_the_wires(found: Mapping[str, Any], devices: subprocesses.Answer) -> Iterator[Finding]:
    transports = sorted(set(re.findall(r"Transport: (\S+)", devices.out)))
    fast = [name for name in transports if _RDMA.fullmatch(name)]
    if fast:
        yield Finding("ucx", GOOD, f"speaks InfiniBand here: {', '.join(fast)}")
    elif "ib" in found["ucx_modules"]:
        yield Finding("ucx", GOOD, f"has InfiniBand; on this machine it can use {', '.join(transports) or 'nothing'}")
    else:
        yield Finding(
            "ucx",
            BAD,
            "it has no InfiniBand: UCX would use TCP between nodes, without a word",
            "Build rapids-cu12 or rapids-cu13: conda-forge's ucx with rdma-core.",
        )
    if found["verbs"]:
        yield Finding("rdma-core", BAD, f"libibverbs cannot be loaded: {found['verbs']}", "Install rdma-core in it.")
    else:
        yield Finding("rdma-core", GOOD, "libibverbs is there")


def _of_the_gpu(found: Mapping[str, Any], facts: images.ImageFacts) -> Iterator[Finding]:
    driver = str(found["driver"])
    need = images.pins().get(f"driver-cuda{facts.cuda}", "")
    if not driver:
        yield Finding("gpu", BAD, "NVIDIA's driver cannot be asked", "Check it on a node with GPUs, with srun.")
    elif need and int(driver.partition(".")[0]) < int(need):
        hint = "Use an image of rapids-cu12." if facts.cuda == "13" else "Ask the site for a newer driver."
        yield Finding("gpu", BAD, f"the driver is {driver}, and CUDA {facts.cuda} needs {need} or newer", hint)
    elif found["compute"]:
        yield Finding("gpu", BAD, f"cuDF cannot add three numbers: {found['compute']}", "See imports above.")
    else:
        yield Finding("gpu", GOOD, f"cuDF works on one GPU, driver {driver}")
