#!/bin/bash
#SBATCH --job-name=kmeans
#SBATCH --comment=hpcml:four-nodes-20261121-074500-1a2b
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:30:00
#SBATCH --output=/scratch/alice/runs/four-nodes-20261121-074500-1a2b/logs/job.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@60
#SBATCH --export=ALL
#SBATCH --no-requeue
#SBATCH --exclusive
# hpcml 0.0.0: run four-nodes-20261121-074500-1a2b on site slurm.
# Each job step runs a role: hpcml's supervisor on the first node, workers or ranks. Phases, deadlines and
# teardown are in `python -m hpcml.kinds`. This script exits with the supervisor's status.
set -u
umask 077
trap 'near=1' USR1   # the signal may come as soon as the job begins
unset "${!HPCML_@}"   # variables of another run, or of the submitting shell
export HPCML_RUN_DIR=/scratch/alice/runs/four-nodes-20261121-074500-1a2b
export HPCML_ATTEMPT="${SLURM_RESTART_COUNT:-0}" HPCML_RESTARTS=3 HPCML_NODES=4 HPCML_GPUS=0
HPCML_BEGAN=$(date +%s); export HPCML_BEGAN   # each role begins later
# The scheduler has its own copy of this script. The other programs are in the run's directory: check that nobody replaced it.
if [ ! -O "$HPCML_RUN_DIR" ] || [ -L "$HPCML_RUN_DIR" ]; then echo "hpcml: missing, or not yours: $HPCML_RUN_DIR" >&2; exit 74; fi
# A run is one job: the first job that writes its id here, also after a requeue. Creating a link is atomic.
this_job="$SLURM_JOB_ID"; ln -sn "$this_job" "$HPCML_RUN_DIR/job" 2>/dev/null; job=$(readlink "$HPCML_RUN_DIR/job")
if [ -n "$job" ] && [ "$job" != "$this_job" ]; then
  echo "This run is job $job, so job $this_job does not change it; to run it again: hpcml rerun" four-nodes-20261121-074500-1a2b >&2
  exit 64
fi
attempt="$HPCML_RUN_DIR/attempts/$HPCML_ATTEMPT"
# write_end EXIT_STATUS PHASE MESSAGE HINT [REASON]: write the run's status if no supervisor can. It overwrites an existing file, because
# the disk may be full. REASON is one of Reason in hpcml/failures/end.py.
json_text() { printf %s "$1" | tr '\n\t' '  ' | tr -d '[:cntrl:]' | sed 's/[\\"]/\\&/g'; }
write_end() {
  mkdir -p "$HPCML_RUN_DIR/reserve" 2>/dev/null
  printf '{"over": true, "state": "FAILED", "time": %s, "attempt": %s, "exit_status": %s, "phase": "%s", "by": "hpcml", "message": "%s", "hint": "%s", "reason": "%s", "quote": []}' \
    "$(date +%s.%3N)" "$HPCML_ATTEMPT" "$1" "$2" "$(json_text "$3")" "$(json_text "$4")" "${5-}" \
    1<>"$HPCML_RUN_DIR/reserve/0" && mv "$HPCML_RUN_DIR/reserve/0" "$HPCML_RUN_DIR/status.json"
}
said=$(mkdir -p "$attempt/nodes" "$attempt/exit" "$attempt/secret" 2>&1) || {
  echo "$said" >&2
  write_end 74 allocated "the run's directory cannot be written: $(printf %s "$said" | tail -n 1)" \
    "The disk or the quota may be full. Free space, or choose another folder for runs (--set paths.runs=…). Then submit again."
  exit 74
}

# lib.zip has hpcml's modules. It ends with the SHA-256 of the bytes before: no role may import anything from a damaged file.
# Another node may see another file: step.sh compares its SHA-256 with HPCML_LIBRARY.
is_whole() {
  HPCML_LIBRARY=$([ -f "$1" ] && head -c $(($(wc -c <"$1") - 64)) "$1" | sha256sum | cut -d ' ' -f 1); export HPCML_LIBRARY
  [ -n "$HPCML_LIBRARY" ] && [ "$HPCML_LIBRARY" = "$(tail -c 64 "$1" | tr -d '\0')" ]
}
if command -v sha256sum >/dev/null && ! is_whole "$HPCML_RUN_DIR/lib.zip"; then
  echo "hpcml: damaged or missing: $(ls -ld "$HPCML_RUN_DIR/lib.zip" 2>&1)" >&2
  write_end 74 allocated "lib.zip in the run's directory is damaged or missing" \
    "Submit the run again: hpcml rerun four-nodes-20261121-074500-1a2b. If lib.zip is damaged again, check the file system of paths.runs." damaged-library
  exit 74
fi
set +u   # the lines of the site and of the user, and what these load, are not written for set -u
set +e -u
# The script gets this PYTHONPATH. step.sh removes parts of it for hpcml's own processes.
export HPCML_PYTHONPATH="${PYTHONPATH-}" PYTHONUNBUFFERED=1
export PYTHONPATH="$HPCML_RUN_DIR/lib.zip${PYTHONPATH:+:$PYTHONPATH}"

