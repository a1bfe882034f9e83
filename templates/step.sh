#!/bin/sh
# step.sh ROLE COMMAND...: runs one role on one node and leaves its exit status where the supervisor finds it, so that
# an interpreter that is missing on one node is known at once and by name.
role=$1; shift
case $role in scheduler | worker)   # what Dask's Nanny sets: a task is one thread, and freed memory goes back early
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" MKL_NUM_THREADS="${MKL_NUM_THREADS:-1}" \
    OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}" MALLOC_TRIM_THRESHOLD_="${MALLOC_TRIM_THRESHOLD_:-65536}"
  case ${PYTHONHASHSEED:-0} in 0) export PYTHONHASHSEED=6640 ;; esac   # Dask's number: hash("a") is the same on all nodes
esac
unset PYTHONINSPECT   # with it sys.exit() ends Python with 1
export PYTHONFAULTHANDLER="${PYTHONFAULTHANDLER-1}"   # a crash in compiled code shows where Python was; no other signal does
# The role imports nothing of the working directory, whatever PYTHONPATH says: the script and its tasks do (HPCML_PYTHONPATH).
left=$PYTHONPATH: PYTHONPATH=
while [ -n "$left" ]; do
  entry=${left%%:*} left=${left#*:}
  case $entry in /*) [ "$entry" -ef . ] || PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$entry ;; esac
done
export PYTHONPATH
node=${HPCML_NODE:-local}
trap : HUP INT TERM USR1 USR2   # the role answers signals; this shell only has to outlive it
exits=$HPCML_RUN_DIR/attempts/$HPCML_ATTEMPT/exit
file=$exits/$role@$node
killed=0
if [ "$role" = driver ]; then   # scancel --signal reaches this shell alone, and a shell that waits in the foreground is deaf
  trap ': >"${exits%/exit}/terminate"' HUP INT TERM
  "$@" & child=$!
  while wait "$child"; status=$?; kill -0 "$child" 2>/dev/null; do :; done
else
  "$@"; status=$?
fi
# A worker task that a signal ended takes its workers with it: it is started again, and the supervisor told.
while [ "$role" = worker ] && [ "$status" -gt 128 ] && [ "$status" -lt 193 ] && [ "$killed" -lt "${HPCML_RESTARTS:-0}" ] &&
  [ ! -e "${exits%/exit}/ended" ] && [ ! -e "${exits%/exit}/terminate" ]; do
  killed=$((killed + 1))
  printf '%s\n' "$status" >"$exits/.killed@$node" && mv "$exits/.killed@$node" "$exits/killed@$node@$killed"
  "$@"; status=$?
done
[ "$status" -ne 126 ] || echo "hpcml: $node is $(uname -m)" >&2   # its program may be for another processor
[ "$role" = driver ] && [ -s "${exits%/exit}/lost" ] && read -r status <"${exits%/exit}/lost"   # the scheduler ended it
printf '%s\n' "$status" >"$file.$$" && mv "$file.$$" "$file"   # MPI's tasks of a node write the same file
[ "$role" = driver ] && [ -e "$HPCML_RUN_DIR/sweep.sh" ] && bash "$HPCML_RUN_DIR/sweep.sh"   # a run without Slurm
exit "$status"
