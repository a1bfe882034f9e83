"""What another machine's hpcml says is checked before anything is done with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcml import errors
from hpcml.remote import answers, ssh, transfer

RUN = "job-20260101-000000-0a1b"


def short(text: str) -> str:
    """Return the name of a case; some texts are megabytes long."""
    return text[:60]


SERVICE = {"node": "n1", "socket": "/tmp/hpcml-x/dashboard.sock", "path": "/status", "identity": "Scheduler-1", "probe": "/p.json",
           "token_file": f"/home/me/.hpcml/runs/{RUN}/attempts/0/secret/jupyter.token"}  # fmt: skip
FACTS: dict[str, Any] = {
    "run": RUN, "job": "12", "state": "RUNNING", "message": "the script runs", "estimate": "",
    "services": {"dashboard": SERVICE}, "ends": 1.5e9, "exit_status": None, "hint": "", "quote": ["a"],
}  # fmt: skip
NOTHINGS: tuple[Any, ...] = (None, 5, 1.5, True, [], {}, ["x"], {"a": 1}, "")
WORDS = (
    "x\ny", "\x1b[2J", "$(touch x)", "-oProxyCommand=x", "a b", "../..", "a;b", "`x`", "\x00", "a" * 5000, "@evil.example", "\u202ex", "%h",
)  # fmt: skip


def standing(facts: dict[str, Any]) -> answers.RunFacts:
    return answers.of_call(json.dumps({"standing": facts}), "login.example.org")["standing"]


def of_run(**changes: Any) -> answers.RunFacts:
    return standing(FACTS | changes)


def of_service(**changes: Any) -> answers.Service:
    return of_run(services={"dashboard": SERVICE | changes}).services["dashboard"]


@pytest.mark.parametrize("name", ["run", "job", "state", "services", "ends", "exit_status", "message", "quote"])
def test_facts_of_another_form_are_refused(name: str) -> None:
    tried = 0
    for value in (*NOTHINGS, *WORDS, float("nan"), float("inf"), 10**30, -1):
        right = {"job": value == "", "services": value == {}, "message": isinstance(value, str),
                 "ends": (isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e11) or value is None,
                 "exit_status": value in (None, 5, -1) and not isinstance(value, bool), "quote": value in ([], ["x"])}.get(name, False)  # fmt: skip
        if right:
            of_run(**{name: value})
            continue
        tried += 1
        with pytest.raises(errors.ConfigError, match=name) as caught:
            of_run(**{name: value})
        assert caught.value.exit_status == errors.CONFIG
        assert str(caught.value).isascii()
    assert tried > 10
    with pytest.raises(errors.ConfigError, match=name):
        standing({key: value for key, value in FACTS.items() if key != name})


def test_an_older_hpcml_does_not_say_that_a_run_is_stuck() -> None:
    assert (of_run().stuck, of_run(stuck=True).stuck) == (False, True)
    with pytest.raises(errors.ConfigError, match="stuck"):
        of_run(stuck="yes")


@pytest.mark.parametrize("name", ["node", "socket", "path", "probe", "token_file"])
def test_a_service_becomes_no_other_command_path_or_address(name: str) -> None:
    evil = [f"{prefix}{word}" for word in WORDS for prefix in ("", "/", "/a/attempts/0/secret/", "n1")]
    evil += [
        "/tmp/a:/b", "host:22", "-x", "relative", "/etc/passwd\n", "//evil:80", "/a/attempts/x/secret/t",
        "/a/attempts/0/secret/../t",
    ]  # fmt: skip
    allowed = {"/$(touch x)", "/a;b", "/`x`", "/@evil.example", "/%h", "//evil:80"}  # a path, or a page of 127.0.0.1
    for word in evil:
        try:
            found = getattr(of_service(**{name: word}), name)
        except errors.ConfigError:
            continue
        if not found and name in ("probe", "token_file"):
            continue
        if name == "node":
            assert all(letter.isalnum() or letter in "._-" for letter in word), word
        elif name == "token_file":
            assert "/attempts/0/secret/" in word
            assert "/.." not in word
        else:
            assert found.startswith("/"), word
            assert "\n" not in found
            assert name == "socket" or found.isprintable() or found in allowed
            assert name != "socket" or ":" not in found


@pytest.mark.parametrize("line", ["", "{", "[]", "5", "[" * 100_000, "{}", "x" * (2 << 20)], ids=short)
def test_what_is_no_table_is_refused(line: str) -> None:
    for fact in ("", "standing", "socket", "relay"):
        if (fact, line) != ("", "{}"):  # a line without facts says nothing
            with pytest.raises(errors.ConfigError):
                answers.of_call(f'{{"{fact}": {line}}}' if fact else line, "login.example.org")
    with pytest.raises(errors.ConfigError):
        answers.of_offer(line.encode(), "login.example.org")


@pytest.mark.parametrize("line", [
    '{"hello": 2}', '{"hello": 2, "version": "1\\u001b[2J"}', '{"hello": 2, "version": "' + "1" * 100_000 + '"}',
    '{"run": "x; touch /owned"}', '{"run": "\\u001b]0;owned\\u0007-20260101-000000-0000"}', '{"submitted": 3}',
    '{"exit_status": "0; id"}', '{"exit_status": 999}', '{"exit_status": true}',
], ids=short)  # fmt: skip
def test_facts_of_a_call_that_are_none_are_refused(line: str) -> None:
    with pytest.raises(errors.ConfigError, match="hpcml on far sent an invalid message") as caught:
        answers.of_call(line, "far")
    assert str(caught.value).replace("\n", "").isprintable()


OFFERED = '{"run": "r-20260101-000000-0000"'


@pytest.mark.parametrize("offer", [
    '{"run": "../x", "files": []}', "[]", "[" * 100_000,
    *(f"{OFFERED}{rest}}}" for rest in (
        "", ', "files": 5', ', "files": [["a", 1e999, 0, 0]]', ', "files": [["a", 99999999999999999999, 0, 0]]',
        ', "files": [["a", 1, 99999999999999999999, 0]]', ', "files": [["\\ud800", 1, 0, 0]]', ', "files": [], "others": "x"',
        ', "files": [["a", 1, 0, 0], ["a", 1, 0, 0]]',
        f', "files": [{", ".join(["[]"] * 200_001)}]')),
], ids=short)  # fmt: skip
def test_an_offer_of_files_that_is_none_is_refused(offer: str) -> None:
    with pytest.raises((errors.ConfigError, errors.StorageError)) as caught:
        transfer.offer_of(offer.encode(), "far")
    assert str(caught.value).replace("\n", "").isprintable()


def test_what_a_login_node_prepares() -> None:
    good = {
        "folder": f"/home/me/.hpcml/runs/{RUN}/attempts/0/secret/relay-ab_1",
        "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me",
    }
    assert answers.of_call(json.dumps({"relay": good}), "x")["relay"][:2] == (good["folder"], good["host_key"])
    for name, evil in (("run", "../x"), ("nodes", ["n1\n  ForwardAgent yes"]), ("nodes", "n1"), ("ends", "soon"),
                       ("folder", "/"), ("folder", "/home/me"), ("folder", good["folder"] + "/.."), ("folder", good["folder"] + "\n"),
                       ("host_key", good["host_key"] + "\n* ssh-ed25519 AAAA"), ("host_key", "x"), ("host_key", None)):  # fmt: skip
        with pytest.raises(errors.ConfigError, match=name):
            answers.of_call(json.dumps({"relay": good | {name: evil}}), "x")
    for token in ("", "short", "a b c d e f", "x\r\nHost: evil", "\x1b[2J" * 4, "x" * 600):
        with pytest.raises(errors.ConfigError):
            answers.of_token(token, "x")
    assert answers.of_token("0123456789abcdef\n", "x") == "0123456789abcdef"


def test_no_shell_reads_a_word_of_a_proxy_command() -> None:
    said = ssh.proxy(["ssh", "-S", "/tmp/h2c$(touch /x)/%h", "a b", "login"], destination=True)
    assert said == "ssh -S '/tmp/h2c$(touch /x)/%%h' 'a b' -W '[%h]:%p' login"
    assert ssh.proxy(["ssh", "login", "touch /owned; hpcml tunnel"]) == "ssh login 'touch /owned; hpcml tunnel'"


def test_marks_of_somebody_else_s_cost_no_more_than_other_bytes() -> None:
    """The piece was copied for each of them."""
    evil = b"\x1e" * (4 << 20)
    assert answers.StreamDemux("00", "x").feed(evil, last=True) == (evil, [])
