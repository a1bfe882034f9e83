"""The way in from outside: a laptop, a second login node, and a real sshd with host and user certificates on each node.

The laptop sees the login nodes only, over a network of its own. Its home is not the cluster's. A certificate authority
of the lab stands for a site's (``ssh-keygen -s``): it signs the hosts' keys, and the users' for as long as asked.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import lab_nodes
from lab_paths import SWITCH, USERS, LabError, Places, address, compute_nodes, namespace
from lab_state import State, reap, wait_for

SSHD = Path("/usr/sbin/sshd")
LAPTOP, LOGINS = "laptop", ("login", "login2")
OUTSIDE = "10.80.0"
_OUTSIDE = {LAPTOP: f"{OUTSIDE}.100", "login": f"{OUTSIDE}.2", "login2": f"{OUTSIDE}.3"}


def missing() -> str | None:
    """Why there can be no laptop in this lab, in one sentence; None when it can."""
    if not os.access(SSHD, os.X_OK):
        return "The laptop needs the package openssh-server. Run: tests/lab/lab.py install"
    return None


def nodes_with_sshd(count: int) -> list[str]:
    return [*LOGINS, *compute_nodes(count)]


def start(places: Places, state: State) -> None:
    """Add the laptop, the second login node, their network and every sshd to a lab that is up."""
    if reason := missing():
        raise LabError(reason)
    _keys(places, state)
    _network()
    for node in (LAPTOP, "login2"):
        state.holders[node] = lab_nodes.start_holder(places, state, node)
        state.save(places)
    for user in USERS:
        furnish_home(places, user)
    for node in nodes_with_sshd(state.nodes):
        configure(places, node)
        start_sshd(places, state, node)


def _network() -> None:
    """A second switch for the laptop and the login nodes; login2 is on the inner one too."""
    lab_nodes.call(["ip", "-batch", "-"], text_in="".join(f"netns add {namespace(n)}\n" for n in (LAPTOP, "login2")))
    wires = ["link add br1 type bridge", "link set br1 up"]
    wires += [f"link add x-{node} type veth peer name ext0 netns {namespace(node)}" for node in _OUTSIDE]
    wires += [f"link set x-{node} master br1" for node in _OUTSIDE] + [f"link set x-{node} up" for node in _OUTSIDE]
    wires += [f"link add p-login2 type veth peer name eth0 netns {namespace('login2')}"]
    wires += ["link set p-login2 master br0", "link set p-login2 up"]
    lab_nodes.call(["ip", "-n", SWITCH, "-batch", "-"], text_in="\n".join(wires) + "\n")
    for node, outside in _OUTSIDE.items():
        setup = ["link set ext0 addrgenmode none", f"address add {outside}/24 dev ext0", "link set ext0 up"]
        if node != "login":
            setup.append("link set lo up")
        if node == "login2":
            setup += ["link set eth0 addrgenmode none", f"address add {address('login2')}/24 dev eth0"]
            setup += ["link set eth0 up"]
        lab_nodes.call(["ip", "-n", namespace(node), "-batch", "-"], text_in="\n".join(setup) + "\n")


def cut(up: bool = False) -> None:
    """Pull the laptop's cable, or put it back."""
    lab_nodes.call(["ip", "-n", SWITCH, "link", "set", f"x-{LAPTOP}", "up" if up else "down"])


def folder(places: Places) -> Path:
    return places.etc / "ssh"


def _keys(places: Places, state: State) -> None:
    top = folder(places)
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir(mode=0o755)
    for name in ("userca", "hostca"):
        _keygen(top / name, f"lab {name}")
    for node in nodes_with_sshd(state.nodes):
        renew_host_key(places, node)
    lines = "".join(f"{outside} {node} {alias}\n" for node, outside, alias in
                    (("login", _OUTSIDE["login"], "login1 login.lab"), ("login2", _OUTSIDE["login2"], "login.lab")))  # fmt: skip
    (places.etc / "hosts-laptop").write_text(f"127.0.0.1 localhost laptop\n{lines}")


def _keygen(path: Path, comment: str) -> None:
    lab_nodes.call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])


def renew_host_key(places: Places, node: str, *, signed: bool = True) -> None:
    """Give a node a new host key, with the authority's signature or without."""
    key = folder(places) / f"host-{node}"
    for path in (key, key.with_suffix(".pub"), folder(places) / f"host-{node}-cert.pub"):
        path.unlink(missing_ok=True)
    _keygen(key, node)
    if signed:
        names = [node, address(node), *([_OUTSIDE[node], "login.lab", "login1"] if node in LOGINS else [])]
        sign = ["ssh-keygen", "-q", "-s", str(folder(places) / "hostca"), "-I", node, "-h", "-n", ",".join(names)]
        lab_nodes.call([*sign, f"{key}.pub"])


def laptop_home(places: Places, user: str) -> Path:
    """Where the laptop's home of a user lies; on the laptop it is mounted over the cluster's."""
    return places.top / "laptop-home" / USERS[user]


