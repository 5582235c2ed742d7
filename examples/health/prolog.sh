#!/bin/bash
# A Prolog for Slurm: before a job starts on a node, the node looks at itself, and tells. slurm.conf:
#
#   Prolog=/etc/slurm/prolog.sh
#   PrologFlags=Alloc
#
# It always ends with 0. A prolog that ends with another code makes Slurm drain the node and hold the job (man slurm.conf, PROLOG AND EPILOG
# SCRIPTS), and that is not for a check to do: with one wrong word in a site file every node of the cluster would be drained, job by job. A run
# of slurmtrain checks its nodes by itself before it starts, goes on without those that are not fit, and drains none. A node that was found fit
# less than preflight.cache_s ago is not looked at again, so that this costs a job no more than the start of a program.
set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin                      # slurmd gives none

SLURMTRAIN=${SLURMTRAIN:-/opt/slurmtrain/bin/slurmtrain}                # CHANGE: where slurmtrain is installed
SITE=${SLURMTRAIN_SITE:-mycluster}                                      # CHANGE: the site, by name or file
LOGGER=${LOGGER:-logger -t slurmtrain-preflight}

line=$(timeout -k 5 30 "$SLURMTRAIN" preflight --here --nagios --site "$SITE" 2>/dev/null)
code=$?
[ "$code" -gt 3 ] && line="PREFLIGHT UNKNOWN - $SLURMTRAIN did not end in 30 s, or cannot be run"
[ "$code" -ne 0 ] && $LOGGER -p daemon.warning -- "before job ${SLURM_JOB_ID:-?}: $line"
exit 0
