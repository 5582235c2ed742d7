#!/bin/bash
# An Epilog for Slurm: when a job has ended on a node, the node looks at itself anew, and tells what the job has left. slurm.conf:
#
#   Epilog=/etc/slurm/epilog.sh
#
# It always ends with 0: an epilog that ends with another code makes Slurm drain the node (man slurm.conf, PROLOG AND EPILOG SCRIPTS). What it
# finds goes into the history of preflights (preflight.history of the site), where it ends what was known of the node before: the next prolog,
# health check or run looks again.
set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin                      # slurmd gives none

SLURMTRAIN=${SLURMTRAIN:-/opt/slurmtrain/bin/slurmtrain}                # CHANGE: where slurmtrain is installed
SITE=${SLURMTRAIN_SITE:-mycluster}                                      # CHANGE: the site, by name or file
LOGGER=${LOGGER:-logger -t slurmtrain-preflight}

line=$(timeout -k 5 30 "$SLURMTRAIN" preflight --here --fresh --nagios --site "$SITE" 2>/dev/null)
code=$?
[ "$code" -gt 3 ] && line="PREFLIGHT UNKNOWN - $SLURMTRAIN did not end in 30 s, or cannot be run"
[ "$code" -ne 0 ] && $LOGGER -p daemon.warning -- "after job ${SLURM_JOB_ID:-?}: $line"
exit 0
