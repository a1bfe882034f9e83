"""How each value of a shipped profile is known, whose facts hold, and what the limits of a QoS refuse."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from hpcml import assets
from hpcml.cli import tunnel
from hpcml.errors import ConfigError, SiteError
from hpcml.plan import make_plan
from hpcml.request.record import RunRequest, measure
from hpcml.sites import lookup
from hpcml.sites.schema import CONFIDENCE, Site
from tests.said import says

MACHINES = sorted({path.stem for path in assets.folder("profiles").glob("*.toml")} - {"local", "slurm"})
# What hpcml chooses by itself, and no machine's documentation could say.
CHOSEN = {"name", "description", "extends", "identify.order", "defaults.partition", "defaults.time", "cost.ask", "paths.runs"}  # fmt: skip
PLACE = make_plan.RunLocation(Path("/runs/job-20261121-074500-1a2b"), "/usr/bin/python3", "0")


def planned(site: Site, **values: Any) -> make_plan.Plan:
    request: dict[str, Any] = {name: measure(name, one) if name == "time" else one for name, one in values.items()}
    return make_plan.plan(
        site, RunRequest.of(Path("/home/me/job.py"), (), Path("/home/me"), account="mine", **request), PLACE
    )


def load(text: str, tmp_path: Path, name: str = "mine") -> Site:
    folder = tmp_path / ".config/hpcml/profiles"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(text)
    return lookup.load(name, {"HOME": str(tmp_path), "HPCML_SYSTEM_CONFIG": "/nowhere"}, None).site


@pytest.mark.parametrize("name", MACHINES)
def test_every_value_of_a_machine_says_how_it_is_known(name: str) -> None:
    loaded = lookup.load_profile(name, {"HPCML_SYSTEM_CONFIG": "/nowhere"})
    own = {key.replace("\0", ".") for key, value in loaded.layers.values.items() if value.origin == f"profile {name}"}
    values = {key for key in own if not key.startswith("facts.")} - CHOSEN
    assert values
    assert values - set(loaded.site.facts) == set()
    assert {fact.confidence for fact in loaded.site.facts.values()} <= set(CONFIDENCE)
    assert loaded.site.description
    assert not loaded.site.defaults.partition or loaded.site.defaults.partition in loaded.site.partitions


@pytest.mark.parametrize("name", [*MACHINES, "local", "slurm"])
def test_a_machine_is_recognised_by_what_its_whole_profile_says(name: str) -> None:
    path = assets.folder("profiles") / f"{name}.toml"
    assert lookup.identify_of(path) == {"identify": tomllib.loads(path.read_text())["identify"]}


def test_who_sets_another_value_answers_for_it(tmp_path: Path) -> None:
    site = load('[partitions.boost_usr_prod]\nmemory_per_node = "490000M"\n[network]\ninterface = "ib1"\n'
                '[facts]\n"network.interface" = { confidence = "guessed", date = 2026-11-23, source = "me" }\n',
                tmp_path, "leonardo")  # fmt: skip
    memory = "partitions.boost_usr_prod.memory_per_node"
    shipped = lookup.load_profile("leonardo", {"HPCML_SYSTEM_CONFIG": "/nowhere"}).site
    assert (shipped.doubtful(memory), site.doubtful(memory)) == ("reported", "")
    assert site.doubtful("partitions.dcgp_usr_prod.memory_per_node") == "reported", "of the others nothing changes"
    assert (site.facts["network.interface"].source, site.doubtful("network.interface")) == ("me", "guessed")
    assert site.doubts() == shipped.doubts(), "one less, one more"
    assert f"has {site.doubts()} unconfirmed values" in " ".join(planned(site).notices)


def test_a_partition_whose_unconfirmed_limit_is_exceeded_is_not_said_to_fit() -> None:
    site = lookup.load_profile("leonardo", {"HPCML_SYSTEM_CONFIG": "/nowhere"}).site
    for memory, fits in (("100G", "fits"), ("900G", "may fit")):
        made = planned(site, memory_per_node=measure("memory_per_node", memory))
        assert says("partition dcgp_usr_prod: ", f"that {fits} the request") in made.reasons
        assert any("494000M" in note for note in made.notices) == (fits == "may fit")


@pytest.mark.parametrize(("key", "fact", "words"), [
    ("interface", 'confidence = "confirmd", date = 2026-11-23, source = "x"', "'confirmd'.*Did you mean confirmed"),
    ("interface", 'confidence = "guessed", date = 2026-11-23', "has no source"),
    ("interface", 'confidence = "guessed", date = "soon", source = "x"', "'soon' is not a date"),
])  # fmt: skip
def test_a_fact_that_is_not_whole_is_told(tmp_path: Path, key: str, fact: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){words}") as error:
        load(f'[network]\ninterface = "ib0"\n[facts]\n"network.{key}" = {{ {fact} }}\n', tmp_path)
    assert error.value.place.endswith(f"mine.toml: facts.network.{key}")


def test_a_fact_of_a_key_that_was_removed_stops_no_command(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    fact = 'confidence = "guessed", date = 2026-11-23, source = "x"'
    path.write_text(f'[network]\ninterface = "ib0"\n[facts]\n"network.adapters" = {{ {fact} }}\n')
    (note,) = lookup.load_profile(str(path), {"HPCML_SYSTEM_CONFIG": "/nowhere"}).notes
    assert "facts.network.adapters" in note


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("leonardo", {"partition": "boost_usr_prod", "nodes": 100, "gpus_per_node": 4},
     "Partition 'boost_usr_prod' allows at most 64 nodes, but the run requests 100", "--qos boost_qos_bprod"),
    ("leonardo", {"qos": "boost_qos_dbg", "partition": "boost_usr_prod", "nodes": 4}, "QoS 'boost_qos_dbg' allows at most 2 nodes, but the run requests 4", ""),
    ("leonardo", {"qos": "boost_qos_dbg", "partition": "boost_usr_prod", "time": "2h"}, "QoS 'boost_qos_dbg' allows a time limit of at most 00:30:00, but the run requests 02:00:00", ""),
    ("leonardo", {"qos": "boost_qos_dbg", "partition": "dcgp_usr_prod"}, "is for partition boost_usr_prod, not for dcgp_usr_prod", ""),
    ("leonardo", {"partition": "dcgp_usr_prod", "nodes": 20}, "Partition 'dcgp_usr_prod' allows at most 16 nodes", "--qos dcgp_qos_bprod"),
    ("leonardo", {"nodes": 100, "gpus_per_node": 4}, "No partition fits the request", "Try --partition boost_usr_prod --qos boost_qos_bprod."),
    ("jupiter", {}, "aarch64", "--site slurm"),
    ("lumi", {"gpus_per_node": 8}, "AMD", "--site slurm"),
]  # fmt: skip
TOLD: list[tuple[str, dict[str, Any], str]] = [
    ("leonardo", {"qos": "boost_qos_lprod", "nodes": 4, "gpus_per_node": 4},
     "QoS 'boost_qos_lprod' allows at most 3 nodes, but the run requests 4; the profile's limit is only reported, so Slurm decides"),
    ("leonardo", {"nodes": 20}, "a partition without GPUs also fits this request: --partition dcgp_usr_prod --qos dcgp_qos_bprod"),
    ("leonardo", {"environment": (("NCCL_IB_HCA", "mlx5_0,mlx5_1,mlx5_4:1"),)}, "NCCL_IB_HCA names mlx5_4, which the nodes of leonardo do not have"),
    ("marenostrum5", {"nodes": 101}, "QoS 'acc_ehpc' allows at most 100 nodes, but the run requests 101; the profile's limit is only reported"),
    ("vega", {"partition": "gpu"}, "Partition 'gpu' accepts only jobs with GPUs, but the run requests none; the profile's limit is only reported"),
    ("perlmutter", {"nodes": 2, "gpus_per_node": 4}, "Slingshot"),
    ("perlmutter", {"gpus_per_node": 4}, "libfabric"),
]  # fmt: skip


def test_what_a_machine_surely_refuses_is_refused_before(subtests: pytest.Subtests) -> None:
    for name, request, words, hint in REFUSED:
        site = lookup.load(name, {"HPCML_SYSTEM_CONFIG": "/nowhere"}, None).site
        with subtests.test(name=name, request=request), pytest.raises(SiteError) as error:
            planned(site, **request)
        assert words in error.value.message
        assert hint in error.value.hint


def test_what_a_machine_perhaps_refuses_is_told(subtests: pytest.Subtests) -> None:
    for name, request, words in TOLD:
        with subtests.test(name=name, request=request):
            site = lookup.load(name, {"HPCML_SYSTEM_CONFIG": "/nowhere"}, None).site
            assert words in " ".join(planned(site, **request).notices)


def test_a_qos_within_its_limits_passes_and_may_exceed_the_partitions() -> None:
    site = lookup.load("leonardo", {"HPCML_SYSTEM_CONFIG": "/nowhere"}, None).site
    requests: tuple[dict[str, Any], ...] = (
        {"qos": "boost_qos_bprod", "nodes": 65},
        {"qos": "boost_qos_lprod", "nodes": 2, "time": "4-0"},
    )
    for request in requests:
        made = planned(site, gpus_per_node=4, **request)
        assert dict(made.directives)["--partition"] == "boost_usr_prod"
        assert not [text for text in made.notices if "QoS" in text or "allows" in text]


def test_a_tunnel_names_the_login_node_on_which_it_is_asked_for() -> None:
    login = lookup.load("leonardo", {"HPCML_SYSTEM_CONFIG": "/nowhere"}, None).site.login
    assert tunnel._this_login(login, "login05.leonardo.local") == "login05-ext.leonardo.cineca.it"
    assert tunnel._this_login(login, "login09.leonardo.local") == "", "then it is the name that stands for all"
