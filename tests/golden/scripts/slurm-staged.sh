#!/bin/bash
#SBATCH --job-name=kmeans
#SBATCH --comment=hpcml:staged-20261121-074500-1a2b
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=/scratch/alice/runs/staged-20261121-074500-1a2b/logs/job.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@60
#SBATCH --export=ALL
#SBATCH --no-requeue
#SBATCH --exclusive
# hpcml 0.0.0: run staged-20261121-074500-1a2b on site slurm.
# Each step is a role: the supervisor (driver) on the first node, and those of the run's kind. Phases, deadlines and
# teardown are in `python -m hpcml.node`; this script's exit status is the supervisor's.
set -u
umask 077
trap 'near=1' USR1   # it may come as soon as the job begins
unset "${!HPCML_@}"   # those of another run, or of the shell from which a person submits
export HPCML_RUN_DIR=/scratch/alice/runs/staged-20261121-074500-1a2b
export HPCML_ATTEMPT="${SLURM_RESTART_COUNT:-0}" HPCML_RESTARTS=3 HPCML_NODES=2 HPCML_GPUS=0
HPCML_BEGAN=$(date +%s); export HPCML_BEGAN   # no role can have begun before
# This script is the scheduler's own copy: what else is run comes from that folder, which may have been replaced meanwhile.
if [ ! -O "$HPCML_RUN_DIR" ] || [ -L "$HPCML_RUN_DIR" ]; then echo "hpcml: missing, or not yours: $HPCML_RUN_DIR" >&2; exit 74; fi
# A run is one job: the first that leaves its id here, and the same one when it starts again. A link has its text at once.
this_job="$SLURM_JOB_ID"; ln -sn "$this_job" "$HPCML_RUN_DIR/job" 2>/dev/null; job=$(readlink "$HPCML_RUN_DIR/job")
if [ -n "$job" ] && [ "$job" != "$this_job" ]; then
  echo "This run is job $job, so job $this_job does not change it; to run it again: hpcml rerun" staged-20261121-074500-1a2b >&2
  exit 64
fi
attempt="$HPCML_RUN_DIR/attempts/$HPCML_ATTEMPT"
# write_end EXIT_STATUS PHASE MESSAGE HINT: the run's end where no supervisor can write it, into a file that is there already: the
# disk may be full.
json_text() { printf %s "$1" | tr '\n\t' '  ' | tr -d '[:cntrl:]' | sed 's/[\\"]/\\&/g'; }
write_end() {
  mkdir -p "$HPCML_RUN_DIR/reserve" 2>/dev/null
  printf '{"over": true, "state": "FAILED", "time": %s, "attempt": %s, "exit_status": %s, "phase": "%s", "by": "hpcml", "message": "%s", "hint": "%s", "quote": []}' \
    "$(date +%s.%3N)" "$HPCML_ATTEMPT" "$1" "$2" "$(json_text "$3")" "$(json_text "$4")" \
    1<>"$HPCML_RUN_DIR/reserve/0" && mv "$HPCML_RUN_DIR/reserve/0" "$HPCML_RUN_DIR/status.json"
}
said=$(mkdir -p "$attempt/nodes" "$attempt/versions" "$attempt/exit" "$attempt/secret" 2>&1) || {
  echo "$said" >&2
  write_end 74 allocated "the run's directory cannot be written: $(printf %s "$said" | tail -n 1)" \
    "The disk or the quota may be full. Free space, or choose another folder for runs (--set paths.runs=…). Then submit again."
  exit 74
}

export HPCML_CONTAINER_ENV=''
# What the script is given back, which step.sh keeps from hpcml's own processes in part.
export HPCML_PYTHONPATH="${PYTHONPATH-}" PYTHONUNBUFFERED=1
export PYTHONPATH="$HPCML_RUN_DIR/lib.zip${PYTHONPATH:+:$PYTHONPATH}"

cpus="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"
if [ -n "${SLURM_MEM_PER_CPU-}" ]; then unset SLURM_MEM_PER_NODE; fi
HPCML_NODE="${SLURMD_NODENAME:-$(uname -n)}"; export HPCML_JOB="$SLURM_JOB_ID" HPCML_NODE_NAMES="$SLURM_JOB_NODELIST"
. "$HPCML_RUN_DIR/stage.sh"   # the image on each node's own disk
stage sbcast '/scratch_local/$SLURM_JOB_ID' /images/cpu.sif 300 \
  "$SLURM_JOB_NUM_NODES" srun --cpus-per-task="$cpus" --overlap --kill-on-bad-exit=0 --wait=0 --cpu-bind=none --export=ALL --nodes=2 --ntasks=2 --ntasks-per-node=1 --job-name=stage /bin/sh -c 'export HPCML_NODE="${SLURMD_NODENAME:-$(uname -n)}"; exec "$@"' sh || { unstage; exit 88; }
