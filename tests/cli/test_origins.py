"""No program that a project's file or a script's line names starts on this machine; what they set is told."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

import planted
from hpcml import errors
from remote_world import Laptop
from world import World

WRONG = "print(\n"  # does not compile
LOOKS = (
    ("submit", "--dry-run"),
    ("submit", "--dry-run=script"),
    ("submit", "--dry-run", "--account", "y"),
    ("submit", "--dry-run", "--json"),
    ("submit", "--check"),
    ("submit",),
    ("sweep", "--grid", "x=1,2", "--dry-run"),
    ("sweep", "--grid", "x=1,2", "--yes"),
)


@pytest.fixture
def witness(world: World) -> Path:
    """Give a program that says that it was started, and answers as a Python for which the script is wrong too."""
    return _witness(world.top)


def _witness(folder: Path) -> Path:
    path = folder / "mal.sh"
    path.write_text(f"#!/bin/sh\n: > {shlex.quote(str(folder / 'STARTED'))}\necho SyntaxError: x >&2\nexit 1\n")
    path.chmod(0o755)
    return path


def started(witness: Path) -> bool:
    """Return whether the program was started, and forget it."""
    trace = witness.with_name("STARTED")
    was = trace.exists()
    trace.unlink(missing_ok=True)
    return was


def line(*words: str) -> str:
    return f"# hpcml: {shlex.join(words)}\n"


def test_a_look_at_a_script_runs_no_command_of_its_lines(world: World, witness: Path) -> None:
    """As dry_run_runs_a_command: the command that tells the grant."""
    command = json.dumps([str(witness)])
    settings = (
        (f"cost.budget={command}", "cost.budget"),
        (f"cost={{budget = {command}}}", "cost.budget"),
        (f"partitions.slurm.budget={command}", "partitions.slurm.budget"),
        ("cost.budget_row=x", "cost.budget_row"),
        (f"login.hpcml={witness}", "login.hpcml"),
        ("login={}", "login"),
        ('paths.trust=["root"]', "paths.trust"),
        ('paths={runs = "/tmp/x", trust = ["root"]}', "paths.trust"),
    )
    for setting, key in settings:
        world.script.write_text(line("--account", "x", "--set", setting) + "print(1)\n")
        for look in LOOKS if setting == settings[0][0] else LOOKS[:1]:
            done = world.run(*look, "--site", "slurm", "job.py")
            assert done.returncode == errors.CONFIG, (look, done.stderr)
            assert f"A line of a script may not set '{key}'" in done.stderr, (look, done.stderr)
            assert f"line 1 of job.py: {key}" in done.stderr, (look, done.stderr)
            assert "--set" in done.stderr
            assert not started(witness), look
    assert world.left() == [], "nothing was submitted"


def test_a_command_that_the_user_names_is_run(world: World, witness: Path) -> None:
    """Else the witness of the other tests would prove nothing."""
    words = ("--account", "x", "--set", f"cost.budget={json.dumps([str(witness)])}", "--set", "cost.budget_row=x")
    assert world.run("submit", "--site", "slurm", "--dry-run", *words, "job.py").returncode == 0
    assert started(witness)
    variables = {"HPCML_COST__BUDGET": json.dumps([str(witness)]), "HPCML_COST__BUDGET_ROW": "x"}
    look = ("submit", "--site", "slurm", "--dry-run", "--account", "x", "job.py")
    assert world.run(*look, env=variables).returncode == 0
    assert started(witness)
    for place in ("home/.config/hpcml/config.toml", "etc/config.toml", "etc/profiles/slurm.toml"):
        path = world.top / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'[cost]\nbudget = {json.dumps([str(witness)])}\nbudget_row = "x"\n')
        assert world.run(*look).returncode == 0
        assert started(witness), place
        path.unlink()


WAYS = ("line", "project", "site table", "helper", "module")


def put(world: World, way: str, witness: Path) -> tuple[str, ...]:
    """Name the witness as the run's Python in one of the ways, with code that does not compile; return the script."""
    toml = f"[runtime]\npython = {json.dumps(str(witness))}\n"
    text = line("--set", f"runtime.python={witness}")
    (world.project / "helper.py").write_text(WRONG if way == "helper" else "")
    world.script.write_text(
        (text if way in ("line", "helper") else "") + ("import helper\n" if way == "helper" else WRONG)
    )
    project = {"project": toml, "module": toml, "site table": toml.replace("[", "[site.slurm.")}.get(way, "")
    (world.project / "hpcml.toml").write_text(project)
    return ("-m", "job") if way == "module" else ("job.py",)


