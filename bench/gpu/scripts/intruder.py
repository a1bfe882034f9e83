"""Try to talk to a Dask process over UCX as another account, and print whether it answered as one line of JSON.

Privileges are dropped before anything else is imported. Without ``--key`` this is plain distributed-ucxx, as anybody
may run it; with a key it is hpcml's own client side.
"""

from __future__ import annotations

import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--uid", type=int, required=True)
parser.add_argument("--gid", type=int, required=True)
parser.add_argument("--key", default="")
parser.add_argument("--try-to-read", default="")
parser.add_argument("address")
options = parser.parse_args()
os.setgroups([])
os.setgid(options.gid)
os.setuid(options.uid)

import asyncio  # noqa: E402
import json  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

DEADLINE = 15.0  # seconds for connecting, and for an answer


def install() -> None:
    if options.key:
        from hpcml.kinds.dask.node.security import ucx_auth

        ucx_auth.install(Path(options.key).absolute())


async def ask(address: str) -> dict[str, Any]:
    """Ask for the identity that every Dask server tells to whoever is let in."""
    from distributed.comm import connect

    comm = await connect(address, timeout=DEADLINE)
    try:
        await comm.write({"op": "identity", "reply": True})
        answer: dict[str, Any] = await comm.read()
    finally:
        comm.abort()
    return answer


async def attempt(address: str) -> tuple[bool, str]:
    """Return whether we were refused, and how we know."""
    try:
        answer = await asyncio.wait_for(ask(address), 2 * DEADLINE)
    except (OSError, TimeoutError, RuntimeError, ValueError) as error:
        return True, f"{type(error).__name__}: {error}"[:200]
    except Exception as error:  # noqa: BLE001 - UCXX's own errors come from a module that need not be there
        return True, f"{type(error).__module__}.{type(error).__name__}: {error}"[:200]
    return False, f"it answered as {answer.get('type', '?')}"


def may_read(path: str) -> bool:
    try:
        Path(path).read_bytes()
    except OSError:
        return False
    return True


def main() -> None:
    install()
    began = time.monotonic()
    refused, how = asyncio.run(attempt(options.address))
    facts = {"refused": refused, "how": how, "seconds": round(time.monotonic() - began, 3), "uid": os.getuid(),
             "read_key": bool(options.try_to_read) and may_read(options.try_to_read)}  # fmt: skip
    print("\n" + json.dumps({"intruder": facts}), flush=True)
    os._exit(0)  # UCX's teardown after an aborted connection is not what is measured


if __name__ == "__main__":
    main()
