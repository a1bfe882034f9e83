"""hpcml top of a real run: what the run writes of itself is what is shown, until its end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from test_local import CONNECT, HPCML, Here, here  # noqa: F401 - the fixture

pytestmark = pytest.mark.local

WORKS = CONNECT + (
    "import pathlib\n"
    "print(sum(client.gather(client.map(lambda number: number, range(40)))), flush=True)\n"
    "kept = client.submit(lambda: 'x' * (1 << 20))\n"
    "deadline = time.monotonic() + 90\n"
    "while not pathlib.Path('seen').exists() and time.monotonic() < deadline:\n    time.sleep(0.1)\n"
)


def is_whole(view: dict[str, Any]) -> bool:
    """Whether a view has all that such a run tells of itself."""
    nodes, work = view["nodes"], view["work"] or {}
    return bool(
        view["output"] == ["780"]
        and (work.get("done") or 0) >= 41
        and nodes
        and all(node["sampled"] and node["cpu"] is not None and node["workers"] == 2 for node in nodes)
    )


def test_a_real_run_until_its_end(here: Here) -> None:  # noqa: F811
    _, run = here.detach(WORKS, "--set", "workers.per_node=2")
    words = [HPCML, "top", "--json", "--interval", "0.5s", "last"]
    views = []
    with subprocess.Popen(words, cwd=here.folder, env=here.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            views.append(json.loads(line))
            if is_whole(views[-1]):
                (here.folder / "seen").touch()
    assert process.returncode == 0
    assert any(map(is_whole, views)), views[-1]
    (node,) = next(view for view in views if is_whole(view))["nodes"]
    assert 0 < node["memory"] < node["memory_size"]
    assert (views[-1]["over"], views[-1]["state"], views[-1]["exit_status"]) == (True, "COMPLETED", 0)
    assert views[-1]["work"]["done"] >= 41
    shown = here.run("top", "--once").stdout.splitlines()
    assert shown[0].startswith(Path(run).name)
    assert shown[1].startswith("COMPLETED the script ended with exit status 0, after ")
    assert any(line.startswith("tasks ") and " of " in line for line in shown)
