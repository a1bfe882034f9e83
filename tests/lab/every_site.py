"""Each shipped profile against a Slurm that is as the profile says: what the plan lets through is taken, at each limit.

They run by ``make test-slurms``; ``make test`` compares the limits of the lab's own profile (test_golden.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

import matrix
from hpcml import assets, units
from hpcml.errors import SiteError
from hpcml.plan import batch_script
from hpcml.sites import lookup
from hpcml.sites.schema import Partition, Qos, Site
from labs import Lab
from site_slurms import ACCOUNT, SiteSlurms, nodes_of

pytestmark = pytest.mark.lab

ENVIRONMENT = {"HOME": "/nonexistent"}
SITES = {
    name: site
    for name in lookup.profile_files(ENVIRONMENT)
    if (site := lookup.load_profile(name, ENVIRONMENT).site).scheduler == "slurm" and not site.unsupported
}
JOBS = sorted(path.name for path in assets.folder("jobs").glob("*.py") if "--ranks" not in path.read_text())


@pytest.fixture(scope="module")
def slurms(lab: Lab) -> Iterator[SiteSlurms]:
    found = SiteSlurms(lab)
    try:
        found.start(list(SITES.values()))
        yield found
    finally:
        found.end()


@pytest.mark.parametrize("name", SITES)
def test_a_slurm_as_the_profile_says(slurms: SiteSlurms, name: str, subtests: pytest.Subtests) -> None:
    site = SITES[name]
    slurms.become(site)
    scripts = slurms.dry_runs(_submissions(slurms, site))
    assert "#SBATCH --job-name=kmeans\n" in scripts["kmeans"].read_text()
    for form, answer in zip(scripts, slurms.ask([str(path)] for path in scripts.values()), strict=True):
        with subtests.test(form):
            assert answer.taken, answer.words
            assert site.partitions or f"in partition {next(iter(nodes_of(site)))}" in answer.words, answer.words

    limits = [(limit, slurms.scripts / f"limit-{number}.sh") for number, limit in enumerate(_limits(site))]
    for limit, script in limits:
        script.write_text(_script(name, limit.at))
    # --test-only does not know of QoS that allow more nodes than the partition: these are submitted, held.
    for how, above in (("--test-only", False), ("--hold", True)):
        asked = [pair for pair in limits if _above_the_partition(site, pair[0]) == above]
        at = slurms.ask(([str(script)] for _, script in asked), how)
        beyond = slurms.ask(([limit.option, str(script)] for limit, script in asked), how)
        for (limit, _), taken, refused in zip(asked, at, beyond, strict=True):
            with subtests.test(limit=limit.key):
                assert taken.taken, (limit.at, taken.words)
                assert not refused.taken, (limit.option, refused.words)
                assert _plan_objects(name, limit.beyond), limit.beyond


def _submissions(slurms: SiteSlurms, site: Site) -> dict[str, list[str]]:
    """Return the words of each submission: every job as it is, and one of them on more nodes, and with GPUs."""
    always = ["--site", site.name, *(["--account", ACCOUNT] if site.slurm.account_required else [])]
    forms = {name.removesuffix(".py"): [f"{slurms.scripts}/{name}"] for name in JOBS}
    forms["cpus"] = ["--nodes", "4", f"{slurms.scripts}/kmeans.py"]
    gpus = max(kind.gpus for kind in nodes_of(site).values())
    forms["one-gpu"] = ["--gpus-per-node", "1", f"{slurms.scripts}/kmeans.py"]
    forms["gpus"] = ["--nodes", "2", "--gpus-per-node", str(gpus), f"{slurms.scripts}/kmeans.py"]
    return {form: [*always, *words] for form, words in forms.items()}


class Limit(NamedTuple):
    """A limit of the profile: a request that just keeps it, one that just does not, and sbatch's option for that."""

    key: str
    at: Mapping[str, Any]
    beyond: Mapping[str, Any]
    option: str


def _limits(site: Site) -> Iterator[Limit]:
    gpus = "--gres=gpu:" if site.slurm.gpu_request == "gres" else "--gpus-per-node="
    if count := site.resources.node_gpus:
        asked = {"partition": "", "nodes": 1}
        yield _limit("resources.node_gpus", asked, "gpus_per_node", count, count + 1, f"{gpus}{count + 1}")
    for name, one in site.partitions.items():
        asked = {"partition": name, "nodes": one.min_nodes or 1, "gpus_per_node": one.gpus_per_node}
        yield from _sizes(f"partitions.{name}", one, asked)
        if count := one.gpus_per_node:
            option = f"{gpus}{count + 1}"
            yield _limit(f"partitions.{name}.gpus_per_node", asked, "gpus_per_node", count, count + 1, option)
        if count := one.cpus_per_node:
            option = f"--cpus-per-task={count + 1}"
            yield _limit(f"partitions.{name}.cpus_per_node", asked, "cpus_per_node", count, count + 1, option)
        if size := int(one.memory_per_node) >> 20:
            option = f"--mem={size + 1}M"
            yield _limit(
                f"partitions.{name}.memory_per_node", asked, "memory_per_node", f"{size}M", f"{size + 1}M", option
            )
    for name, qos in site.qos.items():
        partition = next(iter(qos.partitions), "")
        gpus_there = site.partitions.get(partition, Partition()).gpus_per_node
        asked = {"qos": name, "partition": partition, "nodes": qos.min_nodes or 1, "gpus_per_node": gpus_there}
        yield from _sizes(f"qos.{name}", qos, asked)


def _sizes(key: str, limits: Partition | Qos, asked: dict[str, Any]) -> Iterator[Limit]:
    if most := limits.max_nodes:
        yield _limit(f"{key}.max_nodes", asked, "nodes", most, most + 1, f"--nodes={most + 1}")
    if least := limits.min_nodes:
        yield _limit(f"{key}.min_nodes", asked, "nodes", least, least - 1, f"--nodes={least - 1}")
    if longest := int(limits.max_time):
        time, more = (units.format_time_limit(seconds) for seconds in (longest, longest + 60))
        yield _limit(f"{key}.max_time", asked, "time", time, more, f"--time={more}")


def _limit(key: str, asked: dict[str, Any], field: str, at: Any, beyond: Any, option: str) -> Limit:
    return Limit(key, {**asked, field: at}, {**asked, field: beyond}, option)


def _script(name: str, spec: Mapping[str, Any]) -> str:
    """Return the batch script of a request that keeps all limits: the plan says nothing against it."""
    made = matrix.make(name, matrix.Case("limit", spec))
    assert not [notice for notice in made.notices if "Slurm decides" in notice], made.notices
    return batch_script.render(made)


def _above_the_partition(site: Site, limit: Limit) -> bool:
    """Return whether a request needs a QoS that overrides the most nodes of its partition."""
    most = site.partitions.get(limit.at["partition"], Partition()).max_nodes
    return 0 < most < int(limit.at["nodes"])


def _plan_objects(name: str, spec: Mapping[str, Any]) -> bool:
    """Return whether the plan refuses a request, or doubts it where the limit is only hearsay."""
    try:
        made = matrix.make(name, matrix.Case("limit", spec))
    except SiteError:
        return True
    return any("so Slurm decides" in notice for notice in made.notices)
