"""`slurmtrain ckpt`: checkpoints listed, shown, checked, compared, copied, pruned, asked for and converted."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click

from slurmtrain.cli import ckpt_copy, ckpt_diff, ckpt_list, ckpt_now, ckpt_prune, ckpt_show, ckpt_verify
from slurmtrain.cli.options import examples

_CONVERT = "slurmtrain.cli.ckpt_convert"


@click.group(
    epilog=examples("slurmtrain ckpt list my-run", "slurmtrain ckpt verify my-run@300", "slurmtrain ckpt diff my-run@300 other@300")
)
def command() -> None:
    """List, check, compare, copy and prune the checkpoints of runs; convert them."""


for _module in (ckpt_list, ckpt_show, ckpt_verify, ckpt_diff, ckpt_prune, ckpt_copy, ckpt_now):
    command.add_command(_module.command)
if find_spec(_CONVERT) is not None:
    for _one in import_module(_CONVERT).COMMANDS:
        command.add_command(_one)
