"""`hpcml report` on runs that wait, that were refused, that failed, and that hold hostile files."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

import planted
from hpcml import errors
from hpcml.cli import submit
from hpcml.runs import directories
from hpcml.runs import status as run_status
from world import World, write_end, write_events


def ended(world: World, *options: str, **end: object) -> Path:
    """Submit a run and write what it would have written that failed."""
    directory = world.submit("--name", "job", "--time", "2:00:00", *options)
    (directory / "attempts/0").mkdir(parents=True)
    names = ("allocated", "workers-ready", "script-started", "script-ended", "torn-down")
    events: list[dict[str, object]] = [{"time": 1e9 + 10 * place, "event": name} for place, name in enumerate(names)]
    write_events(directory, events[0] | {"nodes": ["n1", "n2"]}, *events[1:])
    write_end(directory, **{"exit_status": 1, "time": 1e9 + 50, **end})  # type: ignore[arg-type]
    return directory


def test_a_run_that_has_not_started_has_no_report(world: World) -> None:
    directory = world.submit()
    done = world.run("report")
    assert (done.returncode, "has not started" in done.stderr) == (errors.NOT_FOUND, True), done.stderr
    assert not (directory / "report.html").exists()


def test_a_run_that_failed(world: World) -> None:
    directory = ended(
        world, exit_status=errors.TIME_LIMIT, by="scheduler", state="TIMEOUT", message="the time limit was reached"
    )
    (directory / "logs").mkdir(exist_ok=True)
    (directory / "logs/script.log").write_text(f"<script>{planted.ESCAPES}</script>\n")
    assert f"report     hpcml report {directory.name}\n" in world.run("status").stdout
    done = world.run("report")
    assert (done.returncode, done.stdout) == (0, f"{directory}/report.html\n"), done.stderr
    assert f"report     {directory}/report.html" in world.run("status").stdout
    found = json.loads(world.run("report", "--json").stdout)
    assert found["ledger"]["unit"] == "node"
    assert found["ledger"]["paid"] == pytest.approx(2 * 50 / 3600)
    assert found["ending"]["cause"]
    page = (directory / "report.html").read_text()
    assert "<script>\x1b" not in page
    assert f"<pre>hpcml rerun {directory.name} --time 3:00:00</pre>" in page


def test_the_newest_measurement_is_shown(world: World) -> None:
    directory = ended(world)
    for number in (9, 10):
        (directory / f"attempts/{number}").mkdir()
        (directory / f"attempts/{number}/interconnect.json").write_text(json.dumps({"number": number}))
    assert json.loads(world.run("interconnect", directory.name, "--json").stdout) == {"number": 10}


def test_a_measurement_of_an_earlier_version_by_its_earlier_name(world: World) -> None:
    directory = ended(world)
    (directory / "attempts/0/fabric.json").write_text(json.dumps({"number": 0}))
    for command, notes in (("interconnect", 0), ("fabric", 1)):
        done = world.run(command, directory.name, "--json")
        assert (done.returncode, json.loads(done.stdout)) == (0, {"number": 0}), done.stderr
        assert done.stderr.count("the command fabric is now called interconnect") == notes
    assert world.run("help", "fabric").stdout == world.run("help", "interconnect.md").stdout
    assert world.run("why", "--bundle", directory.name).returncode == 0
    with tarfile.open(world.project / f"{directory.name}.tar.gz") as archive:
        assert f"{directory.name}/attempts/0/fabric.json" in archive.getnames()


def test_a_run_that_measures_the_interconnect_keeps_its_form(world: World) -> None:
    done = world.run("interconnect", "--nodes", "2", "--detach", "--json")
    assert done.returncode == 0, done.stderr
    directory = Path(json.loads(done.stdout)["directory"])
    assert directory.name.startswith("interconnect-")
    for name in ("plan.json", "request.json"):  # as an earlier version wrote them
        text = (directory / name).read_text()
        assert text.count('"form": "interconnect"') == 1
        (directory / name).write_text(text.replace('"form": "interconnect"', '"form": "fabric"'))
    assert json.loads(world.run("status", "--json").stdout)["service"] == "interconnect"
    again = world.run("rerun", "last", "--json")
    assert again.returncode == 0, again.stderr
    plan = json.loads((Path(json.loads(again.stdout)["directory"]) / "plan.json").read_text())
    assert plan["inside"]["code"]["form"] == "interconnect"


def test_the_command_that_makes_the_report_says_why_the_run_did_not(world: World) -> None:
    environment = world.home / "env"
    (environment / "lib/python3.11/site-packages").mkdir(parents=True)  # without pip, it is empty at first
    directory = ended(world, "--set", f"runtime.python={environment}/bin/python")
    command = f"report     hpcml report {directory.name}"
    assert f"{command}  # no page was written, because" in world.run("status").stdout
    (environment / "lib/python3.11/site-packages/msgpack").mkdir()
    assert f"{command}  # no page was written, because" in world.run("status").stdout
    (environment / "lib/python3.11/site-packages/jinja2").mkdir()
    assert f"{command}\n" in world.run("status").stdout


def test_a_file_in_the_place_of_the_report_is_not_written_through(world: World) -> None:
    directory = ended(world)
    other = world.top / "other"
    other.write_text("mine")
    (directory / "report.html").symlink_to(other)
    assert f"report     hpcml report {directory.name}\n" in world.run("status").stdout
    assert world.run("report").returncode == 0
    assert other.read_text() == "mine"
    assert not (directory / "report.html").is_symlink()
    assert (directory / "report.html").stat().st_mode & 0o777 == 0o600
    (directory / "report.html").unlink()
    (directory / "report.html").mkdir()
    done = world.run("report")
    assert done.returncode == errors.STORAGE
    assert "cannot be written" in done.stderr


def test_the_command_for_a_missing_report_is_the_laptop_s(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    directory = ended(world)
    submit._tell_files(*run_status.now(directories.find(directory.parent, directory.name)), "cluster")
    assert f"  report     hpcml --host cluster report {directory.name}\n" in capsys.readouterr().err
