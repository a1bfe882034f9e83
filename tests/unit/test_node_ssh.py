"""The names that ssh-config writes: OpenSSH's own client reads them, and a key stays only as long as its run may."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.cli import ssh_config
from hpcml.errors import ConfigError, HpcmlError, StorageError, UsageError
from hpcml.remote import login_call, node_ssh, routes, ssh, tunnel_server
from hpcml.remote.answers import Relay, RunNode
from hpcml.runs import directories

RUN, OTHER = "train-20261129-120000-0a1b", "other-20261129-120000-0a1b"
RELAY = Relay(
    "/r/attempts/0/secret/relay-x", "ssh-ed25519 AAAAhostkey", RUN, (RunNode("n1"), RunNode("n3")), time.time() + 86400
)


def write(place: Path, relay: Relay = RELAY, *words: str) -> dict[str, str]:
    folder = routes.process_folder(place, "session-")
    (folder / "key").touch(0o600)
    return node_ssh.write(folder, relay, "alice", lambda node: ["/my bin/hpcml", *words, node, "50%"])


def effective(place: Path, name: str) -> dict[str, str]:
    """Return what OpenSSH's client makes of a name, for a user whose own settings are the opposite."""
    user = place / "user.conf"
    user.write_text(
        f'Include "{place}/nodes.conf"\nHost *\n ForwardAgent yes\n ForwardX11 yes\n ProxyJump bad\n User bob\n'
    )
    done = subprocess.run(["ssh", "-F", user, "-G", name], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_openssh_reads_the_names_and_the_user_s_own_settings_do_not_win(tmp_path: Path) -> None:
    place = tmp_path / "a folder"
    place.mkdir()
    assert write(place) == {f"hpcml-{RUN}": "n1", f"hpcml-{RUN}-n3": "n3"}
    for name, node in ((f"hpcml-{RUN}", "n1"), (f"hpcml-{RUN}-n3", "n3")):
        found = effective(place, name)
        assert found["proxycommand"] == f"'/my bin/hpcml' {node} 50%%"
        assert (found["user"], found["forwardagent"], found["forwardx11"]) == ("alice", "no", "no")
        assert (found["stricthostkeychecking"], found["identitiesonly"]) == ("true", "yes")
        assert found["userknownhostsfile"] == str(place / f"node-{RUN}" / "known_hosts")
    assert effective(place, "elsewhere")["user"] == "bob"
    assert (place / f"node-{RUN}" / "known_hosts").read_text() == f"hpcml-{RUN} ssh-ed25519 AAAAhostkey\n"


def test_the_names_of_other_runs_stay_until_their_time_limit(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, RELAY._replace(run=OTHER))
    assert effective(tmp_path, f"hpcml-{RUN}")["user"] == effective(tmp_path, f"hpcml-{OTHER}")["user"] == "alice"
    os.utime(tmp_path / f"node-{OTHER}" / "config", (1, 1))
    write(tmp_path)
    assert effective(tmp_path, f"hpcml-{OTHER}")["user"] == "bob"
    assert sorted(path.name for path in tmp_path.glob("*-*")) == [f"node-{RUN}"]


def test_with_any_umask_only_the_user_can_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write(tmp_path)
    finally:
        os.umask(before)
    made = [tmp_path / "nodes.conf", *tmp_path.glob("node-*"), *tmp_path.glob("node-*/*")]
    assert len(made) == 5
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in made} == {0}


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    (tmp_path / "nodes.conf").symlink_to(treasure)
    write(tmp_path)
    assert (treasure.read_text(), (tmp_path / "nodes.conf").is_symlink()) == ("gold", False)
    (tmp_path / f"node-{OTHER}").symlink_to(tmp_path)
    with pytest.raises(StorageError):
        write(tmp_path, RELAY._replace(run=OTHER))


