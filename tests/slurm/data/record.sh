#!/bin/bash
# Records what Slurm's commands print, for tests/slurm/test_parse.py: record.sh OUT
# in the environment of a `devcluster up --nodes 4` (22.05: tree and --accounting; 24.11: --suite trixie --topology block).
# Afterwards paths of the machine were replaced by /home/me and /srv/slurm.
set -u
OUT=$(realpath "$1") TOOL=$(realpath "$(dirname "$0")/../../../tools/devcluster") U=$'\x1f'
mkdir -p "$OUT" && cd "$(mktemp -d)" && mkdir "my runs" && cd "my runs" || exit 1
printf "#!/bin/bash\ntrap '' TERM\nsleep 600 & wait; sleep 2\n" > "my job.sh"
printf '#!/bin/bash\nsleep 600\n' > plain.sh
printf '#!/bin/bash\nexit 7\n' > seven.sh

A=$(sbatch --parsable -N2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=2 --mem=0 --exclusive --requeue --open-mode=append \
    --comment="run=/l/it's \$HOME JobState=FAILED StdErr=x" -J "llama 8b|x JobState=FAILED" -t 10 "my job.sh")
B=$(sbatch --parsable --array=1-3%1 -N1 -J arr --comment plain plain.sh)
H=$(sbatch --parsable -N1 -H -J held plain.sh)
S=$(sbatch --parsable -N1 -J seven seven.sh)
Q=$(sbatch --parsable -N1 -J again --requeue plain.sh)
salloc -Q -N1 --no-shell -J 'sal loc' --comment 'x Reason=foo StdErr=a'
I=$(squeue -h -n 'sal loc' -o %A)
sleep 3

export SLURM_TIME_FORMAT=%s
SLURM_TIME_FORMAT=standard scontrol show job -o "$A" > "$OUT/job_running_standard_time.txt"
show() { scontrol show job -o "$1" > "$OUT/job_$2.txt" 2>&1; }
show "$A" running; show "$B" array; show "${B}_1" array_member; show "${B}_3" array_waiting_member
show "$H" held; show "$S" failed; show "$I" salloc; show 9999 unknown
SLURM_JOB_ID=$A srun --jobid="$A" -N2 -n2 --overlap --mpi=none --job-name=0003-1a2b3c4d sleep 60 2> /dev/null &
sleep 2
squeue -h --steps -j "$A" -o "%i$U%j$U%N" > "$OUT/squeue_steps.txt"
squeue --me -h -r -o "%i$U%j$U%T$U%r$U%N$U%S$U%e$U%P$U%k$U%u$U%B" > "$OUT/squeue.txt"
scontrol requeue "$Q"; sleep 1.5; show "$Q" requeued
scancel "$A"; sleep 0.5; show "$A" completing
scontrol update nodename=n4 state=drain reason="bad GPU: Xid 79, see #12"
scontrol show node -o n1,n2,n3,n4 > "$OUT/nodes.txt"
scontrol show node -o n1,n99 > "$OUT/nodes_unknown.txt" 2>&1
scontrol show topology > "$OUT/topology.txt"
scontrol show config | grep -v /tmp > "$OUT/config.txt"
scancel "$I" "$H" "$B"; sleep 7
scontrol update nodename=n4 state=resume
"$TOOL" fail n3
until scontrol show node -o n3 | grep -q State=DOWN; do sleep 0.5; done
scontrol show node -o n3 > "$OUT/node_down.txt"
sleep 3
if scontrol show config | grep -q accounting_storage/slurmdbd; then
    for pair in "$A a_cancelled" "$S failed" "$Q requeued" "${B}_1 array_member" "9999 unknown"; do
        sacct -n -P --delimiter="$U" -X --duplicates -j "${pair% *}" \
            -o JobID,JobName,State,ExitCode,NodeList,Start,End,Partition,Comment,User > "$OUT/sacct_${pair#* }.txt"
    done
fi
"$TOOL" restore n3
scancel --me
