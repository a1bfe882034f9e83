"""A tunnel's life on the laptop: it waits for the run, follows it to its node, mends itself, and ends with the run."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hpcml import subprocesses
from hpcml.errors import (
    CONFIG,
    MEANING,
    UNAVAILABLE,
    HpcmlError,
    LinkError,
    LoginNeededError,
    ServiceGoneError,
    TunnelError,
)
from hpcml.remote import answers
from hpcml.remote.ssh import login
from hpcml.remote.ssh.connection import Connection
from hpcml.remote.tunnel import probe, routes

TICK = 1.0  # seconds between looks at the clock
PROBE = 15.0  # seconds between looks through the open tunnel
SILENT = 180.0  # seconds without a word of a login node that speaks every ten, and first when its Python is up
MISSES = 3  # looks in a row without the right answer after which a service counts as gone
SETTLE, RETRY = 90.0, 10.0  # seconds that an open tunnel's node may be silent, and between attempts meanwhile
FIRST_DELAY, LONGEST_DELAY = 2.0, 120.0  # seconds between attempts to reach the cluster again
WARN = (900.0, 300.0, 60.0)  # seconds before the run's end at which that is said
_NEVER = ("never start", "held by")
_ERROR = re.compile(r"hpcml: (?!note: )")  # how hpcml begins what it ends with


class Wish(NamedTuple):
    """What is wanted: which run and service, how, and for how long a lost cluster is tried again (seconds)."""

    run: str
    service: str = "dashboard"
    route: str = "auto"
    port: int = 0
    patience: float = 600.0


class Tunnel:
    """One service of one run on a port of this laptop.

    Parameters
    ----------
    connection
        The cluster; opened here, and left open for the next command.
    say
        Called with a sentence for the user.
    up
        Called with the port, the service, its token and the route whenever the tunnel is open on a new port or to a new
        service.
    ask
        Asks the user to log in again and returns whether they will; None where nobody is at a terminal.
    """

    def __init__(
        self,
        connection: Connection,
        wish: Wish,
        say: Callable[[str], None],
        up: Callable[[int, dict[str, Any], str, str], None],
        ask: Callable[[str], bool] | None = None,
    ) -> None:
        self.connection, self.wish, self.say, self.up, self.ask = connection, wish, say, up, ask
        self.facts: dict[str, Any] = {}
        self.served: dict[str, Any] = {}
        self.way: routes.Way | None = None
        self.port = wish.port
        self.shown: tuple[object, ...] = ()
        self.told = ""
        self.warned: set[float] = set()
        self.probed = 0.0
        self.misses = 0
        self.failing = 0.0  # since when a tunnel that was open cannot be made again
        self.retry_at = 0.0
        self.was_open = False

    def run(self) -> None:
        """Keep the tunnel until the run has ended.

        Raises
        ------
        HpcmlError
            With the status that docs/exit-status.md gives each end but a good one.
        """
        self.connection.open(ask=self.ask is not None)
        while True:
            feed = subprocesses.Child(
                self.connection.hpcml("tunnel", "--serve", "feed", self.wish.run), self.connection.environment
            )
            try:
                if self._follow(feed):
                    return
            except LinkError:
                self._drop()
            finally:
                feed.end()
            self._reconnect()

    def close(self) -> None:
        """Take back what this tunnel has open; the connection stays for the next command."""
        self._drop()

    # -- following -------------------------------------------------------------------------------------------------

    def _follow(self, feed: subprocesses.Child) -> bool:
        """Act on what the login node says until the run has ended (True) or the line is lost (False)."""
        heard = time.monotonic()
        while True:
            if time.monotonic() - heard > SILENT:
                self.say(f"{self.connection.host} has said nothing for {SILENT:g} s; asking it anew.")
                return False
            subprocesses.wait([feed, *([self.way.child] if self.way else [])], TICK)
            code = feed.code  # asked before its last lines are read, so that none is missed
            for line in feed.lines():
                if line.startswith("{"):
                    heard = time.monotonic()
                    self.facts = answers.of_run(line, self.connection.host)
                    if self.facts["state"] in ("ended", "refused"):
                        self._drop()
                        tell_end(self.facts, self.say)
                        return True
                    self._show()
            if self.facts:
                self._keep()
            if code is not None:
                if code != 255 and self.connection.alive():
                    raise _remote_failure(feed, self.connection)
                self._drop()
                return False

    def _show(self) -> None:
        """Say how the run stands, once for each change; nothing while the tunnel is open."""
        facts = self.facts
        words = str(facts["words"])
        if facts["state"] == "queued" and any(sign in words for sign in _NEVER):
            self._drop()
            hint = f"Look at it: hpcml status {facts['run']}; end it: hpcml cancel {facts['run']}."
            raise HpcmlError(
                f"The run will not start: {words}", place=f"job {facts['job']}", hint=hint, status=UNAVAILABLE
            )
        estimate = ""
        if facts["state"] == "queued":
            estimate = facts["estimate"]
            words += f"; Slurm's estimate of the start: {estimate}" if estimate else "; Slurm has no estimate yet"
        shown = (facts["state"], words, estimate)
        if shown != self.shown and self.way is None:
            self.say(f"{facts['run']} is {facts['state']}: {words}.")
        self.shown = shown

    def _keep(self) -> None:
        """Have the tunnel lead to the run's service as it is now."""
        service = self.facts["services"].get(self.wish.service)
        if self.way and service != self.served:
            self.say(
                f"The {self.wish.service} is gone from {self.served['node']}; waiting for the run to start again."
                if not service
                else f"The run is on {service['node']} now."
            )
            self._drop()
        if service and self.way and not self.way.open():
            self.say("The way to the node was cut; making it anew.")
            self._drop()
        if service and self.way is None and time.monotonic() >= self.retry_at:
            self.served = service
            self._establish_or_wait()
        now = time.monotonic()
        if self.way and now - self.probed >= PROBE:
            self.probed = now
            self._look()
        self._warn()

    def _look(self) -> None:
        """Look through the open tunnel; a service that has not answered several times is gone."""
        if not (wrong := probe.look(self.port, self.served, self.told)):
            self.misses = 0
            return
        self.misses += 1
        if self.misses >= MISSES:
            raise self._gone(wrong)

    def _gone(self, wrong: str) -> ServiceGoneError:
        hint = f"See what it said: hpcml logs {self.facts['run']} scheduler (on the cluster)."
        words = f"The {self.wish.service} does not answer, and the run goes on: {wrong}"
        return ServiceGoneError(words, place=f"{self.served['node']}:{self.served['socket']}", hint=hint)

    def _warn(self) -> None:
        ends = self.facts.get("ends")
        if self.way is None or not ends:
            return
        left = ends - time.time()
        due = [limit for limit in WARN if left <= limit and limit not in self.warned]
        if due and left > 0:
            self.warned |= set(due)
            self.say(f"The run's time limit is in {max(1, round(left / 60))} min.")

    # -- opening ---------------------------------------------------------------------------------------------------

    def _establish(self) -> None:
        """Find a way to the service and see that it answers there; the first route that works is remembered."""
        refused: list[HpcmlError] = []
        for name in routes.in_order(self.connection, self.wish.route):
            try:
                way = routes.start(name, self.connection, self.facts, self.wish.service)
            except (TunnelError, ServiceGoneError) as error:
                refused.append(error)
                continue
            try:
                wrong = self._through(way)
            except BaseException:
                way.close(self.connection)
                raise
            if not wrong:
                self.way, self.probed, self.misses = way, time.monotonic(), 0
                routes.remember(self.connection, name)
                self.was_open = True
                self.up(self.port, self.served, self.told, name)
                return
            if "closed" in wrong and way.missing(self.connection):
                refused.append(ServiceGoneError(f"The socket is not on {self.served['node']}", place=name))
                way.close(self.connection)
                continue
            way.close(self.connection)
            refused.append(TunnelError(_forbidden(name, self.connection.host, self.served, wrong), place=name))
        self._refused(refused)

    def _establish_or_wait(self) -> None:
        """Open the tunnel; where it was open before, a failure may be the run's end, which Slurm tells later."""
        try:
            self._establish()
            self.failing = 0.0
        except (TunnelError, ServiceGoneError) as error:
            now = time.monotonic()
            if not self.was_open or (self.failing and now - self.failing > SETTLE):
                raise
            if not self.failing:
                self.failing = now
                self.say(f"{error.message}; waiting for what the cluster says of the run.")
            self.retry_at = time.monotonic() + RETRY

    def _through(self, way: routes.Way) -> str:
        """Put the way on a local port and look through it; return what is wrong, or nothing."""
        first = self.port or probe.port_of(self.connection.host, self.facts["run"], self.wish.service)
        for port in [first] if self.wish.port else probe.candidates(first):
            if probe.is_free(port) and self.connection.forward(port, way.target, way.control):
                way.port = port
                break
        else:
            hint = "Give another with --port." if self.wish.port else "Give one with --port."
            words = f"Port {first} of this laptop is taken" + ("" if self.wish.port else ", and so are the next")
            raise HpcmlError(words, place="127.0.0.1", hint=hint, status=UNAVAILABLE)
        if self.port and port != self.port:
            self.say(f"Port {self.port} has been taken by another program; the tunnel is on {port} now.")
        self.told = self._token()
        wrong = probe.look(port, self.served, self.told)
        if not wrong:
            self.port = port
        return wrong

    def _token(self) -> str:
        """Read the service's token over ssh, if it has one; it is kept in memory alone."""
        file = self.served.get("token_file")
        if not file:
            return ""
        answer = self.connection.run(self.connection.command(["cat", "--", str(file)]))
        if answer.code != 0:
            raise ServiceGoneError("The service's token cannot be read", place=str(file), hint=answer.text[-200:])
        return answers.of_token(answer.out, self.connection.host)

    def _refused(self, errors: list[HpcmlError]) -> None:
        quote = tuple(f"{error.place}: {error.message}" for error in errors)
        missing = [error for error in errors if isinstance(error, ServiceGoneError)]
        node = self.served["node"]
        if missing:
            hint = f"Look at the run: hpcml status {self.facts['run']} (on the cluster)."
            raise ServiceGoneError(
                f"The {self.wish.service}'s socket is not on {node}",
                place=self.served["socket"],
                hint=hint,
                quote=quote,
            )
        hint = "Show these lines to the site's support; without ssh and srun --overlap there is no safe way in."
        raise TunnelError(
            f"The site lets no tunnel through to {node}", place=self.connection.host, hint=hint, quote=quote
        )

    def _drop(self) -> None:
        if self.way is not None:
            way, self.way = self.way, None
            way.close(self.connection)

    # -- mending ---------------------------------------------------------------------------------------------------

    def _reconnect(self) -> None:
        """Reach the cluster again: at growing distances, within the budget of logins, and asking nobody unasked."""
        lost, delay = time.monotonic(), FIRST_DELAY
        if self.connection.alive():
            return
        self.say(f"The link to {self.connection.host} is lost; trying again on the same port.")
        while True:
            try:
                self._log_in_again()
                self.say("The link is back.")
                return
            except LinkError as error:
                if time.monotonic() - lost > self.wish.patience:
                    raise LinkError(
                        f"{self.connection.host} could not be reached for {self.wish.patience:g} s",
                        place=error.place,
                        hint=error.hint,
                        quote=error.quote,
                    ) from error
            time.sleep(min(delay, self.wish.patience) * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
            delay = min(delay * 2, LONGEST_DELAY)

    def _log_in_again(self) -> None:
        try:
            self._not_with_an_ended_certificate()
            self.connection.open(ask=False)
        except LoginNeededError as error:
            if self.ask is None or not self.ask(str(error)):
                raise
            self.connection.open(ask=True)

    def _not_with_an_ended_certificate(self) -> None:
        """Raise where a login is bound to fail: it would count as one, and sites block who fails too often."""
        ends = [found.ends for found in login.certificates(self.connection.known, self.connection.environment)]
        now = time.time()
        if ends and max(ends) <= now:
            words = f"The link is lost, and your certificate ended at {login.clock(max(ends), now)}"
            again = self.connection.login.renew or "ask your site how"
            hint = f"Get a new certificate, then start the tunnel again: {again}."
            raise LoginNeededError(words, place=self.connection.host, hint=hint)


def _forbidden(name: str, host: str, service: dict[str, Any], wrong: str) -> str:
    """Return which hop lets no forward through, for a way that opened and then carried nothing."""
    hop = host if name == "twohop" else str(service["node"])
    if "closed" in wrong:
        return f"{hop} forbids forwarding, or the socket is gone ({wrong})"
    return wrong


def _remote_failure(feed: subprocesses.Child, connection: Connection) -> HpcmlError:
    """Return why the login node's hpcml ended, in its own words."""
    said = [line for line in feed.errors.splitlines() if line.strip()]
    if feed.code == 127 or (feed.code is not None and any("not found" in line for line in said[-1:])):
        return connection.no_hpcml(said[-3:])
    said = said[next((place for place, line in enumerate(said) if _ERROR.match(line)), 0) :]  # a shell may say more
    words = said[0].removeprefix("hpcml: ") if said else f"hpcml on {connection.host} ended with status {feed.code}"
    status = feed.code if feed.code in MEANING else CONFIG  # killed here, or no hpcml
    return HpcmlError(words, place=connection.host, hint=" ".join(said[1:]), status=status)


def tell_end(facts: dict[str, Any], say: Callable[[str], None]) -> None:
    """Say how the run ended; raise unless it ended well."""
    say(f"{facts['run']} has ended: {facts['words']}.")
    if facts["exit_status"]:
        words = f"The run ended with status {facts['exit_status']}: {facts['words']}"
        raise HpcmlError(
            words, place=str(facts["run"]), hint=str(facts["hint"]), status=UNAVAILABLE, quote=tuple(facts["quote"])
        )
