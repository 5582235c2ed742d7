"""The supervisor of a run as a batch job has it, with the tiny trainer; `"deadline": false` lets it be surprised by the time limit."""

import json
import os
import sys
from pathlib import Path

from slurmtrain.resilience import watch
from slurmtrain.resilience.supervisor import supervise
from slurmtrain.rundir import RunDir
from tests.resilience.runs import tiny_command

if __name__ == "__main__":
    run = RunDir(Path(sys.argv[1]))
    if json.loads((run.path / "behaviour.json").read_text()).get("deadline") is False:
        watch.stop_at = lambda *_: None
    sys.exit(supervise(run, os.environ, command=tiny_command(run)).code)
