"""What a submission would cost and when it may start: the rules of billing, recorded answers, and what is said of them."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpcml.cli import status
from hpcml.errors import StorageError
from hpcml.plan import cost
from hpcml.runs import directories, forecast, report, request_cost
from hpcml.runs import record as records
from hpcml.runs import status as run_status
from hpcml.runs.forecast import Budget, Forecast
from hpcml.sites import lookup
from hpcml.sites.schema import NodeKind, Partition, Resources, Site
from hpcml.units import Memory
from tests.said import says

NOW = datetime.datetime(2026, 11, 23, 8, 0)  # noqa: DTZ001 - as sbatch tells the time
LEONARDO = lookup.load("leonardo", {}, None).site

# `saldo -b` on Leonardo, 2026-09-18, as a user published it.
SALDO = """\
-----------------------------------------------------------------------------------------------------------------------------------------
account                start         end         total        localCluster   totConsumed     totConsumed     monthTotal     monthConsumed
                                             (local h)   Consumed(local h)     (local h)               %      (local h)         (local h)
-----------------------------------------------------------------------------------------------------------------------------------------
CNHPC_1526560       20240711    20260430        640000              557186        557186            87.1             0                  0
IscrB_FM-EEG24      20250120    20260220       2400000             1160939       1160939            48.4             0                  0
IscrB_WearUsFM      20260107    20270107       2000000             1205697       1205697            60.3        164383              99394
"""

AT_ONCE = "10 jobs of 8 nodes, at most 24 nodes, 96 GPUs at once, partition boost, time limit 01:00:00, at most 80 node-h, 320 GPU-h"


def test_the_recorded_answers_of_saldo(subtests: pytest.Subtests) -> None:
    cases = [
        (SALDO, "IscrB_WearUsFM", Budget(2000000, 1205697)),
        (SALDO, "CNHPC_1526560", Budget(640000, 557186)),
        (SALDO, "CNHPC_152656", None),
        (SALDO, "account", None),
        (SALDO, "IscrB.WearUsFM", None),
        ("saldo: command failed\n", "Proj_A", None),
    ]
    for text, account, known in cases:
        with subtests.test(account=account):
            found = forecast.budget_of(text, LEONARDO.cost.budget_row, account)
            assert (found if isinstance(found, Budget) else None) == known
            assert isinstance(found, Budget) or account in found


@pytest.mark.parametrize("row", ["(", "^{account} (?P<total>x)?", "^(?P<total>a)(?P<used>c)"])
def test_a_row_that_does_not_fit_is_told(row: str) -> None:
    assert isinstance(forecast.budget_of("account\n", row, "account"), str)


def request(**directives: str) -> cost.Request:
    given = tuple((f"--{name.replace('_', '-')}", value) for name, value in directives.items())
    return cost.request(LEONARDO, given, 2, 3600)


SIZES = [  # of #SBATCH lines: CPUs and GPUs on two nodes
    ("--ntasks-per-node=4 --cpus-per-task=8 --gres=gpu:4", (64, 8)),
    ("-n 6 -c 2 --gpus=3", (12, 4)),
    ("-n 6 --gpus-per-task=1", (6, 6)),
    ("--gpus-per-node=a100:2", (2, 4)),
    ("--gpus-per-node=2 --cpus-per-gpu=8", (0, 4)),
    ("--ntasks-per-socket=2", (0, 0)),
    ("--nodes=2-4", (0, 0)),
    ("--partition=boost_usr_prod --exclusive --cpus-per-gpu=8", (64, 8)),
]


def test_a_batch_script_s_own_lines_count(subtests: pytest.Subtests) -> None:
    for line, expected in SIZES:
        with subtests.test(line):
            found = cost.request(LEONARDO, (), 2, 3600, (f"#SBATCH {line}",))
            assert (found.cpus, found.gpus) == expected
            assert (request_cost.bill(LEONARDO, found)[0] is None) == (expected[0] == 0)
    both = cost.request(LEONARDO, (("--partition", "b"),), 1, 60, ("#SBATCH -A astro", "#SBATCH --mem=2G"))
    assert (both.partition, both.account, both.memory) == ("b", "astro", 2 * 1024**3)


def test_what_a_script_asks_for(subtests: pytest.Subtests) -> None:
    gib = 1024**3
    cases = [
        (request(cpus_per_task="8", mem="4096M", gres="gpu:a100:4"), (16, 8 * gib, 8)),
        (request(cpus_per_task="8", mem_per_cpu="512M"), (16, 8 * gib, 0)),
        (request(gpus_per_node="2", mem_per_gpu="2G"), (2, 8 * gib, 4)),
        (request(gres="gpu"), (2, 0, 2)),
        (request(gres="lustre:1,gpu:3"), (2, 0, 6)),
        (request(partition="boost_usr_prod", exclusive=""), (64, 2 * 494000 * 1024**2, 8)),
        (request(partition="boost_usr_prod", mem="0"), (2, 2 * 494000 * 1024**2, 0)),
    ]
    for found, expected in cases:
        with subtests.test(expected=expected):
            assert (found.cpus, found.memory, found.gpus) == expected
            assert found.node_hours == 2


def test_a_job_for_a_part_of_its_nodes_pays_for_the_part() -> None:
    """Its node-hours would be those of whole nodes; memory is named if it is not all memory of a node."""
    dcgp = {"partition": "dcgp_usr_prod"}
    for directives, of_node, price in (
        ({**dcgp, "cpus_per_task": "4", "mem": "8G"}, says("4 of 112 CPUs", "8.0 GiB"), "8 core-h"),
        ({**dcgp, "cpus_per_task": "4", "mem": "0"}, "4 of 112 CPUs", "8 core-h"),
        ({**dcgp, "cpus_per_task": "112", "mem": "100G"}, says("100 GiB"), "2 node-h = 224 core-h"),
        ({**dcgp, "cpus_per_task": "4", "exclusive": ""}, "", "2 node-h = 224 core-h"),
        ({"cpus_per_task": "4", "mem": "8G"}, says("8.0 GiB"), "2 node-h = 8 core-h"),  # of nodes that are not known
    ):
        found = request(**directives)
        billed, _ = request_cost.bill(LEONARDO, found)
        assert (found.of_node, request_cost.price(found, 2, billed, "core-h")) == (of_node, price)
        assert request_cost.price(found, 2, None, "") == ("8 CPU-h" if found.shares_nodes else "2 node-h")


def test_the_cpus_of_a_node_are_those_of_the_nodes_that_the_job_may_get() -> None:
    """In a partition with several kinds, and of several partitions, a job may have all of a smaller node."""
    small, big = NodeKind(cpus_per_node=48), NodeKind(cpus_per_node=128, memory_per_node=Memory("512G"))
    kinds = {"small": small, "big": big, "gpu": NodeKind(cpus_per_node=32, gpus_per_node=4)}
    mixed = Site(partitions={"mix": Partition(nodes=kinds)})
    no_partitions = Site(resources=Resources(cpus_per_node=64))
    for site, options, expected in (
        (mixed, {"--partition": "mix", "--cpus-per-task": "48"}, ""),
        (mixed, {"--partition": "mix", "--cpus-per-task": "20"}, "20 of 48 CPUs"),
        (mixed, {"--partition": "mix", "--cpus-per-task": "100", "--mem": "512G"}, "100 of 128 CPUs"),
        (mixed, {"--partition": "mix", "--cpus-per-task": "32", "--gres": "gpu:4"}, ""),
        (LEONARDO, {"--partition": "boost_usr_prod,dcgp_usr_prod", "--cpus-per-task": "32"}, ""),
        (LEONARDO, {"--partition": "dcgp_usr_prod", "--cpus-per-task": "4", "--exclusive": "user"}, "4 of 112 CPUs"),
        (no_partitions, {"--cpus-per-task": "8"}, "8 of 64 CPUs"),
    ):
        found = cost.request(site, tuple(options.items()), 1, 3600)
        assert (found.of_node, found.shares_nodes) == (expected, bool(expected)), options


def test_a_range_of_nodes_costs_at_most_its_most_nodes() -> None:
    for range_of_nodes, gpus in (("2-4", 8), ("2-4:2", 8), ("2", 8)):
        found = cost.request(LEONARDO, (), 2, 3600, (f"#SBATCH -N {range_of_nodes} --gpus=8",))
        assert (found.nodes, found.gpus) == (4 if "-" in range_of_nodes else 2, gpus)


def test_billing_as_slurm_s_manual_has_it(subtests: pytest.Subtests) -> None:
    """slurm.conf(5): CPU=1.0,Mem=0.25G,GRES/gpu=2.0 for 1 CPU and 8 GB is 3.0, and with MAX_TRES 2.0."""
    manual, none = cost.weights({"CPU": "1.0", "Mem": "0.25G", "GRES/gpu": "2.0"})
    leonardo, _ = cost.weights(LEONARDO.cost.weights)
    one = cost.Request(1, 1, 8 * 1024**3, 0, 3600)
    half = cost.Request(1, 2, 0, 2, 3600)
    cases = [
        (one, manual, False, 3.0),
        (one, manual, True, 2.0),
        (half, manual, False, 6.0),
        (half, leonardo, True, 16.0),  # published: 2 GPUs of a Leonardo node bill 16, a whole node 32
        (cost.Request(1, 32, 0, 4, 3600), leonardo, True, 32.0),
        (one, cost.weights({"mem": "1"})[0], False, 8192.0),  # MiB without a unit
        (half, cost.weights({"gres/gpu:a100": "5", "node": "3"})[0], False, 13.0),
    ]
    assert none == []
    for asked, weights, largest, expected in cases:
        with subtests.test(expected=expected):
            assert cost.billing(asked, weights, largest=largest) == pytest.approx(expected)
    assert cost.weights({"cpu": "many", "gres/gpu": "2G", "node": "1"}) == (
        {"node": 1.0},
        [says("cost.weights: 'many'"), says("cost.weights: '2G'", "is not a valid weight of gres/gpu")],
    )


def test_what_is_said_at_a_submission(subtests: pytest.Subtests) -> None:
    asked = cost.Request(8, 256, 0, 32, 3600, "boost")
    bare = Forecast(asked, unit="core-h", account="a")
    known = bare._replace(billed=256.0, budget=Budget(2000000, 1205697), start="2026-11-23T14:20:00", advice="x")
    request = "8 nodes, partition boost, 32 GPUs, time limit 01:00:00, at most"
    share = f"{request} 8 node-h = 256 core-h, 0.0128 % of the grant of account a (794303 core-h left)"
    one = f"{request} 8 node-h, 32 GPU-h"
    cases = [
        (bare, [("asks for", one)]),
        (known, [("asks for", f"{share}; Slurm would start the job at 14:20"), ("time", "x")]),
        (bare._replace(start="2026-11-29T01:02:03"),
         [("asks for", f"{one}; Slurm would start the job at 2026-11-29 01:02")]),
        (bare._replace(start="Unknown"), [("asks for", one)]),
        (known._replace(request=asked._replace(gpus=0, partition="").times(2), billed=512.0, budget=None, advice=""),
         [("asks for", "16 nodes, time limit 01:00:00, at most 16 node-h = 512 core-h, for 2 jobs; "
           "Slurm would start the first job at 14:20")]),
        (bare._replace(request=asked.times(10), at_once=3),
         [("asks for", AT_ONCE)]),
        (bare._replace(most=168.0, limit="--max-restarts 20"),
         [("asks for", one),
          ("", says("at most 168 node-h (--max-restarts 20)"))]),
        (bare._replace(budget=Budget(10, 4)), [("asks for", f"{one} (6 core-h of account a are left)")]),
        (bare._replace(billed=256.0, budget=Budget(300, 200)),
         [("asks for", f"{request} 8 node-h = 256 core-h, 85.3 % of the grant of account a (only 100 core-h left)")]),
    ]  # fmt: skip
    part = asked._replace(gpus=0, of_node="100 GiB of memory")
    cases += [(bare._replace(request=part), [("asks for", says("8 nodes with 100 GiB", "each"))]),
              (bare._replace(request=part.times(2), at_once=1), [("asks for", says("2 jobs of 8 nodes with 100 GiB"))])]  # fmt: skip
    shared = bare._replace(request=asked._replace(shares_nodes=True), most=168.0, limit="x")
    cases += [(shared, [("asks for", says("256 CPU-h")), ("", says("at most 5376 CPU-h (x)"))])]  # in one unit
    for found, expected in cases:
        with subtests.test(expected=expected):
            assert forecast.lines(found, NOW, whole=False) == expected
    whole = forecast.lines(known._replace(by_slurm=512.0, problems=("saldo failed",)), NOW, whole=True)
    assert whole == [
        ("asks for", share),
        ("", says("give a cost of 512 core-h; the profile's")),
        ("start", "Slurm would start the job at 14:20"),
        ("time", "x"),
        ("not known", "saldo failed"),
    ]
    unlimited = forecast.lines(bare._replace(request=asked._replace(seconds=0)), NOW, whole=True)
    assert unlimited == [("asks for", says("8 nodes, partition boost, 32 GPUs"))]


@pytest.mark.parametrize(("more", "cost"), [
    ({}, "8 node-h = 256 core-h"),
    ({"attempts": {"several_jobs": True, "max_restarts": 1, "max_node_hours": 0.0}}, "16 node-h = 512 core-h"),
    ({"attempts": {"several_jobs": True, "max_restarts": 20, "max_node_hours": 12.0}}, "12 node-h = 384 core-h"),
])  # fmt: skip
def test_what_a_recorded_run_asked_for(tmp_path: Path, more: dict[str, Any], cost: str) -> None:
    """From its files alone; what they lack is left out."""
    directory = tmp_path / "a-20261121-074500-1a2b"
    directory.mkdir(mode=0o700)
    run = directories.load(directory)
    assert request_cost.asked(run, records.planned(run)) == {}
    asked = [["--partition", "boost"], ["--cpus-per-task", "32"], ["--gres", "gpu:2"]]
    inside = {"job": {"nodes": 4, "time_limit": 7200}, **more}
    directories.write_json(run.paths.plan, {"directives": asked, "inside": inside})
    facts = {"nodes": 4, "partition": "boost", "time_limit": 7200}
    planned = records.planned(run)._replace(restart="several" if more else "")
    assert request_cost.asked(run, planned) == facts
    site = {"cost.weights": {"value": {"cpu": "1"}}, "cost.unit": {"value": "core-h"}}
    directories.write_json(run.paths.request, {"site": site})
    assert request_cost.asked(run, planned) == facts | ({"gpus": 8, "cost": cost} if cost else {})
    directories.write_json(run.paths.request, {"site": {"no.such": {"value": 1}}})
    assert request_cost.asked(run, planned) == facts
    directories.write_json(run.paths.plan, {"inside": {"attempts": {"max_restarts": "damaged"}}})
    with pytest.raises(StorageError, match=r"inside\.attempts\.max_restarts is not a whole number"):
        records.planned(run)


def test_jobs_of_a_sweep_ask_for_all_their_resources_together() -> None:
    one = cost.Request(nodes=2, cpus=64, memory=1 << 30, gpus=8, seconds=3600)
    assert one.times(3) == cost.Request(nodes=6, cpus=192, memory=3 << 30, gpus=24, seconds=3600, jobs=3)


@pytest.mark.parametrize(("text", "said"), [
    ('{"advice": [{"rule": "spilling", "sentence": "a"}, {"rule": "time-asked", "sentence": "b"}]}', ["b"]),
    ('{"advice": [{"rule": "time-asked"}]}', []),
    ("{", []),
])  # fmt: skip
def test_what_a_run_could_ask_less_of(tmp_path: Path, text: str, said: list[str]) -> None:
    (tmp_path / "report.json").write_text(text)
    assert report.smaller(tmp_path / "report.html") == said


def test_the_way_to_jupyterlab_names_the_login_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("USER", "me")
    directory = tmp_path / "a-20261121-074500-1a2b"
    directory.mkdir(mode=0o700)
    run = directories.load(directory)
    plan = {"scheduler": "slurm", "inside": {"job": {"nodes": 1}, "code": {"form": "jupyter"}}}
    directories.write_json(run.paths.plan, plan)
    path = run.paths.attempt(0).service_of("jupyter")
    path.parent.mkdir(parents=True, mode=0o700)
    event = {"event": "script-started", "time": 1e9, "attempt": 0}
    run.paths.events.write_text(json.dumps(event) + "\n")
    directories.write_json(run.paths.request, {"site": {}})
    starts = run_status.status(run, ask=False)
    (service,) = starts.progress.services
    assert (starts.message, service.ready, starts.as_json()["jupyter"]) == ("JupyterLab starts", False, "")
    assert service.sentence.endswith(f"tunnel --service jupyter {run.id}")
    directories.write_json(path, {"node": "n1"})
    assert run_status.status(run, ask=False).message == "JupyterLab runs"
    for site, host in (({"login.host": {"value": "a b"}}, "'a b'"), ({}, f"me@{os.uname().nodename}")):
        directories.write_json(run.paths.request, {"site": site})
        (service,) = run_status.status(run, ask=False).progress.services
        way = f"to open it: hpcml --host {host} tunnel --service jupyter {run.id}"
        assert (service.ready, service.sentence) == (True, f"jupyter: ready on n1; {way}")
    status.show(run, as_json=False, all_notes=False, host="cluster")
    assert f"to open it: hpcml --host cluster tunnel --service jupyter {run.id}\n" in capsys.readouterr().out
