"""OpenSSH's client as far as hpcml uses it: the "login node" is this machine with another home, ``$FAKE_SSH/far``.

The file ``$FAKE_SSH/mode`` changes what happens: ``refuse``, ``unreachable`` and ``hostkey`` fail the login; ``payload``
cuts the link within the first bytes of input, ``go`` when the run's id has been said, before it is answered, ``answer``
after that; ``stall`` reads no further, for half a minute; ``chatty`` prints what a shell's start prints. ``$FAKE_SSH/calls`` holds what was asked.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

STATE = Path(os.environ["FAKE_SSH"])
SAID = {
    "refuse": "ada@cluster: Permission denied (publickey).",
    "unreachable": "ssh: Could not resolve hostname cluster: Name or service not known",
    "hostkey": "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
}


def main(words: list[str]) -> int:
    mode = (STATE / "mode").read_text() if (STATE / "mode").exists() else ""
    with (STATE / "calls").open("a") as file:
        file.write(json.dumps(words) + "\n")
    control = Path(words[words.index("-S") + 1]) if "-S" in words else Path("/nonexistent")
    if "-G" in words:
        print("user ada\nhostname cluster\ncontrolpath none")
        return 0
    if "-O" in words:
        return 0 if control.exists() else 255
    if "-fNT" in words:
        if mode in SAID:
            Path(words[words.index("-E") + 1]).write_text(SAID[mode] + "\n")
            return 255
        control.touch()
        return 0
    if not control.exists():
        return 255
    return command(words[-1], mode, control)


def command(text: str, mode: str, control: Path) -> int:
    far = json.loads((STATE / "environment").read_text())
    if mode == "chatty":
        print("Welcome to the cluster!", flush=True)
    if mode not in ("payload", "go", "answer", "stall"):
        os.chdir(far["HOME"])
        os.execvpe("/bin/sh", ["sh", "-c", text], far)
    return cut_off(["/bin/sh", "-c", text], mode, far, control)


def cut_off(words: list[str], mode: str, far: dict[str, str], control: Path) -> int:
    """Run the command as far as the mode says."""
    import subprocess  # these three are not imported for nothing: each command makes four calls
    import threading
    import time

    child = subprocess.Popen(  # in a session of its own, as sshd's: what ends the client reaches it as the input's end
        words, env=far, cwd=far["HOME"], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    inside, said = child.stdin, child.stderr
    assert inside
    assert said

    def pass_input() -> None:
        while data := os.read(0, 65536):
            if mode == "go" and data == b"go\n":
                return
            inside.write(data)
            inside.flush()

    if mode in ("payload", "stall"):
        os.write(inside.fileno(), os.read(0, 400))
        time.sleep(30 if mode == "stall" else 0)
    else:
        threading.Thread(target=pass_input, daemon=True).start()
        while line := said.readline():
            if mode == "answer" and b'"submitted"' in line:
                break
            os.write(2, line)
            if mode == "go" and b'"run"' in line:
                break
    control.unlink()
    inside.close()
    child.communicate()
    return 255


sys.exit(main(sys.argv[1:]))
