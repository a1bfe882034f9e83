"""How long `hpcml tunnel` takes to the first answer, against ssh and curl by hand; and what each route carries.

    sudo tests/lab/lab.py up && sudo tests/lab/lab.py env && sudo tests/lab/lab.py laptop
    sudo .venv/bin/python bench/tunnel.py [--repeat 5] [--megabytes 200]

By hand is what somebody types who has the run's directory: ask the login node for node and socket, then one ssh with
-L and -J, then curl. "ssh alone" is the same for somebody who knows node and socket by heart. All begin without an open connection. hpcml's route is given, as it is from the second time on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests/lab")]

from labs import Lab  # noqa: E402
from laptop import SERVICE, Outside, until  # noqa: E402

ROUTES = ("direct", "twohop", "srun")
ASK = "facts=$(ssh login1 cat {services}/dashboard.json)"
KNOW = "facts=$(cat /tmp/known)"
HAND = """
set -e
{ask}
socket=$(echo "$facts" | grep -o '"socket": "[^"]*' | cut -d'"' -f4); node=$(echo "$facts" | grep -o '"node": "[^"]*' | cut -d'"' -f4)
ssh -fN -S /tmp/hand -M -o ExitOnForwardFailure=yes -L 127.0.0.1:9999:$socket -J login1 $node >/dev/null 2>&1
curl -sf -o /dev/null http://127.0.0.1:9999/hpcml/identity.json
"""
END = "ssh -F none -S /tmp/hand -O exit x 2>/dev/null"


def first_answer(outside: Outside, run: str, route: str) -> float:
    outside.forget()
    began = time.monotonic()
    tunnel = outside.tunnel(run, "--route", route)
    tunnel.up()  # it says so after the first 200 with the run's identity
    took = time.monotonic() - began
    outside.tunnels.pop().stop()
    return took


def by_hand(outside: Outside, directory: Path, ask: str) -> float:
    outside.forget()
    services = next(directory.glob("attempts/*/services"))
    outside.on("laptop", "tee", "/tmp/known", input=(services / "dashboard.json").read_text())
    began = time.monotonic()
    done = outside.laptop("bash", "-c", HAND.format(ask=ask.format(services=services)))
    took = time.monotonic() - began
    outside.laptop("bash", "-c", END)
    if done.returncode:
        raise SystemExit(f"by hand failed: {done.stderr}")
    return took


def rate(outside: Outside, run: str, route: str, megabytes: int, digest: str) -> tuple[float, bool]:
    """Download so many MiB; return MiB/s, and whether each byte is right."""
    service = outside.service(outside.cluster.directory(run), "web")
    token = outside.on("login", "cat", service["token_file"]).stdout.strip()
    port = outside.tunnel(run, "--service", "web", "--route", route).up()["port"]
    command = (f"curl -s -H 'Authorization: token {token}' -w '%{{stderr}}%{{time_total}}' "
               f"http://127.0.0.1:{port}/big={megabytes} | sha256sum")  # fmt: skip
    done = outside.laptop("bash", "-c", command, timeout=300)
    outside.tunnels.pop().stop()
    return megabytes / float(done.stderr.split()[-1]), done.stdout.split()[0] == digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=200)
    options = parser.parse_args()
    lab = Lab()
    lab.add_laptop()
    outside = Outside(lab)
    run, directory = outside.start_run("bench", SERVICE)
    until(lambda: bool(list(directory.glob("attempts/*/services/web.json"))), 60)
    try:
        times: dict[str, list[float]] = {name: [] for name in ("by hand", "ssh alone", *ROUTES)}
        for _ in range(options.repeat):  # in turn, so that a busy moment hits all
            times["by hand"].append(by_hand(outside, directory, ASK))
            times["ssh alone"].append(by_hand(outside, directory, KNOW))
            for route in ROUTES:
                times[route].append(first_answer(outside, run, route))
        base = statistics.median(times["by hand"])
        print(f"{'':<10} {'median':>8} {'least':>8} {'most':>8} {'ratio':>6}")
        for name, found in times.items():
            median = statistics.median(found)
            print(f"{name:<10} {median:>7.2f}s {min(found):>7.2f}s {max(found):>7.2f}s {median / base:>6.2f}")
        import hashlib

        digest = hashlib.sha256()
        for _ in range(options.megabytes):
            digest.update(bytes(range(256)) * 4096)
        for route in ROUTES:
            outside.forget()
            speed, right = rate(outside, run, route, options.megabytes, digest.hexdigest())
            print(f"{route:<10} {speed:>6.0f} MiB/s over {options.megabytes} MiB, {'intact' if right else 'DAMAGED'}")
        print(json.dumps({name: [round(value, 3) for value in found] for name, found in times.items()}))
    finally:
        outside.on("login", "scancel", "--me")
        outside.forget()


if __name__ == "__main__":
    main()
