"""The report's page: what it shows, that it asks nothing of a network, and that no text of others gets into its markup."""

from __future__ import annotations

import base64
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes

import jinja2
import pytest
from markupsafe import escape

from hpcml import kinds
from hpcml.failures.end import End
from hpcml.failures.evidence import Line as Evidence
from hpcml.paths import sweep_folder
from hpcml.repairs import Decision
from hpcml.report import contents, page, series
from hpcml.report.contents import Interconnect, Machines
from hpcml.report.ending import Ending
from hpcml.report.ledger import Function
from hpcml.report.page import Curve, make
from tests import report_samples
from tests.report_samples import Shape
from tests.said import says

DASK = kinds.get("dask")
HOSTILE = (
    "</style></script></title><script>alert(1)</script><img src=http://x.example/a onerror=alert(2)>\"'{{ 7 * 7 }}&"
)


class Reader(HTMLParser):
    """The elements of a page and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def test_a_page_asks_nothing_of_a_network(tmp_path: Path) -> None:
    text = make(report_samples.write(tmp_path / "run"), 0, DASK).read_text()
    elements = Reader(text).elements
    policy = next(attributes["content"] for _, attributes in elements if attributes.get("http-equiv"))
    assert policy
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    asking = {"link", "iframe", "object", "embed", "base", "form", "use", "image"}
    assert not asking & {tag for tag, _ in elements}
    names = {name for _, attributes in elements for name in attributes}
    assert not names & {"src", "href", "xlink:href", "style", "srcset"}
    assert not any(name.startswith("on") for name in names)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)


def test_texts_of_others_stay_texts(tmp_path: Path) -> None:
    paths = report_samples.write(tmp_path / "run", Shape(seconds=60))
    plain = [tag for tag, _ in Reader(make(paths, 0, DASK).read_text()).elements]
    line = Evidence(HOSTILE, "driver", HOSTILE, 1, 1.0, HOSTILE)
    how = End(1, message=HOSTILE, ended_as=HOSTILE, warnings=(HOSTILE,))
    end = Ending(how, HOSTILE, (line,), (line,), HOSTILE, HOSTILE)
    found = contents.load(paths, 0, DASK, end)
    node = found.drawing.series["n1"]
    hostile_node = node._replace(gpus=tuple(gpu._replace(name=HOSTILE) for gpu in node.gpus))
    devices = tuple(device._replace(label=HOSTILE, name=HOSTILE) for device in found.machines.devices)
    hostile = found._replace(
        run=found.run._replace(run=HOSTILE, site=HOSTILE, job=HOSTILE, script=HOSTILE),
        findings=found.findings._replace(unknown=(HOSTILE,)),
        machines=Machines(
            (HOSTILE,),
            devices,
            topology=((HOSTILE, HOSTILE),),
            versions=((HOSTILE, HOSTILE),),
            repairs=((HOSTILE, Decision("untried", HOSTILE, HOSTILE, HOSTILE)),),
        ),
        interconnect=Interconnect(HOSTILE, interconnect_ok=False, interconnect_remedy=HOSTILE),
        drawing=found.drawing._replace(series={HOSTILE: hostile_node}),
    )
    function = Function(HOSTILE, 3, 2.0, 1.0)
    hostile = hostile._replace(findings=hostile.findings._replace(functions=(function,)))
    text = page.html(hostile)
    assert text.count(str(escape(HOSTILE))) >= 10
    good = found._replace(
        interconnect=Interconnect("InfiniBand", interconnect_ok=True, interconnect_remedy="use another")
    )
    assert ("Remedy:" in text, "Remedy:" in page.html(good)) == (True, False)
    tags = [tag for tag, _ in Reader(text).elements]
    assert tags.count("script") == plain.count("script") == 1
    assert "img" not in tags
    assert "{{ 7 * 7 }}" in text
    assert "49" not in re.findall(r"alert\(2\)&gt;&#34;&#39;(\d+)", text)


def test_the_template_is_compiled_before_there_is_a_run_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes most of the time, for which the nodes would wait at the run's end."""
    report = contents.load(report_samples.write(tmp_path / "run", Shape(seconds=60)), 0, DASK)

    def compiled(*_: object, **__: object) -> None:
        raise AssertionError("the nodes wait")

    monkeypatch.setattr(jinja2.Environment, "compile", compiled)
    assert "</html>" in page.html(report)


