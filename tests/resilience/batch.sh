#!/bin/bash
# What the templates' block `supervise` does, for a supervisor with the tiny trainer: batch.sh PYTHON RUN
python=$1 run=$2
trap '' USR2
"$python" -u -m tests.resilience.batch "$run" &
pid=$!
trap 'kill -USR2 "$pid" 2>/dev/null' USR2
trap 'kill -TERM "$pid" 2>/dev/null' TERM
code=127
while wait "$pid"; code=$?; [ "$code" -gt 128 ] && kill -0 "$pid" 2>/dev/null; do :; done
[ -r "$run/submit/exit_code" ] && read -r code <"$run/submit/exit_code"
exit "$code"
