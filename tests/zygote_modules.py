"""What the zygote loads before it forks ranks: nothing that starts threads, MPI or process groups."""

import gc

gc.disable()

import hypothesis  # noqa: E402, F401 pytest modules import it
import numpy as np  # noqa: E402, F401
import pytest  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed.fsdp  # noqa: E402
import torch.distributed.pipelining  # noqa: E402, F401

import slurmtrain.parallel.apply  # noqa: E402
import slurmtrain.train.loop  # noqa: E402, F401

gc.freeze()
gc.enable()
