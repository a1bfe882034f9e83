#!/bin/sh
# image.sh PROGRAM exec OPTIONS... IMAGE COMMAND...: enters the image with what only the node knows, the run's variables and
# the node-local scratch. Nothing else of this environment gets in (--cleanenv); hpcml's modules come from the run's directory.
program=$1; shift 2
node=${HPCML_NODE:-$(uname -n)}
command -v "$program" >/dev/null || { echo "hpcml: there is no $program on $node (profile: runtime.container)." >&2; exit 88; }
help=$("$program" exec --help 2>/dev/null)   # one question for all, since each costs a start of the program
case $help in *apptainer*) prefix=APPTAINERENV_ ;; *) prefix=SINGULARITYENV_ ;; esac
for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
  case " $HPCML_CONTAINER_ENV " in *" $name "*) passed=yes ;; *) passed= ;; esac
  case "$name $*" in PMI*" hpcml.node mpi") passed=yes ;; esac   # srun's task gives them to the agent
  case $name in
    APPTAINERENV_* | SINGULARITYENV_* | APPTAINER_BIND* | SINGULARITY_BIND*) unset "$name" ;;   # they get in uncalled
    HPCML_* | SLURM* | CUDA_VISIBLE_DEVICES | UCX_* | UCXPY_* | NCCL_* | DASK_* | RAPIDS_* | CUDF_* | *_NUM_THREADS | \
    MALLOC_TRIM_THRESHOLD_ | PYTHONUNBUFFERED | PYTHONFAULTHANDLER | PYTHONHASHSEED | TMPDIR | TZ | LANG | LC_*) passed=yes ;;
  esac
  [ -z "$passed" ] || eval "[ -z \"\${$name+set}\" ] || export $prefix$name=\"\$$name\""
done
case " $HPCML_CONTAINER_ENV " in   # the host's PYTHONPATH is of no use inside; the profile's own is meant
  *" PYTHONPATH "*) ;;
  *) export "${prefix}PYTHONPATH=$HPCML_RUN_DIR/lib.zip" "${prefix}HPCML_PYTHONPATH=" ;;
esac
export "${prefix}PYTHONNOUSERSITE=1"
# Without --no-eval a shell inside reads every value again, and runs what stands between backquotes. Old programs lack it.
case $help in *--no-eval*) set -- --no-eval "$@" ;; esac
mkdir -p "$HPCML_RUN_DIR/home"
if [ -n "${HPCML_CUPY_CACHE:-}" ]; then   # CuPy's compiled kernels outlive the run: this home is empty at each start
  kernels=${HPCML_RUN_DIR%/*}/.kernels-$(id -u)
  own=$kernels/$HPCML_CUPY_CACHE
  (umask 077 && mkdir -p "$own")
  if [ ! -L "$kernels" ] && [ -O "$kernels" ] && [ -O "$own" ]; then
    export "${prefix}CUPY_CACHE_DIR=$own"
    set -- --bind "$own:$own" "$@"
  else
    echo "hpcml: $node cannot keep compiled GPU kernels: $kernels is not your folder, or cannot be created." >&2
  fi
fi
case ${TMPDIR:-} in
  *[,:\\]* | *[[:space:]]) echo "hpcml: TMPDIR cannot be bound into an image because it contains ',', ':', '\\' or a space at its end: $TMPDIR" >&2; exit 88 ;;
esac
# The inside cannot tell another user's folder from root's (hpcml/node/scratch.py), so it is looked at from here.
at=$(cd "${TMPDIR:-/tmp}" 2>/dev/null && pwd -P)
while [ -n "$at" ]; do
  [ -z "$(find "$at" -maxdepth 0 \( ! -user 0 ! -user "$(id -u)" -o \( -perm -0020 -o -perm -0002 \) ! -perm -1000 \))" ] ||
    { echo "hpcml: other users may replace the contents of $at on $node: set TMPDIR to your own folder, or to a sticky folder of root." >&2; exit 88; }
  at=${at%/*}
done
# What the copy of the code has links to. A folder that this node lacks is no reason to end: plain Python would not find it either.
if [ -e "$HPCML_RUN_DIR/sources" ]; then
  while IFS= read -r folder; do
    if [ -d "$folder" ]; then set -- --bind "$folder:$folder" "$@"; fi
  done <"$HPCML_RUN_DIR/sources"
fi
if [ -n "${TMPDIR:-}" ] && [ -d "$TMPDIR" ]; then set -- --bind "$TMPDIR:$TMPDIR" "$@"; fi
exec "$program" --quiet exec "$@"
