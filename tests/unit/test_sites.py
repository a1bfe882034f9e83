"""Which profile a machine is recognised as, and what is laid over what."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from hpcml import config_trust, typed_json
from hpcml.errors import ConfigError
from hpcml.sites import key_permissions, lookup, schema, settings_layers

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
    assert [typed_json.plain(getattr(loaded.site.defaults, key)) for key in keys] == ["0", "1", "2", "3"]
    assert [loaded.layers.origin(f"defaults.{key}") for key in keys] == [str(tmp_path / name) for name in files]
    loaded = lookup.load("mine", {**environment, "HPCML_DEFAULTS__QOS": "e", "HPCML_DEFAULTS__TIME": "5"}, tmp_path / "project",
                        ("defaults.time=7",))  # fmt: skip
    assert (loaded.site.defaults.qos, loaded.site.defaults.time.text) == ("e", "7")
    assert loaded.layers.origin("defaults.time") == "--set"


def test_a_later_account_or_qos_for_all_partitions_replaces_those_of_the_profile() -> None:
    of_profile = {"defaults": {"account": "a"}, "partitions": {"gpu": {"account": "a-gpu", "qos": "long"}}}
    mine = {"defaults": {"account": "mine"}, "partitions": {"cpu": {"account": "mine-cpu"}}}
    both = settings_layers.Layers()
    both.add(of_profile, "profile", config_trust.Origin.SITE)
    assert settings_layers.build(schema.Site, both).partitions["gpu"].account == "a-gpu"
    both.add(mine, "config.toml", config_trust.Origin.USER)
    made = settings_layers.build(schema.Site, both)
    assert (made.partitions["gpu"].account, made.partitions["gpu"].qos) == ("", "long")
    both.add({"defaults": {"qos": "mine"}}, "--set", config_trust.Origin.TYPED)
    assert settings_layers.build(schema.Site, both).partitions["gpu"].qos == ""
    assert made.partitions["cpu"].account == "mine-cpu"


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
    site = settings_layers.build(schema.Site, settings_layers.Layers())
    assert (site.workers.on_loss, site.interconnect.require) == ("continue", "warn")


def _keys(record: Any, prefix: str = "") -> Iterator[str]:
    """Yield each key of the schema; ``*`` is a name of the user's."""
    for name, kind in record.__annotations__.items():
        if hasattr(kind, "_fields"):
            yield from _keys(kind, f"{prefix}{name}.")
        elif get_origin(kind) is dict and hasattr(get_args(kind)[1], "_fields"):
            yield from _keys(get_args(kind)[1], f"{prefix}{name}.*.")
        else:
            yield f"{prefix}{name}"


