"""The login node's part of a tunnel, called over ssh: the run's state, line by line, and the ways on to its node."""

from __future__ import annotations

import http.client
import math
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hpcml import safe_files, schedulers, subprocesses
from hpcml.config_trust import HPCML
from hpcml.errors import NotFoundError, ServiceGoneError, StorageError, TunnelError
from hpcml.gpu_vendor import VENDOR
from hpcml.remote import routes
from hpcml.remote.answers import Relay, RunFacts, Service
from hpcml.remote.ssh import literal, options, quoted
from hpcml.remote.tunnel_target import ASKED, Sought
from hpcml.runs import directories, waiting
from hpcml.runs import record as run_record
from hpcml.runs import status as run_status
from hpcml.services import OWN
from hpcml.states import PENDING, Phase, State, Wait
from hpcml.typed_json import DamagedError, read

BEAT = 10.0  # seconds between lines when nothing changes: who reads them sees that we live, we that somebody reads
LOOK, LOOK_AGAIN = 0.5, 3.0  # seconds between looks for services, before there is one and after
COMPLETING = 20.0  # seconds that Slurm has to say whether an ended job is over or goes back into the queue
REQUEUE_LOOK = 5.0  # seconds between questions about a job that is back in the queue
HOP_DEADLINE = 20.0  # seconds for the login node's ssh to the compute node
_HOP = "hpcml-hop."


def services(run: directories.Run) -> dict[str, Service]:
    """Return the services of the run's newest attempt that are ready, by name; an attempt that has ended has none.

    Raises
    ------
    StorageError
        If a service's record cannot be read, or names a token that is not one of this attempt's secrets.
    """
    number = run_record.newest_attempt(run.paths)
    if number is None or (attempt := run.paths.attempt(number)).ended.exists():
        return {}
    ready = {name: known.note for name, known in run_record.services(run.paths).items() if not known.clause}
    tables = {name: directories.read_json(attempt.service_of(name)) for name in ready}
    records = {name: {**table.facts, "note": ready[name]} for name, table in tables.items() if table}
    for name, record in records.items():
        token = record.get("token_file")
        if token and Path(str(token)).resolve().parent != attempt.secret.resolve():
            hint = f"Someone changed this file. The token file must be in {attempt.secret}."
            raise StorageError(
                "The service's file names a token file in a wrong folder",
                place=f"{attempt.service_of(name)}: {token}",
                hint=hint,
            )
    return {name: _service(record, attempt.service_of(name)) for name, record in records.items()}


def _service(record: object, path: Path) -> Service:
    try:
        return read(Service, record)
    except DamagedError as error:
        hint = "Someone changed this file, or another version of hpcml wrote it."
        raise StorageError(f"The value of '{error.key}' is malformed", place=str(path), hint=hint) from error


def service(run: directories.Run, name: str) -> Service:
    """Return one of the run's services; wait a moment for the node's agent if a port has to be asked for.

    Raises
    ------
    NotFoundError
        If the run has none of that name now: it is starting, has ended, or is not of that kind.
    UsageError
        If the run cannot have such a service.
    """
    sought, until = Sought(run, name, ASKED), time.monotonic() + ASKED
    name, why = sought.name, ""
    while name not in (now := services(run)) and time.monotonic() < until:
        if not (why := sought.look(run_status.status(run))):
            break
        time.sleep(LOOK)
    if name in now:
        return now[name]
    hint = f"Services of the run: {', '.join(now)}." if now else f"See hpcml status {run.id}."
    if why:
        raise NotFoundError(f"The run's {name} is not ready: {why}", place=run.id, hint=hint)
    offered = run_record.planned(run).form.traits.web_service
    if name == "jupyter" and offered != name:
        raise NotFoundError(
            "The run is not a JupyterLab session", place=run.id, hint=f"Start a session with hpcml jupyter. {hint}"
        )
    if name in ("dashboard", "jupyter") and not run.paths.status.exists():
        hint = f"Try again later. Show the run's state: hpcml status {run.id}."
        raise NotFoundError(f"The run's {name} is starting", place=run.id, hint=hint)
    raise NotFoundError(f"The run's {name} is not running now", place=run.id, hint=hint)


