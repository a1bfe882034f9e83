"""sbatch's options: which are passed on, how they meet the profile's, and which option stands for the others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpcml.cli import commands
from hpcml.errors import UsageError
from hpcml.options import sbatch_options
from hpcml.options.reading import request_of
from hpcml.options.table import OPTIONS
from hpcml.plan import make_plan
from hpcml.request.record import Code, RunRequest
from hpcml.schedulers import local
from matrix import site_of
from tests.said import in_order, says

LOCATION = make_plan.RunLocation(Path("/runs/job-20261121-074500-1a2b"), "/usr/bin/python3", "0")


def request(*words: str) -> RunRequest:
    return request_of(vars(commands.build_parser("submit").parse_args(words)), Code(Path("job.py")))


def planned(table: dict[str, Any], *words: str) -> make_plan.Plan:
    return make_plan.plan(site_of({"scheduler": "slurm", "name": "here", **table}), request(*words), LOCATION)


@pytest.mark.parametrize(("words", "expected"), [
    (("-N", "4", "--nodes", "2"), {"nodes": 2}),
    (("-A", "a", "-p", "b", "-q", "c", "-J", "d"), {"account": "a", "partition": "b", "qos": "c", "name": "d"}),
    (("-t", "1:00:00", "--mem", "10G"), {"time": 3600, "memory_per_node": 10 * 1024**3}),
    (("--gpus-per-node", "a100:4"), {"gpus_per_node": 4, "gpu_type": "a100"}),
    (("-C", "a", "--sbatch=--constraint=b"), {"sbatch": (("--constraint", "b"),)}),
    (("--exclusive", "-x", "n1"), {"sbatch": (("--exclusive", ""), ("--exclude", "n1"))}),
])  # fmt: skip
def test_slurms_words(words: tuple[str, ...], expected: dict[str, Any]) -> None:
    spec = request(*words)
    assert {name: spec.value(name) for name in expected} == expected


def test_what_hpcml_decides_is_not_passed_on(subtests: pytest.Subtests) -> None:
    own = [option for option in sbatch_options.INSTEAD if option.startswith("--") and option != "--gres"]
    for option in (*own, "--nodes", "--job-name", "--mem"):
        with subtests.test(option=option):
            with pytest.raises(UsageError, match="does not pass your value") as caught:
                request(f"--sbatch={option}=1")
            assert caught.value.hint.endswith((".", "hpcml logs RUN."))


@pytest.mark.parametrize("text", ["constraint=x", "-C x", "", "--constraint=", "--gres=gpu:2", "--gres=tmpfs:1,gpu:2"])
def test_what_is_no_option_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        request(f"--sbatch={text}")


@pytest.mark.parametrize(("text", "expected"), [
    ("gpu", ("1", "")), ("gpu:a100", ("a100:1", "")), ("gpu:a100:4,tmpfs:10g", ("a100:4", "tmpfs:10g")),
])  # fmt: skip
def test_gres_of_a_job_script(text: str, expected: tuple[str, str]) -> None:
    assert sbatch_options.gres(text) == expected


@pytest.mark.parametrize("text", ["", "gpu:4,", "gpu:1,gpu:2"])
def test_gres_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        sbatch_options.gres(text)


def test_options_are_passed_on_and_replace_the_profiles() -> None:
    profile = {"slurm": {"extra": ["--constraint=cpu", "--requeue"], "gpu_request": "gres"}}
    words = ("-C", "fast", "--gpus-per-node=a100:2", "--sbatch=--gres=tmpfs:1g", "--exclusive", "--sbatch=--no-requeue")
    made = planned(profile, *words)
    found = dict(made.directives)
    assert found["--constraint"] == "fast"
    assert found["--gres"] == "gpu:a100:2,tmpfs:1g"
    assert found["--exclusive"] == found["--no-requeue"] == ""
    assert "--requeue" not in found
    assert not made.may_start_again
    assert (
        "hpcml ignores --constraint=cpu of the profile's slurm.extra, because your request contains --constraint"
        in made.reasons
    )
    names = [option for option, _ in made.directives]
    assert len(names) == len(set(names))


def test_the_local_site_says_that_it_passes_nothing_on() -> None:
    made = planned({"scheduler": "local"}, "-C", "fast", "--exclusive")
    assert made.notices == (says("ignores --constraint, --exclusive"),)
    made = planned({"scheduler": "local"}, "--mem", "300M", "--cpus-per-node", "1", "-q", "x", "-C", "fast")
    assert made.notices == (
        says("ignores --qos, --memory-per-node, --constraint", "workers.memory_limit"),
        says("reserves no CPUs", "--cpus-per-node 1", "--ranks"),
    )
    made = planned({"scheduler": "local"}, "--dependency", "afterok:1")
    assert made.notices == made.ignored == (says("ignores --dependency"),)
    made = planned({"scheduler": "local"}, "--cpus-per-node", "2")
    assert "ignores" not in str(made.ignored) != "()", "it limits --ranks"
    assert not planned({"scheduler": "local"}).ignored


@pytest.mark.parametrize("shown", ["", "nvidia0", "nvidia-smi"])
def test_the_local_site_says_that_its_machine_has_no_gpu(
    shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_DEVICES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "nvidiactl").touch()  # the driver's, which no GPU has
    if shown:
        (tmp_path / shown).touch(mode=0o755)
    made = planned({"scheduler": "local"}, "--gpus-per-node", "2")
    assert made.ignored == (() if shown else (says("no NVIDIA GPU", "--gpus-per-node"),))
    assert {*made.ignored} <= {*made.notices}
    assert not planned({"scheduler": "local"}).ignored


def test_an_option_of_slurm_s_works_on_the_local_site_or_is_named_there() -> None:
    """Those that are passed to Slurm are named as they are."""
    of_slurm = {name for name, option in OPTIONS.items() if option.slurm}
    works = {"after", "nodes", "time", "gpus_per_node", "name"}
    assert of_slurm == works | {*local._IGNORED, "cpus_per_node"}


@pytest.mark.parametrize(("words", "hint"), [
    (("--node", "4"), "Did you mean --nodes?"),
    (("--gpus=4",), "Use --gpus-per-node"),
    (("--gres=gpu:4",), "Use --gpus-per-node 4"),
    (("--protocol", "ucx"), "Use --set network.protocol=ucx"),
    (("--licenses=foo",), "--sbatch=--licenses=foo"),
])  # fmt: skip
def test_an_unknown_option_is_answered_with_what_is_meant(words: tuple[str, ...], hint: str) -> None:
    with pytest.raises(UsageError, match="There is no option") as caught:
        commands.build_parser("submit").parse_args(words)
    assert hint in caught.value.hint


def test_near_names_of_the_profile() -> None:
    table = {"partitions": {"long": {"qos": "slow"}, "gpu": {}}}
    assert "Did you mean long?" in planned(table, "-p", "lomg").notices[0]
    assert "did you mean slow?" in planned(table, "-q", "slwo").notices[0]


def test_nodes_with_gpus_are_not_taken_silently_without_them() -> None:
    partitions = {"boost": {"gpus_per_node": 4}, "cpu": {"max_nodes": 8}}

    def partition_and_notices(*words: str) -> tuple[str, str]:
        made = planned({"defaults": {"partition": "boost"}, "partitions": partitions}, *words)
        return dict(made.directives)["--partition"], " ".join(made.notices)

    partition, notices = partition_and_notices("-N4")
    assert partition == "cpu"
    assert "'boost' has GPUs, but the job requests none" in notices
    partition, notices = partition_and_notices("-N4", "-p", "boost")
    assert partition == "boost"
    assert re.search(in_order("16 GPUs", "--gpus-per-node 4"), notices)
    partition, notices = partition_and_notices("-N9")  # too many for the other
    assert partition == "boost"
    assert "36 GPUs" in notices
    assert partition_and_notices("-N4", "--gpus-per-node=4") == ("boost", "")


def test_options_of_tasks_lead_to_ranks_and_to_workers() -> None:
    for option in ("--ntasks", "-n", "--ntasks-per-node"):
        assert "(PyTorch, JAX, MPI), use --ranks N." in sbatch_options.instead(option)
    assert "--ranks gpu" in sbatch_options.instead("--gpus-per-task")


def test_no_memory_is_all_memory_of_a_node() -> None:
    """As Slurm's ``--mem=0`` has it: typed, in a profile, and where the profile knows how much a node has."""
    known: dict[str, Any] = {"partitions": {"p": {"memory_per_node": "100G"}}}
    for table, words in (({}, ("--mem", "0")), ({}, ("--memory-per-node=0G",)), ({"resources": {"memory_per_node": "0"}}, ()),
                         (known, ("--mem=0", "-p", "p"))):  # fmt: skip
        assert dict(planned(table, *words).directives)["--mem"] == "0"
    removed = {"slurm": {"remove": ["--mem"]}}
    made = planned(removed, "--mem", "0")
    assert not {"--mem", "--mem-per-cpu"} & dict(made.directives).keys()
    assert "hpcml ignores --memory-per-node: the profile removes --mem (slurm.remove)" in made.notices
    made = planned(removed | known, "--mem", "0", "-p", "p", "--cpus-per-node", "4")
    assert dict(made.directives)["--mem-per-cpu"] == "25600M"
    with pytest.raises(UsageError, match="less than 1 MiB") as caught:
        planned({}, "--mem", "1K")
    assert "For all memory of a node, use 0." in caught.value.hint
