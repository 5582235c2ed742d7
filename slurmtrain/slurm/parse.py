"""Slurm's text to values: scontrol, squeue and sacct of 22.05 to 24.11. Pure functions; whoever runs the commands is cli_client.

`scontrol show job -o` puts values that users choose (job name, command, folder, comment) between its own `Key=Value` words,
unquoted. They are cut out by what surrounds them, so that a comment `x JobState=FAILED` changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from slurmtrain.errors import SlurmError
from slurmtrain.slurm.hostlist import expand
from slurmtrain.slurm.types import JobInfo, NodeInfo, NodePlace, StepInfo

UNIT = "\x1f"
"""Separator of the columns that squeue and sacct are asked for: it is in no job's name."""
SQUEUE_COLUMNS = ("%i", "%j", "%T", "%r", "%N", "%S", "%e", "%P", "%k", "%u", "%B")
SACCT_COLUMNS = ("JobID", "JobName", "State", "ExitCode", "NodeList", "Start", "End", "Partition", "Comment", "User")
STEP_COLUMNS = ("%i", "%j", "%N")

_JOB_START = re.compile(r"(?m)^(?=JobId=\d+ )")
_JOB_HEAD = re.compile(
    r"JobId=(?P<id>\d+) (?P<ids>(?:\w+=\S* )*?)JobName=(?P<name>.*?) UserId=(?P<user>\S+?)\(\d+\) (?P<rest>GroupId=.*)", re.S
)
_COMMENT_OF_BATCH = re.compile(r" Comment=(?P<comment>.*?) +(?:Extra=.* )?StdErr=(?!.* StdErr=)", re.DOTALL)
_COMMENT_OF_OTHERS = re.compile(
    r" Comment=(?P<comment>.*?) *(?: (?:Power|Extra|TresPer\w+|MailUser|CpusPerTres|MemPerTres)=.*)?$", re.DOTALL
)
_PAIR = re.compile(r"(?:^|(?<=\s))([A-Za-z][\w/:]*)=(\S*)")
_NOTHING = frozenset({"", "(null)", "None", "Unknown", "N/A", "NONE", "None assigned", "n/s", "n/a"})
_MARKS = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "%": "POWERING_DOWN", "!": "POWER_DOWN",
    "$": "MAINT", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED",
}  # fmt: skip
_MEGABYTE = 1 << 20
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_RUNS = frozenset({"SIGNALING", "RESIZING"})


def jobs(text: str) -> list[JobInfo]:
    """Every record of `scontrol show job -o`; one line each. Raises SlurmError for text of another form."""
    return [_job(record.strip()) for record in _JOB_START.split(text) if record.strip()]


def _settled(state: str) -> str:
    """RUNNING for what a running job shows for a moment, while a signal is on its way to it or its size changes (squeue's manual)."""
    return "RUNNING" if state in _RUNS else state


def _job(record: str) -> JobInfo:
    head = _JOB_HEAD.match(record)
    if head is None:
        raise SlurmError(f"scontrol show job printed what is not a job: {record[:80]!r}")
    middle, _, tail = head["rest"].partition(" Command=")
    said = _pairs(middle)
    comment = (_COMMENT_OF_BATCH if said.get("BatchFlag") == "1" else _COMMENT_OF_OTHERS).search(tail)
    state, tres = _settled(said.get("JobState", "")), _tres(said)
    job_id, array = _array(head["id"], _pairs(head["ids"]))
    count = _number(tres.get("node")) or 0  # NumNodes shrinks while nodes of a job that ends come free
    return JobInfo(
        job_id=job_id,
        name=head["name"],
        state=state,
        reason=_text(said.get("Reason")),
        nodes=_hosts(said.get("NodeList")),
        batch_host=_text(said.get("BatchHost")),
        restarts=_number(said.get("Restarts")) or 0,
        start_time=when(said.get("StartTime")),
        end_time=when(said.get("EndTime")),
        exit_code=_exit_code(said.get("ExitCode"), state),
        partition=_text(said.get("Partition")),
        comment=_text(comment["comment"].strip()) if comment else "",
        user=head["user"],
        cpus_per_node=(_number(tres.get("cpu")) or 0) // count if count else None,
        memory_per_node_bytes=_size(tres.get("mem", "")) // count if count else None,
        array=array,
        preempt_time=when(said.get("PreemptTime")),
        avoided=_hosts(said.get("ExcNodeList")),
    )


