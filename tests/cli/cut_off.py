"""A link of the fake ssh that breaks: ``cut_off.py MODE CONTROL COMMAND`` runs the command as far as the mode says (fake_ssh)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path


def main(mode: str, control: str, command: str) -> int:
    words = ["/bin/sh", f"{os.environ['FAKE_SSH']}/enter", command]
    # in a session of its own, as sshd's: what ends the client reaches it as the input's end
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
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
    Path(control).unlink()
    inside.close()
    child.communicate()
    return 255


sys.exit(main(*sys.argv[1:]))