def facts(run: directories.Run, status: run_status.Status, sought: Sought) -> RunFacts:
    """Return all that the other end of a tunnel has to know of a run; errors as of :meth:`Sought.look`."""
    state, message, now = status.state, status.message, services(run)
    if status.allocation.job_state in PENDING and state in (State.RUNNING, State.UNKNOWN):
        state, message, now = State.PENDING, "requeued: the job will start again", {}
    if why := sought.look(status):
        message += f"; {sought.name} is not ready: {why}"
    return RunFacts(
        run=run.id,
        job=status.allocation.job or run.job,
        state=state,
        message=message,
        estimate=status.allocation.estimate,
        services={name: now[name] for name in (*OWN, sought.name) if name in now},
        ends=limit_of(run, status),
        exit_status=status.exit_status,
        hint=status.hint,
        quote=run_status.quote(run, status),
        stuck=_is_stuck(status.allocation.wait),
        service=sought.name,
    )


def limit_of(run: directories.Run, status: run_status.Status) -> float | None:
    """Return the end of a run by its time limit, in seconds since 1970; None without a limit, or before the run."""
    limit, began = run_record.planned(run).time_limit, status.progress.times.get("allocated")
    return began + limit if limit and began else None


def _is_stuck(wait: Wait) -> bool:
    return wait.is_vain or wait is Wait.HELD


def feed(run: directories.Run, say: Callable[[RunFacts], None], name: str = "", patience: float = math.inf) -> None:
    """Say how the run is whenever that changes, and at least every 10 s, until it has ended.

    The run's own files are looked at often, Slurm as seldom as :func:`hpcml.runs.waiting.follow` does. Errors are those
    of :class:`Sought`, whose parameters ``name`` and ``patience`` are.
    """
    sought = Sought(run, name, patience)
    status: run_status.Status | None = None
    last: RunFacts | None = None
    sent = looked = -BEAT

    def look() -> None:
        nonlocal last, sent, looked
        now = time.monotonic()
        pause = LOOK_AGAIN if last and last.services else LOOK
        if status is None or status.phase == Phase.ENDED or now - looked < pause:
            return
        looked, current = now, facts(run, status, sought)
        if current != last or now - sent >= BEAT:
            last, sent = current, now
            say(current)

    while True:
        for current in waiting.follow(run, look, patience=float("inf")):
            status, looked = current, -BEAT
            look()
        if status is None or not _starts_again(run, status, say, sought):
            break
    if status is not None:
        say(facts(run, status, sought))


def _starts_again(
    run: directories.Run, status: run_status.Status, say: Callable[[RunFacts], None], sought: Sought
) -> bool:
    """Whether Slurm took the job back into its queue when the attempt ended; wait until the next attempt begins."""
    again = False
    began = len(run_record.Record(run.paths).events)
    until = time.monotonic() + COMPLETING
    while run.submission and run.job and status.phase == Phase.ENDED:
        state = schedulers.state(run.submission)
        if not state.pending and not (state.active and (again or time.monotonic() < until)):
            return False
        if state.pending:
            again = True
            message = f"requeued: {state.reason}"
            waits = facts(run, status, sought)._replace(state=State.PENDING, message=message, services={})
            say(waits._replace(estimate=state.start, stuck=_is_stuck(state.wait)))
        if any(event.name == "allocated" for event in run_record.Record(run.paths).events[began:]):
            return True
        time.sleep(REQUEUE_LOOK if again else LOOK)
    return False


# -- two hops --------------------------------------------------------------------------------------------------------


