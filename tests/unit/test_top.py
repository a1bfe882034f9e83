"""What hpcml top draws of a run: a pure function of how it stands, its samples, and the terminal's size."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcml.cli.top import frame, live
from hpcml.cli.top.frame import Piece
from hpcml.cli.top.live import Lines, print_frame
from hpcml.errors import ConfigError
from hpcml.paths import RunPaths
from hpcml.remote import answers
from hpcml.runs import top_view as views
from hpcml.runs.directories import Run
from hpcml.runs.status import Status
from hpcml.runs.top_view import View
from hpcml.samples import Traffic
from hpcml.states import COLOURS
from hpcml.terminal import cells
from planted import ESCAPES, HOSTILE, put
from tests.said import says
from top_runs import GIB, ID, NOW, Written, cpu_run, dask_tables, gpu_run, lines, node_tables, status

WIDTHS, HEIGHTS = (60, 80, 120), (10, 24, 60)


def waiting(folder: Path) -> View:
    """A run in the queue."""
    return Written(folder).view(status((), "queued", message="Priority (others are before it)", estimate="2026-09-21T15:00:00", expected=8))  # fmt: skip


def starting(folder: Path) -> View:
    """A run without samples yet."""
    return Written(folder).view(status(("n1", "n2"), "starting", message="3 of 8 workers are there", workers=3, expected=8))  # fmt: skip


def failed(folder: Path) -> View:
    """A run that has ended, with the cause."""
    run = Written(folder)
    run.node("n1", node_tables("n1", 2))
    run.paths.script_log.write_text("Traceback …\nMemoryError\n")
    facts = status(("n1",), "ended", exit_status=137, ended_as="OUT_OF_MEMORY", message="a worker was killed: out of memory", hint="Ask for more memory.")  # fmt: skip
    return run.view(facts, cause="The node had no memory left (on n1).")


def wide(folder: Path) -> View:
    """Wide characters wherever somebody else writes."""
    run = Written(folder)
    run.node("n1", node_tables("n1"))
    run.paths.script_log.write_text("学習の進み具合を表示しています、" * 20 + "\n🚀🚀🚀 done\n")
    return run.view(status(("n1",), warnings=("警告です、" * 40,), hint="続きがあります" * 20, workers=1, expected=1))


RUNS: dict[str, Callable[[Path], View]] = {
    "two nodes": cpu_run, "2 x 4 GPUs": gpu_run, "128 nodes": lambda folder: gpu_run(folder, 128, late="n050"),
    "waiting": waiting, "starting": starting, "failed": failed, "wide": wide,
}  # fmt: skip


def drawn(view: View, width: int, height: int = 0) -> list[str]:
    return [frame.text_of(line) for line in frame.frame(view, width, height, live=True)]


def columns_of(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


@pytest.mark.parametrize("name", RUNS)
def test_a_frame_fits(name: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    view = RUNS[name](tmp_path)
    for width in WIDTHS:
        for height in HEIGHTS:
            with subtests.test(width=width, height=height):
                shown = drawn(view, width, height)
                assert len(shown) <= height
                assert max(map(columns_of, shown)) <= width
                assert all(line.isprintable() for line in shown)
                assert view.status.run[:20] in shown[0]
                assert shown[1].startswith(view.status.state)


def test_each_gpu_has_its_bars(tmp_path: Path) -> None:
    shown = drawn(gpu_run(tmp_path), 80, 24)
    rows = [line.split() for line in shown if "71/141 GiB" in line]
    assert [row[:2] if row[0].startswith("n") else row[:1] for row in rows] == [
        ["n001", "0"], ["1"], ["2"], ["3"], ["n002", "0"], ["1"], ["2"], ["3"]]  # fmt: skip
    busy, idle = (next(line for line in shown if line.startswith(name)) for name in ("n001", "n002"))
    assert busy.split("%")[0].count("━") > 8 * idle.split("%")[0].count("━") > 0
    assert busy.split()[2:] == ["━━━━━━━━━━━━━", "97%", "━━━━━━━──────", "71/141", "GiB", "540", "W", "61", "°C", "2.0", "GiB/s"]  # fmt: skip


def test_bars_and_sizes_show_what_is_used(tmp_path: Path) -> None:
    """Use is green, and a node with a tenth of its memory in use does not round to nothing."""
    table = frame.table(cpu_run(tmp_path), 80, 10)
    assert next(piece.style for piece in table[1] if "━" in piece.text) == "green"
    assert [frame._sizes(0.4 * GIB, size * GIB) for size in (3.4, 14, 141)] == [
        "0.4/3.4 GiB", "0.4/14 GiB", "0/141 GiB"]  # fmt: skip


def test_a_state_has_the_colour_of_ls(tmp_path: Path) -> None:
    for name in ("two nodes", "failed", "waiting"):
        folder = tmp_path / name
        folder.mkdir()
        view = RUNS[name](folder)
        state = frame.frame(view, 80, 20, live=True)[1][0]
        assert (state.text, state.style) == (view.status.state, COLOURS.get(view.status.state, "bold"))
        assert state.style in live._STYLES


def test_what_is_known_of_the_work(tmp_path: Path) -> None:
    shown = drawn(cpu_run(tmp_path), 120, 24)
    assert "RUNNING   running for 12:05; 47:45 of 1:00:00 left" in shown
    assert "workers   8 of 8 on 2 nodes" in shown
    assert any(line.endswith("1,600 of 2,000 done, 40/s, 10 s left, 3 failed, 16 assigned") for line in shown)
    assert "data      spilled 8.0 GiB (1.0 MiB/s), transfers 1.0 GiB/s" in shown
    assert "network   net 2.0 MiB/s, IB 6.0 GiB/s" in shown  # a fall of a counter would be none
    assert shown[-2:] == ["          step 39, loss 0.0256", frame.FOOTER]


def test_many_nodes_fold_to_the_worst_and_the_best(tmp_path: Path) -> None:
    shown = drawn(gpu_run(tmp_path, 128, late="n050"), 80, 24)
    start = next(number for number, line in enumerate(shown) if line.startswith("node "))
    names = [line.split()[0] for line in shown[start + 1 : start + 10]]
    assert names == ["n050", "n128", "n127", "n126", "…and", "n004", "n003", "n002", "n001"]
    assert shown[start + 1].endswith("no data for 10:00")
    assert shown[start + 5].strip() == "…and 120 more"
    assert shown[start + 10].split()[:4] == ["all", "128", "512", "━━━━━━━───────"]


def test_the_time_left_is_told_only_where_the_end_is_known(tmp_path: Path) -> None:
    """A script that goes on submitting has no end that could be told; nor has one that has just begun."""
    run = Written(tmp_path)
    for known, left in (((2000,) * 8, 10.0), ((1800,) * 7 + (2000,), None), ((2000,) * 3, None)):
        lines(run.attempt.samples_of_kind("dask"), dask_tables(["n1-0"], known))
        work = run.view(status(("n1",))).work
        assert work is not None
        assert (work.left, work.rate) == (left, 40.0), known


def test_a_counter_that_began_anew_has_no_rate(tmp_path: Path) -> None:
    run, tables = Written(tmp_path), node_tables("n1", 1)
    tables[-1] = tables[-1]._replace(net=Traffic(5, 5), ib=None)
    run.node("n1", tables)
    (node,) = run.view(status(("n1",))).nodes
    assert (node.net, node.ib, node.gpus[0].nvlink) == (None, None, 2.0 * GIB)


def test_a_run_that_waits_or_starts_says_so(tmp_path: Path) -> None:
    shown = drawn(waiting(tmp_path), 80, 24)
    assert re.fullmatch(r"PENDING   waiting for [\d:-]+: Priority \(others are before it\)", shown[1])
    assert "estimate  Slurm expects a start at 2026-09-21T15:00:00" in shown
    assert not any("samples" in line for line in shown)
    shown = drawn(starting(tmp_path / "again"), 80, 24)
    assert shown[1] == "RUNNING   starting for 12:15; 47:45 of 1:00:00 left: 3 of 8 workers are there"[:80]
    assert "nodes     no data yet" in shown


def test_a_failed_run_shows_the_cause_and_what_to_do(tmp_path: Path) -> None:
    shown = drawn(failed(tmp_path), 80, 24)
    assert shown[1] == "OUT_OF_MEMORY a worker was killed: out of memory"
    cause, advice = "cause     The node had no memory left (on n1).", "next      Ask for more memory."
    assert shown[2:5] == ["exit      137", cause, advice]
    style = frame.frame(failed(tmp_path / "again"), 80, 24)[1][0]
    assert style == Piece("OUT_OF_MEMORY", "red")


def test_events_of_the_samples_are_warnings(tmp_path: Path) -> None:
    run = Written(tmp_path)
    events = [{"t": NOW - 3, "event": "xid", "gpu": 0, "xid": 79}, {"t": NOW - 5, "event": "oom", "kills": 1}]
    run.node("n1", [*node_tables("n1", 1), *events])
    shown = drawn(run.view(status(("n1",))), 80, 24)
    assert [line for line in shown if line.startswith("warning")] == [
        says("warning   n1", "ran out of memory: the kernel killed 1"), says("n1: GPU 0 reported Xid 79")]  # fmt: skip


def test_a_pipe_gets_whole_sentences_and_each_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, tables = Written(tmp_path), node_tables("n1", 1)
    run.node("n1", [*tables, *({"t": NOW - 5 + each, "event": "oom", "kills": 1} for each in range(2))])
    long = "the file system answers late, " * 40
    print_frame(run.view(status(("n1",), warnings=(f"{long}end",), hint=f"{long}over")))
    printed = capsys.readouterr().out
    assert f"{long}end\n" in printed
    assert "over\n" in printed
    assert printed.count("the kernel killed") == printed.count("the kernel killed 2 processes") == 1


def test_a_damaged_file_keeps_the_others_shown(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for make in HOSTILE:
        with subtests.test(kind=make.__name__):
            run = Written(tmp_path / make.__name__)
            run.node("n1", node_tables("n1", 1))
            for path in (run.node("n2", node_tables("n2")), run.attempt.samples_of_kind("dask"), run.paths.script_log):
                put(path, make)
            shown = drawn(run.view(status(("n1", "n2"))), 80, 24)
            assert any(line.startswith("n1 ") and "71/141 GiB" in line for line in shown)
            assert any(line.startswith("n2 ") and "no data" in line for line in shown)
            assert all(line.isprintable() for line in shown)


@pytest.mark.parametrize(("written", "shown"), [
    ("\x1b[31mred\x1b[0m and \x1b]0;title\x07plain", "red and plain"),
    ("\x1b[2J\x1b[H\x1bcgone\x07\x08", "gone"),
    (" 10%|#   |\r 50%|##  |\r100%|####|\r", "100%|####|"),
    ("a\tb\x00\x9b31mc\x7f", "a    bc"),
    ("\x1b]52;c;aGk=\x1b\\after", "after"),
    ("x" * 5000, "x" * 1000),
])  # fmt: skip
def test_output_loses_what_a_terminal_would_obey(written: str, shown: str) -> None:
    assert views.plain(written) == shown


def test_the_last_lines_are_those_that_stand_there(tmp_path: Path) -> None:
    log = tmp_path / "script.log"
    log.write_text("".join(f"line {number} {'.' * 100}\n\n" for number in range(1000)) + "now\rhere")
    assert [line.split(".")[0].strip() for line in views.last_lines(log, 3)] == ["line 998", "line 999", "here"]
    assert views.last_lines(tmp_path / "absent") == ()


@pytest.mark.parametrize("name", RUNS)
def test_a_view_travels(name: str, tmp_path: Path) -> None:
    """What the laptop draws is what the login node would."""
    view = RUNS[name](tmp_path)
    again = answers.of_view(json.dumps(view.as_json()), "lab")
    assert drawn(again, 80, 24) == drawn(view, 80, 24)


def test_a_view_that_is_none_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    good = gpu_run(tmp_path).as_json()
    wrong: dict[str, object] = {
        "run": 5, "nodes": [1], "work": {"done": -1}, "elapsed": "long", "over": 1, "output": ["x"] * 101, "workers": None,
        "exit_status": 1e9, "warnings": "x", "cause": None}  # fmt: skip
    for name, value in wrong.items():
        with subtests.test(key=name), pytest.raises(ConfigError, match=f"its '{name}"):
            answers.of_view(json.dumps(good | {name: value}), "lab")
    missing = {name: value for name, value in good.items() if name != "state"}
    for text in ("", "[]", "[" * 90_000, json.dumps(missing)):
        with subtests.test(text=text[:3]), pytest.raises(ConfigError):
            answers.of_view(text, "lab")


def test_what_a_hostile_host_says_is_not_obeyed(tmp_path: Path) -> None:
    table = gpu_run(tmp_path).as_json()
    texts = dict.fromkeys(("run", "site", "job", "state", "phase", "message", "estimate", "silent", "cause", "hint"), ESCAPES)  # fmt: skip
    table |= texts | {"warnings": [ESCAPES] * 3, "output": [ESCAPES] * 9}
    table["nodes"] = [node | {"name": ESCAPES} for node in table["nodes"]]
    shown = drawn(answers.of_view(json.dumps(table), "lab"), 80, 24)
    assert all(line.isprintable() and columns_of(line) <= 80 for line in shown)


def test_a_node_s_name_without_end_takes_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile host may send one; it is cut at once, not by a character at a time."""
    view, asked = cpu_run(tmp_path), list[str]()

    def counted(text: str) -> int:
        asked.append(text)
        return cells(text)

    monkeypatch.setattr("hpcml.cli.top.frame.cells", counted)
    long = view._replace(nodes=(view.nodes[0]._replace(name="é" * 16000 + "-n1"), *view.nodes[1:]))
    text = "\n".join(map(frame.text_of, frame.frame(long, 80, 24)))
    assert "é-n1 " in text
    assert sum(len(one) > 1000 for one in asked) < 10


