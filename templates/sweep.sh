#!/bin/bash
# sweep.sh DIRECTORY: ends processes that remain after a run without Slurm, such as a daemon that the script started. These are all of the
# user's processes with this run's HPCML_RUN_DIR in their environment. With Slurm, the job's end ends them. step.sh calls sweep.sh
# whenever the supervisor has ended. DIRECTORY is the run's, and differs from HPCML_RUN_DIR in a hold that starts processes ahead.
directory=${1:-$HPCML_RUN_DIR}
marked() {
  local file pid word
  for file in /proc/[0-9]*/environ; do
    pid=${file#/proc/} pid=${pid%/environ}
    { [ "$pid" != "$$" ] && [ "$pid" != "$PPID" ] && [ "$pid" != "$BASHPID" ] && [ -O "$file" ]; } || continue
    while IFS= read -r -d '' word; do
      case $word in "HPCML_RUN_DIR=$HPCML_RUN_DIR" | "HPCML_RUN_DIR=$directory") printf '%s\n' "$pid"; break ;; esac
    done <"$file"
  done 2>/dev/null
}
mapfile -t left < <(marked)
[ "${#left[@]}" -gt 0 ] || exit 0
for pid in "${left[@]}"; do
  command=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | cut -c1-100)
  [ -z "$command" ] || echo "hpcml: process $pid ($command) remained and is ended."   # an empty command: it has already ended
done >>"$directory/logs/job.log"
kill -TERM "${left[@]}" 2>/dev/null
for _ in {1..20}; do
  mapfile -t left < <(marked)
  [ "${#left[@]}" -gt 0 ] || exit 0
  sleep 0.1
done
for _ in {1..20}; do   # the next search finds processes that start during this search
  kill -KILL "${left[@]}" 2>/dev/null
  mapfile -t left < <(marked)
  [ "${#left[@]}" -gt 0 ] || exit 0
  sleep 0.1
done
