#!/bin/bash
# A HealthCheckProgram for Slurm: every node looks at itself, and tells. slurm.conf:
#
#   HealthCheckProgram=/etc/slurm/healthcheck.sh
#   HealthCheckInterval=900
#   HealthCheckNodeState=IDLE,CYCLE
#
# IDLE: a node that works has its memory and its GPUs in use, which is no trouble. CYCLE: not all nodes at the same moment.
# slurmd kills the program after 60 s, and does nothing about its exit code (man slurm.conf): what shall be done must be done here. This one
# writes a line to the log and a file for the node exporter, and no node is drained. A site that wants that adds its own `scontrol update` for
# code 2; for code 3 (a check could not look) a person should look first.
set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin                      # slurmd gives none

SLURMTRAIN=${SLURMTRAIN:-/opt/slurmtrain/bin/slurmtrain}                # CHANGE: where slurmtrain is installed
SITE=${SLURMTRAIN_SITE:-mycluster}                                      # CHANGE: the site, by name or file
METRICS=${METRICS:-/var/lib/node_exporter/textfile/preflight.prom}      # CHANGE: the collector's folder; empty: none
LOGGER=${LOGGER:-logger -t slurmtrain-preflight}

words=(preflight --here --nagios --site "$SITE")
[ -n "$METRICS" ] && words+=(--prometheus "$METRICS")
line=$(timeout -k 5 50 "$SLURMTRAIN" "${words[@]}" 2>/dev/null)
code=$?
case $code in
    0) priority=info ;;
    1) priority=warning ;;
    2 | 3) priority=err ;;
    *) priority=err code=3 line="PREFLIGHT UNKNOWN - $SLURMTRAIN did not end in 50 s, or cannot be run" ;;
esac
$LOGGER -p "daemon.$priority" -- "$line"
exit "$code"