def test_repairs_are_on_the_page_and_in_the_facts_for_programs(tmp_path: Path) -> None:
    found = contents.load(report_samples.write(tmp_path / "run", Shape(seconds=60)), 0, DASK)
    assert found.as_json()["repairs"] == {"closing": report_samples.REPAIRED}
    sentence = "Repair closing is off: it was tested with distributed ==2026.7.1, not with 2026.9.0."
    assert sentence in page.html(found)


def test_results_are_on_the_page_and_their_names_stay_texts(tmp_path: Path) -> None:
    """Pictures are in it, other files are links below out/, and nothing outside out/ is read."""
    paths = report_samples.write(tmp_path / "run", Shape(seconds=60))
    deep = paths.out / "javascript:alert(1)"
    deep.mkdir(parents=True)
    picture = b"\x89PNG\r\n\x1a\n" + b"x" * 100
    (tmp_path / "secret.png").write_bytes(picture)
    (paths.out / "link.png").symlink_to(tmp_path / "secret.png")
    (paths.out / 'curve <b>&".png').write_bytes(picture)
    (paths.out / "large.png").write_bytes(picture * 10_000)
    (paths.out / "no picture.png").write_bytes(b"<html><script>alert(1)</script>")
    for name in (b"\xff\x1b[31m", HOSTILE.replace("/", "|").encode()):
        (Path(os.fsdecode(os.path.join(os.fsencode(deep), name)))).write_text("x")  # noqa: PTH118 - of bytes
    (paths.out / "?a=1#b").touch()
    text = make(paths, 0, DASK).read_text()
    elements = Reader(text).elements
    shown = [attributes["src"] for tag, attributes in elements if tag == "img"]
    assert shown == [f"data:image/png;base64,{base64.b64encode(picture).decode()}"]
    links = [str(attributes["href"]) for tag, attributes in elements if tag == "a"]
    assert all(re.fullmatch(r"out/[\w./%~-]+", link) for link in links), links
    found = {os.fsencode(str(path.relative_to(paths.directory))) for path in paths.out.rglob("*") if path.is_file()}
    assert {unquote_to_bytes(link) for link in links} == found - {b"out/link.png"}
    assert "<b>&" not in text
    assert [tag for tag, _ in elements].count("script") == 1
    assert "\x1b" not in text


def test_a_sweep_s_points_are_on_its_report(tmp_path: Path) -> None:
    """The best first, with a picture for each value that differs; a record that is damaged is left out.

    One point is of an earlier grid with another parameter.
    """
    paths = report_samples.write(tmp_path / "run", Shape(seconds=60))
    plan = json.loads(paths.plan.read_text())
    plan["inside"]["points"] = {"sweep": "fit"}
    paths.plan.write_text(json.dumps(plan))
    record = sweep_folder(tmp_path, "fit") / "sweep.json"
    record.parent.mkdir(parents=True)
    planned = [{"key": str(k)} for k in range(2, 11)]
    sweep = {"points": planned, "runs": ["run", "../..", 3], "metric": "score", "maximize": True}
    record.write_text(json.dumps(sweep))
    paths.point_records.mkdir()
    for k, score in ((2, 0.5), (4, 0.75), (8, None)):
        values = {"k": k, "seed": 1, "name": HOSTILE}
        row = {"key": str(k), "values": values, "status": "ok", "metrics": {"score": score}, "seconds": 3}
        paths.record_of(str(k)).write_text(json.dumps(row))
    old = {"key": "old", "values": {"rate": 0.1}, "status": "ok", "metrics": {"score": 0.9}, "seconds": 3}
    paths.record_of("old").write_text(json.dumps(old))
    paths.record_of("a list").write_text("[]")
    paths.record_of("no table").write_text('{"values": 3}')
    report = contents.load(paths, 0, DASK)
    assert [point.values.get("k") for point in report.points.ended] == [None, 4, 2, 8]
    text = page.html(report)
    assert "<h2>Sweep fit</h2>" in text
    assert text == says("A ring marks the best point of each picture.")
    assert "4 points ended, 6 are not in this report." in text
    table = [row for row in text.split("<tr>") if "<td>ok</td>" in row]
    assert [re.findall("<td>([^<]*)</td>", row)[:2] for row in table[:2]] == [["0.1", ""], ["", "4"]]
    assert re.findall("<h3>(score by [^<]*)</h3>", text) == ["score by k"]
    assert text.index("Sweep fit") < text.index("hours went")
    assert [tag for tag, _ in Reader(text).elements].count("script") == 1


