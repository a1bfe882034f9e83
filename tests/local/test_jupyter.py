"""A real JupyterLab under the local site: who gets in, what its kernels can do, what listens, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jupyterlab", reason="hpcml[jupyter] is not installed here")
import websocket

from homes import HPCML, Here, here, home
from hpcml import errors
from notebook_api import Jupyter, Kernel

pytestmark = pytest.mark.local
__all__ = ["here"]

MEAN = """
import hpcml, dask.array as da
client = hpcml.connect()
x = da.random.default_rng(0).normal(size=(2000, 100), chunks=(500, 100))
print(sorted({client.submit(lambda: __import__("os").getpid(), pure=False).result()} - {__import__("os").getpid()}) != [],
      abs(float(x.mean().compute())) < 0.1, hpcml.run.id)
"""


class Session(Here):
    """A run of ``hpcml jupyter`` on this machine, and where its server is."""

    def __init__(self, here: Here, *options: str) -> None:
        super().__init__(here.folder, here.environment)
        self.directory = Path(self.json("jupyter", *options)["directory"])
        path = self.directory / "attempts/0/services/jupyter.json"
        self.until(path.exists, 90)
        self.facts: dict[str, Any] = json.loads(path.read_text())
        self.token = Path(self.facts["token_file"]).read_text()
        self.sockets = Path(self.facts["socket"]).parent
        self.server = Jupyter(self.facts["socket"], self.token)

    def log(self) -> str:
        return (self.directory / "logs/script.log").read_text()

    def end(self) -> dict[str, Any]:
        """Wait for the run's end; return its status, with nothing of it left."""
        found = self.ended(self.directory)
        self.server.close()
        self.until(lambda: not self.processes(self.directory), 10)
        assert not self.sockets.exists()
        assert list(self.directory.glob("attempts/*/secret/*")) == []
        return found


