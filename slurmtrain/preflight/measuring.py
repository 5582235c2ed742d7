"""The probes of a full preflight: started as one step over the nodes, told what to measure, and ended, whatever happens.

| what happens | what follows |
|---|---|
| the step cannot be started | LaunchError |
| it is over before any probe has reported | LaunchError with the launcher's words: nothing can be said about a node |
| somebody calls | the probes are ended, nothing is concluded |
| all is measured | the conductor hangs up, and the probes leave by themselves; what is left after END_S is ended |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from slurmtrain.clock import Clock
from slurmtrain.errors import ConfigError, LaunchError, one_line
from slurmtrain.preflight.baseline import Baseline, baseline_path, read_baseline
from slurmtrain.preflight.conductor import Conductor, open_conductor
from slurmtrain.preflight.full import measure
from slurmtrain.preflight.ledger import FullResult
from slurmtrain.preflight.probing import probe_command, probe_environment
from slurmtrain.preflight.request import Request
from slurmtrain.steps.launcher import Step, StepLauncher, StepSpec, launcher_log, tail

END_S = 5.0
"""How long probes may take to leave."""

_NO_KILL = ("--no-kill",)
"""srun's: without it Slurm ends the whole step when it gives one of its nodes up."""


def measure_on(  # noqa: PLR0917 doors first, as everywhere
    launcher: StepLauncher,
    base: StepSpec,
    request: Request,
    baseline: Baseline,
    clock: Clock,
    say: Callable[[str], None],
    *,
    called: Callable[[], bool] = lambda: False,
    record: bool = False,
) -> FullResult:
    """Measure the nodes of `base`, in its order. `base`: a step of one task per node there, with the interpreter as first word of its
    command; its program and number of tasks are replaced. Raises LaunchError, ConfigError where this host has no address for the probes,
    OSError.
    """
    tasks = request.probes_per_node
    step: Step | None = None

    def away() -> bool:
        return called() or (step is not None and step.poll() is not None)

    conductor = open_conductor(request.site, base.nodes, tasks, clock, called=away)
    try:
        spec = probe_spec(base, conductor, request)
        step = launcher.start(spec)
        result = measure(conductor, base.nodes, request, baseline, clock, say, called=away, record=record, words=step.words)
    finally:
        conductor.close()
        if step is not None:
            _end(step, called=called)
    if result.interrupted and not called():
        raise LaunchError(_ended_early(step, spec))
    return result


def probe_spec(base: StepSpec, conductor: Conductor, request: Request) -> StepSpec:
    """The step of the probes."""
    tasks = request.probes_per_node
    return replace(
        base,
        command=probe_command(base.command[0], conductor.address, conductor.port),
        tasks_per_node=tasks,
        cpus_per_task=max(1, base.cpus_per_task // tasks),
        output=base.output.with_name("probe-%n.log"),
        mpi=None,
        options=(*base.options, *_NO_KILL) if request.site.launcher == "srun" else base.options,
        environment={**base.environment, **probe_environment(request.site, conductor.token, tasks)},
        name="",
    )


def site_baseline(request: Request, environ: Mapping[str, str], say: Callable[[str], None]) -> Baseline:
    """That of the site; one that cannot be read is said, and peers are all there is to compare with."""
    try:
        return read_baseline(baseline_path(request.site, environ))
    except ConfigError as error:
        say(f"the baseline does not count: {error}")
        return Baseline()


def _end(step: Step, *, called: Callable[[], bool]) -> None:
    """Of probes on a node that hangs nobody waits for an end."""
    if not called():
        step.wait(END_S)
    if step.poll() is None:
        step.abandon()


def _ended_early(step: Step | None, spec: StepSpec) -> str:
    words = [] if step is None else step.words().splitlines()
    words = words or tail(launcher_log(spec)).splitlines() or tail(spec.output.with_name("probe-000.log")).splitlines()
    said = next((line.strip() for line in reversed(words) if line.strip()), "it said nothing")
    return one_line(f"the probes of the preflight have ended too early: {said}: see {spec.output.with_name('probe-*.log')}")