@pytest.mark.parametrize("way", WAYS)
def test_a_script_that_does_not_compile_starts_no_python_of_others(world: World, witness: Path, way: str) -> None:
    """As syntax_error_runs_runtime_python: also of the user's own script below a project's file."""
    script = put(world, way, witness)
    looks = [look for look in LOOKS if way != "module" or look[0] != "sweep"] if way in WAYS[:2] else LOOKS[:1]
    for look in looks:
        done = world.run(*look, "--site", "slurm", *script)
        assert done.returncode == 0, (look, done.stderr)
        if "--dry-run" in look:  # else the folder may have shown the note
            assert "does not compile with Python 3." in done.stderr, (look, done.stderr)
        assert not started(witness), look
    done = world.run("submit", "--site", "slurm", "--dry-run=script", *script)
    assert "mal.sh" in done.stdout, "the job uses it"
    local = () if way == "site table" else ("--site", "local")
    if local:
        assert world.run("submit", *local, "--dry-run", *script).returncode == 0
        assert not started(witness)


def test_a_python_that_the_user_names_is_asked(world: World, witness: Path) -> None:
    world.script.write_text(line("--set", "runtime.python=/bin/false") + WRONG)
    done = world.run("submit", "--site", "slurm", "--dry-run", "--set", f"runtime.python={witness}", "job.py")
    assert done.returncode == errors.REFUSED
    assert started(witness)
    path = world.home / ".config/hpcml/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f"[runtime]\npython = {json.dumps(str(witness))}\n")
    world.script.write_text(WRONG)
    assert world.run("submit", "--site", "slurm", "--dry-run", "job.py").returncode == errors.REFUSED
    assert started(witness)


def test_a_run_s_record_keeps_whose_a_setting_was(world: World, witness: Path) -> None:
    """Rerun: what a record says counts as a line's, also where it says that the user typed it; so of old records."""
    world.script.write_text(line("--set", f"runtime.python={witness}", "--set", "workers.per_node=2") + "print(1)\n")
    budget = ("--set", f"cost.budget={json.dumps([str(witness)])}", "--set", "cost.budget_row=x")
    run = world.submit("--account", "x", *budget)
    assert started(witness)
    request = json.loads((run / "request.json").read_text())
    assert {request["site"][key]["by"] for key in ("cost.budget", "cost.budget_row")} == {"typed"}
    assert {request["site"][key]["by"] for key in ("runtime.python", "workers.per_node")} == {"line"}
    assert request["site"]["scheduler"]["by"] == "site"
    world.script.write_text(WRONG)
    refused = "does not take over cost.budget, cost.budget_row from a run's record"
    for command in (("rerun", "--dry-run", run.name), ("rerun", "--dry-run=script", "last")):
        done = world.run(*command)
        assert done.returncode == 0, done.stderr
        assert refused in done.stderr
        assert "does not compile" in done.stderr
    again = world.made("rerun", run.name)
    assert json.loads((again / "request.json").read_text())["site"]["runtime.python"]["by"] == "line"

    request["site"]["runtime.python"] |= {"by": "typed", "origin": "--set"}  # a record that somebody else has made
    for key, value in (("network.private", True), ("paths.trust", ["nobody"])):
        request["site"][key] = {"value": value, "by": "typed", "origin": "--set"}
    (run / "request.json").write_text(json.dumps(request))
    done = world.run("rerun", "--dry-run", run.name)
    assert done.returncode == 0, done.stderr
    assert "does not take over cost.budget, cost.budget_row, network.private, paths.trust" in done.stderr
    for key in ("network.private", "paths.trust"):
        del request["site"][key]

    for entry in request["site"].values():  # as an older version wrote it
        entry["origin"] = "--set" if entry.pop("by") == "line" else entry["origin"]
    (run / "request.json").write_text(json.dumps(request))
    done = world.run("rerun", "--dry-run=script", run.name)
    assert done.returncode == 0, done.stderr
    assert refused in done.stderr
    assert not started(witness)
    assert world.run("rerun", "--dry-run", run.name, *budget).returncode == 0
    assert started(witness), "typed again"


