"""The lines of slurm-<jobid>.out: one for each event, with the numbers that people look for."""

from __future__ import annotations

import pytest

from slurmtrain.resilience.lines import event_line
from slurmtrain.telemetry.events import Event


def line(kind: str, **fields: object) -> str | None:
    return event_line(Event(kind, 0.0, 1, 0, fields), steps=300, tokens_per_step=512)


@pytest.mark.parametrize(
    ("kind", "fields", "parts"),
    [
        (
            "step",
            {"step": 57, "loss": 4.12345, "grad_norm": 1.5, "lr": 3e-4, "tokens": 1, "step_s": 0.25},
            ["step 57/300", "loss 4.1235", "grad 1.500", "lr 3.00e-04", "2.05k tokens/s", "0.250 s"],
        ),
        ("step", {"step": 1, "loss": "nan", "grad_norm": "inf", "lr": 0.0, "step_s": 0.0}, ["loss nan", "grad inf"]),
        ("start", {"world": 8, "layout": {}, "resumed_from": 50}, ["8 ranks", "resumed from step 50"]),
        ("start", {"world": 8, "layout": {}, "resumed_from": 0}, ["8 ranks", "resumed from step 0"]),
        ("start", {"world": 8, "layout": {}, "resumed_from": None}, ["8 ranks", "from the beginning"]),
        ("start", {"world": 1, "layout": {}, "resumed_from": None}, ["1 rank is up, from the beginning"]),
        ("save", {"step": 100, "seconds": 1.234, "bytes": 4 << 20}, ["step 100", "1.23 s", "4.0 MiB"]),
        ("save", {"step": 100, "seconds": 1.2, "write_s": 1.2, "bytes": 9, "notes": ["x"]}, ["checkpoint of step 100 in 1.20 s, 9 B; x"]),
        (
            "save",
            {"step": 100, "seconds": 0.05, "write_s": 2.5, "bytes": 4 << 20},
            ["checkpoint of step 100 in 2.50 s, 4.0 MiB, training stood still for 0.05 s"],
        ),
        (
            "save_failed",
            {"step": 100, "error": "checkpoint of step 100 not saved: full", "durable": 50},
            ["checkpoint of step 100 not saved: full; the newest is that of step 50"],
        ),
        ("save_failed", {"step": 100, "error": "x", "durable": None}, ["x; there is none yet"]),
        (
            "skip",
            {"step": 8, "cause": "nonfinite", "why": "step 8: loss nan", "in_row": 1, "skip_steps": 2, "skipped": 5},
            ["step 8: loss nan; skipped, 1 of 2 in a row, 5 in all"],
        ),
        (
            "rollback",
            {
                "step": 9,
                "to": 6,
                "cause": "spike",
                "why": "step 9: loss 80",
                "changed": {"lr_factor": 0.5, "until": 106, "left_out": [48, 72]},
                "number": 1,
                "rollbacks": 3,
            },
            ["step 9: loss 80; back to step 6, rollback 1 of 3: learning rate x 0.5 up to step 106, samples 48 to 72 left out"],
        ),
        ("rollback", {"to": 6, "why": "x", "changed": {}, "number": 1, "rollbacks": 3}, ["x; back to step 6, rollback 1 of 3"]),
        (
            "corruption",
            {"step": 9, "suspects": [{"rank": 2, "node": "n3", "gpu": 1}], "certain": True, "stage": "repeat", "again": [7, 9]},
            ["replicas differ after step 9: rank 2 on n3, GPU 1; steps 7 to 9 are run again on the same nodes"],
        ),
        (
            "corruption",
            {"step": 9, "suspects": [], "certain": True, "stage": "closed", "finding": "transient", "why": "all equal"},
            ["replicas are equal at step 9; transient: all equal"],
        ),
        ("load", {"step": 50, "seconds": 0.5, "passed_over": [[60, "is short"]]}, ["step 50", "passed over step 60: is short"]),
        (
            "load",
            {"step": 50, "seconds": 0.5, "passed_over": [], "origin": "/runs/a at step 50"},
            ["loaded the checkpoint that this branch begins with, /runs/a at step 50, in 0.50 s"],
        ),
        ("load", {"step": 50, "seconds": 0.5, "tier": "local"}, ["loaded the checkpoint of step 50 from the nodes' own disks in 0.50 s"]),
        ("save", {"step": 50, "seconds": 0.5, "bytes": 9, "tier": "local"}, ["checkpoint of step 50 on the nodes' own disks in 0.50 s"]),
        (
            "interval",
            {"seconds": 2412.3, "stall_s": 6.21, "mtbf_s": 414_000.0, "nodes": 32, "failures": 1, "node_days": 12.25},
            [
                (
                    "checkpoints every 40.2 min from here on: a save takes 6.21 s, "
                    "32 nodes meet a failure in 4.79 days (1 seen in 12.2 node-days)"
                )
            ],
        ),
        ("aside", {"step": 60, "why": "rank-00000.h5: cut"}, ["set aside the checkpoint of step 60: rank-00000.h5: cut"]),
        ("change", {"step": 50, "keys": {"optimizer.lr": [1e-3, 5e-4]}}, ["otherwise from step 50 on: optimizer.lr: 0.001 -> 0.0005"]),
        ("stop", {"step": 57, "reason": "requeue"}, ["step 57", "requeue"]),
        ("error", {"error": "ValueError: x"}, ["rank 0", "ValueError: x"]),
        ("finish", {"step": 300}, ["finished at step 300"]),
        ("finish", {"step": 120, "reason": "target"}, ["finished at step 120: the target was reached"]),
        ("step", {"step": 5, "loss": 1.0, "step_s": 2.0, "tokens_per_s": 4e6, "mfu": 0.4128}, ["4.00M tokens/s  MFU 41.3%  2.000 s"]),
        ("eval", {"step": 10, "eval_loss": 2.5}, ["evaluation at step 10: loss 2.5000"]),
        (
            "eval",
            {"step": 10, "set": "held-out", "eval_loss": 2.5, "tokens": 40960, "seconds": 1.5},
            ["evaluation of held-out at step 10: loss 2.5000 over 41.0k tokens in 1.50 s"],
        ),
        ("skip", {"step": 7, "scale": 65536.0, "next_scale": 32768.0}, ["step 7 was skipped", "at loss scale 65536; 32768 from here on"]),
        (
            "target",
            {"step": 90, "metric": "held-out", "below": 2.5, "value": 2.4999, "tokens": 5_000_000, "elapsed_s": 3700.0, "gpu_hours": 8.2},
            ["target reached at step 90: held-out 2.4999 is below 2.5, after 5.00M tokens, 01:01:40 since the start, 8.2 GPU-hours"],
        ),
        ("note", {"text": "no room on n1"}, ["no room on n1"]),
    ],
)
def test_each_event_is_one_line(kind, fields, parts):
    said = line(kind, **fields)
    assert said is not None
    assert "\n" not in said
    assert all(part in said for part in parts), said


def test_events_of_a_newer_release_are_passed_over():
    assert line("heartbeat", step=3) is None


def test_missing_fields_do_not_hurt():
    for kind in ("step", "start", "save", "load", "stop", "error", "finish", "eval", "skip", "target", "note"):
        assert line(kind)
