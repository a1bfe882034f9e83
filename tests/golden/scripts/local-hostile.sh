#!/bin/bash
# hpcml 0.0.0: run hostile-20261121-074500-1a2b on site local.
# Each job step runs a role: hpcml's supervisor on the first node, workers or ranks. Phases, deadlines and
# teardown are in `python -m hpcml.kinds`. This script exits with the supervisor's status.
set -u
umask 077
trap 'near=1' USR1   # the signal may come as soon as the job begins
unset "${!HPCML_@}"   # variables of another run, or of the submitting shell
export HPCML_RUN_DIR='/scratch/a b/it'"'"'s "x" $HOME `id` #1 50%j/é/hostile-20261121-074500-1a2b'
export HPCML_ATTEMPT=0 HPCML_RESTARTS=3 HPCML_NODES=2 HPCML_GPUS=0
HPCML_BEGAN=$(date +%s); export HPCML_BEGAN   # each role begins later
# The scheduler has its own copy of this script. The other programs are in the run's directory: check that nobody replaced it.
if [ ! -O "$HPCML_RUN_DIR" ] || [ -L "$HPCML_RUN_DIR" ]; then echo "hpcml: missing, or not yours: $HPCML_RUN_DIR" >&2; exit 74; fi
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
    "Submit the run again: hpcml rerun hostile-20261121-074500-1a2b. If lib.zip is damaged again, check the file system of paths.runs." damaged-library
  exit 74
fi
set +u   # the lines of the site and of the user, and what these load, are not written for set -u
set +e -u
# The script gets this PYTHONPATH. step.sh removes parts of it for hpcml's own processes.
export HPCML_PYTHONPATH="${PYTHONPATH-}" PYTHONUNBUFFERED=1
export PYTHONPATH="$HPCML_RUN_DIR/lib.zip${PYTHONPATH:+:$PYTHONPATH}"

export HPCML_NODE=local HPCML_NODE_NAMES=local
set -m   # each step has its own process group, so a signal can end the whole step
/bin/sh '/scratch/a b/it'"'"'s "x" $HOME `id` #1 50%j/é/hostile-20261121-074500-1a2b/step.sh' scheduler '/opt/my env/bin/python$3' -P -m hpcml.kinds scheduler </dev/null >>'/scratch/a b/it'"'"'s "x" $HOME `id` #1 50%j/é/hostile-20261121-074500-1a2b/logs/scheduler.log' 2>&1 & scheduler=$!
/bin/sh '/scratch/a b/it'"'"'s "x" $HOME `id` #1 50%j/é/hostile-20261121-074500-1a2b/step.sh' worker '/opt/my env/bin/python$3' -P -m hpcml.kinds worker </dev/null >>'/scratch/a b/it'"'"'s "x" $HOME `id` #1 50%j/é/hostile-20261121-074500-1a2b/logs/worker-local.log' 2>&1 & worker=$!
export HPCML_BATCH=$$ HPCML_STEPS="$scheduler $worker"   # the supervisor waits until these steps end
/bin/sh '/scratch/a b/it'"'"'s "x" $HOME `id` #1 50%j/é/hostile-20261121-074500-1a2b/step.sh' supervisor '/opt/my env/bin/python$3' -P -m hpcml.kinds supervisor </dev/null >>'/scratch/a b/it'"'"'s "x" $HOME `id` #1 50%j/é/hostile-20261121-074500-1a2b/logs/script.log' 2>&1 & supervisor=$!
set +m

# The supervisor checks for these files. In `wait`, bash loses one of two simultaneous signals, for example when
# a suspended job continues. So bash reads from a pipe instead. The trap of the last signal and of a step's end writes to the pipe.
exec {woken}<> <(:)
trap ': >"$attempt/time-limit"' USR1
[ -z "${near-}" ] || : >"$attempt/time-limit"
told=
trap ': >"$attempt/terminate"; told=${told:-$SECONDS}' TERM INT HUP
late() { [ $((SECONDS - ${told:-$SECONDS})) -ge 60 ]; }   # as Slurm kills a job that does not end
trap 'echo >&"$woken"' CONT CHLD   # CONT: the supervisor sends it last, after it wrote its status
own="$attempt/exit/supervisor@${HPCML_NODE:-local}"
while kill -0 "$supervisor" 2>/dev/null && [ ! -s "$own" ]; do read -r -t 1 -u "$woken" || [ $? != 1 ] || sleep 1; late && kill -KILL -- "-$supervisor"; done
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
if late && [ ! -s "$own" ]; then
  status=86; write_end 86 script "the run was cancelled; its supervisor did not end and was killed" "Processes that the script started may still run."
fi
[ -e "$HPCML_RUN_DIR/events.jsonl" ] || [ "$status" = 74 ] || status=80   # the supervisor did not start: see logs/script.log

# The supervisor has ended the other steps by now. Kill steps that still run.
kill -KILL -- "-$scheduler" "-$worker" 2>/dev/null
exit "$status"
