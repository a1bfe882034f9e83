"""What a tunnel does when something breaks: it mends itself, or ends with a sentence and a status of its own."""

from __future__ import annotations

import json
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lab_ssh
from conftest import ALL_NODES
from hpcml import errors
from lab_state import PATIENCE
from laptop import SERVICE, Outside, until

LOGINS = ("login", "login2")
ROUTES = ("direct", "twohop", "srun")


def all_logins(outside: Outside) -> int:
    return sum(outside.logins(node) for node in LOGINS)


@pytest.fixture(scope="module")
def web(outside: Outside) -> Iterator[tuple[str, Path]]:
    """A run with a dashboard and a web service that wants a token; it has no end of its own."""
    with outside.going_on("web", SERVICE) as run:
        yield run


def test_a_link_cut_for_20_s_is_waited_out(outside: Outside, web: tuple[str, Path]) -> None:
    tunnel = outside.tunnel(web[0], "--route", "direct")
    port = tunnel.up()["port"]
    before = all_logins(outside)
    lab_ssh.cut()
    try:
        time.sleep(20)  # the cut is what is tested
    finally:
        lab_ssh.cut(up=True)
    until(lambda: outside.status_of(port) == "200", 40, lambda: tunnel.said)
    assert tunnel.process.poll() is None
    assert all_logins(outside) == before


def test_a_login_node_that_goes_is_replaced_by_another_on_the_same_port(
    outside: Outside, web: tuple[str, Path]
) -> None:
    outside.forget()
    tunnels = [outside.tunnel(web[0], "--route", route) for route in ROUTES]
    ports = [tunnel.up()["port"] for tunnel in tunnels]
    lab, state = outside.lab, outside.lab.state()
    lab_ssh.stop_sshd(state, "login")
    before = outside.logins("login2")
    try:
        outside.kill_sessions("login")
        assert [tunnel.up(2, 60)["port"] for tunnel in tunnels] == ports
    finally:
        lab_ssh.start_sshd(lab.places, state, "login")
    assert [outside.status_of(port) for port in ports] == ["200"] * 3
    assert outside.logins("login2") == before + 1
    assert all(re.search("The connection to (lab|the node) was lost", tunnel.said) for tunnel in tunnels)
    assert any("The connection to lab was lost" in tunnel.said for tunnel in tunnels)
    for tunnel in tunnels:  # or they log in once more
        tunnel.stop()
    outside.forget()  # the next test begins on login again


def test_no_secret_is_on_a_command_line_or_in_slurm_s_records_or_in_a_log(
    outside: Outside, web: tuple[str, Path]
) -> None:
    run, directory = web
    service = outside.service(directory, "web")
    token = outside.on("login", "cat", service["token_file"]).stdout.strip()
    assert len(token) > 30
    tunnel = outside.tunnel(run, "--service", "web", "--route", "srun", "--open", env={"BROWSER": "/bin/true"})
    port = tunnel.up()["port"]
    lines = [line for user in ("alice", "root") for _, line in outside.lab.processes(user)]
    assert outside.status_of(port, "/api/status", "-H", f"Authorization: token {token}") == "200"
    assert outside.status_of(port, "/api/status") == "403"
    (page,) = outside.home.glob(".hpcml/ssh/open-*.html")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert token in page.read_text()
    tunnel.stop()
    assert not list(outside.home.glob(".hpcml/ssh/open-*.html"))
    job = json.loads((directory / "submission.json").read_text())["job"]
    records = outside.on("login", "scontrol", "show", "job", "-dd").stdout
    records += outside.on("login", "squeue", "-a", "-O", "ALL").stdout
    assert f"JobId={job}" in records
    logs = [path.read_text() for path in (*directory.glob("logs/*"), directory / "job.sh", directory / "plan.json")]
    logs += [path.read_text(errors="replace") for path in outside.home.glob(".hpcml/ssh/*") if path.is_file()]
    assert token not in "".join([*lines, records, *logs, json.dumps(tunnel.lines), tunnel.said])


