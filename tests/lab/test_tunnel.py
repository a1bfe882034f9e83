"""`hpcml tunnel` from the lab's laptop: each route, by real ssh and real srun, and what nobody else can reach meanwhile."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import lab_ssh
from conftest import ALL_NODES
from laptop import Outside, until

ROUTES = ("direct", "twohop", "srun")


def listeners(outside: Outside, node: str) -> set[str]:
    lines = outside.on(node, "cat", "/proc/net/tcp", "/proc/net/tcp6", user="root").stdout.splitlines()
    return {words[1] for words in map(str.split, lines) if words[3] == "0A"}


SCAN = """
import socket, sys
answered = []
for word in sys.argv[1:]:
    raw, port = word.split(":")
    address = socket.inet_ntoa(bytes.fromhex(raw)[::-1]) if len(raw) == 8 else "127.0.0.1"
    address = "127.0.0.1" if address == "0.0.0.0" else address
    try:
        with socket.create_connection((address, int(port, 16)), 3) as peer:
            peer.settimeout(1.5)
            peer.sendall(b"GET / HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n")
            if peer.recv(64).startswith(b"HTTP/"):
                answered.append(f"{address}:{int(port, 16)}")
    except OSError:
        pass
print(*answered)
"""


def mallory_is_refused(outside: Outside, directory: Path) -> None:
    """Check that she reaches neither the service's socket nor the one of the hop, and meets HTTP on no port."""
    service = outside.service(directory)
    hop, *more = outside.on("login", "find", "/tmp", "-name", "s", user="root").stdout.split()
    assert not more
    for node, path in (("n1", service["socket"]), ("login", hop)):
        for where in ("login", "n1", "n2"):
            words = ("curl", "-s", "-m", "5", "--unix-socket", path, "http://localhost/status")
            done = outside.on(where, *words, user="mallory")
            assert done.returncode == 7, (where, done.stdout)
        for name in (path, str(Path(path).parent)):
            found = outside.on(node, "stat", "-c", "%a %U", name, user="root").stdout.split()
            assert found == ["600" if name == path else "700", "hpcml-alice"]
    guessed = f"/proc/{service['pid']}/root{service['socket']}"
    done = outside.on("n1", "curl", "-s", "-m", "5", "--unix-socket", guessed, "http://localhost/", user="mallory")
    assert done.returncode == 7
    for node in ("login", "n1", "n2"):
        ports = sorted(listeners(outside, node))
        assert ports
        done = outside.on(node, "/usr/bin/python3", "-c", SCAN, *ports, user="mallory")
        assert (done.returncode, done.stdout.strip()) == (0, ""), (node, done.stderr)


def test_each_route_leads_to_the_dashboard_and_mallory_on_none(outside: Outside, dashboard: tuple[str, Path]) -> None:
    """Three tunnels started at the same moment: one of them logs in, the others wait for it or find it there."""
    run, directory = dashboard
    outside.forget()
    before = {node: listeners(outside, node) for node in (*ALL_NODES, "login", "login2")}
    logins = outside.logins("login")
    opened = {route: outside.tunnel(run, "--route", route, "--port", str(9300 + n)) for n, route in enumerate(ROUTES)}
    for number, (route, tunnel) in enumerate(opened.items()):
        facts = tunnel.up()
        assert (facts["route"], facts["node"], facts["port"]) == (route, "n1", port := 9300 + number)
        assert outside.status_of(port, "/status", "-L") == "200"
        assert "Dask Diagnostic UI" in outside.laptop("curl", "-s", f"http://127.0.0.1:{port}/status").stdout
        assert outside.status_of(port, "/hpcml/identity.json", "-H", "Host: evil.example") == "403"
        assert outside.status_of(port, "/status", "-H", "Origin: http://evil.example") == "403"
    assert outside.logins("login") == logins + 1
    after = {node: listeners(outside, node) for node in before}
    after.pop("login")  # srun's own, guarded by munge, is there
    assert {node: ports - before[node] for node, ports in after.items() if ports - before[node]} == {}
    mallory_is_refused(outside, directory)
    assert [outside.status_of(port) for port in (9300, 9301, 9302)] == ["200"] * 3  # and yet alice gets through
    opened["srun"].stop()
    until(lambda: listeners(outside, "login") <= before["login"], 20)  # the other routes have none


def memory(outside: Outside) -> list[str]:
    return [path.read_text().strip() for path in outside.home.glob(".hpcml/ssh/*.route")]


