"""How JupyterLab is set up in a run: all of it here, nothing from the user's or the machine's Jupyter configuration.

Honoured are: which server extensions the environment has switched on, kernels (``~/.local/share/jupyter/kernels``), and
JupyterLab's own settings and workspaces (``~/.jupyter/lab``), which are about looks. What could open the server to
others (``jupyter_server_config.py`` and its kin) is not read.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcml.node.context import Context

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp
    from traitlets.config import Config


DASHBOARD = "dashboard"  # the path below which the run's dashboard is passed on: /dashboard/status
_ALWAYS = ("jupyterlab", "jupyter_server_terminals", "jupyter_server_proxy", "dask_labextension")
_LONGEST_SOCKET = 107  # bytes of a unix socket's path, unix(7)
EXTENSION = "hpcml-session"
# A module federation container by hand (jupyterlab, "prebuilt extensions"): no build, and nothing shared but the app.
_PAGE_SCRIPT = """\
(() => {
  const plugin = {
    id: 'hpcml-session:plugin',
    description: 'Saves all documents before the run ends, and shows a warning.',
    autoStart: true,
    activate: app => {
      const {wsUrl, token, appendToken} = app.serviceManager.serverSettings;
      const url = new URL('hpcml/session', wsUrl);
      if (appendToken && token) url.searchParams.set('token', token);
      let line = null, last = '';
      const say = (message, type, actions) =>
        app.commands.execute('apputils:notify', {message, type, options: {autoClose: false, actions}});
      app.commands.addCommand('hpcml-session:stay', {
        label: 'Continue this session', execute: () => line.send('stay')
      });
      const save = async () => {
        if (app.commands.hasCommand('docmanager:save-all')) await app.commands.execute('docmanager:save-all');
        const unsaved = [...app.shell.widgets('main')].filter(widget => widget.context?.model?.dirty);
        await Promise.all(unsaved.map(widget => widget.context.save()));
      };
      const heed = async ({state, words}) => {
        const stay = [{label: 'Continue', commandId: 'hpcml-session:stay', args: {}}];
        if (words && words !== last) say(words, 'warning', state === 'idle' ? stay : []);
        last = words;
        if (state === 'running') return;
        try {
          await save();
        } catch (error) {
          say('Not all documents could be saved: ' + error, 'error', []);
          return;
        }
        if (state === 'ending') line.send('saved');
      };
      const follow = () => {
        line = new WebSocket(url);
        line.onmessage = message => heed(JSON.parse(message.data));
        line.onclose = () => setTimeout(follow, 5000);
      };
      app.restored.then(follow);
    }
  };
  (window._JUPYTERLAB = window._JUPYTERLAB || {})['hpcml-session'] = {
    init: () => {},
    get: () => Promise.resolve(() => ({__esModule: true, default: plugin}))
  };
})();
"""


class UnsafeError(Exception):
    """Raised when the server is not as private as it was meant to be."""


class Places(NamedTuple):
    """The node-local files of the server, all in one folder of the user's own (0700)."""

    socket: Path
    runtime: Path
    config: Path
    data: Path
    extensions: Path


def make_places(folder: Path) -> Places:
    """Make the server's folders. Kernels' sockets are in ``k``: their path is as long as a socket's may be."""
    places = Places(folder / "jupyter.sock", folder / "k", folder / "config", folder / "data", folder / "extensions")
    for place in places[1:]:
        place.mkdir(mode=0o700)
    return places


def options(context: Context, places: Places, token: str) -> Config:
    """Return the server's configuration."""
    from traitlets.config import Config

    settings = context.settings
    proxied = {
        "command": [],
        "unix_socket": str(places.socket.with_name("dashboard.sock")),
        "launcher_entry": {"title": "Dask dashboard", "path_info": f"{DASHBOARD}/status"},
    }
    tables: dict[str, dict[str, Any]] = {
        "Application": {"log_level": "ERROR"},  # while it starts: an extension that fails is an error
        "ServerApp": {
            "sock": str(places.socket),
            "sock_mode": "0600",
            "allow_origin": "",
            "allow_remote_access": False,
            "disable_check_xsrf": False,
            "allow_root": True,  # who runs hpcml as root runs all of it as root
            "open_browser": False,
            "root_dir": settings.code.cwd,
            "jpserver_extensions": server_extensions(),
        },
        "IdentityProvider": {"token": token},
        "PasswordIdentityProvider": {"hashed_password": "", "allow_password_change": False},
        "KernelManager": {"transport": "ipc", "shutdown_wait_time": 2.0},
        "MultiKernelManager": {"default_kernel_name": "python3"},
        "LabApp": {
            "extra_labextensions_path": [str(places.extensions)],
            "extension_manager": "readonly",  # what the nodes' environment holds is not changed from a page
            "news_url": None,
            "check_for_updates_class": "jupyterlab.handlers.announcements.NeverCheckForUpdate",
        },
        "ServerProxy": {"servers": {DASHBOARD: proxied}},
    }
    return Config(tables)


