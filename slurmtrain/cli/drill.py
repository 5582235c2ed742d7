"""`slurmtrain drill`: a run of its own in which something goes wrong on purpose, and what came of it."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.options import JOB_OPTIONS, KEYS, SLURM_OPTIONS, ResumeCommand, examples, with_options
from slurmtrain.cli.paths import UserPath

if TYPE_CHECKING:
    from slurmtrain.cli.assemble import Draft, Wish
    from slurmtrain.cli.start import Start
    from slurmtrain.cli.strike import Striker
    from slurmtrain.launch.prepare import RunContents
    from slurmtrain.resilience.drills import Kind


@click.command(
    cls=ResumeCommand,
    context_settings={"max_content_width": 110},
    epilog=examples(
        "slurmtrain drill list",
        "slurmtrain drill sigkill job.toml -N 2 --set training.steps=200",
        "slurmtrain drill shard-corrupted job.toml -N 2 --reference undisturbed-run",
    ),
)
@click.argument("kind", metavar="KIND|list")
@click.argument("job_file", metavar="[JOB.toml]", required=False, type=UserPath())
@click.argument("sbatch_options", metavar="[-- SBATCH OPTIONS]", nargs=-1, type=click.UNPROCESSED)
@click.option("--rank", type=int, default=None, metavar="R", help="Whom it happens to [default: the last rank].")
@click.option("--step", type=click.IntRange(1), default=None, metavar="N", help="At which step [default: after the second checkpoint].")
@click.option("--reference", default=None, metavar="RUN", help="An undisturbed run of the same job, whose losses must be the same.")
@click.option("--json", "as_json", is_flag=True, help="The row as one JSON object on stdout; everything else goes to stderr.")
@with_options(JOB_OPTIONS)
@with_options(SLURM_OPTIONS)
@click.pass_context
def command(ctx: click.Context, /, kind: str, job_file: Path | None, sbatch_options: tuple[str, ...], **said: Any) -> None:
    """Try out what a fault does to a run: drill list shows the kinds.

    A drill is a run of its own, drill-KIND-TIME, of your job file and submit's options; it touches no other run.
    It is followed to its end; then one row tells as what the fault was detected, how long it took, what was lost.
    """
    if kind == "list":
        _list(as_json=said["as_json"])
        return
    if job_file is None:
        raise click.UsageError("a drill needs a job file: slurmtrain drill KIND JOB.toml", ctx)
    if said["resume"] is not None or said["branch"] is not None:
        raise click.UsageError("a drill begins a run of its own: without --resume and --from", ctx)
    from slurmtrain.resilience.drills import kind_of

    ctx.exit(_drill(kind_of(kind), _wish(kind_of(kind), job_file, sbatch_options, said), said, doors_of(ctx)))


def _list(*, as_json: bool) -> None:
    from dataclasses import asdict

    from slurmtrain.resilience.drills import KINDS

    if as_json:
        click.echo(json.dumps({"v": 1, "kinds": [asdict(one) for one in KINDS]}))
        return
    width = max(len(one.name) for one in KINDS)
    for one in KINDS:
        by = f"  [by hand: {one.how}]" if one.way == "hand" else ""
        click.echo(f"{one.name:<{width}}  {one.does}{by}\n{'':<{width}}  -> {_comes(one)}")


def _comes(kind: Kind) -> str:
    """What should come of it, in words."""
    return f"{' or '.join(word.replace('_', ' ') for word in kind.seen)}; {' or '.join(kind.went)}"


def _wish(kind: Kind, job_file: Path, sbatch_options: tuple[str, ...], said: dict[str, Any]) -> Wish:
    from slurmtrain.cli.assemble import Wish
    from slurmtrain.resilience.drills import sets_for

    values = {name: said[name] for name in KEYS}
    values["name"] = values["name"] or f"drill-{kind.name}-{time.strftime('%m%d-%H%M%S')}"
    sets = sets_for(kind, said["sets"])
    return Wish(job_file, values, sets, said["include"], said["live"], said["site"], said["root"], sbatch_options, tuple(sys.argv))


def _drill(kind: Kind, wish: Wish, said: dict[str, Any], doors: Doors) -> int:
    """The drill from its submission to its row; 0 when it went as it should. Raises SlurmtrainError."""
    from slurmtrain.cli.assemble import assemble, draft
    from slurmtrain.cli.drill_row import row_for
    from slurmtrain.cli.facts import locate
    from slurmtrain.cli.start import start_of
    from slurmtrain.cli.strike import Striker, check
    from slurmtrain.report.drilled import words

    made = draft(wish, doors)
    batch = made.site.launcher != "mpiexec"
    check(kind, made.job, batch=batch)
    reference = locate(said["reference"], said["root"], doors) if said["reference"] else None
    rank = said["rank"] if said["rank"] is not None else made.plan.world - 1
    striker = Striker(made.run, kind, made.job, doors, rank=_checked(rank, made), step=said["step"], say=_say)
    start = start_of(made, doors, resume=None, branch=None, root=said["root"], check_idle=lambda: None)
    contents = assemble(replace(wish, branch=None), made, doors)
    for note in made.notes:
        _say(note)
    state = (_in_a_job if batch else _here)(made, contents, doors, start, striker, quiet=said["as_json"])
    row = row_for(made.run, kind, doors, state=state, struck_t=striker.struck_t, reference=reference)
    if said["as_json"]:
        click.echo(json.dumps({**row.to_json(), "run": str(made.run.path), "struck_t": striker.struck_t, "trouble": striker.trouble}))
    else:
        for label, text in words(row):
            click.echo(f"{label:<11} {text}")
    return 0 if row.ok and not striker.trouble else 1


def _checked(rank: int, made: Draft) -> int:
    from slurmtrain.errors import UserError

    if not 0 <= rank < made.plan.world:
        raise UserError(f"--rank {rank}: this run has ranks 0 to {made.plan.world - 1}")
    return rank


def _in_a_job(made: Draft, contents: RunContents, doors: Doors, start: Start, striker: Striker, *, quiet: bool) -> str:
    """Submit, follow, strike meanwhile; the state in which the run ended."""
    from slurmtrain.cli.facts import see
    from slurmtrain.cli.progress import follow, until_over
    from slurmtrain.cli.submit import check_submission, submit_contents

    check_submission(made, doors, resume=None, branch=None, root=None)
    jobs = submit_contents(made, contents, doors, start, before=lambda: _put_faults(striker, doors))
    striker.job_id = jobs[0].job_id.partition("_")[0]
    _say(f"Submitted batch job {striker.job_id}\nrun folder {made.run.path}")
    try:
        with striker.at_work():
            if not quiet:
                follow(made.run, doors, made.run.name)
            return until_over(made.run, doors, made.run.name, lambda *_: None).state
    except KeyboardInterrupt:
        _say(f"not followed any longer; the run goes on: slurmtrain cancel {made.run.name} ends it")
        return see(made.run, doors).state.state


def _here(made: Draft, contents: RunContents, doors: Doors, start: Start, striker: Striker, *, quiet: bool) -> str:
    """Without Slurm: the supervisor in the foreground."""
    from slurmtrain.cli.facts import see
    from slurmtrain.cli.publish import publish
    from slurmtrain.resilience.supervisor import supervise
    from slurmtrain.telemetry.history import add_act

    publish(made, contents, doors, start)
    _put_faults(striker, doors)
    with suppress(OSError):
        add_act(made.run, doors.disk, doors.clock.time(), "run", detail=start.note)
    _say(f"run folder {made.run.path}")
    with striker.at_work(), _stdout_to_stderr(when=quiet):
        supervise(made.run, doors.env, foreground=True)
    return see(made.run, doors).state.state


class _stdout_to_stderr:  # noqa: N801 a context
    """What the supervisor prints goes to stderr, and stdout has the row alone."""

    def __init__(self, *, when: bool) -> None:
        self._when, self._before = when, sys.stdout

    def __enter__(self) -> None:
        if self._when:
            sys.stdout = sys.stderr

    def __exit__(self, *_: object) -> None:
        sys.stdout = self._before


def _put_faults(striker: Striker, doors: Doors) -> None:
    from slurmtrain.telemetry.faults import faults_bytes

    if faults := striker.faults:
        doors.disk.write(striker.run.faults_json, faults_bytes(faults))


def _say(text: str) -> None:
    click.echo(text, err=True)
