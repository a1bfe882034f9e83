"""`hpcml ssh-config`: OpenSSH's own programs on a run's nodes, what mallory gets of them, and what is left after a run."""

from __future__ import annotations

import json
import re
import shlex
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import debugger
import mallory
from beside import PART
from conftest import BUSY
from laptop import Outside, until
from test_attacks_nodes import refused
from test_tunnel import ROUTES, listeners

pytestmark = pytest.mark.lab

SLEEP = "import time; time.sleep(900)"
# What an editor may leave behind: in a session of its own, deaf to signals, with no file of the connection's open.
STAYS = """setsid sh -c 'trap "" TERM HUP INT; exec sleep 298{n}0' </dev/null >/dev/null 2>&1 & sleep 298{n}1"""


CONFIG = ".hpcml/ssh/nodes.conf"


class Names:
    """The names of a run's nodes, as ``hpcml ssh-config`` wrote them on the laptop or on the login node."""

    def __init__(self, outside: Outside, run: str, where: str = "laptop", home: Path | None = None) -> None:
        self.outside, self.run, self.where = outside, run, where
        home = home or (outside.home if where == "laptop" else outside.lab.places.home("alice"))
        self.home = ("env", f"--chdir={home}", f"HOME={home}")
        host = ["--host", "lab"] if where == "laptop" else []
        done = outside.on(where, *self.home, "hpcml", *host, "ssh-config", "--json", run, timeout=120)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        assert facts["include"] == "Include ~/.hpcml/ssh/nodes.conf"
        self.nodes = {host["name"]: host["node"] for host in facts["hosts"]}
        self.first = next(iter(self.nodes))
        self.place = home / ".hpcml" / "ssh"
        self.folder = self.place / f"node-{run}"

    def on(self, text: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a line of sh where the names are; N is the first name, SSH is ssh without a file of the user's."""
        text = f"N={self.first} SSH='ssh -o BatchMode=yes -F {CONFIG}'\n{text}"
        return self.outside.on(self.where, *self.home, "sh", "-c", text, timeout=120, input=input)

    def refused(self, text: str, *, by: str) -> None:
        done = self.on(text)
        assert done.returncode != 0, done.stdout
        assert by in done.stderr, done.stderr


@pytest.fixture(scope="module")
def names(outside: Outside, dashboard: tuple[str, Path]) -> Iterator[Names]:
    config = outside.home / ".ssh" / "config"
    kept = config.read_text()
    config.write_text(f"Include ~/.hpcml/ssh/nodes.conf\n{kept}")
    yield Names(outside, dashboard[0])
    config.write_text(kept)


WHERE = "uname -n; test -t 0; cat /proc/self/cgroup; exit 7"
COPIES = """
head -c 2000000 /dev/urandom >big; set -e
rsync -a big $N:there; scp -q $N:there back; cmp big back
echo "get there again" | sftp -q -b - $N >/dev/null; cmp big again
scp -q -O again $N:old; ssh $N 'cmp there old; rm there old'
"""


def test_openssh_s_programs_reach_each_node_from_the_laptop_and_the_login_node(outside: Outside, names: Names) -> None:
    for name, node in names.nodes.items():
        done = names.on(f"ssh -tt {name} '{WHERE}'")
        assert done.returncode == 7, done.stderr
        assert done.stdout.split()[0] == node
        assert "/step_" in done.stdout
    assert names.on(COPIES).returncode == 0
    login = Names(outside, names.run, "login")
    second = list(login.nodes)[1]
    done = login.on(f"$SSH {second} uname -n; $SSH $N 'echo $HPCML_RUN_DIR'")
    assert done.stdout.split() == [
        names.nodes[second.replace(login.run, names.run)],
        str(outside.cluster.directory(names.run)),
    ]
    assert done.stderr == ""


FORWARD = """
ssh -o ExitOnForwardFailure=yes -L 127.0.0.1:18099:127.0.0.1:18098 $N 'cd / && exec python3 -m http.server -b 127.0.0.1 18098' >/dev/null 2>&1 &
for _ in $(seq 400); do curl -s http://127.0.0.1:18099/etc/hostname && break; sleep 0.1; done
kill $!
"""
BACK = ("9999:localhost:22", "/tmp/s:localhost:22")
REFUSED = "ssh -o ExitOnForwardFailure=yes -R {} $N sleep 1"
LENT = """
eval $(ssh-agent) >/dev/null; ssh-add -q ~/.ssh/id_ed25519
DISPLAY=:9 ssh -A -X $N 'env; ls /tmp/ssh-*'; kill $SSH_AGENT_PID
"""


def test_a_port_of_the_node_comes_to_the_laptop_and_nothing_goes_the_other_way(names: Names) -> None:
    assert "etc" in names.on(FORWARD.replace("/etc/hostname", "/")).stdout
    for way in BACK:
        names.refused(REFUSED.format(way), by="remote port forwarding failed")
    done = names.on(LENT)
    assert "HPCML_RUN_DIR" in done.stdout
    assert "SSH_AUTH_SOCK" not in done.stdout
    assert "DISPLAY" not in done.stdout


SUM = "from distributed import Client; print(sorted(Client().submit(lambda: [1, 2]).result()))"


def test_the_variables_connect_to_the_run_s_cluster(names: Names) -> None:
    python = names.outside.lab.places.venv / "bin" / "python"
    done = names.on(f'ssh $N "{python} -c \\"{SUM}\\""')
    assert done.stdout == "[1, 2]\n", done.stderr


INSIDE = "$SSH $N 'command -v python3; pwd; touch made; echo $APPTAINER_CONTAINER'"
FETCHES = f'scp -q -O -F {CONFIG} $N:made 1; scp -q -F {CONFIG} $N:made 2; rsync -e "$SSH" $N:made 3; ls 1 2 3'


def test_a_shell_is_in_the_run_s_image_and_copies_are_the_node_s(outside: Outside, image: Path) -> None:
    run, _ = outside.start_run("inside", SLEEP, "--image", str(image))
    names = Names(outside, run)
    try:
        done = names.on(INSIDE)
        home = str(outside.lab.places.home("alice"))
        assert done.stdout.split() == ["/opt/hpcml/bin/python3", home, str(image)], done.stderr
        assert names.on("$SSH -T $N", input="command -v python3\n").stdout == "/opt/hpcml/bin/python3\n"
        assert names.on("$SSH -tt $N tty").stdout.startswith("/dev/pts/")
        assert names.on(FETCHES).stdout.split() == ["1", "2", "3"]
    finally:
        outside.on("login", "hpcml", "cancel", run)


RUN_AND_IMAGE = "$SSH $N 'echo $HPCML_RUN_DIR; echo $APPTAINER_CONTAINER'"
RUNS = """
[paths]
runs = "{}"
"""


def test_folders_may_have_spaces_and_quotation_marks(outside: Outside, image: Path) -> None:
    """The laptop's home, and the runs on the cluster, whose sshd serves ssh-config and the tunnel's route srun."""
    odd = "it's mine"
    runs, home = outside.cluster.home / odd / "runs", outside.home / odd
    outside.laptop("sh", "-c", 'mkdir "$0" && ln -s ../.ssh "$0"', str(home))
    config = outside.cluster.home / ".config" / "hpcml" / "config.toml"
    outside.on("login", "sh", "-c", 'mkdir -p "${0%/*}"; cat >"$0"', str(config), input=RUNS.format(runs))
    try:
        run, directory = outside.start_run("odd", BUSY, "--image", str(image), "--nodes", "1", *PART)
        assert directory.parent == runs
        names = Names(outside, run, home=home)
        done = names.on(RUN_AND_IMAGE)
        assert done.stdout.splitlines() == [str(directory), str(image)], done.stderr
        for route in ROUTES:
            port = outside.tunnel(run, "--route", route, env={"HOME": str(home)}).up()["port"]
            assert outside.status_of(port) == "200"
            outside.tunnels.pop().stop()
    finally:
        outside.on("login", "hpcml", "cancel", run)
        outside.on("login", "rm", str(config))
        outside.laptop("rm", "-rf", str(home))


PAGE = Path(__file__).parents[2] / "docs/editors.md"
STOPS = {"script": ("<module>", 45, ()), "worker": ("step", 49, ()), "rank": ("<module>", 46, ("--ranks", "2"))}
DEBUGS = "ssh -N -L 127.0.0.1:{0}:127.0.0.1:{0} -F {1} -o BatchMode=yes $N & python3 -c {2} {0} total; kill $!"


def test_a_debugger_stops_the_page_s_script_task_and_rank(outside: Outside) -> None:
    scripts = dict(zip(STOPS, re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL), strict=True))
    runs = {}
    for kind, (_, _, options) in STOPS.items():
        _, runs[kind] = outside.cluster.detach(scripts[kind], "--name", kind, "--nodes", "1", *PART, *options)

    def port(kind: str) -> str:
        texts = [path.read_text(errors="replace") for path in runs[kind].glob("logs/*")]
        return "".join(re.findall(r"debugger port (\d+)", "".join(texts))[:1])

    until(lambda: all(map(port, STOPS)), 60)
    for kind, (function, total, _) in STOPS.items():
        names = Names(outside, runs[kind].name)
        done = names.on(DEBUGS.format(port(kind), CONFIG, shlex.quote(debugger.ATTACH)))
        assert done.stdout == f"{function} {total}\n", done.stderr
    for directory in runs.values():
        assert outside.cluster.wait_status(directory, 60)["exit_status"] == 0


