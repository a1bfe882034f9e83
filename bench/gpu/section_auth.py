"""Who may talk UCX to a run: nobody without its key, from another account, while the run goes on; and what that costs.

The intruder is ``nobody`` on the run's own node, as its loopback is all that a run of one node listens on: with no key,
with a key of its own, and, to prove that the refusals are refusals, with a copy of the right key, which must get in.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import statistics
from pathlib import Path
from typing import Any

from harness import ROOT, SCRIPTS, Case, HarnessError, Run, Running, World, last_lines, read_json, run_directory
from results import Result, result, skipped
from slurm import wait_for

INTRUDER = "nobody"
DEADLINE = 200
READY = 100  # seconds for the run's script to be there
TRY_DEADLINE = 90
MESSAGE_MIB, MESSAGES, CONNECTIONS = 256, 200, 20
STOCK_MESSAGES = 40  # as distributed-ucxx comes, up to a second passes between them
ENOUGH = 0.95


def cases(world: World) -> list[Case]:
    """Return the two cases."""
    return [Case("intruder", 100, lambda: _intruder(world)), Case("throughput", 100, lambda: _throughput(world))]


# -- who gets in -------------------------------------------------------------------------------------------------------


def _intruder(world: World) -> list[Result]:
    if os.geteuid():
        return [skipped("intruder", "only root can become another account")]
    together = min(world.gpus, 2)
    world.shape(1, together)
    folder = world.folder("stay")
    settings = ["interconnect.require=none", *(["workers.per_node=2"] if world.cpu_only else [])]
    words = world.submit_words(SCRIPTS / "stay.py", [str(folder)], folder, nodes=1, gpus=together, settings=settings,
                               protocol="ucx")  # fmt: skip
    with world.started(words, cwd=folder) as running:
        try:
            found = _try_all(world, folder, running)
        finally:
            (folder / "stop").touch()
            done = running.wait(60)
    world.clear()
    run = Run(done.status, done.output, done.seconds, 0.0, run_directory(folder))
    went_on = read_json(folder / "end.json") if (folder / "end.json").exists() else {}
    error = "" if done.status == 0 and went_on.get("rounds") else f"the run did not go on: {run.why()}"
    return [*found, result("the run goes on", ok=not error, figures={"status": done.status, **went_on}, error=error)]


def _try_all(world: World, folder: Path, running: Running) -> list[Result]:
    ready = folder / "ready.json"
    if not wait_for(lambda: ready.exists() or running.process.poll() is not None, READY) or not ready.exists():
        raise HarnessError(f"the run did not come up\n{last_lines(running.output())}")
    directory = run_directory(folder)
    assert directory is not None
    key = directory / "attempts/0/secret/data.key"
    home = _home_of_intruder(world, key.read_bytes())
    mode = f"{key.stat().st_mode & 0o777:o} in {key.parent.stat().st_mode & 0o777:o}"
    addresses = read_json(ready)
    targets = {f"worker {n}": to for n, to in enumerate(addresses["workers"][:2])}  # the scheduler's doors are TLS
    results = []
    for who, words, refused in (("no key", [], True), ("a wrong key", ["--key", "wrong.key"], True),
                                ("the right key", ["--key", "right.key"], False)):  # fmt: skip
        for where, target in targets.items():
            results.append(
                _try(world, home, f"{who}, {where}", [*words, "--try-to-read", str(key), target], refused, mode)
            )
    return results


def _try(world: World, home: Path, name: str, words: list[str], refused: bool, mode: str) -> Result:
    account = pwd.getpwnam(INTRUDER)
    environment = {"PYTHONPATH": f"{home}:{world.environment.get('PYTHONPATH', '')}", "HOME": str(home), "UCX_TLS": "tcp,self",
                   "UCX_NET_DEVICES": "lo", "CUDA_VISIBLE_DEVICES": "", "DASK_TEMPORARY_DIRECTORY": str(home)}  # fmt: skip
    own = ["--uid", str(account.pw_uid), "--gid", str(account.pw_gid)]
    done = world.command([world.python, str(home / "intruder.py"), *own, *words], timeout=TRY_DEADLINE, environment=environment,
                         cwd=home, node="n1")  # fmt: skip
    told = [line for line in done.output.splitlines() if line.startswith('{"intruder"')]
    if not told:
        raise HarnessError(f"{name}: exit status {done.status}\n{last_lines(done.output)}")
    facts: dict[str, Any] = json.loads(told[-1])["intruder"]
    wrong = (
        [] if facts["refused"] == refused else [f"it was {'refused' if facts['refused'] else 'let in'}: {facts['how']}"]
    )
    wrong += ["it could read the run's key"] if facts["read_key"] else []
    figures = {"refused": facts["refused"], "how": facts["how"], "tried_s": facts["seconds"], "key_file": mode}
    return result(name, ok=not wrong, figures=figures, error="; ".join(wrong))


def _home_of_intruder(world: World, right: bytes) -> Path:
    """Lay out what the other account may read: the program, hpcml, and keys in files of its own."""
    account = pwd.getpwnam(INTRUDER)
    home = world.folder("intruder")
    shutil.copy(SCRIPTS / "intruder.py", home)
    shutil.copytree(ROOT / "hpcml", home / "hpcml", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (home, *home.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for name, key in (("right.key", right), ("wrong.key", secrets.token_bytes(len(right)))):
        (home / name).write_bytes(key)
        (home / name).chmod(0o600)
        os.chown(home / name, account.pw_uid, account.pw_gid)
    os.chown(home, account.pw_uid, account.pw_gid)
    return home


# -- what it costs -----------------------------------------------------------------------------------------------------


def _throughput(world: World) -> list[Result]:
    found: dict[str, list[dict[str, float]]] = {"plain": [], "authenticated": [], "stock": []}
    for number in range(world.rounds):
        for name in list(found)[:: -1 if number % 2 else 1]:
            if world.left() < 30:
                break
            found[name].append(_exchange(world, authenticated=name == "authenticated", stock=name == "stock"))
    if not all(found.values()):
        raise HarnessError("no time was left")
    medians = {
        name: {key: statistics.median(one[key] for one in many) for key in many[0]} for name, many in found.items()
    }
    ratio = medians["authenticated"]["gib_s"] / medians["plain"]["gib_s"]
    figures: dict[str, Any] = {
        f"{name}_{key}": round(value, 4) for name, values in medians.items() for key, value in values.items()
    }
    figures |= {"message_mib": _message(world), "rounds": world.rounds, "each": found}
    low = "" if ratio >= ENOUGH else f"with authentication {ratio:.2f} of the throughput without, {ENOUGH} is expected"
    return [result("throughput", ok=not low, figures=figures, ratio=round(ratio, 3), error=low)]


def _message(world: World) -> int:
    return 16 if world.cpu_only else MESSAGE_MIB


def _exchange(world: World, *, authenticated: bool, stock: bool) -> dict[str, float]:
    """Move messages between two processes, each on its own GPU if there are two.

    ``stock`` makes progress as distributed-ucxx does by itself; else as in a run (network.ucx_environment).
    """
    folder = world.folder("exchange")
    progress = {"UCXPY_PROGRESS_MODE": "blocking" if stock else "thread"}
    words = [str(SCRIPTS / "exchange.py"), str(folder), "--mib", str(_message(world)),
             "--messages", str(STOCK_MESSAGES if stock else MESSAGES), "--connections", str(CONNECTIONS), *(["--cpu"] if world.cpu_only else [])]  # fmt: skip
    if authenticated:
        key = folder / "data.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(32))
        words += ["--key", str(key)]
    here, there = ("0", "0") if world.gpus < 2 else ("0,1", "1,0")
    with world.started(
        [world.python, *words, "listen"], environment={"CUDA_VISIBLE_DEVICES": here, **progress}, cwd=folder
    ) as listener:
        done = world.command([world.python, *words, "connect"], timeout=DEADLINE, cwd=folder,
                             environment={"CUDA_VISIBLE_DEVICES": there, **progress})  # fmt: skip
        if done.status == 0:
            listener.wait(30)
        else:
            listener.end()
        said = listener.output()
    if not (folder / "result.json").exists():
        raise HarnessError(f"exit status {done.status}\n{last_lines(done.output)}\n{last_lines(said)}")
    found: dict[str, float] = read_json(folder / "result.json")
    return found