def test_a_sweep_that_continues_keeps_whose_a_setting_is(world: World, witness: Path) -> None:
    world.script.write_text(line("--set", f"runtime.python={witness}") + WRONG)
    words = ("sweep", "--site", "slurm", "--name", "s", "--grid", "x=1,2")
    assert world.run(*words, "job.py").returncode == 0
    assert world.run(*words, "--only-failed", "job.py").returncode == 0
    assert not started(witness)


def test_a_project_does_not_say_whom_its_user_trusts(world: World) -> None:
    """As trust_in_project."""
    path = world.project / "hpcml.toml"
    for text in ('[paths]\nruns = "/tmp/x"\ntrust = ["nobody"]\n', '[site.leonardo.paths]\ntrust = ["nobody"]\n'):
        path.write_text(text)
        for command in (("submit", "--site", "slurm", "job.py"), ("submit", "--dry-run", "job.py"), ("ls",)):
            done = world.run(*command)
            assert done.returncode == errors.CONFIG, done.stderr
            assert "project's file may not set 'paths.trust'" in done.stderr
            assert f"{path}" in done.stderr


def test_a_project_does_not_say_where_runs_start_or_what_is_known(world: World) -> None:
    fact = (
        '[facts]\n"network.private" = { confidence = "measured", date = "2026-01-01", source = "me", value = true }\n'
    )
    for text, key in (('scheduler = "local"\n', "scheduler"), (fact, "facts.network.private")):
        (world.project / "hpcml.toml").write_text(text)
        done = world.run("submit", "--site", "slurm", "job.py")
        assert done.returncode == errors.CONFIG, done.stderr
        assert f"A project's file may not set '{key}" in done.stderr


def notes_with(stderr: str, word: str) -> list[str]:
    return [text.removeprefix("hpcml: note: ").removesuffix(".") for text in stderr.splitlines() if word in text]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_each_submission_names_a_project_s_file_and_tells_a_change(world: World, options: tuple[str, ...]) -> None:
    """As project_named_once."""
    path = world.project / "hpcml.toml"
    submit = ("submit", "--site", "slurm", *options)

    def told(*words: str) -> str:
        done = world.run(*words, "job.py")
        assert done.returncode == 0, done.stderr
        (text,) = notes_with(done.stderr, "hpcml.toml")
        if words[1:] == submit[1:] and options:
            assert text in json.loads(done.stdout)["notes"]
        return text

    path.write_text('[runtime]\nsetup = ["echo one"]\n[defaults]\nnodes = 2\n[environment]\nTOKEN = "secret"\n')
    uses = f"hpcml uses the settings of {path}"
    first = f'{uses}; it sets for the job: environment.TOKEN, runtime.setup = ["echo one"]'
    assert told("submit", "--site", "slurm", "--dry-run") == first
    assert told(*submit) == first, "a look is no submission"
    assert told(*submit) == uses
    path.write_text("# a remark\n" + path.read_text())
    assert told(*submit) == uses, "it sets the same"
    assert told(*submit, "--set", "runtime.setup=[]") == uses, "what the user types is no change of the file"
    path.write_text('[runtime]\nsetup = ["echo changed by a pull"]\n[site.slurm.slurm]\nextra = ["--constraint=x"]\n')
    now = 'runtime.setup = ["echo changed by a pull"], slurm.extra = ["--constraint=x"]'
    changed = f"{uses}, which has changed; it now sets for the job: {now}"
    assert told("submit", "--site", "slurm", "--dry-run") == changed
    assert told(*submit) == changed
    assert told(*submit) == uses
    path.write_text("")
    assert told(*submit) == f"{uses}, which has changed"
    path.write_text(f'[runtime]\nsetup = ["{"x" * 500}"]\n')
    assert len(told(*submit)) < len(str(path)) + 250, "a long value is cut"


