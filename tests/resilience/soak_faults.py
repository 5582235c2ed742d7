"""The soak's faults: what befalls one start of the ranks, drawn by a seed. Each arranges itself on the stage for a moment to come."""

from __future__ import annotations

from collections.abc import Callable

from slurmtrain.resilience.signals import NOTICE, TERM
from tests.resilience.soak_doors import Killed
from tests.resilience.soak_stage import SoakStage
from tests.resilience.stage import PEER

ERRORS = (
    ("ValueError: bad token", None),
    ("MemoryError: ", "out_of_memory"),
    ("OSError: [Errno 28] No space left on device", "storage"),
    ("NumericalError: the loss of step 7 is not finite", "numerical"),
    ("RuntimeError: NCCL error: unhandled system error", "network"),
)


def node_of_the_world(s: SoakStage) -> str:
    return s.rng.choice(s.record_of_now().nodes)


def error(s: SoakStage) -> None:
    """A rank has a fault of its own, the others lose it."""
    world = s.record_of_now().world
    guilty, (words, _) = s.rng.randrange(world), s.rng.choice(ERRORS)
    for rank in range(world):
        s.record(rank, "error", words if rank == guilty else PEER, code=1)
    s.leave()


def late(s: SoakStage) -> None:
    """The same over a slow shared folder: records come after the launcher's end."""
    attempt, world, guilty = s.attempt, s.record_of_now().world, s.rng.randrange(s.record_of_now().world)
    s.over = True

    def come() -> None:
        if s.attempt == attempt and s.over:
            for rank in range(world):
                s.record(rank, "error", "ValueError: bad token" if rank == guilty else PEER, code=1)

    s.clock.at(s.rng.choice((1.0, 3.0, 8.0)), come)


def crash(s: SoakStage) -> None:
    """A signal, or a code, without a record; sometimes in a save."""
    record = s.record_of_now()
    rank = s.rng.randrange(record.world)
    how = s.rng.choice(("Exited with exit code 7", "Segmentation fault", "Killed"))
    task = sorted(record.nodes).index(record.node_of(rank)) * s.gpus + rank % s.gpus
    s.launcher_words = f"srun: error: {record.node_of(rank)}: task {task}: {how}\n"
    for other in set(range(record.world)) - {rank}:
        s.record(other, "error", PEER, code=1)
    s.leave()


def node(s: SoakStage) -> None:
    s.lose_node(node_of_the_world(s))


def two_nodes(s: SoakStage) -> None:
    nodes = s.record_of_now().nodes[-2:]
    for one in nodes:
        if one != s.job().batch_host:
            s.lose_node(one)


def hang(s: SoakStage) -> None:
    """A rank is stopped, or all stand still and nobody stands out."""
    s.stand()
    if s.rng.random() < 0.7 and not s.agents.gone:
        s.stopped = s.rng.randrange(s.record_of_now().world)
        s.guilty.add(s.record_of_now().node_of(s.stopped))


def mute(s: SoakStage) -> None:
    """A node stops answering, and its peers stand still. Not the batch host: the supervisor is there."""
    nodes = [one for one in s.record_of_now().nodes if one != s.job().batch_host]
    if nodes:
        node = s.rng.choice(nodes)
        s.mute.add(node)
        s.silent.add(node)
        s.guilty.add(node)
        s.stand()
    else:
        error(s)


def agents(s: SoakStage) -> None:
    """The agents are gone, and stay so; then a rank crashes."""
    s.agents.gone = True
    s.soon(2.0, lambda: error(s))


def killed(s: SoakStage) -> None:
    raise Killed


def killed_somewhere(s: SoakStage) -> None:
    """A rank crashes, and the supervisor is killed at some call after that."""
    s.fate.after(s.rng.randrange(80))
    error(s)


def requeued(s: SoakStage) -> None:
    """`scontrol requeue` by hand; of a chain: a preemption that ends the link."""
    s.take_back("hand", **({"preempt_time": s.clock.time()} if s.shape == "chain" else {}))


def preempted(s: SoakStage) -> None:
    s.take_back("preempted", preempt_time=s.clock.time())


def limit(s: SoakStage) -> None:
    s.limit()


def deadline(s: SoakStage) -> None:
    """The job's end comes near."""
    s.job(end_time=s.clock.time() + s.rng.choice((25.0, 45.0, 90.0)))
    s.clock.at(90.0, lambda job=s.job_id, start=s.turn: s.limit() if (s.job_id, s.turn) == (job, start) else None)


def notice(s: SoakStage) -> None:
    s.signals.receive(NOTICE)


def term(s: SoakStage) -> None:
    s.signals.receive(TERM)


def both(s: SoakStage) -> None:
    first, second = s.rng.sample((NOTICE, TERM), 2)
    s.signals.receive(first)
    s.soon(s.rng.choice((0.0, 0.1, 2.0)), lambda: s.signals.receive(second))


def scancel(s: SoakStage) -> None:
    s.job(state="COMPLETING", reason="None")
    s.signals.receive(TERM)


def stop(s: SoakStage) -> None:
    s.run.stop.touch()


def corrupt(s: SoakStage) -> None:
    """The newest checkpoint is damaged, then a rank crashes."""
    if s.good:
        s.corrupt.add(s.good)
    error(s)


def slow(s: SoakStage) -> None:
    s.disk.slow_s = s.rng.choice((0.5, 3.0))
    s.clock.at(40.0, lambda: setattr(s.disk, "slow_s", 0.0))
    error(s)


def deaf(s: SoakStage) -> None:
    """Slurm does not answer for a while, in which a rank crashes or a node dies."""
    s.slurm.down = True
    s.clock.at(s.rng.choice((5.0, 40.0)), lambda: setattr(s.slurm, "down", False))
    s.rng.choice((error, notice))(s)


def unfit(s: SoakStage) -> None:
    """A rank crashes, and a node does not pass the next check; or all do not."""
    nodes = s.job().nodes if s.rng.random() < 0.1 else (s.rng.choice(s.job().nodes),)
    s.answer = {one: {"problems": ("cannot write into /x: Read-only file system",), "ok": False} for one in nodes}
    s.guilty |= set(nodes)
    start = s.turn
    s.clock.at(60.0, lambda: s.answer.clear() if s.turn == start else None)
    error(s)


def full(s: SoakStage) -> None:
    """The disk is full for a while, in which a rank crashes."""
    s.disk.full = True
    s.excused.add(s.attempt)
    s.clock.at(s.rng.choice((0.6, 3.0, 20.0)), lambda: setattr(s.disk, "full", False))
    error(s)


FAULTS: tuple[Callable[[SoakStage], None], ...] = (
    error, error, late, crash, crash, node, node, two_nodes, hang, mute, agents, killed, killed_somewhere, killed_somewhere, requeued,
    preempted, limit, deadline, notice, term, both, scancel, stop, corrupt, slow, deaf, unfit, full,
)  # fmt: skip


def meet(s: SoakStage) -> None:
    """The next fault, some seconds from now."""
    fault = s.rng.choice(FAULTS)
    s.met[fault.__name__] += 1
    s.lines.append(f"-- {fault.__name__}")
    s.soon(s.rng.choice((0.3, 2.3, 4.3, 6.6, 9.3)), lambda: fault(s))
