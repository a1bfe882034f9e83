"""A real Apptainer in real Slurm steps, as an ordinary user: what hpcml builds on when a run has an image."""

from __future__ import annotations

import json
import re
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ALL_NODES, Cluster
from lab_apptainer import FUSE
from lab_state import wait_for

pytestmark = pytest.mark.lab

FATAL = 255  # Apptainer's own failures, whatever they are
VERSIONS = "import sys, dask, distributed; print(sys.version.split()[0], dask.__version__, distributed.__version__)"
SURROUNDINGS = """
import json, os, site, sys
print(json.dumps({
    "environment": dict(os.environ), "path": sys.path, "prefix": sys.prefix, "user site": site.ENABLE_USER_SITE,
    "home": os.path.exists(os.path.expanduser("~/poison")), "here": os.getcwd(), "own": os.access(".", os.W_OK),
    "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "ipc", "net", "uts", "user", "mnt")},
}))
"""
# Reads eight bytes of a sibling's memory, as UCX does between two workers of a node (process_vm_readv).
READ_MEMORY = """
import ctypes, os, sys
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
mine = ctypes.create_string_buffer(9)
pieces = [ctypes.byref(Piece(ctypes.addressof(mine), 8)), 1, ctypes.byref(Piece(int(sys.argv[2]), 8)), 1, 0]
count = libc.process_vm_readv(int(sys.argv[1]), *pieces)
print(mine.value.decode() if count == 8 else os.strerror(ctypes.get_errno()))
"""
OFFER_MEMORY = """
import ctypes, os, sys
buffer = ctypes.create_string_buffer(b"neighbor")
print(os.getpid(), ctypes.addressof(buffer), flush=True)
sys.stdin.read()
"""
HANDLER = """
import signal, sys, time
def got(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        import wave, xmlrpc.client  # the image can still be read while the process puts its things in order
        sys.exit(3)
signal.signal(signal.SIGUSR1, got)
signal.signal(signal.SIGTERM, got)
print("ready", flush=True)
time.sleep(60)
time.sleep(60)
"""


def _exec(image: Path, *words: str) -> list[str]:
    """Return the command that lets in nothing but the working directory and what is named."""
    return ["apptainer", "--quiet", "exec", "--cleanenv", "--no-home", "--env", "PYTHONNOUSERSITE=1", *words[:-1],
            str(image), "sh", "-c", words[-1]]  # fmt: skip


def _of_containers(cluster: Cluster) -> list[str]:
    """Return what runs for containers on the lab's nodes: Apptainer itself, and the program that reads the image."""
    marks = ("Apptainer runtime parent", "Apptainer instance", "squashfuse_ll")
    return [
        line for pid, line in cluster.lab.processes("alice") if any(mark in line for mark in marks) and _on_a_node(pid)
    ]


def _on_a_node(pid: int) -> bool:
    """Whether a process has another network than this one: alice may run containers outside of the lab too."""
    try:
        return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    except OSError:
        return False