def test_routes_are_found_by_trying_and_remembered(outside: Outside, dashboard: tuple[str, Path]) -> None:
    outside.forget()
    with outside.sshd(ALL_NODES, certificates=False):
        facts = outside.tunnel(dashboard[0]).up()
        assert facts["route"] == "twohop"
        assert memory(outside) == ["twohop"]
        outside.tunnels.pop().stop()
    with outside.sshd(ALL_NODES, certificates=False, keys=False):
        facts = outside.tunnel(dashboard[0]).up()
        assert facts["route"] == "srun"
        assert memory(outside) == ["srun"]
        outside.tunnels.pop().stop()
        tried = lab_ssh.log(outside.lab.places, "n1").count("Connection from")
        assert outside.tunnel(dashboard[0]).up()["route"] == "srun"
        assert lab_ssh.log(outside.lab.places, "n1").count("Connection from") == tried


def test_the_port_is_the_laptop_s_own_loopback_and_the_same_each_time(
    outside: Outside, dashboard: tuple[str, Path]
) -> None:
    config = outside.home / ".ssh" / "config"
    kept = config.read_text()
    outside.close_connection()
    config.write_text("Host *\n  GatewayPorts yes\n  ForwardAgent yes\n  LocalForward 9123 localhost:22\n" + kept)
    try:
        facts = outside.tunnel(dashboard[0], "--route", "direct").up()
        found = {words.split(":")[0] for words in listeners(outside, "laptop")}
        assert found == {"0100007F"}
        assert len(listeners(outside, "laptop")) == 1
    finally:
        config.write_text(kept)
    outside.tunnels.pop().stop()
    assert not listeners(outside, "laptop")
    assert outside.tunnel(dashboard[0]).up()["port"] == facts["port"]


def test_the_printed_commands_work_without_hpcml_and_hold_no_secret(
    outside: Outside, dashboard: tuple[str, Path]
) -> None:
    run, directory = dashboard
    told = json.loads(outside.on("login", "hpcml", "tunnel", "--set", "login.host=login1", "--json", run).stdout)
    text = outside.on("login", "hpcml", "tunnel", run).stdout
    secret = re.sub(r"-----[A-Z ]+-----", "", (directory / "attempts/0/secret/tls-key.pem").read_text()).split()[0]
    assert secret not in text + json.dumps(told)
    direct, first, second = told["commands"]
    port = int(re.findall(r"127\.0\.0\.1:(\d+):", direct)[0])
    ssh = outside.lab.popen(["bash", "-c", f"exec {direct}"], node="laptop")
    try:
        until(lambda: outside.status_of(port) == "200", 20)
    finally:
        ssh.terminate()
        ssh.communicate(timeout=180)
    hop = outside.lab.popen(["bash", "-c", f"exec {first}"], node="laptop")
    assert hop.stdout is not None
    path = hop.stdout.readline().strip()
    ssh = outside.lab.popen(["bash", "-c", f"exec {second.replace('PATH', path)}"], node="laptop")
    try:
        until(lambda: outside.status_of(port) == "200", 20)
        done = outside.on("login", "curl", "-s", "--unix-socket", path, "http://localhost/", user="mallory")
        assert done.returncode == 7
    finally:
        for process in (ssh, hop):
            process.terminate()
            process.communicate(timeout=180)
    until(
        lambda: not [line for _, line in outside.lab.processes("alice") if path in line], 15
    )  # it ends with the laptop


