"""One version of each package everywhere: containers/versions.toml, the definitions, the lists of wheels and the extras."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hpcml import units
from hpcml.images import definitions, sif
from hpcml.node.hardware.record import NEEDS
from tests import locks

ROOT = Path(__file__).resolve().parents[2]
PINS = tomllib.loads((ROOT / "containers/versions.toml").read_text())
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DEFINITIONS = [definitions.find_definition(name, ROOT) for name in definitions.shipped_definitions()]
CONDA = [one for one in DEFINITIONS if "micromamba" in one.text]
WHEELS = [one for one in DEFINITIONS if one not in CONDA]
NO_VERSIONS = {"LOCK", "MIRROR", "PIP_INDEX", "UCX_LOCK", "UCX_SOURCE"}
RAPIDS = locks.RAPIDS


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


def locked(definition: definitions.Definition) -> dict[str, str]:
    """Return the versions of the wheels that a definition installs."""
    text = (definition.path.parent / definition.defaults["LOCK"]).read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_defaults_of_a_definition_are_the_pins(definition: definitions.Definition) -> None:
    defaults = {key: value for key, value in definition.defaults.items() if key not in NO_VERSIONS}
    assert len(defaults) >= 3
    assert defaults == {key: PINS[key.lower().replace("_", "-")] for key in defaults}
    assert definition.used == definition.defaults.keys()


@pytest.mark.parametrize("definition", CONDA, ids=lambda definition: definition.name)
def test_labels_say_what_is_installed(definition: definitions.Definition) -> None:
    installed = packages(definition.text)
    labels = dict(re.findall(r"^    org\.hpcml\.(\S+) (.+)$", definition.text, re.MULTILINE))
    pinned = {name: rule.lstrip("=") for name, rule in installed.items() if "{{" in rule}
    for wheel, rule in pinned.items():
        name = re.sub(r"-cu1[23]$", "", wheel)
        label = "rapids" if name in RAPIDS else "ucxx" if name == "distributed-ucxx" else name
        assert labels[label].replace(" ", "") == rule.removesuffix(".*"), name
    for name in ("dask", "distributed", "dask-ml"):
        assert name in pinned


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_labels_are_those_that_hpcml_reads(definition: definitions.Definition) -> None:
    labels = re.findall(r"^    org\.hpcml\.(\S+) ", definition.text, re.MULTILINE)
    assert set(labels) <= {"kind", "cuda", "space", *sif.VERSIONED}
    assert units.parse_memory(definition.label("space")) >= 2 * 1024**3


@pytest.mark.parametrize("definition", WHEELS, ids=lambda definition: definition.name)
def test_labels_say_which_wheels_are_listed(definition: definitions.Definition) -> None:
    cuda, lock = definition.label("cuda"), locked(definition)
    labels = dict(re.findall(r"^    org\.hpcml\.(\S+) \{\{ (\w+) \}\}$", definition.text, re.MULTILINE))
    assert {"dask", "distributed", "dask-ml"} <= labels.keys()
    for label, argument in labels.items():
        version = definition.defaults[argument]
        if label == "rapids":
            assert all(lock[f"{name}-cu{cuda}"].startswith(f"{version}.") for name in RAPIDS)
        elif label == "ucxx":
            assert all(lock[f"{name}-cu{cuda}"] == version for name in locks.UCX)
        elif label != "python":
            assert lock[label] == version


@pytest.mark.parametrize("definition", WHEELS, ids=lambda definition: definition.name)
def test_wheels_are_installed_by_their_hashes_and_in_no_other_way(definition: definitions.Definition) -> None:
    post = definition.text.partition("%post")[2].partition("%test")[0].replace("\\\n", " ")
    calls = [line for line in post.splitlines() if re.search(r"\bpip3? (install|download|wheel)\b", line)]
    assert len(calls) == (2 if definition.label("cuda") else 1)
    for line in calls:
        assert "--no-deps" in line  # older pips than uv's do not find dask[array] in a list that has dask
        words = line.partition("--require-hashes ")[2].split()
        assert words[:1] == ["-r"], line
        assert words[1:] in (["/opt/hpcml/lock.txt"], ["/ucx-lock.txt"]), line
    assert "/opt/hpcml/bin/pip check" in post
    assert not re.search(r"easy_install|conda|mamba|\buv\b|curl|wget|git clone", post)
    shipped = {f"locks/{name}.txt" for name in locks.LOCK_BY_NAME}
    files = {definition.defaults[name] for name in ("LOCK", "UCX_LOCK") if name in definition.defaults}
    assert len(files) == len(calls)
    assert files <= shipped


def test_no_definition_has_wheels_of_which_nothing_is_known() -> None:
    """conda checks the sums of its channels' own index: those definitions install nothing by pip."""
    assert [one.name for one in CONDA if "pip install" in one.text] == []
    assert {one.name for one in CONDA} == {"rapids-cu12", "rapids-cu13"}


