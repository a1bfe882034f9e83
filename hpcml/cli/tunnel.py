"""``hpcml tunnel``: on a laptop it keeps a tunnel; on a login node it prints commands, or serves the laptop's hpcml."""

from __future__ import annotations

import argparse
import html
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import schedulers, units
from hpcml.cli import common
from hpcml.errors import NotFoundError, UsageError
from hpcml.services import OWN, Target, check_name
from hpcml.sites import settings_layers
from hpcml.sites.schema import Login
from hpcml.terminal import json_text, say, say_fitted, say_lines

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.remote.answers import Service
    from hpcml.remote.server import RemoteSession
    from hpcml.remote.tunnel import Tunnel
    from hpcml.runs import directories


def add_options(parser: ArgumentParser) -> None:
    """Add what this verb takes."""
    parser.epilog = "On a login node, hpcml tunnel RUN prints the ssh commands for a laptop that has no hpcml."
    common.add_run(parser)
    common.add_site(parser)
    common.add_json(parser, "print JSON, one line each time the tunnel opens")
    common.add_host(parser)
    parser.add_argument(
        "--service",
        metavar="NAME",
        default="",
        help="service to open: dashboard, jupyter or one that the run has named (default: jupyter in a session, else "
        "dashboard, else the first)",
    )
    parser.add_argument(
        "--to",
        metavar="PORT[@NODE]",
        default="",
        help="port to open. PORT: on the run's first node. PORT@n2 or PORT@rank:3: on that node.",
    )
    parser.add_argument("--open", action="store_true", help="open the address in a browser")
    parser.add_argument("--port", metavar="PORT", default="", help="local port (default: one fixed port per run)")
    parser.add_argument(
        "--route",
        metavar="ROUTE",
        default="",
        help="how to reach the run's node: direct (one ssh, with the login node as jump host), twohop (a second ssh, "
        "from the login node), or srun (sshd in a job step); default: login.route in the profile",
    )
    parser.add_argument(
        "--retry-for",
        metavar="TIME",
        default="10m",
        help="how long hpcml tries to restore a lost connection, and waits for a service that is not ready (default: "
        "10m)",
    )
    parser.add_argument("--patience", dest="retry_for", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for hidden in ("--serve", "--relay", "--key"):  # what the laptop's hpcml says to the login node's
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)


def run(options: Namespace) -> int:
    """``hpcml tunnel RUN``; UsageError for --to with --service."""
    if options.to and options.service:
        raise UsageError("--to and --service were given", place="hpcml tunnel", hint="Remove one of them.")
    if options.to:
        Target.of(options.to)
        options.service = options.to
    elif options.service and not Target.named(options.service) and options.service not in OWN:
        check_name(options.service, "--service")
    if options.serve:
        return _serve(options)
    run = None if options.host else local_run(options)
    if run is not None and not run.paths.status.exists():
        return _bridge(options, run)
    try:
        login = login_of(options)
    except UsageError:
        if run is None:
            raise
        return _bridge(options, run)  # which says how it ended: no cluster is known that could be meant
    return _print_commands(options) if login is None else _keep(options, login)


def local_run(options: Namespace) -> directories.Run | None:
    """Return the run if it is one of this machine's local site, whose sockets can be reached without ssh."""
    try:
        run = common.find_run(options)
    except NotFoundError:
        return None
    return run if not run.job and run.submission else None


def _bridge(options: Namespace, run: directories.Run) -> int:
    """Keep a tunnel to a run of this machine."""
    from hpcml.remote import ssh
    from hpcml.remote.tunnel import Tunnel, TunnelRequest

    request = TunnelRequest(run.id, options.service, "auto", _port(options.port), _retry_for(options))
    common.end_by_signals()
    shown = _Shown(options, ssh.places().files)
    tunnel = Tunnel(run, request, _say, shown.show)
    shown.name = lambda: tunnel.service
    return _until_its_end(tunnel, shown, lambda: _again(options, run.id))


def _again(options: Namespace, run: str, host: str = "") -> str:
    """Return the command to open a tunnel again that the user closed, with the same options."""
    command = ["hpcml", *(["--host", host] if host else []), "tunnel"]
    command += _of_service(options)
    command += [word for name in ("port", "route") if (text := getattr(options, name)) for word in (f"--{name}", text)]
    command += ["--open"] if options.open else []
    return f"The tunnel is closed. The run continues. To open the tunnel again: {shlex.join([*command, run])}"


def _of_service(options: Namespace) -> list[str]:
    option = "--to" if Target.named(options.service) else "--service"
    return [option, options.service] if options.service else []


