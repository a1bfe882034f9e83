#!/bin/bash
# Runs a Python script with hpcml on GPU nodes, one Dask worker for each GPU, as a batch job of your own.
#
# Copy this file, write your account into it, and submit it with the script and the script's arguments:
#
#     sbatch gpu.sh train.py --epochs 10
#
# What stands on sbatch's command line counts more than the lines below: sbatch --nodes=4 --time=2:00:00 gpu.sh train.py
# The partitions are those of Leonardo (CINECA); `sinfo -s` lists your machine's.

# ---- what is asked for: sbatch reads these lines until the first command ----

# The job's name in squeue. The run's own name in hpcml ls is the script's.
#SBATCH --job-name=hpcml-gpu
# Whose budget pays: the project's name (saldo -b lists them on Leonardo).
#SBATCH --account=MY_ACCOUNT
# Nodes with GPUs: four A100 each on Leonardo.
#SBATCH --partition=boost_usr_prod
# A queue for tests: at most 2 nodes and 30 minutes. Take one # away to use it.
##SBATCH --qos=boost_qos_dbg
# How long at most. A shorter limit often starts earlier.
#SBATCH --time=00:30:00
# How many nodes. Scheduler, workers and script share them.
#SBATCH --nodes=2
# GPUs on each node, and so workers on each. All nodes must have as many. Some machines want --gres=gpu:4 in its place.
#SBATCH --gpus-per-node=4
# Whole nodes, shared with nobody: all cores,
#SBATCH --exclusive
# and all their memory (0 means all).
#SBATCH --mem=0
# What this script prints, in the folder from which you submit: the job's name and number.
#SBATCH --output=%x-%j.log

# ---- the environment: what you type on a login node before you use hpcml ----

# The site's own software, if your Python needs it. CUDA comes with the libraries of the environment:
# module load python/3.11

# The virtual environment with hpcml and RAPIDS (hpcml's docs/fabric.md), in a folder that all nodes see.
# Another than this one: sbatch --export=ALL,VENV=/path/to/venv gpu.sh train.py
source "${VENV:-$HOME/hpcml}/bin/activate" || exit

# ---- the run ----

# On all nodes and GPUs of the job. "$@" is what stands behind gpu.sh on sbatch's line; or write it here: hpcml run train.py
# Options of hpcml stand before the script. To try it on the same nodes without their GPUs:
#     sbatch gpu.sh --gpus-per-node 0 train.py
# Before the script starts, the connection between the GPUs is measured; hpcml fabric JOB shows the result.
# It ends when the script has ended, so lines for other scripts may follow; the status of the last is the job's.
# On a login node: hpcml ls, hpcml status JOB, hpcml logs -f JOB.
hpcml run "$@"