@pytest.fixture(autouse=True)
def _nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: nothing of a container is left, at the latest a moment after the step has gone."""
    yield
    cluster: Cluster = request.getfixturevalue("cluster")
    cluster.run("scancel", "--me", "--quiet")
    cluster.wait_idle(60)
    gone = wait_for(lambda: not _of_containers(cluster), 5)
    assert gone, _of_containers(cluster)


# --- what is inside -------------------------------------------------------------------------------------------------


def test_a_step_on_all_nodes_has_the_same_python_as_outside(cluster: Cluster, image: Path) -> None:
    outside = cluster.run("python", "-c", VERSIONS).stdout.strip()
    inside = _exec(image, f"echo $(uname -n) $(python -c {shlex.quote(VERSIONS)})")
    done = cluster.run("srun", "--nodes=4", "--ntasks-per-node=1", *inside)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{node} {outside}" for node in ALL_NODES]


def test_what_poisons_the_host_s_python_does_not_get_in(cluster: Cluster, image: Path) -> None:
    cluster.run("mkdir", "-p", str(cluster.home / "poison"))
    poison = {"PYTHONPATH": str(cluster.home / "poison"), "PYTHONHOME": "/nowhere", "PYTHONSTARTUP": "/nowhere/x",
              "LD_LIBRARY_PATH": "/nowhere/lib"}  # fmt: skip
    code = shlex.quote(SURROUNDINGS)
    done = cluster.run("srun", *_exec(image, f"python -c {code}"), env=poison)
    found = json.loads(done.stdout)
    assert not {name for name in poison if name.startswith("PYTHON")} & found["environment"].keys()
    assert "/nowhere" not in done.stdout
    assert str(cluster.home) not in found["path"]
    assert found["prefix"] == "/opt/hpcml"
    assert not found["home"]
    assert not found["user site"]
    assert not [name for name in found["environment"] if name.startswith("SLURM_")]  # what is needed is to be named
    assert (found["here"], found["own"]) == (str(cluster.work), True)
    # The image's other Python is no venv: there it is PYTHONNOUSERSITE alone that keeps the user's packages out.
    loose = ["apptainer", "--quiet", "exec", "--cleanenv", str(image), "/usr/bin/python3", "-c", SURROUNDINGS]
    assert json.loads(cluster.run(*loose, node="n1").stdout)["user site"] is True
    done = cluster.run(*_exec(image, f"/usr/bin/python3 -c {code}"), node="n1")
    assert json.loads(done.stdout)["user site"] is False


def test_without_cleanenv_the_host_s_python_variables_get_in(cluster: Cluster, image: Path) -> None:
    words = ["apptainer", "--quiet", "exec", str(image), "sh", "-c", "echo $PYTHONHOME $LD_LIBRARY_PATH"]
    poison = {"PYTHONHOME": "/nowhere", "LD_LIBRARY_PATH": "/nowhere/lib"}
    assert cluster.run(*words, node="n1", env=poison).stdout == "/nowhere /.singularity.d/libs\n"


def test_what_gets_in_in_spite_of_cleanenv(cluster: Cluster, image: Path) -> None:
    """Whoever wants a clean environment has to remove these from the one in which Apptainer itself is started."""
    given = {"APPTAINERENV_ONE": "1", "SINGULARITYENV_TWO": "2", "https_proxy": "http://proxy:1",
             "APPTAINERENV_LD_LIBRARY_PATH": "/nowhere", "APPTAINER_BIND": "/var/lib:/mnt", "PLAIN": "5"}  # fmt: skip
    inside = _exec(image, "echo $ONE $TWO $https_proxy $LD_LIBRARY_PATH $PLAIN; ls -d /mnt/dpkg")
    done = cluster.run(*inside, node="n1", env=given)
    assert done.stdout == "1 2 http://proxy:1 /nowhere:/.singularity.d/libs\n/mnt/dpkg\n"


@pytest.mark.parametrize("way", ["variable", "option", "file"])
def test_values_pass_as_they_are_with_no_eval_alone(cluster: Cluster, image: Path, way: str) -> None:
    """Otherwise a shell inside reads every value first, whichever way it came: $HOME is filled in and `id` is run."""
    value = """a b,c:d"e'f $HOME \\g=h `id` $(id) #!*\nanother line """
    file = cluster.write("variables", f"VALUE={shlex.quote(value)}\n")
    quoted = value.replace('"', '""')
    words = {"variable": [], "option": ["--env", f'"VALUE={quoted}"'], "file": ["--env-file", str(file)]}[way]
    given = {"APPTAINERENV_VALUE": value} if way == "variable" else {}
    done = cluster.run(*_exec(image, "--no-eval", *words, 'printf %s "$VALUE"'), node="n1", env=given)
    assert done.stdout == value, done.stderr
    done = cluster.run(*_exec(image, *words, 'printf %s "$VALUE"'), node="n1", env=given)
    assert "uid=" in done.stdout


def test_pids_ipc_network_and_name_are_the_host_s(cluster: Cluster, image: Path) -> None:
    outside = json.loads(cluster.run("python", "-c", SURROUNDINGS, node="n1").stdout)["namespaces"]
    inside = json.loads(cluster.run(*_exec(image, f"python -c {shlex.quote(SURROUNDINGS)}"), node="n1").stdout)
    same = {name for name, number in inside["namespaces"].items() if outside[name] == number}
    assert same == {"pid", "ipc", "net", "uts"}


@pytest.mark.parametrize(("options", "seen"), [((), "Operation not permitted"), (("--sharens",), "neighbor")])
def test_two_containers_read_each_other_s_memory_only_in_one_namespace(
    cluster: Cluster, image: Path, options: tuple[str, ...], seen: str
) -> None:
    """Without setuid each container has a user namespace of its own, and the kernel keeps such processes apart."""
    offer, read = cluster.write("offer.py", OFFER_MEMORY), cluster.write("read.py", READ_MEMORY)
    inside = shlex.join(["apptainer", "--quiet", "exec", "--cleanenv", *options, str(image), "python"])
    script = f"""
mkfifo held; {inside} {offer} < held > offered & exec 3> held
for try in $(seq 100); do [ -s offered ] && break; sleep 0.1; done
{inside} {read} $(cat offered); exec 3>&-; wait; rm held offered
"""
    done = cluster.run("srun", "--ntasks=1", "bash", "-c", script)
    assert done.stdout.strip() == seen, done.stderr


