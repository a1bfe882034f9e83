"""All that another account can try on the nodes of a run: names in /tmp, ports, sockets, shared memory, files, processes.

tests/lab/test_security.py and tests/local/test_wire.py hold what is not a try but a fact: ports, and UCX's handshake.
"""

from __future__ import annotations

import contextlib
import json
import pwd
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mallory
from beside import AT_ONCE, SMALL
from conftest import Cluster, together
from lab_state import wait_for
from test_losses import roles
from test_security import PLACES, VICTIMS, Target, foreign_clients
from test_security import victim as alice_s_run

pytestmark = pytest.mark.lab

ALICE = "hpcml-alice"
NODES = ("n1", "n2")
HELPER = "def value():\n    return 'alices'\n"
SAY = """
import hpcml, json, os, sys
import helper

def there():
    import helper
    return helper.value()

def main():
    client = hpcml.connect()
    if not os.environ.get("HPCML_RUN_DIR"):
        import cloudpickle
        cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    said = {helper.value(), client.submit(helper.value).result(), *client.run(there).values()}
    print("said", *sorted(said | {client.run_on_scheduler(there)}))
    client.close()

if __name__ == "__main__":
    main()
"""


def refused(text: str) -> dict[str, Any]:
    """Return what mallory's program says of itself, and fail the test where she won."""
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    assert not found["won"], found["won"]
    return found


def tries(cluster: Cluster, code: str, *words: str, node: str = "n1") -> None:
    """Run one of mallory's programs on a node: she must win nothing."""
    done = cluster.lab.exec(["python3", "-c", code, *words], node=node, user="mallory", timeout=300)
    assert done.returncode == 0, done.stderr
    assert refused(done.stdout)["tries"] > 0


