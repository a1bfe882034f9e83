# agents.sh ROLE COMMAND...: starts hpcml's agents beside a user's batch script. They take nothing from the script's own
# steps: --overlap shares what they use with every other step (since Slurm 22.05; before, there are no agents).
log=$HPCML_RUN_DIR/logs/$1; shift
export HPCML_NODE="${HPCML_NODE:-${SLURMD_NODENAME:-$(uname -n)}}"
[ "$SLURM_JOB_NUM_NODES" != 1 ] || exec "$@" >>"$log-$HPCML_NODE.log" 2>&1   # a single node needs no step
case $(srun --version) in "slurm"*" "2[01].*) exit 0 ;; esac
job=$SLURM_JOB_ID nodes=$SLURM_JOB_NUM_NODES
for name in "${!SLURM_@}"; do   # srun would take the sizes of the script's own steps for its own
  [ "$name" = SLURM_CONF ] || unset "$name"
done
exec srun --jobid="$job" --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --overlap --cpus-per-task=1 --mem=0 \
  --gres=none --mpi=none --cpu-bind=none --kill-on-bad-exit=0 --wait=0 --export=ALL --job-name=hpcml --quiet \
  /bin/sh -c 'export HPCML_NODE="${SLURMD_NODENAME:-$(uname -n)}"; exec "$@" >>"$0-$HPCML_NODE.log" 2>&1' "$log" "$@"
