"""A script that counts workers in a loop: it would wait for ever, with its nodes."""

from distributed import Client, LocalCluster

cluster = LocalCluster(n_workers=16)
client = Client(cluster)
for attempt in range(30):  # noqa: B007 - it is used below
    if len(client.scheduler_info()["workers"]) >= 16:
        break
while attempt > 9 and len(cluster.workers) < 16:
    attempt -= 1
print("result", attempt == 9)
