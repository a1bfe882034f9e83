"""The parts of the way to a cluster that decide: budget, certificates' ends, ssh's complaints, ports, who is local."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.errors import ConfigError, HostKeyError, HpcmlError, LinkError, LoginNeededError, StorageError
from hpcml.kinds.dask.node.dashboard import is_local
from hpcml.remote import routes, ssh
from hpcml.sites.schema import Login


def test_a_budget_is_spent_and_comes_back_after_an_hour(tmp_path: Path) -> None:
    budget = ssh.Budget(tmp_path / "logins", 2)
    now = 1_000_000.0
    assert budget.left(now) == 2
    budget.spend(now)
    budget.spend(now + 60)
    assert budget.left(now + 61) == 0
    assert budget.free_at(now + 61) == now + 3600
    assert ssh.Budget(tmp_path / "logins", 2).left(now + 3599) == 0  # another process sees the same
    assert budget.left(now + 3601) == 1
    budget.refund(now + 60)
    assert budget.left(now + 61) == 1
    assert (tmp_path / "logins").stat().st_mode & 0o777 == 0o600
    (tmp_path / "logins").write_text('{"not": "a list"')
    assert budget.left(now) == 2, "a damaged one is begun anew"


def test_many_at_once_do_not_lose_a_login(tmp_path: Path) -> None:
    budget = ssh.Budget(tmp_path / "logins", 100)
    threads = [threading.Thread(target=budget.spend, args=(1000.0 + n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.left(1050.0) == 80


@pytest.mark.parametrize(("said", "kind"), [
    ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", HostKeyError),
    ("No ED25519 host key is known for n1 and you have requested strict checking.", HostKeyError),
    ("alice@login: Permission denied (publickey,keyboard-interactive).", LoginNeededError),
    ("Received disconnect from 1.2.3.4 port 22:2: Too many authentication failures", LoginNeededError),
    ("ssh: connect to host login port 22: Connection refused", LinkError),
    ("/home/a/.ssh/config: line 3: Bad configuration option: foo", ConfigError),
    ("", LinkError),
])  # fmt: skip
def test_what_ssh_says_has_a_kind(said: str, kind: type[Exception]) -> None:
    error = ssh.failure(said, "login", "step ssh login")
    assert type(error) is kind
    if kind is LoginNeededError:
        assert "step ssh login" in error.hint


def test_certificates_ends_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """\
/home/a/.ssh/id-cert.pub:
        Type: ssh-ed25519-cert-v01@openssh.com user certificate
        Valid: from 2026-11-20T09:00:00 to 2026-11-20T21:00:00
        Valid: forever
