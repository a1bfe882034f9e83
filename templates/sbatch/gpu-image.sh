#!/bin/bash
# Runs a Python script with hpcml on GPU nodes, with Python and all libraries from an Apptainer image, as your own batch job.
#
# Build the image once, on a login node: hpcml image build rapids-cu12 (hpcml's docs/images.md).
# Copy this file, write your account and the image into it, and submit it with the script and the script's arguments:
#
#     sbatch gpu-image.sh train.py --epochs 10
#
# Options on sbatch's command line override the lines below: sbatch --nodes=4 --time=2:00:00 gpu-image.sh train.py
# The partitions below are those of Leonardo (CINECA). `sinfo -s` lists your machine's partitions.

# ---- the request: sbatch reads these lines until the first command ----

# The job's name in squeue. In hpcml ls, the run has the script's name.
#SBATCH --job-name=hpcml-gpu-image
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

# ---- the environment: only hpcml; the image contains all other packages ----

# The virtual environment with hpcml (pip install . is enough: Dask and RAPIDS are in the image), in a folder that all nodes share.
# To use another environment: sbatch --export=ALL,VENV=/path/to/venv gpu-image.sh train.py
source "${VENV:-$HOME/hpcml}/bin/activate" || exit

# The image, on a file system that all nodes share. On Leonardo, $WORK is the project's folder.
# To use another image: sbatch --export=ALL,IMAGE=/path/to/image.sif gpu-image.sh train.py
IMAGE="${IMAGE:-$WORK/rapids-cu12.sif}"

# ---- the run ----

# The run uses all nodes and GPUs of the job; all processes run inside the image. "$@" is all text after gpu-image.sh on
# sbatch's line. Or write it here: hpcml run --image "$IMAGE" train.py
# Write hpcml's options before the script. To try the script on the same nodes without GPUs:
#     sbatch gpu-image.sh --gpus-per-node 0 train.py
# hpcml run ends with the script. You may add lines for other scripts; the job's status is that of the last command.
# To look at the run on a login node: hpcml ls, hpcml status JOB, hpcml logs -f JOB.
hpcml run --image "$IMAGE" "$@"
