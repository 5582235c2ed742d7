"""Every error that slurmtrain raises on purpose, and the exit codes.

    SlurmtrainError                 base; `str(e)` is one line: what was wrong, where, what to do
      UserError                     a user's mistake: the CLI prints the line, no traceback, exit 2
        ConfigError                 a job, site or policy file, or an option, is wrong
        TemplateError               an sbatch template is wrong
        PlacementError              a layout that these nodes cannot hold
        RunExistsError, RunNotFoundError
      SlurmError                    Slurm refused or did not answer
        SlurmUnavailableError       no answer: worth trying again
          SubmitUnknownError        sbatch did not answer: the job may have been accepted
      LaunchError                   ranks could not be started, or do not form the world that was promised
      OwnershipError                this run belongs to another job or attempt
      CheckpointError               a checkpoint cannot be written or read
        CorruptCheckpointError      bytes on disk are not the bytes that were written
          UnreadableCheckpointError the system does not let them be read: another day it may
      DataError                     a token file is missing, short or damaged
      NonFiniteError                the loss or the gradient norm is not a finite number, or the loss is a spike
      SilentCorruptionError         replicas of the same parameters differ

A programmer's mistake is an assert or a plain built-in exception, never one of these.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAULT = 1
EXIT_USER = 2
EXIT_TEMPFAIL = 75
"""Stopped at a checkpoint: start me again (EX_TEMPFAIL of sysexits.h)."""
EXIT_CONFIG = 78
"""Wrong configuration: never restarted (EX_CONFIG). Believed only together with a rank's own record."""
EXIT_NO_RESTART = 93
"""Do not restart: no progress, or the budget is spent."""


class SlurmtrainError(Exception):
    """Base of all; `exit_code` is what a command ends with."""

    exit_code = EXIT_FAULT


class UserError(SlurmtrainError):
    """A user's mistake."""

    exit_code = EXIT_USER


class ConfigError(UserError):
    """A value in a file or option is wrong: `where` names the file, `key` the dotted key.

    >>> str(ConfigError("must be at least 1", where="job.toml", key="parallel.tp", value=0))
    'job.toml: parallel.tp = 0: must be at least 1'
    """

    def __init__(self, problem: str, *, where: str = "", key: str = "", value: object = None) -> None:
        shown = "" if value is None else f" = {value!r}"
        prefix = ": ".join(part for part in (where, f"{key}{shown}" if key else "") if part)
        super().__init__(f"{prefix}: {problem}" if prefix else problem)
        self.problem, self.where, self.key, self.value = problem, where, key, value


class TemplateError(UserError):
    """An sbatch template is missing, drops a required block or uses an unknown name."""


class PlacementError(UserError):
    """A layout that these nodes cannot hold."""


class RunExistsError(UserError):
    """The name of a run is taken."""


class RunNotFoundError(UserError):
    """No such run or job."""


class SlurmError(SlurmtrainError):
    """Slurm refused: `str(e)` carries its own words."""


class SlurmUnavailableError(SlurmError):
    """Slurm's daemons did not answer."""


class SubmitUnknownError(SlurmUnavailableError):
    """Sbatch did not answer: the job may have been accepted, so nothing is taken back."""


class LaunchError(SlurmtrainError):
    """Ranks could not be started, or do not form the world that was promised."""


class OwnershipError(SlurmtrainError):
    """The run belongs to another job or attempt."""


class CheckpointError(SlurmtrainError):
    """A checkpoint cannot be written or read."""


class CorruptCheckpointError(CheckpointError):
    """Bytes on disk are not the bytes that were written."""


class UnreadableCheckpointError(CorruptCheckpointError):
    """The system does not let the bytes be read: no permission, or the file system fails. Another day it may."""


class DataError(SlurmtrainError):
    """A token file is missing, short or damaged."""


class NonFiniteError(SlurmtrainError):
    """The loss or the gradient norm is not a finite number; training ends before anything is updated."""


class SilentCorruptionError(SlurmtrainError):
    """What replicas hold is not equal bit for bit: some rank's memory, device or program is wrong."""

    category = "silent_corruption"
    """Of telemetry.causes."""


def one_line(text: str, limit: int = 300) -> str:
    """The text as one line of at most `limit` characters, for stderr and records.

    What a terminal would obey instead of showing it (a program's binary output, colours) is shown as U+FFFD.
    """
    flat = " ".join(text.split())
    flat = flat if flat.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in flat)
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."
