"""What batch.sh.j2 says, as a function: written by `make bless`, never by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hpcml.plan.plan import Plan

TEMPLATE_CRC = 4029513869  # of the template that this was made from


def lay_out(
    plan: Plan,
    sh: Callable[[object], str],
    argv: Callable[[Sequence[str]], str],
    directive: Callable[[tuple[str, str]], str],
    comment: Callable[[object], str],
) -> Iterator[str]:
    """Yield the pieces of the batch script."""
    yield from ('#!/bin/bash\n',)
    for option in plan.directives:
        yield from (comment(plan.directive_word), ' ', directive(option), '\n',)
    yield from ('# hpcml ', comment(plan.version), ': run ', comment(plan.run_id), ' on site ', comment(plan.site), '.\n# Scheduler and driver share the first node with its workers; a worker task runs on every node. Phases, deadlines and\n# teardown are in `python -m hpcml.node`; this script\'s exit status is the driver\'s.\nset -u\numask 077\nunset "${!HPCML_@}"   # those of another run, or of the shell from which a person submits\nexport HPCML_RUN_DIR=', sh(plan.directory), '\nexport HPCML_ATTEMPT="${SLURM_RESTART_COUNT:-0}" HPCML_RESTARTS=', sh(plan.inside.restarts), ' HPCML_NODES=', sh(plan.inside.nodes), ' HPCML_GPUS=', sh(plan.inside.gpus), '\nHPCML_BEGAN=$(date +%s); export HPCML_BEGAN   # no role can have begun before\n# This script is Slurm\'s own copy: what else is run comes from that folder, which may have been replaced meanwhile.\nif [ ! -O "$HPCML_RUN_DIR" ] || [ -L "$HPCML_RUN_DIR" ]; then echo "hpcml: not there, or not yours: $HPCML_RUN_DIR" >&2; exit 74; fi\n',)
    if plan.inside.several_jobs:
        yield from ('# Attempts follow one another: on Slurm each is a job, and the next one waits in the queue while this one runs.\nHPCML_ATTEMPT=0; while [ -e "$HPCML_RUN_DIR/attempts/$HPCML_ATTEMPT" ]; do HPCML_ATTEMPT=$((HPCML_ATTEMPT + 1)); done\n',)
        if plan.job_word:
            yield from ('[ "$(readlink "$HPCML_RUN_DIR/next-job")" != ', comment(plan.job_word), ' ] || mv -T "$HPCML_RUN_DIR/next-job" "$HPCML_RUN_DIR/job"\n',)
    if plan.job_word:
        yield from ('# A run is one job: the first that leaves its id here, and the same one when it starts again. A link has its text at once.\nthis_job=', comment(plan.job_word), '; ln -sn "$this_job" "$HPCML_RUN_DIR/job" 2>/dev/null; job=$(readlink "$HPCML_RUN_DIR/job")\nif [ -n "$job" ] && [ "$job" != "$this_job" ]; then\n  echo "This run is job $job, so job $this_job changes nothing in it; to run it again: hpcml rerun" ', sh(plan.run_id), ' >&2\n  exit 64\nfi\n',)
        if plan.inside.several_jobs:
            yield from ('if [ "$HPCML_ATTEMPT" -gt ', sh(plan.inside.most_restarts), ' ]; then echo "hpcml: no other attempt begins: --max-restarts" ', sh(plan.inside.most_restarts), ' >&2; exit 64; fi\n',)
    yield from ('attempt="$HPCML_RUN_DIR/attempts/$HPCML_ATTEMPT"\n# write_end EXIT_STATUS PHASE MESSAGE HINT: the run\'s end where no supervisor can write it, into a file that is there already: the\n# disk may be full.\njson_text() { printf %s "$1" | tr \'\\n\\t\' \'  \' | tr -d \'[:cntrl:]\' | sed \'s/[\\\\"]/\\\\&/g\'; }\nwrite_end() {\n  mkdir -p "$HPCML_RUN_DIR/reserve" 2>/dev/null\n  printf \'{"over": true, "state": "FAILED", "time": %s, "attempt": %s, "exit_status": %s, "phase": "%s", "by": "hpcml", "message": "%s", "hint": "%s", "quote": []}\' \\\n    "$(date +%s.%3N)" "$HPCML_ATTEMPT" "$1" "$2" "$(json_text "$3")" "$(json_text "$4")" \\\n    1<>"$HPCML_RUN_DIR/reserve/0" && mv "$HPCML_RUN_DIR/reserve/0" "$HPCML_RUN_DIR/status.json"\n}\nsaid=$(mkdir -p "$attempt/nodes" "$attempt/versions" "$attempt/exit" "$attempt/secret" 2>&1) || {\n  echo "$said" >&2\n  write_end 74 allocated "the run\'s directory cannot be written: $(printf %s "$said" | tail -n 1)" \\\n    "Is the disk full, or the quota used up? Free some space, or keep runs elsewhere (--set paths.runs=…); then submit again."\n  exit 74\n}\n\n',)
    if plan.inside.several_jobs:
        yield from ('echo ',)
        if plan.job_word:
            yield from ('"$this_job" ',)
        yield from ('>"$attempt/begun"\n',)
        if plan.follow_up:
            yield from ('# A job that Slurm has put back into its queue finds the one that waits for it. Where no other job is taken, this one is put back.\nif [ "$HPCML_ATTEMPT" -lt ', sh(plan.inside.most_restarts), ' ] && [ ! -L "$HPCML_RUN_DIR/next-job" ]; then\n  if next=$(', comment(plan.follow_up), '); then ln -sn "${next%%;*}" "$HPCML_RUN_DIR/next-job"\n  elif ', comment(plan.may_put_back), '; then ln -sn "$this_job" "$HPCML_RUN_DIR/next-job"; fi\nfi\n# However this script ends: the job that waits becomes the run\'s when it begins, or it is not wanted.\nhand_over() {\n  local next; next=$(readlink "$HPCML_RUN_DIR/next-job") || return\n  if [ ! -e "$attempt/continue" ]; then\n    rm -f "$HPCML_RUN_DIR/next-job"; [ "$next" = "$this_job" ] || ', comment(plan.forget), ' "$next"\n  elif [ "$next" = "$this_job" ] && ! said=$(', comment(plan.put_back), ' 2>&1); then\n    rm -f "$HPCML_RUN_DIR/next-job"\n    write_end "${status:-87}" driver "no other attempt follows: Slurm did not put the job back into its queue: $said" "Its checkpoints are whole."\n  fi\n}\ntrap hand_over EXIT\n',)
    for line in plan.setup:
        yield from (comment(line), '\n',)
    for module in plan.modules:
        yield from ('module load ', sh(module), ' || { echo "hpcml: cannot be loaded: module" ', sh(module), ' >&2; exit 80; }\n',)
    for name, value in plan.environment:
        yield from ('export ', comment(name), '=', sh(value), '\n',)
    if plan.variables:
        yield from ('. "$HPCML_RUN_DIR/environment.sh"   # ', argv(plan.variables), '\n',)
    yield from ('# What the script is given back, which step.sh keeps from hpcml\'s own processes in part.\nexport HPCML_PYTHONPATH="${PYTHONPATH-}" PYTHONUNBUFFERED=1\nexport PYTHONPATH="$HPCML_RUN_DIR/lib.zip${PYTHONPATH:+:$PYTHONPATH}"\n\n',)
    for line in plan.prologue:
        yield from (comment(line), '\n',)
    if plan.stage:
        yield from ('. "$HPCML_RUN_DIR/stage.sh"   # the image on each node\'s own disk\nstage ', sh(plan.stage.mode), ' ', sh(plan.stage.folder), ' ', sh(plan.inside.image), ' ', sh(plan.stage.deadline), ' \\\n  ', comment(plan.stage.nodes_word),)
        if plan.stage.launcher:
            yield from (' ', sh(plan.stage.launcher.program), ' ', comment(plan.stage.launcher.shell), ' ', argv(plan.stage.launcher.options),)
        yield from (' || { unstage; exit 88; }\nentry=(', argv(plan.entry), ' "$staged")   # into it\n',)
    elif plan.entry:
        yield from ('entry=(', argv(plan.entry), ' ', sh(plan.inside.image), ')   # into the image\n',)
    yield from ('set -m   # each step is a process group of its own, and can be ended whole\n',)
    for step in plan.steps:
        if step.role == 'driver':
            yield from ('export HPCML_BATCH=$$ HPCML_STEPS="$scheduler $worker"   # the supervisor waits for the steps\' end\n',)
        if step.launcher:
            yield from (sh(step.launcher.program), ' ', comment(step.launcher.shell), ' ', argv(step.launcher.options), ' \\\n  ', argv(step.wrapper),)
            if plan.entry:
                yield from (' "${entry[@]}"',)
            yield from (' ', argv(step.command), ' </dev/null & ', comment(step.role), '=$!\n',)
        else:
            yield from (argv(step.wrapper),)
            if plan.entry:
                yield from (' "${entry[@]}"',)
            yield from (' ', argv(step.command), ' </dev/null >>', sh(step.log), ' 2>&1 & ', comment(step.role), '=$!\n',)
    yield from ('set +m   # or `wait` would return when the job is suspended\n',)
    yield from ('\n# The supervisor in the driver\'s step looks for these files. A trapped signal also interrupts `wait`, and of two at once the\n# second ends the next `wait` without its trap: so the loop asks whether the step has ended.\ntrap \': >"$attempt/time-limit"\' USR1\ntrap \': >"$attempt/terminate"\' TERM INT HUP\ntrap : CONT   # the supervisor\'s last act, after its status\nown="$attempt/exit/driver@${HPCML_NODE:-${SLURMD_NODENAME:-local}}"\nstatus=127\nwhile wait "$driver"; code=$?; [ "$code" = 127 ] || status=$code; kill -0 "$driver" 2>/dev/null && [ ! -s "$own" ]; do :; done\n# A step whose supervisor has ended may be stopped (SIGSTOP): it has half a minute.\nfor _ in {1..600}; do kill -0 "$driver" 2>/dev/null || break; sleep 0.05; done\nif kill -0 "$driver" 2>/dev/null; then\n  echo "hpcml: the script\'s step did not end after its supervisor, and was killed: was it stopped (SIGSTOP)?" >&2\n  kill -KILL -- "-$driver" 2>/dev/null\nfi\n\n# The supervisor\'s own status counts: srun gives 1 for a step in which something ran out of memory.\n[ -s "$own" ] && read -r status <"$own"\n',)
    if plan.entry:
        yield from ('grep -qs "\\"attempt\\": $HPCML_ATTEMPT, \\"event\\": \\"allocated\\"" "$HPCML_RUN_DIR/events.jsonl" || [ "$status" = 74 ] || status=88   # the image was not entered: see logs/driver.log\n',)
    else:
        yield from ('[ -e "$HPCML_RUN_DIR/events.jsonl" ] || [ "$status" = 74 ] || status=80   # not even the supervisor started: see logs/driver.log\n',)
    yield from ('\n# Scheduler and workers have ended by now, told by the supervisor; what has not is killed.\n',)
    if plan.inside.launched:
        yield from ('# srun that is told to end kills its tasks: without a supervisor they would hold their nodes for Slurm\'s own KillWait.\nkill -TERM "$scheduler" "$worker" 2>/dev/null\nfor _ in {1..30}; do kill -0 "$scheduler" 2>/dev/null || kill -0 "$worker" 2>/dev/null || break; sleep 0.1; done\n',)
    yield from ('kill -KILL -- "-$scheduler" "-$worker" 2>/dev/null\n',)
    if plan.stage:
        yield from ('unstage\n',)
    if plan.inside.several_jobs:
        if not plan.follow_up:
            yield from ('if [ -e "$attempt/continue" ]; then   # the next attempt takes this process\'s place\n  next="$HPCML_RUN_DIR/job.sh"\n  if [ -n "$HPCML_PYTHONPATH" ]; then export PYTHONPATH="$HPCML_PYTHONPATH"; else unset PYTHONPATH; fi\n  unset "${!HPCML_@}"\n  exec bash "$next"\nfi\n',)
    yield from ('exit "$status"\n',)