# -- mallory ---------------------------------------------------------------------------------------------------------


SAME_NAME = "mkdir -m 700 -p /tmp/m; cat >/tmp/m/c; ssh -F /tmp/m/c -o BatchMode=yes {} id"
SAME_WORDS = ((), ("--serve=sshd", "--node=n1"), ("--serve=prepare", "--key=ssh-ed25519 AAAA"))


def test_mallory_gets_no_file_process_or_step(outside: Outside, names: Names, dashboard: tuple[str, Path]) -> None:
    directory, before = dashboard[1], listeners(outside, "n1")
    session = outside.lab.popen(["ssh", "-F", CONFIG, names.first, "echo up; exec sleep 2985"], node="laptop")
    try:
        assert session.stdout is not None
        assert session.stdout.readline() == "up\n"
        assert listeners(outside, "n1") <= before
        relays = sorted(directory.glob("attempts/0/secret/relay-*"))
        files = [path for folder in (names.place, *relays) for path in (folder, *folder.rglob("*"))]
        for path in files:
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077 or path.suffix == ".pub", path
        pids = [str(pid) for pid, line in outside.lab.processes("alice") if "sshd" in line or "sleep 2985" in line]
        assert pids
        read = ("/usr/bin/python3", "-c", mallory.READ, *map(str, files), "--", *pids)
        for node in ("laptop", "login", "n1", "n2"):
            assert refused(outside.on(node, *read, user="mallory").stdout)["tries"] > 100
        config, text = (names.place / "nodes.conf").read_text(), SAME_NAME.format(names.first)
        done = outside.on("login", "sh", "-c", text, user="mallory", input=config)
        assert (done.returncode, done.stdout) == (255, "")
        words = ("hpcml", "ssh-config", f"--set=paths.runs={directory.parent}", f"--relay={relays[0].name}")
        for more in SAME_WORDS:
            done = outside.on("login", *words, *more, "--", names.run, user="mallory")
            assert done.returncode in (64, 66, 74), done.stderr
        job = json.loads((directory / "submission.json").read_text())["job"]
        step = ("srun", f"--jobid={job}", "--overlap", "--nodelist=n1", "--ntasks=1", "--nodes=1", "id")
        done = outside.on("login", *step, user="mallory")
        assert (done.returncode != 0, done.stdout) == (True, "")
        assert "denied" in done.stderr or "Invalid" in done.stderr
    finally:
        session.kill()
        session.communicate()


