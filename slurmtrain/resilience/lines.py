"""What the supervisor prints: one line for each event, as people read it. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from slurmtrain.telemetry.events import Event
from slurmtrain.units import format_count, format_size


def stamp(t: float) -> str:
    """Local date and time to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))


def number(value: Any, form: str) -> str:
    """A number in the form; what is not one (NaN travels as text) as it is."""
    return format(value, form) if isinstance(value, (int, float)) else str(value)


def tokens_per_s(fields: Mapping[str, Any], tokens_per_step: int) -> float | None:
    """Of one step event."""
    step_s = fields.get("step_s")
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
    shown = [f"loss {number(f.get('loss'), '.4f')}", f"grad {number(f.get('grad_norm'), '.3f')}", f"lr {number(f.get('lr'), '.2e')}"]
    shown += [f"{format_count(speed)} tokens/s"] if speed else []
    return f"step {f.get('step')}/{steps}  " + "  ".join([*shown, f"{number(f.get('step_s'), '.3f')} s"])


def _start(event: Event, _steps: int, _tokens: int) -> str:
    resumed = event.fields.get("resumed_from")
    return f"{event.fields.get('world')} ranks are up, " + (f"resumed from step {resumed}" if resumed else "from the beginning")


def _save(event: Event, _steps: int, _tokens: int) -> str:
    f = event.fields
    size = f.get("bytes")
    shown = f", {format_size(size)}" if isinstance(size, (int, float)) else ""
    return f"checkpoint of step {f.get('step')} in {number(f.get('seconds'), '.2f')} s{shown}"


def _load(event: Event, _steps: int, _tokens: int) -> str | None:
    passed = event.fields.get("passed_over") or []
    why = "; ".join(f"step {step}: {reason}" for step, reason in passed)
    loaded = f"loaded the checkpoint of step {event.fields.get('step')} in {number(event.fields.get('seconds'), '.2f')} s"
    return loaded + (f"; passed over {why}" if why else "")


def _stop(event: Event, _steps: int, _tokens: int) -> str:
    return f"stopped after step {event.fields.get('step')} ({event.fields.get('reason')})"


def _error(event: Event, _steps: int, _tokens: int) -> str:
    return f"rank {event.rank}: {event.fields.get('error')}"


def _finish(event: Event, _steps: int, _tokens: int) -> str:
    return f"finished at step {event.fields.get('step')}"


def _eval(event: Event, _steps: int, _tokens: int) -> str:
    return f"evaluation at step {event.fields.get('step')}: loss {number(event.fields.get('eval_loss'), '.4f')}"


_LINES: Mapping[str, Callable[[Event, int, int], str | None]] = {
    "step": _step,
    "start": _start,
    "save": _save,
    "load": _load,
    "stop": _stop,
    "error": _error,
    "finish": _finish,
    "eval": _eval,
}