def test_a_change_of_a_project_s_template_is_told(world: World) -> None:
    folder = world.project / "templates/hpcml"
    folder.mkdir(parents=True)
    path = folder / "batch.sh.j2"
    path.write_text('{% extends "hpcml/batch.sh.j2" %}\n')

    def told() -> str:
        done = world.run("submit", "--site", "slurm", "job.py")
        assert done.returncode == 0, done.stderr
        (text,) = notes_with(done.stderr, "template")
        return text

    uses = f"the batch script uses the template {path}"
    assert [told(), told()] == [uses, uses]
    (folder / "more.txt").write_text("echo more")
    path.write_text('{% extends "hpcml/batch.sh.j2" %}{% block environment %}{% include "more.txt" %}{% endblock %}')
    assert [told(), told()] == [f"{uses}, which has changed", uses]
    (folder / "more.txt").write_text("echo other")
    assert [told(), told()] == [f"{uses}, which has changed", uses]


def test_who_may_replace_runs_is_said_each_time(world: World) -> None:
    planted.need_another_account()
    world.runs.mkdir(parents=True)
    os.chown(world.runs, 0, planted.STRANGER)
    world.runs.chmod(0o2770)
    for _ in range(2):
        done = world.run("submit", "--site", "slurm", "job.py")
        assert done.returncode == 0, done.stderr
        assert len(notes_with(done.stderr, "can replace runs in")) == 1, done.stderr


# -- from a laptop ------------------------------------------------------------------------------------------------------


def test_from_a_laptop_a_line_and_a_project_s_file_stay_what_they_are(laptop: Laptop) -> None:
    witness, world = _witness(laptop.world.top), laptop.world
    world.script.write_text(line("--account", "x", "--set", f"cost.budget={json.dumps([str(witness)])}") + "print(1)\n")
    done = laptop.run("submit", "--dry-run", "job.py")
    assert done.returncode == errors.CONFIG, done.stderr
    assert "line 1 of job.py: cost.budget" in done.stderr
    for way in ("line", "project"):
        put(world, way, witness)
        for words in (("submit", "--dry-run", "job.py"), ("submit", "job.py")):
            done = laptop.run(*words)
            assert done.returncode == 0, (way, done.stderr)
            assert "does not compile with Python" in done.stderr
        assert laptop.run("rerun", "last", "--dry-run").returncode == 0
    assert not started(witness)
    done = laptop.run("submit", "--dry-run", "--set", f"runtime.python={witness}", "job.py")
    assert done.returncode == errors.REFUSED, done.stderr
    assert started(witness), "what is typed on the laptop is typed"


def test_from_a_laptop_a_change_of_the_project_s_file_is_told(laptop: Laptop) -> None:
    path = laptop.world.project / "hpcml.toml"
    told = []
    for text in ("echo one", "echo one", "echo two", "echo two"):
        path.write_text(f"[runtime]\nsetup = [{json.dumps(text)}]\n")
        done = laptop.run("submit", "job.py")
        assert done.returncode == 0, done.stderr
        (said,) = notes_with(done.stderr, "hpcml.toml")
        before, _, news = said.partition(f":{path}")
        assert before.startswith("hpcml uses the settings of "), said
        told.append(news)
    sets = "sets for the job: runtime.setup"
    assert told == [
        f'; it {sets} = ["echo one"]', "", f', which has changed; it now {sets} = ["echo two"]', "",
    ]  # fmt: skip
    assert laptop.run("rerun", "last").stderr.count("which has changed") == 0
