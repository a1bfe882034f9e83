"""A tunnel's life on the laptop: it waits for the run, follows it to its node, mends itself, and ends with the run."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import NamedTuple

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
from hpcml.remote.answers import RunFacts, Service
from hpcml.remote.channel import Call
from hpcml.remote.ssh import login
from hpcml.remote.ssh.connection import Connection
from hpcml.remote.tunnel import routes, service_port

TICK = 1.0  # seconds between looks at the clock
PROBE = 15.0  # seconds between looks through the open tunnel
SILENT = 180.0  # seconds without a word of a login node that speaks every ten, and first when its Python is up
MISSES = 3  # looks in a row without the right answer after which a service counts as gone
SETTLE, RETRY = 90.0, 10.0  # seconds that an open tunnel's node may be silent, and between attempts meanwhile
FIRST_DELAY, LONGEST_DELAY = 2.0, 120.0  # seconds between attempts to reach the cluster again
WARN = (900.0, 300.0, 60.0)  # seconds before the run's end at which that is said
_NEVER = ("never start", "held by")
_ERROR = re.compile(r"hpcml: (?!note: )")  # how hpcml begins the error that it ends with

# Called with the port, the service, its token and the route when a tunnel is open.
Opened = Callable[[int, Service, str, str], None]


class TunnelRequest(NamedTuple):
    """What is wanted: which run and service, how, and for how long a lost cluster is tried again (seconds)."""

    run: str
    service: str = "dashboard"
    route: str = "auto"
    port: int = 0
    retry_for: float = 600.0


class Tunnel:
    """One service of one run on a port of this laptop.

    Parameters
    ----------
    connection
        The cluster; opened here, and left open for the next command.
    say
        Called with a sentence for the user.
    opened
        Called whenever the tunnel is open on a new port or to a new service.
    ask
        Asks the user to log in again and returns whether they will; None where nobody is at a terminal.
    """

    def __init__(
        self,
        connection: Connection,
        request: TunnelRequest,
        say: Callable[[str], None],
        opened: Opened,
        ask: Callable[[str], bool] | None = None,
    ) -> None:
        self.connection, self.request, self.say, self.opened, self.ask = connection, request, say, opened, ask
        self.facts: RunFacts | None = None
        self.service: Service | None = None  # what the route leads to
        self.route: routes.OpenRoute | None = None
        self.port = request.port
        self.token = ""
        self.shown: tuple[str, ...] = ()
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
        connection = self.connection
        connection.open(ask=self.ask is not None)
        while True:
            call = Call(connection, ["tunnel", "--serve", "feed", "--", self.request.run])
            try:
                call.begin()
                if self._follow(call):
                    return
            except LinkError:
                if call.code not in (None, 255) and connection.alive():
                    raise  # it is the hpcml there that ended, not the line
                self.close()
                if connection.alive():  # another command has logged in again already
                    self.say(f"The link to {connection.host} was lost; following the run again.")
            finally:
                call.stop()
            self._reconnect()

    def close(self) -> None:
        """Take back what this tunnel has open; the connection stays for the next command."""
        if self.route is not None:
            route, self.route = self.route, None
            route.close(self.connection)

    # -- following -------------------------------------------------------------------------------------------------

    def _follow(self, call: Call) -> bool:
        """Act on what the login node says until the run has ended (True) or the line is lost (False)."""
        heard = time.monotonic()
        while True:
            if call.news.wait(TICK):
                call.news.clear()
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENT:
                self.say(f"{self.connection.host} has said nothing for {SILENT:g} s; asking it anew.")
                return False
            code = call.child.wait(0)  # asked before its last facts are read, so that none is missed
            if (facts := call.facts.get("standing")) and facts.over:
                self.close()
                tell_end(facts, self.say)
                return True
            if code is not None:
                raise _remote_failure(call, call.end())
            if facts:
                self.facts = facts
                self._show(facts)
                self._keep(facts)

    def _show(self, facts: RunFacts) -> None:
        """Say how the run stands, once for each change; nothing while the tunnel is open."""
        message = facts.message
        if facts.state == "PENDING":
            if any(sign in message for sign in _NEVER):
                self.close()
                hint = f"Look at it: hpcml status {facts.run}; end it: hpcml cancel {facts.run}."
                message = f"The run will not start: {message}"
                raise HpcmlError(message, place=f"job {facts.job}", hint=hint, exit_status=UNAVAILABLE)
            estimate = facts.estimate
            message += f"; Slurm's estimate of the start: {estimate}" if estimate else "; Slurm has no estimate yet"
        shown = (facts.state, message)
        if shown != self.shown and self.route is None and not facts.over:
            self.say(f"{facts.run} is {facts.state}: {message}.")
        self.shown = shown

    def _keep(self, facts: RunFacts) -> None:
        """Have the tunnel lead to the run's service as it is now."""
        name = self.request.service
        service = facts.services.get(name)
        if self.route and self.service and service != self.service:
            self.say(
                f"The run is on {service.node} now."
                if service
                else f"The {name} is gone from {self.service.node}; waiting for the run to start again."
            )
            self.close()
        if self.route and self.route.child.code is not None:
            self.say("The route to the node is lost; opening it again.")
            self.close()
        if service and self.route is None and time.monotonic() >= self.retry_at:
            self.service = service
            self._open_or_wait(facts, service)
        if self.route and service and time.monotonic() - self.probed >= PROBE:
            self.probed = time.monotonic()
            self._look(facts, service)
        self._warn(facts)

    def _look(self, facts: RunFacts, service: Service) -> None:
        """Look through the open tunnel; a service that has not answered several times is gone."""
        wrong = service_port.look(self.port, service, self.token)
        self.misses = self.misses + 1 if wrong else 0
        if self.misses >= MISSES:
            hint = f"See what it said: hpcml logs {facts.run} scheduler (on the cluster)."
            message = f"The {self.request.service} does not answer, and the run goes on: {wrong}"
            raise ServiceGoneError(message, place=f"{service.node}:{service.socket}", hint=hint)

    def _warn(self, facts: RunFacts) -> None:
        if self.route is None or not facts.ends:
            return
        left = facts.ends - time.time()
        due = [limit for limit in WARN if left <= limit and limit not in self.warned]
        if due and left > 0:
            self.warned |= set(due)
            self.say(f"The run's time limit is in {max(1, round(left / 60))} min.")

    # -- opening ---------------------------------------------------------------------------------------------------

    def _open_or_wait(self, facts: RunFacts, service: Service) -> None:
        """Open the tunnel; where it was open before, a failure may be the run's end, which Slurm tells later."""
        try:
            self._open(facts, service)
            self.failing = 0.0
        except (TunnelError, ServiceGoneError) as error:
            now = time.monotonic()
            if not self.was_open or (self.failing and now - self.failing > SETTLE):
                raise
            if not self.failing:
                self.failing = now
                self.say(f"{error.message}; waiting for what the cluster says of the run.")
            self.retry_at = time.monotonic() + RETRY

    def _open(self, facts: RunFacts, service: Service) -> None:
        """Find a route to the service and see that it answers there; the first that works is remembered."""
        refused: list[HpcmlError] = []
        for name in routes.in_order(self.connection, self.request.route):
            try:
                route = routes.start(name, self.connection, facts, self.request.service)
            except (TunnelError, ServiceGoneError) as error:
                refused.append(error)
                continue
            try:
                wrong = self._through(route, facts, service)
                if wrong:
                    refused.append(self._why(route, service, wrong))
                    route.close(self.connection)
                    continue
            except BaseException:
                route.close(self.connection)
                raise
            self.route, self.probed, self.misses = route, time.monotonic(), 0
            routes.remember(self.connection, name)
            self.was_open = True
            self.opened(self.port, service, self.token, name)
            return
        quote = tuple(f"{error.place}: {error.message}" for error in refused)
        if any(isinstance(error, ServiceGoneError) for error in refused):
            hint = f"Look at the run: hpcml status {facts.run} (on the cluster)."
            message = f"The {self.request.service}'s socket is not on {service.node}"
            raise ServiceGoneError(message, place=service.socket, hint=hint, quote=quote)
        hint = "Show these lines to the site's support; without ssh and srun --overlap there is no safe way in."
        message = f"The site lets no tunnel through to {service.node}"
        raise TunnelError(message, place=self.connection.host, hint=hint, quote=quote)

    def _through(self, route: routes.OpenRoute, facts: RunFacts, service: Service) -> str:
        """Put the route on a local port and look through it; return what is wrong, or nothing."""
        first = self.port or service_port.port_of(self.connection.host, facts.run, self.request.service)
        for port in [first] if self.request.port else service_port.candidates(first):
            if service_port.is_free(port) and self.connection.forward(port, route.target, route.control):
                route.port = port
                break
        else:
            raise port_taken(first, chosen=bool(self.request.port))
        if self.port and port != self.port:
            self.say(f"Port {self.port} has been taken by another program; the tunnel is on {port} now.")
        self.token = self._token_of(service)
        wrong = service_port.look(port, service, self.token)
        if not wrong:
            self.port = port
        return wrong

    def _token_of(self, service: Service) -> str:
        """Read the service's token over ssh, if it has one; it is kept in memory alone."""
        if not service.token_file:
            return ""
        answer = self.connection.run(self.connection.command(["cat", "--", service.token_file]))
        if answer.code != 0:
            message = "The service's token cannot be read"
            raise ServiceGoneError(message, place=service.token_file, hint=answer.text[-200:])
        return answers.of_token(answer.out, self.connection.host)

    def _why(self, route: routes.OpenRoute, service: Service, wrong: str) -> HpcmlError:
        """Return what it means that a route opened and then did not carry the right answer."""
        if "closed" not in wrong:
            return TunnelError(wrong, place=route.name)
        if route.missing(self.connection):
            return ServiceGoneError(f"The socket is not on {service.node}", place=route.name)
        hop = self.connection.host if route.name == "twohop" else service.node
        return TunnelError(f"{hop} forbids forwarding, or the socket is gone ({wrong})", place=route.name)

    # -- mending ---------------------------------------------------------------------------------------------------

    def _reconnect(self) -> None:
        """Reach the cluster again: at growing distances, within the budget of logins, and asking nobody unasked."""
        lost, delay, most = time.monotonic(), FIRST_DELAY, self.request.retry_for
        if self.connection.alive():
            return
        self.say(f"The link to {self.connection.host} is lost; trying again on the same port.")
        while True:
            try:
                self._log_in_again()
                self.say("The link is back.")
                return
            except LinkError as error:
                if time.monotonic() - lost > most:
                    message = f"{self.connection.host} could not be reached for {most:g} s"
                    raise LinkError(message, place=error.place, hint=error.hint, quote=error.quote) from error
            time.sleep(min(delay, most) * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
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
        certificates = login.certificates(self.connection.settings)
        ends, now = max(certificates, default=float("inf")), time.time()
        if ends <= now:
            message = f"The link is lost, and your certificate ended at {login.clock(ends, now)}"
            again = self.connection.login.renew or "ask your site how"
            hint = f"Get a new certificate, then start the tunnel again: {again}."
            raise LoginNeededError(message, place=self.connection.host, hint=hint)


def port_taken(first: int, *, chosen: bool) -> HpcmlError:
    """Return the error for a port of this machine that is taken; one that nobody chose was followed by others."""
    hint = "Give another with --port." if chosen else "Give one with --port."
    message = f"Port {first} of this laptop is taken" + ("" if chosen else ", and so are the next")
    return HpcmlError(message, place="127.0.0.1", hint=hint, exit_status=UNAVAILABLE)


def _remote_failure(call: Call, exit_status: int) -> HpcmlError:
    """Return why the login node's hpcml ended, in its own words."""
    lines = [line for line in call.errors.splitlines() if line.strip()]
    lines = lines[next((place for place, line in enumerate(lines) if _ERROR.match(line)), 0) :]  # a shell may say more
    message = lines[0].removeprefix("hpcml: ") if lines else f"hpcml there ended with status {exit_status}"
    status = exit_status if exit_status in MEANING else CONFIG
    return HpcmlError(message, place=call.connection.host, hint=" ".join(lines[1:]), exit_status=status)


def tell_end(facts: RunFacts, say: Callable[[str], None]) -> None:
    """Say how the run ended; raise unless it ended well."""
    say(f"{facts.run} has ended: {facts.message}.")
    if facts.exit_status:
        message = f"The run ended with status {facts.exit_status}: {facts.message}"
        raise HpcmlError(message, place=facts.run, hint=facts.hint, exit_status=UNAVAILABLE, quote=facts.quote)