def test_all_shares_are_of_the_job_s_time(tmp_path: Path) -> None:
    """The script ran for half of the job, and no task ran in half of that: the script's alone and the end, together."""
    paths = report_samples.write(tmp_path / "run", Shape(gpus=0, seconds=800, bring_up=400, tail=200))
    report = contents.load(paths, 0, DASK)
    figures = report.findings.figures
    alone = 100 * (report.findings.script_alone or 0) / 800
    assert alone == pytest.approx(25, abs=1)
    assert figures["without_tasks"] + figures["idle_tail"] == pytest.approx(alone, abs=1)
    assert page.html(report) == says(f"{alone:.0f} % of the job's time, no task ran")


def test_what_is_small_shares_a_row(tmp_path: Path) -> None:
    """Parts of the hours and functions below 1 %; of functions only where there are several."""
    report = contents.load(report_samples.write(tmp_path / "run"), 0, DASK)
    small = [name for name in report.hours.ledger.parts if 0.05 <= report.hours.ledger.share(name) < 1]
    functions = (Function("fit", 10, 990.0, 99.0), *(Function(f"tiny{place}", 2, 1.0, 0.5) for place in range(3)))
    text = page.html(report._replace(findings=report.findings._replace(functions=functions)))
    row = next(row for row in text.split("<tr>") if "Other parts, each below 1 %" in row)
    assert row.count("<i class") == len(small) > 1
    assert text == says("3 other functions")
    assert "tiny1" not in text
    one = report._replace(findings=report.findings._replace(functions=functions[:2]))
    assert "tiny0" in page.html(one)


def test_the_time_without_tasks_is_not_known_of_a_few_samples(tmp_path: Path) -> None:
    """The page shows the tasks of a short script, but no time in which none of them ran."""
    shapes = (Shape(gpus=0, seconds=20, bring_up=12, tail=1), Shape(gpus=0, seconds=60, bring_up=12, tail=1))
    for place, shape in enumerate(shapes):
        report = contents.load(report_samples.write(tmp_path / f"run{place}", shape), 0, DASK)
        assert (report.findings.script_alone is None) == (place == 0)
        text = page.html(report._replace(findings=report.findings._replace(functions=(Function("f", 3, 1.0, 0.5),))))
        assert ("no task ran" in text, "<td>the script itself" in text) == (place == 1, place == 1)
        assert text == says("<th>Function</th>")


def test_small_hours_have_figures_that_count(tmp_path: Path) -> None:
    """A row of one percent of the hours is not 0.00."""
    text = page.html(contents.load(report_samples.write(tmp_path / "run", Shape(gpus=0, cores=8, seconds=57)), 0, DASK))
    rows = re.findall(r'"n">([\d.]+)<', text.split('class="hours"')[1].split("</table>")[0])
    assert len(rows) > 2
    assert all(float(hours) for hours in rows)
    assert "0.127 core-hours" in text


def test_a_function_s_row(tmp_path: Path) -> None:
    """The mean is not shown as the longest time; a name is broken between its words, and nowhere else."""
    report = contents.load(report_samples.write(tmp_path / "run"), 0, DASK)
    functions = (Function("sum_<up>", 3, 9.0, 3.0), Function("one_task", 1, 9.0, 9.0), Function("seen", 3, 9.0, 4.0))
    text = page.html(report._replace(findings=report.findings._replace(functions=functions)))
    rows = [row for row in text.split("<tr>") if "<td>the script itself" in row or '<td class="n">9.0 s' in row]
    assert [re.findall('<td class="n">([^<]*)</td>', row)[-1] for row in rows] == ["", "–", "9.0 s", "4.0 s"]
    assert "<td>sum_<wbr>&lt;up&gt;</td>" in text


def test_a_picture_is_drawn_where_it_says_something(tmp_path: Path) -> None:
    """Not of two samples; a map of devices only where curves would lie on each other."""
    few = contents.load(report_samples.write(tmp_path / "few", Shape(gpus=2, seconds=60)), 0, DASK)
    many = contents.load(report_samples.write(tmp_path / "many", Shape(gpus=8, seconds=60)), 0, DASK)
    assert ("Use of each GPU" in page.html(few), "Use of each GPU" in page.html(many)) == (False, True)
    assert "The stronger the color, the higher the use" in page.html(many)  # on a dark page it is the brighter
    node = few.drawing.series["n1"]
    columns = [0.5, 0.5, *[None] * (len(node.t) - 2)]
    node = node._replace(gpus=(), columns=series.NodeColumns(*[columns] * 5))
    bare = few._replace(drawing=few.drawing._replace(series={"n1": node}, activity=None))
    assert "Over time" not in page.html(bare)