def test_a_line_break_adds_no_setting(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        write(tmp_path, RELAY, "x\n  ForwardAgent yes")
    assert not (tmp_path / "nodes.conf").exists()


def test_openssh_reads_a_path_with_any_characters_as_one_word(tmp_path: Path) -> None:
    folder, text = tmp_path / """it's a [h]*me, 50% "x\"""", r"""it's 50% "x" \y"""
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh" / "config").write_text("User carol\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOME", str(folder))
        file = ssh.write_config(tmp_path, "lab", {})
    words = {"IdentityFile": ssh.literal(text), "UserKnownHostsFile": ssh.literal(text), "SetEnv": f"A={text}"}
    settings = ssh.options(**{name: ssh.quoted(word) for name, word in words.items()})
    done = subprocess.run(["ssh", "-F", file, *settings, "-G", "lab"], capture_output=True, text=True, check=True)
    shown = {line.replace("%%", "%") for line in done.stdout.splitlines()}
    assert shown >= {f"identityfile {text}", f"userknownhostsfile {text}", f"setenv A={text}", "user carol"}


def test_a_run_of_this_machine_needs_no_ssh(tmp_path: Path) -> None:
    directory = tmp_path / RUN
    directory.mkdir()
    (directory / "submission.json").write_text(json.dumps({"job": "", "scheduler": "local"}))
    with pytest.raises(UsageError) as raised:
        node_ssh.prepare(directories.load(directory), "ssh-ed25519 AAAA")
    assert str(directory) in raised.value.hint
    assert not (directory / "attempts").exists()


def test_a_run_in_an_image_has_a_command_that_enters_it_with_the_user_s_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/al ice")
    directory = tmp_path / RUN
    directory.mkdir()
    plan = {"entry": ["/bin/sh", "/r/image.sh", "apptainer", "exec", "--pwd", "/r", "--home", "/r/home"]}
    (directory / "plan.json").write_text(json.dumps({**plan, "inside": {"job": {"nodes": 1, "image": "/i.sif"}}}))
    (directory / "submission.json").write_text(json.dumps({"job": "7"}))
    command = node_ssh._command(directories.load(directory), Path("/f"))
    words = ["/bin/sh", "/f/enter.sh", *plan["entry"][:4], "--pwd", "/home/al ice", "--home", "/home/al ice", "/i.sif"]
    assert shlex.split(command) == words


class Answer:
    """A login node's hpcml that has ended, with what it said."""

    errors, facts = "hpcml: The run has ended (x).\nChoose a run.", dict[str, Relay]()
    connection: Any = SimpleNamespace(host="far")

    def __init__(self, *_: object) -> None: ...

    def begin(self) -> None: ...

    def end(self) -> int:
        return 66

    def stop(self) -> None: ...


def test_what_the_login_node_says_is_an_error_or_names_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_call, "Call", Answer)
    options: Any = SimpleNamespace(site="", set=None, run="x")
    with pytest.raises(HpcmlError) as raised:
        ssh_config._prepared(options, Answer.connection, "ssh-ed25519 AAAA")
    assert (raised.value.exit_status, raised.value.hint) == (66, "Choose a run.")
    monkeypatch.setattr(Answer, "facts", {"relay": RELAY._replace(nodes=())})
    with pytest.raises(ConfigError):
        ssh_config._prepared(options, Answer.connection, "ssh-ed25519 AAAA")
    monkeypatch.setattr(Answer, "facts", {"relay": RELAY})
    assert ssh_config._prepared(options, Answer.connection, "ssh-ed25519 AAAA") == RELAY


@pytest.mark.parametrize(
    ("started_as", "words"), [("bin/hpcml", ["HERE/bin/hpcml"]), ("/x/hpcml/__main__.py", ["-m", "hpcml"])]
)
def test_ssh_starts_the_same_hpcml_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started_as: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [started_as, "ssh-config", "hpcml"])
    assert node_ssh.own_command() == [sys.executable, "-P", *(word.replace("HERE", str(tmp_path)) for word in words)]


def test_sshd_reads_the_paths_of_its_files_as_one_word_each(tmp_path: Path) -> None:
    directory = tmp_path / "it's a 50%" / RUN
    (directory / "attempts/0").mkdir(parents=True)
    relay = tunnel_server.prepare(directories.load(directory), "ssh-ed25519 AAAA")
    settings = [shlex.split(line) for line in (Path(relay.folder) / "config").read_text().splitlines()[:2]]
    files = [str(Path(relay.folder) / name) for name in ("host", "authorized")]
    assert settings == [["HostKey", files[0]], ["AuthorizedKeysFile", files[1].replace("%", "%%")]]
