"""A Jupyter run's decisions: its plan, its options, its configuration, and what its pages are told."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.cli import common, jupyter
from hpcml.errors import START_FAILED, NotFoundError, UsageError
from hpcml.kinds.dask.node.jupyter import config as notebook_config
from hpcml.kinds.dask.node.jupyter import server
from hpcml.kinds.dask.node.jupyter.server import Session
from hpcml.node import script_environment
from hpcml.node.context import Context
from hpcml.paths import RunPaths
from hpcml.plan import make_plan
from hpcml.request import record as request
from hpcml.settings import Settings
from hpcml.sites import schema, settings_layers
from hpcml.workload_forms import Form

PLACE = make_plan.RunLocation(Path("/runs/jupyter-20261121-074500-1a2b"), "/usr/bin/python3", "0")


def settings(**values: Any) -> Settings:
    spec = request.RunRequest.of(Path("/home/me/jupyter"), (), Path("/home/me/notes"), form=Form.JUPYTER, **values)
    return make_plan.plan(settings_layers.build(schema.Site, settings_layers.Layers()), spec, PLACE).inside


def context(run: Path, **values: Any) -> Context:
    paths = RunPaths(run)
    paths.attempt(0).directory.mkdir(parents=True)
    return Context(paths, paths.attempt(0), 0, settings(**values), "n1", ("n1",))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="hpcml-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


def test_sockets_of_kernels_fit_below_the_longest_folder(tmp_path: Path) -> None:
    """unix(7): 107 bytes and a zero."""
    there = context(tmp_path)
    name = "kernel-01234567-89ab-cdef-0123-456789abcdef-ipc-5"
    longest = "/" + "x" * (there.socket_room - 1) + "/hpcml-12345678/k/" + name
    assert len(longest) <= 107
    assert script_environment.folder(there) == "/home/me/notes"


@pytest.mark.parametrize(("text", "seconds"), [("OFF", 0.0), ("1h30m", 5400.0), ("5", 5.0)])
def test_idle_times(text: str, seconds: float) -> None:
    assert common.parse_idle(text) == seconds


@pytest.mark.parametrize("text", ["", "4s", "never", "-5"])
def test_what_is_no_idle_time(text: str) -> None:
    with pytest.raises(UsageError) as error:
        common.parse_idle(text)
    assert error.value.place == "--idle"
    assert "--idle off" in error.value.hint


def test_the_folder_for_notebooks(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").touch()
    assert jupyter.notebook_folder(tmp_path, "") == tmp_path
    assert jupyter.notebook_folder(tmp_path, "notes") == tmp_path / "notes"
    for wrong, why in (("none", "does not exist"), ("file", "is not a folder")):
        with pytest.raises(NotFoundError, match=why):
            jupyter.notebook_folder(tmp_path, wrong)


def test_the_configuration_is_closed(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("traitlets")
    places = notebook_config.make_places(folder)
    made = notebook_config.options(context(tmp_path), places, "secret")
    assert made.ServerApp.sock == str(folder / "jupyter.sock")
    assert (made.ServerApp.sock_mode, made.KernelManager.transport) == ("0600", "ipc")
    assert (made.ServerApp.allow_origin, made.ServerApp.disable_check_xsrf) == ("", False)
    assert made.ServerApp.allow_remote_access is False
    assert made.IdentityProvider.token == "secret"  # noqa: S105 - no secret
    assert made.ServerProxy.servers["dashboard"]["unix_socket"] == str(folder / "dashboard.sock")
    assert "port" not in made.ServerApp
    assert {place.stat().st_mode & 0o777 for place in places[1:]} == {0o700}


@pytest.mark.parametrize(
    ("mode", "outer", "mine", "good"),
    [(0o600, 0o700, True, True), (0o660, 0o700, True, False), (0o600, 0o755, True, False), (0o600, 0o700, False, False)],
)  # fmt: skip
def test_a_socket_that_others_reach_is_refused(
    folder: Path, mode: int, outer: int, mine: bool, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, me = folder / "s", os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me if mine else me + 1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(mode)
        folder.chmod(outer)
        if good:
            notebook_config.check_socket(path)
        else:
            with pytest.raises(notebook_config.UnsafeError):
                notebook_config.check_socket(path)


def test_a_link_in_the_place_of_a_socket_is_refused(folder: Path) -> None:
    (folder / "s").symlink_to("/dev/null")
    with pytest.raises(notebook_config.UnsafeError):
        notebook_config.check_socket(folder / "s")


def test_the_kernel_that_is_offered(folder: Path) -> None:
    notebook_config.write_kernel(folder / "data")
    said = json.loads((folder / "data/kernels/python3/kernel.json").read_text())
    assert said["display_name"] == "hpcml (this run)"
    assert said["argv"][1:4] == ["-P", "-m", "hpcml.kinds.dask.node.jupyter.private_kernel"]
    assert not said["metadata"]["debugger"]


PAGE = """
const sent = [];
class WebSocket { constructor() { globalThis.line = this; } send(word) { sent.push(word); } }
globalThis.window = globalThis;
globalThis.WebSocket = WebSocket;
require(process.argv[1]);
const widget = {context: {model: {dirty: true}, save: async () => { if (globalThis.full) throw 'full'; }}};
const app = {
  serviceManager: {serverSettings: {wsUrl: 'ws://x', token: ''}}, shell: {widgets: () => [widget]}, restored: Promise.resolve(),
  commands: {execute: async (name, {type}) => sent.push(type), addCommand: () => 0, hasCommand: () => false}
};
const loaded = window._JUPYTERLAB['hpcml-session'].get('./extension').then(made => made().default.activate(app));
loaded.then(async () => {
  for (globalThis.full of [true, false]) await globalThis.line.onmessage({data: JSON.stringify({state: 'ending', words: ''})});
  console.log(sent.join());
});
"""


def test_a_page_that_could_not_save_does_not_say_so(folder: Path) -> None:
    if not (node := shutil.which("node")):
        pytest.skip("there is no node")
    notebook_config.write_extension(folder)
    (script,) = folder.rglob("*.js")
    done = subprocess.run([node, "-e", PAGE, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "error,saved\n"


class Server:
    """What a session asks of its server."""

    stopped = 0

    def stop(self) -> None:
        self.stopped += 1


class Page:
    """An open page, by what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def write_message(self, message: dict[str, str]) -> None:
        self.told.append(message["state"])