def certify(places: Places, user: str, seconds: int = 12 * 3600) -> Path:
    """Give a user on the laptop a certificate for so many seconds, as a site's ``step ssh login`` does; below 0 it has ended."""
    public = laptop_home(places, user) / ".ssh" / "id_ed25519.pub"
    words = ["ssh-keygen", "-q", "-s", str(folder(places) / "userca"), "-I", user, "-n", USERS[user]]
    lab_nodes.call([*words, "-V", f"-5m:{seconds:+d}s", str(public)])
    certificate = public.with_name("id_ed25519-cert.pub")
    _give(user, certificate)
    return certificate


def furnish_home(places: Places, user: str) -> None:
    """A fresh home on the laptop with a key, a certificate and an ssh configuration; a key of the cluster's own inside."""
    home = laptop_home(places, user)
    shutil.rmtree(home, ignore_errors=True)
    (home / ".ssh").mkdir(parents=True)
    home.parent.chmod(0o755)
    home.chmod(0o700)
    (home / ".ssh").chmod(0o700)
    _keygen(home / ".ssh" / "id_ed25519", f"{user} on the laptop")
    authority = (folder(places) / "hostca.pub").read_text()
    (home / ".ssh" / "known_hosts").write_text(f"@cert-authority login*,n?,n?? {authority}")
    account = USERS[user]
    (home / ".ssh" / "config").write_text(
        f"Host lab\n  HostName login.lab\n  HostKeyAlias login.lab\nHost lab login* n? n??\n  User {account}\n"
    )
    certify(places, user)
    inside = places.home(user) / ".ssh"
    inside.mkdir(mode=0o700, exist_ok=True)
    for name in ("id_ed25519", "id_ed25519.pub"):
        (inside / name).unlink(missing_ok=True)
    _keygen(inside / "id_ed25519", f"{user} inside the cluster")
    (inside / "authorized_keys").write_text((inside / "id_ed25519.pub").read_text())
    (inside / "known_hosts").write_text(f"@cert-authority n?,n?? {authority}")
    _give(user, home, *home.rglob("*"), inside, *inside.rglob("*"))


def _give(user: str, *paths: Path) -> None:
    known = pwd.getpwnam(USERS[user])
    for path in paths:
        os.chown(path, known.pw_uid, known.pw_gid, follow_symlinks=False)


def configure(places: Places, node: str, extra: Sequence[str] = (), *, certificates: bool = True,
              keys: bool = True) -> None:  # fmt: skip
    """Write a node's sshd_config; ``extra`` lines come first and so win.

    A login node takes certificates only. A compute node takes them, or the users' own keys of the cluster, or both.
    """
    top = folder(places)
    path = f"{places.venv}/bin:/usr/bin:/bin"
    lines = [*extra, f"HostKey {top}/host-{node}", f"PidFile {places.run}/sshd-{node}.pid", "UsePAM no"]
    lines += ["PasswordAuthentication no", "KbdInteractiveAuthentication no", "PrintMotd no", "LogLevel VERBOSE"]
    variables = f"PATH={path} SLURM_CONF={places.slurm_conf} HPCML_SYSTEM_CONFIG={places.site} LANG=C.UTF-8"
    lines += [f"SetEnv {variables}", "AllowAgentForwarding yes"]
    if (certificate := top / f"host-{node}-cert.pub").exists():
        lines.append(f"HostCertificate {certificate}")
    if certificates or node in LOGINS:
        lines.append(f"TrustedUserCAKeys {top}/userca.pub")
    lines.append(
        "AuthorizedKeysFile .ssh/authorized_keys" if keys and node not in LOGINS else "AuthorizedKeysFile none"
    )
    lines += [f"ListenAddress {address(node)}"]
    if node in LOGINS:
        lines.append(f"ListenAddress {_OUTSIDE[node]}")
    (top / f"sshd-{node}.conf").write_text("\n".join(lines) + "\n")


def start_sshd(places: Places, state: State, node: str) -> None:
    words = [str(SSHD), "-D", "-e", "-f", str(folder(places) / f"sshd-{node}.conf")]
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    (places.run / f"sshd-{node}.pid").unlink(missing_ok=True)
    state.daemons[f"sshd-{node}"] = daemon = lab_nodes.start_daemon(places, state.holders[node], words, f"sshd-{node}")
    state.save(places)
    pid = places.run / f"sshd-{node}.pid"
    if not wait_for(lambda: pid.exists() or not daemon.alive, 5, 0.01) or not daemon.alive:
        raise LabError(f"The sshd of {node} does not start. Read {places.log}/sshd-{node}.out.")


def stop_sshd(state: State, node: str) -> None:
    """End a node's sshd; connections that it has made go on."""
    daemon = state.daemons[f"sshd-{node}"]
    with contextlib.suppress(ProcessLookupError):
        os.kill(daemon.pid, signal.SIGTERM)
    if not wait_for(lambda: not daemon.alive, 5, 0.01):
        raise LabError(f"The sshd of {node} does not end.")
    reap(daemon.pid)


def log(places: Places, node: str) -> str:
    """What a node's sshd has said since it was started last."""
    return (places.log / f"sshd-{node}.out").read_text(errors="replace")