def _retry_for(options: Namespace) -> float:
    return common.parsed(units.parse_seconds, options.retry_for, "--retry-for", "10m")


def _until_its_end(tunnel: Tunnel, shown: _Shown, closed: Callable[[], str]) -> int:
    """Keep a tunnel; where the user ends it, say what ``closed`` returns."""
    try:
        tunnel.run()
    except KeyboardInterrupt:
        _say("")
        _say(closed())
        return 130
    finally:
        tunnel.close()
        shown.remove()
    return 0


def login_of(options: Namespace, command: str = "tunnel") -> Login | None:
    """Return the way to the cluster, None on the cluster itself.

    ``--host`` is a site's name or what ssh is called with; without it, ``login.host`` of this machine's settings
    counts, unless Slurm is right here. UsageError if none of these names a login node.
    """
    from hpcml.remote import ssh

    site = options.site or ""
    assignments = [
        *(options.set or ()),
        *([f"login.route={route}"] if (route := getattr(options, "route", "")) else []),
    ]
    if options.host:
        return ssh.login_of(options.host, assignments, site=site, load=common.load_site)
    here = common.load_site(site, None, assignments).site
    if not schedulers.get(here.scheduler).ONE_MACHINE:
        return None
    if here.login.host:
        return here.login
    hint = f"Name the login node: hpcml --host user@login.example.org {command} RUN. Or set login.host in config.toml."
    raise UsageError("The login node is unknown", place=f"hpcml {command}", hint=hint)


# -- on the laptop -----------------------------------------------------------------------------------------------------


def _keep(options: Namespace, login: Login) -> int:
    from hpcml.remote import ssh
    from hpcml.remote.tunnel import Tunnel, TunnelRequest

    port = _port(options.port)
    retry_for = _retry_for(options)
    common.end_by_signals()
    connection = ssh.Connection(login)
    certificates = ssh.certificates(connection.settings)
    if warning := ssh.warning(certificates, None, time.time(), login.renew):
        _say(f"Note: {warning}.")
    shown = _Shown(options, connection.places.files, login.host)
    ask = _ask if sys.stdin.isatty() and sys.stderr.isatty() else None
    request = TunnelRequest(options.run, options.service, login.route, port, retry_for)
    tunnel = Tunnel(connection, request, _say, shown.show, ask)

    def warning_now() -> str:
        ends = tunnel.latest.ends if tunnel.latest else None
        return ssh.warning(certificates, ends, time.time(), login.renew)

    def closed() -> str:
        return _again(options, tunnel.latest.run if tunnel.latest else options.run, login.host)

    shown.warning, shown.name = warning_now, lambda: tunnel.service
    return _until_its_end(tunnel, shown, closed)


def _port(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and 1024 <= int(text) <= 65535):
        hint = "Use a port from 1024 to 65535."
        raise UsageError(f"'{text}' is not a valid port number", place="--port", hint=hint)
    return int(text)


def _say(text: str) -> None:
    say_fitted(text, sys.stderr)


def _ask(why: str) -> bool:
    """Tell the user why a login is needed and wait for Enter; it is ssh that asks for anything secret."""
    say_lines(why, sys.stderr)
    say("Press Enter to log in again, Ctrl-C to stop: ", sys.stderr, end="")
    return sys.stdin.readline() != ""


