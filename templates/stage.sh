# shellcheck shell=bash disable=SC2154
# stage.sh, sourced by job.sh: copies the image to each node's own disk, into a folder that only the user can enter.
# keep.sh on each node creates the folder, and removes it when this script ends, even if it is killed: keep.sh reads from
# this script's pipe. `staged` is the copy's path.

# stage MODE FOLDER IMAGE SECONDS NODES LAUNCHER...: MODE is sbcast or copy; FOLDER may contain $VARIABLES, which the first node expands.
stage() {
  local mode=$1 folder=$2 image=$3 deadline=$((SECONDS + $4)) seconds=$4 nodes=$5 began left name said token took; shift 5
  trap '' USR1   # the signal would end a wait; the supervisor also checks the time limit
  left=${folder:-${TMPDIR:-/tmp}} folder=
  while [[ $left =~ ^([^$]*)\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?(.*)$ ]]; do
    name=${BASH_REMATCH[2]} folder+=${BASH_REMATCH[1]} left=${BASH_REMATCH[3]}
    [ -n "${!name:-}" ] || { not_staged "${HPCML_NODE:-local}: $name is not set|Correct runtime.stage_to."; return 1; }
    folder+=${!name}
  done
  token=$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
  staged=$folder$left/hpcml-${HPCML_JOB:-$$}-$token/${image##*/}
  began=$(date +%s%3N)
  note_event image-staging "\"mode\": \"$mode\""
  coproc keepers {
    "$@" env -u HPCML_RUN_DIR /bin/sh "$HPCML_RUN_DIR/keep.sh" "$mode" "$image" "$staged" 2>&1; echo "ended $?"
    cat >/dev/null   # keeps the pipe open until this script ends
  }
  if [ "$mode" = sbcast ]; then
    await made || return 1
    command -v sbcast >/dev/null ||
      { not_staged "${HPCML_NODE:-local}: there is no sbcast|Set runtime.stage = 'copy'."; return 1; }
    said=$(timeout $((deadline > SECONDS ? deadline - SECONDS : 1)) sbcast "$image" "$staged" 2>&1) || {
      echo "$said" >&2
      case $said in
        *"No space left"* | *"quota exceeded"*) not_staged "a node's disk is full (${staged%/*/*})|Set runtime.stage_to to a folder with more space, or runtime.stage = 'none'." ;;
        *) not_staged "sbcast could not copy the image to ${staged%/*/*}: ${said##*error: }|Set runtime.stage = 'copy' or 'none', and check that the folder is on every node's own disk." ;;
      esac
      return 1
    }
    echo go >&"${keepers[1]}"
  fi
  await ready || return 1
  took=$(($(date +%s%3N) - began))
  note_event image-staged "\"mode\": \"$mode\", \"seconds\": $((took / 1000)).$(printf %03d $((took % 1000)))"
  trap 'near=1' USR1
}

# await WORD: wait until keep.sh has printed WORD on each node, or has failed on one node.
await() {
  local count=0 line
  while [ "$count" -lt "$nodes" ]; do
    IFS= read -r -t $((deadline > SECONDS ? deadline - SECONDS : 1)) -u "${keepers[0]}" line ||
      { not_staged "the image was on $count of $nodes nodes within $seconds s|Increase deadlines.stage, or set runtime.stage = 'none'."; return 1; }
    case $line in
      "$1 "*) count=$((count + 1)) ;;
      "failed "*) not_staged "${line#failed }"; return 1 ;;
      "ended "*) not_staged "the step that copies the image ended with exit status ${line#ended }|See the job's log (hpcml logs RUN job)."; return 1 ;;
      *) printf '%s\n' "$line" ;;   # srun's messages
    esac
  done
}

# not_staged SENTENCE|HINT: write the run's failure with job.sh's function.
not_staged() {
  echo "hpcml: ${1%%|*}. ${1#*|}" >&2
  write_end 88 image "${1%%|*}" "${1#*|}"
}

note_event() {
  printf '{"time": %s, "attempt": %s, "event": "%s", %s}\n' "$(date +%s.%3N)" "$HPCML_ATTEMPT" "$1" "$2" >>"$HPCML_RUN_DIR/events.jsonl"
}

# unstage: let keep.sh remove the copies, and wait until it has ended.
unstage() {
  local line deadline=$((SECONDS + 10))
  trap '' PIPE
  [ -n "${keepers[1]:-}" ] || return 0
  echo end >&"${keepers[1]}"
  while [ "$SECONDS" -lt "$deadline" ] && IFS= read -r -t $((deadline - SECONDS)) -u "${keepers[0]}" line; do
    case $line in "ended "*) return ;; esac
  done
  echo "hpcml: some copies of the image may remain: ${staged%/*}" >&2
}
