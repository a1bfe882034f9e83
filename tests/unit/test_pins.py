"""One version of each package everywhere: containers/versions.toml, the definitions and the extras."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from hpcml import units
from hpcml.images import sif
from hpcml.node.hardware.record import NEEDS

ROOT = Path(__file__).resolve().parents[2]
PINS = tomllib.loads((ROOT / "containers/versions.toml").read_text())
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DEFINITIONS = [sif.find_definition(name, ROOT) for name in sif.shipped_definitions()]
MACHINE_S_OWN = {"MIRROR", "PIP_INDEX", "UCX_SOURCE"}
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


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_defaults_of_a_definition_are_the_pins(definition: sif.Definition) -> None:
    defaults = {key: value for key, value in definition.defaults.items() if key not in MACHINE_S_OWN}
    assert len(defaults) >= 3
    assert defaults == {key: PINS[key.lower().replace("_", "-")] for key in defaults}
    assert definition.used == definition.defaults.keys()


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_labels_say_what_is_installed(definition: sif.Definition) -> None:
    installed = packages(definition.text)
    labels = dict(re.findall(r"^    org\.hpcml\.(\S+) (.+)$", definition.text, re.MULTILINE))
    pinned = {name: rule.lstrip("=") for name, rule in installed.items() if "{{" in rule}
    for wheel, rule in pinned.items():
        name = re.sub(r"-cu1[23]$", "", wheel)
        label = "rapids" if name in RAPIDS else "ucxx" if name == "distributed-ucxx" else name
        assert labels[label].replace(" ", "") == rule.removesuffix(".*"), name
    for name in ("dask", "distributed", "dask-ml"):
        assert name in pinned
    assert set(labels) <= {"kind", "cuda", "space", *sif.VERSIONED}
    assert units.parse_memory(definition.label("space")) >= 2 * 1024**3


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_images_hold_the_extras_of_their_kind(definition: sif.Definition) -> None:
    cuda = definition.label("cuda")
    installed = {name.removesuffix(f"-cu{cuda}"): rule for name, rule in packages(definition.text).items()}
    if cuda:
        assert "rdma-core" in installed or {"rdma-core", "ibverbs-providers"} <= set(
            definition.header("Include").split()
        )
    extras = ("node", f"cuda{cuda}" if cuda else "local", "jupyter")
    wanted = divided([word for extra in extras for word in EXTRAS[extra]])
    wanted.pop("hpcml")
    for package, rule in wanted.items():
        name = package.removesuffix(f"-cu{cuda}")
        assert name in installed
        if rule.startswith("=="):
            pin = "ucxx" if name == "distributed-ucxx" else "rapids" if name in RAPIDS else name
            assert PINS[pin].startswith(rule.removeprefix("==").removesuffix(".*")), name
        elif not cuda and "{{" not in installed[name]:
            assert installed[name] == rule


@pytest.mark.parametrize("definition", [one for one in DEFINITIONS if one.label("cuda")], ids=lambda one: one.name)
def test_the_drivers_are_those_that_the_nodes_are_asked_for(definition: sif.Definition) -> None:
    stated = re.findall(r"\bdriver (\d+)", definition.text)
    assert {int(number) for number in stated} == {NEEDS[int(definition.label("cuda"))].driver}


# Indexes and mirrors: each machine's own configuration names its own.
REGISTRIES = re.compile(
    r"\b(pypi\.(org|nvidia\.com)|(files|test)\.pythonhosted\.org|(deb|security|archive|snapshot)\.(debian\.org|ubuntu\.com)|"
    r"(conda|repo)\.anaconda\.(org|com)|registry\.(npmjs\.org|yarnpkg\.com)|download\.pytorch\.org|proxy\.golang\.org|"
    r"(static|index)\.crates\.io)\b"
)


def test_no_file_names_a_package_registry() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    texts = ((path, path.read_text(errors="replace")) for path in paths if path.is_file())
    assert [str(path) for path, text in texts if REGISTRIES.search(text)] == []
    assert paths or not (ROOT / ".git").exists()


def test_no_definition_names_a_mirror() -> None:
    for definition in DEFINITIONS:
        assert not re.search(r"\w+://", definition.text), definition.name


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("section", ["setup", "post"])
@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_the_shell_of_a_definition_is_sound(definition: sif.Definition, section: str) -> None:
    found = re.search(rf"^%{section}\n(.*?)(?=^%|\Z)", definition.text, re.MULTILINE | re.DOTALL)
    if found is None:
        assert section == "setup"
        return
    text = re.sub(r"\{\{ (\w+) \}\}", lambda match: definition.defaults[match[1]], found[1])
    exclude = "2086,2206"  # a list of packages is meant to be several words
    words = ["shellcheck", "--shell=dash", f"--exclude={exclude}", "-"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