def test_processes_of_one_container_read_each_other_s_memory(cluster: Cluster, image: Path) -> None:
    offer, read = cluster.write("offer.py", OFFER_MEMORY), cluster.write("read.py", READ_MEMORY)
    script = f"""
mkfifo held; python {offer} < held > offered & exec 3> held
for try in $(seq 100); do [ -s offered ] && break; sleep 0.1; done
python {read} $(cat offered); exec 3>&-; wait; rm held offered
"""
    assert cluster.run("srun", *_exec(image, script)).stdout.strip() == "neighbor"


# --- paths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "a space", "a,comma", "a:colon", 'a"quote', "a\\backslash", "a=sign", "ä"])
def test_any_directory_can_be_mounted(cluster: Cluster, image: Path, name: str) -> None:
    """--mount takes one line of CSV, whose quotes hold every character; --bind would end at a comma or a colon."""
    directory = cluster.write(f"{name}/file", "seen").parent
    quoted = str(directory).replace('"', '""')
    mount = f'type=bind,"source={quoted}","destination={quoted}"'
    words = ["--no-mount", "cwd", "--mount", mount, "--pwd", str(directory), "cat file; touch new"]
    done = cluster.run("srun", *_exec(image, *words))
    assert (done.returncode, done.stdout) == (0, "seen"), done.stderr
    assert (directory / "new").exists()


def test_without_home_and_cwd_only_what_is_named_is_there(cluster: Cluster, image: Path) -> None:
    directory = cluster.write("run/file", "seen").parent
    words = ["--no-mount", "cwd,tmp", "--mount", f"type=bind,source={directory},destination={directory}", "--pwd",
             str(directory), f"ls -A {cluster.work}; ls -A /tmp /var/tmp | wc -l"]  # fmt: skip
    done = cluster.run(*_exec(image, *words), node="n1")
    assert done.stdout.split()[0] == "run", done.stderr


# --- ends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_status_comes_out(cluster: Cluster, image: Path, ending: str, status: int) -> None:
    assert cluster.run("srun", "--ntasks=1", *_exec(image, ending)).returncode == status


def _started(cluster: Cluster, image: Path) -> tuple[str, Path, Path]:
    """Start a job whose one step waits in a container for signals; return it, the step's output and the job's."""
    script = cluster.write("handler.py", HANDLER)
    out, log = cluster.work / "handler.out", cluster.work / "job.out"
    out.unlink(missing_ok=True)
    step = shlex.join(["srun", "--ntasks=1", f"--output={out}", *_exec(image, f"exec python {script}")])
    job = cluster.write("job.sh", f"#!/bin/bash\ntrap : TERM USR1\n{step} & step=$!\n"
                        "wait $step; while kill -0 $step 2>/dev/null; do wait $step; done\nwait $step; echo status $?\n")  # fmt: skip
    done = cluster.run("sbatch", "--parsable", "--nodes=1", f"--output={log}", str(job))
    assert done.returncode == 0, done.stderr
    assert wait_for(lambda: out.exists() and "ready" in out.read_text(), 20), log.read_text()
    return done.stdout.strip(), out, log


@pytest.mark.parametrize("full", [False, True], ids=["step", "full"])
def test_signals_reach_the_process_inside(cluster: Cluster, image: Path, full: bool) -> None:
    job, out, log = _started(cluster, image)
    cluster.run("scancel", "--signal=USR1", *(["--full", job] if full else [f"{job}.0"]))
    assert wait_for(lambda: "SIGUSR1" in out.read_text(), 10), out.read_text()
    cluster.run("scancel", "--signal=TERM", f"{job}.0")
    assert wait_for(lambda: "status" in log.read_text(), 20), log.read_text()
    assert "SIGTERM" in out.read_text()
    assert "status 3" in log.read_text()


def test_scancel_leaves_nothing_running(cluster: Cluster, image: Path) -> None:
    job, _, _ = _started(cluster, image)
    assert len(_of_containers(cluster)) == 2
    cluster.run("scancel", "--signal=KILL", "--full", job)


def test_an_instance_ends_with_the_step_that_started_it(cluster: Cluster, image: Path) -> None:
    start = f"apptainer --quiet instance start --cleanenv {image} lab-test"
    done = cluster.run(
        "srun", "--ntasks=1", "sh", "-c", f"{start} && apptainer -q exec instance://lab-test sh -c 'exit 3'"
    )
    assert done.returncode == 3, done.stderr


