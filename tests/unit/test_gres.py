"""Slurm's generic resources in all forms that its manuals and its commands have."""

from __future__ import annotations

import pytest

from hpcml.options import sbatch_options
from hpcml.plan import cost
from hpcml.schedulers import existing_allocation, gres
from hpcml.sites.schema import Site

# A text, and its resources: name, type, count.
FORMS = {
    # slurm.conf(5), gres.conf(5)
    "gpu:tesla:1,gpu:kepler:1,bandwidth:lustre:no_consume:4G": [("gpu", "tesla", 1), ("gpu", "kepler", 1), ("bandwidth", "lustre", 4 << 30)],
    "gpu:a100:no_consume:4": [("gpu", "a100", 4)],
    "gpu:no_consume:4": [("gpu", "", 4)],
    "gpu:2,mps:200,shard:16": [("gpu", "", 2), ("mps", "", 200), ("shard", "", 16)],
    "craynetwork:4,tmpfs:10K,nic:2M": [("craynetwork", "", 4), ("tmpfs", "", 10240), ("nic", "", 2 << 20)],
    # sinfo %G, scontrol show node
    "gpu:2080ti:8(S:0-1)": [("gpu", "2080ti", 8)],
    "gpu:3090:4": [("gpu", "3090", 4)],
    "gpu:4080super:4(S:0)": [("gpu", "4080super", 4)],
    "gpu:1g.5gb:7,gpu:3g.20gb:2": [("gpu", "1g.5gb", 7), ("gpu", "3g.20gb", 2)],
    "gpu:h100_1g.10gb:7": [("gpu", "h100_1g.10gb", 7)],
    "gpu:ampere:6(S:0-1),gpu:1g.10gb:28(S:0,2)": [("gpu", "ampere", 6), ("gpu", "1g.10gb", 28)],
    "gpu:1g.10gb+me:1": [("gpu", "1g.10gb+me", 1)],
    "gpu:Tesla_V100-PCIE-32GB:2(S:1)": [("gpu", "Tesla_V100-PCIE-32GB", 2)],
    "gpu:nvidia_rtx_5000_ada_generation:4(S:0),VramPerGpu:no_consume:32G": [("gpu", "nvidia_rtx_5000_ada_generation", 4), ("VramPerGpu", "", 32 << 30)],
    "gpu:4(S:0-1,3)": [("gpu", "", 4)],
    # GresUsed, scontrol --details show job
    "gpu:1080ti:1(IDX:0),gpu:980gtx:1(IDX:1)": [("gpu", "1080ti", 1), ("gpu", "980gtx", 1)],
    "gpu:(null):0(IDX:N/A)": [("gpu", "", 0)],
    "gpu:a100:2(IDX:0,3),shard:a100:0(0/4,0/4)": [("gpu", "a100", 2), ("shard", "a100", 0)],
    "gpu:tesla(CNT:2)": [("gpu", "tesla", 2)],
    "gres:gpu:2": [("gpu", "", 2)],
    "gres/gpu:a100:2": [("gpu", "a100", 2)],
    # sbatch --gres
    "gpu": [("gpu", "", 1)],
    "gpu:kepler": [("gpu", "kepler", 1)],
    "gpu:1g.10gb": [("gpu", "1g.10gb", 1)],
    "gpu:kepler:2,mic:1": [("gpu", "kepler", 2), ("mic", "", 1)],
    "": [], "(null)": [], "N/A": [], "none": [],
}  # fmt: skip


@pytest.mark.parametrize("text", FORMS)
def test_every_form_is_read(text: str) -> None:
    assert [one[:3] for one in gres.read(text)] == FORMS[text]


def test_what_is_no_resource_has_no_name() -> None:
    assert [one.name for one in gres.read("gpu:4,")] == ["gpu", ""]
    assert gres.read("gpu 4 of them")[0].name == ""


def test_slices_of_gpus_are_no_gpus() -> None:
    slices = ("1g.5gb", "h100_1g.10gb", "nvidia_a100_3g.39gb", "mig-2g.20gb", "1c.3g.20gb", "1g.10gb+me")
    whole = ("a100", "2080ti", "3090", "v100-32gb", "gtx1080", "rtx_6000", "l40s", "a100_80gb", "")
    for name in (*slices, *whole):
        assert gres.is_slice(name) == (name in slices), name


def test_one_grammar_for_nodes_requests_and_allocations() -> None:
    assert sbatch_options.gres("gpu:2080ti:8,shard:4") == ("2080ti:8", "shard:4")
    assert sbatch_options.gres("gpu:1g.10gb") == ("1g.10gb:1", "")
    for option, text in (("--gres", "lustre:1,gpu:4090:3"), ("--gpus-per-node", "4090:3"), ("--gpus-per-node", "3")):
        assert cost.request(Site(), ((option, text),), 2, 60).gpus == 6
    shown = "JobId=1 JobState=RUNNING NodeList=n1   Nodes=n1 CPU_IDs=0-7 Mem=10 GRES=gpu:1g.10gb:2(IDX:0,3),gpu:5090:1(IDX:1) "
    assert existing_allocation.parse("1", shown).gpus == 3
