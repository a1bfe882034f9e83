"""Which profile a machine is recognised as, and what is laid over what."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.sites import layers, lookup, schema

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return put


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin"), "HPCML_SYSTEM_CONFIG": str(tmp_path / "etc")}


USER = "home/.config/hpcml"
LAB = Path(__file__).resolve().parents[1] / "lab/site/profiles/lab.toml"


def test_a_machine_is_local_some_slurm_or_a_site_of_one_s_own(
    environment: dict[str, str], tmp_path: Path, write: Write
) -> None:
    loaded = lookup.load("", environment, tmp_path)
    assert (loaded.site.name, loaded.chosen_because) == ("local", "no other profile matches this machine")
    homeless = {name: value for name, value in environment.items() if name != "HOME"}
    assert lookup.load("", homeless, tmp_path).site.name == "local"
    write("bin/sbatch", "#!/bin/sh\n").chmod(0o755)
    loaded = lookup.load("", environment, tmp_path)
    assert (loaded.site.name, loaded.chosen_because) == ("slurm", "sbatch is on PATH")
    write("etc/profiles/lab.toml", LAB.read_text())
    loaded = lookup.load("", {**environment, "SLURM_CONF": "/var/lib/hpcml-lab/etc/slurm.conf"}, tmp_path)
    assert (loaded.site.name, loaded.site.scheduler) == ("lab", "slurm"), "which is inherited"
    assert loaded.site.identify.command == "", "how to recognise a machine is not inherited"


def test_order_decides_and_every_line_must_match(environment: dict[str, str], tmp_path: Path, write: Write) -> None:
    host = socket.gethostname()
    write(f"{USER}/profiles/b.toml", f"[identify]\nhostname = ['{host}']\norder = 3\n")
    write(f"{USER}/profiles/a.toml", f"[identify]\nhostname = ['nowhere', '{host}']\norder = 4\n")
    write(f"{USER}/profiles/c.toml", f"[identify]\nhostname = ['{host}']\norder = 1\nenvironment = {{ X = '1' }}\n")
    write(f"{USER}/profiles/d.toml", "[identify]\nnever = true\norder = 0\n")
    assert lookup.load("", environment, tmp_path).site.name == "b"
    assert lookup.load("", {**environment, "X": "1"}, tmp_path).site.name == "c"
    assert lookup.load("a", environment, tmp_path).chosen_because == "named by --site"
    assert lookup.load("", {**environment, "HPCML_SITE": "a"}, tmp_path).chosen_because == "named by HPCML_SITE"


def test_layers_from_general_to_special(environment: dict[str, str], tmp_path: Path, write: Write) -> None:
    """Each layer sets one key more than the next, so that each one's is seen."""
    keys = ["account", "partition", "qos", "time"]
    files = ["etc/profiles/mine.toml", "etc/config.toml", f"{USER}/config.toml", "project/hpcml.toml"]
    for number, name in enumerate(files):
        values = "".join(f"{key} = '{number}'\n" for key in keys[number:])
        write(name, ("extends = 'slurm'\n" if number == 0 else "") + f"[defaults]\n{values}")
    (tmp_path / "project" / "deep" / "er").mkdir(parents=True)
    loaded = lookup.load("mine", environment, tmp_path / "project" / "deep" / "er")
    assert [layers.as_table(getattr(loaded.site.defaults, key)) for key in keys] == ["0", "1", "2", "3"]
    assert [loaded.layers.origin(f"defaults.{key}") for key in keys] == [str(tmp_path / name) for name in files]
    loaded = lookup.load("mine", {**environment, "HPCML_DEFAULTS__QOS": "e", "HPCML_DEFAULTS__TIME": "5"}, tmp_path / "project",
                        ("defaults.time=7",))  # fmt: skip
    assert (loaded.site.defaults.qos, loaded.site.defaults.time.text) == ("e", "7")
    assert loaded.layers.origin("defaults.time") == "--set"


def test_a_site_table_holds_for_that_site_alone(environment: dict[str, str], tmp_path: Path, write: Write) -> None:
    write("hpcml.toml", "[workers]\nthreads = 1\n[site.leonardo.workers]\nthreads = 2\n")
    assert lookup.load("leonardo", environment, tmp_path).site.workers.threads == 2
    assert lookup.load("local", environment, tmp_path).site.workers.threads == 1


def test_a_profile_extends_another_over_several_steps(
    environment: dict[str, str], tmp_path: Path, write: Write
) -> None:
    write(f"{USER}/profiles/one.toml", "extends = 'leonardo'\n[defaults]\nqos = 'q'\n")
    write(f"{USER}/profiles/two.toml", "extends = 'one'\ndescription = 'two'\n")
    loaded = lookup.load("two", environment, tmp_path)
    assert (loaded.site.defaults.qos, loaded.site.slurm.gpu_request) == ("q", "gres")
    assert loaded.layers.origin("defaults.partition") == "profile leonardo"


def test_a_ring_is_told(environment: dict[str, str], tmp_path: Path, write: Write) -> None:
    for name, parent in (("a", "b"), ("b", "c"), ("c", "b")):
        write(f"{USER}/profiles/{name}.toml", f"extends = '{parent}'\n")
    with pytest.raises(ConfigError, match="in a circle: a → "):
        lookup.load("a", environment, tmp_path)


def test_a_profile_that_says_nothing_goes_on_after_a_loss_and_warns_of_a_slow_interconnect() -> None:
    site = layers.build(schema.Site, layers.Layers())
    assert (site.workers.on_loss, site.fabric.require) == ("continue", "warn")
