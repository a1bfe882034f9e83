"""A tunnel: one service of a run on a port of this machine, from the first login until the run's end.

It is in one of six states; what the cluster says of the run, the end of the link and the clock lead to the next:

.. code-block:: text

    CONNECTING                   we are logged in                      WAITING
    WAITING                      the run has the service               OPENING
    OPENING                      it answers through a route            OPEN
    OPEN                         the route ends, or the service moves  OPENING
    OPENING, OPEN                the run has no such service any more  WAITING
    WAITING, OPENING, OPEN       the link to the cluster is lost       LOST
    LOST                         we are logged in again                WAITING
    all but CONNECTING and LOST  the run has ended                     ENDED

A state has a moment at which something is due in it, and a deadline after which a failure in it ends the tunnel. A run
of this machine begins in WAITING and has no link to lose.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import random
import re
import time
from collections.abc import Callable
from typing import NamedTuple

from hpcml import states
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
from hpcml.remote import routes, ssh, tunnel_server
from hpcml.remote.answers import RunFacts, Service
from hpcml.remote.login_call import Call
from hpcml.remote.ssh import Connection
from hpcml.runs import directories
from hpcml.services import OWN

TICK = 1.0  # seconds between looks at the clock
SILENT = 180.0  # seconds without a word of a login node that speaks every ten, and first when its Python is up
PROBE = 15.0  # seconds between looks through the open tunnel
MISSES = 3  # looks in a row without the right answer after which a service counts as gone
SETTLE, RETRY = 90.0, 10.0  # seconds that a tunnel which was open is opened again, and between attempts meanwhile
FIRST_DELAY, LONGEST_DELAY = 2.0, 120.0  # seconds between attempts to reach the cluster again
WARN = (900.0, 300.0, 60.0)  # seconds before the run's end at which that is said
_ERROR = re.compile(r"hpcml: (?!note: )")  # how hpcml begins the error that it ends with

# Called with the port, the service, its token and the route when a tunnel is open.
Opened = Callable[[int, Service, str, str], None]


class State(enum.Enum):
    """What a tunnel is doing."""

    CONNECTING = enum.auto()  # it logs in for the first time
    WAITING = enum.auto()  # the run has no such service: it is queued, starts, or is between two attempts
    OPENING = enum.auto()  # the service is there, and routes to it are tried
    OPEN = enum.auto()  # the port leads to the service
    LOST = enum.auto()  # the cluster cannot be reached
    ENDED = enum.auto()  # the run has ended


class _Phase(NamedTuple):
    """A state, and its two moments by the monotonic clock."""

    state: State
    due: float = 0.0  # when something is to be done in it
    deadline: float = math.inf  # after which a failure in it ends the tunnel


class TunnelRequest(NamedTuple):
    """What a tunnel is asked for."""

    run: str  # its id, or another word that the cluster's hpcml takes for one
    service: str = ""  # empty: the one that the run's kind and form have
    route: str = "auto"  # auto: the first that works
    port: int = 0  # 0: the one that the run's service always has, or the next that is free
    retry_for: float = 600.0  # seconds that a lost cluster is tried again, and a service may take to be ready


@dataclasses.dataclass
class _Open:
    """What an open tunnel is made of."""

    route: routes.Route
    service: Service
    token: str
    misses: int = 0  # looks in a row without the right answer


class Tunnel:
    """One service of one run on a port of this machine.

    Parameters
    ----------
    cluster
        The cluster, opened here and left open for the next command; or a run of this machine.
    say
        Called with a sentence for the user.
    opened
        Called whenever the tunnel is open on a new port or to a new service.
    ask
        Asks the user to log in again and returns whether they will; None where nobody is at a terminal.
    """

    def __init__(
        self,
        cluster: Connection | directories.Run,
        request: TunnelRequest,
        say: Callable[[str], None],
        opened: Opened,
        ask: Callable[[str], bool] | None = None,
    ) -> None:
        self.cluster, self.request, self.say, self.opened, self.ask = cluster, request, say, opened, ask
        self.service = request.service or "dashboard"  # until the cluster says which one it is
        self.phase = _Phase(State.CONNECTING)
        self.latest: RunFacts | None = None
        self.open: _Open | None = None
        self.port = 0  # that it was open on last
        self.shown: tuple[str, ...] = ()
        self.warned: set[float] = set()

    @property
    def connection(self) -> Connection | None:
        """The cluster, None for this machine."""
        return self.cluster if isinstance(self.cluster, Connection) else None

    def run(self) -> None:
        """Keep the tunnel until the run has ended.

        Raises
        ------
        HpcmlError
            With the status that docs/exit-status.md gives each end but a good one.
        """
        if not isinstance(self.cluster, Connection):
            self._become(State.WAITING)
            tunnel_server.feed(self.cluster, self.step, self.request.service, self.request.retry_for)
            return
        self.cluster.open(ask=self.ask is not None)
        self._become(State.WAITING)
        while self.phase.state is not State.ENDED:
            if self.phase.state is State.LOST:
                self._reach_again(self.cluster)
            else:
                self._follow(self.cluster)

    def close(self) -> None:
        """Take back what this tunnel has open; the connection stays for the next command."""
        if self.open is not None:
            link, self.open = self.open, None
            link.route.close()

    # -- the states --------------------------------------------------------------------------------------------------

    def _become(self, state: State, due: float = 0.0, deadline: float = math.inf) -> None:
        """Enter a state; nothing stays open but in OPEN."""
        if state is not State.OPEN:
            self.close()
        self.phase = _Phase(state, due, deadline)

    def step(self, run: RunFacts) -> None:
        """Take in how the run is, change the state accordingly, and do what is due in it.

        Raises
        ------
        HpcmlError
            If the tunnel ends by it, otherwise than with a good end of the run.
        """
        self.service = self.request.service or run.service or self.service
        self.latest, service = run, run.services.get(self.service)
        if run.over:
            self._become(State.ENDED)
            _show_end(run, self.say)
            return
        self._show(run, service)
        if self.open and service != self.open.service:
            if self.connection:
                self.say(_moved(self.service, self.open.service, service))
            self._become(State.OPENING if service else State.WAITING)
        elif self.open and self.open.route.lost:
            self.say("The connection to the node was lost; connecting again.")
            self._become(State.OPENING)
        elif service is None:
            self._become(State.WAITING)
        elif self.phase.state is State.WAITING:
            self._become(State.OPENING)
        if service and time.monotonic() >= self.phase.due:
            if self.open:
                self._look(run, self.open)
            else:
                self._open_or_wait(run, service)
        self._warn(run)

    def _lose(self, connection: Connection) -> None:
        """Enter LOST unless another command has logged in again already."""
        if connection.alive():
            self.say(f"The connection to {connection.host} was lost; following the run again.")
            self._become(State.WAITING)
        else:
            self.say(f"The connection to {connection.host} was lost; opening the tunnel again on the same port.")
            self._become(State.LOST, deadline=time.monotonic() + self.request.retry_for)

    # -- WAITING, and following the run ------------------------------------------------------------------------------

    def _follow(self, connection: Connection) -> None:
        """Act on what the login node says until the run has ended or the line is lost."""
        words = ["tunnel", "--serve", "feed"]
        words += [f"--service={self.request.service}"] if self.request.service else []
        if self.request.service not in ("", *OWN):  # an older hpcml may not know the option
            words.append(f"--retry-for={self.request.retry_for:g}s")
        call = Call(connection, [*words, "--", self.request.run])
        try:
            call.begin()
            self._listen(connection, call)
        except LinkError:
            if call.code not in (None, 255) and connection.alive():
                raise  # it is the hpcml there that ended, not the line
            self._lose(connection)
        finally:
            call.stop()

    def _listen(self, connection: Connection, call: Call) -> None:
        silent_at = time.monotonic() + SILENT
        while self.phase.state is not State.ENDED:
            if call.news.wait(TICK):
                call.news.clear()
                silent_at = time.monotonic() + SILENT
            elif time.monotonic() > silent_at:
                self.say(f"{connection.host} has sent nothing for {SILENT:g} s; connecting again.")
                if not connection.alive():
                    self._lose(connection)
                return
            code = call.child.wait(0)  # asked before its last facts are read, so that none is missed
            standing = call.facts.get("standing")
            if code is not None and not (standing and standing.over):
                raise remote_failure(call, call.end())
            if standing:
                self.step(standing)

    def _show(self, run: RunFacts, service: Service | None) -> None:
        """Say how the run is, once for each change; nothing while the tunnel is open."""
        message = run.message
        if run.state == states.State.PENDING:
            if run.stuck:
                self.close()
                hint = f"Show the run: hpcml status {run.run}. Cancel the run: hpcml cancel {run.run}."
                message = f"The run will not start: {message}"
                raise HpcmlError(message, place=f"job {run.job}", hint=hint, exit_status=UNAVAILABLE)
            estimate = run.estimate
            message += (
                f"; Slurm's estimate of the start: {estimate}"
                if estimate
                else "; Slurm has no estimate of the start yet"
            )
        shown = (run.state, message)
        opens_at_once = service is not None and self.connection is None
        if shown != self.shown and not self.open and not opens_at_once:
            self.say(f"{run.run} is {run.state}: {message}.")
        self.shown = shown

    # -- OPENING -----------------------------------------------------------------------------------------------------

    def _open_or_wait(self, run: RunFacts, service: Service) -> None:
        """Open the tunnel; where it was open before, a failure may be the run's end, which Slurm tells later."""
        try:
            self._open(run, service)
        except (TunnelError, ServiceGoneError) as error:
            now, deadline = time.monotonic(), self.phase.deadline
            if not self.port or now > deadline:
                raise
            if math.isinf(deadline):
                deadline = now + SETTLE
                self.say(f"{error.message}; waiting until the cluster reports the state of the run.")
            self._become(State.OPENING, now + RETRY, deadline)

    def _open(self, run: RunFacts, service: Service) -> None:
        """Find a route to the service and see that it answers there; the first that works is remembered."""
        refused: list[HpcmlError] = []
        for name in routes.in_order(self.connection, self.request.route):
            try:
                route = routes.start(name, self.connection, run, self.service)
            except (TunnelError, ServiceGoneError) as error:
                refused.append(error)
                continue
            try:
                token, wrong = self._through(route, run, service)
                if wrong:
                    refused.append(route.failure(wrong))
                    route.close()
                    continue
            except BaseException:
                route.close()
                raise
            # A socket of this machine is not looked at: its record goes with it.
            self._become(State.OPEN, time.monotonic() + PROBE if self.connection else math.inf)
            self.open = _Open(route, service, token)
            routes.remember(self.connection, name)
            self.opened(self.port, service, token, name)
            return
        raise self._refusal(refused, run, service)

    def _refusal(self, refused: list[HpcmlError], run: RunFacts, service: Service) -> HpcmlError:
        """Return the error that no route leads to the service."""
        name = self.service
        if self.connection is None:
            hint = f"See hpcml status {run.run}."
            message = f"The {name} does not respond: {refused[0].message}"
            return ServiceGoneError(message, place=service.socket, hint=hint)
        quote = tuple(f"{error.place}: {error.message}" for error in refused)
        if any(isinstance(error, ServiceGoneError) for error in refused):
            hint = f"On the cluster, run: hpcml status {run.run}."
            message = f"The {name}'s socket file does not exist on {service.node}"
            return ServiceGoneError(message, place=service.socket, hint=hint, quote=quote)
        hint = "Show this message to the site's support. A tunnel needs ssh to the compute node, or srun --overlap."
        message = f"The site does not allow a tunnel to {service.node}"
        return TunnelError(message, place=self.connection.host, hint=hint, quote=quote)

    def _through(self, route: routes.Route, run: RunFacts, service: Service) -> tuple[str, str]:
        """Put the route on a local port and look through it; return the token, and what is wrong or nothing."""
        host, chosen = self.connection.host if self.connection else "", self.request.port
        first = self.port or chosen or routes.port_of(host, run.run, self.service)
        port = next((port for port in ([first] if chosen else routes.candidates(first)) if route.take(port)), 0)
        if not port:
            raise _port_taken(first, chosen=bool(chosen))
        if self.port not in (0, port):
            self.say(f"Another program is using port {self.port}. The tunnel now uses port {port}.")
        token = routes.token_of(self.connection, service)
        wrong = routes.look(port, service, token)
        if not wrong:
            self.port = port
        return token, wrong

    # -- OPEN --------------------------------------------------------------------------------------------------------

    def _look(self, run: RunFacts, link: _Open) -> None:
        """Look through the open tunnel; a service that has not answered several times is gone."""
        self.phase = self.phase._replace(due=time.monotonic() + PROBE)
        wrong = routes.look(self.port, link.service, link.token)
        link.misses = link.misses + 1 if wrong else 0
        if link.misses >= MISSES:
            own = f"See the Dask scheduler's log: hpcml logs {run.run} scheduler (on the cluster)."
            hint = own if self.service in OWN else f"See the script's output: hpcml logs {run.run} (on the cluster)."
            message = f"The run continues, but its {self.service} does not respond: {wrong}"
            place = f"{link.service.node}:{link.service.socket}"
            raise ServiceGoneError(message, place=place, hint=hint)

    def _warn(self, run: RunFacts) -> None:
        """Say that the run's time limit is near."""
        if self.open is None or not run.ends:
            return
        left = run.ends - time.time()
        due = [limit for limit in WARN if left <= limit and limit not in self.warned]
        if due and left > 0:
            self.warned |= set(due)
            self.say(f"The run reaches its time limit in {max(1, round(left / 60))} min.")

    # -- LOST --------------------------------------------------------------------------------------------------------

    def _reach_again(self, connection: Connection) -> None:
        """Log in again: at growing distances, within the budget of logins, and asking nobody unasked."""
        delay, most = FIRST_DELAY, self.request.retry_for
        while self.phase.state is State.LOST:
            time.sleep(max(0.0, self.phase.due - time.monotonic()))
            try:
                self._log_in_again(connection)
            except LinkError as error:
                now, deadline = time.monotonic(), self.phase.deadline
                if now >= deadline:
                    message = f"hpcml could not reach {connection.host} for {most:g} s"
                    raise LinkError(message, place=error.place, hint=error.hint, quote=error.quote) from error
                pause = min(delay, most) * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
                self._become(State.LOST, now + pause, deadline)
                delay = min(delay * 2, LONGEST_DELAY)
            else:
                self.say("The connection to the cluster is open again.")
                self._become(State.WAITING)

    def _log_in_again(self, connection: Connection) -> None:
        try:
            _refuse_ended_certificate(connection)
            connection.open(ask=False)
        except LoginNeededError as error:
            if self.ask is None or not self.ask(str(error)):
                raise
            connection.open(ask=True)


