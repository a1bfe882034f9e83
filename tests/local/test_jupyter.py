"""A real JupyterLab under the local site: who gets in, what its kernels can do, what listens, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jupyterlab", reason="hpcml[jupyter] is not installed here")
import websocket

from hpcml import errors
from jupyter_run import Session, tunnelled
from notebook_api import Jupyter, Kernel

pytestmark = pytest.mark.local

MEAN = """
import hpcml, dask.array as da
client = hpcml.connect()
x = da.random.default_rng(0).normal(size=(2000, 100), chunks=(500, 100))
print(sorted({client.submit(lambda: __import__("os").getpid(), pure=False).result()} - {__import__("os").getpid()}) != [],
      abs(float(x.mean().compute())) < 0.1, hpcml.run.id)
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session under a home that has a careless Jupyter configuration, started under a careless umask."""
    home = tmp_path_factory.mktemp("home")
    careless = {
        "token": "", "allow_origin": "*", "disable_check_xsrf": True, "allow_remote_access": True, "ip": "0.0.0.0",
    }  # fmt: skip
    for folder in (home / ".jupyter", home / "note books"):
        folder.mkdir()
        (folder / "jupyter_server_config.json").write_text(json.dumps({
            "ServerApp": {**careless, "sock_mode": "0777"}, "IdentityProvider": {"token": ""},
            "KernelManager": {"transport": "tcp"}}))  # fmt: skip
    (home / "note books" / "zmq.py").write_text("raise RuntimeError('a module of the user stood in for a library')\n")
    (home / "note books" / "helper.py").write_text("def double(x): return 2 * x\n")
    before = os.umask(0)
    try:
        made = Session(home, "--nodes", "2")
    finally:
        os.umask(before)
    yield made
    if made.status()["phase"] != "ended":  # where there is no browser, whose test ends it
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


def test_a_tunnel_of_this_machine_leads_to_it(session: Session) -> None:
    with tunnelled(session) as port:
        url = f"http://127.0.0.1:{port}/api/status"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url, timeout=20)
        asked = urllib.request.Request(url, headers={"Authorization": f"token {session.token}"})
        with urllib.request.urlopen(asked, timeout=20) as answer:  # noqa: S310 - it is http
            assert json.load(answer)["started"] == session.facts["identity"]
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(url, timeout=20)


def test_it_says_where_it_is(session: Session) -> None:
    facts = session.facts
    assert facts["path"] == "/lab"
    assert session.server.table("GET", facts["probe"])["started"] == facts["identity"]
    assert int(facts["pid"]) in session.processes()
    assert "JupyterLab runs" in session.status()["message"]
    assert f"hpcml tunnel --service jupyter {session.directory.name}" in session.status()["jupyter"]


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
    for path in (session.folder, *session.folder.rglob("*")):
        mode = path.lstat().st_mode
        assert path.lstat().st_uid == os.getuid()
        assert not stat.S_ISLNK(mode)
        assert mode & 0o077 == 0, path
    assert Path(session.server.path).lstat().st_mode == stat.S_IFSOCK | 0o600
    assert Path(session.facts["token_file"]).stat().st_mode == stat.S_IFREG | 0o600
    ipc = [path for path in (session.folder / "k").iterdir() if kernel.id in path.name and path.name[-1] in "12345"]
    assert len(ipc) == 5


def test_nothing_listens_on_a_port(session: Session, kernel: Kernel) -> None:
    """Neither the server nor a kernel, whose forked children's output has a socket of its own."""
    code = "import os, sys\nif os.fork() == 0:\n    print('from a fork', flush=True)\n    os._exit(0)\nos.wait()\nimport time; time.sleep(1)"
    assert "from a fork" in kernel.run(code)
    session.server.table("POST", "/api/terminals")
    ours = session.processes()
    lines = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    listening = {pid for pid in ours for line in lines if f"pid={pid}," in line}
    assert listening  # scheduler and workers do, behind TLS
    assert {ours[pid].split(" -m ")[1].strip() for pid in listening} <= {
        "hpcml.node scheduler",
        "hpcml.node worker",
    }


