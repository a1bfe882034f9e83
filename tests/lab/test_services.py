"""`hpcml tunnel` to any port of a run, from the lab's laptop: on each node, by each route, and past mallory's listeners."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beside import PART, SMALL
from conftest import ALL_NODES
from laptop import Outside, until
from test_tunnel import ROUTES, listeners
from tests.said import Says

# Each rank has a web page that says where it is. Rank 0's listens or not as a file says, rank 1 has a page of its own.
PAGES = """
import http.server, os, pathlib, threading, time
import hpcml
rank = os.environ["RANK"]

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ready = self.path != "/health" or (hpcml.run.out / "healthy").exists()
        self.send_response(200 if ready else 503); self.end_headers()
        self.wfile.write(f"rank {rank} on {os.uname().nodename}".encode())
    def log_message(self, *words): pass

def listen(port):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server

listen(7107)
if rank == "1":
    hpcml.run.service("late", port=7107, ready="/health")
    hpcml.run.service("never", port=7199)
server = None
while not hpcml.run.should_stop() and not (hpcml.run.out / "enough").exists():
    wanted = rank == "0" and not (hpcml.run.out / "away").exists()
    if wanted and not server:
        try: server = listen(7106)
        except OSError: pass  # mallory has the port
    if server and not wanted:
        server.shutdown(); server.server_close(); server = None
    (hpcml.run.out / f"up-{rank}").write_text(str(bool(server)))
    time.sleep(0.05)
"""
# mallory's page on the user's port, from as soon as it is free until the file is gone.
EVIL = """
import http.server, os, socketserver, sys, time
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        open("/tmp/evil-was-asked", "a").write(self.path + "\\n")
        self.send_response(200); self.end_headers(); self.wfile.write(b"evil")
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer.allow_reuse_address = True
while True:
    try: server = http.server.ThreadingHTTPServer(("127.0.0.1", 7106), Page); break
    except OSError: time.sleep(0.01)
open("/tmp/evil-listens", "w").close()
server.serve_forever()
"""


@pytest.fixture(scope="module")
def pages(outside: Outside) -> Iterator[tuple[str, Path]]:
    outside.lab.wait_idle(60)
    yield outside.start_run(
        "pages", PAGES, "--ranks", "1", "--nodes", "2", "--nodelist", "n1,n2", "--service", "board=7106"
    )
    outside.on("login", "scancel", "--me", "--quiet")
    outside.lab.wait_idle(60)


def page(outside: Outside, port: int) -> str:
    return outside.laptop("curl", "-s", "-m", "10", f"http://127.0.0.1:{port}/").stdout


def known(outside: Outside, run: str) -> dict[str, Any]:
    """Return what `hpcml status` knows of the run's services, by name."""
    facts = json.loads(outside.on("login", "hpcml", "status", "--json", run).stdout)
    return {one["name"]: one for one in facts["services"]}