def queue(text: str) -> list[JobInfo]:
    """`squeue -h -r -o` with SQUEUE_COLUMNS, one array member a line; a line of another form is left out."""
    return [_queued(columns) for columns in _table(text, len(SQUEUE_COLUMNS))]


def _queued(columns: Sequence[str]) -> JobInfo:
    job_id, name, state, reason, nodes, start, end, partition, comment, user, batch_host = columns
    hosts, state = _hosts(nodes), _settled(state)
    host = batch_host if batch_host in hosts else ""  # of salloc squeue names the machine that it runs on
    return JobInfo(
        job_id, name, state, _text(reason), hosts, host, start_time=when(start), end_time=when(end),
        partition=partition, comment=_text(comment), user=user, array=_member(job_id),
    )  # fmt: skip


def accounted(text: str) -> JobInfo | None:
    """The newest of the records that `sacct -X --duplicates` printed with SACCT_COLUMNS; None where there is none."""
    records = _table(text, len(SACCT_COLUMNS))
    if not records:
        return None
    job_id, name, state, code, nodes, start, end, partition, comment, user = records[-1]
    word = state.split()[0] if state else ""
    return JobInfo(
        job_id, name, word, nodes=_hosts(nodes), restarts=len(records) - 1, start_time=when(start), end_time=when(end),
        exit_code=_exit_code(code, word), partition=partition, comment=comment, user=user, array=_member(job_id),
    )  # fmt: skip


def steps(text: str) -> list[StepInfo]:
    """`squeue -h --steps -o` with STEP_COLUMNS."""
    rows = _table(text, len(STEP_COLUMNS))
    return [StepInfo(full.rpartition(".")[2], name, _hosts(nodes)) for full, name, nodes in rows]


def nodes(text: str) -> list[NodeInfo]:
    """`scontrol show node -o`: one node a line; lines of another form (Node n9 not found) are left out."""
    return [_node(line) for line in text.split("\n") if line.startswith("NodeName=")]


def nodes_of_partition(text: str) -> tuple[str, ...]:
    """`scontrol show partition -o`: its nodes."""
    return _hosts(_pairs(text).get("Nodes"))


def _node(line: str) -> NodeInfo:
    said = _pairs(line)
    reason = re.search(r" Reason=(.*?)(?: Comment=| Extra=|$)", line)
    return NodeInfo(
        name=said["NodeName"],
        states=node_states(said.get("State", "")),
        reason=reason[1].strip() if reason else "",
        cpus=_number(said.get("CPUTot")) or 0,
        memory_bytes=(_number(said.get("RealMemory")) or 0) * _MEGABYTE,
        gres=_text(said.get("Gres")),
        features=tuple(part for part in _text(said.get("AvailableFeatures")).split(",") if part),
    )


def node_states(text: str) -> frozenset[str]:
    """`DOWN*+DRAIN` as words: DOWN, NOT_RESPONDING, DRAIN.

    >>> sorted(node_states("DOWN*+DRAIN"))
    ['DOWN', 'DRAIN', 'NOT_RESPONDING']
    """
    found: set[str] = set()
    for part in text.split("+"):
        word = part.rstrip("".join(_MARKS))
        found.update({word} if word else set())
        found.update(_MARKS[mark] for mark in part[len(word) :])
    return frozenset(found)