"""
    first, second = ssh.validity(text)
    assert second == float("inf")
    assert ssh.clock(first, first) == "21:00"
    found = [first]
    assert "expired" in ssh.warning(found, None, first + 1, "renew me")
    assert "An existing tunnel continues" in ssh.warning(found, first + 3600, first - 60, "")
    assert ssh.warning(found, first - 10, first - 60, "") == ""
    assert ssh.warning([], first, first, "") == ""
    assert ssh.warning([*found, second], first + 9, first + 1, "") == ""


def test_a_port_stays_the_same_and_has_twenty_neighbours() -> None:
    first, again, other = (routes.port_of("login", "run-1", name) for name in ("dashboard", "dashboard", "jupyter"))
    assert (first == again, first == other) == (True, False)
    tried = routes.candidates(29995)
    assert len(set(tried)) == 20
    assert all(20000 <= candidate < 30000 for candidate in tried)
    assert routes.candidates(8888)[:2] == [8888, 8889]


def test_a_folder_for_control_sockets_is_the_user_s_alone(tmp_path: Path) -> None:
    ssh.private_folder(tmp_path / "new" / "cm")
    assert (tmp_path / "new" / "cm").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    (tmp_path / "link").symlink_to(tmp_path / "new")
    for name in ("open", "link"):
        with pytest.raises(StorageError, match="not a folder that you own"):
            ssh.private_folder(tmp_path / name)
    (tmp_path / "new").chmod(0o777)
    with pytest.raises(StorageError, match="rename") as told:
        ssh.private_folder(tmp_path / "new" / "cm")
    assert f"chmod go-w {tmp_path}/new" in told.value.hint
    if os.geteuid() == 0:
        os.chown(tmp_path / "new", 12345, -1)
        with pytest.raises(StorageError, match="rename") as told:
            ssh.private_folder(tmp_path / "new" / "cm")
        assert "login.control" in told.value.hint, "the folder is not one's own to close"
        assert "chmod" not in told.value.hint


def test_a_control_socket_s_path_has_room_for_ssh_s_own_suffix(tmp_path: Path) -> None:
    assert ssh.control_socket(Path("/" + "x" * 70), "y" * 17).name == "y" * 17
    with pytest.raises(ConfigError, match="the system allows 89"):
        ssh.control_socket(Path("/" + "x" * 72), "y" * 17)


@pytest.mark.parametrize("unsafe", ["no", "false"])
def test_the_configuration_switches_the_check_of_host_keys_on_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsafe: str
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host *\n  StrictHostKeyChecking no\n  ForwardAgent yes\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    path = ssh.write_config(tmp_path, "login", {"stricthostkeychecking": [unsafe]})
    assert path.stat().st_mode & 0o777 == 0o600
    known = ssh.effective("login", path)
    assert known["stricthostkeychecking"] == ["ask"]
    assert known["forwardagent"] == ["no"]
    assert known["connecttimeout"] == ["15"]


def test_the_user_s_own_strictness_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host login\n  StrictHostKeyChecking yes\n  User me\n  ConnectTimeout 3\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    path = ssh.write_config(tmp_path, "login", {"stricthostkeychecking": ["true"]})
    known = ssh.effective("login", path)
    assert known["stricthostkeychecking"] == ["true"]
    assert (known["user"], known["connecttimeout"]) == (["me"], ["3"])


@pytest.mark.parametrize(("host", "origin", "local"), [
    ("localhost:8787", "", True),
    ("127.0.0.1:8787", "http://127.0.0.1:8787", True),
    ("[::1]:8787", "", True),
    ("evil.example:8787", "", False),
    ("127.0.0.1.evil.example", "", False),
    ("localhost:8787", "http://evil.example", False),
    ("localhost:8787", "http://localhost.evil.example:8787", False),
    ("localhost:8787", "null", False),
    ("", "", False),
])  # fmt: skip
def test_who_is_local(host: str, origin: str, local: bool) -> None:
    assert is_local(host, origin) is local


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[ssh.Connection]:
    """A connection to a cluster's login node, with nobody logged in."""
    monkeypatch.setattr(ssh, "effective", lambda _: {})
    with tempfile.TemporaryDirectory(dir="/tmp") as home:  # a short path, for the socket
        monkeypatch.setenv("HOME", home)
        yield ssh.Connection(Login(host="login", logins=5))


@pytest.mark.parametrize(("said", "left"), [
    ("alice@login: Permission denied (publickey).", 4),
    ("ssh: connect to host login port 22: Connection timed out", 5),
])  # fmt: skip
def test_a_refused_login_counts_and_a_network_s_failure_does_not(
    said: str, left: int, connection: ssh.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_log_in", lambda **_: (said, 255))
    monkeypatch.setattr(connection, "alive", lambda: False)
    with pytest.raises(HpcmlError):
        connection.open(ask=False)
    assert connection.budget.left(time.time()) == left


def test_a_command_without_the_connection_does_not_log_in(connection: ssh.Connection) -> None:
    asked = subprocess.run([*connection.over(), "-G", "--", "login"], capture_output=True, text=True, check=True).stdout
    assert "proxycommand false" in asked.splitlines()