def test_each_route_leads_to_a_port_of_each_node_and_mallory_to_none(outside: Outside, pages: tuple[str, Path]) -> None:
    run, directory = pages
    outside.forget()
    until(lambda: [(directory / f"out/up-{rank}").exists() for rank in (0, 1)] == [True, True], 60)
    before = {node: listeners(outside, node) for node in (*ALL_NODES, "login", "login2")}
    wanted = [("--to", "7107"), ("--to", "7107@n2"), ("--to", "7107@rank:1"), ("--service", "board")]
    opened = [
        outside.tunnel(run, *words, "--route", route) for words, route in zip(wanted, (*ROUTES, "direct"), strict=True)
    ]
    facts = [tunnel.up() for tunnel in opened]
    assert [page(outside, one["port"]) for one in facts] == [f"rank {rank} on n{rank + 1}" for rank in (0, 1, 1, 0)]
    after = {node: listeners(outside, node) - before[node] for node in before if node != "login"}
    assert not any(after.values()), after
    attempt = directory / "attempts/0"
    for name, node in (("7107", "n1"), ("7107@n2", "n2"), ("7107@rank:1", "n2")):
        record = json.loads((attempt / "services" / f"{name}.json").read_text())
        socket = Path(record["socket"])
        for place, mode in ((socket, "600"), (socket.parent, "700")):
            mode_and_owner = outside.on(node, "stat", "-c", "%a %U", str(place), user="root").stdout
            assert mode_and_owner.split() == [mode, "hpcml-alice"]
        for path in (str(socket), f"/proc/{record['pid']}/root{socket}"):
            done = outside.on(node, "curl", "-s", "-m", "5", "--unix-socket", path, "http://localhost/", user="mallory")
            assert (done.returncode, done.stdout) == (7, "")
    assert outside.on("login", "ls", str(attempt / "services-wanted"), user="mallory").returncode != 0
    now = known(outside, run)
    assert {name: one["ready"] for name, one in now.items()} == {
        "7107": True, "7107@n2": True, "7107@rank:1": True, "board": True, "late": False, "never": False}  # fmt: skip
    assert now["7107@rank:1"]["command"].endswith(f" tunnel --to 7107@rank:1 {run}")
    assert now["late"]["message"] == Says("port 7107 on n2", "/health", "503")


def test_mallory_s_listener_is_never_reached_in_the_user_s_place(outside: Outside, pages: tuple[str, Path]) -> None:
    run, directory = pages
    for name in ("evil-was-asked", "evil-listens"):
        outside.on("n1", "rm", "-f", f"/tmp/{name}", user="root")
    tunnel = outside.tunnel(run, "--service", "board")
    port = tunnel.up()["port"]
    assert page(outside, port) == "rank 0 on n1"
    evil = outside.lab.popen(["/usr/bin/python3", "-c", EVIL], node="n1", user="mallory")
    try:
        (directory / "out/away").touch()
        until(lambda: outside.on("n1", "test", "-e", "/tmp/evil-listens").returncode == 0, 30)
        assert tunnel.ended() == 69
        assert tunnel.said == Says("a program of the account hpcml-mallory", "port 7106 on n1")
        late = outside.tunnel(run, "--to", "7106", "--port", "9377")
        assert late.ended() == 69
        assert "hpcml-mallory" in late.said
        told = outside.on("login", "hpcml", "status", run).stdout
        assert "hpcml-mallory" in " ".join(told.split())
    finally:
        evil.kill()
        evil.communicate(timeout=60)
        (directory / "out/away").unlink()
    assert outside.on("n1", "cat", "/tmp/evil-was-asked").stdout == ""
    until(lambda: known(outside, run)["board"]["ready"], 30)  # the bridge looks at its port once a second
    assert page(outside, outside.tunnel(run, "--service", "board").up()["port"]) == "rank 0 on n1"


def test_what_is_not_ready_and_what_does_not_exist(outside: Outside, pages: tuple[str, Path]) -> None:
    run, directory = pages
    never = outside.tunnel(run, "--service", "never", "--retry-for", "5s")
    late = outside.tunnel(run, "--service", "late")
    wrong = {
        "--to 7107@n3": "The nodes are n1, n2", "--to 7107@rank:2": "The ranks are 0 to 1",
        "--to 70000": "from 1 to 65535", "--to 7107x": "does not name a port", "--service a/b": "not a valid name",
    }  # fmt: skip
    refused = {text: outside.tunnel(run, *text.split()) for text in wrong}
    for text, words in wrong.items():
        assert (refused[text].ended(), words in refused[text].said) == (64, True), (text, refused[text].said)
    assert never.ended() == 69
    assert never.said == Says("not ready within 5 s", "no program listens", "port 7199 on n2")
    assert not late.lines
    (directory / "out/healthy").touch()
    assert page(outside, late.up()["port"]) == "rank 1 on n2"
    (directory / "out/enough").touch()
    assert late.ended(60) == 0
    gone = outside.tunnel(run, "--to", "7107")
    assert gone.ended() == 0
    assert "has ended" in gone.said
    for node in ("n1", "n2"):
        command = ("bash", "-c", "ls -d /tmp/hpcml_*")
        until(lambda words=(node, *command): not outside.on(*words, user="root").stdout, 30)  # type: ignore[misc]


