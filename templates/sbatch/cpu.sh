#!/bin/bash
# Runs a Python script with hpcml on whole CPU nodes, as your own batch job.
#
# Copy this file, write your account into it, and submit it with the script and the script's arguments:
#
#     sbatch cpu.sh train.py --epochs 10
#
# Options on sbatch's command line override the lines below: sbatch --nodes=4 --time=2:00:00 cpu.sh train.py
# The partitions below are those of Leonardo (CINECA). `sinfo -s` lists your machine's partitions.

# ---- the request: sbatch reads these lines until the first command ----

# The job's name in squeue. In hpcml ls, the run has the script's name.
#SBATCH --job-name=hpcml-cpu
# The account (project) that pays. On Leonardo, saldo -b lists your accounts.
#SBATCH --account=MY_ACCOUNT
# Nodes without GPUs: 112 cores each on Leonardo.
#SBATCH --partition=dcgp_usr_prod
# A QoS for tests, with short waiting times and limits. To use it, remove one #.
##SBATCH --qos=dcgp_qos_dbg
# The time limit. A job with a shorter limit often starts earlier.
#SBATCH --time=00:30:00
# The number of nodes. Scheduler, workers and script share them; the site's profile sets the number of workers per node.
#SBATCH --nodes=2
# Whole nodes, without other users' jobs: all cores,
#SBATCH --exclusive
# and all their memory (0 means all).
#SBATCH --mem=0
# The file for this script's output, in the submit folder: job name and job id.
#SBATCH --output=%x-%j.log

# ---- the environment: what you type on a login node before you use hpcml ----

# The site's own software, if your Python needs it:
# module load python/3.11

# The virtual environment with hpcml and your libraries, in a folder that all nodes share.
# To use another environment: sbatch --export=ALL,VENV=/path/to/venv cpu.sh train.py
source "${VENV:-$HOME/hpcml}/bin/activate" || exit

# ---- the run ----

# The run uses all nodes of the job. With --gpus-per-node 0 it uses no GPUs. "$@" is all text
# after cpu.sh on sbatch's line. Or write it here: hpcml run --gpus-per-node 0 train.py --epochs 10
# Write hpcml's options before the script: sbatch cpu.sh --set workers.per_node=8 train.py
# hpcml run ends with the script. You may add lines for other scripts; the job's status is that of the last command.
# To look at the run on a login node: hpcml ls, hpcml status JOB, hpcml logs -f JOB.
hpcml run --gpus-per-node 0 "$@"