def test_a_certificate_that_ends_keeps_the_tunnel_and_stops_the_next_login(
    outside: Outside, web: tuple[str, Path]
) -> None:
    outside.forget()
    began = time.time()
    outside.tunnel(web[0], "--route", "twohop").up()  # how long that takes on this machine
    outside.tunnels.pop().stop()
    outside.forget()
    life = 6 + int(PATIENCE * (time.time() - began))
    try:
        lab_ssh.certify(outside.lab.places, "alice", life)
        ends = time.time() + life
        tunnel = outside.tunnel(web[0], "--route", "twohop", "--set", "login.renew=step ssh login alice@example.org")
        port = tunnel.up()["port"]
        until(lambda: time.time() > ends + 1, life)
        assert outside.status_of(port) == "200"
        other = outside.tunnel(web[0], "--route", "twohop", "--port", "9321")
        assert other.up()["port"] == 9321  # a new session on the old connection
        assert "your ssh certificate expired" in other.said
        other.stop()
        before = len(lab_ssh.log(outside.lab.places, "login"))
        outside.kill_sessions("login")
        assert tunnel.ended(30) == errors.NO_ACCESS
        assert "step ssh login alice@example.org" in tunnel.said
        assert "Connection from" not in lab_ssh.log(outside.lab.places, "login")[before:]  # it was not even tried
    finally:
        lab_ssh.certify(outside.lab.places, "alice")
        outside.forget()


def test_a_changed_host_key_stops_a_first_login_and_a_reconnect(outside: Outside, web: tuple[str, Path]) -> None:
    outside.forget()
    places = outside.lab.places
    known = outside.home / ".ssh" / "known_hosts"
    kept = known.read_text()
    plain = (lab_ssh.folder(places) / "host-login.pub").read_text().split()
    known.write_text(f"login.lab {plain[0]} {plain[1]}\n" + kept.replace("login*,", ""))
    (lab_ssh.folder(places) / "host-login-cert.pub").unlink()
    try:
        with outside.sshd(("login",)):
            lab_ssh.stop_sshd(outside.lab.state(), "login2")
            tunnel = outside.tunnel(web[0], "--set", "login.route=twohop")
            tunnel.up()
            lab_ssh.renew_host_key(places, "login", signed=False)
            with outside.sshd(("login",)):
                assert tunnel.ended() == errors.NO_ACCESS
                assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in tunnel.said
                first = outside.tunnel(web[0])
                assert first.ended() == errors.NO_ACCESS
                assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in first.said
        for path in outside.home.glob(".hpcml/ssh/*.conf"):
            text = path.read_text()
            assert "StrictHostKeyChecking no" not in text
            assert "accept-new" not in text
            assert "/dev/null" not in text
    finally:
        known.write_text(kept)
        lab_ssh.renew_host_key(places, "login")
        lab_ssh.configure(places, "login")
        state = outside.lab.state()
        for node in LOGINS:
            if state.daemons[f"sshd-{node}"].alive:
                lab_ssh.stop_sshd(state, node)
            lab_ssh.start_sshd(places, state, node)
        outside.forget()


def test_an_unknown_or_changed_node_key_is_never_accepted(outside: Outside, web: tuple[str, Path]) -> None:
    places = outside.lab.places
    node = outside.service(web[1])["node"]
    config = outside.home / ".ssh" / "config"
    kept = config.read_text()
    config.write_text("Host *\n  StrictHostKeyChecking no\n" + kept)
    outside.close_connection()
    lab_ssh.renew_host_key(places, node, signed=False)
    try:
        with outside.sshd((node,)):
            tunnel = outside.tunnel(web[0], "--route", "direct")
            assert tunnel.ended() == errors.NO_ACCESS
            assert "Host key verification failed" in tunnel.said
            tunnel = outside.tunnel(web[0], "--route", "twohop")
            assert tunnel.ended() == errors.NO_ACCESS
            assert outside.tunnel(web[0]).up()["route"] == "srun"
    finally:
        config.write_text(kept)
        lab_ssh.renew_host_key(places, node)
        with outside.sshd((node,)):
            pass
        outside.forget()


