"""dask-jobqueue in a notebook turned into a script: its job script's variables are in the workers that run already."""

import os
import pickle
import time

from dask_jobqueue import SLURMCluster
from distributed import Client

FACTOR = 2


class Doubled:
    def __init__(self, number):
        self.number = number

    def value(self):
        return FACTOR * self.number


def value(path):
    with open(path, "rb") as file:
        return pickle.load(file).value() * int(os.environ["SCALE"])  # noqa: S301 - as users write


async def end():
    os._exit(3)


cluster = SLURMCluster(
    queue="boost_usr_prod",
    account="PROJ_x",
    cores=8,
    memory="64GB",
    walltime="01:00:00",
    job_name="mine",
    job_script_prologue=["export SCALE=10", "module load cuda"],
    job_extra_directives=["--gres=gpu:1"],
)
cluster.scale(jobs=2)
print(cluster.job_script().splitlines()[0], cluster.job_name)
client = Client(cluster)
client.wait_for_workers(2)
first = client.gather(client.map(lambda x: 2 * x, range(5)))
with open("doubled.pkl", "wb") as file:
    pickle.dump(Doubled(3), file)
first += client.gather([client.submit(value, "doubled.pkl", workers=[one], pure=False) for one in client.nthreads()])
before = set(client.nthreads())
client.run(end, workers=[min(before)], wait=False)
while len(set(client.nthreads()) - before) < 1 or len(client.nthreads()) < len(before):
    time.sleep(0.05)
first += list(client.run(os.getenv, "SCALE").values())
os.environ["LATER"] = "1"
other = Client()
first.append(other.submit(os.getenv, "LATER").result())
count = len(before)
print("result", first == [0, 2, 4, 6, 8, *[60] * count, *["10"] * count, "1"])
client.close()
cluster.close()
