#!/bin/bash
# Runs a Python script with hpcml on GPU nodes, one Dask worker for each GPU, as your own batch job.
#
# Copy this file, write your account into it, and submit it with the script and the script's arguments:
#
#     sbatch gpu.sh train.py --epochs 10
#
# Options on sbatch's command line override the lines below: sbatch --nodes=4 --time=2:00:00 gpu.sh train.py
# The partitions below are those of Leonardo (CINECA). `sinfo -s` lists your machine's partitions.

# ---- the request: sbatch reads these lines until the first command ----

# The job's name in squeue. In hpcml ls, the run has the script's name.
#SBATCH --job-name=hpcml-gpu
# The account (project) that pays. On Leonardo, saldo -b lists your accounts.
#SBATCH --account=MY_ACCOUNT
# Nodes with GPUs: four A100 each on Leonardo.
#SBATCH --partition=boost_usr_prod
# A QoS for tests: at most 2 nodes and 30 minutes. To use it, remove one #.
##SBATCH --qos=boost_qos_dbg
# The time limit. A job with a shorter limit often starts earlier.
#SBATCH --time=00:30:00
# The number of nodes. Scheduler, workers and script share them.
#SBATCH --nodes=2
# GPUs per node; hpcml starts a worker for each. All nodes must have this number. Some machines need --gres=gpu:4 instead.
#SBATCH --gpus-per-node=4
# Whole nodes, without other users' jobs: all cores,
#SBATCH --exclusive
# and all their memory (0 means all).
#SBATCH --mem=0
# The file for this script's output, in the submit folder: job name and job id.
#SBATCH --output=%x-%j.log

# ---- the environment: what you type on a login node before you use hpcml ----

# The site's own software, if your Python needs it. The environment's libraries contain CUDA:
# module load python/3.11

# The virtual environment with hpcml and RAPIDS (hpcml's docs/interconnect.md), in a folder that all nodes share.
# To use another environment: sbatch --export=ALL,VENV=/path/to/venv gpu.sh train.py
source "${VENV:-$HOME/hpcml}/bin/activate" || exit

# ---- the run ----

# The run uses all nodes and GPUs of the job. "$@" is all text after gpu.sh on sbatch's line. Or write it here: hpcml run train.py
# Write hpcml's options before the script. To try the script on the same nodes without GPUs:
#     sbatch gpu.sh --gpus-per-node 0 train.py
# Before the script starts, hpcml measures the connection between the GPUs. hpcml interconnect JOB shows the result.
# hpcml run ends with the script. You may add lines for other scripts; the job's status is that of the last command.
# To look at the run on a login node: hpcml ls, hpcml status JOB, hpcml logs -f JOB.
hpcml run "$@"
