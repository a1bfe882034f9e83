"""Whether and how an image is copied to the nodes: what the profile asks for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hpcml.errors import ConfigError
from hpcml.plan import container
from hpcml.schedulers import JobLayout
from hpcml.sites import schema
from matrix import site_of

CLUSTER, HERE = JobLayout(stage_modes=("copy", "sbcast")), JobLayout(one_machine=True)


def site(scheduler: str = "slurm", scratch: str = "", **runtime: Any) -> schema.Site:
    return site_of({"scheduler": scheduler, "runtime": runtime, "paths": {"scratch": scratch}})


def test_only_where_the_profile_and_the_run_ask_for_it() -> None:
    assert container.stage(site(), "/i/a.sif", CLUSTER) is None
    assert container.stage(site(stage="copy"), "", CLUSTER) is None
    assert container.stage(site(stage="copy"), "/i/a.sif", CLUSTER) == container.Stage("copy", "", 300, "1", None)


@pytest.mark.parametrize(("scratch", "to", "folder"), [
    ("", "/local/x/", "/local/x"), ("/scratch", "", "/scratch"), ("/scratch", "$TMPDIR", "$TMPDIR"),
    ("", "/local/$SLURM_JOB_ID/x", "/local/$SLURM_JOB_ID/x"), ("", "${A}/x", "${A}/x"),
])  # fmt: skip
def test_the_folder(scratch: str, to: str, folder: str) -> None:
    made = container.stage(site(scratch=scratch, stage="sbcast", stage_to=to), "/i/a.sif", CLUSTER)
    assert made is not None
    assert made.folder == folder


@pytest.mark.parametrize("folder", ["local", "./x", "~/x", "$1/x"])
def test_a_folder_that_is_none(folder: str) -> None:
    with pytest.raises(ConfigError, match=r"not an absolute path.*runtime\.stage_to"):
        container.stage(site(stage="copy", stage_to=folder), "/i/a.sif", CLUSTER)


def test_sbcast_is_slurm_s() -> None:
    with pytest.raises(ConfigError, match=r"sbcast needs Slurm.*runtime\.stage"):
        container.stage(site("local", stage="sbcast"), "/i/a.sif", HERE)
    assert container.stage(site("local", stage="copy"), "/i/a.sif", HERE)
