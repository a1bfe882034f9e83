"""`hpcml site init` on two machines whose profiles ship with hpcml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from test_sites_as_they_are import settle
from world import World

GPUS = ("--gpus-per-node", "4")
# Requests, and the directives in which the profiles may differ because the written one asks about them.
MACHINES = {
    "leonardo": (
        [("--nodes", "4", *GPUS), ("--nodes", "2", *GPUS, "--qos", "boost_qos_dbg"), ("--nodes", "4", "--time", "4h")],
        {"--mem": "partitions.boost_usr_prod.memory_per_node"},
    ),
    "marenostrum5": (
        [("--nodes", "2", *GPUS), ("--nodes", "1", "--gpus-per-node", "1"), ("--nodes", "2", *GPUS, "--qos", "acc_debug")],
        {"--mem": "slurm.remove", "--partition": "must a job name the partition acc", "--cpus-per-task": "threads"},
    ),
}  # fmt: skip


def directives(world: World, site: str, request: tuple[str, ...], env: dict[str, str]) -> dict[str, str]:
    done = world.run(
        "submit", "--dry-run=script", "--json", "--site", site, "--account", "mine", *request, "job.py", env=env
    )
    assert done.returncode == 0, done.stderr
    return {key: value for key, value in json.loads(done.stdout)["directives"] if key not in ("--comment", "--output")}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_plan_is_that_of_the_shipped_profile_or_a_question(
    world: World, machine: str, subtests: pytest.Subtests
) -> None:
    env = settle(world, machine)
    done = world.run("site", "init", f"my-{machine}", "--json", env=env)
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)
    requests, open_questions = MACHINES[machine]
    for request in requests:
        with subtests.test(request=request):
            mine, shipped = (directives(world, site, request, env) for site in (f"my-{machine}", machine))
            differ = {key for key in mine.keys() | shipped.keys() if mine.get(key) != shipped.get(key)}
            assert differ <= open_questions.keys(), (mine, shipped)
            for key in differ:
                questions = written["questions"]
                assert any(open_questions[key] in question for question in questions), (key, questions)
    dry = world.run("submit", "--site", f"my-{machine}", "--dry-run=script", *requests[0], "job.py", env=env)
    assert dry.returncode == 0, dry.stderr
    text = Path(written["path"]).read_text()
    assert ("slurm.denied" in text) == (machine == "marenostrum5"), text
