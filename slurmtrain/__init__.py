"""slurmtrain: a Slurm-native toolkit that takes a model and a cluster and keeps the training run going.

The layers, from the top: a module imports only from rows above its own (an import-linter contract holds it).

    0  errors units clock shell syscalls atomic aside rundir boxes      standard library only
    1  config  slurm
    2  telemetry  fabric  store  steps
    3  planner  preflight
    4  launch  resilience  entry
    -- torch line: nothing above imports torch, mpi4py or h5py; nothing below is imported when the CLI starts --
    5  runtime  models  data
    6  parallel  checkpoint
    7  train
    8  report
    9  cli
"""

__version__ = "0.1.0"
