"""The checks of the login side: of this machine, of the way to it, and of Slurm; and how they are made side by side."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import re
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hpcml import safe_files, schedulers, subprocesses, units
from hpcml.config_trust import HPCML
from hpcml.doctor import scheduler
from hpcml.doctor.finding import Examination, Finding, clause, green, not_applicable, red, yellow
from hpcml.errors import HpcmlError
from hpcml.images import problems, sif
from hpcml.plan.container import image_of
from hpcml.plan.make_plan import ADAPTERS, named_adapters
from hpcml.remote import ssh
from hpcml.runs import bad_nodes, directories
from hpcml.sites.schema import Login

# -- this machine as the user's processes see it ----------------------------------------------------------------------


_FEW_INODES, _FEW_BYTES = 1000, 1 << 30
_CPU_TIME = 3600  # seconds that a process which waits for runs should have
_MEMORY = 1 << 30  # bytes
_NO_LIMIT = 1 << 60  # bytes; version 1 of control groups writes the largest multiple of the page size for "no limit"
_ROOT = Path("/")
_PROCESSES, _FILES = 64, 256
_SKEW = 2.0  # seconds
_TRIAL, _OLD = ".hpcml-doctor-", 3600  # the folder of a check, and seconds after which it is nobody's
_DRIVER = re.compile(r"lib(cuda|nvidia-ml)\.so(\.\d+)*")
# `lfs quota -q` and `quota -w -p`: a file system, then blocks, quota, limit, grace, and the same of files; an amount
# that is beyond its quota has a star.
_AMOUNTS = r"\s+(\d+)(\*?)\s+(\d+)\s+(\d+)\s+(\S+)"
_QUOTA = re.compile(rf"^\s*(\S+){_AMOUNTS}{_AMOUNTS}\s*$", re.MULTILINE)


def profile(exam: Examination) -> Finding:
    """Which profile counts here, and whether hpcml can work with it."""
    import socket

    site = exam.site
    data: dict[str, object] = {
        "site": site.name,
        "chosen_because": exam.wanted.chosen_because,
        "host": socket.gethostname(),
    }
    data |= {"login_host": site.login.host, "login_hosts": list(site.login.hosts)}
    if site.unsupported:
        hint = "Use another cluster. For CPU jobs, try the generic profile: --site slurm."
        return red(f"hpcml does not work on {site.name}: {site.unsupported}", hint, **data)
    doubts = site.doubts()
    also = f"; {doubts} values of the profile are unconfirmed" if doubts else ""
    if site.name == "slurm":
        also += "; hpcml site init NAME --probe writes a profile of this machine"
    return green(f"site {site.name}: {exam.wanted.chosen_because}{also}", **data, doubts=doubts)


def library_path(exam: Examination) -> Finding:
    """Whether LD_LIBRARY_PATH puts CUDA's own libraries before those of the driver."""
    entries = [entry for entry in exam.environment.get("LD_LIBRARY_PATH", "").split(":") if entry]
    if not entries:
        return green("LD_LIBRARY_PATH is not set")
    homes = [exam.environment.get(name, "").rstrip("/") for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")]
    of_cuda = [folder for folder in entries if any(home and folder.startswith(f"{home}/") for home in homes)]
    for entry in entries:
        with contextlib.suppress(OSError):  # a folder that is not there
            libraries = sorted(name for name in os.listdir(entry) if _DRIVER.fullmatch(name))
            if libraries and (entry in of_cuda or "stubs" in entry or "compat" in entry):
                sentence = f"LD_LIBRARY_PATH contains {entry}, whose {libraries[0]} hides the GPU driver's file"
                return red(sentence, f"Remove {entry} from LD_LIBRARY_PATH.", entry=entry, files=libraries)
    if of_cuda:
        sentence = f"LD_LIBRARY_PATH puts {of_cuda[0]} before the libraries of the GPU driver and of your environment"
        hint = f"Remove {of_cuda[0]} from LD_LIBRARY_PATH. "
        hint += "This folder can cause the error 'Driver/library version mismatch'."
        return yellow(sentence, hint, entry=of_cuda[0])
    return green("LD_LIBRARY_PATH contains no CUDA folder", entries=entries)


def adapters(exam: Examination) -> Finding:
    """Whether the RDMA adapters that variables name are those of the nodes."""
    has = exam.site.network.adapters
    variables = {**exam.environment, **exam.site.environment}
    values = {name: variables[name] for name in ADAPTERS if variables.get(name)}
    if not values:
        return green("no environment variable selects RDMA adapters")
    if not has:
        return not_applicable(
            "the profile does not name the nodes' adapters; hpcml doctor --node checks them", **values
        )
    return judge_adapters(values, has)


def judge_adapters(
    values: Mapping[str, str], has: Sequence[str], uses: Sequence[str] = (), where: str = "the nodes have"
) -> Finding:
    """Return the finding on the adapters that variables name: they exist, and no other is left unused.

    Parameters
    ----------
    values
        The variables.
    has
        The adapters that are there.
    uses
        Those of them that a run should use; empty: all.
    where
        Words before the list of those that are there.
    """
    uses = uses or has
    for name, value in values.items():
        named = named_adapters(value)
        if strange := [device for device in named if device not in has]:
            sentence = f"{name} names {', '.join(strange)}, but {where} {', '.join(has) or 'none'}"
            return red(sentence, f"Unset {name}, or set {name} to {','.join(uses) or 'an empty value'}.", **values)
        if unused := [device for device in uses if named and device not in named]:
            sentence = f"{name} leaves the RDMA adapters {', '.join(unused)} unused"
            return yellow(sentence, f"Unset {name}, or set {name} to {','.join(uses)}.", **values)
    return green(f"the nodes have the RDMA adapters that {' and '.join(values)} select", **values)


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest existing one above it."""
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def quota(exam: Examination) -> Finding:
    """Whether there is room for files and for bytes, by the file systems' own words and by quotas."""
    home = exam.environment.get("HOME", "")
    folders = dict.fromkeys(_existing(place) for place in (exam.runs, *([Path(home)] if home else [])))
    hint = "Remove old runs (hpcml rm --older-than 30d), or keep runs on another file system (--set paths.runs=…)."
    data: dict[str, object] = {}
    low = ""
    for folder in folders:
        room = os.statvfs(folder)
        free = room.f_bavail * room.f_frsize
        data[str(folder)] = {"bytes": free, "inodes": room.f_favail if room.f_files else None}
        if full := directories.full(folder):
            return red(full, hint, **data)
        few = room.f_files and room.f_favail < _FEW_INODES
        if few or (room.f_blocks and free < _FEW_BYTES):
            left = f"{room.f_favail} files" if few else units.format_bytes(free)
            low = low or f"the file system of {folder} has space for only {left} more"
    for finding in _quotas(exam, list(folders)):
        if finding.state == "red":
            return finding
        low = low or (finding.sentence if finding.state == "yellow" else "")
        data |= finding.facts
    if low:
        return yellow(low, hint, **data)
    return green("the runs folder and your home have free space and inodes", **data)


def _quotas(exam: Examination, folders: list[Path]) -> Iterator[Finding]:
    user = str(os.getuid())
    commands = [["lfs", "quota", "-q", "-u", user, str(folder)] for folder in folders]
    for command in [*commands, ["quota", "-w", "-p"]]:
        if not shutil.which(command[0], path=exam.environment.get("PATH")):
            continue
        answer = subprocesses.run(command, exam.left(), program=HPCML)
        if answer.code is not None:
            yield from judge_quota(answer.out)


def judge_quota(text: str) -> Iterator[Finding]:
    """Yield the use and limits of each file system, in KiB and files, from ``lfs quota -q`` or ``quota -w -p``."""
    for row in _QUOTA.findall(text):
        place = row[0]
        for unit, (used, star, soft, hard) in (("KiB", row[1:5]), ("files", row[6:10])):
            limit = int(soft) or int(hard)
            data = {f"{place}: {unit}": {"used": int(used), "limit": limit}}
            if not limit:
                continue
            sentence = f"{used} of {limit} {unit} of your quota on {place} are used"
            hint = "Remove files that you no longer need (old runs: hpcml rm --older-than 30d)."
            if star or int(used) >= limit:
                yield red(sentence, hint, **data)
            elif int(used) > 0.95 * limit:
                yield yellow(sentence, hint, **data)
            else:
                yield green(sentence, **data)


def file_system(exam: Examination) -> Finding:
    """Whether files of a run can be written, renamed and locked where runs are, and have times of this clock."""
    folder = _existing(exam.runs)
    if not safe_files.replaceable(folder):  # elsewhere others give folders of ours another name
        _sweep(folder)
    hint = "Keep runs on another file system that all nodes share: --set paths.runs=…."
    doing = "be made"
    try:
        with _trial(folder) as place:
            doing = "be written"
            began = time.time()
            for name in ("old", "newer"):
                _written(name, place)
            ahead = os.stat("newer", dir_fd=place).st_mtime - began
            doing = "be renamed to an existing name"
            os.rename("newer", "old", src_dir_fd=place, dst_dir_fd=place)
            replaced = os.listdir(place) == ["old"] and os.stat("old", dir_fd=place).st_size == len("newer")
            locks = _locks("old", place)
    except OSError as error:
        full = directories.full(folder)
        return red(f"files cannot {doing} in {folder}: {full or error.strerror}", hint, folder=str(folder))
    if not replaced:
        return red(f"a file in {folder} has disappeared after it was renamed", hint, folder=str(folder))
    data = {"folder": str(folder), "ahead": round(ahead, 3), "locks": locks}
    if not locks:
        return yellow(
            f"files cannot be locked in {folder}: libraries that lock files, such as HDF5, may fail", hint, **data
        )
    if abs(ahead) > _SKEW:
        way = "ahead of" if ahead > 0 else "behind"
        sentence = f"the clock of the file system of {folder} is {abs(ahead):.0f} s {way} this machine's clock"
        return yellow(sentence, "Report to the site's support that the times of files are wrong.", **data)
    return green(f"files in {folder} can be renamed and locked, and their times are correct", **data)


@contextlib.contextmanager
def _trial(folder: Path) -> Iterator[int]:
    """Make a folder and yield it open: whoever gives it another name leads nothing to another place."""
    path = folder / f"{_TRIAL}{os.urandom(8).hex()}"
    path.mkdir(mode=0o700)
    place = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.listdir(place):
            raise safe_files.ForeignError("another user replaces files that hpcml creates in this folder", path)
        try:
            yield place
        finally:
            for name in os.listdir(place):
                os.unlink(name, dir_fd=place)
    finally:
        os.close(place)
        with contextlib.suppress(OSError):  # it has another name now, or is not empty: a later check sweeps it
            path.rmdir()


def _written(name: str, place: int) -> None:
    """Write a new file into an open folder; what is there already is an error."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=place)
    try:
        os.write(descriptor, name.encode())
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what checks left that were late: a file system that hung does not hang for ever."""
    for left in folder.glob(f"{_TRIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.lstat().st_mtime > _OLD and safe_files.is_own_folder(left):
                shutil.rmtree(left, ignore_errors=True)


def _locks(name: str, place: int) -> bool:
    """Whether a lock on a file of an open folder keeps others away."""
    descriptors = [os.open(name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=place) for _ in range(2)]
    with open(descriptors[0], "r+") as first, open(descriptors[1], "r+") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def limits(exam: Examination) -> Finding:
    """Whether a process that waits for runs is left alone by the limits of this machine."""
    del exam
    kinds = {
        "cpu_seconds": (resource.RLIMIT_CPU, _CPU_TIME),
        "memory": (resource.RLIMIT_AS, _MEMORY),
        "processes": (resource.RLIMIT_NPROC, _PROCESSES),
        "open_files": (resource.RLIMIT_NOFILE, _FILES),
    }
    soft = {name: resource.getrlimit(kind)[0] for name, (kind, _) in kinds.items()}
    data = {name: None if value == resource.RLIM_INFINITY else value for name, value in soft.items()}
    low = [name for name, (_, least) in kinds.items() if soft[name] != resource.RLIM_INFINITY and soft[name] < least]
    sentences = {
        "cpu_seconds": f"a process on this machine is killed after {soft['cpu_seconds']} s of CPU time (ulimit -t)",
        "memory": f"a process on this machine may use only {units.format_bytes(max(0, soft['memory']))} (ulimit -v)",
        "processes": f"you may have only {soft['processes']} processes on this machine (ulimit -u)",
        "open_files": f"a process on this machine may open only {soft['open_files']} files (ulimit -n)",
    }
    if session := session_memory(_ROOT):
        data["session_memory"], file = session
        sentences["session_memory"] = f"your login session may use {units.format_bytes(session[0])} of memory ({file})"
        low += ["session_memory"] if session[0] < _MEMORY else []
    if low:
        hint = "Submit runs with --detach, and check the runs with hpcml status. Run long computations in jobs."
        return yellow(sentences[low[0]], hint, **data)
    return green(
        "the limits of your processes on this machine (ulimit) are high enough for hpcml to wait for runs", **data
    )


def session_memory(root: Path) -> tuple[int, str] | None:
    """Return the least memory limit of this process's control groups in bytes and its file, or None without one.

    Its own group and all above it count, of version 1 and 2: a login session's limit is mostly on the user's slice.
    ``root`` is the folder below which /proc and /sys are read.
    """
    limits = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        folder, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        if controllers and "memory" not in controllers.split(","):
            continue
        innermost = PurePosixPath(group.strip("/"))
        for value in (
            (PurePosixPath(),) if ".." in innermost.parts else (innermost, *innermost.parents)
        ):  # "..": not seen from this container
            file = Path("sys/fs/cgroup", folder, value, name)
            text = _text(root / file)
            if text.isdecimal() and int(text) < _NO_LIMIT:
                limits.append((int(text), f"/{file}"))
    return min(limits, default=None)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # it is not there, or not for this user
        return ""


def image(exam: Examination) -> Finding:
    """Whether the image that runs use is one that this machine can start."""
    path = image_of(exam.site, exam.spec)
    if not path:
        return not_applicable("runs do not use an image (--image, runtime.image)")
    try:
        described = sif.inspect(Path(path))
    except HpcmlError as error:
        return red(f"{clause(error.message)} ({path})", error.hint, image=path)
    data = {"image": path, "architecture": described.architecture, "cuda": described.cuda, "kind": described.kind}
    found = problems.problems(described, cuda=exam.site.gpu.cuda, gpus=bool(described.cuda), machine=problems.machine())
    if not found:
        return green(f"{path} is built for {described.architecture or 'an unknown machine'}", **data)
    first = found[0]
    return (red if first.fatal else yellow)(first.what, first.hint, **data)


def failed_nodes(exam: Examination) -> Finding:
    """Which nodes failed runs of this user within a day."""
    now = time.time()
    bad_nodes.learn(exam.runs, exam.site.name, now)
    bad = bad_nodes.Memory(exam.site.name).nodes(now)
    if not bad:
        return green("within the last day, none of your runs failed because of a node")
    failures, _, option = bad_nodes.sentence(bad).partition(": exclude ")
    left_out = " (the profile excludes such nodes)" if exam.site.slurm.exclude_failed else ""
    data = {"nodes": [node._asdict() for node in bad]}
    return yellow(failures + left_out, f"Exclude {option}.", **data)


# -- the way to the cluster: the user's certificate, and which login node is meant ------------------------------------


_SOON = 900.0  # seconds


def certificate(exam: Examination) -> Finding:
    """How long the certificate lives that this machine's ssh would show, against the start of a job."""
    login = exam.site.login
    settings = ssh.effective(login.host, seconds=exam.left()) if login.host else {}
    ends = ssh.certificates(settings, exam.left())
    if not ends:
        return not_applicable("this machine has no ssh certificate; check from a laptop: hpcml --host HOST doctor")
    try:
        start = exam.start().start
    except HpcmlError:
        start = ""
    return judge_certificate(ends, start, time.time(), login.renew)


def judge_certificate(ends: Sequence[float], start: str, now: float, renew: str) -> Finding:
    """Return the finding on a certificate: it is valid when a job starts (ISO 8601, local time; empty: not known)."""
    if not ends:
        return not_applicable("ssh uses no certificate: neither your keys nor the ssh agent has a certificate")
    last = max(ends)
    hint = f"Get a new certificate: {renew or 'see the documentation of your site'}."
    if last == float("inf"):
        return green("your ssh certificate does not expire")
    data = {"ends": round(last), "left": round(last - now), "start": start}
    if last <= now:
        return red(f"your ssh certificate expired {ssh.clock(last, now)}", hint, **data)
    begins = datetime.datetime.fromisoformat(start).timestamp() if start else now
    sentence = f"your ssh certificate expires {ssh.clock(last, now)}, in {units.format_seconds(last - now)}"
    if begins > last:
        return yellow(f"{sentence}, but a job would start later, {ssh.clock(begins, now)}", hint, **data)
    if last - now < _SOON:
        return yellow(sentence, hint, **data)
    return green(sentence, **data)


def login_node(exam: Examination) -> Finding:
    """Say that the way in is looked at from outside."""
    del exam
    return not_applicable("check from a laptop which login node ssh reaches: hpcml --host HOST doctor")


def judge_login_node(login: Login, answered: str, *, of_profile: bool = True) -> Finding:
    """Return the finding on the name of the login node that answered, which a tunnel by hand needs.

    Parameters
    ----------
    login
        How the machine is reached.
    answered
        The name of the machine that answered; empty: not known.
    of_profile
        Whether a profile names ``login.host``; a name of the user's own ssh configuration is no machine's.
    """
    data = {"host": login.host, "answered": answered, "hosts": list(login.hosts)}
    short = answered.partition(".")[0]
    names = (short, f"{short}-ext")
    answers = f"{login.host} responds (the node's own host name is {answered or 'unknown'})"
    if not login.hosts and of_profile and answered and login.host.rpartition("@")[2].partition(".")[0] not in names:
        hint = "Write the login nodes' names into login.hosts of the profile: a tunnel needs the name of one host."
        return yellow(f"{answers}: each login may reach another login node, and login.hosts is empty", hint, **data)
    if login.host in login.hosts or not login.hosts:
        return green(answers, **data)
    if one := next((name for name in login.hosts if name.partition(".")[0] in names), ""):
        return green(f"ssh to {login.host} reaches {one}; use the name {one} in your own ssh commands", **data)
    hint = f"Name a login node: hpcml --host {login.hosts[0]}."
    machine = answered or "the machine that answered"
    return yellow(f"{login.host} is a name for several login nodes, but {machine} is not in login.hosts", hint, **data)


def no_way(error: HpcmlError) -> Finding:
    """Return the finding that the login node cannot be reached, with the last lines of ssh."""
    quoted = f" ({error.quote[-1].strip()})" if error.quote else ""
    return red(f"{clause(error.message)}{quoted}", error.hint, exit_status=error.exit_status, quote=list(error.quote))


# -- all checks, by name ----------------------------------------------------------------------------------------------


_LAST = 0.2  # seconds beyond the deadline in which a question that is ended gives its answer


class Check(NamedTuple):
    """A check: its name, what makes it, whether it asks Slurm, and what it means that it does not end in time."""

    name: str
    look: Callable[[Examination], Finding]
    of_slurm: bool = False
    late: str = ""
    remedy: str = ""


_HANGS = (
    "Test the file system with ls. Until the file system works, keep runs on another file system (--set paths.runs=…)."
)

CHECKS = (
    Check("profile", profile),
    Check("request", scheduler.request),
    Check("start", scheduler.start, of_slurm=True, late="Slurm's controller does not answer: it is down or busy",
          remedy="Try again in some minutes. To wait longer: --deadline 30s."),
    Check("partition", scheduler.partition, of_slurm=True),
    Check("account", scheduler.account, of_slurm=True),
    Check("budget", scheduler.budget, of_slurm=True),
    Check("default-qos", scheduler.default_qos, of_slurm=True),
    Check("submit-limit", scheduler.submit_limit, of_slurm=True),
    Check("slurm-config", scheduler.configuration, of_slurm=True),
    Check("slurm-variables", scheduler.variables),
    Check("certificate", certificate),
    Check("login-node", login_node),
    Check("library-path", library_path),
    Check("adapters", adapters),
    Check("quota", quota, late="the file system of your runs or home does not answer", remedy=_HANGS),
    Check("file-system", file_system, late="the file system of the runs does not answer", remedy=_HANGS),
    Check("limits", limits),
    Check("image", image, late="the image's file system does not answer", remedy=_HANGS),
    Check("bad-nodes", failed_nodes),
)  # fmt: skip


def examine(exam: Examination, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Make checks side by side and return their findings, in their order.

    One that is late is left behind; the commands that it started have the same deadline.
    """
    findings: dict[str, Finding] = {}

    def make(check: Check) -> None:
        began = time.monotonic()
        findings[check.name] = _made(check, exam)._replace(check=check.name, seconds=time.monotonic() - began)

    threads = [threading.Thread(target=make, args=(check,), daemon=True) for check in checks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, exam.end + _LAST - time.monotonic()))
    made = dict(findings)
    return [made.get(check.name) or _late(check, exam.seconds)._replace(check=check.name) for check in checks]


def _made(check: Check, exam: Examination) -> Finding:
    if check.of_slurm and schedulers.find_machine(exam.site.scheduler) is None:
        return not_applicable(f"site {exam.site.name} has no Slurm")
    try:
        return check.look(exam)
    except HpcmlError as error:
        reason = clause(error.message)
        if check.name == "request":
            return red(f"hpcml would refuse a run: {reason}", error.hint, place=error.place)
        return not_applicable(f"this check was not possible: {reason}", error.hint)
    except (OSError, ValueError, subprocesses.CommandMissingError) as error:
        return not_applicable(f"this check was not possible: {error}")


def _late(check: Check, seconds: float) -> Finding:
    if check.late:
        return red(f"{check.late} (no response within {seconds:g} s)", check.remedy)
    return not_applicable(f"this check did not end within {seconds:g} s", "To wait longer: --deadline 30s.")
