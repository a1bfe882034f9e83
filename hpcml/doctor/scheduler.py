"""Checks of what Slurm says: of the account, the QoS, the partition, its configuration, and of a request."""

from __future__ import annotations

import datetime
import re

from hpcml import schedulers, units
from hpcml.doctor.finding import Examination, Finding, clause, green, not_applicable, red, yellow
from hpcml.errors import MEANING, HpcmlError, SlurmUnreachableError
from hpcml.runs import forecast
from hpcml.schedulers import machine
from hpcml.sites.schema import Partition

_NO_LIMIT = ("UNLIMITED", "INFINITE", "NONE", "")
_FEW_LEFT = 0.05  # of a grant
_STARTS_SOON = 60.0  # seconds
_NO_TIME = 0.2  # seconds; with less left the deadline ended the question


def request(exam: Examination) -> Finding:
    """Whether hpcml itself would submit a request of this user."""
    if exam.site.unsupported:
        return not_applicable("hpcml does not work on this site: see the check 'profile'")
    prepared = exam.prepared()
    if schedulers.get(exam.site.scheduler).ONE_MACHINE:
        return green("a run would start on this machine, without Slurm")
    chosen = dict(prepared.plan.directives)
    asked = {name: chosen.get(f"--{name}", "") for name in ("partition", "account", "qos")}
    request_text = ", ".join(f"{name} {value}" for name, value in asked.items() if value) or "Slurm's default resources"
    return green(f"a run would request {request_text}", **asked)


def start(exam: Examination) -> Finding:
    """When Slurm would start a job, which shows that its controller answers and takes it."""
    try:
        exam.prepared()
    except HpcmlError:
        return not_applicable("hpcml did not ask Slurm for a start time, because the check 'request' failed")
    try:
        start_time = exam.start().start
    except SlurmUnreachableError as error:
        late = exam.left() < _NO_TIME
        within = f" within {exam.seconds:g} s" if late else ""
        return red(
            f"{clause(error.message)}{within}", f"{error.hint}{' To wait longer: --deadline 30s.' if late else ''}"
        )
    except HpcmlError as error:
        lines = [line.removeprefix("sbatch: error: ") for line in error.quote]
        quoted = f" ({'; '.join(lines)})" if lines else ""
        return red(f"Slurm would refuse a run: {clause(error.message)}{quoted}", error.hint)
    if not start_time:
        return green("Slurm would accept a job, but gives no start time")
    begins = datetime.datetime.fromisoformat(start_time)
    waits = (begins - datetime.datetime.now()).total_seconds()  # noqa: DTZ005 - as sbatch tells it
    when = "now" if waits < _STARTS_SOON else f"in {units.format_seconds(waits)}"
    return green(f"Slurm would start a job {when}", start=start_time, waits=max(0, round(waits)))


def account(exam: Examination) -> Finding:
    """Whether the account may use the partition and the QoS that a run asks for."""
    chosen = exam.directives()
    name, partition, qos = (chosen.get(f"--{option}", "") for option in ("account", "partition", "qos"))
    associations = schedulers.machine_of(exam.site.scheduler).associations(exam.left())
    if isinstance(associations, str):
        return not_applicable(f"Slurm's accounting does not list your accounts: {associations}")
    names = sorted({association.account for association in associations})
    if not names:
        return red("Slurm's accounting has no account for you", "Ask your project's manager to add you.")
    details = {"account": name, "partition": partition, "accounts": names}
    if not name:
        return green(f"runs use your default account; your accounts: {', '.join(names)}", **details)
    of_account = [association for association in associations if association.account == name]
    if not of_account:
        hint = f"Add --account {names[0]}, or set defaults.account in ~/.config/hpcml/config.toml."
        return red(f"account {name} is not one of your accounts, which are {', '.join(names)}", hint, **details)
    fitting = [association for association in of_account if association.partition in ("", *partition.split(","))]
    if not fitting:
        partitions = sorted({association.partition for association in of_account})
        hint = f"Use --partition {partitions[0]}, or another --account."
        return red(
            f"account {name} may use only partition {', '.join(partitions)}, not partition {partition}", hint, **details
        )
    allowed = sorted({word for association in fitting for word in association.qos})
    if qos and allowed and qos not in allowed:
        hint = f"Use --qos {allowed[0]}, or ask your project's manager for QoS {qos}."
        return red(f"account {name} may use only QoS {', '.join(allowed)}, not QoS {qos}", hint, **details, qos=allowed)
    return green(f"you may use account {name}{f' in partition {partition}' if partition else ''}", **details)