def test_a_cancelled_run_is_no_failure(tmp_path: Path) -> None:
    """Its color is that of `hpcml ls`, and its state is not explained by itself."""
    paths = report_samples.write(tmp_path / "run", Shape(seconds=60), state="CANCELLED", exit_status=91, by="user")
    end = End(91, by="user", message="the user cancelled the run", ended_as="CANCELLED")
    report = contents.load(paths, 0, DASK, Ending(end, "The run was cancelled."))
    text = page.html(report)
    assert '<b class="mild">CANCELLED</b>' in text
    assert "<h2>Why</h2>" not in text
    failed = Ending(end._replace(ended_as="FAILED"), "The script failed.")
    text = page.html(report._replace(course=report.course._replace(ending=failed)))
    assert '<b class="bad">FAILED</b>' in text
    assert "<h2>Why</h2>" in text


def test_the_axes_of_a_sweep_have_round_values() -> None:
    """Numbers of several orders of magnitude have a logarithmic axis."""
    drawn = page.scatter(["0.01", "0.1", "1"], [0.33, 0.2, 0.52], name="loss by rate")
    places = sorted(float(place) for place in re.findall(r'cx="([\d.]+)"', drawn))
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)
    values = re.findall(r'class="up"[^>]*>([^<]*)<', drawn)
    assert values == ["0.2", "0.4", "0.6"]
    linear = page.scatter(["1", "2", "4"], [5.0, 5.0, 5.0], name="loss by k")
    places = sorted(float(place) for place in re.findall(r'cx="([\d.]+)"', linear))
    assert places[2] - places[1] == pytest.approx(2 * (places[1] - places[0]), abs=0.2)


def test_the_facts_are_those_of_the_page(tmp_path: Path) -> None:
    paths = report_samples.write(tmp_path / "run")
    text = make(paths, 0, DASK).read_text()
    told = json.loads(paths.report_facts.read_text())
    assert sum(told["ledger"]["parts"].values()) == pytest.approx(told["ledger"]["paid"], rel=0.01)
    assert told["ledger"]["paid"] == pytest.approx(8.0)
    assert f"{told['figures']['energy_kwh']:.3g} kWh" in text
    energy = sum(series.increase(gpu.columns.energy) or 0 for gpu in series.nodes(paths.attempt(0))["n1"].gpus)
    assert told["figures"]["energy_kwh"] == pytest.approx(energy / 3.6e6)
    assert len(text) < 2 << 20


def test_profiles_are_named_with_what_opens_them(tmp_path: Path) -> None:
    paths = report_samples.write(tmp_path / "run", Shape(seconds=60))
    assert "Profiles" not in make(paths, 0, DASK).read_text()
    paths.profiles.mkdir()
    names = (
        "dask.html",
        "memray-script.0.bin",
        "memray-worker-n1.7.bin",
        "memray-worker-n2.8.bin",
        "memray-worker-n3.9.bin.lz4.tmp",
    )
    for name in names:
        (paths.profiles / name).touch()
    (paths.profiles / "rmm_log_x.txt").symlink_to("/etc/passwd")
    told = json.loads(make(paths, 0, DASK).with_suffix(".json").read_text())["profiles"]
    assert told == [
        f"python -m webbrowser {paths.profiles}/dask.html",
        f"memray flamegraph {paths.profiles}/memray-script.0.bin",
        f"memray flamegraph {paths.profiles}/memray-worker-n1.7.bin  # and 1 more",
    ]
    assert all(f"<pre>{line}</pre>" in paths.report.read_text() for line in told)


def test_events_of_the_nodes_are_told(tmp_path: Path) -> None:
    paths = report_samples.write(tmp_path / "run", Shape(seconds=60))
    began = report_samples.BEGAN
    events = [{"t": began + 30, "event": "xid", "gpu": 3, "xid": 79}, {"t": began + 31, "event": "oom", "kills": 2}]
    with paths.attempt(0).samples_of("n1").open("a") as file:
        file.writelines(f"{json.dumps(event)}\n" for event in [*events, {"t": began, "event": "<b>"}])
    found = contents.load(paths, 0, DASK)
    assert [text.partition(", after ")[0] for text in found.findings.happened] == [
        says("n1: GPU 3 reported Xid 79"),
        says("n1", "ran out of memory: the kernel killed 2"),
    ]
    assert found.findings.happened[0] in page.html(found)