BY_HAND = "ssh -F none -o BatchMode=yes -o IdentitiesOnly=yes -o UserKnownHostsFile={hosts} -o HostKeyAlias={name} "
BY_HAND += '-i {key} -o User=hpcml-alice -o "ProxyCommand={proxy}" x id'


def test_a_node_without_sshd_is_named_and_nothing_stays(outside: Outside, dashboard: tuple[str, Path]) -> None:
    before = set(dashboard[1].glob("attempts/0/secret/*"))
    with outside.cluster.covered("n1", "mount --bind /dev/null /usr/sbin/sshd", "/usr/sbin/sshd"):
        done = outside.laptop("hpcml", "--host", "lab", "ssh-config", dashboard[0], timeout=120)
    assert done.returncode == 65, done.stderr
    assert "sshd cannot start on n1: there is no sshd on n1" in done.stderr
    assert set(dashboard[1].glob("attempts/0/secret/*")) == before


BATCH = """#!/bin/bash
#SBATCH --gpus-per-node=2 --cpus-per-task=2 --mem=900M --time=10
sleep 500
"""


def test_a_connection_has_the_gpus_and_cpus_of_a_batch_script_s_run(outside: Outside) -> None:
    script = outside.cluster.write("gpus/job.sh", BATCH)
    done = outside.on("login", "hpcml", "submit", "--json", "--detach", str(script))
    run = json.loads(done.stdout)["run"]
    outside.cluster.wait_event(outside.cluster.directory(run), "script-started", 60)
    done = Names(outside, run).on("$SSH $N 'echo $CUDA_VISIBLE_DEVICES; nproc'")
    outside.on("login", "hpcml", "cancel", run)
    assert done.stdout.split() == ["0,1", "2"], done.stderr