@contextlib.contextmanager
def watching(cluster: Cluster, *nodes: str) -> Iterator[None]:
    """Have mallory plant names in /tmp of nodes, and swap what appears there, while something runs; she must win nothing."""
    started = [
        cluster.lab.popen(
            ["python3", "-c", mallory.WATCH, "/tmp", ALICE], node=node, user="mallory", stdin=subprocess.PIPE
        )
        for node in nodes
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "planted\n"
        yield
        for node, process in zip(nodes, started, strict=True):
            out, err = process.communicate("", timeout=180)
            assert process.returncode == 0, err
            assert refused(out)["tries"] > 0, f"she saw no folder of the run on {node}"
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()


def send_junk_to_link(cluster: Cluster, directory: Path) -> None:
    """Send what is no message to the supervisor of a run, from its own node, another one and outside: it is refused."""
    places = json.loads((directory / "attempts/0/link.json").read_text())["places"]
    started = [
        cluster.lab.popen(["python3", "-c", mallory.JUNK, host, str(port)], node=node, user="mallory")
        for node in ("n1", "n3", "login")
        for host, port in places
    ]
    for done in together(started, 300):
        assert done.returncode == 0, done.stderr
        assert refused(done.stdout)["tries"] > 90


def read_files_and_processes(cluster: Cluster, directory: Path, *names: str) -> None:
    """Try to read a run's files, and the processes of some roles on their nodes: nothing can be read."""
    files = [str(path) for path in directory.rglob("*") if path.name != "lib.zip"][:200]
    for node in (*NODES, "login"):
        mine = as_root(cluster, node, "find", "/tmp", "-maxdepth", "1", "-name", "hpcml[-_]*", "-user", ALICE)
        found = [str(pid) for name in names for pid in roles(cluster, directory, name, node)] if node != "login" else []
        tries(cluster, mallory.READ, str(directory), *files, *mine, "--", *found, node=node)


def as_root(cluster: Cluster, node: str, *words: str) -> list[str]:
    return cluster.lab.exec(list(words), node=node, user="root").stdout.split()


def owned(cluster: Cluster) -> list[str]:
    """Return what mallory's code left where it ran as alice."""
    words = ("find", "/tmp", "-maxdepth", "1", "-name", "owned-*", "-user", ALICE)
    return [f"{path} on {node}" for node in (*NODES, "login") for path in as_root(cluster, node, *words)]


def clean(cluster: Cluster) -> None:
    """Take away what mallory has planted, as the nodes' epilog or a reboot would."""
    for node in (*NODES, "login"):
        as_root(cluster, node, "find", "/tmp", "/dev/shm", "-mindepth", "1", "-maxdepth", "1", "(", "-user", "hpcml-mallory",
                "-o", "-name", "owned-*", "-o", "-name", "*.away", "-o", "-name", "dask-scratch-space*", ")", "-exec", "rm", "-rf", "{}", "+")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _planted_is_removed(cluster: Cluster) -> Iterator[None]:
    clean(cluster)
    yield
    clean(cluster)


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Override: the run of this module outlives its tests."""


# -- before and while a run starts --------------------------------------------------------------------------------------


# Two services that stop listening again and again, and who asks their bridges for each all the time.
SWAPPED = """
import collections, json, os, socket, threading, time
import hpcml
PATH = "/tmp/swapped.sock"
hpcml.run.service("port", port=7131)
hpcml.run.service("socket", socket=PATH)

def serve(kind):
    while not hpcml.run.should_stop():
        listener = socket.socket(socket.AF_INET if kind == "port" else socket.AF_UNIX)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound = False
        try:
            listener.bind(("127.0.0.1", 7131) if kind == "port" else PATH)
            bound = True
            listener.listen()
            listener.settimeout(0.02)
            while True:
                peer, _ = listener.accept()
                if peer.recv(99): peer.sendall(b"alices")
                peer.close()
        except OSError:
            pass
        finally:
            listener.close()
        if kind == "socket" and bound: os.unlink(PATH)
        time.sleep(0.005)

for kind in ("port", "socket"):
    threading.Thread(target=serve, args=(kind,), daemon=True).start()
answers = {"port": collections.Counter(), "socket": collections.Counter()}
while not hpcml.run.should_stop():
    for kind, said in answers.items():
        try:
            place = json.loads((hpcml.run.directory / f"attempts/0/services/{kind}.json").read_text())["socket"]
            with socket.socket(socket.AF_UNIX) as bridge:
                bridge.connect(place)
                bridge.sendall(b"asked")
                said[bridge.recv(99).decode()] += 1
        except (OSError, ValueError): pass
    (hpcml.run.out / ".new").write_text(json.dumps(answers)); (hpcml.run.out / ".new").rename(hpcml.run.out / "answers.json")
"""


def test_a_service_that_mallory_swaps_is_never_asked_in_her_place(cluster: Cluster) -> None:
    _, directory = cluster.detach(
        SWAPPED, "--ranks", "1", "--nodes", "1", "--nodelist", "n1", *SMALL[4:], "--name", "swapped"
    )
    process = cluster.lab.popen(["python3", "-c", mallory.SWAP, "7131", "/tmp/swapped.sock"], node="n1", user="mallory",
                                stdin=subprocess.PIPE)  # fmt: skip

    def answers() -> dict[str, dict[str, int]]:
        try:
            found: dict[str, dict[str, int]] = json.loads((directory / "out/answers.json").read_text())
        except OSError:
            return {}
        return found

    try:
        assert wait_for(
            lambda: all(min(said.get(w, 0) for w in ("alices", "")) > 100 for said in answers().values() or [{}]), 120
        ), answers()
        out, err = process.communicate("", timeout=60)
    finally:
        process.kill()
        cluster.run("hpcml", "cancel", directory.name)
    assert process.returncode == 0, err
    hers = refused(out)
    assert hers["tries"] > 100
    assert hers["met"]["socket"] > 0  # the kernel's answer says whose it is, after the connection
    for said in answers().values():
        assert set(said) == {"alices", ""}


ELASTIC = """
import hpcml, sys
from distributed import Client

def there():
    import helper
    return helper.value()

def main():
    unsafe = {"paths.scratch": sys.argv[1]} if sys.argv[1:] else {}
    asked = {"cpus_per_node": 1, "memory_per_node": "900M", "time": "10m", "set": {"slurm.extra": ["--nodelist=n1"], **unsafe}}
    with hpcml.ElasticCluster(maximum=1, **asked) as cluster, Client(cluster) as client:
        client.submit(abs, -1).result(180)
        import helper  # now that Dask's folder is on the path
        print("said", *sorted({helper.value(), client.submit(helper.value).result(), *client.run(there).values(), client.run_on_scheduler(there)}))

if __name__ == "__main__":
    main()
"""
MAPS = """
import hpcml

def point(site):
    import helper
    return helper.value()

if __name__ == "__main__":
    print("said", *(one.result() for one in hpcml.map(point, [1], site="local")))
"""
MODULES = ("submitit", "cloudpickle", "pip", "pandas", "numpy", "dask", "distributed", "tornado", "psutil", "msgpack", "click",
           "dask_jobqueue", "crick", "lz4", "uvloop", "jinja2", "yaml", "cryptography", "hpcml", "helper", "sitecustomize",
           "usercustomize", "json", "typing", "contextlib", "encodings", "runpy", "matplotlib", "pytest")  # fmt: skip


def test_what_mallory_plants_gives_her_no_code_in_any_command(cluster: Cluster, image: Path) -> None:
    """In a folder where everybody may put modules alice types all that starts a Python or one of Dask's servers.

    In /tmp of login node and nodes there are Dask's own folders, open to all, and hundreds of other names, as folders, links
    and sockets; what appears beside and in them is swapped meanwhile.
    """
    shared, treasure = cluster.lab.places.top / "shared-with-modules", cluster.home / "treasure"
    evil = f"touch {shared}/owned-module-$(id -un)"
    plant = f"""
import os, sys
for name in sys.argv[1:]:
    for path in (name + ".py", name + "/__init__.py", name + "/__main__.py"):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        open(path, "w").write("import os; os.system({evil!r})")
for name in ("python3", "sbatch", "srun"):
    open(name, "w").write({evil!r}); os.chmod(name, 0o777)
os.symlink({str(treasure)!r}, "wheels"); os.symlink({str(treasure)!r}, "cpu.sif")
"""
    cluster.run("rm", "-rf", str(shared), user="root")  # what a killed test left
    cluster.run("mkdir", "-m", "1777", str(shared), user="root")
    planted = cluster.lab.exec(["python3", "-c", plant, *MODULES], cwd=shared, user="mallory")
    assert planted.returncode == 0, planted.stderr
    cluster.run("sh", "-c", f"mkdir -p {treasure} && echo gold >{treasure}/gold && echo n1 >{treasure}/.lives")
    for node in NODES:
        tries(cluster, mallory.NAMES, "/tmp,/dev/shm", str(treasure), node=node)
    cluster.lab.exec(["mkdir", "-m", "777", "/tmp/open"], node="n1", user="mallory")
    folder = cluster.write("own/helper.py", HELPER).parent
    elastic, maps, say = (
        str(cluster.write(f"own/{name}.py", text))
        for name, text in (("elastic", ELASTIC), ("maps", MAPS), ("say", SAY))
    )
    say_so = [
        ("hpcml", "submit", "--wait", *SMALL, say), ("python", elastic), ("python", maps), ("python", say),
    ]  # fmt: skip
    others = [
        ("python", elastic, "/tmp/open"),
        ("hpcml", "image", "build", "cpu", f"{folder}/x.sif"),
        ("hpcml", "image", "check", str(image)), ("hpcml", "ls"), ("hpcml", "report", "last"), ("hpcml", "why", "last"),
        ("hpcml", "sweep", "--dry-run", say, "--grid", "x=1,2"), ("hpcml", "new", "kmeans"), ("hpcml", "site", "show"),
    ]  # fmt: skip
    commands = [*say_so, *others]
    try:
        with watching(cluster, "login", *NODES), ThreadPoolExecutor(AT_ONCE) as pool:
            done = list(pool.map(lambda words: cluster.run(*words, cwd=shared, timeout=400), commands))
        for words, one in zip(say_so, done, strict=False):
            assert one.stdout.splitlines()[-1:] == ["said alices"], (words, one.stdout, one.stderr)
        assert "/tmp/open belongs to another user" in done[len(say_so)].stderr
        assert not list(shared.glob("owned-*"))
        assert not owned(cluster)
        assert cluster.run("cat", f"{treasure}/gold").stdout == "gold\n"
    finally:
        cluster.run("rm", "-rf", str(shared), user="root")


# -- while a run is up --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(cluster: Cluster) -> Iterator[Target]:
    clean(cluster)
    yield from alice_s_run(cluster, *SMALL)
    cluster.wait_idle(60)


def where(target: Target, victim: str) -> tuple[str, str]:
    host, port = target.addresses[victim].rpartition("//")[2].rsplit(":", 1)
    return host, port


def pids(cluster: Cluster) -> list[str]:
    return [str(pid) for pid, line in cluster.lab.processes("alice") if "hpcml.kinds" in line or "hpcml.node" in line]


def sockets(target: Target) -> Path:
    """Return the folder of the run's unix sockets."""
    return Path(json.loads((target.directory / "attempts/0/link.json").read_text())["sockets"])


def test_clients_without_the_key(cluster: Cluster, target: Target, subtests: pytest.Subtests) -> None:
    """Dask's own client in three kinds, then every version of TLS, certificates of her own, replays and bytes.

    From each place at each victim, all beside each other, since both mostly wait.
    """
    clients = foreign_clients(cluster, target)
    talks = (
        cluster.lab.popen(["python3", "-c", mallory.TALK, *where(target, victim)], node=place, user="mallory")
        for place, victim in clients
    )
    assert len(clients) == len(PLACES) * len(VICTIMS)
    for (place, victim), talked in zip(clients, together(talks, 300), strict=True):
        with subtests.test(place=place, victim=victim):
            done = clients[place, victim]
            lines = [line for line in done.stdout.splitlines() if line.startswith(("IN", "refused"))]
            assert len(lines) == 5, done.stdout + done.stderr
            assert [line for line in lines if line.startswith("IN")] == []
            assert talked.returncode == 0, talked.stderr
            assert refused(talked.stdout)["tries"] > 0


def test_sockets(cluster: Cluster, target: Target) -> None:
    """The run's unix sockets: by their paths, and through /proc."""
    found = cluster.run("find", str(sockets(target)), "-type", "s", node="n1").stdout.split()
    assert len(found) == 1
    through = [f"/proc/{pid}/root{path}" for pid in pids(cluster) for path in found]
    for node in (*NODES, "login"):
        tries(cluster, mallory.KNOCK, *found, *through, node=node)


def test_junk_at_the_port_for_agents_and_scheduler(cluster: Cluster, target: Target) -> None:
    """Also in the scheduler's name, from its own node, another one and outside: the run, and its scheduler, go on."""
    send_junk_to_link(cluster, target.directory)
    status = target.directory / "status.json"
    assert not json.loads(status.read_text() if status.exists() else "{}").get("over")
    assert not (target.directory / "attempts/0/nodes/n1.events").exists()


WEB = """
import json, socket, sys
tries, won = 0, []
hosts = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "", "n1", "0.0.0.0", "10.79.0.11",
         "[::ffff:127.0.0.1]", "localhost:80:80", "127.1", "2130706433", "LOCALHOST.", "localhost, evil.example"]
origins = ["http://evil.example", "null", "http://localhost.evil.example", "https://evil.example:443", "http://localhost@evil.example",
           "file://", "http://127.0.0.1.evil.example:8787", "http://[::1].evil.example"]
paths = ["/status", "/health", "/metrics", "/info/main/workers.html", "/json/counts.json", "/hpcml/identity.json", "/proxy/8787/n1/status", "/api/v1/retire_workers", "/"]
def ask(host, origin, path, method="GET", upgrade=False):
    global tries
    tries += 1
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: " + ("Upgrade" if upgrade else "close")]
    if origin is not None: lines.append(f"Origin: {origin}")
    if upgrade: lines += ["Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10); s.connect(sys.argv[1])
        s.sendall("\\r\\n".join([*lines, "", ""]).encode())
        try: answer = s.recv(200)
        except OSError: answer = b""
    if answer.split(b" ")[1:2] not in ([b"403"], [b"400"], []): won.append(f"{method} {path} for {host} from {origin}: {answer[:40]!r}")
for host in hosts:
    for path in paths: ask(host, None, path)
for origin in origins:
    for path in paths: ask("localhost", origin, path)
    ask("localhost", origin, "/status/ws", upgrade=True)
    ask("localhost", origin, "/api/v1/retire_workers", method="POST")
print(json.dumps({"tries": tries, "won": won}))
"""


def test_another_page_in_the_browser(cluster: Cluster, target: Target) -> None:
    """What a page in the owner's own browser can send through a tunnel: hosts, origins, websockets."""
    done = cluster.run("python3", "-c", WEB, str(sockets(target) / "dashboard.sock"), node="n1")
    assert done.returncode == 0, done.stderr
    assert refused(done.stdout)["tries"] > 0


def test_files_and_processes(cluster: Cluster, target: Target) -> None:
    """The run's files on the shared file system and the node, and all that /proc has of its processes."""
    files = [str(path) for path in target.directory.rglob("*") if path.name != "lib.zip"][:200]
    words = ("find", "/tmp", "-maxdepth", "1", "-name", "hpcml[-_]*", "-user", ALICE)
    mine = [path for node in NODES for path in as_root(cluster, node, *words)]
    for node in (*NODES, "login"):
        paths = [str(target.directory), *files, *mine]
        tries(cluster, mallory.READ, *paths, "--", *pids(cluster), node=node)


def test_no_secret_in_what_is_public(cluster: Cluster, target: Target) -> None:
    """Slurm's records and command lines as mallory and root see them, and the run's logs."""
    secret = target.directory / "attempts/0/secret"
    keys = [*(secret / "tls-key.pem").read_text().splitlines()[1:-1], (secret / "data.key").read_bytes().hex()]
    logs = "".join(path.read_text() for path in (target.directory / "logs").iterdir())
    assert not [key for key in (*keys, "PRIVATE KEY") if key in logs]
    job = json.loads((target.directory / "submission.json").read_text())["job"]
    asked = [["scontrol", "show", "job", "-dd", job], ["squeue", "-j", job, "-O", "ALL"], ["scontrol", "show", "step", job],
             ["scontrol", "write", "batch_script", job, "-"], ["ps", "-eww", "-o", "args"], ["ps", "eww", "-e"]]  # fmt: skip
    for node in (*NODES, "login"):
        for words in asked:
            for user in ("mallory", "root") if words[-1] != "-e" else ("mallory",):
                done = cluster.lab.exec(words, node=node, user=user)
                assert not [key for key in keys if key in done.stdout + done.stderr], f"{words} on {node}"


ONE = """
import hpcml, time
client = hpcml.connect()
(hpcml.run.out / "workers").write_text(" ".join(client.scheduler_info()["workers"]))
time.sleep(600)
"""


def test_authenticated_tcp_without_the_key(cluster: Cluster) -> None:
    """From a worker's node and from outside, at each worker; the run then still has its results from all workers."""
    for target in alice_s_run(cluster, *SMALL, "--set", "network.protocol=tcp"):
        workers = [name for name in target.addresses if name != "scheduler"]
        assert all(target.addresses[name].startswith("hpcml-tcp://") for name in workers)
        started = [
            cluster.lab.popen(["python3", "-c", mallory.KEYLESS, *where(target, name)], node=node, user="mallory")
            for name in workers
            for node in ("n1", "login")
        ]
        for done in together(started, 300):
            assert done.returncode == 0, done.stderr
            assert refused(done.stdout)["tries"] > 15
        logs = "".join(path.read_text() for path in (target.directory / "logs").glob("worker*.log"))
        assert "hpcml.tcp: refused" in logs
        said = json.loads(cluster.run("hpcml", "status", "--json", target.directory.name).stdout)
        assert said["security"].endswith("not encrypted")


@pytest.mark.parametrize("protocol", ["auto", "ucx"])
def test_writes_by_ucx_tcp(cluster: Cluster, protocol: str) -> None:
    """From the run's own node, where others may be: by ``auto`` there is no such port, by ``ucx`` it is named as open."""
    if cluster.run("python", "-c", "import distributed_ucxx").returncode != 0:
        pytest.skip("the lab's environment has no distributed-ucxx")
    job, directory = cluster.detach(
        ONE, "--nodes", "1", "--set", "workers.per_node=2", "--set", f"network.protocol={protocol}",
        "--set", "resources.exclusive=false", "--cpus-per-node", "1", "--memory-per-node", "1500M",
    )  # fmt: skip
    workers = directory / "out/workers"
    assert wait_for(lambda: workers.exists() and bool(workers.read_text()), 60)
    try:
        node = json.loads((directory / "attempts/0/scheduler.json").read_text())["node"]

        def by_mallory(code: str, *arguments: str) -> str:
            done = cluster.lab.exec(["python3", "-c", code, *arguments], node=node, user="mallory", timeout=120)
            assert done.returncode == 0, done.stderr
            return done.stdout

        # The oldest of each role: a child that soon becomes another program ends by itself.
        before = {*roles(cluster, directory, "worker", node)[:3]}
        before |= {roles(cluster, directory, role, node)[0] for role in ("supervisor", "scheduler")}
        ports = by_mallory(mallory.LISTENERS, str(pwd.getpwnam(ALICE).pw_uid)).split()
        assert len(ports) >= 3  # the scheduler's and the workers'
        assert json.loads(by_mallory(mallory.UCX_PUT, *(f"127.0.0.1:{port}" for port in ports)))["sent"]
        is_open = "UCX's TCP on " in cluster.run("hpcml", "status", directory.name).stdout
        assert is_open == (protocol == "ucx")
        if is_open:  # the attack is a real one
            assert wait_for(lambda: not before <= {*map(int, pids(cluster))}, 30)
        else:
            assert before <= {*map(int, pids(cluster))}
    finally:
        cluster.run("scancel", job)
        cluster.wait_status(directory)


def test_shared_memory_of_a_ucx_run(cluster: Cluster) -> None:
    """With alice's own group, as where all users of a project share one; and on its one node the run listens on loopback."""
    if cluster.run("python", "-c", "import distributed_ucxx").returncode != 0:
        pytest.skip("the lab's environment has no distributed-ucxx")
    alice, mallory_s = pwd.getpwnam(ALICE), pwd.getpwnam("hpcml-mallory")
    options = (
        "--nodes", "1", "--set", "workers.per_node=2", "--set", "network.protocol=ucx", "--memory-per-node", "1500M",
    )  # fmt: skip
    job, directory = cluster.detach(ONE, *options)
    workers = directory / "out/workers"
    assert wait_for(lambda: workers.exists() and bool(workers.read_text()), 60)
    try:
        node = json.loads((directory / "attempts/0/scheduler.json").read_text())["node"]

        def attach(user: int) -> str:
            words = ["setpriv", f"--reuid={user}", f"--regid={alice.pw_gid}", "--clear-groups", "python3", "-c",
                     mallory.SHARED, str(alice.pw_uid), *pids(cluster)]  # fmt: skip
            done = cluster.lab.exec(words, node=node, user="root", timeout=120)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert refused(attach(mallory_s.pw_uid))["tries"] > 0
        assert json.loads(attach(alice.pw_uid))["won"]  # the owner does get in
        assert "UCX's System V shared memory" not in cluster.run("hpcml", "status", directory.name).stdout
        assert {address.rpartition(":")[0] for address in workers.read_text().split()} == {"ucx://127.0.0.1"}
    finally:
        cluster.run("scancel", job)
        cluster.wait_status(directory)
