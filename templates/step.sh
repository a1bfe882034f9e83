#!/bin/sh
# step.sh ROLE COMMAND...: runs one role on one node and writes its exit status for the supervisor. If a node has
# no interpreter, the supervisor can name the node at once.
role=$1; shift
case $role in scheduler | worker)   # Dask's Nanny sets the same: one thread per task; free memory early
  HPCML_PRESET=
  for name in OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS; do   # the user's own settings of Dask may say otherwise
    eval "[ -n \"\${$name:-}\" ]" || HPCML_PRESET="$HPCML_PRESET $name"
  done
  [ "$role" = scheduler ] || export HPCML_PRESET
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" MKL_NUM_THREADS="${MKL_NUM_THREADS:-1}" \
    OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}" MALLOC_TRIM_THRESHOLD_="${MALLOC_TRIM_THRESHOLD_:-65536}"
  case ${PYTHONHASHSEED:-0} in 0) export PYTHONHASHSEED=6640 ;; esac   # Dask's number: hash("a") is the same on all nodes
esac
unset PYTHONINSPECT   # with PYTHONINSPECT, sys.exit() gives status 1
export PYTHONFAULTHANDLER="${PYTHONFAULTHANDLER-1}"   # a crash in compiled code shows the Python line
# The role never imports from the working directory, even if PYTHONPATH contains it. Script and tasks may (HPCML_PYTHONPATH).
left=$PYTHONPATH: PYTHONPATH=
while [ -n "$left" ]; do
  entry=${left%%:*} left=${left#*:}
  case $entry in /*) [ "$entry" -ef . ] || PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$entry ;; esac
done
export PYTHONPATH
node=${HPCML_NODE:-local}
trap : HUP INT TERM USR1 USR2   # the role handles signals; this shell must outlive the role
exits=$HPCML_RUN_DIR/attempts/$HPCML_ATTEMPT/exit
# find_run: set run to the run's directory. If this role started before its run, attempts is now a link into that directory.
# NFS looks again when a folder is listed.
find_run() { run=$(ls "$HPCML_RUN_DIR" >/dev/null; readlink "$HPCML_RUN_DIR/attempts") || run=$HPCML_RUN_DIR/attempts; run=${run%/attempts}; }
killed=0
# The role imports hpcml's modules only from the file that the first node has (HPCML_LIBRARY).
library=$HPCML_RUN_DIR/lib.zip
digest() { head -c $(($(wc -c <"$library") - 64)) "$library" | sha256sum | cut -d ' ' -f 1; }
if [ -n "${HPCML_LIBRARY-}" ] && command -v sha256sum >/dev/null && [ "$(digest 2>/dev/null)" != "$HPCML_LIBRARY" ]; then
  echo "hpcml: damaged or missing: $(ls -ld "$library" 2>&1)" >&2
  printf '%s\n%s\n' damaged-library "lib.zip is missing on $node, or is not the first node's" >"$exits/note@$role@$node"
  set -- /bin/sh -c 'exit 74'
fi
if [ "$role" = supervisor ]; then   # scancel --signal reaches only this shell; a shell handles no signal during a foreground command
  trap ': >"${exits%/exit}/terminate"' HUP INT TERM
  exec 7<&0   # a command in the background has /dev/null
  "$@" <&7 7<&- & child=$!
  while wait "$child"; status=$?; kill -0 "$child" 2>/dev/null; do :; done
else
  "$@"; status=$?
fi
# If a signal ended a worker task, its workers ended too: start the task again, and write its status for the supervisor.
while [ "$role" = worker ] && [ "$status" -gt 128 ] && [ "$status" -lt 193 ] && [ "$killed" -lt "${HPCML_RESTARTS:-0}" ] &&
  [ ! -e "${exits%/exit}/ended" ] && [ ! -e "${exits%/exit}/terminate" ]; do
  killed=$((killed + 1))
  find_run; [ "$run" = "$HPCML_RUN_DIR" ] || { HPCML_RUN_DIR=$run; unset HPCML_AHEAD; }   # the run has begun: wait for no other
  printf '%s\n' "$status" >"$exits/.killed@$node" && mv "$exits/.killed@$node" "$exits/killed@$node@$killed"
  "$@"; status=$?
done
# The program may be for another processor. A note has two lines: a word and a clause (hpcml/failures/note.py).
[ "$status" -ne 126 ] || printf '\n%s\n' "$node is $(uname -m)" >"$exits/note@$role@$node"
[ "$role" = supervisor ] && [ -s "${exits%/exit}/lost" ] && read -r status <"${exits%/exit}/lost"   # Dask's scheduler ended the supervisor
new=$exits/.$role@$node.$$   # all MPI tasks of a node write the file
printf '%s\n' "$status" >"$new" && mv "$new" "$exits/$role@$node"
[ "$role" = supervisor ] && [ -e "$HPCML_RUN_DIR/sweep.sh" ] && find_run && bash "$HPCML_RUN_DIR/sweep.sh" "$run"   # only in a run without Slurm
exit "$status"