def hop(target: Service, say: Callable[[str], None]) -> None:
    """Have a socket of mode 0600, in a new folder of mode 0700 on this node, lead to the service until interrupted.

    Parameters
    ----------
    say
        Called with the socket's path once the service answers through it.

    Raises
    ------
    TunnelError
        If this node may not ssh to the service's node, or not forward there.
    ServiceGoneError
        If the service's socket is not there.
    """
    folder = routes.process_folder(Path(tempfile.gettempdir()), _HOP)
    host, here = socket.gethostname(), folder / "s"
    quiet = ["ssh", "-T", *options(BatchMode="yes", ForwardAgent="no", ControlMaster="no", ControlPath="none")]
    forward = options(
        ExitOnForwardFailure="yes", StreamLocalBindUnlink="yes", StreamLocalBindMask="0177", ServerAliveInterval="15"
    )
    try:
        command = [*quiet, "-N", *forward, "-L", f"{here}:{target.socket}", "--", target.node]
        child = subprocesses.Child(command, program=HPCML)
        try:
            deadline = time.monotonic() + HOP_DEADLINE
            while not here.exists() and child.wait(0.02) is None and time.monotonic() < deadline:
                pass
            if not here.exists():
                late = f"no response within {HOP_DEADLINE:g} s"
                why = _last_line(child, late) if child.code is not None else late
                raise TunnelError(f"ssh from {host} to {target.node} failed: {why}", place="two hops")
            try:
                routes.get(str(here), target.probe or target.path)
            except TimeoutError as error:
                message = f"The service on {target.node} does not respond in time"
                raise TunnelError(message, place="two hops") from error
            except (OSError, http.client.HTTPException) as error:
                raise _silent([*quiet, "--", target.node], target) from error
            say(str(here))
            child.wait(None)  # as long as the laptop is there: its end interrupts
            why = _last_line(child, "ssh gave no reason")
            raise TunnelError(f"ssh from {host} to {target.node} ended: {why}", place="two hops")
        finally:
            child.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _last_line(child: subprocesses.Child, otherwise: str) -> str:
    return (child.errors.strip().splitlines() or [otherwise])[-1]


def _silent(ssh: list[str], target: Service) -> TunnelError | ServiceGoneError:
    """Return the error if nothing answers behind a forward that was made."""
    look = [*ssh, shlex.join(["test", "-S", target.socket])]
    socket_test = subprocesses.run(look, HOP_DEADLINE, program=HPCML)
    if socket_test.code == 1:
        return ServiceGoneError(f"The socket is not on {target.node}", place=target.socket)
    return TunnelError(f"sshd on {target.node} forbids ssh forwarding", place="two hops")


# -- a step of the job -----------------------------------------------------------------------------------------------

# sshd speaks on its standard input and output, opens no port, knows one key of this session, gives no shell.
_SSHD = """\
HostKey {host}
AuthorizedKeysFile {authorized}
PidFile none
UsePAM no
StrictModes yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PubkeyAuthentication yes
PermitTTY no
PermitUserRC no
PermitUserEnvironment no
ForceCommand /bin/false
X11Forwarding no
AllowAgentForwarding no
# OpenSSH lets no socket through either where this is "no"
AllowTcpForwarding local
AllowStreamLocalForwarding local
PermitTunnel no
GatewayPorts no
ClientAliveInterval 15
LogLevel ERROR
"""
_STEP = """
[ -z "$1" ] || [ -S "$1" ] || { echo "hpcml: the socket is not on $(hostname)" >&2; exit 66; }
config=$2 mode=$3 gpus=${GPUS+" GPUS=$GPUS"}; shift 3
for sshd in /usr/sbin/sshd /usr/lib/ssh/sshd /usr/local/sbin/sshd; do
  [ -x "$sshd" ] || continue
  "$sshd" "$mode" -e -f "$config" ${1+-o "SetEnv=$* HPCML_NODE=$(uname -n)$gpus"}
  status=$?; [ "$mode" = -t ] && exit $status; exit 0  # 255 as a client leaves, of which srun would speak
done
echo "hpcml: there is no sshd on $(hostname)" >&2; exit 69
"""


