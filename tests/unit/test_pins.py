"""One version of each package everywhere: containers/versions.toml, the definitions, the extras and the GPU tier's pins."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from hpcml import __version__, units
from hpcml.images import definition as definitions
from hpcml.images import sif
from hpcml.node.hardware import preflight

ROOT = Path(__file__).resolve().parents[2]
PINS = tomllib.loads((ROOT / "containers/versions.toml").read_text())
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DEBIAN = "tests/fixtures/images/debian.def"  # for machines that reach no registry
DEFINITIONS = [definitions.find(name, ROOT) for name in (*definitions.shipped(), DEBIAN)]
MACHINE_S_OWN = {"MIRROR", "PIP_INDEX"}
RAPIDS = ("cudf", "dask-cudf", "cuml", "raft-dask", "rmm")


def packages(text: str) -> dict[str, str]:
    """Return the packages that a definition installs, one a line of %post, with their rules."""
    post = text.partition("%post")[2].partition("%test")[0].replace("{{ ", "{{").replace(" }}", "}}")
    words = re.findall(r"^        '?([^'\s-][^'\s]*)'?(?: \\)?$", post, re.MULTILINE)
    return divided(words)


def divided(words: list[str]) -> dict[str, str]:
    """Divide requirements into names and rules, the extras in brackets left out."""
    found = {}
    for word in words:
        match = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?(.*)", word)
        assert match is not None, word
        found[match[1]] = match[2]
    return found


def test_all_definitions_are_here() -> None:
    assert [definition.name for definition in DEFINITIONS] == ["cpu", "rapids-cu12", "rapids-cu13", "debian"]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_defaults_of_a_definition_are_the_pins(definition: definitions.Definition) -> None:
    defaults = {key: value for key, value in definition.defaults.items() if key not in MACHINE_S_OWN}
    assert len(defaults) >= 3
    assert defaults == {key: PINS[key.lower().replace("_", "-")] for key in defaults}
    assert definition.used - definition.defaults.keys() == ({"MIRROR"} if definition.name == "debian" else set())


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_labels_say_what_is_installed(definition: definitions.Definition) -> None:
    installed = packages(definition.text)
    labels = dict(re.findall(r"^    org\.hpcml\.(\S+) (.+)$", definition.text, re.MULTILINE))
    pinned = {name: rule.lstrip("=") for name, rule in installed.items() if "{{" in rule}
    for name, rule in pinned.items():
        label = "rapids" if name in RAPIDS else "ucxx" if name == "distributed-ucxx" else name
        assert labels[label].replace(" ", "") == rule, name
    for name in ("dask", "distributed", "dask-ml"):
        assert name in pinned
    assert set(labels) <= {"kind", "cuda", "space", *sif.VERSIONED}
    assert units.parse_memory(definition.label("space")) >= 2 * 1024**3


@pytest.mark.parametrize("name", ["cpu", DEBIAN])
def test_cpu_images_hold_the_extras_local_and_jupyter(name: str) -> None:
    installed = packages(definitions.find(name, ROOT).text)
    wanted = divided(EXTRAS["node"]) | divided(EXTRAS["local"]) | divided(EXTRAS["jupyter"])
    wanted.pop("hpcml")
    assert installed.keys() == wanted.keys()
    for package, rule in wanted.items():
        if "{{" in installed[package]:
            assert PINS[package].startswith(rule.removeprefix("==").removesuffix("*"))
        else:
            assert installed[package] == rule


@pytest.mark.parametrize("cuda", ["12", "13"])
def test_gpu_images_hold_the_extra_of_their_cuda(cuda: str) -> None:
    definition = definitions.find(f"rapids-cu{cuda}", ROOT)
    assert definition.label("cuda") == cuda
    installed = packages(definition.text)
    assert installed["cuda-version"] == f"={cuda}"
    assert {"ucx", "rdma-core", "cupy"} <= installed.keys()
    wanted = {
        key.removesuffix(f"-cu{cuda}"): rule
        for key, rule in (divided(EXTRAS[f"cuda{cuda}"]) | divided(EXTRAS["node"]) | divided(EXTRAS["jupyter"])).items()
    }
    wanted.pop("hpcml")
    assert wanted.keys() <= installed.keys()
    for package in (*RAPIDS[:4], "dask-cuda"):
        assert wanted[package] == f"=={PINS['rapids']}.*"
    assert wanted["distributed-ucxx"].removeprefix("==").removesuffix("*") in PINS["ucxx"]


def test_the_two_rapids_differ_in_cuda_only() -> None:
    twelve, thirteen = (definitions.find(f"rapids-cu{cuda}", ROOT).text for cuda in ("12", "13"))
    swaps = (("CUDA 12", "CUDA 13"), ("driver 535", "driver 580"), ("cuda 12", "cuda 13"), ("=12.2", "=13.0"),
             ("cuda-version=12", "cuda-version=13"))  # fmt: skip
    for old, new in swaps:
        assert old in twelve
        twelve = twelve.replace(old, new)
    assert twelve == thirteen


def test_the_pack_of_the_gpu_tier_has_these_versions() -> None:
    wheels = tomllib.loads((ROOT / "tests/bench/gpu/pins.toml").read_text())["wheels"]
    pinned = dict(word.split("==") for words in wheels.values() for word in words)
    for name in ("dask", "distributed", "dask-cuda", "dask-ml"):
        assert pinned[name] == PINS[name]
    assert pinned["ucxx-cu13"] == pinned["distributed-ucxx-cu13"] == PINS["ucxx"]
    for name in RAPIDS:
        assert pinned[f"{name}-cu13"].startswith(f"{PINS['rapids']}.")


def test_the_drivers_are_those_that_the_nodes_are_asked_for() -> None:
    assert {f"driver-cuda{cuda}": str(needs.driver) for cuda, needs in preflight._NEEDS.items()}.items() <= PINS.items()


def test_no_definition_names_a_mirror() -> None:
    for definition in DEFINITIONS:
        assert not re.search(r"\w+://", definition.text), definition.name


def test_the_citation_is_of_this_version() -> None:
    told = dict(re.findall(r"^([a-z-]+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (told["version"], told["license"], told["title"]) == (__version__, project["license"], project["name"])
    assert told["cff-version"] == "1.2.0"