def test_pages_hear_of_the_end_and_save_first(tmp_path: Path) -> None:
    async def play() -> None:
        server, page, other = Server(), Page(), Page()
        session = Session(context(tmp_path), server, Path("/none"))
        session.open(page)
        assert page.told == ["running"]
        session.terminate()
        session.terminate()
        session.open(other)  # or one whose connection was broken
        assert (page.told, other.told) == (["running", "ending"], ["ending"])
        session.hear(page, "saved")
        await asyncio.sleep(0.05)
        assert server.stopped == 0
        session.hear(other, "saved")
        assert session.ending is not None
        await asyncio.wait_for(session.ending, 5)
        assert (server.stopped, session.signalled) == (1, True)

    asyncio.run(play())


@pytest.mark.parametrize("opened", [True, False])
def test_a_page_that_was_closed_is_not_waited_for(tmp_path: Path, opened: bool) -> None:
    async def play() -> None:
        server, page = Server(), Page()
        session = Session(context(tmp_path), server, Path("/none"))
        if opened:
            session.open(page)
        session.end("it ends")
        if opened:
            await asyncio.sleep(0.05)
            assert server.stopped == 0
            session.close(page)
        assert session.ending is not None
        await asyncio.wait_for(session.ending, 9)  # for pages that save it waits 10 s
        assert server.stopped == 1

    asyncio.run(play())


def test_an_idle_session_ends_and_knows_why(tmp_path: Path) -> None:
    async def play() -> None:
        server: Any = Server()
        kernels = SimpleNamespace(list_kernel_ids=list, last_kernel_activity=None)
        server.kernel_manager, server.web_app = kernels, SimpleNamespace(settings={"kernel_manager": kernels})
        session = Session(context(tmp_path, idle=60.0), server, Path("/none"))
        session.used = 0.0
        before = time.time()
        await session._look_for_idleness()  # this look comes late: pages are warned for 15 s all the same
        assert (session.state, session.ending) == ("idle", None)
        assert before <= session.used + 60.0 - 15.0 <= time.time()
        session.used -= 15.0
        await session._look_for_idleness()
        assert session.ending is not None
        await asyncio.wait_for(session.ending, 5)
        assert (server.stopped, session.ended) == (1, "the session was idle for 60 s")

    asyncio.run(play())


def test_a_session_that_never_answers_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serves: Any = Server()
    session = Session(context(tmp_path, idle=0.0), serves, Path("/none"))
    monkeypatch.setattr(server, "ANSWER_WITHIN", 0.0)
    asyncio.run(server._announce(session, tmp_path / "none.sock", "token"))
    assert (serves.stopped, session.status) == (1, START_FAILED)


def test_somebody_who_goes_on_ends_no_idle_session(tmp_path: Path) -> None:
    async def play() -> None:
        page = Page()
        session = Session(context(tmp_path), Server(), Path("/none"))
        session.open(page)
        session.state, before = "idle", session.used
        session.hear(page, "stay")
        assert page.told == ["running", "running"]
        assert session.used >= before

    asyncio.run(play())


@pytest.mark.parametrize("told", [False, True])
def test_a_session_that_was_told_to_end_has_the_status_of_it(
    told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = context(tmp_path / "run")
    handlers: dict[int, Any] = {}

    async def serve() -> None:
        if told:
            handlers[signal.SIGTERM]()
            await asyncio.sleep(0)

    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        there.attempt.link.write_text(json.dumps({"sockets": short}))
        loop = SimpleNamespace(add_callback=lambda *_: None, add_callback_from_signal=lambda function: function())
        lab = SimpleNamespace(io_loop=loop, start=lambda: asyncio.run(serve()), stop=lambda: None)
        monkeypatch.setattr(server, "load", lambda: there)
        monkeypatch.setattr(server, "_server", lambda *_: (lab, "token"))
        monkeypatch.setattr(server, "add_handlers", lambda *_: None)
        monkeypatch.setattr(script_environment, "restore", lambda _: None)
        monkeypatch.setattr(signal, "signal", handlers.__setitem__)
        assert server.main() == (128 + signal.SIGTERM if told else 0)
