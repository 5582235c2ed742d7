"""`slurmtrain preflight`: may a run start on these nodes? On any allocation, or on this node by itself."""

from __future__ import annotations

import contextlib
import json
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.doors import Doors, doors_of
from slurmtrain.cli.errors import system_words
from slurmtrain.cli.options import examples, root_option
from slurmtrain.cli.paths import UserPath
from slurmtrain.errors import SlurmtrainError

if TYPE_CHECKING:
    from slurmtrain.cli.preflight_target import Target
    from slurmtrain.preflight.history import Level
    from slurmtrain.preflight.listing import Listed
    from slurmtrain.preflight.report import Report


class PreflightCommand(click.Command):
    """`history` as first word is a command of its own; with --nagios whatever goes wrong is Nagios' UNKNOWN, code 3."""

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> click.Context:
        if args and args[0] == "history":
            from slurmtrain.cli.preflight_history import command as history

            return history.make_context(f"{info_name} history", args[1:], parent=parent, **extra)
        try:
            return super().make_context(info_name, list(args), parent=parent, **extra)
        except click.UsageError as error:
            if "--nagios" not in args:
                raise
            raise _unknown(error.format_message()) from None

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.params["nagios"]:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except click.ClickException as error:
            raise _unknown(error.format_message()) from None
        except SlurmtrainError as error:
            raise _unknown(str(error)) from None
        except OSError as error:
            raise _unknown(system_words(error)) from None
        except Exception as error:  # noqa: BLE001 the last stand of a plugin: it has a line and a code for everything
            traceback.print_exception(error)
            raise _unknown(f"a fault of slurmtrain itself, please report it: {type(error).__name__}: {error}") from None


@click.command(
    cls=PreflightCommand,
    context_settings={"max_content_width": 110},
    epilog=examples(
        "salloc -N 4 --exclusive slurmtrain preflight",
        "salloc -N 4 --exclusive slurmtrain preflight --full my-run",
        "slurmtrain preflight --here --site mycluster --nagios",
        "slurmtrain preflight history --since 7d",
    ),
)
@click.argument("word", metavar="[RUN|JOB.toml]", required=False)
@click.option("--site", default=None, metavar="SITE", help="Site, by name or file [default: $SLURMTRAIN_SITE, then the cluster's].")
@click.option("--quick", "level", flag_value="quick", help="Every node's health, in seconds [default, unless the job says full].")
@click.option("--full", "level", flag_value="full", help="What devices, links and storage reach is measured, too; a bad node is found.")
@click.option("-w", "--nodes", default=None, metavar="LIST", help="These nodes of the allocation alone, such as n[1-4,7].")
@click.option("--only", default=None, metavar="CHECK,...", help="These checks alone; --list names them.")
@click.option("--record", is_flag=True, help="Measure (--full), and write it down as what healthy nodes of this site reach.")
@click.option("--here", is_flag=True, help="This node alone, without Slurm: for HealthCheckProgram, prolog, epilog.")
@click.option("--fresh", is_flag=True, help="Look also where the node was found fit less than preflight.cache_s ago.")
@click.option("--list", "listed", is_flag=True, help="All checks, one line each, and whether they are made at this site.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--nagios", is_flag=True, help="One line and the exit code of a Nagios plugin: 0 OK, 1 warning, 2 critical, 3 unknown.")
@click.option("--prometheus", type=UserPath(), default=None, metavar="FILE", help="Write Prometheus' text there, too.")
@root_option
@click.pass_context
def command(ctx: click.Context, /, **said: Any) -> None:
    """May a run start on these nodes? Inside an allocation (salloc, sbatch), or on this node alone (--here).

    With RUN or a job file also what that run needs is looked at. Exit code 0: all nodes may start; 1: not all; 2: a mistake on the
    command line. No node is ever drained, and one that is drained is left alone. `slurmtrain preflight history` shows what was found.
    """
    from slurmtrain.cli.preflight_target import target_of

    doors = doors_of(ctx)
    only = _checked(ctx, said)
    target = target_of(said["word"], said["site"], said["root"], doors, here=said["here"])
    _warn(target)
    if said["listed"]:
        _list(target, doors, said)
        return
    _check_only(only, target, doors, said)
    history = target.history(doors.env)
    made = _here(target, doors, only, said, history) if said["here"] else _ask(target, doors, only, said)
    if history is not None:
        _remember(made, history, target, doors, by="here" if said["here"] else "command")
    if said["prometheus"] is not None:
        _publish(made, said["prometheus"], doors)
    ctx.exit(_tell(made, said))


def _warn(target: Target) -> None:
    """Of names in the site file that no check has: whoever wrote them takes them for left out, and they are not."""
    from slurmtrain.preflight.listing import misnamed

    for key, wrong in misnamed(target.site).items():
        click.echo(f"slurmtrain: site {target.site.name}: {key}: no check {', '.join(map(repr, wrong))}: see --list", err=True)


def _checked(ctx: click.Context, said: dict[str, Any]) -> tuple[str, ...]:
    """The names of --only. Raises UsageError for what does not go together."""
    from slurmtrain.config.keys import meant, near_words
    from slurmtrain.preflight.listing import names, unknown_names

    if said["as_json"] and said["nagios"]:
        raise click.UsageError("--json and --nagios: give one of them", ctx)
    if said["record"] and said["level"] == "quick":
        raise click.UsageError("--record writes down what --full measures: leave --quick out", ctx)
    if said["prometheus"] is not None and said["prometheus"].suffix != ".prom":
        raise click.UsageError(f"--prometheus {said['prometheus']}: the collector reads files alone whose name ends in .prom", ctx)
    if said["here"]:
        _check_here(ctx, said)
    only = tuple(name.strip() for name in (said["only"] or "").split(",") if name.strip())
    if said["only"] is not None and not only:
        raise click.UsageError("--only: names no check: see --list", ctx)
    if unknown := unknown_names(only):
        near = meant(near_words(unknown[0], list(names())))
        raise click.UsageError(f"--only: no check {unknown[0]!r}{near or ':'} see --list", ctx)
    return only