def test_a_key_is_of_its_run_and_its_kind(outside: Outside, names: Names) -> None:
    run, _ = outside.start_run("other", SLEEP, "--nodes", "1", *PART)
    other = Names(outside, run)

    def by_hand(**other_than: object) -> str:
        right = {
            "hosts": other.folder / "known_hosts",
            "name": other.first,
            "key": other.folder / "key",
            "proxy": proxy,
        }
        return BY_HAND.format(**{**right, **other_than})

    try:
        proxy = names.on(f"$SSH -G {other.first}").stdout.partition("proxycommand ")[2].partition("\n")[0]
        assert names.on(by_hand()).returncode == 0
        names.refused(by_hand(key=names.folder / "key"), by="Permission denied (publickey)")
        names.refused(by_hand(hosts=names.folder / "known_hosts"), by="Host key verification failed")
        for relay in ("../../../../tmp", "relay-none"):
            moved = shlex.join(f"--relay={relay}" if "--relay" in word else word for word in shlex.split(proxy))
            names.refused(by_hand(proxy=moved), by="The run's ssh keys do not exist")
    finally:
        outside.on("login", "hpcml", "cancel", run)
    until(lambda: not list(outside.cluster.directory(run).glob("attempts/0/secret/relay-*")), 60)
    names.refused(f"$SSH {other.first} id", by="The run has ended")


PLANTS: dict[str, Callable[[str], str]] = {
    "a folder of hers": lambda place: f"mkdir -m 777 {place}",
    "a link to a folder of hers": lambda place: f"mkdir -m 777 {place}.hers; ln -s {place}.hers {place}",
    "a file of hers": lambda place: f"touch {place}; chmod 666 {place}",
}


@pytest.mark.parametrize("plant", PLANTS)
def test_nothing_is_written_where_mallory_planted(outside: Outside, names: Names, plant: str) -> None:
    """In a home that others may write to, her own name is where hpcml's folder would be."""
    home = f"/tmp/home-{list(PLANTS).index(plant)}"
    outside.on("login", "mkdir", "-m", "1777", home, f"{home}/.hpcml")
    outside.on("login", "sh", "-c", PLANTS[plant](f"{home}/.hpcml/ssh"), user="mallory")
    runs = outside.cluster.directory(names.run).parent
    done = outside.on("login", "env", f"HOME={home}", "hpcml", "ssh-config", f"--set=paths.runs={runs}", names.run)
    assert done.returncode == 74, done.stderr
    assert not outside.on("login", "find", home, "-name", "*key*", user="root").stdout


# -- the end ---------------------------------------------------------------------------------------------------------

ENDS = ("connection", "cancel", "kill")


def staying(outside: Outside, way: str) -> list[str]:
    return [line for _, line in outside.lab.processes("alice") if line.startswith(f"sleep 298{ENDS.index(way)}")]


def test_all_that_was_started_ends(outside: Outside) -> None:
    """With the connection, or the run. KillWait of the lab is 10 s: so long Slurm waits for what does not end by itself."""
    runs = {way: outside.start_run(f"end-{way}", SLEEP, "--nodes", "1", *PART) for way in ENDS}
    all_names = {way: Names(outside, run) for way, (run, _) in runs.items()}
    sessions = {
        way: outside.lab.popen(["ssh", "-F", CONFIG, names.first, STAYS.format(n=ENDS.index(way))], node="laptop")
        for way, names in all_names.items()
    }  # fmt: skip
    until(lambda: all(len(staying(outside, way)) == 2 for way in ENDS), 60)
    sessions["connection"].kill()
    assert outside.on("login", "hpcml", "cancel", runs["cancel"][0]).returncode == 0
    job = json.loads((runs["kill"][1] / "submission.json").read_text())["job"]
    outside.on("login", "scancel", "--signal=KILL", "--full", job)
    until(lambda: not any(staying(outside, way) for way in ENDS), 40)
    for session in sessions.values():
        session.communicate(timeout=60)
    assert all_names["connection"].on("$SSH $N echo again").stdout == "again\n"
    outside.on("login", "hpcml", "cancel", runs["connection"][0])
    for way, names in all_names.items():
        outside.cluster.wait_gone(runs[way][1], 60)
        names.refused("$SSH $N id", by="The run has ended")
        if way != "kill":  # nobody is left who could remove them, and no job that takes them
            assert not list(runs[way][1].glob("attempts/0/secret/*"))
