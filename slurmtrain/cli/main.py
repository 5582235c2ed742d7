"""The `slurmtrain` command: a group whose commands are imported when they are used, and whose help imports none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

import click

from slurmtrain import __version__
from slurmtrain.cli import errors
from slurmtrain.cli.options import examples

COMMANDS = {
    "submit": ("slurmtrain.cli.submit", "Submit a training job to Slurm."),
    "run": ("slurmtrain.cli.run", "Train here: inside an allocation, or on this machine."),
    "status": ("slurmtrain.cli.status", "Show runs, or one run, and what to do next."),
    "logs": ("slurmtrain.cli.logs", "Show the log of a run, a rank or an attempt."),
    "goodput": ("slurmtrain.cli.goodput", "Show where the time and the GPU-hours of a run went."),
    "preflight": ("slurmtrain.cli.preflight", "Check whether a run may start on these nodes."),
    "drill": ("slurmtrain.cli.drill", "Try out what a fault does to a run."),
    "stop": ("slurmtrain.cli.stop", "Save, then end the run; it is not requeued."),
    "cancel": ("slurmtrain.cli.cancel", "Cancel the job of a run at once."),
    "site": ("slurmtrain.cli.site", "List the sites, show one, or the faults of its nodes."),
    "data": ("slurmtrain.cli.data", "Build, inspect and convert tokens."),
    "ckpt": ("slurmtrain.cli.ckpt", "List, check, compare, copy and prune checkpoints."),
    "weights": ("slurmtrain.cli.weights", "Export weights for transformers, or show a model."),
}
"""Name to (module that holds the click object `command`, one line of help)."""


class LazyGroup(click.Group):
    """Commands by name; every way to fail ends in one clear line on stderr and the exit code that belongs to it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(errors.unknown_command(args[0], COMMANDS), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def main(  # type: ignore[override]  # click overloads it by standalone_mode
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        standalone = extra.pop("standalone_mode", True)
        inner = partial(super().main, args, prog_name or self.name, standalone_mode=False, **extra)
        if not standalone:
            return inner()
        sys.exit(errors.guarded(inner))


@click.group(
    "slurmtrain",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("slurmtrain submit job.toml && slurmtrain logs -f job"),
)
@click.version_option(__version__, prog_name="slurmtrain")
def main() -> None:
    """Train large models on Slurm: submit, watch, stop, come back."""


if __name__ == "__main__":
    main()
