"""What UCX and NCCL write into their logs: recorded here without GPU and InfiniBand, or quoted from public issues.

The InfiniBand and GPU forms are untested on hardware; each fixture says where its lines come from.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcml.node.interconnect.measurement import parse_nccl_log, parse_ucx_log, transport_variables

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures/fabric"
WHEEL = "/home/user/run/.venv/lib/python3.11/site-packages/libucx/lib/libucp.so"


def log(name: str) -> str:
    return (FIXTURES / f"{name}.log").read_text()


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        ("ucx-tcp-one-node", {"self": [], "intra": ["tcp/eth0", "tcp/lo"], "inter": ["tcp/lo"]}),
        ("ucx-tcp-two-nodes", {"self": [], "intra": ["tcp/eth1"], "inter": ["tcp/eth1"]}),
        ("ucx-self", {"self": ["tcp/eth0", "tcp/lo"], "intra": ["tcp/lo"], "inter": ["tcp/lo"]}),
        ("ucx-protocol-tables", {"self": [], "intra": ["tcp/eth0", "tcp/lo"], "inter": []}),
        (
            "ucx-rc-and-cuda_ipc",
            {
                "self": [],
                "intra": [
                    "cma/memory",
                    "cuda_ipc/cuda",
                    *(f"rc_mlx5/mlx5_{number}:1" for number in range(4)),
                    "sysv/memory",
                ],
                "inter": [f"rc_mlx5/mlx5_{number}:1" for number in range(4)],
            },
        ),
        (
            "ucx-rc-and-dc",
            {"self": [], "intra": ["srd/rdmap16s27:1"], "inter": ["dc_mlx5/mlx5_2:1", "rc_mlx5/mlx5_0:1"]},
        ),
        (
            "ucx-tcp-and-cuda_ipc",
            {"self": [], "intra": ["cuda_ipc/cuda", *(f"tcp/eth{number}" for number in (1, 5, 6, 7, 8))], "inter": []},
        ),
        ("ucx-nothing-usable", {"self": [], "intra": [], "inter": []}),
    ],
)
def test_lanes(name: str, lanes: dict[str, list[str]]) -> None:
    assert parse_ucx_log(log(name))["lanes"] == lanes


def test_lanes_by_operation_and_a_lane_that_only_asks_for_life() -> None:
    found = parse_ucx_log(log("ucx-tcp-and-cuda_ipc"))["operations"]["intra"]
    assert list(found) == ["am", "amo_am", "ka", "rma_am"]
    assert found["rma_am"] == found["ka"] == ["tcp/eth1"]
    assert "cuda_ipc/cuda" in found["am"]
    alive = parse_ucx_log("UCX  INFO    c inter-node cfg#1 tag(tcp/ib0)  ka(ud_mlx5/mlx5_0:1)\n")
    assert alive["lanes"]["inter"] == ["tcp/ib0"]


def test_the_title_of_a_protocol_table_names_no_lanes() -> None:
    title = (
        "| ucp_context_0 inter-node cfg#1 | active message by ucp_am_send* with reply flag(multi) from host memory |"
    )
    assert parse_ucx_log(f"proto_debug.c:406  UCX  INFO  {title}\n")["lanes"]["inter"] == []


def test_version_library_and_settings() -> None:
    found = parse_ucx_log(log("ucx-forced-tcp"))
    assert (found["version"], found["library"]) == ("1.21.0", WHEEL)
    assert found["settings"]["UCX_TLS"] == "tcp,cuda_copy"
    assert found["settings"]["UCX_MAX_RNDV_RAILS"] == "1"
    json.dumps(found)


def test_transports_that_are_not_there() -> None:
    found = parse_ucx_log(log("ucx-no-infiniband"))
    assert found["unavailable"] == ["rc", "cuda_copy"]
    assert found["available"] == ["cma", "mm", "posix", "self", "shm", "sm", "sysv", "tcp"]
    (warning,) = found["warnings"]  # and not what UCXX's own variable provokes
    assert warning.startswith("transports 'rc','cuda_copy' are not available")
    alone = parse_ucx_log(log("ucx-nothing-usable"))
    assert alone["unavailable"] == ["rc"]
    assert alone["errors"] == ["no usable transports/devices (asked rc on network:intra-node:accelerator:loopback:)"]


def test_what_is_said_twice_is_kept_once() -> None:
    (error,) = parse_ucx_log(log("ucx-memlock"))["errors"]
    assert "max locked memory" in error


def test_a_log_that_is_empty_or_of_something_else() -> None:
    for text in ("", "Traceback (most recent call last):\n  inter-node cfg#1 tag(rc_mlx5/mlx5_0:1)\n"):
        found = parse_ucx_log(text)
        assert found["lanes"] == {"self": [], "intra": [], "inter": []}
        assert (found["version"], found["warnings"], found["errors"]) == ("", [], [])


def test_nccl_over_infiniband() -> None:
    found = parse_nccl_log(log("nccl-infiniband"))
    assert (found["version"], found["net"], found["devices"]) == ("2.24.3", "IB", ["mlx5_0:1", "mlx5_2:1"])
    assert (found["within"], found["across"], found["gdr"]) == ({"P2P/CUMEM": 2}, {"NET/IB": 3}, 2)
    assert (found["channels"], found["nvls_channels"], found["nvls"]) == (8, 0, False)
    assert found["settings"] == {"NCCL_IB_DISABLE": "0"}  # "set to …" is the same again, not a setting of its own
    assert found["warnings"] == []
    json.dumps(found)


def test_nccl_over_a_plugin() -> None:
    found = parse_nccl_log(log("nccl-plugin"))
    assert (found["net"], found["across"]) == ("IBext", {"NET/IBext_v8": 1})
    assert found["devices"] == ["mlx5_0:1", "mlx5_1:1", "mlx5_4:1", "mlx5_5:1"]


def test_nccl_over_sockets() -> None:
    found = parse_nccl_log(log("nccl-sockets"))
    assert (found["net"], found["devices"]) == ("Socket", ["lo"])
    assert found["within"] == {"SHM": 1, "P2P/IPC": 1}
    assert (found["across"], found["gdr"]) == ({"NET/Socket": 2}, 0)
    assert found["settings"] == {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
    assert found["warnings"] == ["socketFinalizeAccept: wrong type 4 != 3"]


def test_nccl_on_one_node() -> None:
    found = parse_nccl_log(log("nccl-one-node"))
    assert (found["net"], found["within"], found["across"]) == ("Socket", {"P2P/direct pointer": 1}, {})
    assert (found["channels"], found["nvls"]) == (16, True)


def test_nccl_that_said_nothing() -> None:
    found = parse_nccl_log("")
    assert (found["net"], found["devices"], found["nvls"], found["channels"]) == ("", [], None, 0)


def test_the_variables_that_decide() -> None:
    given = {"UCX_TLS": "tcp", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/root", "AN_UCX_": "1",
             "UCXPY_IFNAME": "ib0", "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY": "true"}  # fmt: skip
    assert transport_variables(given).keys() == given.keys() - {"HOME", "AN_UCX_"}