# On each node a page with a style, a script, a request of the script's and a websocket; beside it http.server.
SITE = """
import os, pathlib, subprocess, sys
import tornado.ioloop, tornado.web, tornado.websocket

folder = pathlib.Path("/tmp") / f"site-{os.environ['RANK']}"
folder.mkdir()
(folder / "style.css").write_text("body { color: red }")
(folder / "data.json").write_text('{"node": "%s"}' % os.uname().nodename)
(folder / "app.js").write_text('''
fetch("data.json").then(answer => answer.json()).then(data => {
  const end = word => { document.title = `${data.node} ${word}` };
  if (!document.body.dataset.socket) return end("plain");
  const socket = new WebSocket(`ws://${location.host}/socket`);
  socket.onopen = () => socket.send("asked");
  socket.onmessage = event => end(event.data);
});
''')
for name, mark in (("index.html", ""), ("live.html", " data-socket=1")):
    head = "<!doctype html><link rel=icon href=data:><link rel=stylesheet href=style.css>"
    (folder / name).write_text(f"{head}<body{mark}><script src=app.js></script>")

class Socket(tornado.websocket.WebSocketHandler):
    def on_message(self, message):
        self.write_message(f"answered {message}")

subprocess.Popen([sys.executable, "-m", "http.server", "7121", "--bind", "127.0.0.1", "--directory", str(folder)])
pages = (r"/(.*)", tornado.web.StaticFileHandler, {"path": folder, "default_filename": "live.html"})
tornado.web.Application([("/socket", Socket), pages]).listen(7120, "127.0.0.1")
tornado.ioloop.IOLoop.current().start()
"""
IN_BROWSER = Path(__file__).with_name("in_browser.py")
TITLED = {"7120": "n1 answered asked", "7120@n2": "n2 answered asked", "7121": "n1 plain", "7121@n2": "n2 plain"}


def test_a_browser_on_the_laptop_loads_pages_of_each_node(outside: Outside) -> None:
    for needed in ("playwright", "tornado"):
        pytest.importorskip(needed, reason=f"{needed} is not installed here")
    if not shutil.which("chromium"):
        pytest.skip("there is no chromium here")
    run, _ = outside.start_run("site", SITE, "--ranks", "1", *SMALL)
    ports = {name: outside.tunnel(run, "--to", name).up()["port"] for name in TITLED}
    words = [word for name, port in ports.items()
             for word in (f"http://127.0.0.1:{port}/", f"document.title == {TITLED[name]!r}")]  # fmt: skip
    done = outside.on("laptop", sys.executable, str(IN_BROWSER), *words, user="root", timeout=200)
    assert done.returncode == 0, done.stderr
    for name, line in zip(TITLED, done.stdout.splitlines(), strict=True):
        assert json.loads(line) == {
            "title": TITLED[name], "loaded": {"document": 1, "fetch": 1, "script": 1, "stylesheet": 1}, "failed": [],
            "frames": int("7120" in name), "elsewhere": []}  # fmt: skip
    outside.on("login", "hpcml", "cancel", run)


# Each attempt has a page of its own: on the port of the submission, and on another one that the script names.
AGAIN = """
import http.server, threading, time
import hpcml

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(f"attempt {hpcml.run.attempt} at {self.server.server_port}".encode())
    def log_message(self, *words): pass

for port in (7111, 7112 + hpcml.run.attempt):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
hpcml.run.service("named", port=port)
while not hpcml.run.should_stop(): time.sleep(0.1)
"""
REQUEUE = 'slurm.extra=["--requeue"]'
OF_AGAIN = {"board": 7111, "named": 7112, "--to 7111": 7111}


