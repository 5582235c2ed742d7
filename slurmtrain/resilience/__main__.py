"""`python -m slurmtrain.resilience RUN`: supervise this job's share of a run; exits with the run's code."""

from __future__ import annotations

import sys

from slurmtrain.resilience.payload import run

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m slurmtrain.resilience RUN")
    sys.exit(int(run(sys.argv[1])["code"]))