def test_forwarding_forbidden_by_the_node_names_it_and_leaves_srun(outside: Outside, web: tuple[str, Path]) -> None:
    outside.forget()
    with outside.sshd(ALL_NODES, "AllowStreamLocalForwarding no"):
        for route in ("direct", "twohop"):
            tunnel = outside.tunnel(web[0], "--route", route)
            assert tunnel.ended() == errors.NO_ACCESS
            assert "n1 forbids ssh forwarding" in tunnel.said
        assert outside.tunnel(web[0]).up()["route"] == "srun"


def test_a_stranger_s_server_is_never_shown_nor_told_the_token(outside: Outside, web: tuple[str, Path]) -> None:
    run, directory = web
    service = outside.service(directory, "web")
    token = outside.on("login", "cat", service["token_file"]).stdout.strip()
    port = outside.tunnel(run, "--service", "web").up()["port"]
    outside.tunnels.pop().stop()
    fake = f"""
import http.server
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.path, self.headers, flush=True)
        self.send_response(200); self.end_headers(); self.wfile.write(b'{{"started": "mine"}}')
http.server.HTTPServer(("127.0.0.1", {port}), Page).serve_forever()
"""
    squatter = outside.lab.popen(["/usr/bin/python3", "-c", fake], node="laptop", user="mallory", cwd="/")
    try:
        until(lambda: outside.status_of(port) == "200", 10)
        assert outside.tunnel(run, "--service", "web").up()["port"] == port + 1
        outside.tunnels.pop().stop()
        taken = outside.tunnel(run, "--service", "web", "--port", str(port))
        assert taken.ended() == errors.UNAVAILABLE
        assert f"Port {port} of this laptop is in use" in taken.said
    finally:
        squatter.terminate()
        heard = "".join(squatter.communicate(timeout=180))
    assert token not in heard
    # Another service in the place of the run's: the socket of the dashboard under the web service's name.
    wrong = json.loads((directory / "attempts/0/services/dashboard.json").read_text()) | {
        "identity": service["identity"]
    }
    text = json.dumps(wrong | {"token_file": None})
    outside.on("login", "tee", str(directory / "attempts/0/services/other.json"), input=text)
    other = outside.tunnel(run, "--service", "other", "--route", "direct")
    assert other.ended() == errors.NO_ACCESS
    assert "another service responds" in other.said
    assert not other.lines


def test_the_login_after_five_within_an_hour_is_refused(outside: Outside, web: tuple[str, Path]) -> None:
    outside.forget()
    outside.tunnel(web[0], "--route", "twohop").up()
    outside.tunnels.pop().stop()
    (budget,) = outside.home.glob(".hpcml/ssh/*.logins")
    budget.write_text(json.dumps(json.loads(budget.read_text()) * 5))  # as if there had been four more
    outside.close_connection()
    before = all_logins(outside)
    again = outside.tunnel(web[0])
    assert again.ended() == errors.NO_ACCESS
    assert "within an hour" in again.said
    assert all_logins(outside) == before
    outside.forget()


def test_a_run_that_ends_ends_the_tunnel_with_its_reason(outside: Outside, web: tuple[str, Path]) -> None:
    """The last of this file: the shared run ends."""
    outside.forget()
    good = outside.tunnel(web[0])
    good.up()
    (web[1] / "out/enough").touch()
    assert good.ended(30) == 0
    assert "has ended" in good.said
    signs = ("--serve", "ssh -N", "-NT", "sshd -i", "hpcml tunnel")

    def left() -> list[str]:
        lines = [line for _, line in outside.lab.processes("alice") if any(sign in line for sign in signs)]
        return [line for line in lines if "-fNT" not in line]  # the shared connection

    until(lambda: not left(), 10, lambda: str(left()))
