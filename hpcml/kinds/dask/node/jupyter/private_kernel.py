"""A kernel of a Jupyter run: ipykernel, without the one port that it opens beside its sockets.

What a cell's forked processes print comes back to ipykernel through a ZeroMQ socket on a random port of loopback, which
any user of the node may connect to (ipykernel 7.4, ``IOPubThread._setup_pipe_in``). Here that socket is a unix socket
in the kernel's own folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import zmq
from ipykernel import iostream, kernelapp
from zmq.eventloop.zmqstream import ZMQStream

from hpcml import listeners
from hpcml.node.script import interpreter_state

_FOR_THE_SERVER = ("JUPYTER_NO_CONFIG", "JUPYTER_RUNTIME_DIR")


class PrivateIOPubThread(iostream.IOPubThread):  # type: ignore[misc]
    """ipykernel's thread for output, whose door for forked processes is a file that only the user can reach."""

    def _setup_pipe_in(self) -> None:
        self._pipe_uuid = os.urandom(16)
        self._pipe_path = f"{_folder()}/out-{os.getpid()}"
        pipe_in = self.socket.context.socket(zmq.PULL)
        pipe_in.linger = 0
        listeners.bind_zmq(listeners.KERNEL_OUTPUT, pipe_in, self._pipe_path)
        self._pipe_in = ZMQStream(pipe_in, self.io_loop)
        self._pipe_in.on_recv(self._handle_pipe_msg)

    def _setup_pipe_out(self) -> tuple[Any, Any]:
        context = zmq.Context()  # a context does not outlive a fork
        pipe_out = context.socket(zmq.PUSH)
        pipe_out.linger = 3000
        pipe_out.connect(f"ipc://{self._pipe_path}")
        return context, pipe_out


def _folder() -> Path:
    """Return the folder of the kernel's connection file: node-local, 0700."""
    return Path(sys.argv[sys.argv.index("-f") + 1]).parent


def main() -> None:
    """Run the kernel that the server's command line describes."""
    for name in _FOR_THE_SERVER:  # what a cell or its children do with Jupyter is their own affair
        os.environ.pop(name, None)
    sys.path.insert(
        0, os.environ.pop("HPCML_NOTEBOOK_FOLDER", "")
    )  # modules beside the notebook, which -P kept away while the kernel itself was imported
    interpreter_state.install_kind()  # what a cell opens as a cluster is the run's
    interpreter_state.name_originals(os.environ.pop("HPCML_CODE_OF", ""))
    kernelapp.IOPubThread = PrivateIOPubThread
    umask = os.umask(0o077)  # for its sockets
    kernel = kernelapp.IPKernelApp.instance()
    kernel.initialize()
    os.umask(umask)
    kernel.start()


if __name__ == "__main__":
    main()
