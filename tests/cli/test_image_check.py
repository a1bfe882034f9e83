"""`hpcml image check` with an executable in place of Apptainer: good images, bad ones, and those that do not start."""

from __future__ import annotations

import json
import re
import shlex
import subprocess

import pytest

from hpcml import errors
from image_program import GPU_LABELS, NO_UCX, PROBED, Program, image
from tests.fixtures.images import sif_file
from tests.said import in_order
from world import World


@pytest.fixture
def program(world: World) -> Program:
    return Program(world)


def states(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {row["subject"]: row["state"] for row in json.loads(done.stdout)["findings"]}


def probed(world: World, program: Program, labels: dict[str, str], **changed: object) -> None:
    definition = sif_file.DEFINITION.replace("kind cpu", f"kind {labels['org.hpcml.kind']}")
    sif_file.make(world.project / "a.sif", labels, definition=definition)
    program.install(exec=f"echo noise; printf '%s\\n' {shlex.quote(json.dumps(PROBED | changed))}")


def test_a_good_image(world: World, program: Program) -> None:
    probed(world, program, sif_file.SAID)
    done = image(world, "check", "--json", "a.sif", status=0)
    assert set(states(done).values()) == {"good"}
    assert states(done).keys() == {"file", "labels", "definition", "starts", "imports", "versions", "host"}
    assert json.loads(done.stdout)["good"] is True
    assert "exec --cleanenv" in program.words()[-1]
    assert "--nv" not in program.words()[-1]


def test_without_a_program_the_rest_is_checked(world: World) -> None:
    sif_file.make(world.project / "a.sif")
    says = ("labels      good", "starts      bad", "there is no apptainer")
    image(world, "check", "a.sif", status=errors.IMAGE, says=says)


def test_the_probe_runs_and_says_what_is_missing(world: World, program: Program) -> None:
    """The image is the machine's own bare Python here, which has no Dask."""
    sif_file.make(world.project / "a.sif")
    program.install(exec='shift 3; exec "$@"')
    bare = world.run("image", "check", "--json", "a.sif")
    found = {row["subject"]: row["words"] for row in json.loads(bare.stdout)["findings"]}
    assert bare.returncode == errors.IMAGE
    assert "Python 3." in found["starts"]
    assert "cannot be imported: ModuleNotFoundError" in found["imports"]


def test_a_gpu_image(world: World, program: Program) -> None:
    fine = {
        "driver": "535.274.02",
        "ucx": NO_UCX | {"version": "1.21.0", "library": "/opt/ucx/lib/libucp.so.0", "modules": ["cuda", "ib"]},
        "packages": {"dask": "2026.7.1"},
    }
    probed(world, program, GPU_LABELS, **fine)
    done = image(world, "check", "--gpu", "--json", "a.sif", status=0)
    assert {"ucx", "rdma-core", "gpu"} <= states(done).keys()
    assert re.search(in_order("UCX 1.21.0 in /opt/ucx/lib", "InfiniBand; on this machine UCX"), done.stdout)
    assert all("exec --cleanenv --nv" in line for line in program.words() if line.startswith("exec"))
    for changed, subject, says in (
        ({"driver": "470.1"}, "gpu", "needs driver 535 or newer"),
        ({"driver": ""}, "gpu", "driver does not respond"),
        ({"compute": "MemoryError: x"}, "gpu", "cannot add three numbers"),
        ({"ucx": NO_UCX | {"modules": ["cuda"]}}, "ucx", "the image lacks InfiniBand support"),
        ({"verbs": "libibverbs.so.1: cannot open"}, "rdma-core", "libibverbs cannot be loaded"),
        ({"failed": {"cuml": "ImportError: x"}}, "imports", "cuml cannot be imported"),
    ):
        probed(world, program, GPU_LABELS, **(fine | changed))
        done = image(world, "check", "--gpu", "--json", "a.sif", status=errors.IMAGE, says=(says,))
        assert [name for name, state in states(done).items() if state == "bad"] == [subject]
    missing = {name: f"ModuleNotFoundError: No module named '{name}'" for name in ("cudf", "cuml")}
    probed(world, program, GPU_LABELS, **fine, failed=missing)
    image(world, "check", "--gpu", "a.sif", status=errors.IMAGE, says=("imports     bad   missing: cudf, cuml",))
    probed(world, program, sif_file.SAID)
    image(
        world,
        "check",
        "--gpu",
        "a.sif",
        status=errors.IMAGE,
        says=("the image has no GPU packages", "one check failed"),
    )