def prepare(run: directories.Run, public: str) -> Relay:
    """Make the files of an sshd that one key may use, in the attempt's secret folder; return folder and host key.

    Raises
    ------
    NotFoundError
        If the run has no attempt.
    TunnelError
        If ``public`` is not a public key, or no host key can be made.
    StorageError
        If the files cannot be written.
    """
    number = run_record.newest_attempt(run.paths)
    if number is None:
        raise NotFoundError("The run has not started", place=run.id, hint="Wait until the run starts.")
    if len(public.split()) < 2 or "\n" in public.strip() or not public.startswith("ssh-"):
        raise TunnelError("The laptop sent no valid ssh public key", place="srun")
    secret = run.paths.attempt(number).secret
    with directories.storage(secret):
        secret.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="relay-", dir=secret))
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", run.id, "-f", str(folder / "host")]
        answer = subprocesses.run(command, 20.0, program=HPCML)
        if answer.code != 0:
            message = f"hpcml could not create a host key for the tunnel's sshd: {answer.text}"
            raise TunnelError(message, place="ssh-keygen")
        safe_files.write(folder / "authorized", public.strip() + "\n")
        authorized = quoted(literal(str(folder / "authorized")))
        safe_files.write(folder / "config", _SSHD.format(host=quoted(str(folder / "host")), authorized=authorized))
        return Relay(str(folder), (folder / "host.pub").read_text().strip())


def relay(run: directories.Run, target: Service, folder: str) -> None:
    """Become a job step on the service's node whose standard input and output are an sshd's.

    Raises
    ------
    StorageError
        If the folder is not one of :func:`prepare`.
    TunnelError
        If srun is missing.
    """
    become(run, step(run, target.node, folder, target.socket))


def step(
    run: directories.Run,
    node: str,
    folder: str,
    socket: str = "",
    *variables: str,
    mode: str = "-i",
    whole: bool = False,
) -> list[str]:
    """Return the words that start an sshd of :func:`prepare` in a job step; StorageError if there is no such folder.

    ``socket`` must be on the node, unless it is empty. ``variables`` are those of the sessions, as SetEnv of sshd takes
    them. ``mode`` is sshd's: -i serves one connection, -t tests the files. ``whole``: with all the run's CPUs and GPUs.
    """
    config = run.paths.attempt(run_record.newest_attempt(run.paths) or 0).secret / Path(folder).name / "config"
    if not config.is_file():
        raise StorageError(
            "The tunnel's temporary folder on the cluster does not exist", place=folder, hint="Start the tunnel again."
        )
    submission = run.submission or schedulers.Submission()
    nodes = schedulers.nodes_of(submission.scheduler)
    command = ["/bin/sh", "-c", _STEP.replace("GPUS", VENDOR.visible), "sh", socket, str(config), mode, *variables]
    return [*(nodes.step_on(submission.key, node, "hpcml-tunnel", whole=whole) if nodes else ()), *command]


def become(run: directories.Run, command: list[str]) -> None:
    """Become a job step of :func:`step`; TunnelError if srun is missing."""
    try:
        environment = schedulers.get((run.submission or schedulers.Submission()).scheduler).clean_environment()
        subprocesses.become(command, environment, program=HPCML)
    except subprocesses.CommandMissingError as error:
        raise TunnelError(f"srun could not be started: {error}", place="srun") from error


def lines(target: Service, login: str, user: str, port: int) -> list[tuple[str, str]]:
    """Return plain ssh commands for a laptop without hpcml, each with when it is the one; none holds a secret."""
    who = f"{user}@" if user else ""
    path, node = shlex.quote(target.socket), target.node
    forward = f"ssh -N -o ExitOnForwardFailure=yes -L 127.0.0.1:{port}:"
    inner = (
        "umask 077; D=$(mktemp -d /tmp/hpcml.XXXXXXXX) && echo $D/s && exec ssh -N -T -o BatchMode=yes "
        f"-o ExitOnForwardFailure=yes -o StreamLocalBindMask=0177 -L $D/s:{path} {node}"
    )
    return [
        ("if your laptop may log in to the compute nodes", f"{forward}{path} -J {who}{login} {who}{node}"),
        (
            "if only the login node may log in to these nodes (replace PATH with the output of the first command)",
            f"ssh -tt {who}{login} {shlex.quote(inner)}",
        ),
        ("", f"{forward}PATH {who}{login}"),
    ]