# --- what goes wrong ------------------------------------------------------------------------------------------------


def _broken(cluster: Cluster, image: Path, kind: str) -> Path:
    path = cluster.write(f"{kind}.sif", "this is no image\n")
    if kind == "none":
        path.unlink()
    elif kind == "truncated":
        cluster.run("sh", "-c", f"head -c 100000000 {image} > {path}")
    elif kind == "closed":
        path.chmod(0)
    elif kind == "foreign":  # the third number after a partition's name says for which processor it is: 04 is arm64
        content = bytearray(image.read_bytes()[:100_000])
        descriptors = range(4096, 4096 + 48 * 585, 585)
        partition = next(start for start in descriptors if struct.unpack_from("<I", content, start)[0] == 0x4004)
        content[partition + 209 : partition + 211] = b"04"
        path.write_bytes(content)
    return path


@pytest.mark.parametrize(("kind", "message"), [
    ("none", "no such file or directory"),
    ("text", "image format not recognized"),
    ("truncated", "Something went wrong trying to read the squashfs image"),
    ("closed", "is not readable by the current user, check permissions"),
    ("foreign", r"the image's architecture \(arm64\) could not run on the host's \(amd64\)"),
])  # fmt: skip
def test_what_apptainer_says_of_an_image_it_cannot_run(cluster: Cluster, image: Path, kind: str, message: str) -> None:
    path = _broken(cluster, image, kind)
    done = cluster.run("srun", "--ntasks=1", *_exec(path, "true"))
    path.unlink(missing_ok=True)
    assert done.returncode == FATAL
    assert re.search(rf"FATAL: .*{message}", done.stderr), done.stderr


@pytest.mark.parametrize(("words", "status", "message"), [
    (["--mount", "type=bind,source=/no/where,destination=/mnt", "true"], FATAL, "mount source /no/where doesn't exist"),
    (["--bind", "/no/where", "true"], FATAL, "mount source /no/where doesn't exist"),
    (["--pwd", "/no/where", "true"], FATAL, "failed to set working directory: chdir /no/where"),
    (["exec nothing-of-this-name"], 127, "not found"),
])  # fmt: skip
def test_what_apptainer_says_of_a_command_it_cannot_run(
    cluster: Cluster, image: Path, words: list[str], status: int, message: str
) -> None:
    done = cluster.run(*_exec(image, *words), node="n1")
    assert done.returncode == status
    assert message in done.stderr


def test_a_closed_fuse_device(cluster: Cluster, image: Path) -> None:
    closed = cluster.lab.places.top / "dev" / "fuse-closed"
    number = FUSE.stat().st_rdev
    cover = f"rm -f {closed}; mknod -m 600 {closed} c {number >> 8} {number & 255}; mount --bind {closed} {FUSE}"
    with cluster.covered("n1", cover, str(FUSE)):
        done = cluster.run("srun", "--nodelist=n1", *_exec(image, "true"))
        unpacked = cluster.run("apptainer", "exec", "--unsquash", str(image), "true", node="n1")
    closed.unlink()
    assert done.returncode == FATAL
    assert "squashfuse_ll exited: fuse: failed to open /dev/fuse: Permission denied" in done.stderr
    assert unpacked.returncode == 0  # the way round, at the price of unpacking the whole image each time


def test_a_node_without_apptainer(cluster: Cluster, image: Path) -> None:
    hide = ("mkdir -p /tmp/hidden/upper /tmp/hidden/work; mknod /tmp/hidden/upper/apptainer c 0 0;"
            "mount -t overlay hidden -o lowerdir=/usr/bin,upperdir=/tmp/hidden/upper,workdir=/tmp/hidden/work /usr/bin")  # fmt: skip
    with cluster.covered("n2", hide, "/usr/bin"):
        done = cluster.run("srun", "--nodelist=n1,n2", "--nodes=2", "--ntasks-per-node=1", *_exec(image, "true"))
    cluster.run("rm", "-rf", "/tmp/hidden", node="n2", user="root")
    assert done.returncode == 2  # srun's, as of any program that is not there
    assert "execve(): apptainer: No such file or directory" in done.stderr


def test_running_needs_no_subordinate_ids_and_building_does(cluster: Cluster, image: Path) -> None:
    empty = "mkdir -p /tmp/ids; : > /tmp/ids/none; mount --bind /tmp/ids/none /etc/subuid"
    with cluster.covered("n1", empty, "/etc/subuid"):
        done = cluster.run(*_exec(image, "id -u"), node="n1")
    cluster.run("rm", "-rf", "/tmp/ids", node="n1", user="root")
    assert done.stdout == cluster.run("id", "-u").stdout
