"""What is read from an image's bytes, which program is there, and what speaks against an image."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcml.errors import ImageError, NotFoundError
from hpcml.images import build, check, sif
from hpcml.node.hardware import record, software
from hpcml.subprocesses import Answer
from tests.fixtures.images import sif_file

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


@pytest.mark.parametrize(("code", "name"), [("02", "x86_64"), ("04", "aarch64"), ("06", "ppc64le"), ("00", "")])
def test_the_architecture_is_the_kernel_s_name_of_it(tmp_path: Path, code: str, name: str) -> None:
    assert sif.inspect(sif_file.make(tmp_path / "a.sif", arch=code)).architecture == name


def test_an_image_without_metadata_has_no_labels(tmp_path: Path) -> None:
    facts = sif.inspect(sif_file.make(tmp_path / "a.sif", None))
    assert (facts.labels, facts.definition, facts.architecture) == ({}, "", "x86_64")


def test_parts_that_were_deleted_do_not_count(tmp_path: Path) -> None:
    path = sif_file.make(tmp_path / "a.sif", GPU)
    data = bytearray(path.read_bytes())
    data[4096 + sif_file.DESCRIPTOR + 4] = 0  # the flag "used" of the second part, the metadata
    path.write_bytes(bytes(data))
    assert sif.inspect(path).labels == {}


def test_encryption_is_seen(tmp_path: Path) -> None:
    facts = sif.inspect(sif_file.make(tmp_path / "a.sif", file_system=5))
    assert [problem.what for problem in sif.problems(facts, cuda="any", gpus=0, machine="x86_64")] == [
        "the image is encrypted, but a batch job has no key for it"
    ]


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


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    whole = sif_file.make(tmp_path / "a.sif").read_bytes()
    path = tmp_path / "b.sif"
    for length in (*range(0, 200, 7), 4096, 20000, 32768, 33000, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ImageError):
            sif.inspect(path)


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
     ("apptainer version 1.3.2-1.el9", "Apptainer 1.3.2", True),
     ("apptainer version 1.1.9", "Apptainer 1.1.9", False),
     ("singularity-ce version 4.1.0-jammy", "SingularityCE 4.1.0", True),
     ("singularity-ce version 3.11.4", "SingularityCE 3.11.4", False),
     ("singularity version 3.8.7-1.el8", "Singularity 3.8.7", False),
     ("INFO:    a site's wrapper says hello\napptainer version 1.4.0", "Apptainer 1.4.0", True)],
)  # fmt: skip
def test_programs_are_told_apart(said: str, shown: str, arguments: bool) -> None:
    program = build.identify("/bin/x", said)
    assert (str(program), program.takes_arguments) == (shown, arguments)


@pytest.mark.parametrize("said", ["2.6.1-dist", "GNU bash, version 5.2.15(1)-release", "", "usage: singularity [--color]"])  # fmt: skip
def test_other_programs_are_refused(said: str) -> None:
    with pytest.raises(ImageError, match=r"neither|too old"):
        build.identify("/bin/x", said)


# -- what speaks against an image -----------------------------------------------------------------------------------


def facts(**labels: str) -> sif.Image:
    own = {f"org.hpcml.{name.replace('_', '-')}": value for name, value in labels.items()}
    return sif.Image(Path("a.sif"), 1, 0.0, "x86_64", own)


def words(of: sif.Image, cuda: str = "any", gpus: int = 0, machine: str = "x86_64") -> list[tuple[str, bool]]:
    found = sif.problems(of, cuda=cuda, gpus=gpus, machine=machine)
    assert all(problem.hint for problem in found)
    return [(problem.what, problem.fatal) for problem in found]


def rapids(**other: str) -> sif.Image:
    return facts(**{name.removeprefix("org.hpcml.").replace("-", "_"): value for name, value in GPU.items()} | other)


OLDER = {"rapids": "26.08", "dask": "2026.5.0", "distributed": "2026.5.0", "dask_cuda": "26.8.0", "ucxx": "0.51.0"}
OTHERS = "rapids 26.08 (not 26.10), dask 2026.5.0 (not 2026.7.1), distributed 2026.5.0 (not 2026.7.1), dask-cuda 26.8.0 (not 26.10.0), "
UNKNOWN = ("the image has no labels of hpcml, so hpcml does not know the image's contents", False)
ARCHITECTURE = ("the image is built for x86_64, but this machine is aarch64", True)
CUDA = "the image is built for CUDA 12, but gpu.cuda of the site is 13"


@pytest.mark.parametrize(("of", "asked", "found"), [
    (rapids(), {"cuda": "12", "gpus": 4}, []),
    (rapids(), {}, []),
    (facts(kind="cpu", dask="2026.7.1", distributed="2026.7.1", python="3.11"), {}, []),
    (rapids(), {"machine": "aarch64"}, [ARCHITECTURE]),
    (facts(kind="cpu"), {"gpus": 4}, [("the image has no GPU packages (its kind is cpu)", True)]),
    (rapids(), {"cuda": "13", "gpus": 4}, [(CUDA, True)]),
    (rapids(), {"cuda": "13"}, [(CUDA, False)]),
    (rapids(), {"cuda": "any", "gpus": 4}, []),
    (facts(), {"cuda": "12", "gpus": 4}, [UNKNOWN]),
    (rapids(dask="2026.9.0"), {}, [("the image contains dask 2026.9.0 and distributed 2026.7.1, but both need the same version", True)]),
    (rapids(dask="2026.9.0", distributed="2026.9.0"), {}, [("the image's RAPIDS 26.10 needs dask 2026.7.1, distributed 2026.7.1, "
                                                            "not dask 2026.9.0, distributed 2026.9.0", True)]),
    (rapids(ucxx="0.50.0"), {}, [("the image's RAPIDS 26.10 needs ucxx 0.52.0, not ucxx 0.50.0", True)]),
    (rapids(**OLDER), {"cuda": "12", "gpus": 1}, [(f"the image has other package versions than hpcml image build installs: {OTHERS}ucxx 0.51.0 (not 0.52.0)", False)]),
    (facts(), {"machine": "aarch64"}, [ARCHITECTURE, UNKNOWN]),  # the fatal come first
])  # fmt: skip
def test_what_speaks_against_an_image(of: sif.Image, asked: dict[str, Any], found: list[tuple[str, bool]]) -> None:
    assert words(of, **asked) == found


# -- definitions, by spython ----------------------------------------------------------------------------------------


def looked_at(text: str, **labels: str) -> list[tuple[str, str]]:
    found = check.of_the_definition(facts(**labels)._replace(definition=text))
    return [(finding.state, finding.words) for finding in found]


def test_a_definition_in_order() -> None:
    assert looked_at(sif_file.DEFINITION, kind="cpu", dask="2026.7.1") == [
        ("good", "the base image is python:3.12-slim; number of build commands: 1; the labels match the definition")
    ]


def test_labels_that_were_changed_afterwards() -> None:
    ((state, said),) = looked_at(sif_file.DEFINITION, kind="cpu", dask="2026.9.0")
    assert state == "bad"
    assert "the definition states org.hpcml.dask 2026.7.1" in said


def test_a_base_that_moves() -> None:
    for base in ("python", "python:latest", "registry.example.org:5000/python"):
        ((state, said),) = looked_at(f"Bootstrap: docker\nFrom: {base}\n%post\n  true\n")
        assert (state, base in said) == ("note", True)


def test_a_dockerfile() -> None:
    assert looked_at("FROM python:3.12-slim\nRUN pip install dask\n")[0][0] == "good"


def test_what_spython_cannot_read_is_said_and_not_passed_over() -> None:
    assert looked_at("Bootstrap: debootstrap\nOSVersion: bookworm\n")[0][0] == "note"
    ((state, said),) = looked_at("# a bootstrap of our own\nBootstrap: docker\nFrom: python:3.12\n")
    assert (state, "spython cannot read the definition" in said) == ("note", True)
    assert looked_at("Bootstrap: docker\n%post\n  true\n")[0] == (
        "note",
        "spython finds no base image in the definition",
    )
    assert looked_at("")[0][0] == "note"


@pytest.mark.parametrize("line", ["  echo from: here", "  true # from: there"])
def test_a_base_that_spython_misreads_is_read_from_the_header(line: str) -> None:
    """spython takes any line with `from:` for a header."""
    ((state, words),) = looked_at(f"Bootstrap: docker\nFrom: python:3.12\n%post\n{line}\n")
    assert (state, words.startswith("the base image is python:3.12; ")) == ("good", True)


def test_all_stages_are_looked_at_and_names_keep_their_letters() -> None:
    text = "Bootstrap: docker\nFrom: golang:1.20\nStage: build\n%post\n  true\nBootstrap: docker\nFrom: x.org/Foo/Bar{}\nStage: final\n"
    assert looked_at(text.format(":2-Py3") + "%post\n  true\n")[0][1].startswith(
        "the base image is golang:1.20, x.org/Foo/Bar:2-Py3"
    )
    assert looked_at(text.format("") + "%post\n  true\n")[0] == (
        "note",
        "the definition's base image x.org/Foo/Bar can change over time",
    )


def test_spythons_warnings_are_told_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    found = looked_at("Bootstrap: docker\nFrom: python:3.12\n%setup\n  mkdir $APPTAINER_ROOTFS/x\n%post\n  true\n")
    assert found[0] == ("note", "spython warns: SETUP is error prone, please check output.")
    assert capfd.readouterr() == ("", "")


def test_the_shipped_definitions_that_spython_can_read() -> None:
    for name in ("cpu", "rapids-cu12", "rapids-cu13"):
        text = sif.find_definition(name, Path()).text
        for argument, value in sif.find_definition(name, Path()).defaults.items():
            text = text.replace(f"{{{{ {argument} }}}}", value)
        ((state, said),) = looked_at(text, kind=name.partition("-")[0])
        assert state == "good", said


# -- the image at work ----------------------------------------------------------------------------------------------


def test_the_program_inside_an_image_needs_no_hpcml_and_no_new_python() -> None:
    assert software.within(["/data", "/data/a.so", "/data2/a.so"], ["/data"]) == ["/data", "/data/a.so"]
    tree = ast.parse(Path(software.__file__).read_text(), feature_version=(3, 9))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names
    printed = subprocess.run(
        [sys.executable, "-I", software.__file__], capture_output=True, text=True, check=True, timeout=120
    )
    assert record.read(record.Contents, json.loads(printed.stdout.splitlines()[-1])).python.startswith("3.")


def test_the_ucx_that_python_uses_is_the_one_that_is_looked_at(tmp_path: Path) -> None:
    """Of the wheels' own and another, by the wheels' switch: only the other has a module for InfiniBand here."""
    wheel = pytest.importorskip("libucx")
    own, other = Path(wheel.__file__).parent / "lib", tmp_path / "lib"
    shutil.copytree(own, other, ignore=shutil.ignore_patterns("*.a", "cmake"))
    (other / "ucx/libuct_ib.so.0").touch()
    probe = "from hpcml.node.hardware import software; import json; print(json.dumps(software.ucx()))"
    for switch, folder, has in (("false", own, False), ("true", other, True)):
        system = {"RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY": switch, "LD_LIBRARY_PATH": str(other)}
        done = subprocess.run([sys.executable, "-c", probe], env=os.environ | system, capture_output=True, text=True,
                              check=True, timeout=120)  # fmt: skip
        ucx = json.loads(done.stdout)
        assert (ucx["version"], Path(ucx["library"]).parent) == (importlib.metadata.version("libucx-cu13"), folder)
        assert ("cuda" in ucx["modules"], "ib" in ucx["modules"]) == (True, has)


@pytest.mark.parametrize("changed", [{"failed": []}, {"driver": "x"}, {"driver": 5}, {"ucx": "1.21"}, {"outside": [7]}, {"packages": {"dask": {}}}])  # fmt: skip
def test_what_an_image_prints_is_checked(changed: dict[str, object]) -> None:
    ucx: dict[str, object] = {"version": "", "library": "", "modules": [], "components": [], "transports": {}}
    texts = dict.fromkeys(("python", "verbs", "driver", "compute"), "")
    lists: dict[str, object] = {"absent": [], "outside": [], "library_path": []}
    contents = {**texts, **lists, "failed": {}, "packages": {}, "ucx": ucx}
    assert check._contents(Answer(0, f"noise\n{json.dumps(contents)}\n", "")) is not None
    for text in (json.dumps(contents | changed), "[" * 100_000, "7", ""):
        assert check._contents(Answer(0, text, "")) is None
    assert check._contents(Answer(1, json.dumps(contents), "")) is None


def test_a_comment_of_a_definition_uses_no_argument() -> None:
    text = "Bootstrap: docker\n# the base is {{ BASE }}\nFrom: {{ IMAGE }}\n"
    assert sif.Definition("a", Path("a.def"), text).used == {"IMAGE"}
