"""Checks of the way to the cluster: the user's certificate, and which login node is meant."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence

from hpcml import units
from hpcml.doctor.finding import Examination, Finding, clause, green, not_applicable, red, yellow
from hpcml.errors import HpcmlError
from hpcml.remote.ssh import config
from hpcml.remote.ssh import login as ssh_login
from hpcml.sites.schema import Login

_SOON = 900.0  # seconds


def certificate(exam: Examination) -> Finding:
    """How long the certificate lives that this machine's ssh would show, against the start of a job."""
    login = exam.site.login
    settings = config.effective(login.host, seconds=exam.left()) if login.host else {}
    ends = ssh_login.certificates(settings, exam.left())
    if not ends:
        return not_applicable("no ssh certificate is on this machine; from a laptop: hpcml --host HOST doctor")
    try:
        start = exam.start().start
    except HpcmlError:
        start = ""
    return judge_certificate(ends, start, time.time(), login.renew)


def judge_certificate(ends: Sequence[float], start: str, now: float, renew: str) -> Finding:
    """Return whether a certificate lives until a job that starts then (ISO 8601, local time; empty: not known)."""
    if not ends:
        return not_applicable("ssh needs no certificate here: there is none beside its keys or in the agent")
    last = max(ends)
    hint = f"Get a new one: {renew or 'see the documentation of your site'}."
    if last == float("inf"):
        return green("your ssh certificate does not end")
    facts = {"ends": round(last), "left": round(last - now), "start": start}
    if last <= now:
        return red(f"your ssh certificate ended {ssh_login.clock(last, now)}", hint, **facts)
    begins = datetime.datetime.fromisoformat(start).timestamp() if start else now
    words = f"your ssh certificate ends {ssh_login.clock(last, now)}, in {units.format_seconds(last - now)}"
    if begins > last:
        return yellow(f"{words}, and a job would start {ssh_login.clock(begins, now)}", hint, **facts)
    if last - now < _SOON:
        return yellow(words, hint, **facts)
    return green(words, **facts)


def login_node(exam: Examination) -> Finding:
    """Say that the way in is looked at from outside."""
    del exam
    return not_applicable("which login node ssh reaches is seen from a laptop: hpcml --host HOST doctor")


def judge_login_node(login: Login, answered: str) -> Finding:
    """Return whether the login node that answered can be named, as a tunnel by hand needs it."""
    facts = {"host": login.host, "answered": answered, "hosts": list(login.hosts)}
    short = answered.partition(".")[0]
    one = next((name for name in login.hosts if name.partition(".")[0] in (short, f"{short}-ext")), "")
    if login.host in login.hosts or not login.hosts:
        return green(f"{login.host} answers (it is {answered})", **facts)
    if one:
        return green(f"{login.host} answers as {one}; what you type by hand names that one", **facts)
    hint = f"Name one: hpcml --host {login.hosts[0]}."
    return yellow(f"{login.host} stands for several login nodes, and {answered} is none of login.hosts", hint, **facts)


def no_way(error: HpcmlError) -> Finding:
    """Return that the login node cannot be reached, and why."""
    return red(clause(error.message), error.hint, exit_status=error.exit_status)
