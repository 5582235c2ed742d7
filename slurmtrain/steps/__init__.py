"""StepLauncher: how ranks are started inside an allocation (srun, mpiexec, a fake): argv, start, end, alive."""