def test_lines_for_a_pipe_tell_all_by_themselves(tmp_path: Path) -> None:
    printer, view = Lines(), gpu_run(tmp_path)
    first = printer.of(view)
    assert [line.split()[0] for line in first] == ["state", "warning", "run", "node", "node"]
    assert first[2] == ("run state=RUNNING phase=running for=12:05 left=47:45 workers=8/8 tasks=1600/2000 rate=40/s failed=3 "
                        "spilled=8.0GiB spill=1.0MiB/s transfers=1.0GiB/s")  # fmt: skip
    memory = "memory=100GiB/512GiB spilled=4.0GiB"
    assert first[3].startswith(f"node n001 workers=4 cpu=46.6/48 {memory} net=1.0MiB/s ib=3.0GiB/s ")
    assert "gpu3=97% gpu3-memory=71GiB/141GiB gpu3-power=540W gpu3-nvlink=2.0GiB/s" in first[3]
    assert [line.split()[0] for line in printer.of(view)] == ["run", "node", "node"]


def test_a_pipe_repeats_a_silence_every_30_seconds(tmp_path: Path) -> None:
    printer, view = Lines(), cpu_run(tmp_path)
    for sentence in (
        "n4: a worker sent no heartbeat for {} s",
        "no rank has used a CPU for {} s: hpcml",
    ):
        said = [sum("warning" in line for line in printer.of(view._replace(warnings=(sentence.format(seconds),))))
                for seconds in (61, 75, 89, 91, 119, 300)]  # fmt: skip
        assert said == [1, 0, 0, 1, 0, 1]


