"""`slurmtrain ckpt`: checkpoints listed, shown, checked, compared, copied, pruned, asked for and converted."""

from __future__ import annotations

import click

from slurmtrain.cli import ckpt_convert, ckpt_copy, ckpt_diff, ckpt_list, ckpt_now, ckpt_prune, ckpt_show, ckpt_verify
from slurmtrain.cli.options import examples


@click.group(
    epilog=examples("slurmtrain ckpt list my-run", "slurmtrain ckpt verify my-run@300", "slurmtrain ckpt diff my-run@300 other@300")
)
def command() -> None:
    """List, check, compare, copy and prune the checkpoints of runs; convert them."""


_OURS = (ckpt_list, ckpt_show, ckpt_verify, ckpt_diff, ckpt_prune, ckpt_copy, ckpt_now)
for _one in (*(module.command for module in _OURS), *ckpt_convert.COMMANDS):
    command.add_command(_one)
