"""What the login node tells a laptop of a run: its newest attempt, its services, and no end that is an old attempt's."""

from __future__ import annotations

import json
import shlex
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml import subprocesses
from hpcml.errors import NotFoundError, StorageError, TunnelError
from hpcml.remote import answers, routes, tunnel_server, tunnel_target
from hpcml.remote.answers import Service
from hpcml.runs import directories, status

SERVICE: dict[str, Any] = {"node": "n1", "socket": "/tmp/hpcml-x/dashboard.sock", "identity": "me", "path": "/status"}


@pytest.fixture
def run(tmp_path: Path) -> directories.Run:
    directory = tmp_path / "a-20260101-000000-0000"
    directory.mkdir()
    inside = {"job": {"nodes": 1, "time_limit": 600}}
    (directory / "plan.json").write_text(json.dumps({"site": "lab", "inside": inside}))
    (directory / "submission.json").write_text(json.dumps({"job": ""}))
    return directories.load(directory)


def attempt(run: directories.Run, number: int, **services: dict[str, Any]) -> None:
    folder = run.paths.attempt(number).service_of("x").parent
    folder.mkdir(parents=True)
    for name, facts in services.items():
        (folder / f"{name}.json").write_text(json.dumps(facts))


def diary(run: directories.Run, *names: str) -> None:
    with run.paths.events.open("a") as file:
        for name in names:
            more = {"nodes": ["n1"]} if name == "allocated" else {}
            file.write(json.dumps({"time": 100.0, "event": name, **more}) + "\n")


def test_services_are_the_newest_attempt_s_and_end_with_it(run: directories.Run) -> None:
    assert tunnel_server.services(run) == {}
    with pytest.raises(NotFoundError, match="The run is not a JupyterLab session"):
        tunnel_server.service(run, "jupyter")
    with pytest.raises(NotFoundError, match="The run's dashboard is starting"):
        tunnel_server.service(run, "dashboard")
    (run.paths.plan).write_text(json.dumps({"inside": {"code": {"form": "jupyter"}}}))
    with pytest.raises(NotFoundError, match="The run's jupyter is starting"):
        tunnel_server.service(run, "jupyter")
    attempt(run, 9, dashboard=SERVICE | {"node": "old"})
    attempt(run, 10, dashboard=SERVICE, jupyter=SERVICE)
    (run.paths.attempt(10).service_of("x").parent / ".half.json").write_text("{")
    found = tunnel_server.services(run)
    assert (sorted(found), found["dashboard"].node) == (["dashboard", "jupyter"], "n1")
    assert tunnel_server.service(run, "jupyter") == Service(**SERVICE)
    with pytest.raises(NotFoundError, match="nosuch is not running"):
        tunnel_server.service(run, "nosuch")
    run.paths.attempt(10).ended.write_text("{}")
    assert tunnel_server.services(run) == {}


def test_a_damaged_service_file_is_said(run: directories.Run) -> None:
    attempt(run, 0)
    run.paths.attempt(0).service_of("dashboard").write_text("{")
    with pytest.raises(StorageError, match="not valid JSON"):
        tunnel_server.services(run)
    for name, value in (("socket", None), ("node", "-x"), ("identity", "")):
        run.paths.attempt(0).service_of("dashboard").write_text(json.dumps(SERVICE | {name: value}))
        with pytest.raises(StorageError, match=f"'{name}' is malformed"):
            tunnel_server.services(run)


def test_an_end_counts_until_the_job_is_started_again(run: directories.Run) -> None:
    diary(run, "allocated", "script-started", "script-ended", "torn-down")
    ended = {"over": True, "state": "CANCELLED", "exit_status": 86, "message": "the run was cancelled", "by": "user"}
    run.paths.status.write_text(json.dumps(ended | {"hint": "", "quote": []}))
    assert status.status(run).state == "CANCELLED"
    diary(run, "allocated")
    again = status.status(run, ask=False)
    assert (again.state, again.phase, again.exit_status) == ("RUNNING", "starting", None)
    diary(run, "script-started")
    assert status.status(run, ask=False).phase == "running"
    diary(run, "script-ended")
    assert status.status(run).state == "CANCELLED"


