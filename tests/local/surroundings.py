"""A script that tells what it finds around it, and what its tasks and the scheduler find: one JSON table.

``python surroundings.py`` tells the first alone, ``hpcml submit surroundings.py run`` all of them. What a difference is
allowed to be is in tests/alike.py, and in docs/surroundings.md for people.
"""

from __future__ import annotations

import json
import sys


def collect() -> dict[str, object]:  # sent to workers as it is, with all that it needs
    import faulthandler
    import gc
    import json
    import locale
    import multiprocessing
    import os
    import pathlib
    import resource
    import signal
    import socket
    import stat
    import subprocess
    import sys
    import tempfile
    import time
    import warnings

    def names(mask: str) -> list[str]:
        bits = int(mask, 16)
        return [number.name for number in signal.Signals if bits >> (number - 1) & 1]

    def child_signals() -> dict[str, object]:
        shell = subprocess.run(["/bin/cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
        lines = dict(line.split(":", 1) for line in shell.splitlines())
        return {"ignored": names(lines["SigIgn"]), "blocked": names(lines["SigBlk"])}

    def forked_signals() -> list[str]:
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            usual = (signal.SIG_DFL, signal.default_int_handler)
            odd = [one.name for one in signal.Signals if signal.getsignal(one) not in usual]
            os.write(writer, json.dumps(odd).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(writer)
        with os.fdopen(reader) as file:
            return list(json.loads(file.read()))

    mask = os.umask(0o77)
    os.umask(mask)
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if name[0] != "_" and not name.startswith("n_")}
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {
        "umask": oct(mask),
        "folder": str(pathlib.Path.cwd()),
        "path": list(sys.path),
        "environment": dict(os.environ),
        "interpreter": [sys.executable, sys.prefix, sys.version],
        "flags": {name: flags[name] for name in flags if not callable(flags[name])},
        "utf8": [sys.flags.utf8_mode, sys.getfilesystemencoding(), locale.getpreferredencoding(False)],
        "output": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.encoding, sys.stderr.errors],
        "locale": [locale.setlocale(locale.LC_ALL), locale.localeconv()["decimal_point"]],
        "time zone": [time.tzname, time.timezone],
        "limits": limits,
        "signals of processes": child_signals(),
        "signals of forks": forked_signals(),
        "nice": os.nice(0),
        "oom_score_adj": int(pathlib.Path("/proc/self/oom_score_adj").read_text()),
        "input": stat.S_IFMT(os.fstat(0).st_mode) == stat.S_IFREG or sys.stdin.read(1) == "",
        "start method": multiprocessing.get_context().get_start_method(),
        "hash": hash("hpcml"),
        "recursion": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "faulthandler": faulthandler.is_enabled(),
        "warnings": [str(one[:3]) for one in warnings.filters],
        "garbage": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0],
        "temporary": tempfile.gettempdir(),
        "home": str(pathlib.Path("~").expanduser()),
        "user": [os.getuid(), os.getgid(), sorted(os.getgroups())],
        "host": socket.gethostname(),
        "main": [str(getattr(sys.modules["__main__"], "__file__", None)), str(sys.modules["__main__"].__spec__)],
    }


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(json.dumps({"python": collect()}))
    else:
        from distributed import Client

        client = Client()
        tasks = client.run(collect)
        found = {"script": collect(), "scheduler": client.run_on_scheduler(collect), **tasks}
        print(json.dumps(found))