def _refuse_ended_certificate(connection: Connection) -> None:
    """Raise where a login is bound to fail: it would count as one, and sites block who fails too often."""
    ends, now = max(ssh.certificates(connection.settings), default=math.inf), time.time()
    if ends <= now:
        message = f"The connection to the cluster was lost, and your ssh certificate expired at {ssh.clock(ends, now)}"
        again = connection.login.renew or "ask your site how"
        hint = f"Get a new certificate ({again}), then start the tunnel again."
        raise LoginNeededError(message, place=connection.host, hint=hint)


def _port_taken(first: int, *, chosen: bool) -> HpcmlError:
    """Return the error for a port of this machine that is taken; one that nobody chose was followed by others."""
    hint = "Choose another port with --port." if chosen else "Choose a port with --port."
    message = f"Port {first} of this laptop is in use" + ("" if chosen else ", and the next ports are too")
    return HpcmlError(message, place="127.0.0.1", hint=hint, exit_status=UNAVAILABLE)


def _moved(name: str, before: Service, service: Service | None) -> str:
    """Return the sentence that a service is in another place now, or in none."""
    if service is None:
        again = "the run to start again" if name in OWN else "it"
        return f"The {name} on {before.node} ended; waiting for {again}."
    return f"The run is now on {service.node}."


def remote_failure(call: Call, exit_status: int) -> HpcmlError:
    """Return the error with which the login node's hpcml ended, in its own words."""
    lines = [line for line in call.errors.splitlines() if line.strip()]
    lines = lines[next((place for place, line in enumerate(lines) if _ERROR.match(line)), 0) :]  # a shell may say more
    message = lines[0].removeprefix("hpcml: ") if lines else f"hpcml on the login node exited with status {exit_status}"
    status = exit_status if exit_status in MEANING else CONFIG
    return HpcmlError(message, place=call.connection.host, hint=" ".join(lines[1:]), exit_status=status)


def _show_end(run: RunFacts, say: Callable[[str], None]) -> None:
    """Say how the run ended; raise unless it ended well."""
    say(f"{run.run} has ended: {run.message}.")
    if run.exit_status:
        message = f"The run ended with status {run.exit_status}: {run.message}"
        raise HpcmlError(message, place=run.run, hint=run.hint, exit_status=UNAVAILABLE, quote=run.quote)
