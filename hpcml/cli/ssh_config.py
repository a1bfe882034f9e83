"""``hpcml ssh-config``: names by which ssh, and so editors and rsync, reach the nodes of a run."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import safe_files, subprocesses, typed_json
from hpcml.cli import common, tunnel
from hpcml.config_trust import HPCML
from hpcml.errors import UsageError
from hpcml.sites.settings_layers import process_environment
from hpcml.terminal import say, say_fitted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.remote.answers import Relay
    from hpcml.remote.ssh import Connection

COMMAND = "ssh-config"


def add_options(parser: ArgumentParser) -> None:
    """Add what this verb takes."""
    parser.epilog = "hpcml help editors explains how to use VS Code, PyCharm, rsync and debuggers on a node."
    common.add_run(parser)
    common.add_site(parser)
    common.add_json(parser, "print JSON: the file, the line for ~/.ssh/config, and the names with their nodes")
    common.add_host(parser)
    for hidden in ("--serve", "--key", "--relay", "--node"):  # what hpcml, and ssh's ProxyCommand, say to hpcml
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)


def run(options: Namespace) -> int:
    """``hpcml ssh-config RUN``."""
    from hpcml.remote import node_ssh, routes, ssh

    if options.serve in ("prepare", "sshd"):
        return _serve(options)
    here = None if options.host else tunnel.local_run(options)
    login = None if here and not here.paths.status.exists() else tunnel.login_of(options, COMMAND)
    connection = ssh.Connection(login) if login else None
    if connection:  # ssh asks on the terminal; where this is a ProxyCommand, standard input is the other ssh's
        connection.open(ask=sys.stderr.isatty() and (bool(options.serve) or sys.stdin.isatty()))
    if connection and options.serve:
        words = _words(options, "sshd", relay=options.relay, node=options.node, run=options.run)
        subprocesses.become(connection.hpcml(*words), process_environment(), program=HPCML)
    start = [*node_ssh.own_command(), *(["--host", options.host or login.host] if login else [])]
    folder = routes.process_folder((connection.places if connection else ssh.places()).files, "session-")
    try:
        relay = _prepared(options, connection, routes.session_key(folder))
        user = connection.user if connection else safe_files.account(os.getuid())
        values = {"run": relay.run, "relay": Path(relay.folder).name}
        role = "proxy" if login else "sshd"
        nodes = node_ssh.write(folder, relay, user, lambda node: [*start, *_words(options, role, node=node, **values)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _show(options, relay, nodes)
    return 0


def _words(options: Namespace, role: str, *, run: str, **values: str) -> list[str]:
    """Return the words with which hpcml calls this command, here or on the login node."""
    site = [f"--site={options.site}"] if options.site else []
    given = [*site, *(f"--set={text}" for text in options.set or ())]
    return [COMMAND, f"--serve={role}", *(f"--{name}={value}" for name, value in values.items()), *given, "--", run]


def _prepared(options: Namespace, connection: Connection | None, key: str) -> Relay:
    """Have the cluster prepare an sshd for a key."""
    from hpcml.remote import answers, node_ssh
    from hpcml.remote.login_call import Call
    from hpcml.remote.tunnel import remote_failure

    if connection is None:
        return node_ssh.prepare(tunnel.run_of(options), key)
    call = Call(connection, _words(options, "prepare", key=key, run=options.run))
    try:
        call.begin()
        status = call.end()
    finally:
        call.stop()
    if (relay := call.facts.get("relay")) is None:
        raise remote_failure(call, status)
    if not (relay.run and relay.nodes):
        raise answers.wrong(connection.host, "it names no node")
    return relay


def _serve(options: Namespace) -> int:
    """Do what hpcml on the laptop asks, or become the sshd of a connection."""
    from hpcml.remote import node_ssh

    run = tunnel.run_of(options)
    if options.serve == "sshd":
        node_ssh.serve(run, options.relay, options.node)
    if options.caller is None:
        raise UsageError("Only hpcml on a laptop uses this option", place="--serve", hint="Remove --serve.")
    options.caller.say(relay=typed_json.plain(node_ssh.prepare(run, options.key)))
    return 0


def _show(options: Namespace, relay: Relay, nodes: dict[str, str]) -> None:
    """Say how to use the names."""
    from hpcml.remote import node_ssh

    if options.json:
        hosts = [{"name": name, "node": node} for name, node in nodes.items()]
        common.print_json({"run": relay.run, "include": node_ssh.INCLUDE, "hosts": hosts})
        return
    say_fitted("Add this line once, at the top of ~/.ssh/config:", sys.stderr)
    say(f"  {node_ssh.INCLUDE}")
    say_fitted(f"Until run {relay.run} ends, ssh, rsync and editors connect to its nodes by these names:", sys.stderr)
    for name, node in nodes.items():
        say(f"  {name}  {node}")
