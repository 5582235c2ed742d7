"""Where a checkpoint that a command makes goes: into a run, or a folder of its own; and whether there is room."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurmtrain.cli.doors import Doors

if TYPE_CHECKING:
    from slurmtrain.checkpoint.making import Kinds
    from slurmtrain.config.job import JobConfig
    from slurmtrain.rundir import RunDir


@dataclass(frozen=True)
class Place:
    """The folder that the checkpoint will be, and the run that it then belongs to. `job`: job.json of a run that is made with it."""

    out: Path
    run: RunDir | None
    job: bytes | None = None

    @property
    def word(self) -> str:
        """DEST again, as an absolute path."""
        return str(self.run.path if self.run is not None else self.out.parent)


def place_of(dest: str, step: int, root: Path | None, doors: Doors) -> Place:
    """A run where DEST names one, else DEST/step-NNNNNNNN. Raises UserError for a run that trains, one that has such a step, and a word
    that is neither.
    """
    from slurmtrain.checkpoint.newfolder import check_out
    from slurmtrain.cli.facts import locate, see
    from slurmtrain.cli.runs import is_run
    from slurmtrain.errors import ConfigError, RunNotFoundError, UserError
    from slurmtrain.rundir import RunDir, checkpoint_step

    if not dest:
        raise UserError("an empty word is no place for a checkpoint: is a variable not set? `.` means this folder")
    path = Path(dest).expanduser().absolute()
    run = RunDir(path) if is_run(path) else None
    if run is None and "/" not in dest:
        try:
            run = locate(dest, root, doors)
        except (RunNotFoundError, ConfigError) as error:
            if not path.is_dir():
                raise UserError(f"{dest}: no such run, and no such folder: write ./{dest} to make one") from error
    if run is None:
        if checkpoint_step(path.name) is not None:
            raise UserError(f"{dest}: name the folder that the checkpoint shall lie in: it is {path.parent.name}/step-{step:08d} then")
        place = Place(path / RunDir(path).checkpoint(step).name, None)
    else:
        if see(run, doors).state.state == "RUNNING":
            raise UserError(
                f"run {run.name} trains: a checkpoint from elsewhere would be taken for its own: stop it first, or name a folder"
            )
        place = Place(run.checkpoint(step), run)
    check_out(place.out)
    return place


def run_of(dest: str, step: int, job: JobConfig | None, root: Path | None, doors: Doors, *, resumes: bool) -> Place:
    """A run where DEST names one, else the new folder of a run with this job. `resumes`: a run could go on from the checkpoint.

    Raises UserError as `place_of`, for a folder that is there, where `job` is not known, and for a run that could not go on.
    """
    from slurmtrain.atomic import to_json
    from slurmtrain.checkpoint.newfolder import check_out
    from slurmtrain.errors import UserError
    from slurmtrain.rundir import RunDir

    place = place_of(dest, step, root, doors)
    if place.run is not None:
        if not resumes:
            fault = "it would go on from its newest checkpoint, and this has weights alone"
            raise UserError(f'run {place.run.name}: {fault}: name a new folder (model.weights = "run:FOLDER" then starts runs from it)')
        return place
    run = RunDir(place.out.parent)
    check_out(run.path)
    if job is None:
        raise UserError(f"{dest}: what would be the job of this new run? give --job, or a run that is there")
    return Place(run.checkpoint(step), run, to_json(job.model_dump(mode="json", exclude_none=True)))


def check_room(out: Path, size: int, files: int, run: RunDir | None, doors: Doors) -> None:
    """Raises UserError where `out` has no room for so many bytes and files. `run`: whose site's quotas are asked."""
    from slurmtrain.config.site import SiteStorage
    from slurmtrain.config.stored import read_site
    from slurmtrain.errors import ConfigError, UserError
    from slurmtrain.store.space import Need, shortage

    try:
        site = read_site(run.site_json).storage if run is not None else SiteStorage()
    except ConfigError:
        site = SiteStorage()
    there = next(folder for folder in out.absolute().parents if folder.is_dir())
    if short := shortage(there, Need(size, files), shell=doors.shell, site=site):
        raise UserError(f"no room for {out}: {short}")


def check_model(place: Place, kinds: Kinds, whose: str) -> None:
    """A run gets no checkpoint of another model. Raises CheckpointError."""
    from slurmtrain.checkpoint.expected import misfits, of_job
    from slurmtrain.config.stored import read_job
    from slurmtrain.errors import CheckpointError

    if place.run is None or place.job is not None:
        return
    ours = {name: kind for name, kind in kinds.items() if name.startswith("model/")}
    wanted = of_job(read_job(place.run.job_json), f"run {place.run.name}")
    if fault := misfits(ours, wanted.of(("model",)), has=whose, wants=wanted.where):
        raise CheckpointError(fault)
