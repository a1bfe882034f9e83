"""The plan: what comes out of which request, and that any request plans or explains itself."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from distributed.deploy.utils import nprocesses_nthreads
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment

from hpcml import assets, errors
from hpcml.errors import HpcmlError, SiteError, UsageError
from hpcml.plan import batch_script, make_plan
from hpcml.request import record as request
from hpcml.workload_forms import Form
from matrix import site_of as site
from tests.said import in_order

PLACE = make_plan.RunLocation(Path("/runs/job-20261121-074500-1a2b"), "/usr/bin/python3", "0")
TWO = {
    "scheduler": "slurm",
    "name": "two",
    "defaults": {"partition": "long"},
    "partitions": {
        "long": {"max_nodes": 8, "max_time": "1-0", "cpus_per_node": 32, "memory_per_node": "100G"},
        "gpu": {"max_nodes": 4, "max_time": "2h", "gpus_per_node": 4, "qos": "gpuqos"},
    },
}


def spec(**values: Any) -> request.RunRequest:
    values |= {
        name: request.measure(name, values.pop(name)) for name in ("time", "memory_per_node") if values.get(name)
    }
    values = {name: value for name, value in values.items() if value not in ("", None)}
    return request.RunRequest.of(Path("/home/me/job.py"), (), Path("/home/me"), **values)


def directives(table: dict[str, Any], **values: Any) -> dict[str, str]:
    return dict(make_plan.plan(site(table), spec(**values), PLACE).directives)


def test_a_time_limit_is_in_whole_minutes_where_slurm_gives_it() -> None:
    """The script is warned before the limit that the job has."""
    plans = [make_plan.plan(site({"scheduler": name}), spec(time=text), PLACE).inside.job
             for name in ("slurm", "local") for text in ("30s", "1:30", "2m")]  # fmt: skip
    assert [job.time_limit for job in plans] == [60, 120, 120, 30, 90, 120]
    assert [job.signal_lead for job in plans][:4] == [30, 60, 60, 15]
    assert directives({"scheduler": "slurm"}, time="30s")["--time"] == "00:01:00"


@pytest.mark.parametrize(("request_", "expected"), [
    ({}, {"--partition": "long", "--nodes": "1", "--cpus-per-task": "32", "--mem": "102400M"}),
    ({"nodes": 8, "time": "1-0"}, {"--partition": "long", "--nodes": "8", "--time": "1-00:00:00"}),
    ({"gpus_per_node": 4}, {"--partition": "gpu", "--gpus-per-node": "4", "--qos": "gpuqos"}),
    ({"partition": "gpu"}, {"--partition": "gpu", "--qos": "gpuqos"}),
    ({"partition": "gpu", "qos": "mine"}, {"--qos": "mine"}),
    ({"memory_per_node": "2G", "cpus_per_node": 3}, {"--mem": "2048M", "--cpus-per-task": "3"}),
])  # fmt: skip
def test_what_is_asked_of_slurm(request_: dict[str, Any], expected: dict[str, str]) -> None:
    assert expected.items() <= directives(TWO, **request_).items()


@pytest.mark.parametrize(("request_", "misfit"), [
    ({"nodes": 9}, ()),
    ({"partition": "gpu", "nodes": 5}, ("'gpu'", "4 nodes", 5)),
    ({"partition": "gpu", "time": "2:00:01"}, ("'gpu'", "02:00:00", "02:01:00")),
    ({"partition": "long", "gpus_per_node": 1}, ("'long'", "no GPUs", 1)),
    ({"partition": "gpu", "gpus_per_node": 5}, ("'gpu'", "4 GPUs", 5)),
    ({"partition": "long", "memory_per_node": "1T"}, ("'long'", "102400M", "1048576M")),
])  # fmt: skip
def test_what_does_not_fit(request_: dict[str, Any], misfit: tuple[object, ...]) -> None:
    with pytest.raises(SiteError, match=in_order(*misfit)) as error:
        directives(TWO, **request_)
    assert error.value.hint


OWN = {  # as Jean Zay and Setonix are: accounts, types and options by partition
    "scheduler": "slurm",
    "name": "own",
    "defaults": {"partition": "cpu", "account": "abc@cpu"},
    "slurm": {"extra": ["--constraint=any", "--hint=nomultithread"], "gpu_request": "gres"},
    "partitions": {
        "cpu": {"cpus_per_node": 40, "memory_per_node": "160G"},
        "v100": {"gpus_per_node": 4, "cpus_per_node": 40, "memory_per_node": "160G", "account": "abc@v100", "qos": "long",
                 "gpu_type": "v100", "constraint": "v100-32g", "extra": ["--exclusive=user"], "remove": ["--mem"]},
    },
}  # fmt: skip


def test_a_partition_has_an_account_and_options_of_its_own() -> None:
    made = directives(OWN, nodes=2)
    assert (made["--account"], made["--partition"], made["--constraint"]) == ("abc@cpu", "cpu", "any")
    assert not {"--qos", "--gres", "--exclusive"} & made.keys()
    of_all = {**OWN, "defaults": {"partition": "cpu", "account": "abc@cpu", "qos": "any"}}
    assert directives(of_all, nodes=2)["--qos"] == "any"
    assert directives(of_all, gpus_per_node=4)["--qos"] == "long", "of one file the partition's, as its account"
    made = directives(OWN, nodes=2, gpus_per_node=4)
    expected = {"--account": "abc@v100", "--qos": "long", "--gres": "gpu:v100:4", "--constraint": "v100-32g",
                "--exclusive": "user", "--hint": "nomultithread"}  # fmt: skip
    assert expected.items() <= made.items()
    assert "--mem" not in made
    other = {**OWN, "partitions": {"cpu": {"remove": ["--time"]}}}
    noted = make_plan.plan(site(other), spec(time="1:00:00"), PLACE).notices
    assert [note.endswith("(partitions.cpu.remove)") for note in noted if "--time" in note] == [True]
    typed = {"account": "mine", "qos": "short", "gpu_type": "a100", "sbatch": (("--constraint", "old"),)}
    made = directives(OWN, gpus_per_node=1, **typed)
    assert {
        "--account": "mine",
        "--qos": "short",
        "--gres": "gpu:a100:1",
        "--constraint": "old",
    }.items() <= made.items()


KINDS = {
    "scheduler": "slurm",
    "name": "kinds",
    "partitions": {
        "main": {
            "max_nodes": 66, "gpus_per_node": 8, "cpus_per_node": 64, "memory_per_node": "500G",
            "nodes": {
                "cpu": {"max_nodes": 60, "cpus_per_node": 128, "memory_per_node": "500G"},
                "fat": {"max_nodes": 2, "cpus_per_node": 128, "memory_per_node": "4T"},
                "a100": {"max_nodes": 3, "gpus_per_node": 4, "gpu_type": "a100", "cpus_per_node": 64, "memory_per_node": "1T"},
                "v100": {"max_nodes": 1, "gpus_per_node": 8, "gpu_type": "v100", "cpus_per_node": 64, "memory_per_node": "800G"},
            },
        }
    },
}  # fmt: skip


@pytest.mark.parametrize(("request_", "cpus", "memory"), [
    ({}, "128", "512000M"),  # the nodes without GPUs
    ({"memory_per_node": "2T"}, "128", "2097152M"),  # the two that have as much
    ({"gpus_per_node": 2}, "16", "204800M"),  # of both types the smaller share
    ({"gpus_per_node": 2, "gpu_type": "a100"}, "32", "524288M"),
    ({"gpus_per_node": 8}, "64", "819200M"),
])  # fmt: skip
def test_a_request_is_sized_by_the_nodes_that_it_can_get(request_: dict[str, Any], cpus: str, memory: str) -> None:
    made = directives(KINDS, **request_)
    assert (made["--cpus-per-task"], made["--mem"]) == (cpus, memory)


@pytest.mark.parametrize(("request_", "misfit"), [
    ({"nodes": 2, "gpus_per_node": 8}, ("'main'", "only 1 node", 2)),
    ({"nodes": 3, "memory_per_node": "1T", "cpus_per_node": 128}, ("'main'", "only 2 nodes", 3)),
    ({"gpus_per_node": 8, "gpu_type": "a100"}, ("'main'", "8 a100 GPUs")),
    ({"cpus_per_node": 256}, ("'main'", "256 CPUs")),
    ({"nodes": 67}, ("'main'", "66 nodes", 67)),
])  # fmt: skip
def test_no_node_of_a_kind_is_promised_that_is_not_there(request_: dict[str, Any], misfit: tuple[object, ...]) -> None:
    with pytest.raises(SiteError, match=in_order(*misfit)):
        directives(KINDS, **request_)


SEVERAL = {
    "scheduler": "slurm",
    "name": "several",
    "partitions": {
        "milan": {"max_nodes": 8, "max_time": "1-0", "cpus_per_node": 128, "memory_per_node": "490000M"},
        "genoa": {"max_nodes": 4, "max_time": "2-0", "cpus_per_node": 192, "memory_per_node": "250000M"},
        "gpu4": {"gpus_per_node": 4, "cpus_per_node": 32, "memory_per_node": "100G", "account": "a"},
        "gpu8": {"gpus_per_node": 8, "cpus_per_node": 128, "memory_per_node": "100G", "account": "b", "gpu_type": "h100"},
    },
}  # fmt: skip


def test_several_partitions_get_the_smallest_of_each_and_keep_the_limits_of_all() -> None:
    made = make_plan.plan(site(SEVERAL), spec(partition="milan,genoa", nodes=4), PLACE)
    assert {"--partition": "milan,genoa", "--cpus-per-task": "128", "--mem": "250000M"}.items() <= dict(
        made.directives
    ).items()
    assert not made.notices
    assert made.inside.job.whole_nodes is False, "128 CPUs are a part of a node of genoa"
    for name, more in (("nodes", 5), ("time", "1-00:01:00"), ("cpus_per_node", 129)):
        with pytest.raises(SiteError, match=r"'genoa'|'milan'") as error:
            directives(SEVERAL, partition="milan,genoa", **{name: more})
        assert "--partition" in error.value.hint
    share = directives(SEVERAL, partition="gpu4,gpu8", gpus_per_node=2, account="mine", gpu_type="h100")
    assert (share["--cpus-per-task"], share["--account"]) == ("16", "mine")


def test_partitions_whose_jobs_are_not_alike_are_refused_with_a_line_for_each() -> None:
    with pytest.raises(UsageError, match="account and GPU type") as error:
        directives(SEVERAL, partition="gpu4,gpu8", gpus_per_node=2)
    assert "--partition gpu4 --account a; or --partition gpu8 --account b --gpus-per-node h100:N" in error.value.hint


def test_an_unknown_partition_of_several_is_named() -> None:
    made = make_plan.plan(site(SEVERAL), spec(partition="milan,genoua", nodes=1), PLACE)
    assert any("genoua" in notice and "genoa" in notice for notice in made.notices)
    assert dict(made.directives)["--cpus-per-task"] == "128"


def test_a_partition_that_was_not_the_default_is_told() -> None:
    made = make_plan.plan(site(TWO), spec(gpus_per_node=1), PLACE)
    (notice,) = made.notices
    assert re.search(in_order("partition gpu", "'long'", "no GPUs", 1), notice)


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [({"gpu_type": "a100"}, {"--gpus-per-node": "a100:2"}), ({"gpu_request": "gres"}, {"--gres": "gpu:2"}), ({"gpu_request": "none"}, {})],
)  # fmt: skip
def test_dialects_of_gpus(dialect: dict[str, str], expected: dict[str, str]) -> None:
    made = directives({"slurm": dialect}, gpus_per_node=2)
    assert {option: value for option, value in made.items() if "gpu" in option or "gres" in option} == expected


@pytest.mark.parametrize(
    ("time", "lead", "signal"), [("10", "60s", 60), ("1", "60s", 30), ("1", "0", 1), ("", "99h", 65535)]
)
def test_the_script_is_told_before_the_limit_and_not_at_its_start(time: str, lead: str, signal: int) -> None:
    made = make_plan.plan(site({"slurm": {"signal_lead": lead}}), spec(time=time), PLACE)
    assert dict(made.directives)["--signal"] == f"B:USR1@{signal}"
    assert made.inside.job.signal_lead == signal


@pytest.mark.parametrize(("extra", "request_", "option", "value"), [
    ("--time=10", {"time": "30"}, "--time", "00:30:00"),
    ("--mem-per-cpu=1G", {"memory_per_node": "2G"}, "--mem", "2048M"),
    ("--gres=gpu:1", {"gpus_per_node": 2}, "--gpus-per-node", "2"),
    ("--account=theirs", {"account": "mine"}, "--account", "mine"),
    ("--job-name=theirs", {"name": "mine"}, "--job-name", "mine"),
])  # fmt: skip
def test_what_the_user_gives_is_not_overridden_by_the_profile(
    extra: str, request_: dict[str, Any], option: str, value: str
) -> None:
    profile = site({"slurm": {"extra": [extra]}})
    made = make_plan.plan(profile, spec(**request_), PLACE)
    assert dict(made.directives)[option] == value
    assert tuple(extra.split("=", 1)) not in made.directives
    assert any(f"hpcml ignores {extra} of the profile's slurm.extra" in reason for reason in made.reasons)
    assert tuple(extra.split("=", 1)) in make_plan.plan(profile, spec(), PLACE).directives


def test_an_extra_that_says_something_else_stays_beside_the_users_option() -> None:
    made = directives({"slurm": {"extra": ["--gres=nvme:1", "--constraint=a"]}}, gpus_per_node=2, time="30")
    assert {"--gres": "nvme:1", "--constraint": "a", "--gpus-per-node": "2"}.items() <= made.items()


def test_a_users_option_that_the_profile_leaves_out_is_told() -> None:
    profile = site({"slurm": {"remove": ["--time"]}})
    made = make_plan.plan(profile, spec(time="30"), PLACE)
    assert "--time" not in dict(made.directives)
    assert made.ignored == ("hpcml ignores --time: the profile removes --time (slurm.remove)",)
    assert set(made.ignored) <= {*made.notices}
    assert not make_plan.plan(profile, spec(), PLACE).notices


@pytest.mark.parametrize(("settings", "request_", "asked", "told"), [
    ({}, {"memory_per_node": "2G", "cpus_per_node": 3}, "683M", "hpcml passes --memory-per-node as --mem-per-cpu=683M"),
    ({}, {"memory_per_node": "2G"}, "2048M", "hpcml passes --memory-per-node as"),
    ({"resources": {"exclusive": True}}, {"memory_per_node": "2G"}, "1G", "hpcml ignores --memory-per-node"),
    ({}, {}, "1G", ""),
])  # fmt: skip
def test_memory_where_a_site_does_not_take_it_by_node(
    settings: dict[str, Any], request_: dict[str, Any], asked: str, told: str
) -> None:
    profile = site({**settings, "slurm": {"remove": ["--mem"], "extra": ["--mem-per-cpu=1G"]}})
    made = make_plan.plan(profile, spec(**request_), PLACE)
    assert [option for option in made.directives if option[0].startswith("--mem")] == [("--mem-per-cpu", asked)]
    notices = [text for text in made.notices if "--memory-per-node" in text]
    assert (not told and not notices) or (told in notices[0] and len(notices) == 1)
    assert bool(made.ignored) == ("ignores" in told), "memory by CPU is no ignored option"


@pytest.mark.parametrize(
    ("name", "script", "expected"),
    [("", "a b$c.py", "a-b-c"), ("", "é.py", "run"), ("x.y-1", "a.py", "x.y-1"), ("", "a" * 99, "a" * 64)],
)
def test_names(name: str, script: str, expected: str) -> None:
    assert request.job_name(request.RunRequest.of(Path(script), (), Path("/"), name=name)) == expected


TEXT = st.text(max_size=8) | st.sampled_from(["30", "2h", "1-0", "4G", "debug", "auto", "tcp", "ucx", "x.sif"])
NUMBER = st.none() | st.integers(-2, 200)
SPECS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict, name=TEXT, nodes=NUMBER, gpus_per_node=NUMBER, cpus_per_node=NUMBER, memory_per_node=TEXT, time=TEXT, account=TEXT,
    partition=TEXT | st.sampled_from(["long", "gpu"]), qos=TEXT, image=st.just("") | TEXT, dependency=TEXT,
)  # fmt: skip
PROFILES = st.fixed_dictionaries(
    {},
    optional={
        "scheduler": st.sampled_from(["slurm", "local"]),
        "defaults": st.fixed_dictionaries({}, optional={"nodes": st.integers(0, 3), "time": st.sampled_from(["", "30"]), "account": TEXT}),
        "resources": st.fixed_dictionaries({}, optional={"exclusive": st.booleans(), "memory_per_node": st.sampled_from(["", "3G"])}),
        "slurm": st.fixed_dictionaries(
            {}, optional={"extra": st.lists(TEXT | st.just("--mem=0"), max_size=2), "remove": st.lists(TEXT | st.just("--mem"), max_size=2),
                          "export": TEXT, "account_required": st.booleans(), "srun_extra": st.lists(TEXT, max_size=2)}),
        "partitions": st.just(TWO["partitions"]),
        "workers": st.fixed_dictionaries({}, optional={"per_node": st.integers(0, 3), "memory_limit": st.sampled_from(["", "2G"])}),
        "runtime": st.fixed_dictionaries({}, optional={"modules": st.lists(TEXT, max_size=2), "setup": st.lists(TEXT, max_size=2), "python": TEXT}),
        "environment": st.dictionaries(TEXT, TEXT, max_size=2),
    },
)  # fmt: skip


@given(PROFILES, SPECS)
def test_any_request_plans_or_explains_itself(profile: dict[str, Any], request_: dict[str, Any]) -> None:
    try:
        made = make_plan.plan(site(profile), spec(**request_), PLACE)
        text = batch_script.render(made)
    except HpcmlError as error:
        assert error.message
        assert error.place
        assert error.hint
        assert error.exit_status in (errors.USAGE, errors.REFUSED, errors.NOT_FOUND, errors.INTERNAL, errors.CONFIG)
        return
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert len(directives) == len(made.directives), "no value begins a line of its own"


def test_a_usage_error_names_the_profile_when_that_is_wrong() -> None:
    with pytest.raises(UsageError) as error:
        make_plan.plan(site({"defaults": {"nodes": 0}}), spec(), PLACE)
    assert error.value.place == "defaults.nodes"


def test_an_interpreter_that_is_no_absolute_path_is_refused() -> None:
    with pytest.raises(HpcmlError, match="not an absolute path"):
        make_plan.plan(site({"runtime": {"python": "~/venv/bin/python"}}), spec(), PLACE)


def test_what_the_user_says_goes_before_the_profile() -> None:
    table = {**TWO, "defaults": {"partition": "long", "account": "profile"}}
    assert directives(table)["--account"] == "profile"
    assert directives(table, account="mine")["--account"] == "mine"


def test_workers_that_are_too_small_to_start_are_refused() -> None:
    table = {**TWO, "workers": {"per_node": 64}}
    with pytest.raises(SiteError, match=in_order("64 workers", "3000 MiB", "47 MiB")):
        make_plan.plan(site(table), spec(memory_per_node="3000M"), PLACE)
    make_plan.plan(site(table), spec(memory_per_node="64G"), PLACE)
    with pytest.raises(SiteError, match=in_order("workers.memory_limit", "27 MiB", "80 MiB")):
        make_plan.plan(site({**TWO, "workers": {"memory_limit": "27MiB"}}), spec(), PLACE)


def test_one_thread_for_each_gpu_and_the_profiles_variables() -> None:
    made = make_plan.plan(site({**TWO, "environment": {"RAPIDS_NO_INITIALIZE": "0"}}), spec(gpus_per_node=4), PLACE)
    assert made.inside.workers.threads == 1
    assert [value for name, value in made.environment if name == "RAPIDS_NO_INITIALIZE"] == ["0"]
    assert dict(made.environment)["UCX_WARN_UNUSED_ENV_VARS"] == "n"


def test_a_script_has_the_profile_s_time_to_save_and_the_user_s_umask() -> None:
    profile = site({"scheduler": "slurm", "deadlines": {"script_grace": "17s", "teardown": "9s"}})
    made = make_plan.plan(profile, spec(), PLACE._replace(umask=0o027))
    assert (made.inside.deadlines.script_grace, made.inside.code.umask) == (17.0, 0o027)


def test_when_the_cluster_starts(subtests: pytest.Subtests) -> None:
    late = {"workers": {"start": "late"}}

    def made(table: dict[str, Any], **values: Any) -> make_plan.Plan:
        return make_plan.plan(site(TWO | table), spec(**values), PLACE)

    for table, values, expected in (
        ({}, {}, False),  # nobody has looked at the script
        (late, {}, True),
        (late, {"gpus_per_node": 4}, True),
        ({"workers": {"start": "early"}}, {}, False),
        (late, {"form": Form.NOTEBOOK}, False),
        (late, {"form": Form.JUPYTER}, False),
        (late, {"form": Form.INTERCONNECT}, False),
        (late, {"form": Form.PROGRAM}, True),
        (late, {"sweep": "s"}, False),
        (late, {"profile": "dask"}, False),
        (late, {"own_clusters": True}, False),
        (late, {"kind": "ranks", "of_kind": {"ranks": "node"}}, False),
    ):
        with subtests.test(f"{table} {values}"):
            assert made(table, **values).inside.workers.late == expected
    said = made(late, nodes=4)
    assert re.search(in_order("of 4", "add --ranks"), " ".join(said.notices))
    assert "--ranks" not in " ".join((*made({}, nodes=4).notices, *made(late).notices))


def test_tasks_get_the_options_of_the_script_s_python() -> None:
    for words, variables in {
        ("python", "-O"): {"PYTHONOPTIMIZE": "1"},
        ("python", "-BOO", "-W", "O", "-X", "utf8"): {"PYTHONOPTIMIZE": "2", "PYTHONUTF8": "1"},
        ("python", "-Xdev", "-u"): {},
    }.items():
        made = make_plan.plan(site(TWO), spec(interpreter=words), PLACE)
        assert {name: value for name, value in made.environment if name.startswith("PYTHON")} == variables
    asked = spec(interpreter=("python", "-O"), environment=(("PYTHONOPTIMIZE", "2"),))
    assert "PYTHONOPTIMIZE" not in dict(make_plan.plan(site(TWO), asked, PLACE).environment)


def test_workers_and_threads_of_a_node_on_cpus(subtests: pytest.Subtests) -> None:
    """As Dask divides a machine, where the job's CPUs are known and no worker has too little memory."""
    for cpus in range(1, 260):
        inside = make_plan.plan(site({"scheduler": "slurm"}), spec(cpus_per_node=cpus), PLACE).inside
        count = inside.workers.per_node
        assert (count, inside.workers.threads or cpus // count) == nprocesses_nthreads(cpus), cpus
    for settings, asked, workers, threads in (
        ({}, {"cpus_per_node": 16, "memory_per_node": "16G"}, 4, 4),
        ({}, {"cpus_per_node": 16, "memory_per_node": "7G"}, 2, 8),
        ({}, {"cpus_per_node": 16, "memory_per_node": "900M"}, 1, 0),
        ({"memory_limit": "8G"}, {"cpus_per_node": 16, "memory_per_node": "16G"}, 2, 8),
        ({"threads": 1}, {"cpus_per_node": 16}, 16, 1),
        ({"threads": 3}, {"cpus_per_node": 16}, 5, 3),
        ({"threads": 32}, {"cpus_per_node": 16}, 1, 32),
        ({"per_node": 2}, {"cpus_per_node": 16}, 2, 0),
        ({"per_node": 1}, {"cpus_per_node": 16}, 1, 0),
        ({}, {}, 1, 0),
        ({}, {"cpus_per_node": 16, "gpus_per_node": 2}, 2, 1),
        ({}, {"cpus_per_node": 16, "sweep": "one", "at_once": 1}, 1, 0),
        ({}, {"cpus_per_node": 16, "form": Form.JUPYTER}, 4, 4),
        ({}, {"cpus_per_node": 16, "form": Form.ELASTIC}, 1, 0),
        ({}, {"cpus_per_node": 16, "form": Form.INTERCONNECT}, 1, 0),
    ):
        with subtests.test(settings=settings, **{name: str(value) for name, value in asked.items()}):
            made = make_plan.plan(site({"scheduler": "slurm", "workers": settings}), spec(**asked), PLACE)
            assert (made.inside.workers.per_node, made.inside.workers.threads) == (workers, threads)


def test_the_template_is_compiled_once_for_each_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a place that cannot be written, or a damaged file, does not end a submission."""
    monkeypatch.setattr(assets, "_PACKAGE", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "_assets/templates").mkdir(parents=True)
    (tmp_path / "__pycache__").mkdir()
    template, compile_ = (
        tmp_path / "_assets/templates/batch.sh.j2",
        Mock(side_effect=Environment(autoescape=True)._compile),
    )
    monkeypatch.setattr(Environment, "_compile", lambda _, *words: compile_(*words))
    made = make_plan.plan(site(TWO), spec(), PLACE)
    texts = ("one {{ plan.run_id }}\n", "one {{ plan.run_id }}\n", "two\n")
    for text in texts:
        template.write_text(text)
        assert batch_script.render(made) == text.replace("{{ plan.run_id }}", made.run_id)
    assert compile_.call_count == 2
    [kept] = (tmp_path / "__pycache__").iterdir()
    whole = kept.read_bytes()
    for damaged in (b"x", b"", whole[:60], whole[:-80], whole[:30] + bytes(40) + whole[70:], whole[:-64]):
        kept.write_bytes(damaged)
        assert batch_script.render(made) == "two\n"
        assert kept.read_bytes() == whole  # written again: the next submission compiles nothing
    kept.unlink()
    kept.mkdir()  # a file that may not be read is no error either: another user's, who has umask 077
    assert batch_script.render(made) == "two\n"
    kept.rmdir()
    (tmp_path / "__pycache__").rmdir()
    assert batch_script.render(made) == "two\n"
