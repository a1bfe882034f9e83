"""Checks of the way to the cluster: the user's certificate, and which login node is meant."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence

from hpcml import units
from hpcml.doctor.finding import Examination, Finding, clause, green, not_applicable, red, yellow
from hpcml.errors import HpcmlError
from hpcml.remote import ssh
from hpcml.sites.schema import Login

_SOON = 900.0  # seconds


def certificate(exam: Examination) -> Finding:
    """How long the certificate lives that this machine's ssh would show, against the start of a job."""
    login = exam.site.login
    settings = ssh.effective(login.host, seconds=exam.left()) if login.host else {}
    ends = ssh.certificates(settings, exam.left())
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
        return red(f"your ssh certificate ended {ssh.clock(last, now)}", hint, **facts)
    begins = datetime.datetime.fromisoformat(start).timestamp() if start else now
    words = f"your ssh certificate ends {ssh.clock(last, now)}, in {units.format_seconds(last - now)}"
    if begins > last:
        return yellow(f"{words}, and a job would start {ssh.clock(begins, now)}", hint, **facts)
    if last - now < _SOON:
        return yellow(words, hint, **facts)
    return green(words, **facts)


def login_node(exam: Examination) -> Finding:
    """Say that the way in is looked at from outside."""
    del exam
    return not_applicable("which login node ssh reaches is seen from a laptop: hpcml --host HOST doctor")


def judge_login_node(login: Login, answered: str, *, of_profile: bool = True) -> Finding:
    """Return whether the login node that answered can be named, as a tunnel by hand needs it.

    Parameters
    ----------
    login
        How the machine is reached.
    answered
        The name of the machine that answered; empty: not told.
    of_profile
        Whether a profile names ``login.host``; a name of the user's own ssh configuration is no machine's.
    """
    facts = {"host": login.host, "answered": answered, "hosts": list(login.hosts)}
    short = answered.partition(".")[0]
    own = (short, f"{short}-ext")
    answers = f"{login.host} answers (it is {answered or 'not named'})"
    if not login.hosts and of_profile and answered and login.host.rpartition("@")[2].partition(".")[0] not in own:
        hint = "Write the login nodes' names into login.hosts of the profile: a tunnel must name one host."
        return yellow(
            f"{answers}: it may lead to another login node each time, and login.hosts names none", hint, **facts
        )
    if login.host in login.hosts or not login.hosts:
        return green(answers, **facts)
    if one := next((name for name in login.hosts if name.partition(".")[0] in own), ""):
        return green(f"{login.host} answers as {one}; what you type by hand names that one", **facts)
    hint = f"Name one: hpcml --host {login.hosts[0]}."
    there = answered or "the machine that answered"
    return yellow(f"{login.host} stands for several login nodes, and {there} is none of login.hosts", hint, **facts)


def no_way(error: HpcmlError) -> Finding:
    """Return that the login node cannot be reached, and why, with ssh's own last words."""
    quoted = f" ({error.quote[-1].strip()})" if error.quote else ""
    return red(f"{clause(error.message)}{quoted}", error.hint, exit_status=error.exit_status, quote=list(error.quote))
