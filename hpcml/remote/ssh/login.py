"""Logging in: to which host, how often an hour, what ssh's complaints mean, and when the user's certificate ends."""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hpcml import subprocesses
from hpcml.errors import ConfigError, HostKeyError, HpcmlError, LinkError, LoginNeededError, UsageError
from hpcml.sites import lookup
from hpcml.sites.layers import process_environment, user_path
from hpcml.sites.schema import Login

HOUR = 3600.0
ASK = 10.0  # seconds for a question to ssh-keygen or the agent

# What ssh says, most telling first. A site that sees many logins may take them for an attack, so only what is surely
# the network's fault is not counted as one.
_HOST_KEY = r"HOST IDENTIFICATION HAS CHANGED|Host key verification failed|No .* host key is known|REVOKED HOST KEY"
_AUTH = r"Permission denied|Too many authentication failures|authenticating user|no more authentication methods|OTP"
_CONFIG = r"Bad configuration option|bad configuration options|Bad owner or permissions|keyword .* extra arguments"
_NETWORK = (
    r"Could not resolve|Connection refused|timed out|No route to host|Network is (?:unreachable|down)|"
    r"Connection (?:closed|reset)|kex_exchange_identification|banner exchange|Broken pipe|not responding"
)


def check_host(host: str, place: str = "--host") -> str:
    """Return a host's name if ssh can be called with it."""
    if not host or host.startswith("-") or any(not letter.isprintable() or letter.isspace() for letter in host):
        hint = "Write it as ssh knows it, user@login.example.org, or a site whose profile has login.host."
        raise UsageError(f"{host!r} is not the name of a host", place=place, hint=hint)
    return host


def login_of(
    host: str,
    assignments: Sequence[str] = (),
    *,
    site: str = "",
    place: str = "--host",
    load: Callable[..., lookup.LoadedSite],
) -> Login:
    """Return how a cluster is reached, by a site's name or by what ssh is called with.

    No project's file counts, which may have come with somebody else's code.

    Parameters
    ----------
    assignments
        ``--set`` of the command line.
    site
        Whose settings count for a host that is not a site's name; empty for the site found here.
    place
        Where the host was named, for errors.
    load
        Loads a site.

    Raises
    ------
    UsageError
        If it is not the name of a host.
    """
    check_host(host, place)
    if host in lookup.profile_files(process_environment()):
        login = load(host, None, assignments).site.login
        if login.host:
            return login._replace(host=check_host(login.host, "login.host"))
    return load(site, None, assignments).site.login._replace(host=host)


class Budget:
    """How many new logins a cluster has seen in the last hour, by a file that all of this user's processes share."""

    def __init__(self, path: Path, most: int) -> None:
        self.path, self.most = path, most

    def left(self, now: float) -> int:
        """Return how many more are allowed now."""
        with self._last_hour(now) as logins:
            return max(0, self.most - len(logins))

    def spend(self, now: float) -> None:
        """Note a login."""
        with self._last_hour(now) as logins:
            logins.append(now)

    def refund(self, now: float) -> None:
        """Take back the note of a login that did not get as far as the other side's question who we are."""
        with self._last_hour(now) as logins, contextlib.suppress(ValueError):
            logins.remove(now)

    def free_at(self, now: float) -> float:
        """Return when the next login is allowed."""
        with self._last_hour(now) as logins:
            recent = sorted(logins)
        return now if len(recent) < self.most else recent[-self.most] + HOUR if self.most else now + HOUR

    @contextlib.contextmanager
    def _last_hour(self, now: float) -> Iterator[list[float]]:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                logins = [float(moment) for moment in json.loads(file.read() or "[]")]
            except (ValueError, TypeError, RecursionError):
                logins = []  # not ours to mend, and the next line writes it anew
            logins = [moment for moment in logins if abs(now - moment) < HOUR]
            before = list(logins)
            yield logins
            if logins != before:
                file.seek(0)
                file.truncate()
                json.dump(logins, file)