def test_open_tunnels_come_back_to_the_next_attempt_of_a_requeued_run(outside: Outside) -> None:
    options = ("--nodes", "1", "--service", "board=7111", "--set", REQUEUE, "--until-done", *PART)
    run, directory = outside.start_run("again", AGAIN, "--ranks", "1", *options)
    job = str((directory / "job").readlink())
    words = {name: name.split() if "--to" in name else ["--service", name] for name in OF_AGAIN}
    tunnels = {name: outside.tunnel(run, *words[name]) for name in OF_AGAIN}
    before = {name: tunnel.up() for name, tunnel in tunnels.items()}
    assert outside.on("login", "scontrol", "requeue", job).returncode == 0
    until(lambda: all("is PENDING: " in tunnel.said for tunnel in tunnels.values()), 60, lambda: tunnels["board"].said)
    for tunnel in tunnels.values():
        assert tunnel.said == Says(f"on {before['board']['node']} ended", "is PENDING: ", "requeued")
    outside.on("login", "scontrol", "update", f"jobid={job}", "StartTime=now+3seconds")
    for name, port in OF_AGAIN.items():
        assert tunnels[name].up(2, 90)["port"] == before[name]["port"]
        assert page(outside, before[name]["port"]) == f"attempt 1 at {port + (name == 'named')}"
    outside.on("login", "hpcml", "cancel", run)


# A task of Dask that serves on the second node, in a process that outlives the task.
TASK = """
import os, socket, subprocess, sys, time
import hpcml
client = hpcml.connect()

def serve():
    import hpcml
    page = f"import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=7108, bind='127.0.0.1')"
    subprocess.Popen([sys.executable, "-c", page], cwd=hpcml.run.out)
    hpcml.run.service("task", port=7108, ready="/")

(hpcml.run.out / "where").write_text("of Dask's worker")
(worker,) = [name for name, one in client.scheduler_info(n_workers=-1)["workers"].items() if str(one["id"]).startswith("n2")]
client.submit(serve, workers=[worker], pure=False).result()
while not hpcml.run.should_stop() and not (hpcml.run.out / "enough").exists(): time.sleep(0.1)
"""
BATCH = """#!/bin/bash
#SBATCH --nodes=2 --nodelist=n3,n4 --ntasks-per-node=1 --time=10 --cpus-per-task=1 --mem=300M
srun python -c 'import http.server as h, os; os.makedirs(p := f"/tmp/{os.getpid()}"); os.chdir(p); open("where", "w").write("batch on " + os.uname().nodename); h.test(h.SimpleHTTPRequestHandler, port=7109, bind="127.0.0.1")'
"""


def test_a_service_of_a_dask_task_and_of_a_batch_script(outside: Outside) -> None:
    cluster = outside.cluster
    outside.lab.wait_idle(60)
    run, directory = outside.start_run("task", TASK, "--nodes", "2", "--nodelist", "n1,n2")
    script = cluster.write("services/batch.sh", BATCH)
    done = cluster.run("hpcml", "submit", "--json", "--detach", "--service", "web=7109", str(script), cwd=script.parent)
    batch = json.loads(done.stdout)["run"]
    task, first = outside.tunnel(run, "--service", "task"), outside.tunnel(batch)
    second = outside.tunnel(batch, "--to", "7109@n4")
    pages = {name: outside.laptop("curl", "-s", f"http://127.0.0.1:{tunnel.up()['port']}/where").stdout
             for name, tunnel in (("task", task), ("first", first), ("second", second))}  # fmt: skip
    assert pages == {"task": "of Dask's worker", "first": "batch on n3", "second": "batch on n4"}
    (directory / "out/enough").touch()
    assert task.ended(60) == 0
    outside.on("login", "hpcml", "cancel", batch)
    assert {first.ended(60), second.ended(60)} <= {0, 69}
    outside.lab.wait_idle(60)