entry=(/bin/sh /scratch/alice/runs/staged-20261121-074500-1a2b/image.sh apptainer exec --cleanenv --no-mount cwd --home /scratch/alice/runs/staged-20261121-074500-1a2b/home --pwd /scratch/alice/runs/staged-20261121-074500-1a2b --bind /scratch/alice/runs/staged-20261121-074500-1a2b:/scratch/alice/runs/staged-20261121-074500-1a2b --bind /scratch/alice/runs/staged-20261121-074500-1a2b/lib.zip:/scratch/alice/runs/staged-20261121-074500-1a2b/lib.zip:ro --bind /home/alice/project:/home/alice/project "$staged")   # into it
set -m   # each step is a process group of its own, and can be ended whole
srun --cpus-per-task="$cpus" --nodelist="$HPCML_NODE" --overlap --kill-on-bad-exit=1 --wait=0 --cpu-bind=none --export=ALL --nodes=1 --ntasks=1 --job-name=scheduler --output=/scratch/alice/runs/staged-20261121-074500-1a2b/logs/scheduler.log --open-mode=append /bin/sh -c 'export HPCML_NODE="${SLURMD_NODENAME:-$(uname -n)}"; exec "$@"' sh \
  /bin/sh /scratch/alice/runs/staged-20261121-074500-1a2b/step.sh scheduler "${entry[@]}" python3 -P -m hpcml.node scheduler </dev/null & scheduler=$!
srun --cpus-per-task="$cpus" --overlap --kill-on-bad-exit=0 --wait=0 --cpu-bind=none --export=ALL --nodes=2 --ntasks=2 --ntasks-per-node=1 --job-name=worker --output=/scratch/alice/runs/staged-20261121-074500-1a2b/logs/worker-%N.log --open-mode=append /bin/sh -c 'export HPCML_NODE="${SLURMD_NODENAME:-$(uname -n)}"; exec "$@"' sh \
  /bin/sh /scratch/alice/runs/staged-20261121-074500-1a2b/step.sh worker "${entry[@]}" python3 -P -m hpcml.node worker </dev/null & worker=$!
export HPCML_BATCH=$$ HPCML_STEPS="$scheduler $worker"   # the supervisor waits for the steps' end
srun --cpus-per-task="$cpus" --nodelist="$HPCML_NODE" --overlap --kill-on-bad-exit=1 --wait=0 --cpu-bind=none --export=ALL --nodes=1 --ntasks=1 --job-name=driver --output=/scratch/alice/runs/staged-20261121-074500-1a2b/logs/driver.log --open-mode=append /bin/sh -c 'export HPCML_NODE="${SLURMD_NODENAME:-$(uname -n)}"; exec "$@"' sh \
  /bin/sh /scratch/alice/runs/staged-20261121-074500-1a2b/step.sh driver "${entry[@]}" python3 -P -m hpcml.node driver </dev/null & driver=$!
set +m

# The supervisor in the driver's step looks for these files. In `wait`, bash loses one of two signals that come at once, as when
# a suspended job continues: so it reads from a pipe meanwhile, which the last signal and the end of a step write to.
exec {woken}<> <(:)
trap ': >"$attempt/time-limit"' USR1
[ -z "${near-}" ] || : >"$attempt/time-limit"
trap ': >"$attempt/terminate"' TERM INT HUP
trap 'echo >&"$woken"' CONT CHLD   # CONT: the supervisor's last act, after its status
own="$attempt/exit/driver@${HPCML_NODE:-local}"
while kill -0 "$driver" 2>/dev/null && [ ! -s "$own" ]; do read -r -t 1 -u "$woken" || [ $? != 1 ] || sleep 1; done
trap : CONT; trap - CHLD
# A step whose supervisor has ended may be stopped (SIGSTOP): it has half a minute.
for _ in {1..600}; do kill -0 "$driver" 2>/dev/null || break; sleep 0.05; done
if kill -0 "$driver" 2>/dev/null; then
  echo "hpcml: the script's step did not end after its supervisor, and was killed: it may have been stopped (SIGSTOP)" >&2
  kill -KILL -- "-$driver" 2>/dev/null
fi
status=127
kill -0 "$driver" 2>/dev/null || { wait "$driver"; status=$?; }

# The supervisor's own status counts: a launcher may give 1 for a step in which something ran out of memory.
[ -s "$own" ] && read -r status <"$own"
grep -qs "\"attempt\": $HPCML_ATTEMPT, \"event\": \"allocated\"" "$HPCML_RUN_DIR/events.jsonl" || [ "$status" = 74 ] || status=88   # the image was not entered: see logs/driver.log

# The other steps have ended by now, told by the supervisor; what has not is killed.
# A launcher that is told to end kills its tasks: without a supervisor they would hold their nodes.
kill -TERM "$scheduler" "$worker" 2>/dev/null
for _ in {1..30}; do kill -0 "$scheduler" 2>/dev/null || kill -0 "$worker" 2>/dev/null || break; sleep 0.1; done
kill -KILL -- "-$scheduler" "-$worker" 2>/dev/null
unstage
exit "$status"
