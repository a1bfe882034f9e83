"""One piece of the data is much larger than the others: all workers wait for its task."""

import time

import psutil

import hpcml


def compute(seconds: float) -> float:
    time.sleep(seconds)  # as long as work would be, whatever else the machine does
    return seconds


client = hpcml.connect()
seconds = max(12, 4 * (time.time() - psutil.Process().create_time()))  # long beside this script's own start
print(sum(client.gather(client.map(compute, [seconds, *([0.05] * 20)], pure=False))))
