#!/bin/bash
# Runs a Python script with hpcml on GPU nodes, with Python and all libraries from an Apptainer image, as a batch job of your own.
#
# The image is made once, on a login node: hpcml image build rapids-cu12 (hpcml's docs/images.md).
# Copy this file, write your account and the image into it, and submit it with the script and the script's arguments:
#
#     sbatch gpu-image.sh train.py --epochs 10
#
# What stands on sbatch's command line counts more than the lines below: sbatch --nodes=4 --time=2:00:00 gpu-image.sh train.py
# The partitions are those of Leonardo (CINECA); `sinfo -s` lists your machine's.

# ---- what is asked for: sbatch reads these lines until the first command ----

# The job's name in squeue. The run's own name in hpcml ls is the script's.
#SBATCH --job-name=hpcml-gpu-image
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

# ---- the environment: hpcml alone, all else is in the image ----

# The virtual environment with hpcml (pip install . is enough: Dask and RAPIDS are in the image), in a folder that all nodes see.
# Another than this one: sbatch --export=ALL,VENV=/path/to/venv gpu-image.sh train.py
source "${VENV:-$HOME/hpcml}/bin/activate" || exit

# The image, on a file system that all nodes see. On Leonardo $WORK is the project's.
# Another than this one: sbatch --export=ALL,IMAGE=/path/to/image.sif gpu-image.sh train.py
IMAGE="${IMAGE:-$WORK/rapids-cu12.sif}"

# ---- the run ----

# On all nodes and GPUs of the job, with every role inside the image. "$@" is what stands behind gpu-image.sh on sbatch's line;
# or write it here: hpcml run --image "$IMAGE" train.py
# Options of hpcml stand before the script. To try it on the same nodes without their GPUs:
#     sbatch gpu-image.sh --gpus-per-node 0 train.py
# It ends when the script has ended, so lines for other scripts may follow; the status of the last is the job's.
# On a login node: hpcml ls, hpcml status JOB, hpcml logs -f JOB.
hpcml run --image "$IMAGE" "$@"