def _check_here(ctx: click.Context, said: dict[str, Any]) -> None:
    given = [name for name in ("nodes", "record") if said[name]] + (["full"] if said["level"] == "full" else [])
    if given:
        raise click.UsageError(f"--here looks at this node alone, and measures nothing: leave --{given[0]} out", ctx)


def _check_only(only: tuple[str, ...], target: Target, doors: Doors, said: dict[str, Any]) -> None:
    """What is asked for alone must be looked at: a check that is not made would have all nodes pass. Raises UserError."""
    from slurmtrain.errors import UserError
    from slurmtrain.preflight.listing import MEASURED, OF_ALL

    for one in _listing(target, doors, here=said["here"]):
        if one.name in only and not one.made:
            raise UserError(f"--only: {one.name} is not made: {one.why}; see --list")
        if one.name in only and said["here"] and one.name in {*MEASURED, *OF_ALL}:
            raise UserError(f"--only: {one.name} takes more than one node: leave --here out")
        if one.name in only and one.name in MEASURED and said["level"] == "quick":
            raise UserError(f"--only: {one.name} is measured, and --quick measures nothing: leave --quick out")


def _listing(target: Target, doors: Doors, *, here: bool) -> list[Listed]:
    from slurmtrain.cli.preflight_target import request_of
    from slurmtrain.preflight.listing import listing

    shared = () if here and target.setup is None else (target.root or Path("/"),)
    return listing(request_of(target, doors.env, doors.clock.time(), shared=shared))


def _list(target: Target, doors: Doors, said: dict[str, Any]) -> None:
    from slurmtrain.cli.preflight_show import show_list

    show_list(_listing(target, doors, here=said["here"]), as_json=said["as_json"])


def _here(target: Target, doors: Doors, only: tuple[str, ...], said: dict[str, Any], history: Path | None) -> Report:
    from slurmtrain.cli.preflight_here import here

    return here(target, doors, only=only, fresh=said["fresh"], history=history)


def _ask(target: Target, doors: Doors, only: tuple[str, ...], said: dict[str, Any]) -> Report:
    """Raises SlurmtrainError, OSError."""
    from dataclasses import replace

    from slurmtrain.cli.preflight_ask import Asking, allocation_of, folder_for, launcher_of, nodes_of, report
    from slurmtrain.preflight.baseline import read_baseline, record_path
    from slurmtrain.preflight.listing import MEASURED

    measured = said["record"] or any(name in MEASURED for name in only)
    level: Level = "full" if measured else "quick" if only else said["level"] or target.level
    allocation = allocation_of(target, doors)
    if said["record"]:
        read_baseline(record_path(target.site, doors.env))  # where it goes, and that it fits there, is known before anything is measured
    nodes = nodes_of(allocation, said["nodes"])
    with folder_for(target, allocation, doors) as folder:
        asking = Asking(target, doors, allocation, launcher_of(target, doors), level, only, folder, _say(said), record=said["record"])
        made = report(asking, nodes)
    if made.ok:
        folder.remove()
        return made
    return replace(made, folder=str(folder.path))


def _say(said: dict[str, Any]) -> Any:
    """How what goes on is told: on stderr, to people alone."""
    return (lambda _: None) if said["as_json"] or said["nagios"] else (lambda text: click.echo(text, err=True))


def _remember(made: Report, path: Path, target: Target, doors: Doors, *, by: str) -> None:
    """Into the history; that it cannot be written keeps nobody from anything."""
    from slurmtrain.cli.runs import job_of
    from slurmtrain.preflight.history import append

    try:
        append(path, doors.disk, made.entries(by=by, job_id=job_of(doors.env), run=target.run_name))
    except OSError as error:
        click.echo(f"slurmtrain: the history cannot be written: {path}: {error.strerror}", err=True)


def _publish(made: Report, path: Path, doors: Doors) -> None:
    """For Prometheus; that it cannot be written takes nobody's verdict away."""
    from slurmtrain.preflight.prometheus import exposition

    try:
        doors.disk.write(path, exposition(made).encode())
    except OSError as error:
        words = f"{path}: {error.strerror}: make its folder, writable for this user, or name another by --prometheus"
        click.echo(f"slurmtrain: Prometheus' file cannot be written: {words}", err=True)


def _tell(made: Report, said: dict[str, Any]) -> int:
    """The exit code."""
    if said["nagios"]:
        from slurmtrain.preflight.nagios import plugin_line

        code, line = plugin_line(made)
        click.echo(line)
        return code
    if said["as_json"]:
        click.echo(json.dumps(made.to_json()))
    else:
        from slurmtrain.cli.preflight_show import show

        show(made)
    return 0 if made.ok else 1


def _unknown(text: str) -> click.exceptions.Exit:
    from slurmtrain.preflight.nagios import UNKNOWN, trouble_line

    with contextlib.suppress(OSError):  # nobody hears it: the code is all that is left to say it by
        click.echo(trouble_line(text))
    return click.exceptions.Exit(UNKNOWN)
