# shellcheck shell=bash disable=SC2154,SC2034
# setup.sh ERRORS LINE..., sourced by job.sh: runs the lines of runtime.setup as bash runs the lines of a script. `hpcml_failed` then has
# NUMBER:STATUS of each line that failed. A command or a file that is not there ends the run. If ERRORS is end, each failure does.

# hpcml_ends PROBLEM: end the run because of the line that runs.
hpcml_ends() {
  local said="line $hpcml_number of runtime.setup (${hpcml_first:0:80}) $1"
  hpcml_number=''
  start_failed "$said" "Correct this line. If it may fail, append '|| true'."
}
# hpcml_exited STATUS COMMAND: the trap of EXIT. A line may end this script, by exit or by set -e. A signal is no fault of the line: after
# it, COMMAND is the one that ran. After an exit, COMMAND is the one that sourced this file.
hpcml_exited() {
  local status=$1
  case $hpcml_number:$1:$2 in [1-9]*:[1-9]*:* | [1-9]*:0:*"/setup.sh"*) (hpcml_ends "ended the batch script with status $1") || status=80 ;; esac
  if declare -F hand_over >/dev/null; then hand_over; fi
  [ "$status" = "$1" ] || exit "$status"
}

hpcml_errors=$1 hpcml_lines=("${@:2}")
set --   # a file that a line sources sees these words otherwise
trap 'hpcml_exited $? "$BASH_COMMAND"' EXIT
hpcml_failed='' hpcml_text='' hpcml_count=0
for hpcml_line in "${hpcml_lines[@]}"; do
  hpcml_count=$((hpcml_count + 1))
  [ -n "$hpcml_text" ] || hpcml_number=$hpcml_count hpcml_first=$hpcml_line
  hpcml_text+=$hpcml_line$'\n'
  # A command can continue on the next lines: then it is not yet the body of a function.
  [ "$hpcml_count" = "${#hpcml_lines[@]}" ] || eval "hpcml_body() { :"$'\n'"$hpcml_text}" 2>/dev/null || continue
  # `hpcml_reads` is set if the line's last command was `source`, and the file ran no command. `[[` and `case` keep the user's $_.
  hpcml_reads='' hpcml_status='' hpcml_last=''
  trap '[[ $hpcml_status ]] || case $BASH_COMMAND in "source "* | ". "*) hpcml_reads=yes; : hpcml-reads ;; hpcml_status=*) ;; *) [[ ! $hpcml_reads ]] || hpcml_reads= ;; esac' DEBUG
  trap '[ "$_" = hpcml-reads ] || hpcml_reads=' RETURN
  eval "${hpcml_text}hpcml_status=\$? hpcml_last=\$_"
  trap - DEBUG RETURN
  case ${hpcml_status:-syntax} in
    0) ;;
    syntax) hpcml_ends "is not valid bash" ;;
    127) hpcml_ends "exited with status 127: a command was not found" ;;
    *)
      if [[ $hpcml_reads && $hpcml_last != /dev/fd/* ]] && { [ ! -f "$hpcml_last" ] || [ ! -r "$hpcml_last" ]; }; then
        hpcml_ends "cannot read the file $hpcml_last"
      fi
      [ "$hpcml_errors" != end ] || hpcml_ends "exited with status $hpcml_status (runtime.setup_errors = 'end')"
      hpcml_failed+="${hpcml_failed:+ }$hpcml_number:$hpcml_status"
      ;;
  esac
  hpcml_text=''
done
if [[ $(trap -p EXIT) = *"hpcml_exited "* ]]; then trap - EXIT; fi
hpcml_number=''
unset -f hpcml_body