@contextlib.contextmanager
def tunnelled(session: Session) -> Iterator[int]:
    """`hpcml tunnel` to the session's server; gives the port."""
    words = [HPCML, "tunnel", "--json", "--service", "jupyter", session.directory.name]
    with subprocess.Popen(words, env=session.environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(json.loads(process.stdout.readline())["port"])
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session under a home that has a careless Jupyter configuration, started under a careless umask."""
    careless = {
        "token": "", "allow_origin": "*", "disable_check_xsrf": True, "allow_remote_access": True, "ip": "0.0.0.0",
    }  # fmt: skip
    with home(tmp_path_factory.mktemp("home")) as here:
        (here.folder / ".jupyter").mkdir()
        for folder in (here.folder / ".jupyter", here.folder):
            (folder / "jupyter_server_config.json").write_text(json.dumps({
                "ServerApp": {**careless, "sock_mode": "0777"}, "IdentityProvider": {"token": ""},
                "KernelManager": {"transport": "tcp"}}))  # fmt: skip
        (here.folder / "zmq.py").write_text("raise RuntimeError('a module of the user stood in for a library')\n")
        (here.folder / "helper.py").write_text("def double(x): return 2 * x\n")
        before = os.umask(0)
        try:
            made = Session(here, "--nodes", "2")
        finally:
            os.umask(before)
        yield made
        made.run("cancel", made.directory.name)
        made.end()


@pytest.fixture(scope="module")
def kernel(session: Session) -> Kernel:
    return session.server.kernel()


def test_a_token_is_needed(session: Session) -> None:
    stranger = Jupyter(session.server.path, "")
    wrong = Jupyter(session.server.path, "x" * 43)
    for path in ("/api/status", "/api/contents", "/api/kernels"):
        assert (stranger.request("GET", path)[0], wrong.request("GET", path)[0]) == (403, 403), path
        assert session.server.request("GET", path)[0] == 200, path
    for path in ("/lab", "/dashboard/status", "/dashboard/json/counts.json", "/proxy/1/"):
        assert stranger.request("GET", path)[0] in (302, 403), path
    assert stranger.request("POST", "/api/terminals")[0] == 403
    for unknown in (stranger, wrong):
        for path in ("/dashboard/status/ws", "/hpcml/session"):
            with pytest.raises(websocket.WebSocketBadStatusException):
                unknown.connect(path)
        unknown.close()
    owner = Jupyter(session.server.path, session.token)
    assert json.loads(owner.connect("/hpcml/session").recv())["state"] == "running"
    owner.close()


def test_other_names_and_other_pages_are_refused(session: Session, kernel: Kernel) -> None:
    server = session.server
    assert server.request("GET", "/api/status", Host="evil.example")[0] == 403
    browser = Jupyter(server.path, "")
    cookies = browser.log_in(session.token)
    assert browser.request("GET", "/api/status", Cookie=cookies)[0] == 200
    assert browser.request("POST", "/api/terminals", {}, Cookie=cookies)[0] == 403  # it lacks the header against XSRF
    paths = (
        f"/api/kernels/{kernel.id}/channels",
        "/api/events/subscribe",
        "/hpcml/session",
        "/dashboard/status/ws?bokeh=1",
    )
    for path in paths[:3]:
        browser.connect(path, cookies=cookies)
    for path in paths:
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            browser.connect(path, origin="http://evil.example", cookies=cookies)
        assert refused.value.status_code == 403, path
    browser.close()


def test_only_the_user_reaches_its_files(session: Session, kernel: Kernel) -> None:
    """Also under umask 0 in the caller's shell."""
    assert kernel.run("import os; print(os.umask(0))") == "0\n"  # what a cell writes is as open as the user asks
    for path in (session.sockets, *session.sockets.rglob("*")):
        mode = path.lstat().st_mode
        assert path.lstat().st_uid == os.getuid()
        assert not stat.S_ISLNK(mode)
        assert mode & 0o077 == 0, path
    assert Path(session.server.path).lstat().st_mode == stat.S_IFSOCK | 0o600
    assert Path(session.facts["token_file"]).stat().st_mode == stat.S_IFREG | 0o600
    ipc = [path for path in (session.sockets / "k").iterdir() if kernel.id in path.name and path.name[-1] in "12345"]
    assert len(ipc) == 5


def test_nothing_listens_on_a_port(session: Session, kernel: Kernel) -> None:
    """Neither the server nor a kernel, whose forked children's output has a socket of its own."""
    code = "import os, sys\nif os.fork() == 0:\n    print('from a fork', flush=True)\n    os._exit(0)\nos.wait()\nimport time; time.sleep(1)"
    assert "from a fork" in kernel.run(code)
    session.server.table("POST", "/api/terminals")
    ours = session.processes(session.directory)
    lines = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    listening = {pid for pid in ours for line in lines if f"pid={pid}," in line}
    assert listening  # scheduler and workers do, behind TLS
    assert {ours[pid].split(" -m ")[1].strip() for pid in listening} <= {
        "hpcml.kinds scheduler",
        "hpcml.kinds supervisor",
        "hpcml.kinds worker",
    }


def test_the_token_is_nowhere_else(session: Session, kernel: Kernel) -> None:
    assert "JUPYTER_TOKEN" not in kernel.run("import os; print(dict(os.environ))")
    address = f"/api/none?token={session.token}"
    assert session.server.request("GET", address, Referer=f"http://localhost{address}")[0] == 404
    session.until(lambda: "404 GET /api/none" in session.log())  # it is written down, without the token
    for pid, line in session.processes(session.directory).items():
        assert session.token not in line
        assert session.token not in Path(f"/proc/{pid}/environ").read_text(errors="replace")
    for path in session.directory.rglob("*"):
        if path.is_file() and path != Path(session.facts["token_file"]):
            assert session.token.encode() not in path.read_bytes(), path


def test_cells_compute_on_the_run_s_workers(session: Session, kernel: Kernel) -> None:
    """Two notebooks at once, and one of them after its kernel was restarted.

    Cells and workers import modules beside the notebook; what bears a library's name breaks neither server nor kernel.
    """
    other = session.server.kernel()
    expected = f"True True {session.directory.name}\n"
    assert kernel.run(MEAN) == expected
    assert other.run(MEAN) == expected
    kernel.restart()
    assert "NameError" in kernel.run("client")
    assert kernel.run(MEAN) == expected
    assert kernel.run("import helper; print(client.submit(helper.double, 21).result())") == "42\n"
    assert other.run("print(len(client.scheduler_info()['workers']), client.dashboard_link)") == "2 /dashboard/status\n"


def test_dask_labextension_starts_no_cluster_of_its_own(session: Session) -> None:
    """It would listen on loopback, with a door open to all."""
    status, text = session.server.request("PUT", "/dask/clusters/")
    assert status == 500
    assert "connect to the cluster of this session" in text + session.log()


# -- a browser, and ends -------------------------------------------------------------------------------------------

CELL = """import hpcml, dask.array as da
client = hpcml.connect()
total = da.ones((1000, 100), chunks=(100, 100)).sum().compute()
print("computed", int(total), "on", len(client.scheduler_info()["workers"]), "workers")
client"""


def test_in_a_browser(session: Session) -> None:
    """JupyterLab through `hpcml tunnel`: a cell, the dashboard beside it, and what it does before the end."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no chromium here")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed here")
    with tunnelled(session) as port, api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        context = browser.new_context(viewport={"width": 1400, "height": 850})
        context.set_default_timeout(60_000)
        page = context.new_page()
        try:
            work(context, page, session, port)
            assert session.end()["exit_status"] == errors.CANCELLED  # also near the time limit
        finally:
            page.screenshot(path=str(session.folder / "last.png"))
            browser.close()
    assert "written before the end" in (session.folder / "Untitled.ipynb").read_text()
    assert "may not have saved" not in session.log()
    files = list(session.directory.rglob("*"))
    assert not [path for path in files if path.is_file() and session.token.encode() in path.read_bytes()]


def work(context: Any, page: Any, session: Session, port: int) -> None:
    """Do what a user does, to the end of the run."""

    def type_in(text: str) -> None:
        page.click(".jp-Notebook .jp-Cell:last-child .cm-content")
        page.keyboard.press("Control+End")
        page.keyboard.insert_text(text)

    def ran() -> bool:
        """Run the cell; JupyterLab drops a cell that is run before the kernel is connected, so look and run it again."""
        page.click(".jp-Notebook .jp-Cell:first-child .cm-content")
        page.keyboard.press("Control+Enter")
        page.wait_for_timeout(1000)
        return bool(page.locator('.jp-Cell:first-child .jp-InputPrompt:has-text("[ ]")').count() == 0)

    page.goto(f"http://127.0.0.1:{port}/lab?reset&token={session.token}")
    page.click('.jp-LauncherCard[data-category="Notebook"][title*="hpcml (this run)"]')
    page.wait_for_selector('#jp-main-statusbar :text("hpcml (this run) | Idle")')
    type_in(CELL)
    session.until(ran)
    page.locator('.jp-OutputArea-output:has-text("computed 100000 on 2 workers")').first.wait_for()
    page.keyboard.press("Shift+Enter")
    page.wait_for_selector(".jp-Notebook .jp-Cell:nth-child(2)")

    link = page.locator('.jp-OutputArea-output a[href$="/dashboard/status"]').first
    received: list[object] = []

    def keep(frame: object) -> None:  # Playwright marks its handlers, which it cannot do to a built-in method
        received.append(frame)

    other = context.new_page()
    other.on("websocket", lambda opened: opened.on("framereceived", keep))
    other.goto(f"http://127.0.0.1:{port}{link.get_attribute('href')}")
    session.until(lambda: other.wait_for_timeout(100) or len(received) > 10)
    assert "Dask" in other.title()
    other.close()

    type_in("# written before the time limit")
    (session.directory / "attempts/0/time-limit").touch()  # as the batch script does when Slurm tells it
    page.wait_for_selector('.Toastify__toast:has-text("The time limit is near")')
    session.until(lambda: "before the time limit" in (session.folder / "Untitled.ipynb").read_text())
    type_in("# written before the end")
    assert session.run("cancel", session.directory.name).returncode == 0
    page.wait_for_selector('.Toastify__toast:has-text("The run is ending")')


def test_idle(here: Here) -> None:
    """A page that is open but still does not count as use; a busy kernel and busy workers do."""
    session = Session(here, "--idle", "7s")  # a kernel starts within that
    kernel = session.server.kernel()
    began = time.monotonic()
    kernel.run("import hpcml, time; client = hpcml.connect(); time.sleep(8)")
    kernel.run("waiting = client.submit(time.sleep, 8)")
    page, states = session.server.connect("/hpcml/session"), [""]
    while states[-1] != "ending":
        states.append(json.loads(page.recv())["state"])
    took = time.monotonic() - began
    page.send("saved")
    assert took > 8 + 8 + 6, (took, states)
    assert states[-2:] == ["idle", "ending"]
    found = session.end()
    assert (found["exit_status"], found["message"]) == (0, "JupyterLab ended: the session was idle for 7 s")


def test_the_server_is_killed(here: Here) -> None:
    """Kernels, terminals and what they started are in sessions of their own; they do not outlive the run all the same."""
    session = Session(here)
    kernel = session.server.kernel()
    kernel.run("import threading, time; threading.Thread(target=time.sleep, args=(300,), daemon=True).start()")
    session.server.table("POST", "/api/terminals")
    os.kill(int(session.facts["pid"]), signal.SIGKILL)
    found = session.end()
    assert (found["exit_status"], found["message"]) == (137, "the script was killed by SIGKILL")
