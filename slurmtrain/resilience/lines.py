"""What the supervisor prints: one line for each event, as people read it. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from slurmtrain.telemetry.events import Event
from slurmtrain.units import counted, format_count, format_duration, format_size


def stamp(t: float) -> str:
    """Local date and time to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))


def number(value: Any, form: str) -> str:
    """A number in the form; what is not one (NaN travels as text) as it is."""
    return format(value, form) if isinstance(value, (int, float)) else str(value)


def tokens_per_s(fields: Mapping[str, Any], tokens_per_step: int) -> float | None:
    """Of one step event: its own word, else from the tokens of a step (events of the first release)."""
    told, step_s = fields.get("tokens_per_s"), fields.get("step_s")
    if isinstance(told, (int, float)):
        return float(told)
    return tokens_per_step / step_s if isinstance(step_s, (int, float)) and step_s > 0 else None


def event_line(event: Event, *, steps: int, tokens_per_step: int) -> str | None:
    """The line of an event; None for events that people need not see (other nodes' copies)."""
    make = _LINES.get(event.kind)
    if make is None:
        return None
    return make(event, steps, tokens_per_step)


def _step(event: Event, steps: int, tokens_per_step: int) -> str:
    f = event.fields
    speed = tokens_per_s(f, tokens_per_step)
    forms = (("loss", "loss", ".4f"), ("grad", "grad_norm", ".3f"), ("lr", "lr", ".2e"))
    shown = [f"{label} {number(f[name], form)}" for label, name, form in forms if name in f]
    shown += [f"{format_count(speed)} tokens/s"] if speed else []
    shown += [f"MFU {mfu:.1%}"] if isinstance(mfu := f.get("mfu"), float) else []
    shown += [f"{number(f['step_s'], '.3f')} s"] if "step_s" in f else []
    of = steps or f.get("steps")
    return "  ".join([f"step {f.get('step')}{f'/{of}' if of else ''}", *shown, *(["again"] if f.get("replay") else [])])


def _start(event: Event, _steps: int, _tokens: int) -> str:
    resumed = event.fields.get("resumed_from")
    up = "1 rank is up" if (world := event.fields.get("world")) == 1 else f"{world} ranks are up"
    return f"{up}, " + ("from the beginning" if resumed is None else f"resumed from step {resumed}")


def _save(event: Event, _steps: int, _tokens: int) -> str:
    f = event.fields
    size, stall, whole = f.get("bytes"), f.get("seconds"), f.get("write_s")
    behind = isinstance(stall, float) and isinstance(whole, float) and stall < 0.9 * whole  # written while training went on
    shown = [f"in {number(whole if behind else stall, '.2f')} s"] if stall is not None else []
    shown += [format_size(size)] if isinstance(size, (int, float)) else []
    shown += [f"training stood still for {number(stall, '.2f')} s"] if behind else []
    where = " on the nodes' own disks" if f.get("tier") == "local" else ""
    told = f"checkpoint of step {f.get('step')}{where} {', '.join(shown)}".rstrip()
    return "; ".join([told, *map(str, f.get("notes") or [])])


def _interval(event: Event, _steps: int, _tokens: int) -> str:
    f = event.fields
    seconds, mtbf = f.get("seconds"), f.get("mtbf_s")
    if not isinstance(seconds, (int, float)) or not isinstance(mtbf, (int, float)):
        return "the interval between checkpoints was worked out anew"
    why = f"a save takes {number(f.get('stall_s'), '.3g')} s, {counted(int(f.get('nodes', 0)), 'node')} meet a failure in {_span(mtbf)}"
    seen = f"{f.get('failures')} seen in {number(f.get('node_days'), '.3g')} node-days"
    return f"checkpoints every {_span(seconds)} from here on: {why} ({seen})"


def _span(seconds: float) -> str:
    """A time with three digits, in the unit that reads best.

    >>> _span(1.417), _span(2412.3), _span(32_000.0), _span(414_000.0)
    ('1.42 s', '40.2 min', '8.89 h', '4.79 days')
    """
    unit, size = next((u, s) for u, s in (("days", 86_400), ("h", 3600), ("min", 60), ("s", 0)) if seconds >= 2 * s)
    return f"{seconds / (size or 1):.3g} {unit}"


def _save_failed(event: Event, _steps: int, _tokens: int) -> str:
    durable = event.fields.get("durable")
    newest = "there is none yet" if durable is None else f"the newest is that of step {durable}"
    return f"{event.fields.get('error')}; {newest}"


def _load(event: Event, _steps: int, _tokens: int) -> str | None:
    f = event.fields
    passed = f.get("passed_over") or []
    why = "; ".join(f"step {step}: {reason}" for step, reason in passed)
    whose = f"of step {f.get('step')}" if not f.get("origin") else f"that this branch begins with, {f.get('origin')},"
    where = " from the nodes' own disks" if f.get("tier") == "local" else ""
    loaded = f"loaded the checkpoint {whose}{where} in {number(f.get('seconds'), '.2f')} s"
    return loaded + (f"; passed over {why}" if why else "")