def test_ranks_are_named_with_their_gpus_and_the_slowest_one(tmp_path: Path) -> None:
    paths = report_samples.write(tmp_path / "run", Shape(nodes=2, gpus=2, seconds=90))
    plan = json.loads(paths.plan.read_text())
    plan["inside"] |= {"kind": "ranks", "workers": {"per_node": 2, "gpu": None}}
    plan["inside"]["job"] |= {"gpus": 2}
    paths.plan.write_text(json.dumps(plan))
    event = {"event": "ranks-ended", "time": report_samples.BEGAN + 80, "attempt": 0}
    with paths.events.open("a") as file:
        file.write(json.dumps(event | {"first": 2, "last": 1, "node": "n1", "apart": 7.25}) + "\n")
    found = contents.load(paths, 0, kinds.get("ranks"))
    assert [(one.label, one.process) for one in found.machines.devices] == [
        ("n1:0", "rank 0"), ("n1:1", "rank 1"), ("n2:0", "rank 2"), ("n2:1", "rank 3"),
    ]  # fmt: skip
    assert found.findings.happened[0] == "Rank 2 ended first. Rank 1 on n1 ended last, 7.2 s later."
    assert ("GPUs", "4") in [row[:2] for row in found.findings.asked]
    text = page.html(found)
    assert "n2:1, rank 3" in text
    assert "Dask" not in text


def test_the_report_of_a_large_run_takes_some_samples(tmp_path: Path) -> None:
    """The nodes wait for it; what it says is nearly the same, and it tells."""
    paths = report_samples.write(tmp_path / "run", Shape(nodes=6, gpus=2, seconds=1800))
    whole, some = contents.load(paths, 0, DASK), contents.load(paths, 0, DASK, most=200_000)
    assert not any("this page uses one of every" in sentence for sentence in whole.findings.unknown)
    (told,) = (sentence for sentence in some.findings.unknown if "this page uses one of every" in sentence)
    step = int(told.partition(" one of every ")[2].partition(" ")[0])
    assert step > 3
    assert "To use all samples: hpcml report run." in told
    assert (
        sum(len(node.t) for node in some.drawing.series.values())
        < sum(len(node.t) for node in whole.drawing.series.values()) / 3
    )
    for part, hours in whole.hours.ledger.parts.items():
        assert some.hours.ledger.parts[part] == pytest.approx(hours, abs=0.03 * whole.hours.ledger.paid), part


def test_a_report_of_damaged_files(tmp_path: Path) -> None:
    paths = report_samples.write(tmp_path / "run", Shape(seconds=120))
    whole = contents.load(paths, 0, DASK).hours.ledger
    node = paths.attempt(0).samples_of("n1")
    bad = ["{", "[]", '{"t": NaN}', "[" * 3000]
    for path, last in ((node, "[9e9, 3"), (paths.events, "")):
        lines = path.read_text().splitlines()
        mixed = [line for number, one in enumerate(lines) for line in (one, bad[number % len(bad)])]
        path.write_text("\n".join([*mixed, last]))
    assert contents.load(paths, 0, DASK).hours.ledger == whole
    for text in ("", "{", '{"inside": 3, "directives": 5, "name": []}'):
        for path in (paths.plan, paths.status, paths.events, node, paths.attempt(0).samples_of_kind("dask")):
            path.write_text(text)
        page = make(paths, 0, DASK).read_text()
        assert "</html>" in page
        assert "plan.json cannot be used: " in page


def test_a_counter_that_falls_is_a_reset() -> None:
    assert series.increase([100.0, 150.0, None, 10.0, 30.0]) == 70
    assert series.increase([5.0, None]) is None


def test_thinning_keeps_a_peak() -> None:
    points = [(float(at), 0.0) for at in range(1000)]
    points[500] = (500.0, 7.0)
    assert (500.0, 7.0) in page.thin(points, 10)


def test_a_line_is_interrupted_where_nothing_is_known() -> None:
    line = Curve("x", [0, 5, 10, 300, 305, 310], [1, 2, None, 3, 4, 5])
    assert [len(part) for part in page.pieces(line, 20)] == [2, 3]


@pytest.mark.parametrize(("seconds", "text"), [(0.0002, "0.2 ms"), (0.9994, "999 ms"), (0.9996, "1.0 s"), (61, "1:01")])
def test_short_times_have_no_exponent(seconds: float, text: str) -> None:
    assert page._ENVIRONMENT.filters["short"](seconds) == text