def test_use_of_a_whole_machine_is_named_so(tmp_path: Path) -> None:
    """Other users' processes count there; of a job's control group they do not."""
    view = cpu_run(tmp_path)
    nodes = tuple(node._replace(whole=True) for node in view.nodes)
    heads = [
        frame.text_of(frame.table(shown, 80, 10)[0]).split("cpu")[0].rstrip()
        for shown in (view, view._replace(nodes=nodes))
    ]
    assert heads == ["node", "whole node"]
    run = Written(tmp_path / "host")
    header, *samples = node_tables("local")
    run.node("local", [header | {"scope": {"cpu": "host", "memory": "host", "io": "host"}}, *samples])
    assert run.view(status(("local",))).nodes[0].whole


def test_a_pipe_sees_each_phase_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change within a phase waits for the next look."""

    def follow(_: Run, each: Callable[[], None]) -> Iterator[Status]:
        for phase in ("running", "running", "ended"):
            yield status(("n1",), phase)
            each()

    shown: list[object] = []
    monkeypatch.setattr("hpcml.runs.waiting.follow", follow)
    monkeypatch.setattr(live, "_source", lambda _: lambda status: status.phase)
    live._follow(Run(ID, RunPaths(tmp_path), None), 3600.0, shown.append)
    assert shown == ["running", "ended"]
