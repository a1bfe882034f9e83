#!/usr/bin/env python3
"""A small supercomputer on one machine: `lab.py up`, play, `lab.py down` (see README.md)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lab_apptainer
import lab_env
import lab_image
import lab_install
import lab_slurms
from lab_paths import PROGRAM, LabError
from labs import Lab

__all__ = ["Lab", "LabError", "main"]

MOST_NODES = 128  # a slurmd each; their addresses are of one network of 254


def main() -> int:
    arguments = _parser().parse_args()
    try:
        return int(arguments.action(Lab(), arguments) or 0)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab.py", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, action: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(action=action)
        return sub

    command("check", _check, "say whether a lab can run here (exit 0 or 3)")
    install = command("install", _install, "fetch the packages it needs (apt)")
    install.add_argument("--accounting", action="store_true")
    text = "another version beside the machine's own, for apart.py --slurm"
    install.add_argument("--slurm", action="append", default=[], choices=sorted(lab_slurms.SUITES), help=text)
    up = command("up", _up, "start the lab and wait until all nodes are idle")
    up.add_argument("--accounting", action="store_true", help="with slurmdbd, so that sacct answers")
    up.add_argument("--nodes", type=int, choices=range(1, MOST_NODES + 1), default=4, metavar="N")
    command("laptop", _laptop, "add a laptop, a second login node and an sshd on every node to the lab that is up")
    command("down", _down, "end the lab and remove all traces but homes and logs")
    command("status", _status, "nodes, options and pids").add_argument("--json", action="store_true")
    run = command("exec", _exec, "run a command on a node: exec [options] -- CMD ...")
    run.add_argument("--node", default="login")
    run.add_argument("--user", default="alice")
    run.add_argument("--cwd", metavar="DIR")
    run.add_argument("--env", action="append", default=[], metavar="K=V", type=_assignment)
    run.add_argument("words", nargs="+", metavar="CMD")
    shell = command("shell", _shell, "a shell on the login node as alice")
    shell.set_defaults(node="login", user="alice", cwd=None, env=[], words=["bash", "-i"])
    command("env", _env, "install hpcml from the checkout for the lab's users")
    command("image", _image, "build the image of the lab's users, unless it is there")
    node_down = command("node-down", _node_down, "stop a node's slurmd")
    node_down.add_argument("name")
    node_down.add_argument("--crash", action="store_true", help="kill everything else on the node too")
    node_down.add_argument("--tell", action="store_true", help="have Slurm see it as down at once")
    command("node-up", _node_up, "start a node's slurmd again").add_argument("name")
    return parser


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _check(lab: Lab, _arguments: argparse.Namespace) -> int:
    reason = lab.check()
    print(reason or "ok")
    return 3 if reason else 0


def _install(lab: Lab, arguments: argparse.Namespace) -> None:
    fetched = lab_install.install(accounting=arguments.accounting)
    try:
        fetched += lab_apptainer.install(lab.places)
    except LabError as error:  # all else runs without containers; the tests that need them say this as their reason
        print(f"Without containers: {error}", file=sys.stderr)
    for version in arguments.slurm:
        fetched += lab_slurms.install(lab.places, version)
    print(f"installed {' '.join(fetched)}" if fetched else "everything is installed")


def _up(lab: Lab, arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    started = lab.up(arguments.accounting, arguments.nodes)
    print(f"The lab is up after {time.monotonic() - began:.1f} s." if started else "The lab is already up.")
    print(f"Enter it:  {PROGRAM} shell\nRun there: {PROGRAM} exec -- sinfo\nEnd it:    {PROGRAM} down")


def _laptop(lab: Lab, _arguments: argparse.Namespace) -> None:
    lab.add_laptop()
    print(f"Sit at it:  {PROGRAM} exec --node laptop -- bash -i   (then: ssh lab)")


def _down(lab: Lab, _arguments: argparse.Namespace) -> None:
    lab.down()
    print("The lab is down.")


def _status(lab: Lab, arguments: argparse.Namespace) -> None:
    state = lab.state()
    services = lab.services()
    pids = {name: entry.pid if entry.alive else None for name, entry in {**state.holders, **state.daemons}.items()}
    options = {"accounting": state.accounting, "nodes": state.nodes, "memory": state.memory}
    if arguments.json:
        states = services.node_states()
        print(json.dumps({"top": str(lab.places.top), "options": options, "nodes": states, "pids": pids}, indent=1))
        return
    print(services.run("sinfo").stdout, end="")
    print("options: " + ", ".join(f"{name} {value}" for name, value in options.items()) + f" (in {lab.places.top})")
    print("pids: " + ", ".join(f"{name} {pid or 'down'}" for name, pid in pids.items()))


def _exec(lab: Lab, arguments: argparse.Namespace) -> int:
    """Replace this process: input, output, signals and the exit status are then those of the command itself."""
    argv, variables = lab.command(
        arguments.words, node=arguments.node, user=arguments.user, env=dict(arguments.env), cwd=arguments.cwd
    )
    os.umask(0o022)
    os.execvpe(argv[0], argv, variables)


def _shell(lab: Lab, arguments: argparse.Namespace) -> int:
    print("You are alice on the login node; `exit` leaves. Try: sinfo", file=sys.stderr)
    return _exec(lab, arguments)


def _env(lab: Lab, _arguments: argparse.Namespace) -> None:
    print(f"installed {lab_env.build(lab.places).name} in {lab.places.venv}")


def _image(lab: Lab, _arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    built = lab_image.build(lab.places)
    took = f"built in {time.monotonic() - began:.0f} s" if built else "there already"
    print(f"The image is {took}: {lab_image.image(lab.places)}")


def _node_down(lab: Lab, arguments: argparse.Namespace) -> None:
    lab.node_down(arguments.name, crash=arguments.crash, tell=arguments.tell)
    print(f"The slurmd of {arguments.name} is stopped.")


def _node_up(lab: Lab, arguments: argparse.Namespace) -> None:
    lab.node_up(arguments.name)
    print(f"{arguments.name} takes jobs again.")


if __name__ == "__main__":
    sys.exit(main())