def _above(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def test_each_key_says_whether_it_names_a_program_a_trusted_one_or_an_account() -> None:
    """A new key has to say whether somebody else's file names, by it, what is started here, or whom to trust."""
    classified = [key for keys in key_permissions.POWERS.values() for key in keys]
    assert len(classified) == len(set(classified)), "each in one place"
    keys = set(_keys(schema.Site))
    assert not [key for key in keys if not set(_above(key)) & set(classified)], (
        "add these to hpcml/sites/key_permissions.py"
    )
    used = {next(one for one in _above(key) if one in classified) for key in keys}
    assert set(classified) == used, "no key that is not there"
    assert sorted(one for one in classified if one not in keys) == ["facts", "login"], (
        "of these tables new keys are refused too"
    )
    assert key_permissions.POWERS[key_permissions.Power.HERE] == {
        "login", "scheduler", "cost.budget", "cost.budget_row", "partitions.*.budget",
    }  # fmt: skip
    assert key_permissions.POWERS[key_permissions.Power.TRUST] == {"facts", "network.private", "paths.trust"}
    assert key_permissions.POWERS[key_permissions.Power.ACCOUNT] == {"defaults.account", "partitions.*.account"}


def test_what_somebody_else_s_file_or_line_may_not_set(subtests: pytest.Subtests) -> None:
    refused: tuple[dict[str, Any], ...] = (
        {"login": {"renew": "x"}}, {"login": 3}, {"login": {}}, {"cost": {"budget": ["x"]}}, {"paths": {"trust": ["x"]}},
        {"partitions": {"a.b": {"budget": ["x"]}}}, {"cost": {"budget": {"x": 1}}}, {"cost": {"budget_row": "x"}},
        {"network": {"private": True}}, {"scheduler": "local"}, {"facts": {"network.private": {"source": "x"}}},
    )  # fmt: skip
    allowed: tuple[dict[str, Any], ...] = (
        {"cost": {"unit": "x"}},
        {"paths": {"runs": "/x"}},
        {"runtime": {"python": "/x"}},
        {"partitions": {"a": {}}},
    )
    for by in config_trust.Origin:
        for table in (*refused, *allowed):
            with subtests.test(by=by, table=table):
                foreign = by.foreign and table in refused
                with pytest.raises(ConfigError, match="may not set") if foreign else contextlib.nullcontext():
                    settings_layers.Layers().add(table, "here", by)


def test_who_set_a_value(environment: dict[str, str], tmp_path: Path, write: Write) -> None:
    """Through lists that replace lists, profiles that extend others, tables of a site, variables and lines."""
    write(
        "etc/profiles/base.toml",
        '[runtime]\npython = "/a"\nmodules = ["a"]\n[cost]\nbudget = ["a"]\n[slurm]\nextra = ["-a"]\n',
    )
    write(f"{USER}/profiles/mine.toml", 'extends = "base"\n[runtime]\ncontainer = "b"\n')
    write("etc/config.toml", "[workers]\nper_node = 2\nthreads = 2\nrestarts = 2\n")
    write(f"{USER}/config.toml", '[workers]\nthreads = 3\n[site.mine.runtime]\nmodules = ["c"]\n')
    write("hpcml.toml", '[slurm]\nextra = ["-d"]\n[site.mine.runtime]\nsetup = ["d"]\n[gpu]\nspill_order = "lru"\n')
    lines = (
        ("gpu.gds=on", "line 1 of x.py"),
        ("report={sample_every = '9s'}", "line 1 of x.py"),
        ("code.max_files=7", "line 2 of x.py"),
    )
    variables = {**environment, "HPCML_WORKERS__RESTARTS": "9", "HPCML_CODE__MAX_FILES": "8"}
    loaded = lookup.load("mine", variables, tmp_path, ["gpu.spill_order=keep"], lines)
    by = {key: value.by.value for key, value in loaded.layers.values.items()}
    assert {key: by[key] for key in (
        "runtime.python", "cost.budget", "runtime.container", "runtime.modules", "workers.per_node", "workers.threads",
        "workers.restarts", "slurm.extra", "runtime.setup", "gpu.spill_order", "gpu.gds", "report.sample_every",
        "code.max_files", "scheduler",
    ) if key in by} == {
        "runtime.python": "site", "cost.budget": "site", "runtime.container": "user", "runtime.modules": "user",
        "workers.per_node": "site", "workers.threads": "user", "workers.restarts": "typed", "slurm.extra": "project",
        "runtime.setup": "project", "gpu.spill_order": "typed", "gpu.gds": "line", "report.sample_every": "line",
        "code.max_files": "line",
    }  # fmt: skip
    assert loaded.layers.named("cost", "budget") == (
        config_trust.Origin.SITE,
        f"{tmp_path}/etc/profiles/base.toml: cost.budget",
    )
    assert loaded.layers.named("runtime", "setup").place == f"{tmp_path}/hpcml.toml [site.mine]: runtime.setup"
    assert loaded.layers.named("paths", "scratch") == config_trust.HPCML
    assert lookup.load("slurm", environment, None).layers.named("scheduler").origin is config_trust.Origin.SITE
    older = {key: {"value": value.value, "origin": value.origin} for key, value in loaded.layers.values.items()}
    assert lookup.recorded(older).gpu.gds == "on"


def test_old_names_of_keys_count_everywhere_with_a_note(
    environment: dict[str, str], tmp_path: Path, write: Write, subtests: pytest.Subtests
) -> None:
    (tmp_path / "etc").mkdir()
    table = "[deadlines]\ndriver_grace = '7s'\n[fabric]\nrequire = 'rdma'\n"
    variables = {"HPCML_DEADLINES__DRIVER_GRACE": "7s", "HPCML_FABRIC__REQUIRE": "rdma"}
    words = ["deadlines.driver_grace=7s", "fabric.require=rdma"]
    fact = "confidence = 'documented', date = '2026-11-20', source = 'a page'"
    facts = f"[facts]\n'deadlines.driver_grace' = {{ {fact} }}\nfabric = {{ {fact} }}\n"
    for place in ("etc/config.toml", "etc/profiles/slurm.toml", "hpcml.toml", f"{USER}/config.toml"):
        with subtests.test(place):
            path = write(place, table + (facts if "profiles" in place else ""))
            site, _, _, _, notes = lookup.load("slurm", environment, tmp_path)
            assert (float(site.deadlines.script_grace), site.interconnect.require) == (7.0, "rdma")
            assert [note.partition(": ")[0] for note in notes] == [str(path)] * (4 if "profiles" in place else 2)
            assert ": the key deadlines.driver_grace is now called deadlines.script_grace; " in notes[0]
            if "profiles" in place:
                assert site.facts["deadlines.script_grace"].source == site.facts["interconnect.require"].source
            path.unlink()
    for loaded in (
        lookup.load("slurm", environment | variables, None),
        lookup.load("slurm", environment, None, words),
        lookup.load("slurm", environment, None, lines=[(word, "a.py, line 1") for word in words]),
    ):
        assert (float(loaded.site.deadlines.script_grace), loaded.site.interconnect.require) == (7.0, "rdma")
        assert len(loaded.notes) == 2
    old = {"deadlines.fabric": {"value": "9s", "origin": "profile slurm"}, "deadlines.scheduler": {"value": "3s"}}
    assert float(lookup.recorded(old).deadlines.interconnect) == 9.0
    assert lookup.load("slurm", environment, None, ["deadlines.script_grace=7s"]).notes == ()
    with pytest.raises(ConfigError, match=r"'fabric\.nccl' is the old name of 'interconnect\.nccl', which is also set"):
        lookup.load("slurm", environment, None, ["fabric.nccl=true", "interconnect.nccl=false"])