def budget(exam: Examination) -> Finding:
    """Whether the account has anything left to spend today."""
    chosen = exam.directives()
    name = chosen.get("--account", "")
    command, named = forecast.budget_command(exam.wanted, chosen.get("--partition", ""))
    if not command:
        return not_applicable("the profile has no command that shows granted compute time (cost.budget)")
    if not name:
        return not_applicable("runs name no account (--account), so hpcml cannot check the granted compute time")
    grant = forecast.ask_budget(command, exam.site.cost.budget_row, name, exam.left(), named)
    if isinstance(grant, str):
        return not_applicable(f"hpcml cannot read how much of the granted compute time is left: {grant}")
    details = {"account": name, "total": grant.total, "used": grant.used}
    sentence = f"{grant.left:g} of {grant.total:g} {exam.site.cost.unit} of account {name} are left"
    if grant.left <= 0:
        return red(sentence, "Apply for more compute time, or use another --account.", **details)
    if grant.left < _FEW_LEFT * grant.total:
        return yellow(sentence, "Apply for more compute time before the granted time is used up.", **details)
    return green(sentence, **details)


def default_qos(exam: Examination) -> Finding:
    """Whether a run lands on nodes without GPUs because it names no QoS, or that one."""
    cpu_only = [name for name, one in exam.site.qos.items() if one.without_gpus]
    if not cpu_only:
        return not_applicable("the profile has no QoS for nodes without GPUs (qos.NAME.without_gpus)")
    chosen = exam.directives()
    asked, name = chosen.get("--qos", ""), chosen.get("--account", "")
    others = [qos for qos in exam.site.qos if qos not in cpu_only]
    hint = "Use another --qos."
    if others:
        hint = f"Use --qos {others[0]}, or set defaults.qos in ~/.config/hpcml/config.toml."
    if asked in cpu_only:
        return red(f"runs use QoS {asked}, which is for nodes without GPUs", hint, asked=asked)
    if asked:
        return green(f"runs use QoS {asked}; QoS for nodes without GPUs: {', '.join(cpu_only)}", asked=asked)
    associations = schedulers.machine_of(exam.site.scheduler).associations(exam.left())
    if isinstance(associations, str):
        return yellow(f"runs use your default QoS, but Slurm does not show its name: {associations}", hint)
    of_account = [association for association in associations if association.account == name or not name]
    defaults = sorted({association.default_qos for association in of_account} - {""})
    if bad := sorted({*defaults} & {*cpu_only}):
        return red(f"runs use the default QoS {bad[0]}, which is for nodes without GPUs", hint, defaults=defaults)
    sentence = (
        f"Slurm's default QoS for you is {', '.join(defaults)}" if defaults else "Slurm has no default QoS for you"
    )
    return green(sentence, defaults=defaults)


def submit_limit(exam: Examination) -> Finding:
    """How many more jobs of this user Slurm takes."""
    room = schedulers.machine_of(exam.site.scheduler).room([*exam.directives().items()], exam.left())
    if room is None:
        return not_applicable("Slurm reports no limit of submitted jobs")
    if room == 0:
        return red(
            "you have reached Slurm's limit of submitted jobs",
            "Wait until one of your jobs ends, or cancel a job.",
            room=room,
        )
    return green(f"Slurm's limits let you submit {units.counted(room, 'more job')}", room=room)


def partition(exam: Examination) -> Finding:
    """Whether the partition is up, and has the limits that the profile believes."""
    names = exam.directives().get("--partition", "")
    if not names:
        return not_applicable("runs name no partition")
    findings = [_partition(exam, name) for name in names.split(",")]
    return next((finding for finding in findings if finding.state != "green"), findings[0])


