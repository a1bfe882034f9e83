"""``hpcml doctor``: what keeps this user's runs from working here, each with what to do about it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from hpcml import units
from hpcml.cli import common
from hpcml.errors import UNFIT, HpcmlError, UsageError
from hpcml.options.reading import request_of
from hpcml.options.table import OPTIONS
from hpcml.request.record import Code
from hpcml.sites import settings_layers
from hpcml.terminal import COLOURS, Raw, columns, fitted, say, say_fitted, say_state
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from hpcml.cli.on_host import Laptop
    from hpcml.doctor.finding import Finding
    from hpcml.remote.ssh import Connection
    from hpcml.sites.schema import Login

_OF_RUNS = {
    "account": "Slurm account to check",
    "partition": "Slurm partition to check",
    "qos": "Slurm quality of service to check",
    "image": "Apptainer image to check",
}
_WIDE = 26  # columns before a sentence


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    parser.epilog = "hpcml doctor changes nothing. Without --node, hpcml doctor submits no job and ends within 3 s."
    common.add_site(parser, "site to check")
    for name, text in _OF_RUNS.items():
        names, help_text = (OPTIONS[name].word, *OPTIONS[name].also), f"{text} (default: as for hpcml submit)"
        parser.add_argument(*names, metavar=name.upper(), help=help_text)
    parser.add_argument("--node", action="store_true", help="also check compute nodes, with a short job")
    group = parser.add_argument_group("with --node")
    how_many = "number of nodes to check (default: 2, or 1 if the partition allows only 1)"
    group.add_argument("--nodes", *OPTIONS["nodes"].also, metavar="N", help=how_many)
    gpus = "GPUs to request on each node (default: 1 if the partition has GPUs)"
    group.add_argument("--gpus-per-node", metavar="N", help=gpus)
    group.add_argument(
        "--patience",
        metavar="TIME",
        default="10m",
        help="cancel the job if it does not end within TIME after its submission (default: 10m)",
    )
    parser.add_argument(
        "--deadline",
        metavar="TIME",
        default="2.2s",
        help="total time limit for the checks on this machine, not for the job that --node submits (default: 2.2s)",
    )
    parser.add_argument("--all", action="store_true", help="also show passed checks and checks that do not apply")
    common.add_json(parser)


def run(options: Namespace) -> int:
    """Make all checks, print the problems, and return 0 unless one is red; UsageError for options without --node."""
    from hpcml.doctor import login_checks, probe_job
    from hpcml.doctor.finding import Examination

    patience = common.parsed(units.parse_seconds, options.patience, "--patience", "30s")
    seconds = common.parsed(units.parse_seconds, options.deadline, "--deadline", "30s")
    for name in ("nodes", "gpus_per_node"):
        if getattr(options, name) and not options.node:
            option = f"--{name.replace('_', '-')}"
            problem = f"{option} applies only to the job that --node submits"
            raise UsageError(problem, place="hpcml doctor", hint="Add --node.")
    if options.nodes:
        common.positive(options.nodes, "--nodes")
    here = common.here()
    wanted = common.load_site(options.site or "", here, options.set or ())
    code = Code(here / "doctor", (wanted.site.runtime.container,), here, form=Form.DOCTOR)
    spec = request_of(vars(options), code)._replace(name="doctor")
    loaded, spec = probe_job.request(wanted, spec)
    exam = Examination(loaded, wanted, spec, settings_layers.process_environment(), seconds)
    findings = login_checks.examine(exam)
    if options.node:
        common.end_by_signals()  # as by Ctrl-C the job is cancelled
        findings += probe_job.look(exam, patience, lambda text: say(f"hpcml: {text}", sys.stderr))
    return show(findings, as_json=options.json, show_all=options.all)


def show(findings: Sequence[Finding], *, as_json: bool, show_all: bool) -> int:
    """Print problems first, the rest of the findings or how many they are, and return the exit status."""
    from hpcml.doctor.finding import GREEN, NOT_APPLICABLE, RED, STATES, YELLOW

    counts = {state: sum(finding.state == state for finding in findings) for state in STATES}
    if as_json:
        common.print_json({"counts": counts, "findings": [finding.as_json() for finding in findings]})
        return UNFIT if counts[RED] else 0
    shown = (RED, YELLOW, GREEN, NOT_APPLICABLE) if show_all else (RED, YELLOW)
    for state in shown:
        for finding in findings:
            if finding.state == state:
                _say(finding)
    if show_all:
        say(", ".join(f"{count} {state}" for state, count in counts.items() if count), sys.stderr)
    else:
        problems = counts[RED] + counts[YELLOW]
        rest = f"{units.counted(counts[GREEN], 'check')} passed, {counts[NOT_APPLICABLE]} not applicable here"
        say_fitted(f"{'' if problems else 'No problems: '}{rest} (hpcml doctor --all).", sys.stdout)
    return UNFIT if counts[RED] else 0


def _say(one: Finding) -> None:
    """Print a finding, its state in colour, and what to do about it."""
    lines = fitted(
        one.sentence, columns(sys.stdout), first=f"{one.state:<8}{one.check:<{_WIDE - 10}}  ", rest=" " * _WIDE
    )
    for number, line in enumerate(lines):
        say_state(line, 0, COLOURS if number == 0 and common.has_coloured_output() else {})
    if one.remedy:
        say_fitted(one.remedy, sys.stdout, first=f"{'':<{_WIDE}}→ ", rest=" " * (_WIDE + 2))


def from_laptop(laptop: Laptop) -> int:
    """Have the checks made on the login node, add those that this laptop makes, and print all of them."""
    from hpcml.doctor import login_checks
    from hpcml.doctor.finding import Finding
    from hpcml.remote import answers

    as_json, show_all = laptop.options.json, laptop.options.all
    try:
        connection = laptop.connect()
    except HpcmlError as error:
        return show([login_checks.no_way(error)._replace(check="login-node")], as_json=as_json, show_all=show_all)
    status, said = _asked(connection, laptop.arguments)
    if status not in (0, UNFIT):  # it has said why
        if as_json:
            Raw(sys.stdout).write(said, last=True)
        return status
    findings = [Finding(**fields) for fields in answers.of_findings(said, connection.host)]
    return show(_with_this_end(connection, laptop.login, laptop.host, findings), as_json=as_json, show_all=show_all)


def _asked(connection: Connection, options: Sequence[str]) -> tuple[int, bytes]:
    """Return the exit status and the output of the login node's own hpcml."""
    from hpcml.remote import answers, login_call

    said: list[bytes] = []
    command = ["doctor", "--json", *(word for word in options if word != "--json")]
    status = login_call.run(connection, command, most=answers.LONGEST_VIEW, show=said.append)
    return status, b"".join(said)


def _with_this_end(connection: Connection, login: Login, typed: str, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of the login node with those of this laptop in their places."""
    from hpcml.doctor import login_checks
    from hpcml.remote import ssh

    facts_by_check = {
        finding.check: finding.facts for finding in findings if isinstance(finding.facts, dict)
    }  # another host's may be text
    ends = ssh.certificates(connection.settings)
    start = str(facts_by_check.get("start", {}).get("start", ""))
    try:
        certificate = login_checks.judge_certificate(ends, start, time.time(), login.renew)
    except ValueError:  # what it said is no time
        certificate = login_checks.judge_certificate(ends, "", time.time(), login.renew)
    profile = facts_by_check.get("profile", {})
    of_profile = login.host != typed
    if not of_profile and connection.settings.get("hostname") == [
        profile.get("login_host")
    ]:  # as the profile there says
        listed = profile.get("login_hosts")
        hosts = tuple(map(str, listed)) if isinstance(listed, list) else ()
        login, of_profile = login._replace(hosts=login.hosts or hosts), True
    node = login_checks.judge_login_node(login, str(profile.get("host", "")), of_profile=of_profile)
    local = {"certificate": certificate, "login-node": node}
    return [local[row.check]._replace(check=row.check) if row.check in local else row for row in findings]
