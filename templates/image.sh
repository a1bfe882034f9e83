#!/bin/sh
# image.sh PROGRAM exec OPTIONS... IMAGE COMMAND...: enters the image with the run's variables, the node's values and the
# node-local scratch folder. No other variable gets into the image (--cleanenv). hpcml's modules are in the run's directory.
program=$1; shift 2
node=${HPCML_NODE:-$(uname -n)}
for role; do :; done   # the command's last word
note=$HPCML_RUN_DIR/attempts/$HPCML_ATTEMPT/exit/note@$role@${HPCML_NODE:-local}
# refuse REASON PROBLEM: do not enter the image, and leave a note. REASON is one of Reason in hpcml/failures/end.py.
refuse() {
  echo "hpcml: $2." >&2
  printf '%s\n%s\n' "$1" "$(printf %s "$2" | tr '\n' ' ')" >"$note"
  exit 88
}
command -v "$program" >/dev/null || refuse container-program "there is no $program on $node (profile: runtime.container)"
help=$("$program" exec --help 2>/dev/null)   # one call for all checks, since each call starts the program
case $help in *apptainer*) prefix=APPTAINERENV_ ;; *) prefix=SINGULARITYENV_ ;; esac
for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
  case " $HPCML_CONTAINER_ENV " in *" $name "*) passed=yes ;; *) passed= ;; esac
  case "$name $*" in PMI*" hpcml.kinds mpi") passed=yes ;; esac   # hpcml's process of MPI ranks needs srun's PMI variables
  case $name in
    APPTAINERENV_* | SINGULARITYENV_* | APPTAINER_BIND* | SINGULARITY_BIND*) unset "$name" ;;   # the program would copy them into the image
    HPCML_* | SLURM* | CUDA_VISIBLE_DEVICES | UCX_* | UCXPY_* | NCCL_* | DASK_* | RAPIDS_* | CUDF_* | *_NUM_THREADS | \
    MALLOC_TRIM_THRESHOLD_ | PYTHONUNBUFFERED | PYTHONFAULTHANDLER | PYTHONHASHSEED | TMPDIR | TZ | LANG | LC_*) passed=yes ;;
  esac
  [ -z "$passed" ] || eval "[ -z \"\${$name+set}\" ] || export $prefix$name=\"\$$name\""
done
case " $HPCML_CONTAINER_ENV " in   # the host's PYTHONPATH is useless inside; pass only the profile's
  *" PYTHONPATH "*) ;;
  *) export "${prefix}PYTHONPATH=$HPCML_RUN_DIR/lib.zip" "${prefix}HPCML_PYTHONPATH=" ;;
esac
export "${prefix}PYTHONNOUSERSITE=1"
# Without --no-eval, a shell inside the image evaluates each value again and runs text in backquotes. Old versions lack the option.
case $help in *--no-eval*) set -- --no-eval "$@" ;; esac
mkdir -p "$HPCML_RUN_DIR/home"
if [ -n "${HPCML_CUPY_CACHE:-}" ]; then   # keep CuPy's compiled kernels after the run: the image's home is new in each run
  kernels=${HPCML_RUN_DIR%/*}/.kernels-$(id -u)
  own=$kernels/$HPCML_CUPY_CACHE
  # Make nothing where a link leads, nor in another user's folder.
  if [ ! -L "$kernels" ] && { [ -O "$kernels" ] || [ ! -e "$kernels" ]; }; then (umask 077 && mkdir -p "$own"); fi
  if [ ! -L "$kernels" ] && [ -O "$kernels" ] && [ -O "$own" ]; then
    export "${prefix}CUPY_CACHE_DIR=$own"
    set -- --bind "$own:$own" "$@"
  else
    echo "hpcml: $node cannot keep compiled GPU kernels: $kernels is not your folder, or cannot be created." >&2
  fi
fi
case ${TMPDIR:-} in
  *[,:\\]* | *[[:space:]]) refuse tmpdir "TMPDIR cannot be bound into an image because it contains ',', ':', '\\' or a space at its end: $TMPDIR" ;;
esac
# Inside the image, root's and other users' folders look alike (hpcml/node/scratch.py), so check TMPDIR here.
at=$(cd "${TMPDIR:-/tmp}" 2>/dev/null && pwd -P)
while [ -n "$at" ]; do
  [ -z "$(find "$at" -maxdepth 0 \( ! -user 0 ! -user "$(id -u)" -o \( -perm -0020 -o -perm -0002 \) ! -perm -1000 \))" ] ||
    refuse tmpdir-open "other users may replace the contents of $at on $node"
  at=${at%/*}
done
# Bind the targets of links in the code copy. A folder that this node lacks is no error: plain Python would not find it either.
if [ -e "$HPCML_RUN_DIR/sources" ]; then
  while IFS= read -r folder; do
    if [ -d "$folder" ]; then set -- --bind "$folder:$folder" "$@"; fi
  done <"$HPCML_RUN_DIR/sources"
fi
if [ -n "${TMPDIR:-}" ] && [ -d "$TMPDIR" ]; then set -- --bind "$TMPDIR:$TMPDIR" "$@"; fi
exec "$program" --quiet exec "$@"
