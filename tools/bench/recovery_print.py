"""Lines of the table."""

from __future__ import annotations

from recovery_compare import Side

from slurmtrain.report.drilled import Row, seconds

_TIMES = f"{'detect':>8} {'new step':>9} {'cold':>8} {'lost':>5} {'loss':>5} {'left':>5}  drained"
HEAD = f"{'kind':<22} {'ok':<4} {'detected':<18} {'went':<9} {_TIMES}"


def line_of(row: Row) -> str:
    """A row."""
    loss = {None: "-", True: "=", False: "other"}[row.loss_equal]
    drained = "-" if row.drained is None else " ".join(row.drained) or "no"
    times = f"{seconds(row.detect_s):>8} {seconds(row.first_step_s):>9} {seconds(row.cold_start_s):>8}"
    left = "-" if row.left is None else str(row.left)
    head = f"{row.kind:<22} {'ok' if row.ok else 'NOT':<4} {row.detected:<18} {row.went:<9}"
    return f"{head} {times} {row.steps_lost:>5} {loss:>5} {left:>5}  {drained}{f'  ({row.why})' if row.why else ''}"


def compared_line(side: Side) -> str:
    """A row of the comparison."""
    times = f"new step {seconds(side.first_step_s)}, cold start {seconds(side.cold_start_s)}, {side.steps_lost} steps lost"
    equal = {None: "", True: ", loss =", False: ", another loss"}[side.loss_equal]
    return f"{side.name:<40} {times}{equal}{f'  ({side.why})' if side.why else ''}"