class _Shown:
    """Tells the user where the service is now, and opens the browser once."""

    def __init__(self, options: Namespace, folder: Path, host: str = "") -> None:
        self.options, self.folder, self.host = options, folder, host
        self.opened = False
        self.pages: list[Path] = []
        self.warning: Callable[[], str] = str
        self.name: Callable[[], str] = lambda: str(options.service)
        self.last: tuple[int, str] = (0, "")

    def show(self, port: int, service: Service, token: str, route: str) -> None:
        """Print the address; with the token only where nobody but the user reads it: on a terminal."""
        from hpcml.remote.routes import MEANING

        plain = f"http://127.0.0.1:{port}{service.path}"
        secret = f"{plain}?token={token}" if token else plain
        if self.options.json:
            record = {
                "url": plain,
                "port": port,
                "route": route,
                "node": service.node,
                "pid": os.getpid(),
                "token_file": service.token_file or None,
                "note": service.note,
            }
            say(json_text(record))
        elif self.last != (port, token):
            target = Target.named(self.name())
            title = f"port {target.port}" if target else self.name()
            _say(f"{title} on {service.node}: {MEANING[route]}. Ctrl-C ends the tunnel, not the run.")
            say(secret if sys.stdout.isatty() else plain)
            if token and not sys.stdout.isatty():
                command = shlex.join([*(["ssh", self.host] if self.host else []), "cat", service.token_file])
                _say(f"JupyterLab asks for a token. Paste the token that this command prints: {command}")
            if service.note:
                _say(f"Note: {service.note}")
            if warning := self.warning():
                _say(f"Note: {warning}.")
        else:
            _say(f"The tunnel is connected again, on the same port: {MEANING[route]}.")
        self.last = (port, token)
        if self.options.open and not self.opened:
            self.opened = True
            self._browse(secret if token else "", plain)

    def _browse(self, secret: str, plain: str) -> None:
        """Open the browser; an address with a token goes by a file of mode 0600, not by the browser's arguments."""
        import webbrowser

        address = plain
        if secret:
            descriptor, name = tempfile.mkstemp(prefix="open-", suffix=".html", dir=self.folder)  # 0600
            self.pages.append(Path(name))
            with os.fdopen(descriptor, "w") as file:
                file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(secret)}">\n')
            address = self.pages[-1].as_uri()
        if not webbrowser.open(address):
            _say("No browser started. Open the address yourself.")

    def remove(self) -> None:
        """Remove the pages with a token in them."""
        for page in self.pages:
            page.unlink(missing_ok=True)


# -- on the login node -------------------------------------------------------------------------------------------------


def run_of(options: Namespace) -> directories.Run:
    """Return the run that the options name, with the job that a person submitted for it."""
    from hpcml.runs import record

    return record.adopt(common.find_run(options))


def _print_commands(options: Namespace) -> int:
    """Print what to type on the laptop."""
    import socket

    from hpcml.remote import routes, tunnel_server
    from hpcml.remote.tunnel_target import Sought

    try:
        run = run_of(options)
    except NotFoundError as error:
        hint = f"{error.hint} On a laptop, name the login node: hpcml --host HOST tunnel {options.run}."
        raise NotFoundError(error.message, place=error.place, hint=hint) from error
    service = tunnel_server.service(run, options.service)
    site = common.load_site(options.site or "", None, options.set or ()).site
    login = _this_login(site.login, socket.gethostname()) or site.login.host or socket.getfqdn()
    name = Sought(run, options.service, 0.0).name
    port = _port(options.port) or routes.port_of(login, run.id, name)
    user = settings_layers.process_environment().get("USER", "")
    host = f"{user}@{login}" if user else login
    lines = tunnel_server.lines(service, login, user, port)
    if options.json:
        common.print_json({"run": run.id, "service": service._asdict(), "commands": [line for _, line in lines]})
        return 0
    command = shlex.join(["hpcml", "--host", host, "tunnel", *_of_service(options), run.id])
    for line in ("On your laptop, with hpcml:", f"  {command}", "", "Without hpcml:"):
        say(line)
    for when, line in lines:
        if when:
            say(f"  # {when}")
        say(f"  {line}")
    say()
    say(f"Then open http://127.0.0.1:{port}{service.path}")
    if service.note:
        say_fitted(f"Note: {service.note}", sys.stdout)
    if service.token_file:
        say(f"Paste the token that this command prints: ssh {host} cat {service.token_file}")
    return 0


def _this_login(login: Login, host: str) -> str:
    """Return the name of this very login node: the name of all of them may lead to another one each time."""
    short = host.partition(".")[0]
    return next((name for name in login.hosts if name.partition(".")[0] in (short, f"{short}-ext")), "")


def _serve(options: Namespace) -> int:
    """Do what the laptop's hpcml asks, and answer it by facts."""
    from hpcml.remote import tunnel_server

    session: RemoteSession | None = options.caller
    run = run_of(options)
    if options.serve == "relay":  # its input and output are the tunnel's
        tunnel_server.relay(run, tunnel_server.service(run, options.service), options.relay)
    if session is None:
        raise UsageError("Only hpcml on a laptop uses this option", place="--serve", hint="Remove --serve.")
    match options.serve:
        case "feed":
            patience = _retry_for(options) if options.service else math.inf
            tunnel_server.feed(run, lambda answer: session.say(standing=answer.as_table()), options.service, patience)
        case "hop":
            tunnel_server.hop(tunnel_server.service(run, options.service), lambda path: session.say(socket=path))
        case "prepare":
            session.say(relay=tunnel_server.prepare(run, options.key)._asdict())
        case other:
            raise NotFoundError(
                f"Unknown service '{other}'",
                place="--serve",
                hint="The laptop and the cluster have different versions of hpcml. Update the older version.",
            )
    return 0
