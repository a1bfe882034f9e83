"""Most of the work is a loop in the script: the workers wait for it."""

import time

import hpcml

client = hpcml.connect()
for step in range(14):
    time.sleep(1)  # as long as work would be, whatever else the machine does
    print(step, client.submit(lambda x: x + 1, step).result())
