"""All that another account can try on the nodes of a run: names in /tmp, ports, sockets, shared memory, files, processes.

tests/lab/test_security.py and tests/local/test_wire.py hold what is not a try but a fact: modes, ports, and UCX's handshake.
"""

from __future__ import annotations

import contextlib
import json
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mallory
from attacks import Attempts
from conftest import Cluster, together
from test_security import PLACES, VICTIMS, Target, foreign_clients
from test_security import victim as alice_s_run

pytestmark = pytest.mark.lab

ALICE = "hpcml-alice"
NODES = ("n1", "n2")
LOGS = {"scheduler": "scheduler.log", "n2": "worker-n2.log"}
ON = (
    "--cpus-per-node",
    "2",
    "--memory-per-node",
    "900M",
    "--set",
    'slurm.extra=["--nodelist=n1,n2"]',
)  # several at once
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


def told(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def count(attempts: Attempts, label: str, found: dict[str, Any]) -> None:
    """Count what mallory's program says of itself, and fail the test where she won."""
    attempts.refused(label, found["tries"] - len(found["won"]))
    for won in found["won"]:
        attempts.succeeded(f"{label}: {won}")
    assert not found["won"], found["won"]


def tries(cluster: Cluster, attempts: Attempts, label: str, code: str, *words: str, node: str = "n1") -> dict[str, Any]:
    """Run one of mallory's programs on a node, and count its tries."""
    done = cluster.lab.exec(["python3", "-c", code, *words], node=node, user="mallory", timeout=300)
    assert done.returncode == 0, done.stderr
    found = told(done.stdout)
    count(attempts, f"{label} on {node}", found)
    return found


@contextlib.contextmanager
def watching(cluster: Cluster, attempts: Attempts, *nodes: str) -> Iterator[list[dict[str, Any]]]:
    """Have mallory plant names in /tmp of nodes, and swap what appears there, while something runs; count it afterwards."""
    found: list[dict[str, Any]] = []
    clean(cluster)  # she comes first
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
        yield found
        for process in started:
            out, err = process.communicate("", timeout=180)
            assert process.returncode == 0, err
            found.append(told(out))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
    for node, one in zip(nodes, found, strict=True):
        attempts.refused(f"planted names on {node}", one["planted"])
        count(attempts, f"names in /tmp on {node}", one)


def owned(cluster: Cluster, node: str) -> list[str]:
    """Return what mallory's code left where it ran as alice."""
    done = cluster.lab.exec(
        ["find", "/tmp", "-maxdepth", "1", "-name", "owned-*", "-user", ALICE], node=node, user="root"
    )
    return done.stdout.split()


def clean(cluster: Cluster) -> None:
    """Take away what mallory has planted, as the nodes' epilog or a reboot would."""
    for node in (*NODES, "login"):
        cluster.lab.exec(["find", "/tmp", "/dev/shm", "-mindepth", "1", "-maxdepth", "1", "(", "-user", "hpcml-mallory", "-o",
                          "-name", "owned-*", "-o", "-name", "*.away", "-o", "-name", "dask-scratch-space*", ")", "-exec", "rm", "-rf", "{}", "+"],
                         node=node, user="root")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _planted_is_removed(cluster: Cluster) -> Iterator[None]:
    clean(cluster)
    yield
    clean(cluster)


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Override: the run of this module outlives its tests."""


# -- before and while a run starts --------------------------------------------------------------------------------------


def test_planted_folders_give_mallory_no_code_in_a_run(cluster: Cluster, attempts: Attempts) -> None:
    """Dask's own folder, and any other in /tmp, planted open to all, and what appears in them swapped."""
    cluster.write("helper.py", HELPER)
    with watching(cluster, attempts, *NODES) as found:
        done = cluster.submit(SAY, "--nodes", "2", *ON)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "said alices"
    assert all(one["tries"] > 0 for one in found)  # she did see folders of the run
    for node in NODES:
        attempts.judge(f"code of hers as alice on {node}", refused=owned(cluster, node) == [])


def test_planted_folders_give_mallory_no_code_in_connect(cluster: Cluster, attempts: Attempts) -> None:
    """hpcml.connect() on the login node, outside a run: its scheduler, Nannies and workers."""
    folder = cluster.write("here/helper.py", HELPER).parent
    cluster.write("here/say.py", SAY)
    with watching(cluster, attempts, "login") as found:
        done = cluster.run("python", "say.py", cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "said alices"
    assert found[0]["tries"] > 0
    attempts.judge("code of hers as alice on login", refused=owned(cluster, "login") == [])


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
    share = {"cpus_per_node": 1, "memory_per_node": "900M", "time": "5m"}
    futures = [*hpcml.map(point, [1], site="local"), *hpcml.map(point, [2], **share)]
    print("said", *sorted({one.result(240) for one in futures}))
"""
MODULES = ("submitit", "cloudpickle", "pip", "pandas", "numpy", "dask", "distributed", "tornado", "psutil", "msgpack", "click",
           "dask_jobqueue", "crick", "lz4", "uvloop", "jinja2", "yaml", "cryptography", "hpcml", "helper", "sitecustomize",
           "usercustomize", "json", "typing", "contextlib", "encodings", "runpy", "matplotlib", "pytest")  # fmt: skip


def test_planted_modules_and_folders_give_mallory_no_code_in_any_command(
    cluster: Cluster, attempts: Attempts, image: Path
) -> None:
    """In a folder where everybody may put modules alice types all that starts a Python or one of Dask's servers."""
    shared, open_to_all = cluster.lab.places.top / "shared-with-modules", "/tmp/open"
    evil = f"touch {shared}/owned-module-$(id -un)"
    plant = f"""
import os, sys
for name in sys.argv[1:]:
    for path in (name + ".py", name + "/__init__.py", name + "/__main__.py"):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        open(path, "w").write("import os; os.system({evil!r})")
for name in ("python3", "sbatch", "srun"):
    open(name, "w").write({evil!r}); os.chmod(name, 0o777)
os.symlink({str(cluster.home / "treasure")!r}, "wheels"); os.symlink({str(cluster.home / "treasure")!r}, "cpu.sif")
"""
    cluster.run("mkdir", "-m", "1777", str(shared), user="root")
    planted = cluster.lab.exec(["python3", "-c", plant, *MODULES], cwd=shared, user="mallory")
    assert planted.returncode == 0, planted.stderr
    folder = cluster.write("own/helper.py", HELPER).parent
    elastic, maps, say = (
        str(cluster.write(f"own/{name}.py", text))
        for name, text in (("elastic", ELASTIC), ("maps", MAPS), ("say", SAY))
    )
    said: list[tuple[tuple[str, ...], subprocess.CompletedProcess[str]]] = []
    commands = [
        ("python", elastic), ("python", maps), ("python", say),
        ("hpcml", "wheelhouse", "-o", f"{folder}/wheels"), ("hpcml", "image", "build", "cpu", f"{folder}/x.sif"),
        ("hpcml", "image", "check", str(image)), ("hpcml", "doctor", "--node"), ("hpcml", "site", "init", "--probe", "other"),
        ("hpcml", "ls"), ("hpcml", "report", "last"), ("hpcml", "why", "last"), ("hpcml", "sweep", "--dry-run", say, "--grid", "x=1,2"),
        ("hpcml", "new", "kmeans"), ("hpcml", "site", "show"), ("hpcml", "submit", "--site", "local", "--wait", say),
    ]  # fmt: skip
    try:
        with watching(cluster, attempts, "login", *NODES) as found:
            said += [(words, cluster.run(*words, cwd=shared, timeout=400)) for words in commands]
        for words, done in said[:3]:
            assert done.stdout.splitlines()[-1:] == ["said alices"], (words, done.stdout, done.stderr)
        assert found[0]["tries"] > 0
        cluster.lab.exec(["mkdir", "-m", "777", open_to_all], node="n1", user="mallory")
        refused = cluster.run("python", elastic, open_to_all, cwd=shared, timeout=400)
        attempts.judge(
            f"an elastic job in her folder: {refused.stdout}{refused.stderr}",
            refused="/tmp/open belongs to another user" in refused.stderr,
        )
        ran = [path.name for path in shared.glob("owned-*")]
        attempts.judge(f"modules of hers: {ran}", refused=not ran, tries=len(MODULES) * len(commands))
        for node in ("login", *NODES):
            attempts.judge(f"code of hers as alice on {node}", refused=owned(cluster, node) == [])
    finally:
        cluster.run("rm", "-rf", str(shared), user="root")


def test_planted_names(cluster: Cluster, attempts: Attempts) -> None:
    """Folders, links and sockets under hundreds of names that libraries and hpcml use; a run beside them is as ever."""
    treasure = cluster.home / "treasure"
    cluster.run("sh", "-c", f"mkdir -p {treasure} && echo gold >{treasure}/gold && echo n1 >{treasure}/.lives")
    for node in NODES:
        tries(cluster, attempts, "planted names", mallory.NAMES, "/tmp,/dev/shm", str(treasure), node=node)
    done = cluster.submit(SAY, "--nodes", "2", *ON)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "said alices"
    attempts.judge("a link for the sweep", refused=cluster.run("cat", f"{treasure}/gold").stdout == "gold\n")
    clean(cluster)


def folders(cluster: Cluster, node: str) -> set[str]:
    """Return alice's folders of runs in a node's /tmp."""
    done = cluster.lab.exec(
        ["find", "/tmp", "-maxdepth", "1", "-name", "hpcml[-_]*", "-user", ALICE], node=node, user="root"
    )
    return set(done.stdout.split())


def test_what_killed_roles_leave_is_swept(cluster: Cluster, attempts: Attempts) -> None:
    """By alice's next run on the node: not the folders of a run that lives there, and nothing that mallory put beside them."""
    stays = "import hpcml, time\nclient = hpcml.connect()\nwhile True: time.sleep(1)\n"
    before = {node: folders(cluster, node) for node in NODES}
    living, directory = cluster.detach(stays, "--nodes", "2", *ON)
    cluster.wait_event(directory, "driver-started")
    alive = {node: folders(cluster, node) - before[node] for node in NODES}
    killed, other = cluster.detach(stays, "--nodes", "2", *ON)
    cluster.wait_event(other, "driver-started")
    left = {node: folders(cluster, node) - alive[node] - before[node] for node in NODES}
    for pid, _ in cluster.lab.processes("alice"):
        with contextlib.suppress(OSError):
            if f"HPCML_RUN_DIR={other}" in Path(f"/proc/{pid}/environ").read_text(errors="replace"):
                cluster.lab.exec(["kill", "-KILL", str(pid)], user="root")
    cluster.run("scancel", killed)
    cluster.job_end(killed)
    assert all(left.values())
    assert {node: left[node] & folders(cluster, node) for node in NODES} == left
    for node in NODES:
        tries(cluster, attempts, "names for the sweep", mallory.NAMES, "/tmp", str(cluster.home), node=node)
    done = cluster.submit("print(1)\n", "--nodes", "2", *ON)
    assert done.code == 0, done.err
    for node in NODES:
        now = folders(cluster, node)
        assert not left[node] & now, done.log(f"worker-{node}.log")
        assert alive[node] <= now
        assert "folders that roles of earlier runs left in /tmp" in done.log(f"worker-{node}.log")
    cluster.run("scancel", living)
    cluster.wait_status(directory)
    clean(cluster)


# -- while a run is up --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(cluster: Cluster) -> Iterator[Target]:
    cluster.wait_idle(60)
    yield from alice_s_run(cluster, "--nodes", "2", *ON)
    cluster.wait_idle(60)


def where(target: Target, victim: str) -> tuple[str, str]:
    host, port = target.addresses[victim].rpartition("//")[2].rsplit(":", 1)
    return host, port


def pids(cluster: Cluster) -> list[str]:
    return [str(pid) for pid, line in cluster.lab.processes("alice") if "hpcml.node" in line]


Ran = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def tried(cluster: Cluster, target: Target) -> dict[tuple[str, str], tuple[Ran, Ran]]:
    """Dask's own clients, then bytes, from each place at each victim: all beside each other, since both mostly wait."""
    clients = foreign_clients(cluster, target)
    talks = (
        cluster.lab.popen(["python3", "-c", mallory.TALK, *where(target, victim)], node=place, user="mallory")
        for place, victim in clients
    )
    return dict(zip(clients, zip(clients.values(), together(talks, 300), strict=True), strict=True))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("victim", VICTIMS)
def test_clients_without_the_key(
    tried: dict[tuple[str, str], tuple[Ran, Ran]], attempts: Attempts, place: str, victim: str
) -> None:
    """Dask's own client in three kinds, then every version of TLS, certificates of her own, replays and bytes."""
    done, talked = tried[place, victim]
    lines = [line for line in done.stdout.splitlines() if line.startswith(("IN", "refused"))]
    assert len(lines) == 5, done.stdout + done.stderr
    for line in lines:
        attempts.judge(f"{line} from {place} at {victim}", refused=line.startswith("refused"))
    assert talked.returncode == 0, talked.stderr
    count(attempts, f"bytes at {victim} on {place}", told(talked.stdout))


def test_sockets(cluster: Cluster, target: Target, attempts: Attempts) -> None:
    """The run's unix sockets: by their paths, and through /proc."""
    control = json.loads((target.directory / "attempts/0/control.json").read_text())["socket"]
    found = cluster.run("find", str(Path(control).parent), "-type", "s", node="n1").stdout.split()
    assert len(found) == 2
    through = [f"/proc/{pid}/root{path}" for pid in pids(cluster) for path in found]
    for node in (*NODES, "login"):
        tries(cluster, attempts, "sockets", mallory.KNOCK, *found, *through, node=node)


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


def test_another_page_in_the_browser(cluster: Cluster, target: Target, attempts: Attempts) -> None:
    """What a page in the owner's own browser can send through a tunnel: hosts, origins, websockets."""
    control = json.loads((target.directory / "attempts/0/control.json").read_text())["socket"]
    socket_path = str(Path(control).with_name("dashboard.sock"))
    done = cluster.run("python3", "-c", WEB, socket_path, node="n1")
    assert done.returncode == 0, done.stderr
    count(attempts, "web", told(done.stdout))


def test_files_and_processes(cluster: Cluster, target: Target, attempts: Attempts) -> None:
    """The run's files on the shared file system and the node, and all that /proc has of its processes."""
    files = [str(path) for path in target.directory.rglob("*") if path.name != "lib.zip"][:200]
    mine = [path for node in NODES for path in folders(cluster, node)]
    for node in (*NODES, "login"):
        tries(
            cluster,
            attempts,
            "files and processes",
            mallory.READ,
            str(target.directory),
            *files,
            *mine,
            "--",
            *pids(cluster),
            node=node,
        )


def test_no_secret_in_what_is_public(cluster: Cluster, target: Target, attempts: Attempts) -> None:
    """Slurm's records, command lines and logs as mallory and root see them."""
    secret = target.directory / "attempts/0/secret"
    keys = [*(secret / "tls-key.pem").read_text().splitlines()[1:-1], (secret / "ucx.key").read_bytes().hex()]
    job = json.loads((target.directory / "submission.json").read_text())["job"]
    asked = [["scontrol", "show", "job", "-dd", job], ["squeue", "-j", job, "-O", "ALL"], ["scontrol", "show", "step", job],
             ["scontrol", "write", "batch_script", job, "-"], ["ps", "-eww", "-o", "args"], ["ps", "eww", "-e"]]  # fmt: skip
    for node in (*NODES, "login"):
        for words in asked:
            for user in ("mallory", "root") if words[-1] != "-e" else ("mallory",):
                done = cluster.lab.exec(words, node=node, user=user)
                found = [key for key in keys if key in done.stdout + done.stderr]
                attempts.judge(f"{' '.join(words)} on {node}", refused=not found)


@pytest.mark.parametrize("chosen", ["", "all"])
def test_shared_memory_of_a_ucx_run(cluster: Cluster, target: Target, attempts: Attempts, chosen: str) -> None:
    """With alice's own group, as where all users of a project share one. If she opens it herself, it works, and is told."""
    if cluster.run("python", "-c", "import distributed_ucxx").returncode != 0:
        pytest.skip("the lab's environment has no distributed-ucxx")
    uid, gid = pwd.getpwnam(ALICE).pw_uid, pwd.getpwnam(ALICE).pw_gid
    options = ["--nodes", "1", "--set", "workers.per_node=2", "--protocol", "ucx", "--memory-per-node", "1500M"]
    options += ["--set", f"environment.UCX_TLS={chosen}"] if chosen else []
    job, directory = cluster.detach("import hpcml, time\nclient = hpcml.connect()\ntime.sleep(600)\n", *options)
    cluster.wait_event(directory, "driver-started", 60)
    try:
        node = json.loads((directory / "attempts/0/scheduler.json").read_text())["node"]
        words = ["setpriv", f"--reuid={pwd.getpwnam('hpcml-mallory').pw_uid}", f"--regid={gid}", "--clear-groups", "python3",
                 "-c", mallory.SHARED, str(uid), *pids(cluster)]  # fmt: skip
        done = cluster.lab.exec(words, node=node, user="root", timeout=120)
        assert done.returncode == 0, done.stderr
        found = told(done.stdout)
        told_open = (
            "UCX's System V shared memory, for your group" in cluster.run("hpcml", "status", directory.name).stdout
        )
        assert told_open == bool(chosen)
        if chosen:
            assert any("read and write segment" in won for won in found["won"])
        else:
            count(attempts, "shared memory", found)
    finally:
        cluster.run("scancel", job)
        cluster.wait_status(directory)
