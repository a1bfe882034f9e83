"""A script that looks into the scheduler of its cluster, which is a process of its own in a run."""

from distributed import LocalCluster

cluster = LocalCluster(n_workers=2)
print("result", len(cluster.scheduler.workers) == 2 and cluster.scheduler.address == cluster.scheduler_address)
cluster.scale(0)
cluster.scheduler.retire_workers()