def server_extensions() -> dict[str, bool]:
    """Return the server extensions that the environment switches on; what else its files say is not read."""
    from importlib.util import find_spec

    chosen = {name: find_spec(name) is not None for name in _ALWAYS}
    for path in sorted(Path(sys.prefix, "etc/jupyter/jupyter_server_config.d").glob("*.json")):
        try:
            extensions = json.loads(path.read_text()).get("ServerApp", {}).get("jpserver_extensions", {})
            chosen |= {name: bool(on) for name, on in extensions.items() if isinstance(name, str)}
        except (OSError, ValueError, AttributeError) as error:
            print(f"hpcml: Jupyter does not use the settings in {path}: {error}", file=sys.stderr)
    return chosen


def write_kernel(data: Path) -> None:
    """Write the run's kernel. It bears Python's usual name, so notebooks open in it and open elsewhere too."""
    kernel = {
        "argv": [sys.executable, "-P", "-m", "hpcml.kinds.dask.node.jupyter.private_kernel", "-f", "{connection_file}"],
        "display_name": "hpcml (this run)",
        "language": "python",
        "metadata": {"debugger": False},  # the debugger's server would listen on a port of loopback, open to all
        "env": {"DASK_DISTRIBUTED__DASHBOARD__LINK": f"/{DASHBOARD}/status"},
    }
    _write_json(data / "kernels" / "python3" / "kernel.json", kernel)


def write_overrides(config: Path) -> None:
    """Write defaults of JupyterLab's settings, which the user's own settings still go before."""
    overrides = {
        "dask-labextension:plugin": {
            "defaultURL": f"{DASHBOARD}/",
            "hideClusterManager": True,
            "browserDashboardCheck": True,
        },
        "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
        "@jupyterlab/docmanager-extension:plugin": {"autosaveInterval": 30},
    }
    _write_json(config / "labconfig" / "default_setting_overrides.json", overrides)


def _write_json(path: Path, table: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text(json.dumps(table))


def close_dask_labextension() -> None:
    """Keep dask-labextension from starting clusters: they would listen on loopback and let everybody in."""
    import dask.config

    refused = {"module": __name__, "class": "NoCluster", "args": [], "kwargs": {}}
    dask.config.set({"labextension.factory": refused, "labextension.initial": []})


class NoCluster:
    """What dask-labextension makes when it is asked for a cluster: a RuntimeError that says why."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(
            "hpcml allows only one Dask cluster in JupyterLab; "
            "connect to the cluster of this session: client = hpcml.connect()"
        )


def check(server: ServerApp, places: Places) -> None:
    """Refuse a server (UnsafeError) that came out less private than it was meant to be, whatever made it so."""
    from jupyter_server.auth.identity import PasswordIdentityProvider

    settings = server.web_app.settings
    longest = len(os.fsencode(places.runtime)) + len("/kernel--ipc-5") + 36
    wrong = {
        "the Jupyter server also listens outside its Unix socket": server.sock != str(places.socket),
        "the Jupyter server has no token": not server.identity_provider.token,
        "the Jupyter server does not use its standard identity provider": type(server.identity_provider)
        is not PasswordIdentityProvider,
        "the Jupyter server accepts requests from other web sites": bool(
            server.allow_origin
            or server.allow_origin_pat
            or server.disable_check_xsrf
            or settings.get("disable_check_xsrf")
        ),
        "the Jupyter server does not check the Host header": bool(server.allow_remote_access),
        "the Jupyter kernels use TCP ports": server.config.KernelManager.transport != "ipc",
        f"the paths of the Jupyter kernels' sockets need {longest} bytes (maximum: {_LONGEST_SOCKET})": longest
        > _LONGEST_SOCKET,
    }
    for problem, is_so in wrong.items():
        if is_so:
            raise UnsafeError(problem)


def check_socket(socket: Path) -> None:
    """Raise UnsafeError if an existing socket is not 0600 and the user's own, in a folder that is 0700 and so too."""
    for path, mode in ((socket, stat.S_IFSOCK | 0o600), (socket.parent, stat.S_IFDIR | 0o700)):
        status = path.lstat()
        if status.st_mode != mode or status.st_uid != os.getuid():
            sentence = f"{path} has mode {status.st_mode:o} and belongs to user {status.st_uid}"
            raise UnsafeError(f"{sentence}, but must have mode {mode:o} and belong to user {os.getuid()}")


def write_extension(folder: Path) -> None:
    """Write the JupyterLab extension that has open pages save all documents before the session ends."""
    static = folder / EXTENSION / "static"
    static.mkdir(parents=True, mode=0o700)
    (static / "remoteEntry.js").write_text(_PAGE_SCRIPT)
    build = {"load": "static/remoteEntry.js", "extension": "./extension"}
    lab = {"extension": True, "_build": build}
    package = {"name": EXTENSION, "version": "1.0.0", "description": "Part of hpcml.", "jupyterlab": lab}
    (folder / EXTENSION / "package.json").write_text(json.dumps(package))
