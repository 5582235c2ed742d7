"""Links that make errors. Counters run since the driver was loaded, and a few of each are normal: a link trains when a switch starts.

| seen | grade | why |
|---|---|---|
| an EVENT grew within the second in which we looked | fail | NVSentinel: fatal; of link_error_recovery it bears 5 a minute |
| NOISE grew by `NOW_PER_S` a second then | fail | NVSentinel's bound of degradation, 10 a second |
| an EVENT `FAIL_PER_DAY` times a day since boot | fail | the link flaps: 10 is infiniband-diags' bound for any span of time |
| an EVENT 10 times in all, and once a day | warn | it may be over: nobody knows when it was |
| symbol errors, 120 an hour since boot | warn | the specification's bit error rate (NVSentinel: 120 an hour), or one burst long ago |

A machine that is up for less than a day counts as up for a day. After a repair `perfquery -R` sets the counters back. Sources: NVIDIA
NVSentinel docs/configuration/nic-health-monitor.md; infiniband-diags, ibqueryerrors' error_thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._ports import Port, name_of, sorted_out
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.infiniband import asked

EVENTS = ("link_downed", "link_error_recovery", "local_link_integrity_errors", "excessive_buffer_overrun_errors")
NOISE = ("symbol_error", "port_rcv_errors")
NOW_PER_S = 10.0
LEAST, WARN_PER_DAY, FAIL_PER_DAY = 10, 1.0, 10.0
SYMBOLS_PER_HOUR = 120.0
_DAY_S = 86400.0
_REPAIR = "have cable and transceiver cleaned or replaced, then set the counters back (`perfquery -R`)"
_WATCH = "see whether it grows (`perfquery`, `mlxlink -m`); have cable and transceiver looked at if it does"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    for port in sorted_out(facts, request).up:
        found = [*_now(port, facts["between_s"])] or [*_since_boot(port, facts["uptime_s"])]
        yield from found


def _now(port: Port, between_s: float) -> Iterator[Trouble]:
    for name, count in port["grown"].items():
        if name in EVENTS or (name in NOISE and count >= NOW_PER_S * between_s):
            yield Trouble("fail", f"{name} grew by {count} in {between_s:.0f} s", _REPAIR, name_of(port))


def _since_boot(port: Port, uptime_s: float) -> Iterator[Trouble]:
    days = max(uptime_s / _DAY_S, 1.0)
    for name in EVENTS:
        count = port["counters"].get(name, 0)
        if count >= LEAST and count / days >= WARN_PER_DAY:
            bad = count / days >= FAIL_PER_DAY
            yield Trouble("fail" if bad else "warn", f"{name} is {count} in {days:.0f} d", _REPAIR if bad else _WATCH, name_of(port))
    count = port["counters"].get("symbol_error", 0)
    if count / (24 * days) > SYMBOLS_PER_HOUR:
        yield Trouble("warn", f"symbol_error is {count} in {days:.0f} d", _WATCH, name_of(port))


CHECK = Check("ib-counters", "infiniband", "the error counters of the ports do not grow", judge, wanted=asked)
