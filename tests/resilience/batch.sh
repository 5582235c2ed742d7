#!/bin/bash
# What the templates' block `supervise` does, for a supervisor with the tiny trainer: batch.sh PYTHON RUN
python=$1 run=$2 term=
start() {
  trap '' USR2
  "$python" -u -m tests.resilience.batch "$run" &
  pid=$!
  trap 'kill -USR2 "$pid" 2>/dev/null' USR2
  trap 'term=yes; kill -TERM "$pid" 2>/dev/null' TERM
  code=127
  while wait "$pid"; code=$?; [ "$code" -gt 128 ] && kill -0 "$pid" 2>/dev/null; do :; done
}
rm -f "$run/submit/exit_code"
start
for again in 1 2 3; do
  [ "$code" -gt 128 ] && [ -z "$term" ] && [ ! -e "$run/submit/exit_code" ] || break
  echo "the supervisor was ended by signal $((code - 128)): it is started again ($again of 3)" >&2
  start
done
[ -r "$run/submit/exit_code" ] && read -r code <"$run/submit/exit_code"
exit "$code"
