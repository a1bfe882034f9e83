"""``hpcml.map`` behind its call: what a job runs, the jobs on Slurm and on this machine, and their futures."""