def failure(complaint: str, host: str, renew: str = "") -> HpcmlError:
    """Return what an ssh that did not get through meant by its last words."""
    quote = tuple(line for line in complaint.splitlines() if line.strip())[-14:]
    if re.search(_HOST_KEY, complaint):
        message = f"The key of {host} or of a host on the way is not the known one"
        hint = "If the site says that it has new keys, take the old one out (ssh-keygen -R); if not, tell the site."
        return HostKeyError(message, place=host, hint=hint, quote=quote)
    if re.search(_CONFIG, complaint):
        return ConfigError("ssh refuses its configuration", place=host, hint=f"Try: ssh -G {host}", quote=quote)
    if re.search(_AUTH, complaint):
        hint = f"Is your key or certificate still good? Try: ssh {host}"
        hint = f"Get a new certificate: {renew}." if renew else hint
        return LoginNeededError(f"{host} does not let you in", place=host, hint=hint, quote=quote)
    unreachable = re.search(_NETWORK, complaint)
    message = f"{host} cannot be reached" if unreachable else f"ssh to {host} ended and gave no reason"
    hint = "Check the network (VPN?) and the name of the host; runs there go on meanwhile."
    return LinkError(message, place=host, hint=hint, quote=quote[-3:])


def certificates(settings: Mapping[str, Sequence[str]], seconds: float = ASK) -> list[float]:
    """Return when the user's certificates for a host end, in seconds since 1970; infinite: never.

    They are those of its ``CertificateFile`` lines, beside its keys, and in the agent.

    Parameters
    ----------
    settings
        The host's settings (:func:`hpcml.remote.ssh.config.effective`).
    seconds
        How long each question may take.
    """
    named = [*settings.get("certificatefile", []), *(f"{path}-cert.pub" for path in settings.get("identityfile", []))]
    paths = {user_path(name) for name in named if name != "none"}
    ends: list[float] = []
    for path in sorted(paths):
        if path.is_file():
            answer = subprocesses.run(["ssh-keygen", "-L", "-f", str(path)], seconds)
            ends += validity(answer.out)
    if process_environment().get("SSH_AUTH_SOCK"):
        keys = subprocesses.run(["ssh-add", "-L"], seconds)
        if keys.code == 0 and "-cert-" in keys.out:
            answer = subprocesses.run(["ssh-keygen", "-L", "-f", "-"], seconds, data=keys.out.encode())
            ends += validity(answer.out)
    return ends


def validity(text: str) -> list[float]:
    """Return when the certificates that ``ssh-keygen -L`` describes end, in its own local time."""
    ends = []
    for match in re.finditer(r"^\s*Valid: (?:from \S+ to (\S+)|forever)", text, re.MULTILINE):
        if match[1] in (None, "forever"):
            ends.append(float("inf"))
        else:
            zone = calendar.timegm if match[1].endswith("Z") else time.mktime
            ends.append(float(zone(time.strptime(match[1].removesuffix("Z"), "%Y-%m-%dT%H:%M:%S"))))
    return ends


def clock(moment: float, now: float) -> str:
    """Return a moment as the user's clock shows it, with the day if it is not today's."""
    same = time.strftime("%Y%j", time.localtime(moment)) == time.strftime("%Y%j", time.localtime(now))
    return time.strftime("%H:%M" if same else "%Y-%m-%d %H:%M", time.localtime(moment))


def warning(certificates: Sequence[float], until: float | None, now: float, renew: str) -> str:
    """Return what the user should know of the certificates' end before relying on the link until then, or nothing."""
    if not certificates:
        return ""
    ends = max(certificates)
    again = f": {renew}" if renew else ""
    if ends <= now:
        return f"your certificate ended {clock(ends, now)}; a new login needs a new one{again}"
    if until is not None and ends < until:
        return (
            f"your certificate ends {clock(ends, now)}, the run {clock(until, now)}: an open tunnel stays open, "
            f"a new login needs a new certificate{again}"
        )
    return ""