def places(text: str, names: Sequence[str]) -> list[NodePlace]:
    """`scontrol show topology` of a tree or of blocks: one place for each name, empty where the cluster says nothing."""
    leaf: dict[str, str] = {}
    block: dict[str, str] = {}
    for line in text.split("\n"):
        said = _pairs(line)
        if said.get("Level") == "0" and "SwitchName" in said:
            leaf.update(dict.fromkeys(_hosts(said.get("Nodes")), said["SwitchName"]))
        elif "BlockName" in said:
            block.update(dict.fromkeys(_hosts(said.get("Nodes")), said["BlockName"]))
    return [NodePlace(name, leaf.get(name, ""), block.get(name, "")) for name in names]


def config(text: str) -> dict[str, str]:
    """`scontrol show config`: key to value as printed; `(null)` counts as empty."""
    rows = (line.partition("=") for line in text.split("\n") if re.match(r"\w+\s*= ", line))
    return {key.strip(): "" if value.strip() == "(null)" else value.strip() for key, _, value in rows}


def submitted(text: str) -> tuple[str, str]:
    """(job id, cluster or empty) of `sbatch --parsable`. Raises SlurmError."""
    last = text.strip().splitlines()[-1] if text.strip() else ""
    form = re.fullmatch(r"(\d+)(?:;([\w.-]+))?", last.strip())
    if form is None:
        raise SlurmError(f"sbatch printed no job id but {last[:80]!r}: look at `squeue --me` before you submit again")
    return form[1], form[2] or ""


def when(text: str | None) -> float | None:
    """Seconds since the epoch of a time that Slurm printed, as seconds or in the local form; None where it knows none."""
    if text is None or text in _NOTHING:
        return None
    if text.isdigit():
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _pairs(text: str) -> dict[str, str]:
    """`Key=Value` words; the first of a key wins."""
    found: dict[str, str] = {}
    for key, value in _PAIR.findall(text):
        found.setdefault(key, value)
    return found


def _table(text: str, width: int) -> list[list[str]]:
    rows = (line.split(UNIT) for line in text.split("\n"))
    return [[cell.strip() for cell in row] for row in rows if len(row) == width]


def _text(value: str | None) -> str:
    return "" if value is None or value in _NOTHING else value


def _hosts(value: str | None) -> tuple[str, ...]:
    return expand(_text(value))


def _number(value: str | None) -> int | None:
    """The first number of `16`, `2-4`; None where there is none."""
    found = re.match(r"\d+", value or "")
    return int(found[0]) if found else None


def _tres(said: dict[str, str]) -> dict[str, str]:
    """What a job has, or asks for while it waits: {"cpu": "16", "mem": "32000M", "node": "2"} (`TRES` until 22.05)."""
    lists = (_text(said.get(key)) for key in ("AllocTRES", "TRES", "ReqTRES"))
    pairs = (part.partition("=") for part in next((text for text in lists if text), "").split(","))
    return {key: value for key, _, value in pairs}


def _size(text: str) -> int:
    """Bytes of `32000M`; without a unit Slurm means megabytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)", text)
    return int(float(found[1]) * _SIZES.get(found[2], _MEGABYTE)) if found else 0


def _exit_code(text: str | None, state: str) -> int | None:
    """`7:0` is 7, `0:15` is -15; None while the job has not ended."""
    form = re.fullmatch(r"(\d+):(\d+)", text or "")
    if form is None or not JobInfo("", "", state).ended:
        return None
    return int(form[1]) or -int(form[2])


def _array(raw_id: str, said: dict[str, str]) -> tuple[str, tuple[str, str] | None]:
    """The id as people write it, and (array job id, task id); what is left of an array that waits keeps the array's own id."""
    master, task = said.get("ArrayJobId"), said.get("ArrayTaskId", "")
    if master is None:
        return raw_id, None
    return (f"{master}_{task}" if task.isdigit() else master), (master, task)


def _member(job_id: str) -> tuple[str, str] | None:
    master, underscore, task = job_id.partition("_")
    return (master, task) if underscore else None