def _aside(event: Event, _steps: int, _tokens: int) -> str:
    return f"set aside the checkpoint of step {event.fields.get('step')}: {event.fields.get('why')}"


def _change(event: Event, _steps: int, _tokens: int) -> str | None:
    keys = event.fields.get("keys")
    if not isinstance(keys, Mapping):
        return None
    told = [f"{key}: {pair[0]} -> {pair[1]}" for key, pair in keys.items() if isinstance(pair, list) and len(pair) == 2]
    return f"otherwise from step {event.fields.get('step')} on: {', '.join(told)}"


def _stop(event: Event, _steps: int, _tokens: int) -> str:
    return f"stopped after step {event.fields.get('step')} ({event.fields.get('reason')})"


def _error(event: Event, _steps: int, _tokens: int) -> str:
    return f"rank {event.rank}: {event.fields.get('error')}"


def _finish(event: Event, _steps: int, _tokens: int) -> str:
    early = ": the target was reached" if event.fields.get("reason") == "target" else ""
    return f"finished at step {event.fields.get('step')}{early}"


def _eval(event: Event, _steps: int, _tokens: int) -> str:
    f = event.fields
    name, size = f.get("set"), f.get("tokens")
    over = f" over {format_count(size)} tokens" if isinstance(size, (int, float)) else ""
    took = f" in {number(f['seconds'], '.2f')} s" if "seconds" in f else ""
    return f"evaluation{f' of {name}' if name else ''} at step {f.get('step')}: loss {number(f.get('eval_loss'), '.4f')}{over}{took}"


def _skip(event: Event, _steps: int, _tokens: int) -> str:
    f = event.fields
    if f.get("cause") in {"nonfinite", "spike"}:
        return f"{f.get('why')}; skipped, {f.get('in_row')} of {f.get('skip_steps')} in a row, {f.get('skipped')} in all"
    scale, after = number(f.get("scale"), ".6g"), number(f.get("next_scale"), ".6g")
    return f"step {f.get('step')} was skipped: gradients overflowed at loss scale {scale}; {after} from here on"


def _target(event: Event, _steps: int, _tokens: int) -> str:
    f = event.fields
    seconds, size = f.get("elapsed_s"), f.get("tokens")
    took = [f"{format_count(size)} tokens"] if isinstance(size, (int, float)) else []
    took += [f"{format_duration(seconds)} since the start"] if isinstance(seconds, (int, float)) else []
    took += [f"{number(f.get('gpu_hours'), '.4g')} GPU-hours"]
    reached = f"target reached at step {f.get('step')}: {f.get('metric')} {number(f.get('value'), '.4f')}"
    return f"{reached} is below {number(f.get('below'), 'g')}, after {', '.join(took)}"


def _rollback(event: Event, _steps: int, _tokens: int) -> str:
    f = event.fields
    changed = f.get("changed") or {}
    told = [f"learning rate x {number(changed.get('lr_factor'), 'g')} up to step {changed.get('until')}"] if "lr_factor" in changed else []
    if isinstance(span := changed.get("left_out"), list) and len(span) == 2:
        told.append(f"samples {span[0]} to {span[1]} left out")
    back = f"{f.get('why')}; back to step {f.get('to')}, rollback {f.get('number')} of {f.get('rollbacks')}"
    return f"{back}: {', '.join(told)}" if told else back


def _corruption(event: Event, _steps: int, _tokens: int) -> str:
    f = event.fields
    suspects = [one for one in f.get("suspects") or [] if isinstance(one, Mapping)]
    names = [f"rank {one.get('rank')} on {one.get('node')}, GPU {one.get('gpu')}" for one in suspects]
    doubt = "" if f.get("certain") else " (one of them)"
    step = f.get("step")
    what = f"replicas differ after step {step}: {'; '.join(names)}{doubt}" if names else f"replicas are equal at step {step}"
    if f.get("finding"):
        return f"silent corruption: {what}; {f.get('finding')}: {f.get('why')}"
    again = f.get("again") or [None, None]
    how = "on the same nodes" if f.get("stage") == "repeat" else "with a node exchanged"
    return f"silent corruption: {what}; steps {again[0]} to {again[1]} are run again {how}"


def _note(event: Event, _steps: int, _tokens: int) -> str:
    return str(event.fields.get("text"))


_LINES: Mapping[str, Callable[[Event, int, int], str | None]] = {
    "step": _step,
    "start": _start,
    "save": _save,
    "interval": _interval,
    "save_failed": _save_failed,
    "load": _load,
    "aside": _aside,
    "change": _change,
    "stop": _stop,
    "error": _error,
    "finish": _finish,
    "eval": _eval,
    "skip": _skip,
    "rollback": _rollback,
    "corruption": _corruption,
    "target": _target,
    "note": _note,
}
