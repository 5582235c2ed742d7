"""Options of sbatch that slurmtrain sets itself, each with the place where its value is said instead."""

from __future__ import annotations

_NODES = "slurm.nodes, or -N of slurmtrain"
_WORLD = "one task runs per GPU: see slurm.nodes and slurm.gpus_per_node"
_GPUS = "slurm.gpus_per_node, or node.gpus of the site"
_FIXED = "slurmtrain sets it, so that a run can be requeued and resumed"

OWNED: dict[str, str] = {
    "--nodes": _NODES,
    "--ntasks": _WORLD,
    "--ntasks-per-node": _WORLD,
    "--ntasks-per-gpu": _WORLD,
    "--ntasks-per-core": _WORLD,
    "--ntasks-per-socket": _WORLD,
    "--gpus": _GPUS,
    "--gpus-per-node": _GPUS,
    "--gpus-per-task": f"{_GPUS} (per task would cut peer access between GPUs)",
    "--gpus-per-socket": _GPUS,
    "--cpus-per-task": "node.cpus_per_gpu of the site",
    "--time": "slurm.time",
    "--partition": "slurm.partition",
    "--account": "slurm.account",
    "--qos": "slurm.qos",
    "--reservation": "slurm.reservation",
    "--constraint": "slurm.constraint",
    "--nodelist": "slurm.nodelist",
    "--exclude": "slurm.exclude",
    "--dependency": "slurm.dependency",
    "--array": "slurm.array",
    "--job-name": "run.name, or -J of slurmtrain",
    "--export": "the table [environment]",
    "--export-file": "the table [environment]",
    "--propagate": "environment.ulimits of the site",
    "--comment": _FIXED,
    "--requeue": _FIXED,
    "--no-requeue": "to end a run without a requeue: slurmtrain stop RUN",
    "--no-kill": _FIXED,
    "--signal": "slurm.stop_notice_s of the site",
    "--output": "the log is slurm-JOBID.out in the run folder",
    "--error": "the log is slurm-JOBID.out in the run folder",
    "--open-mode": _FIXED,
    "--chdir": "every attempt runs in the code/ of the run folder",
    "--wrap": "the job file says what runs",
    "--parsable": "give --parsable to slurmtrain itself",
    "--test-only": "use --dry-run of slurmtrain",
    "--wait": "follow the run with: slurmtrain logs RUN -f",
}
"""Long option to the place of its value, or the reason."""

SHORT: dict[str, str] = {
    "-N": "--nodes",
    "-n": "--ntasks",
    "-G": "--gpus",
    "-c": "--cpus-per-task",
    "-t": "--time",
    "-p": "--partition",
    "-A": "--account",
    "-q": "--qos",
    "-C": "--constraint",
    "-w": "--nodelist",
    "-x": "--exclude",
    "-d": "--dependency",
    "-a": "--array",
    "-J": "--job-name",
    "-k": "--no-kill",
    "-o": "--output",
    "-e": "--error",
    "-D": "--chdir",
    "-W": "--wait",
}


def extra_fault(option: str) -> str | None:
    """What is wrong with one more option for sbatch, in words; None when it may go there.

    >>> extra_fault("--mail-type=END"), extra_fault("mail-type=END")
    (None, 'must begin with a dash, value and option in one word: "--mail-type=END"')
    """
    if not option.startswith("-") or not option.strip("-"):
        return 'must begin with a dash, value and option in one word: "--mail-type=END"'
    if any(ch in option for ch in "\0\n\r"):
        return "must be one line"
    name = _owned(option)
    if name:
        return f"{name} does not belong here: {OWNED[name]}"
    if option.startswith("--gres=") and "gpu" in option:
        return f"GPUs do not belong here: {_GPUS}"
    return None


def _owned(option: str) -> str | None:
    if not option.startswith("--"):
        return SHORT.get(option[:2])
    name = option.partition("=")[0].partition(" ")[0]
    if name in OWNED:
        return name
    abbreviated = [full for full in OWNED if full.startswith(name) and len(name) > 4]  # getopt takes --job for --job-name
    return abbreviated[0] if abbreviated else None