def _partition(exam: Examination, name: str) -> Finding:
    settings = schedulers.machine_of(exam.site.scheduler).partition(name, exam.left())
    if isinstance(settings, str):
        return not_applicable(f"Slurm does not describe partition {name}: {settings}")
    if not settings:
        return red(f"there is no partition {name}", "Choose another --partition (list them: sinfo -s).")
    details = {key: settings.get(key, "") for key in ("State", "MaxTime", "MaxNodes")}
    if settings.get("State", "UP") != "UP":
        hint = "Wait for the end of the maintenance, or choose another --partition."
        return red(f"partition {name} is {settings['State']}: jobs wait", hint, **details)
    in_profile = exam.site.partitions.get(name, Partition())
    wrong = []
    if in_profile.max_time and settings.get("MaxTime", "") not in _NO_LIMIT:
        theirs = units.parse_time_limit(settings["MaxTime"])
        if int(in_profile.max_time) > theirs:
            wrong.append(f"max_time is {in_profile.max_time.text}, but {settings['MaxTime']} in Slurm")
    if (
        in_profile.max_nodes
        and settings.get("MaxNodes", "").isdecimal()
        and in_profile.max_nodes > int(settings["MaxNodes"])
    ):
        wrong.append(f"max_nodes is {in_profile.max_nodes}, but {settings['MaxNodes']} in Slurm")
    if wrong:
        hint = f"Copy Slurm's values to [partitions.{name}] of ~/.config/hpcml/config.toml."
        return yellow(f"the profile has wrong values for partition {name}: {'; '.join(wrong)}", hint, **details)
    return green(f"partition {name} is up{' and matches the profile' if in_profile != Partition() else ''}", **details)


def configuration(exam: Examination) -> Finding:
    """Whether Slurm is configured as the profile and hpcml believe."""
    settings = schedulers.machine_of(exam.site.scheduler).configuration(exam.left())
    if isinstance(settings, str):
        return not_applicable(f"Slurm does not report its configuration: {settings}")
    return judge_configuration(settings, exam)


def judge_configuration(settings: dict[str, str], exam: Examination) -> Finding:
    """Return the differences of Slurm's configuration from the profile and from hpcml's defaults, the worst first."""
    names = (machine.VERSION, "MaxArraySize", "MaxJobCount", "JobRequeue", "KillWait", "MaxBatchRequeue", "RequeueExit")
    details = {
        key: settings[key]
        for key in (*names, "RequeueExitHold", "PriorityFlags", "EnforcePartLimits")
        if key in settings
    }

    def number(key: str) -> int | None:
        match = re.match(r"\d+", settings.get(key, ""))
        return int(match[0]) if match else None

    wait, grace = machine.kill_wait(settings), exam.site.deadlines.script_grace
    if wait is not None and wait <= float(grace):
        sentence = f"Slurm kills a job {wait} s after SIGTERM (KillWait), but deadlines.script_grace is {grace.text}"
        lost = "a script may be killed before it has saved its state, and hpcml before it has written how the run ended"
        return yellow(f"{sentence}: {lost}", machine.grace_within(wait), **details)
    again = {word for key in ("RequeueExit", "RequeueExitHold") for word in re.findall(r"\d+", settings.get(key, ""))}
    if ours := sorted(int(word) for word in again if int(word) in MEANING):
        hint = "If slurm.extra of the profile contains --requeue, remove --requeue. If not, ask the site's support."
        sentence = f"Slurm requeues jobs that exit with status {ours[0]}, but in hpcml this status means"
        return yellow(f"{sentence}: {MEANING[ours[0]]}", hint, **details)
    if (most := number("MaxArraySize")) is not None and most < 2:
        return yellow("job arrays are off (MaxArraySize)", "Use hpcml sweep instead of hpcml.map.", **details)
    theirs = "MAX_TRES" in settings.get("PriorityFlags", "").split(",")
    if exam.site.cost.weights and "PriorityFlags" in settings and theirs != exam.site.cost.largest:
        counts = "the largest resource" if theirs else "the sum of the resources"
        right, wrong = str(theirs).lower(), str(not theirs).lower()
        hint = f"Set cost.largest = {right} in the profile."
        sentence = f"Slurm charges for {counts}, but the profile has cost.largest = {wrong}: hpcml reports wrong costs"
        return yellow(sentence, hint, **details)
    version = settings.get(machine.VERSION, "of an unknown version")
    return green(f"Slurm {version} is configured as the profile and hpcml assume", **details)


def variables(exam: Examination) -> Finding:
    """Which variables change what Slurm's commands do for this user."""
    outside = schedulers.get(exam.site.scheduler)
    names = [name for name in outside.foreign_variables() if exam.environment.get(name)]
    if not names:
        return green("no environment variable changes Slurm's commands or their output")
    shown = ", ".join(names[:6]) + ("…" if len(names) > 6 else "")
    hint = f"unset {' '.join(names[:6])}"
    if job := outside.outer_job():
        hint = "Submit from a shell on a login node."
        return yellow(f"this shell is inside job {job}: the job's variables affect your commands", hint, names=names)
    return yellow(f"{shown} affect your own sbatch, srun and squeue, but not hpcml", hint, names=names)
