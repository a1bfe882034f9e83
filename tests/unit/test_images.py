"""What is read from an image's bytes, which program is there, and what speaks against an image."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcml.config_trust import HPCML
from hpcml.errors import ImageError, NotFoundError
from hpcml.images import build, check, definitions, problems, sif
from hpcml.node.hardware import python_environment, record
from hpcml.subprocesses import Answer
from tests.fixtures.images import sif_file
from tests.said import says

GPU = {
    "org.hpcml.kind": "rapids", "org.hpcml.cuda": "12", "org.hpcml.rapids": "26.10", "org.hpcml.dask": "2026.7.1",
    "org.hpcml.distributed": "2026.7.1", "org.hpcml.dask-cuda": "26.10.0", "org.hpcml.ucxx": "0.52.0",
}  # fmt: skip


# -- the file -------------------------------------------------------------------------------------------------------


def test_what_an_image_says_of_itself(tmp_path: Path) -> None:
    facts = sif.inspect(sif_file.make(tmp_path / "a.sif", GPU))
    assert (facts.kind, facts.cuda, facts.architecture, facts.help) == ("rapids", "12", "x86_64", "For tests.")
    assert facts.versions["ucxx"] == "0.52.0"
    assert facts.definition.startswith("Bootstrap: docker\nFrom: python:3.12-slim")
    assert (facts.created, facts.encrypted) == (1_700_000_000, False)
    assert facts.size == (tmp_path / "a.sif").stat().st_size


def test_an_image_without_metadata_has_no_labels(tmp_path: Path) -> None:
    facts = sif.inspect(sif_file.make(tmp_path / "a.sif", None, arch="04"))
    assert (facts.labels, facts.definition, facts.architecture) == ({}, "", "aarch64")


def test_encryption_is_seen(tmp_path: Path) -> None:
    facts = sif.inspect(sif_file.make(tmp_path / "a.sif", file_system=5))
    assert words(facts) == [(says("the image is encrypted, but a batch job"), True)]


def damaged(path: Path, how: str) -> None:
    data = path.read_bytes()
    changed = {
        "empty": b"",
        "text": b"#!/bin/sh\necho hello\n" * 9,
        "header": data[:100],
        "table": data[:5000],
        "data": data[:-10],
        "counts": data[:88] + (10**9).to_bytes(8, "little") + data[96:],
        "json": data.replace(b'{"data"', b'{"data}'),
        "list": data.replace(sif_file.metadata(sif_file.SAID, "For tests."), b"[1]".ljust(len(sif_file.metadata(sif_file.SAID, "For tests.")))),
        "size": data[: 4096 + 17] + (2**62).to_bytes(8, "little") + data[4096 + 25 :],
    }  # fmt: skip
    assert changed[how] != data
    path.write_bytes(changed[how])


@pytest.mark.parametrize(
    ("how", "says"),
    [("empty", "The file is empty"), ("text", "not an image (SIF)"), ("header", "truncated within its header"),
     ("table", "truncated within its SIF descriptor table"), ("data", "truncated: "), ("counts", "header is invalid"),
     ("json", "metadata is not JSON"), ("list", "metadata is not a JSON object"), ("size", "truncated: ")],
)  # fmt: skip
def test_what_is_no_image_or_a_damaged_one(tmp_path: Path, how: str, says: str) -> None:
    path = sif_file.make(tmp_path / "a.sif")
    damaged(path, how)
    with pytest.raises(ImageError) as caught:
        sif.inspect(path)
    assert says in caught.value.message
    assert caught.value.place == str(path)
    assert caught.value.hint


def test_a_folder_and_a_missing_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="folder"):
        sif.inspect(tmp_path)
    with pytest.raises(NotFoundError, match="No such file"):
        sif.inspect(tmp_path / "nope.sif")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImageError, match="regular"):
        sif.inspect(tmp_path / "pipe")


# -- the program ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "shown", "arguments"),
    [("apptainer version 1.4.5", "Apptainer 1.4.5", True),
     ("apptainer version 1.1.9", "Apptainer 1.1.9", False),
     ("singularity-ce version 3.11.4", "SingularityCE 3.11.4", False),
     ("singularity version 3.8.7-1.el8", "Singularity 3.8.7", False),
     ("INFO:    a site's wrapper says hello\napptainer version 1.4.0", "Apptainer 1.4.0", True)],
)  # fmt: skip
def test_programs_are_told_apart(said: str, shown: str, arguments: bool) -> None:
    program = build.identify("/bin/x", said, HPCML)
    assert (str(program), program.takes_arguments) == (shown, arguments)


@pytest.mark.parametrize("said", ["2.6.1-dist", "GNU bash, version 5.2.15(1)-release", ""])
def test_other_programs_are_refused(said: str) -> None:
    with pytest.raises(ImageError, match=r"neither|too old"):
        build.identify("/bin/x", said, HPCML)


# -- what speaks against an image -----------------------------------------------------------------------------------


def facts(**labels: str) -> sif.Image:
    own = {f"org.hpcml.{name.replace('_', '-')}": value for name, value in labels.items()}
    return sif.Image(Path("a.sif"), 1, 0.0, "x86_64", own)


def words(of: sif.Image, cuda: str = "any", gpus: int = 0, machine: str = "x86_64") -> list[tuple[str, bool]]:
    found = problems.problems(of, cuda=cuda, gpus=gpus, machine=machine)
    assert all(problem.hint for problem in found)
    return [(problem.what, problem.fatal) for problem in found]


def rapids(**other: str) -> sif.Image:
    return facts(**{name.removeprefix("org.hpcml.").replace("-", "_"): value for name, value in GPU.items()} | other)


OLDER = {"rapids": "26.08", "dask": "2026.5.0", "distributed": "2026.5.0", "dask_cuda": "26.8.0", "ucxx": "0.51.0"}
OTHERS = "rapids 26.08 (not 26.10), dask 2026.5.0 (not 2026.7.1), distributed 2026.5.0 (not 2026.7.1), dask-cuda 26.8.0 (not 26.10.0), "
CUDA = "the image is built for CUDA 12, but gpu.cuda of the site is 13"


@pytest.mark.parametrize(("of", "asked", "found"), [
    (rapids(), {"cuda": "12", "gpus": 4}, []),
    (facts(kind="cpu", dask="2026.7.1", distributed="2026.7.1", python="3.11"), {}, []),
    (facts(kind="cpu"), {"gpus": 4}, [(says("the image has no GPU"), True)]),
    (rapids(), {"cuda": "13", "gpus": 4}, [(CUDA, True)]),
    (rapids(), {"cuda": "13"}, [(CUDA, False)]),
    (rapids(), {"cuda": "any", "gpus": 4}, []),
    (rapids(dask="2026.9.0"), {}, [(says("dask 2026.9.0 and distributed 2026.7.1"), True)]),
    (rapids(dask="2026.9.0", distributed="2026.9.0"), {}, [("the image's RAPIDS 26.10 needs dask 2026.7.1, distributed 2026.7.1, "
                                                            "not dask 2026.9.0, distributed 2026.9.0", True)]),
    (rapids(ucxx="0.50.0"), {}, [("the image's RAPIDS 26.10 needs ucxx 0.52.0, not ucxx 0.50.0", True)]),
    (rapids(**OLDER), {"cuda": "12", "gpus": 1}, [(f"the image has other package versions than hpcml image build installs: {OTHERS}ucxx 0.51.0 (not 0.52.0)", False)]),
    (facts(), {"machine": "aarch64"}, [(says("for x86_64, but this machine is aarch64"), True),  # the fatal come first
                                       (says("the image has no labels of hpcml, so"), False)]),
])  # fmt: skip
def test_what_speaks_against_an_image(of: sif.Image, asked: dict[str, Any], found: list[tuple[str, bool]]) -> None:
    assert words(of, **asked) == found


# -- definitions, by spython ----------------------------------------------------------------------------------------


def looked_at(text: str, **labels: str) -> list[tuple[str, str]]:
    found = check.of_the_definition(facts(**labels)._replace(definition=text))
    return [(finding.state, finding.words) for finding in found]


def test_labels_that_were_changed_afterwards() -> None:
    ((state, said),) = looked_at(sif_file.DEFINITION, kind="cpu", dask="2026.9.0")
    assert state == "bad"
    assert "states org.hpcml.dask 2026.7.1" in said


def test_what_spython_cannot_read_is_said_and_not_passed_over() -> None:
    ((state, said),) = looked_at("# a bootstrap of our own\nBootstrap: docker\nFrom: python:3.12\n")
    assert (state, "spython cannot read the definition" in said) == ("note", True)
    assert looked_at("Bootstrap: docker\n%post\n  true\n")[0] == (
        "note",
        says("spython finds no base image"),
    )


# -- the image at work ----------------------------------------------------------------------------------------------


def test_the_program_inside_an_image_needs_no_hpcml_and_no_new_python() -> None:
    assert python_environment.within(["/data", "/data/a.so", "/data2/a.so"], ["/data"]) == ["/data", "/data/a.so"]
    tree = ast.parse(Path(python_environment.__file__).read_text(), feature_version=(3, 9))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names
    printed = subprocess.run(
        [sys.executable, "-I", python_environment.__file__], capture_output=True, text=True, check=True, timeout=120
    )
    assert record.read(record.Contents, json.loads(printed.stdout.splitlines()[-1])).python.startswith("3.")


def test_what_an_image_prints_is_checked() -> None:
    ucx: dict[str, object] = {"version": "", "library": "", "modules": [], "transports": {}}
    texts = dict.fromkeys(("python", "verbs", "driver", "compute"), "")
    lists: dict[str, object] = {"absent": [], "outside": [], "library_path": []}
    contents = {**texts, **lists, "failed": {}, "packages": {}, "ucx": ucx}
    assert check._contents(Answer(0, f"noise\n{json.dumps(contents)}\n", "")) is not None
    assert check._contents(Answer(1, json.dumps(contents), "")) is None
    wrong: list[dict[str, object]] = [{"driver": 5}, {"ucx": "1.21"}, {"outside": [7]}, {"packages": {"dask": {}}}]
    for changed in wrong:
        assert check._contents(Answer(0, json.dumps(contents | changed), "")) is None
    for text in ("[" * 100_000, "7", ""):
        assert check._contents(Answer(0, text, "")) is None


def test_a_comment_of_a_definition_uses_no_argument() -> None:
    text = "Bootstrap: docker\n# the base is {{ BASE }}\nFrom: {{ IMAGE }}\n"
    assert definitions.Definition("a", Path("a.def"), text).used == {"IMAGE"}


# -- spython's client -----------------------------------------------------------------------------------------------


def test_why_spythons_client_neither_builds_nor_inspects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/images.md says so; if this fails, a newer spython may be good enough to be used."""
    client = pytest.importorskip("spython.main").Client
    monkeypatch.setattr(client, "quiet", True)
    image = sif_file.make(tmp_path / "old.sif", GPU)
    failing = tmp_path / "bin/singularity"
    failing.parent.mkdir()
    failing.write_text("#!/bin/sh\necho FATAL: full >&2\nexit 255\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{failing.parent}:/usr/bin:/bin")
    assert client.build(recipe=str(tmp_path / "a.def"), image=str(image), sudo=False, force=True) == str(image)
    assert "labels" not in str(client.inspect(str(image)))
    failing.rename(failing.with_name("apptainer"))
    monkeypatch.setenv("PATH", str(failing.parent))
    with pytest.raises(FileNotFoundError, match="singularity"):
        client.inspect(str(image))
    parameters = inspect.signature(client.build).parameters
    assert parameters["sudo"].default is True
    assert not [name for name in parameters if "time" in name]