@pytest.mark.parametrize("name", locks.LOCK_BY_NAME)
def test_a_list_of_wheels_is_whole(name: str) -> None:
    """Each has versions and hashes alone, the versions are those that belong together, and all extras are in it."""
    text = (locks.LOCKS / f"{name}.txt").read_text()
    assert not re.search(r"\w://|--(?!hash=sha256:)", text)
    rows = re.findall(
        r"^([\w.-]+)==(\S+?)((?: ; [^\\\n]+?)?)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE
    )
    assert len(rows) == len(re.findall(r"^[^ #]", text, re.MULTILINE))
    assert sum(row[3].count("--hash") for row in rows) == text.count("--hash")
    versions = {row[0]: row[1] for row in rows}
    assert len(versions) == len(rows)
    lock = locks.LOCK_BY_NAME[name]
    rules = [Requirement(word) for word in (*locks.requirements(lock), *locks.constraints(lock))]
    wanted = {canonicalize_name(Requirement(word).name) for word in locks.requirements(lock)}
    assert wanted <= versions.keys()
    for rule in rules:
        version = versions.get(canonicalize_name(rule.name))
        assert version is None or rule.specifier.contains(version), f"{rule}: make locks"


def test_every_list_of_wheels_is_one_of_those_that_are_made() -> None:
    assert {path.stem for path in locks.LOCKS.iterdir()} == locks.LOCK_BY_NAME.keys()


@pytest.mark.parametrize("definition", CONDA, ids=lambda definition: definition.name)
def test_images_hold_the_extras_of_their_kind(definition: definitions.Definition) -> None:
    cuda = definition.label("cuda")
    installed = {name.removesuffix(f"-cu{cuda}"): rule for name, rule in packages(definition.text).items()}
    assert "rdma-core" in installed
    extras = ("node", f"cuda{cuda}", "jupyter")
    wanted = divided([word for extra in extras for word in EXTRAS[extra]])
    wanted.pop("hpcml")
    for package, rule in wanted.items():
        name = package.removesuffix(f"-cu{cuda}")
        assert name in installed
        if rule.startswith("=="):
            pin = "ucxx" if name == "distributed-ucxx" else "rapids" if name in RAPIDS else name
            assert PINS[pin].startswith(rule.removeprefix("==").removesuffix(".*")), name


@pytest.mark.parametrize("definition", [one for one in WHEELS if one.label("cuda")], ids=lambda one: one.name)
def test_images_of_wheels_hold_what_infiniband_needs(definition: definitions.Definition) -> None:
    assert {"rdma-core", "ibverbs-providers"} <= set(definition.header("Include").split())


@pytest.mark.parametrize("definition", [one for one in DEFINITIONS if one.label("cuda")], ids=lambda one: one.name)
def test_the_drivers_are_those_that_the_nodes_are_asked_for(definition: definitions.Definition) -> None:
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
def test_the_shell_of_a_definition_is_sound(definition: definitions.Definition, section: str) -> None:
    found = re.search(rf"^%{section}\n(.*?)(?=^%|\Z)", definition.text, re.MULTILINE | re.DOTALL)
    if found is None:
        assert section == "setup"
        return
    text = re.sub(r"\{\{ (\w+) \}\}", lambda match: definition.defaults[match[1]], found[1])
    exclude = "2086,2206"  # a list of packages is meant to be several words
    words = ["shellcheck", "--shell=dash", f"--exclude={exclude}", "-"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
