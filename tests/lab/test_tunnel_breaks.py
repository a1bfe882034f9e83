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
from conftest import ALL_NODES, BUSY
from hpcml import errors
from laptop import SERVICE, Outside, Tunnel, until

LOGINS = ("login", "login2")
ROUTES = ("direct", "twohop", "srun")


def all_logins(outside: Outside) -> int:
    return sum(outside.logins(node) for node in LOGINS)


def nothing_left(outside: Outside) -> list[str]:
    """Alice's processes of tunnels, on all nodes and the laptop, but for the shared connection."""
    signs = ("--serve", "ssh -N", "-NT", "sshd -i", "hpcml tunnel")
    return [
        line for _, line in outside.lab.processes("alice") if any(sign in line for sign in signs) and "-fNT" not in line
    ]


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
    lost = [re.search("The (connection to lab|connection to the node) was lost", tunnel.said) for tunnel in tunnels]
    assert all(lost)  # by what each noticed first
    assert any(found and found[1] == "connection to lab" for found in lost)
    for tunnel in tunnels:  # or they log in once more
        tunnel.stop()
    outside.forget()  # the next test begins on login again


def test_a_run_that_starts_again_is_followed_to_its_new_node_and_its_end(
    outside: Outside, web: tuple[str, Path]
) -> None:
    waits = "import time, hpcml\nhpcml.connect()\ntime.sleep(300)\n"
    run, directory = outside.start_run("again", waits, "--set", "slurm.remove=['--no-requeue']")
    job = json.loads((directory / "submission.json").read_text())["job"]
    tunnel = outside.tunnel(run, "--route", "direct")
    first = tunnel.up()
    outside.on("login", "scontrol", "update", f"job={job}", "requeue=1")
    outside.on("ctl", "scontrol", "update", f"nodename={first['node']}", "state=drain", "reason=test", user="root")
    try:
        assert outside.on("login", "scontrol", "requeue", job).returncode == 0
        until(lambda: outside.on("login", "squeue", "-h", "-j", job, "-o", "%t").stdout.strip() == "PD", 60)
        outside.on("ctl", "scontrol", "update", f"job={job}", "starttime=now", user="root")  # or it waits two minutes
        second = tunnel.up(2, 220)
        assert outside.status_of(second["port"]) == "200"
        outside.on("login", "scancel", job)
        assert tunnel.ended(30) == errors.UNAVAILABLE
        assert "cancelled" in tunnel.said
    finally:
        outside.on("login", "scancel", job)
        outside.on("ctl", "scontrol", "update", f"nodename={first['node']}", "state=resume", user="root")
    assert second["node"] != first["node"]
    assert second["port"] == first["port"]


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
    try:
        lab_ssh.certify(outside.lab.places, "alice", 8)
        ends = time.time() + 8
        tunnel = outside.tunnel(web[0], "--route", "twohop", "--set", "login.renew=step ssh login alice@example.org")
        port = tunnel.up()["port"]
        until(lambda: time.time() > ends + 1, 20)
        assert outside.status_of(port) == "200"
        other = outside.tunnel(web[0], "--route", "twohop", "--port", "9321")
        assert other.up()["port"] == 9321  # a new session on the old connection
        assert "your ssh certificate expired" in other.said
        other.stop()
        before = len(lab_ssh.log(outside.lab.places, "login"))
        outside.kill_sessions("login")
        assert tunnel.ended(30) == errors.NO_ACCESS
        assert tunnel.said.count("step ssh login alice@example.org") >= 1
        assert "Connection from" not in lab_ssh.log(outside.lab.places, "login")[before:]  # it was not even tried
        fresh = outside.tunnel(web[0])
        assert fresh.ended() == errors.NO_ACCESS
        assert "Permission denied" in fresh.said
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


def test_forwarding_forbidden_by_the_login_node_names_it(outside: Outside, web: tuple[str, Path]) -> None:
    outside.forget()
    with outside.sshd(LOGINS, "DisableForwarding yes"):
        outside.close_connection()
        for route in ("twohop", "direct"):
            tunnel = outside.tunnel(web[0], "--route", route)
            assert tunnel.ended() == errors.NO_ACCESS
            assert "lab forbids ssh forwarding" in tunnel.said
        assert outside.tunnel(web[0]).up()["route"] == "srun"
    outside.close_connection()


