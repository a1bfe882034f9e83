"""A script that ends with 0 although tasks of it failed, or were not done, is told so; one that waited is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dask.array as da
import pytest
from distributed import Client, LocalCluster, Variable, fire_and_forget, wait

from hpcml.kinds.dask.node import activity

GATE = threading.Event()
END = threading.Event()  # workers are threads of this process
UNDONE = "not finished when the script ended or deleted the future: the script did not wait for the result."


def invert(x: float) -> float:
    return 1 / x


def long(_: object) -> None:
    END.wait(600)


def at_the_third_try(path: Path) -> None:
    with path.open("a") as file:
        file.write("x")
    if path.stat().st_size < 3:
        raise OSError("not yet")


def lives_with_it(client: Client, _: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        client.submit(invert, 0).result()


def all_is_well(client: Client, folder: Path) -> None:
    client.gather(client.map(invert, [1, 2]))
    client.submit(at_the_third_try, folder / "tries", retries=5).result()
    kept = client.submit(invert, 1)
    wait(kept)  # it may be computed once more
    Variable("kept", client=client).set(kept)
    fire_and_forget(client.submit(invert, 3))
    wait(client.submit(invert, 3))


def arrive(client: Client) -> None:
    """Wait until the scheduler has for the client what the client holds: a question overtakes what was sent before."""
    number, until = client.id, time.monotonic() + 60
    while client.run_on_scheduler(
        lambda dask_scheduler: {task.key for task in dask_scheduler.clients[number].wants_what}
    ) != set(client.futures):
        assert time.monotonic() < until
        time.sleep(0.01)


def gate() -> None:
    GATE.wait(600)


def behind_others(client: Client, needed: slice) -> object:
    """Persist seven blocks that cannot run yet, and drop them for some of them."""
    GATE.clear()
    first = client.submit(gate, pure=False)
    blocks = da.ones(7, chunks=1).map_blocks(invert, dtype=float).persist()
    arrive(client)
    blocks = blocks[needed].persist() if needed.stop else None
    arrive(client)
    GATE.set()
    wait([first, blocks] if blocks is not None else first)
    return None


# What a script does, how many tasks failed of it, and how many were not done.
SCRIPTS: dict[str, tuple[Callable[[Client, Path], object], int, int]] = {
    "nothing asks for the results": (lambda client, _: wait(client.map(invert, [0, 1, 0], pure=False)), 2, 0),
    "what depends on a failed one": (lambda client, _: wait(client.submit(invert, client.submit(invert, 0))), 1, 0),
    "the script lives with it": (lives_with_it, 1, 0),
    "many, none waited for": (lambda client, _: client.map(long, range(7)), 0, 7),
    "nobody can wait for it": (lambda client, _: fire_and_forget(client.submit(long, 0)), 0, 1),
    "no worker for it": (lambda client, _: client.submit(invert, 1, resources={"moon": 1}), 0, 1),
    "cancelled": (lambda client, _: client.cancel(client.map(long, range(3))), 0, 0),
    "blocks that nobody needs": (lambda client, _: behind_others(client, slice(0)), 0, 7),
    "all is well": (all_is_well, 0, 0),
    "blocks of which it needs one": (lambda client, _: behind_others(client, slice(1)), 0, 0),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scheduler_counts_what_nobody_waited_for(name: str, tmp_path: Path) -> None:
    does, failed, undone = SCRIPTS[name]
    END.clear()
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        scheduler = cluster.scheduler
        scheduler.add_plugin(activity.TaskEnds(scheduler))
        with Client(cluster) as client:
            kept = does(client, tmp_path)
            arrive(client)
        said, until = cluster.sync(_sentences, scheduler), time.monotonic() + 60
        while len(said) < (failed > 0) + (undone > 0) and time.monotonic() < until:  # fire_and_forget has its own way
            time.sleep(0.01)
            said = cluster.sync(_sentences, scheduler)
        END.set()
    assert len(said) == (failed > 0) + (undone > 0)
    if failed:
        place = f"{Path(__file__).name}:{invert.__code__.co_firstlineno + 1}"
        those = "2 tasks failed, the first" if failed > 1 else "a task failed"
        assert said[0].startswith(f"{those} with ZeroDivisionError('division by zero') ({place}), but")
    if undone:
        assert said[-1] == (f"{undone} tasks were {UNDONE}" if undone > 1 else f"a task was {UNDONE}")
    assert kept is None or kept


def test_an_error_is_one_line_of_what_can_be_printed() -> None:
    ends = activity.TaskEnds(cast("Any", SimpleNamespace(tasks={}, task_groups={})))
    trace = '  File "/a b/job.py", line 3, in f\n    raise\n  File "/home/me/.local/lib/python3/site-packages/x.py", line 9\n'
    text = "Bad\n\x1b[31m" + "x" * 500
    ends.transition("one", "processing", "erred", cause="one", exception_text=text, traceback_text=trace)
    assert ends.first == f"Bad ?[31m{'x' * 191}… (job.py:3)"
    ends.transition("two", "processing", "erred", cause="two", exception_text="other")
    ends.transition("three", "waiting", "erred", cause="two")  # it only waited for the second
    ends.transition("four", "processing", "erred", cause="two")
    assert (ends.failed, ends.first[:3]) == (2, "Bad")


async def _sentences(scheduler: object) -> list[str]:
    return activity.task_remarks(scheduler)
