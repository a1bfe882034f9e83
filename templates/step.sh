#!/bin/sh
# step.sh ROLE COMMAND...: runs one role on one node and leaves its exit status where the supervisor finds it, so that
# an interpreter that is missing on one node is known at once and by name.
role=$1; shift
if [ "$role" != driver ]; then   # what Dask's Nanny sets: a task is one thread, and freed memory goes back early
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" MKL_NUM_THREADS="${MKL_NUM_THREADS:-1}" \
    OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}" MALLOC_TRIM_THRESHOLD_="${MALLOC_TRIM_THRESHOLD_:-65536}"
fi
# The role imports nothing of the working directory, whatever PYTHONPATH says: the script and its tasks do (HPCML_PYTHONPATH).
left=$PYTHONPATH: PYTHONPATH=
while [ -n "$left" ]; do
  entry=${left%%:*} left=${left#*:}
  case $entry in /*) [ "$entry" -ef . ] || PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$entry ;; esac
done
export PYTHONPATH
node=${SLURMD_NODENAME:-local}
trap : HUP INT TERM USR1 USR2   # the role answers signals; this shell only has to outlive it
"$@"; status=$?
file=$HPCML_RUN_DIR/attempts/$HPCML_ATTEMPT/exit/$role@$node
printf '%s\n' "$status" >"$file.new" && mv "$file.new" "$file"
exit "$status"
