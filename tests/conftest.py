"""Fixtures of all tests."""

from hypothesis import settings

pytest_plugins = ["tests.fixtures_slurm"]

settings.register_profile("slurmtrain", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("slurmtrain")