cpus="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"
if [ -n "${SLURM_MEM_PER_CPU-}" ]; then unset SLURM_MEM_PER_NODE; fi
HPCML_NODE="${SLURMD_NODENAME:-$(uname -n)}"; export HPCML_JOB="$SLURM_JOB_ID" HPCML_NODE_NAMES="$SLURM_JOB_NODELIST"
HPCML_JOB_VARIABLES=$(for name in "${!SLURM@}"; do case ${!name-} in *$'\n'*) ;; *) printf "%s=%s\n" "$name" "${!name-}" ;; esac; done); export HPCML_JOB_VARIABLES
set -m   # each step has its own process group, so a signal can end the whole step
srun --cpus-per-task="$cpus" --nodelist="$HPCML_NODE" --overlap --kill-on-bad-exit=1 --wait=0 --cpu-bind=none --export=ALL --nodes=1 --ntasks=1 --job-name=scheduler --output=/scratch/alice/runs/four-nodes-20261121-074500-1a2b/logs/scheduler.log --open-mode=append /bin/sh -c 'export HPCML_NODE="${SLURMD_NODENAME:-$(uname -n)}"; exec "$@"' sh \
  /bin/sh /scratch/alice/runs/four-nodes-20261121-074500-1a2b/step.sh scheduler /opt/hpcml/bin/python -P -m hpcml.kinds scheduler </dev/null & scheduler=$!
srun --cpus-per-task="$cpus" --overlap --kill-on-bad-exit=0 --wait=0 --cpu-bind=none --export=ALL --nodes=4 --ntasks=4 --ntasks-per-node=1 --job-name=worker --output=/scratch/alice/runs/four-nodes-20261121-074500-1a2b/logs/worker-%N.log --open-mode=append /bin/sh -c 'export HPCML_NODE="${SLURMD_NODENAME:-$(uname -n)}"; exec "$@"' sh \
  /bin/sh /scratch/alice/runs/four-nodes-20261121-074500-1a2b/step.sh worker /opt/hpcml/bin/python -P -m hpcml.kinds worker </dev/null & worker=$!
export HPCML_BATCH=$$ HPCML_STEPS="$scheduler $worker"   # the supervisor waits until these steps end
srun --cpus-per-task="$cpus" --nodelist="$HPCML_NODE" --overlap --kill-on-bad-exit=1 --wait=0 --cpu-bind=none --export=ALL --nodes=1 --ntasks=1 --job-name=supervisor --output=/scratch/alice/runs/four-nodes-20261121-074500-1a2b/logs/script.log --open-mode=append /bin/sh -c 'export HPCML_NODE="${SLURMD_NODENAME:-$(uname -n)}"; exec "$@"' sh \
  /bin/sh /scratch/alice/runs/four-nodes-20261121-074500-1a2b/step.sh supervisor /opt/hpcml/bin/python -P -m hpcml.kinds supervisor </dev/null & supervisor=$!
set +m

# The supervisor checks for these files. In `wait`, bash loses one of two simultaneous signals, for example when
# a suspended job continues. So bash reads from a pipe instead. The trap of the last signal and of a step's end writes to the pipe.
exec {woken}<> <(:)
trap ': >"$attempt/time-limit"' USR1
[ -z "${near-}" ] || : >"$attempt/time-limit"
trap ': >"$attempt/terminate"' TERM INT HUP
trap 'echo >&"$woken"' CONT CHLD   # CONT: the supervisor sends it last, after it wrote its status
own="$attempt/exit/supervisor@${HPCML_NODE:-local}"
while kill -0 "$supervisor" 2>/dev/null && [ ! -s "$own" ]; do read -r -t 1 -u "$woken" || [ $? != 1 ] || sleep 1; done
trap : CONT; trap - CHLD
# The step may be stopped (SIGSTOP) after its supervisor ended: wait half a minute for it.
for _ in {1..600}; do kill -0 "$supervisor" 2>/dev/null || break; sleep 0.05; done
if kill -0 "$supervisor" 2>/dev/null; then
  echo "hpcml: the script's step did not end after its supervisor, and was killed: it may have been stopped (SIGSTOP)" >&2
  kill -KILL -- "-$supervisor" 2>/dev/null
fi
status=127
kill -0 "$supervisor" 2>/dev/null || { wait "$supervisor"; status=$?; }

# Use the supervisor's own status: a launcher may exit with 1 if a process of the step ran out of memory.
[ -s "$own" ] && read -r status <"$own"
[ -e "$HPCML_RUN_DIR/events.jsonl" ] || [ "$status" = 74 ] || status=80   # the supervisor did not start: see logs/script.log

# The supervisor has ended the other steps by now. Kill steps that still run.
# On SIGTERM a launcher kills its tasks. Otherwise tasks without a supervisor would occupy their nodes.
kill -TERM "$scheduler" "$worker" 2>/dev/null
for _ in {1..30}; do kill -0 "$scheduler" 2>/dev/null || kill -0 "$worker" 2>/dev/null || break; sleep 0.1; done
kill -KILL -- "-$scheduler" "-$worker" 2>/dev/null
exit "$status"
