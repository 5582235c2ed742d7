"""`slurmtrain run`: the supervisor in the foreground, inside an allocation or on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import JOB_OPTIONS, KEYS, Resume, ResumeCommand, examples, with_options
from slurmtrain.cli.paths import UserPath

if TYPE_CHECKING:
    from slurmtrain.cli.assemble import Draft, Wish
    from slurmtrain.cli.start import Start


@click.command(
    cls=ResumeCommand,
    context_settings={"max_content_width": 110},
    epilog=examples("salloc -N 2 --exclusive slurmtrain run job.toml", "slurmtrain run job.toml --site local        # on this machine"),
)
@click.argument("job_file", metavar="JOB.toml", type=UserPath())
@with_options(JOB_OPTIONS)
@click.pass_context
def command(ctx: click.Context, /, job_file: Path, **said: Any) -> None:
    """Train here: inside an allocation (salloc, sbatch), or on this machine with --site local.

    The same supervisor as in a batch job, in the foreground. Ctrl-C saves and stops, a second one stops at once.
    Without -N it uses all nodes of the allocation.
    """
    from slurmtrain.cli.assemble import Wish, assemble, draft
    from slurmtrain.cli.publish import publish
    from slurmtrain.cli.runs import job_of
    from slurmtrain.resilience.supervisor import supervise
    from slurmtrain.telemetry.history import add_act

    doors = doors_of(ctx)
    values = {name: said.get(name) for name in KEYS}
    wish = Wish(job_file, values, said["sets"], said["include"], said["live"], said["site"], said["root"], argv=tuple(sys.argv))
    made = draft(_fitted(wish, doors.env), doors)
    start = _check(made, doors, resume=said["resume"], branch=said["branch"], root=said["root"])
    for note in made.notes:
        click.echo(note, err=True)
    publish(made, assemble(replace(wish, branch=start.branch), made, doors), doors, start)
    with suppress(OSError):
        add_act(made.run, doors.disk, doors.clock.time(), "run", job_id=job_of(doors.env), detail=start.note)
    click.echo(f"run folder {made.run.path}", err=True)
    ctx.exit(supervise(made.run, doors.env, foreground=True).code)


def _fitted(wish: Wish, env: Mapping[str, str]) -> Wish:
    """The wish, for all nodes of the allocation where neither the command line nor the job file says a number."""
    from slurmtrain.cli.assemble import with_defaults
    from slurmtrain.config.tomlfile import read_toml

    nodes = _nodes(env)
    slurm = read_toml(wish.job_file, "job file").get("slurm", {})
    said = (isinstance(slurm, dict) and "nodes" in slurm) or any(text.partition("=")[0].strip() == "slurm.nodes" for text in wish.sets)
    return wish if nodes is None or said else with_defaults(wish, nodes=str(nodes))


def _check(made: Draft, doors: Doors, *, resume: Resume | None, branch: str | None, root: Path | None) -> Start:
    """What only a run in the foreground needs to hold; how the run begins. Raises SlurmtrainError."""
    from slurmtrain.cli.resume import check_idle
    from slurmtrain.cli.runs import job_of
    from slurmtrain.cli.start import start_of
    from slurmtrain.errors import ConfigError, UserError
    from slurmtrain.fabric.resize import fewest

    by_srun = made.site.launcher == "srun"
    if by_srun and not doors.env.get("SLURM_JOB_ID"):
        problem = f"site {made.site.name} starts ranks by srun, and this is not inside an allocation"
        raise UserError(f"{problem}: salloc -N {made.plan.nodes} first, or slurmtrain submit; on this machine alone: --site local")
    nodes = _nodes(doors.env)
    if by_srun and nodes is not None and fewest(made.plan, made.job, made.site) > nodes:
        raise ConfigError(f"the allocation has {nodes}: use -N {nodes}, or a larger allocation", key="slurm.nodes", value=made.plan.nodes)
    own_job = job_of(doors.env).partition("_")[0]

    def idle() -> None:
        if by_srun:
            check_idle(made.run, doors.slurm, own_job=own_job)

    return start_of(made, doors, resume=resume, branch=branch, root=root, check_idle=idle)


def _nodes(env: Mapping[str, str]) -> int | None:
    """Number of nodes of the allocation around this process; None where there is none."""
    count = env.get("SLURM_JOB_NUM_NODES", "") if env.get("SLURM_JOB_ID") else ""
    return int(count) if count.isdigit() else None
