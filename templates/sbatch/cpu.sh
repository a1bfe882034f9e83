#!/bin/bash
# Runs a Python script with hpcml on whole CPU nodes, as a batch job of your own.
#
# Copy this file, write your account into it, and submit it with the script and the script's arguments:
#
#     sbatch cpu.sh train.py --epochs 10
#
# What stands on sbatch's command line counts more than the lines below: sbatch --nodes=4 --time=2:00:00 cpu.sh train.py
# The partitions are those of Leonardo (CINECA); `sinfo -s` lists your machine's.

# ---- what is asked for: sbatch reads these lines until the first command ----

# The job's name in squeue. The run's own name in hpcml ls is the script's.
#SBATCH --job-name=hpcml-cpu
# Whose budget pays: the project's name (saldo -b lists them on Leonardo).
#SBATCH --account=MY_ACCOUNT
# Nodes without GPUs: 112 cores each on Leonardo.
#SBATCH --partition=dcgp_usr_prod
# A queue for tests, with short waiting times and limits. Take one # away to use it.
##SBATCH --qos=dcgp_qos_dbg
# How long at most. A shorter limit often starts earlier.
#SBATCH --time=00:30:00
# How many nodes. Scheduler, workers and script share them; each node gets as many workers as the site's profile says.
#SBATCH --nodes=2
# Whole nodes, shared with nobody: all cores,
#SBATCH --exclusive
# and all their memory (0 means all).
#SBATCH --mem=0
# What this script prints, in the folder from which you submit: the job's name and number.
#SBATCH --output=%x-%j.log

# ---- the environment: what you type on a login node before you use hpcml ----

# The site's own software, if your Python needs it:
# module load python/3.11

# The virtual environment with hpcml and your libraries, in a folder that all nodes see.
# Another than this one: sbatch --export=ALL,VENV=/path/to/venv cpu.sh train.py
source "${VENV:-$HOME/hpcml}/bin/activate" || exit

# ---- the run ----

# On all nodes of the job; --gpus-per-node 0 leaves GPUs alone, if a node has some. "$@" is what stands
# behind cpu.sh on sbatch's line; or write it here: hpcml run --gpus-per-node 0 train.py --epochs 10
# Options of hpcml stand before the script: sbatch cpu.sh --set workers.per_node=8 train.py
# It ends when the script has ended, so lines for other scripts may follow; the status of the last is the job's.
# On a login node: hpcml ls, hpcml status JOB, hpcml logs -f JOB.
hpcml run --gpus-per-node 0 "$@"