def test_srun_s_sshd_takes_the_session_s_key_alone_and_gives_no_shell(
    outside: Outside, dashboard: tuple[str, Path]
) -> None:
    run, directory = dashboard
    outside.forget()
    before = set(directory.glob("attempts/0/secret/relay-*"))  # of tunnels that tests have killed
    tunnel = outside.tunnel(run, "--route", "srun")
    tunnel.up()
    relays = sorted({*directory.glob("attempts/0/secret/relay-*")} - before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in relays] == [0o700]
    assert {stat.S_IMODE(path.stat().st_mode) for path in relays[0].iterdir() if path.suffix != ".pub"} == {0o600}
    session = next(iter(outside.home.glob(".hpcml/ssh/session-*")))
    assert stat.S_IMODE(session.stat().st_mode) == 0o700
    node = next(path for path in outside.home.glob(".hpcml/cm/*-*"))
    over = ["ssh", "-F", "none", "-S", str(node), "-o", "ProxyCommand=false", "hpcml-job"]
    done = outside.laptop(*over, "id")
    assert (done.returncode, done.stdout) == (1, "")  # ForceCommand /bin/false
    done = outside.laptop(*over[:-1], "-tt", over[-1], timeout=240)
    assert done.returncode != 0
    assert "uid=" not in done.stdout
    done = outside.laptop(*over[:5], "-O", "forward", "-R", "9999:localhost:22", "x")
    assert done.returncode != 0
    # Another key of the same user's, with the same host key at hand, is not let in.
    control = next(path for path in outside.home.glob(".hpcml/cm/*") if "-" not in path.name)
    name = f"hpcml-job-{json.loads((directory / 'submission.json').read_text())['job']}"
    relay = f"ssh -F none -S {control} -o ProxyCommand=false -T lab hpcml tunnel --serve relay --relay {relays[0].name} {run}"
    words = ["ssh", "-F", "none", "-N", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={session}/known_hosts", "-o",
             f"HostKeyAlias={name}", "-o", "User=hpcml-alice", "-o", f"ProxyCommand={relay}", name]  # fmt: skip
    done = outside.laptop(*words, timeout=240)
    assert done.returncode == 255
    assert "Permission denied" in done.stderr
    tunnel.stop()
    until(lambda: set(directory.glob("attempts/0/secret/relay-*")) <= before, 20)
    assert not list(outside.home.glob(".hpcml/ssh/session-*"))
    until(
        lambda: (
            not [
                line for _, line in outside.lab.processes("alice") if "sshd -i" in line or "sshd: hpcml-alice [" in line
            ]
        ),
        15,
    )


def test_squatted_names_and_leftovers_on_the_login_node(outside: Outside, dashboard: tuple[str, Path]) -> None:
    plant = "cd /tmp; for n in hpcml hpcml-hop hpcml-hop. hpcml-hop.aaaaaaaa; do mkdir -m 777 $n; done; ln -s /etc/passwd hpcml-hop.link; mkfifo hpcml-hop.fifo; mkdir -m 777 hpcml-hop.old; echo 999999 1 > hpcml-hop.old/owner; ls -d hpcml-hop.*"
    planted = outside.on("login", "bash", "-c", plant, user="mallory").stdout.split()
    tunnel = outside.tunnel(dashboard[0], "--route", "twohop")
    tunnel.up()
    mine = "find /tmp -maxdepth 1 -name 'hpcml-hop.*' -user hpcml-alice"
    assert len(outside.on("login", "bash", "-c", mine).stdout.split()) == 1
    # Killed without a chance to clean up, on both sides.
    for pid, line in outside.lab.processes("alice"):
        if "-L /tmp/hpcml-hop." in line:  # the ssh of the hop, whose parent is the hpcml that serves it
            parent = outside.on("login", "ps", "-o", "ppid=", "-p", str(pid), user="root").stdout.split()
            outside.on("login", "kill", "-9", str(pid), *parent, user="root")
    tunnel.up(2)
    assert len(outside.on("login", "bash", "-c", mine).stdout.split()) == 1  # the dead one's was swept away
    tunnel.stop()
    until(lambda: not outside.on("login", "bash", "-c", mine).stdout.split(), 10)
    assert planted
    assert outside.on("login", "ls", "-d", *[f"/tmp/{name}" for name in planted], user="mallory").returncode == 0
    outside.on("login", "bash", "-c", "rm -rf /tmp/hpcml /tmp/hpcml-hop*", user="mallory")


def test_no_agent_is_forwarded(outside: Outside, dashboard: tuple[str, Path]) -> None:
    config = outside.home / ".ssh" / "config"
    kept = config.read_text()
    outside.close_connection()
    config.write_text("Host *\n  ForwardAgent yes\n" + kept)
    script = """
from hpcml.remote import ssh
from hpcml.sites.schema import Login
connection = ssh.Connection(Login(host="lab"))
connection.open(ask=False)
print("agent", repr(connection.run(connection.command(("sh", "-c", "echo $SSH_AUTH_SOCK"))).out.strip()))
"""
    command = "rm -rf ~/t; mkdir ~/t; cd ~/t; eval $(ssh-agent) >/dev/null; ssh-add -q ~/.ssh/id_ed25519; python - ; kill $SSH_AGENT_PID"
    try:
        done = outside.lab.exec(["bash", "-c", command], node="laptop", input=script)
    finally:
        config.write_text(kept)
    assert done.stdout == "agent ''\n", done.stderr