def test_a_node_without_sshd_is_not_the_login_node_s_refusal(outside: Outside, web: tuple[str, Path]) -> None:
    outside.forget()
    lab, state, node = outside.lab, outside.lab.state(), outside.service(web[1])["node"]
    lab_ssh.stop_sshd(state, node)
    try:
        for route in ("direct", "twohop"):
            tunnel = outside.tunnel(web[0], "--route", route)
            assert tunnel.ended() == errors.NO_ACCESS
            assert "Connection refused" in tunnel.said
            assert "forbids" not in tunnel.said
            who = "lab does not reach" if route == "direct" else "ssh from login to"
            assert f"{who} {node}" in tunnel.said
    finally:
        lab_ssh.start_sshd(lab.places, state, node)


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


def test_flapping_makes_at_most_five_logins_in_an_hour(outside: Outside, web: tuple[str, Path]) -> None:
    outside.forget()
    before = all_logins(outside)
    tunnel = outside.tunnel(web[0], "--route", "twohop")
    tunnel.up()
    (budget,) = outside.home.glob(".hpcml/ssh/*.logins")
    budget.write_text(json.dumps(json.loads(budget.read_text()) * 4))  # as if there had been three more
    for count in (2, 3):
        for node in LOGINS:
            outside.kill_sessions(node)
        if count == 2:
            tunnel.up(count, 60)
    assert tunnel.ended(60) == errors.NO_ACCESS
    assert "within an hour" in tunnel.said
    assert all_logins(outside) - before == 2
    again = outside.tunnel(web[0])  # and a new start does not get around it
    assert again.ended() == errors.NO_ACCESS
    assert all_logins(outside) - before == 2
    outside.forget()


def test_a_cluster_that_cannot_be_reached_has_a_status_of_its_own(outside: Outside, web: tuple[str, Path]) -> None:
    outside.forget()
    lab_ssh.cut()
    try:
        tunnel = outside.tunnel(web[0])
        assert tunnel.ended(60) == errors.UNREACHABLE
    finally:
        lab_ssh.cut(up=True)
    budget = [json.loads(path.read_text() or "[]") for path in outside.home.glob(".hpcml/ssh/*.logins")]
    assert budget == [[]]  # it was no login


@pytest.fixture(scope="module")
def dying(outside: Outside, web: tuple[str, Path]) -> Iterator[Tunnel]:
    """A tunnel under which the service loses its socket; it takes 45 s to be sure, and other tests run meanwhile."""
    run, directory = web
    service = outside.service(directory, "web")
    tunnel = Tunnel(outside.lab, run, "--service", "web", "--route", "direct")
    try:
        tunnel.up()
        outside.on(service["node"], "rm", service["socket"])
        yield tunnel
    finally:
        tunnel.stop()


def test_a_socket_that_is_missing(outside: Outside, web: tuple[str, Path], dying: Tunnel) -> None:
    run, directory = web
    for missing in [outside.tunnel(run, "--service", "web", "--route", route) for route in ROUTES]:
        assert missing.ended() == errors.UNAVAILABLE, missing.said
        assert outside.service(directory, "web")["socket"] in missing.said
    nothing = outside.tunnel(run, "--service", "nosuch")
    nothing.heard("is RUNNING")


def test_a_pending_run_is_waited_for_without_a_login(outside: Outside, web: tuple[str, Path]) -> None:
    holder, directory = outside.cluster.detach(BUSY, "--nodes", "4", "--name", "pends", "--time", "10")
    tunnel = outside.tunnel(directory.name)
    tunnel.heard("is PENDING")
    before = all_logins(outside)
    time.sleep(21)  # two beats of the line; a poll would show by now
    assert tunnel.process.poll() is None
    assert all_logins(outside) == before
    assert "waiting for free nodes" in tunnel.said or "waiting for jobs with higher priority" in tunnel.said
    assert "estimate" in tunnel.said
    assert tunnel.stop() == 130
    held = outside.tunnel(directory.name)
    held.heard("is PENDING")
    outside.on("login", "scontrol", "hold", holder)
    assert held.ended(40) == errors.UNAVAILABLE
    assert "held by the user" in held.said
    outside.on("login", "scancel", holder)


def test_a_service_that_dies_under_an_open_tunnel(dying: Tunnel) -> None:
    assert dying.ended(90) == errors.UNAVAILABLE  # it finds out by looking
    assert "The run continues, but its web does not respond" in dying.said


def test_a_run_that_ends_ends_the_tunnel_with_its_reason(outside: Outside, web: tuple[str, Path]) -> None:
    """The last of this file: the shared run ends."""
    outside.forget()
    good = outside.tunnel(web[0])
    good.up()
    (web[1] / "out/enough").touch()
    assert good.ended(30) == 0
    assert "has ended" in good.said
    until(lambda: not nothing_left(outside), 10, lambda: str(nothing_left(outside)))
