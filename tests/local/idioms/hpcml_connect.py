"""hpcml.connect() with options of a cluster and of a client, in the script, in a task and in a child process."""

import subprocess
import sys

import hpcml


def nested():
    with hpcml.connect(n_workers=3) as client:
        return client.submit(sum, [4, 5], pure=False).result()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(hpcml.connect(n_workers=1).submit(sum, [1, 1]).result())
        sys.exit()
    client = hpcml.connect(n_workers=2, threads_per_worker=1, timeout=30, set_as_default=True)
    child = subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True, check=True)
    print("result", client.submit(nested).result() == 9 and child.stdout == "2\n")
