"""Change one line of the product at a time and see which test fails: a change that none notices is not tested.

``tests/bench/mutations.py [--only TEXT] [--json FILE]``. It works on a copy of the checkout, with the tests of the unit
tier that belong to the changed module and nothing else: what the other tiers would notice does not count. It prints a
line for each change and ends with 1 if one was not noticed. ``docs/benchmarks/mutations.json`` is what it wrote; of
changes that ``--only`` leaves out the file keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 300  # seconds for the tests of one change; one that they wait for ever about is noticed too


class Mutation(NamedTuple):
    """One change: the module, a piece of it that is there once, what stands there instead, and what breaks by it."""

    module: str
    was: str
    becomes: str
    breaks: str


M = Mutation
LIMITS_OF_SITE, FACTS = "hpcml/schedulers/limits.py", "hpcml/sites/facts.py"
PLAN, WORKERS, OPTIONS = "hpcml/plan/plan.py", "hpcml/plan/workers.py", "hpcml/schedulers/slurm_options.py"
SLURM, CAUSES, END = "hpcml/schedulers/slurm.py", "hpcml/failures/exit_causes.py", "hpcml/node/roles/end_cause.py"
OUTCOME, HANDSHAKE, TLS = "hpcml/node/outcome.py", "hpcml/node/security/handshake.py", "hpcml/node/security/tls.py"
LIMITS, LOSSES, VERSIONS = (
    "hpcml/node/security/connection_limits.py", "hpcml/node/health/losses.py", "hpcml/node/health/versions.py")  # fmt: skip
ATTEMPTS = "hpcml/node/roles/attempts.py"
EARLY, FINDER = "hpcml/node/roles/early_imports.py", "hpcml/node/careful_finder.py"
CLAIMS, LOCK = "hpcml/node/sweep/claims.py", "hpcml/sweeps/lock.py"
JUDGEMENT, DOCTOR, SURVEY = "hpcml/failures/judgement.py", "hpcml/doctor/scheduler.py", "hpcml/survey/profile.py"
SPILLING, PARTS = "hpcml/node/hardware/spilling.py", "hpcml/schedulers/node_parts.py"
PORTS = "hpcml/doctor/ports.py"
TESTS = {
    PLAN: ("tests/unit/test_plan.py", "tests/golden/test_scripts.py"),
    WORKERS: ("tests/unit/test_workers.py", "tests/golden/test_scripts.py"),
    LIMITS_OF_SITE: ("tests/unit/test_plan.py", "tests/unit/test_site_facts.py"),
    FACTS: ("tests/unit/test_site_facts.py",),
    OPTIONS: ("tests/unit/test_plan.py", "tests/unit/test_sbatch_options.py", "tests/golden/test_scripts.py"),
    SLURM: ("tests/unit/test_slurm.py",),
    CAUSES: ("tests/unit/test_entering.py", "tests/unit/test_last_words.py", "tests/unit/test_versions.py"),
    END: ("tests/unit/test_end_cause.py",),
    OUTCOME: ("tests/unit/test_outcome.py",),
    HANDSHAKE: ("tests/unit/test_handshake.py",),
    TLS: ("tests/unit/test_keys.py",),
    LIMITS: ("tests/unit/test_strangers.py",),
    LOSSES: ("tests/unit/test_losses.py",),
    VERSIONS: ("tests/unit/test_versions.py", "tests/unit/test_clocks.py"),
    ATTEMPTS: ("tests/unit/test_attempts.py",),
    EARLY: ("tests/unit/test_early_imports.py",),
    FINDER: ("tests/unit/test_careful_finder.py",),
    CLAIMS: ("tests/unit/test_sweep_claims.py",),
    LOCK: ("tests/unit/test_sweep_lock.py",),
    JUDGEMENT: ("tests/unit/test_failures.py",),
    DOCTOR: ("tests/unit/test_doctor.py",),
    PORTS: ("tests/unit/test_doctor.py",),
    SURVEY: ("tests/unit/test_site_init.py",),
    SPILLING: ("tests/unit/test_spilling.py",),
    PARTS: ("tests/unit/test_node_parts.py",),
}
MUTATIONS = (
    M(ATTEMPTS, ' or outcome.state == "REQUEUED")', ")", "a job that Slurm puts back into its queue ends the run"),
    M(ATTEMPTS, "str(waiting.readlink()) == job", "str(waiting.readlink()) != job", "a run with a follow-up is told to wait anew"),
    M(ATTEMPTS, 'end.get("attempt") == context.number - 1', 'end.get("attempt") != context.number', "an older end is told of an attempt that left none"),
    M(ATTEMPTS, "newest(context.run.checkpoints) < before", "newest(context.run.checkpoints) > before", "progress ends a run"),
    M(PLAN, "if number < least:", "if number <= least:", "one node is refused"),
    M(PLAN, "asked.account or defaults.account", "defaults.account or asked.account", "the profile's account wins"),
    M(PLAN, "max(1, min(round(site.slurm.signal_lead), _MOST_SIGNAL_LEAD))", "max(1, round(site.slurm.signal_lead))", "--signal beyond what sbatch takes"),
    M(PLAN, "lead > time_limit // 2", "lead > time_limit", "the warning takes nearly all of a short run"),
    M(PLAN, 'for character, why in ((":", "divides PYTHONPATH"), (', 'for character, why in ((', "a folder with a colon is taken"),
    M(PLAN, "memory // count < _LEAST_FOR_A_WORKER", "memory < _LEAST_FOR_A_WORKER", "workers too small to start are planned"),
    M(PLAN, '(python, "-P", "-m",', '(python, "-m",', "a module of the user's folder replaces one of the run's"),
    M(PLAN, "if pair[0] not in site.environment", "if pair[0] in site.environment", "the profile's variables lose"),
    M(PLAN, "threads=site.workers.threads or (1 if", "threads=site.workers.threads or (2 if", "two threads on one GPU"),
    M(WORKERS, "if 0 < fraction <= 1:", "if 0 < fraction < 1:", "the whole GPU is read as one byte"),
    M(WORKERS, "if gpu.rmm_async and gpu.rmm_managed_memory:", "if gpu.rmm_async or gpu.rmm_managed_memory:", "a pool that is allowed is refused"),
    M(WORKERS, "_PROTOCOLS[spec.protocol] or site.network.protocol", "site.network.protocol or _PROTOCOLS[spec.protocol]", "--protocol does not count"),
    M(WORKERS, '("RAPIDS_NO_INITIALIZE", "1"), ', "", "cuDF takes a GPU at its import"),
    M(LIMITS_OF_SITE, "0 < most < spec.nodes", "0 < most <= spec.nodes", "the largest job that fits is refused"),
    M(LIMITS_OF_SITE, "0 < longest < spec.time", "0 < longest <= spec.time", "the longest job that fits is refused"),
    M(LIMITS_OF_SITE, "spec.nodes < least", "spec.nodes <= least", "the smallest job of a QoS for large ones is refused"),
    M(LIMITS_OF_SITE, "if getattr(by_qos.limits, limit) else", "if not getattr(by_partition.limits, limit) else", "a QoS cannot exceed its partition"),
    M(LIMITS_OF_SITE, "if not facts.doubtful(site, one.key)", "if True", "hearsay refuses a job"),
    M(FACTS, "_origin(layers, above) == value.origin", "True", "the doubt about a value stays with the user's own"),
    M(OPTIONS, '("--qos", spec.qos or partition.qos)', '("--qos", partition.qos or spec.qos)', "the partition's QoS replaces the user's"),
    M(OPTIONS, '("--open-mode", "append"),', '("--open-mode", "truncate"),', "a job that starts again loses its log"),
    M(OPTIONS, 'else ["--no-requeue"]', "else []", "Slurm starts a run again by itself"),
    M(OPTIONS, '",".join([*own_gres, passed["--gres"]])', 'passed["--gres"]', "the user's --gres takes the GPUs away"),
    M(OPTIONS, "if option in users and option in removed", "if option in users", "a note about an option that does count"),
    M(SLURM, "if len(clusters) != 1:", "if not clusters:", "one of two numbers is taken for the job"),
    M(SLURM, "if run and (doubt :=", "if False and (doubt :=", "a job number is believed without the run's comment"),
    M(SLURM, "if readable(_queued([job])[job]).state == UNKNOWN.state:", "if False:", "a job without the run's comment is cancelled"),
    M(SLURM, "return comment == f\"hpcml:{run}\"", "return True", "accounting's job of another comment is the run's"),
    M(SLURM, "(row[1].split(\" \")[0] not in ENDED, int(number))", "(False, int(number))", "a job that has ended hides the one that runs"),
    M(SLURM, '(?i)Could not establish a configuration source|', "(?i)", "no cluster is told as a refusal"),
    M(SLURM, "transient=True, place=program", "transient=False, place=program", "a busy controller ends a wait"),
    M(SLURM, "key in KEPT or not key.startswith(_SCRUBBED)", "not key.startswith(_SCRUBBED)", "SLURM_CONF is lost"),
    M(SLURM, "or name in spec.given() or", "or", "the shell's default wins against the command line"),
    M(CAUSES, "if status > 128 and", "if status > 255 and", "a killed role's signal is not named"),
    M(CAUSES, "if status in _NOT_THERE:", "if False:", "an interpreter that is not there is not named"),
    M(CAUSES, "last.startswith(_OWN)", "last.endswith(_OWN)", "the node's own sentence is not told"),
    M(CAUSES, 'hint or "The last line of the log is the error."', 'hint or ""', "an error without a next step"),
    M(END, 'errors.ALLOCATION_LOST if "NODE" in cause else errors.CANCELLED', "errors.CANCELLED", "a lost node counts as cancelled"),
    M(END, "str(causes[-1])", "str(causes[0])", "an older cause is told"),
    M(END, "file.seek(max(since, ", "file.seek(max(0, ", "another attempt's cause is told"),
    M(END, r'rf"(?:JOB {job}|', r'rf"(?:JOB \d+|', "another job's cause is told"),
    M(OUTCOME, 'return "FAILED" if self.by == "script" else', "return", "a script's own status 85 or so is told as Slurm's end"),
    M(OUTCOME, 'self.by == "scheduler" and self.exit_status == errors.ALLOCATION_LOST', "False", "a lost node is FAILED"),
    M(OUTCOME, "os.ftruncate(self.descriptor, before)", "pass", "half a line of an event spoils the next"),
    M(HANDSHAKE, "if version != _VERSION:", "if False:", "another version's message is taken"),
    M(HANDSHAKE, "label + _VERSION + address + connector", "label + _VERSION + connector", "a proof for one address holds for another"),
    M(HANDSHAKE, "if len(self._limits) >= self.most:", "if len(self._limits) > self.most:", "one more half-open handshake than allowed"),
    M(HANDSHAKE, "& 0o077:", "& 0o007:", "a key that the group may read is used"),
    M(HANDSHAKE, "facts.st_uid != os.geteuid()", "False", "another user's key is used"),
    M(HANDSHAKE, "os.O_RDONLY | os.O_NOFOLLOW |", "os.O_RDONLY |", "a link in the key's place is followed"),
    M(TLS, "require_encryption=True, tls_ca_file", "require_encryption=False, tls_ca_file", "a plain connection is allowed"),
    M(TLS, "path.parent.chmod(0o700)", "pass", "a folder of keys stays open to others"),
    M(TLS, "paths.ucx_key, paths.jupyter_token):", "paths.ucx_key):", "a browser's token outlives the run"),
    M(TLS, "timedelta(seconds=EARLY)", "timedelta(seconds=-EARLY)", "a certificate that is not valid yet"),
    M(LIMITS, "soft // SHARE_OF_FILES", "soft", "handshakes may use up the open files"),
    M(LIMITS, "if self.written >= LINES_A_MINUTE:", "if self.written > LINES_A_MINUTE:", "one line more a minute"),
    M(LIMITS, "min(hard, MOST_FILES)", "hard", "a table of a thousand million files"),
    M(LOSSES, "> longest:", ">= 2 * longest:", "workers that do not come back are waited for twice as long"),
    M(LOSSES, "sorted(names - self.killed)", "sorted(names)", "a killed task is told again and again"),
    M(VERSIONS, "abs(least) > NOTED", "abs(least) > 10 * NOTED", "clocks a minute apart are not told"),
    M(VERSIONS, "least < -self.behind or", "", "a clock too far behind is found out by a hang"),
    M(CLAIMS, "        except FileExistsError:\n            return False", "        except FileExistsError:\n            return True", "two jobs run a point"),
    M(CLAIMS, "if now - noticed < LEASE:", "if True:", "the points of a job that died are lost"),
    M(CLAIMS, "if claim.stat().st_ino == inode:", "if True:", "points of living jobs are given away"),
    M(CLAIMS, ' or f"{key}.ended" in there', "", "what has ended is run again"),
    M(CLAIMS, "if silent > LEASE or", "if", "a job that was silent writes what others have done"),
    M(CLAIMS, "silent > LEASE or (silent > LEASE / 2 and self.mine.name not in os.listdir(self.folder))", "silent > LEASE", "a job whose points were given away writes them for half a minute more"),
    M(CLAIMS, "        for other in self.others:\n            self._judge(other, now)\n        return now", "        return now", "the last sign of life of a job that died, noticed late, counts for the time after"),
    M(CLAIMS, "if other not in self.seen or sign != before:", "if other not in self.seen:", "a job that gives signs of life counts as dead"),
    M(EARLY, " and not node.level", "", "a module of the user's own folder is taken for Dask's"),
    M(EARLY, "except Exception as error:", "except ImportError as error:", "a library that finds no GPU ends the worker"),
    M(FINDER, 'getattr(parent, "__path__", None)', "None", "parts of Dask are not found"),
    M(FINDER, "if loader is not None and not isinstance", "if loader is not None and isinstance", "the finder stays as it is, and threads wait for ever"),
    M(FINDER, "not isinstance(getattr(loader, \"importlib\", None), _Importlib)", "True", "installing it again wraps it once more"),
    M(JUDGEMENT, "if rule.name in _OF_ANOTHER_NODE:", "if False:", "the node that tells of another's failure is named"),
    M(JUDGEMENT, "if hit and hit.rule.role is Role.CASCADE:", "if False:", "what followed from the cause is told as the cause"),
    M(JUDGEMENT, "hit.line.time > began - _ANOTHER_ATTEMPT", "True", "a line of an earlier attempt is the cause"),
    M(JUDGEMENT, "and any(hit.rule.role is Role.CONFIRMATION for hit in hits)", "", "any kill is one for want of memory"),
    M(DOCTOR, "sorted({*defaults} & {*cpu_only})", "sorted({*defaults} - {*cpu_only})", "a default QoS without GPUs is green"),
    M(DOCTOR, 'one.partition in ("", partition)', "True", "an account that may not use the partition is green"),
    M(DOCTOR, "if told.left <= 0:", "if told.left < 0:", "a grant that is spent is yellow"),
    M(DOCTOR, "if room == 0:", "if room < 0:", "no room for another job is green"),
    M(PORTS, "if all(name in lacks for lacks in lacking.values())", "if any(name in lacks for lacks in lacking.values())", "a node that lacks an adapter is as all others"),
    M(PORTS, ' if port["device"] in named]', "]", "a spare port that is down is red"),
    M(PORTS, "if layer != usual]", "if False]", "adapters of two link types are green"),
    M(SURVEY, "-(-limit // each) if up else", "limit // each if up else", "the smallest job of a QoS has a node too few"),
    M(SURVEY, "fields.get(\"State\", \"UP\") != \"UP\"", "False", "a partition that is down is proposed"),
    M(SURVEY, "elif groups and not {*groups} & {*self.login.groups}:", "elif False:", "a partition of another group is proposed"),
    M(SURVEY, "if threads > 1:", "if threads > 2:", "threads are proposed as cores and nobody is asked"),
    M(SPILLING, "return self.held + block <= self.most", "return True", "more is pinned than allowed"),
    M(SPILLING, "if self.back_weight > window and not stale else others", "if False else others", "a cyclic pass brings everything back each time"),
    M(PARTS, "0 < self.gpus < self.of and not self.whole", "0 < self.gpus < self.of", "a part of a node is asked for where all of it is charged"),
    M(PARTS, "max(1, amount * self.gpus // self.of)", "amount * self.gpus // self.of", "no CPU is asked for with one of many GPUs"),
    M(PARTS, 'dict(spec.sbatch).get("--exclusive") == ""', "False", "with --exclusive a part of the node is used"),
    M(PARTS, "Qos()).without_gpus:", "Qos()).whole_nodes:", "CPU nodes are said to have GPUs"),
    M(PARTS, "return 0 if chosen and not spec.gpus_per_node else", "return", "nodes that the user chose are said to have GPUs"),
    M(LOCK, "return not _lives(there)", "return False", "a command that was killed keeps others out"),
    M(LOCK, "_began(there.pid) == there.began", "True", "another process with its number keeps others out"),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="changes whose module or effect holds this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    options = parser.parse_args()
    chosen = [one for one in MUTATIONS if options.only in f"{one.module} {one.breaks}"]
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder)
        copy_checkout(copy)
        for module in dict.fromkeys(one.module for one in chosen):
            if noticed := failing(copy, module):
                raise SystemExit(f"{noticed} fails with nothing changed")
        rows = [try_one(copy, one) for one in chosen]
    missed = [row for row in rows if not row["noticed_by"]]
    print(f"{len(rows)} changes, {len(missed)} not noticed")
    if options.json:
        options.json.write_text(json.dumps(document(options.json, rows), indent=1, ensure_ascii=False) + "\n")
    return 1 if missed else 0


def document(path: Path, rows: list[dict[str, str]]) -> dict[str, Any]:
    """Return what the file is to hold: these rows, and those that it has of other changes, in the order of the list."""
    old = json.loads(path.read_text())["changes"] if path.exists() else []
    known = {tuple(row[field] for field in Mutation._fields): row for row in [*old, *rows]}
    command = "python3 tests/bench/mutations.py [--only TEXT] --json docs/benchmarks/mutations.json"
    return {"command": command, "changes": [known[one] for one in MUTATIONS if one in known]}


def copy_checkout(folder: Path) -> None:
    """Copy what git follows, as it stands in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def try_one(copy: Path, mutation: Mutation) -> dict[str, str]:
    """Make a change, run the module's tests, and take it back."""
    path = copy / mutation.module
    text = path.read_text()
    if text.count(mutation.was) != 1:
        raise SystemExit(f"{mutation.module} holds {mutation.was!r} {text.count(mutation.was)} times, not once")
    path.write_text(text.replace(mutation.was, mutation.becomes))
    start = time.monotonic()
    try:
        noticed = failing(copy, mutation.module)
    finally:
        path.write_text(text)
    print(
        f"{time.monotonic() - start:5.1f} s  {mutation.module}: {mutation.breaks}: {noticed or 'NOT NOTICED'}",
        flush=True,
    )
    return {**mutation._asdict(), "noticed_by": noticed}


def failing(copy: Path, module: str) -> str:
    """Return the first test of a module that fails, empty if none does."""
    command = [
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-x",
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-k",
        "not shellcheck",
    ]
    try:
        done = subprocess.run([*command, *TESTS[module]], cwd=copy, capture_output=True, text=True, timeout=DEADLINE, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return "its deadline"
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode and not found:
        raise SystemExit(done.stdout + done.stderr)
    return found[1] if found else ""


if __name__ == "__main__":
    sys.exit(main())
