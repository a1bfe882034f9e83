"""The script of a Jupyter run: JupyterLab on a unix socket, with kernels that are clients of this very run.

``python -m hpcml.node.jupyter.server`` is started by the supervisor in the place of a user's script. It ends with 0
when the user shut it down or nobody used it for long, with 143 when it was told to end, with 80 when it could not
start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml.errors import START_FAILED
from hpcml.node import files, script_environment
from hpcml.node.jupyter import config, save_extension
from hpcml.node.jupyter.session import Session, add_handlers, ask
from hpcml.node.security import tls
from hpcml.node.settings import Context, load

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

TERMINATED = 128 + signal.SIGTERM
ANSWER_WITHIN = 60.0  # seconds from the start until the server has to answer itself
PROBE = "/api/status"  # what an authenticated GET is sent to; its `started` is the server's identity


def main() -> int:
    """Serve until the user, the idle time, the time limit or a cancellation ends it; return the exit status."""
    context = load()
    control = files.read_json(context.attempt.control) or {}
    folder = Path(control["socket"]).parent  # node-local, 0700, removed by the supervisor whatever happens here
    places = config.make_places(folder)
    try:
        server, token = _server(context, places)
    except ImportError as error:
        hint = "Install hpcml with its extra 'jupyter' there."
        print(f"hpcml: the run's environment lacks JupyterLab: {error}. {hint}", file=sys.stderr)
        return START_FAILED
    except config.UnsafeError as error:
        print(f"hpcml: JupyterLab was not started: {error}.", file=sys.stderr)
        return START_FAILED
    script_environment.restore(os.environ)  # for kernels and terminals
    server.io_loop.add_callback(
        os.umask, context.settings.code.umask
    )  # for notebooks too, once the server's files are made
    session = Session(context, server, folder / "dashboard.sock")
    add_handlers(server, session)
    signal.signal(signal.SIGTERM, lambda *_: server.io_loop.add_callback_from_signal(session.terminate))
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Jupyter would ask on a terminal, or print; Slurm sends them to all
    server.io_loop.add_callback(_announce, context, server, places.socket, token)
    server.io_loop.add_callback(session.watch)
    server.start()
    return TERMINATED if session.signalled else 0


def _server(context: Context, places: config.Places) -> tuple[ServerApp, str]:
    """Return the server, listening, and its token, which nobody learns but by the file in the attempt's ``secret``."""
    data = os.pathsep.join(filter(None, [str(places.data), os.environ.get("JUPYTER_PATH", "")]))
    os.environ.update(JUPYTER_RUNTIME_DIR=str(places.runtime), JUPYTER_NO_CONFIG="1", JUPYTER_PATH=data)
    tempfile.tempdir = str(places.config)  # where JUPYTER_NO_CONFIG makes its empty folder
    try:
        from jupyter_core.paths import jupyter_config_dir

        settings = Path(jupyter_config_dir())
    finally:
        tempfile.tempdir = None
    from jupyterlab.labapp import LabApp

    config.close_dask_labextension()
    config.write_kernel(places.data)
    config.write_overrides(settings)
    save_extension.write(places.extensions)
    token = tls.make_token(context.attempt)
    options = config.options(context, places, token)
    server: Any = LabApp.initialize_server(argv=[], config=options)
    server.log_level = "WARN"  # its words at the start are about Ctrl-C and an address that no browser takes
    config.check(server, places)
    return server, token


async def _announce(context: Context, server: ServerApp, socket: Path, token: str) -> None:
    """Write where JupyterLab is once it answers; end it if it never does."""
    deadline = time.monotonic() + ANSWER_WITHIN
    while True:
        try:
            identity = await asyncio.wait_for(ask(socket, PROBE, token), 5.0)
            config.check_socket(socket)
            break
        except (config.UnsafeError, OSError, ValueError, TimeoutError) as error:
            unsafe = isinstance(error, config.UnsafeError)
            if unsafe or time.monotonic() > deadline:
                what = f"is ended: {error}." if unsafe else f"does not answer: {error}"
                print(f"hpcml: JupyterLab {what}", file=sys.stderr)
                server.stop()
                return
            await asyncio.sleep(0.2)
    page = {"path": "/lab", "probe": PROBE, "token_file": str(context.attempt.jupyter_token)}
    files.write_service(context.attempt.service_of("jupyter"), context.node, socket, identity["started"], **page)


if __name__ == "__main__":
    sys.exit(main())