def test_the_facts_say_when_the_time_limit_is(run: directories.Run) -> None:
    diary(run, "allocated")
    attempt(run, 0, dashboard=SERVICE)
    facts = tunnel_server.facts(run, status.status(run, ask=False), tunnel_target.Sought(run, "", 0.0))
    assert (facts.ends, facts.state, facts.services) == (700.0, "RUNNING", {"dashboard": Service(**SERVICE)})
    assert answers.of_call(json.dumps({"standing": facts.as_table()}), "login")["standing"] == facts


@pytest.mark.parametrize("sent", ["", "rm -rf /", "ssh-ed25519 AAAA\nssh-ed25519 BBBB", 'command="x" ssh-rsa A'])
def test_only_one_public_key_is_taken(run: directories.Run, sent: str) -> None:
    attempt(run, 0)
    with pytest.raises(TunnelError, match="no valid ssh public key"):
        tunnel_server.prepare(run, sent)


def test_printed_commands_are_whole_words_to_a_shell() -> None:
    odd = Service(**SERVICE)._replace(socket="/scratch/my runs/it's/s")
    for _, command in tunnel_server.lines(odd, "login", "me", 20001):
        words = shlex.split(command)
        assert words[0] == "ssh"
        if "mktemp" in command:
            inner = shlex.split(words[-1].replace("$(", "").replace(")", ""))
            assert inner[-2].endswith(f":{odd.socket}")
        elif "PATH" not in command:
            assert f"127.0.0.1:20001:{odd.socket}" in words


@pytest.mark.parametrize("path", ["/etc/passwd", "{run}/submission.json", "{secret}/../link.json", "{secret}/../../../../x", "{secret}/link",
                                  "{secret}/below/token", "token", "{secret}"])  # fmt: skip
def test_a_token_is_a_secret_of_its_attempt(run: directories.Run, path: str) -> None:
    secret = run.paths.attempt(0).secret
    secret.mkdir(parents=True)
    (secret / "link").symlink_to("/etc/passwd")
    named = path.format(run=run.paths.directory, secret=secret)
    attempt(run, 0, jupyter=SERVICE | {"token_file": named})
    with pytest.raises(StorageError, match="token file in a wrong folder"):
        tunnel_server.services(run)


@pytest.mark.parametrize(("wrong", "code", "message"), [
    (TimeoutError(), None, "The service on n1 does not respond in time"),
    (ConnectionResetError(), 0, "sshd on n1 forbids ssh forwarding"),
])  # fmt: skip
def test_a_hop_that_carries_nothing_names_what_is_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: OSError, code: int | None, message: str
) -> None:
    def ssh_to_node(words: list[str], **_: object) -> SimpleNamespace:
        Path(words[words.index("-L") + 1].partition(":")[0]).touch()
        return SimpleNamespace(wait=lambda _: None, stop=lambda: None)

    def get(*_: object) -> None:
        raise wrong

    monkeypatch.setattr(subprocesses, "Child", ssh_to_node)
    monkeypatch.setattr(subprocesses, "run", lambda *_, **__: subprocesses.Answer(code, "", ""))
    monkeypatch.setattr(routes, "get", get)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(TunnelError, match=message):
        tunnel_server.hop(Service(**SERVICE), lambda _: None)
    assert not list(tmp_path.iterdir())


def test_the_second_hop_s_ssh_ends_with_the_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []

    refused = SimpleNamespace(
        code=255, errors="Permission denied", wait=lambda _: 255, stop=lambda: stopped.append(True)
    )
    monkeypatch.setattr(subprocesses, "Child", lambda _, **__: refused)
    with pytest.raises(TunnelError, match="failed"):
        tunnel_server.hop(Service("dashboard", "n2", "/s", "/status"), lambda _: None)
    assert stopped