def test_the_token_is_nowhere_else(session: Session, kernel: Kernel) -> None:
    assert "JUPYTER_TOKEN" not in kernel.run("import os; print(dict(os.environ))")
    address = f"/api/none?token={session.token}"
    assert session.server.request("GET", address, Referer=f"http://localhost{address}")[0] == 404
    session.until(lambda: "404 GET /api/none" in session.log())  # it is written down, without the token
    for pid, line in session.processes().items():
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
            found = _work(context, page, session, port)
        finally:
            page.screenshot(path=str(session.home / "last.png"))
            browser.close()
    assert "written before the end" in _notebook(session)
    assert "may not have saved" not in session.log()
    assert found["exit_status"] == errors.CANCELLED  # also near the time limit
    files = list(session.directory.rglob("*"))
    assert not [path for path in files if path.is_file() and session.token.encode() in path.read_bytes()]


def _work(context: Any, page: Any, session: Session, port: int) -> dict[str, Any]:
    """Do what a user does, to the end of the run; return its status."""
    page.goto(f"http://127.0.0.1:{port}/lab?reset&token={session.token}")
    page.click('.jp-LauncherCard[data-category="Notebook"][title*="hpcml (this run)"]')
    page.wait_for_selector('#jp-main-statusbar :text("hpcml (this run) | Idle")')
    _type(page, CELL)
    output = page.locator('.jp-OutputArea-output:has-text("computed 100000 on 2 workers")')

    def ran() -> bool:
        """Run the cell; JupyterLab drops a cell that is run before the kernel is connected, so look and run it again."""
        page.click(".jp-Notebook .jp-Cell:first-child .cm-content")
        page.keyboard.press("Control+Enter")
        page.wait_for_timeout(1000)
        return bool(page.locator('.jp-Cell:first-child .jp-InputPrompt:has-text("[ ]")').count() == 0)

    session.until(ran)
    output.first.wait_for()
    page.keyboard.press("Shift+Enter")
    page.wait_for_selector(".jp-Notebook .jp-Cell:nth-child(2)")
    page.screenshot(path=str(session.home / "cell.png"))
    _look_at_the_dashboard(context, page, session, port)
    _type(page, "# written before the time limit")
    (session.directory / "attempts/0/time-limit").touch()  # as the batch script does when Slurm tells it
    page.wait_for_selector('.Toastify__toast:has-text("The time limit is near")')
    session.until(lambda: "before the time limit" in _notebook(session))
    _type(page, "# written before the end")
    assert session.hpcml("cancel", session.directory.name).returncode == 0
    page.wait_for_selector('.Toastify__toast:has-text("The run is ending")')
    return session.ended()


def _type(page: Any, text: str) -> None:
    page.click(".jp-Notebook .jp-Cell:last-child .cm-content")
    page.keyboard.press("Control+End")
    page.keyboard.insert_text(text)


def _notebook(session: Session) -> str:
    return (session.notebooks / "Untitled.ipynb").read_text()


def _look_at_the_dashboard(context: Any, page: Any, session: Session, port: int) -> None:
    """The link of the client leads to the run's dashboard, whose websocket speaks; dask-labextension has it too."""
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
    page.click('[data-id="dask-dashboard-launcher"]')
    page.wait_for_selector('.dask-DashboardListing-item:has-text("Task Stream"), button:has-text("TASK STREAM")')
    page.screenshot(path=str(session.home / "dashboard.png"))


def test_idle(tmp_path: Path) -> None:
    """A page that is open but still does not count as use; a busy kernel and busy workers do."""
    session = Session(tmp_path, "--idle", "5s")
    kernel = session.server.kernel()
    began = time.monotonic()
    kernel.run("import hpcml, time; client = hpcml.connect(); time.sleep(6)")
    kernel.run("waiting = client.submit(time.sleep, 6)")
    page, states = session.server.connect("/hpcml/session"), [""]
    while states[-1] != "ending":
        states.append(json.loads(page.recv())["state"])
    took = time.monotonic() - began
    page.send("saved")
    assert took > 6 + 6 + 4, (took, states)
    assert states[-2:] == ["idle", "ending"]
    found = session.ended()
    assert (found["exit_status"], found["message"]) == (0, "JupyterLab ended: the session was idle for 5 s")


def test_the_server_is_killed(tmp_path: Path) -> None:
    """Kernels, terminals and what they started are in sessions of their own; they do not outlive the run all the same."""
    session = Session(tmp_path)
    kernel = session.server.kernel()
    kernel.run("import threading, time; threading.Thread(target=time.sleep, args=(300,), daemon=True).start()")
    session.server.table("POST", "/api/terminals")
    os.kill(int(session.facts["pid"]), signal.SIGKILL)
    found = session.ended()
    assert (found["exit_status"], found["message"]) == (137, "the script was killed by SIGKILL")
